"""The checker can fail: one bad history per anomaly, a good one beside each, and random corruptions of good ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos import corrupt
from tests.chaos.checker import check, check_events
from tests.chaos.checks_liveness import Demands, longest_gaps
from tests.chaos.checks_log import GAVE_UP
from tests.chaos.history import HistoryError, parse, read
from tests.chaos.tale import Tale

A, B, C = (0, "a"), (1, "b"), (2, "c")
Story = Callable[[Tale], None]
STORIES: dict[str, tuple[Story, set[str]]] = {}


def story(*kinds: str) -> Callable[[Story], Story]:
    """A history by hand and exactly the anomalies it has."""

    def keep(tell: Story) -> Story:
        assert tell.__name__ not in STORIES
        STORIES[tell.__name__] = (tell, set(kinds))
        return tell

    return keep


def sent(tale: Tale, *values: str, key: str = "t/0") -> None:
    for offset, value in enumerate(values):
        tale.send(value, offset, key=key)


# ---- what is written and what is read ------------------------------------------------------------------------------


@story()
def all_is_well(tale: Tale) -> None:
    sent(tale, "a", "b", "c")
    tale.poll(A, B)
    tale.poll(C)
    tale.final({"t/0": [A, B, C]})


@story("phantom")
def it_was_never_written(tale: Tale) -> None:
    sent(tale, "a")
    tale.poll(A, (1, "ghost"))


@story("phantom")
def written_to_another_partition(tale: Tale) -> None:
    sent(tale, "a")
    tale.send("b", 0, key="t/1")
    tale.poll((0, "b"), key="t/1")
    tale.poll(A, B)


@story("read-from-future")
def read_before_it_was_sent(tale: Tale) -> None:
    tale.poll(A)
    sent(tale, "a")


@story()
def read_before_it_was_acknowledged(tale: Tale) -> None:
    start = tale.tick()
    tale.poll(A)
    tale.send("a", 0, at=start)


@story("inconsistent-offsets")
def two_readers_disagree(tale: Tale) -> None:
    sent(tale, "a")
    tale.send("b", outcome="info")
    tale.send("c", outcome="info")
    tale.poll(A, B, proc="r1")
    tale.poll(A, (1, "c"), proc="r2")


@story("inconsistent-offsets", "append-not-linear", "nonmonotonic-send", "lost-write")
def one_offset_acknowledged_twice(tale: Tale) -> None:
    tale.send("a", 0)
    tale.send("b", 0)
    tale.poll(A)


@story("inconsistent-offsets", "lost-write")
def acknowledged_elsewhere(tale: Tale) -> None:
    tale.send("a", 0)
    tale.send("b", outcome="info")
    tale.poll((0, "b"))


@story("duplicate")
def read_at_two_offsets(tale: Tale) -> None:
    sent(tale, "a")
    tale.poll(A, (1, "a"))


@story("duplicate")
def acknowledged_at_one_offset_read_at_another(tale: Tale) -> None:
    sent(tale, "a")
    tale.poll((3, "a"))


@story()
def duplicate_without_idempotence(tale: Tale) -> None:
    tale.send("a", 1, idem=False)
    tale.poll(A, (1, "a"))


@story()
def duplicate_of_what_was_in_flight_when_another_record_was_given_up(tale: Tale) -> None:
    start = tale.tick()
    tale.send("b", outcome="info", error=GAVE_UP)
    tale.send("a", 1, at=start)
    tale.poll(A, (1, "a"))


@story("duplicate")
def duplicate_of_what_was_sent_after_another_record_was_given_up(tale: Tale) -> None:
    tale.send("b", outcome="info", error=GAVE_UP)
    tale.send("a", 1)
    tale.poll(A, (1, "a"))


@story()
def duplicate_before_anything_was_sent_behind_a_record_that_was_given_up_elsewhere(tale: Tale) -> None:
    tale.send("b", outcome="info", error=GAVE_UP, key="t/1")
    tale.send("a", 1)
    tale.poll(A, (1, "a"))


@story("duplicate")
def duplicate_after_something_was_sent_behind_a_record_that_was_given_up_elsewhere(tale: Tale) -> None:
    tale.send("b", outcome="info", error=GAVE_UP, key="t/1")
    tale.send("c", 0, key="t/1")
    tale.send("a", 1)
    tale.poll(A, (1, "a"))
    tale.poll((0, "c"), key="t/1")


@story("duplicate")
def more_duplicates_than_records_that_were_given_up(tale: Tale) -> None:
    start = tale.tick()
    tale.send("b", outcome="info", error=GAVE_UP)
    tale.send("a", 2, at=start)
    tale.poll(A, (1, "a"), (2, "a"))


@story("duplicate")
def duplicate_of_a_record_that_was_given_up_itself(tale: Tale) -> None:
    tale.send("a", outcome="info", error=GAVE_UP)
    tale.poll(A, (1, "a"))


@story()
def two_values_in_two_partitions(tale: Tale) -> None:
    sent(tale, "a")
    sent(tale, "a", key="t/1")
    tale.poll(A)
    tale.poll(A, key="t/1")


@story("value-not-unique", "duplicate")
def the_workload_repeats_itself(tale: Tale) -> None:
    tale.send("a", 0)
    tale.send("a", 1)
    tale.poll(A, (1, "a"))


# ---- losses --------------------------------------------------------------------------------------------------------


@story("lost-write")
def below_what_was_read(tale: Tale) -> None:
    sent(tale, "a", "b", "c")
    tale.poll(A, proc="r1")
    tale.poll(C, proc="r2")


@story("unseen")
def above_what_was_read(tale: Tale) -> None:
    sent(tale, "a", "b")
    tale.poll(A)


@story("lost-write", "skip-poll")
def lost_before_the_final_read(tale: Tale) -> None:
    sent(tale, "a", "b", "c")
    tale.final({"t/0": [A, C]})


@story("refused-without-cause")
def refused_for_lack_of_a_right_that_it_has(tale: Tale) -> None:
    sent(tale, "a")
    tale.send("b", outcome="fail", error="TopicAuthorizationFailedError [Error 29] t")
    tale.final({"t/0": [A]})


@story("refused-without-cause")
def refused_between_two_others_that_pass_by_themselves(tale: Tale) -> None:
    sent(tale, "a")
    tale.send("b", outcome="info", error="Broker: Not enough in-sync replicas")
    tale.send("c", outcome="info", error="Broker: Topic authorization failed")
    tale.send("d", outcome="info", error="Local: Message timed out")
    tale.final({"t/0": [A]})


@story("unseen")
def lost_at_the_end_of_the_log(tale: Tale) -> None:
    sent(tale, "a", "b", "c")
    tale.final({"t/0": [A, B]}, ends={"t/0": (3, 3)})


@story("unseen", "log-end-back")
def the_end_of_the_log_is_cut(tale: Tale) -> None:
    sent(tale, "a", "b", "c")
    tale.final({"t/0": [A, B]})


@story("vanished-read", "skip-poll")
def shown_once_and_gone(tale: Tale) -> None:
    sent(tale, "a")
    tale.send("b", outcome="info")
    tale.send("c", 2)
    tale.poll(A, B, C)
    tale.final({"t/0": [A, C]})


@story("vanished-read", "log-end-back")
def shown_to_read_uncommitted_and_gone(tale: Tale) -> None:
    sent(tale, "a")
    tale.start("u", iso="ru")
    tale.txn([("t/0", "b", 1)], outcome="fail")
    tale.poll(A, B, proc="u")
    tale.final({"t/0": [A]})


@story()
def an_unknown_end_may_be_lost(tale: Tale) -> None:
    sent(tale, "a")
    tale.send("b", outcome="info")
    tale.final({"t/0": [A]})


@story()
def an_unknown_end_may_be_there(tale: Tale) -> None:
    sent(tale, "a")
    tale.send("b", outcome="info")
    tale.final({"t/0": [A, B]})


@story()
def an_invocation_without_an_end(tale: Tale) -> None:
    sent(tale, "a")
    tale.send("b", 1)
    tale.events.pop()
    tale.final({"t/0": [A]})


@story("vanished-read")
def shown_to_committed_readers_only(tale: Tale) -> None:
    sent(tale, "a")
    tale.final({"t/0": [A]}, {"t/0": []})


@story("inconsistent-offsets", "duplicate", "skip-poll")
def final_reads_disagree(tale: Tale) -> None:
    tale.send("a", outcome="info")
    tale.final({"t/0": [A]}, {"t/0": [(1, "a")]})


# ---- aborted, precommitted, torn -----------------------------------------------------------------------------------


@story("aborted-read")
def a_failed_send_is_read(tale: Tale) -> None:
    tale.send("a", outcome="fail")
    tale.poll(A)


@story("aborted-read")
def an_aborted_transaction_is_read(tale: Tale) -> None:
    tale.txn([("t/0", "a", 0)], outcome="fail")
    tale.poll(A)


@story()
def an_aborted_transaction_is_read_uncommitted(tale: Tale) -> None:
    tale.start("u", iso="ru")
    tale.txn([("t/0", "a", 0)], outcome="fail")
    tale.poll(A, proc="u")
    tale.final({"t/0": []}, {"t/0": [A]})


@story()
def an_end_by_the_clients_word_is_taken_as_unknown(tale: Tale) -> None:
    tale.txn([("t/0", "a", 0)], outcome="fail", doubtful=True)
    tale.poll(A)


@story("aborted-read")
def a_transaction_that_never_asked_for_its_commit_is_read(tale: Tale) -> None:
    tale.txn([("t/0", "a", 0)], outcome="info", committing=False)
    tale.poll(A)


@story("precommitted-read")
def a_transaction_reads_its_own(tale: Tale) -> None:
    start = tale.tick()
    tale.txn([("t/0", "a", 0)], polls=[], at=start)
    events, tale.events = tale.events, []
    read = {"e": "poll", "t0": tale.tick(), "t": tale.tick(), "r": {"t/0": [[0, "a"]]}, "f": "txn", "p": "x", "n": 1}
    tale.events = [*events[:-2], read, events[-2], events[-1] | {"t": tale.tick()}]


@story("torn-transaction", "unseen")
def half_of_a_transaction(tale: Tale) -> None:
    tale.txn([("t/0", "a", 0), ("t/1", "b", 0)])
    tale.final({"t/0": [A], "t/1": []}, {"t/0": [A], "t/1": [(0, "b")]})


@story("torn-transaction", "unseen")
def half_of_an_unknown_transaction(tale: Tale) -> None:
    tale.txn([("t/0", "a", 0), ("t/1", "b", 0)], outcome="info")
    tale.final({"t/0": [A], "t/1": []}, {"t/0": [A], "t/1": [(0, "b")]})


@story()
def all_of_an_unknown_transaction(tale: Tale) -> None:
    tale.txn([("t/0", "a", 0), ("t/1", "b", 0)], outcome="info")
    tale.final({"t/0": [A], "t/1": [(0, "b")]})


@story()
def nothing_of_an_unknown_transaction(tale: Tale) -> None:
    tale.txn([("t/0", "a", 0), ("t/1", "b", None)], outcome="info")
    tale.final({"t/0": [], "t/1": []}, {"t/0": [A], "t/1": []})


@story("torn-transaction")
def records_without_their_offsets(tale: Tale) -> None:
    sent(tale, "i", key="in/0")
    tale.txn([("t/0", "a", 0, ("in/0", 0))], polls=[{"in/0": [(0, "i")]}], offsets={"in/0": 1})
    tale.committed(-1, key="in/0", final=True, at=1)
    tale.final({"t/0": [A], "in/0": [(0, "i")]})


@story("hanging-transaction")
def the_last_stable_offset_stays(tale: Tale) -> None:
    tale.txn([("t/0", "a", 0)], outcome="info")
    tale.final({"t/0": []}, {"t/0": [A]}, ends={"t/0": (0, 1)})


# ---- read-process-write --------------------------------------------------------------------------------------------


def processed(tale: Tale, *outputs: tuple[str, int, int], committed: int, inputs: int = 2) -> None:
    """Inputs, one transaction per output (value, offset, of which input), and what the group stands at in the end."""
    for offset in range(inputs):
        tale.send(f"i{offset}", offset, key="in/0")
    for value, offset, source in outputs:
        tale.txn(
            [("t/0", value, offset, ("in/0", source))], polls=[{"in/0": [(source, f"i{source}")]}],
            offsets={"in/0": source + 1}, proc=f"x{value}",
        )  # fmt: skip
    if committed >= 0:
        tale.committed(committed, key="in/0", final=True)
    tale.final({"t/0": [(o, v) for v, o, _ in outputs], "in/0": [(o, f"i{o}") for o in range(inputs)]})


@story()
def each_input_once(tale: Tale) -> None:
    processed(tale, ("a", 0, 0), ("b", 1, 1), committed=2)


@story()
def an_input_that_is_not_reached_yet(tale: Tale) -> None:
    processed(tale, ("a", 0, 0), committed=1)


@story("processed-twice")
def an_input_twice(tale: Tale) -> None:
    processed(tale, ("a", 0, 0), ("b", 1, 0), ("c", 2, 1), committed=2)


@story("processed-never")
def an_input_never(tale: Tale) -> None:
    processed(tale, ("a", 0, 1), committed=2)


@story("torn-transaction", "stale-committed-offset")
def an_output_above_the_committed_offset(tale: Tale) -> None:
    processed(tale, ("a", 0, 0), ("b", 1, 1), committed=1)


@story("no-final-offset")
def the_groups_offsets_were_never_read(tale: Tale) -> None:
    processed(tale, ("a", 0, 0), ("b", 1, 1), committed=-1)


# ---- order ---------------------------------------------------------------------------------------------------------


@story("nonmonotonic-poll")
def back_inside_a_poll(tale: Tale) -> None:
    sent(tale, "a", "b")
    tale.poll(B, A)


@story("skip-poll")
def a_gap_inside_a_poll(tale: Tale) -> None:
    sent(tale, "a", "b", "c")
    tale.poll(A, C)
    tale.poll(A, B, C, proc="r2")


@story()
def a_gap_where_an_aborted_record_is(tale: Tale) -> None:
    tale.send("a", 0)
    tale.txn([("t/0", "b", 1)], outcome="fail")
    tale.send("c", 2)
    tale.poll(A, C)


@story("skip-poll")
def a_gap_that_read_uncommitted_must_not_have(tale: Tale) -> None:
    tale.start("u", iso="ru")
    tale.send("a", 0)
    tale.txn([("t/0", "b", 1)], outcome="fail")
    tale.send("c", 2)
    tale.poll(A, C, proc="u")


@story("nonmonotonic-poll")
def back_between_two_polls(tale: Tale) -> None:
    sent(tale, "a", "b")
    tale.poll(A, B)
    tale.poll(B)


@story("skip-poll")
def a_gap_between_two_polls(tale: Tale) -> None:
    sent(tale, "a", "b", "c")
    tale.poll(A)
    tale.poll(C)
    tale.poll(A, B, C, proc="r2")


@story()
def back_after_a_seek(tale: Tale) -> None:
    sent(tale, "a", "b")
    tale.poll(A, B)
    tale.position({"t/0": 1})
    tale.poll(B)


@story("skip-poll")
def not_where_the_seek_went(tale: Tale) -> None:
    sent(tale, "a", "b")
    tale.position({"t/0": 0})
    tale.poll(B)
    tale.poll(A, B, proc="r2")


@story("skip-poll", "final-reads-differ")
def the_final_read_begins_too_late(tale: Tale) -> None:
    sent(tale, "a", "b")
    tale.poll(A, B)
    tale.final({"t/0": [A, B]})
    tale.final({"t/0": [B]})


@story("final-reads-differ")
def a_final_read_ends_too_early(tale: Tale) -> None:
    sent(tale, "a", "b")
    tale.final({"t/0": [A, B]})
    tale.final({"t/0": [A]}, ends={"t/0": (2, 2)})


@story()
def two_final_reads_agree(tale: Tale) -> None:
    sent(tale, "a", "b")
    tale.final({"t/0": [A, B]})
    tale.final({"t/0": [A, B]})


@story("nonmonotonic-send")
def sends_overtake_each_other(tale: Tale) -> None:
    first, second = tale.tick(), tale.tick()
    tale.send("b", 1, at=first)
    tale.send("a", 0, at=second)
    tale.poll(A, B)


@story()
def sends_of_two_producers_overtake_each_other(tale: Tale) -> None:
    first, second = tale.tick(), tale.tick()
    tale.send("b", 1, at=first)
    tale.send("a", 0, at=second, proc="w2")
    tale.poll(A, B)


@story("nonmonotonic-send", "append-not-linear")
def sends_of_one_transaction_overtake_each_other(tale: Tale) -> None:
    tale.txn([("t/0", "b", 1), ("t/0", "a", 0)])
    tale.poll(A, B)


@story("append-not-linear")
def an_append_below_an_acknowledged_one(tale: Tale) -> None:
    tale.send("b", 1)
    tale.send("a", 0, proc="w2")
    tale.poll(A, B)


@story("circular-information")
def two_transactions_read_each_other(tale: Tale) -> None:
    start = tale.tick()
    tale.txn([("t/0", "a", 0)], at=start, proc="x1", polls=[])
    tale.txn([("t/1", "b", 0)], at=start, proc="x2", polls=[])
    for number, (key, value) in enumerate((("t/1", "b"), ("t/0", "a")), 1):
        end = next(i for i, event in enumerate(tale.events) if event["n"] == number and event["e"] == "committing")
        read = {
            "e": "poll",
            "t0": tale.now,
            "t": tale.tick(),
            "r": {key: [[0, value]]},
            "f": "txn",
            "p": f"x{number}",
            "n": number,
        }
        tale.events[end]["t"] = tale.events[end + 1]["t"] = tale.tick()
        tale.events.insert(end, read)


@story()
def one_transaction_reads_the_other(tale: Tale) -> None:
    tale.txn([("t/0", "a", 0)], proc="x1")
    tale.txn([("t/1", "b", 0)], proc="x2", polls=[{"t/0": [A]}])
    tale.poll((0, "b"), key="t/1")


# ---- the ends of logs and the offsets of groups --------------------------------------------------------------------


@story("log-end-back")
def the_high_watermark_goes_back(tale: Tale) -> None:
    sent(tale, "a")
    tale.poll(A)
    tale.ends(5)
    tale.ends(4)


@story("log-end-back")
def the_end_lies_below_an_acknowledged_record(tale: Tale) -> None:
    sent(tale, "a", "b")
    tale.ends(1)
    tale.poll(A, B)


@story()
def the_end_is_asked_while_a_record_is_on_its_way(tale: Tale) -> None:
    start = tale.tick()
    tale.ends(0)
    tale.send("a", 0, at=start)
    tale.poll(A)


@story("log-end-back")
def the_last_stable_offset_lies_below_what_was_shown(tale: Tale) -> None:
    sent(tale, "a", "b")
    tale.poll(A, B)
    tale.ends(1, iso="rc")


@story()
def the_last_stable_offset_waits_for_a_transaction(tale: Tale) -> None:
    sent(tale, "a", "b")
    tale.ends(1, iso="rc")
    tale.poll(A, B)


@story("stale-committed-offset")
def an_older_offset_is_answered(tale: Tale) -> None:
    tale.commit(3)
    tale.commit(5)
    tale.committed(3)


@story()
def a_member_that_is_assigned_commits_where_it_was(tale: Tale) -> None:
    tale.start("m1", iso="rc", group="g")
    tale.commit(3, proc="m1")
    tale.commit(5)
    tale.committed(5)
    tale.position({"t/0": None}, proc="m1")
    tale.commit(4, proc="m1")
    tale.committed(4)
    tale.commit(6)
    tale.committed(6)


@story("stale-committed-offset")
def a_member_commits_where_it_was_and_the_answer_is_older(tale: Tale) -> None:
    tale.start("m1", iso="rc", group="g")
    tale.commit(3)
    tale.commit(5)
    tale.position({"t/0": None}, proc="m1")
    tale.commit(4, proc="m1")
    tale.committed(4)
    tale.committed(3)


@story("stale-committed-offset")
def a_member_that_was_not_assigned_anew_commits_where_it_was(tale: Tale) -> None:
    tale.start("m1", iso="rc", group="g")
    tale.position({"t/0": None}, proc="m1")
    tale.commit(5)
    tale.commit(4, proc="m1")
    tale.committed(4)


@story("committed-offset-back")
def committed_offsets_go_back(tale: Tale) -> None:
    tale.commit(3)
    tale.commit(5, outcome="info")
    tale.committed(5)
    tale.committed(3)


@story()
def an_offset_on_its_way_may_be_answered_or_not(tale: Tale) -> None:
    tale.commit(3)
    start = tale.tick()
    tale.committed(3)
    tale.committed(5)
    tale.commit(5, at=start)


@story("phantom-offset")
def an_offset_that_was_never_committed(tale: Tale) -> None:
    tale.commit(3)
    tale.committed(4)


@story("aborted-offset")
def an_offset_of_a_refused_commit(tale: Tale) -> None:
    tale.commit(4, outcome="fail")
    tale.committed(4)


@story()
def an_offset_of_a_commit_that_was_refused_when_it_was_tried_again(tale: Tale) -> None:
    tale.commit(4, outcome="fail", doubtful=True)
    tale.committed(4)


@story("phantom-offset")
def an_offset_that_was_committed_later(tale: Tale) -> None:
    tale.committed(4)
    tale.commit(4)


@story("aborted-offset")
def an_offset_of_an_aborted_transaction(tale: Tale) -> None:
    tale.txn([], offsets={"t/0": 4}, outcome="fail")
    tale.committed(4)


@story("stale-committed-offset")
def the_offset_of_a_committed_transaction_is_forgotten(tale: Tale) -> None:
    tale.txn([], offsets={"t/0": 4})
    tale.committed(-1)


@story("stale-committed-offset")
def a_member_resumes_too_early(tale: Tale) -> None:
    tale.start("m1", iso="rc", group="g")
    tale.start("m2", iso="rc", group="g")
    sent(tale, "a", "b", "c")
    tale.position({"t/0": None}, proc="m1")
    tale.poll(A, B, proc="m1")
    tale.commit(2, proc="m1")
    tale.position({"t/0": None}, proc="m2")
    tale.poll(B, C, proc="m2")


@story("skip-poll")
def a_member_resumes_too_late(tale: Tale) -> None:
    tale.start("m1", iso="rc", group="g")
    tale.start("m2", iso="rc", group="g")
    sent(tale, "a", "b", "c")
    tale.position({"t/0": None}, proc="m1")
    tale.poll(A, proc="m1")
    tale.commit(1, proc="m1")
    tale.position({"t/0": None}, proc="m2")
    tale.poll(C, proc="m2")
    tale.poll(B)


@story()
def a_member_resumes_where_the_other_stopped(tale: Tale) -> None:
    tale.start("m1", iso="rc", group="g")
    tale.start("m2", iso="rc", group="g")
    sent(tale, "a", "b", "c")
    tale.position({"t/0": None}, proc="m1")
    tale.poll(A, B, proc="m1")
    tale.commit(1, proc="m1")
    tale.position({"t/0": None}, proc="m2")
    tale.poll(B, C, proc="m2")


@story()
def a_member_keeps_its_partition_and_its_place(tale: Tale) -> None:
    tale.start("m1", iso="rc", group="g")
    sent(tale, "a", "b", "c")
    tale.position({"t/0": None}, proc="m1")
    tale.poll(A, proc="m1")
    tale.position({"t/0": None}, proc="m1")
    tale.poll(B, C, proc="m1")


@story("stale-committed-offset")
def a_member_that_gets_its_partition_back_resumes_where_it_was(tale: Tale) -> None:
    tale.start("m1", iso="rc", group="g")
    tale.start("m2", iso="rc", group="g")
    sent(tale, "a", "b", "c")
    tale.position({"t/0": None, "t/1": None}, proc="m1", beside=True)
    tale.poll(A, proc="m1")
    tale.position({"t/0": None}, proc="m2", beside=True)
    tale.poll(A, B, proc="m2")
    tale.commit(2, proc="m2")
    tale.position({"t/0": None}, proc="m1", beside=True)
    tale.poll(B, C, proc="m1")


@story("skip-poll")
def a_member_skips_records_where_it_keeps_its_place(tale: Tale) -> None:
    tale.start("m1", iso="rc", group="g")
    sent(tale, "a", "b", "c")
    tale.position({"t/0": None}, proc="m1", beside=True)
    tale.poll(A, proc="m1")
    tale.position({"t/1": None}, proc="m1", beside=True)
    tale.poll(C, proc="m1")
    tale.poll(B)


@story()
def a_member_goes_on_beside_what_it_is_assigned(tale: Tale) -> None:
    tale.start("m1", iso="rc", group="g")
    sent(tale, "a", "b", "c")
    tale.position({"t/0": None}, proc="m1", beside=True)
    tale.poll(A, proc="m1")
    tale.position({"t/1": None}, proc="m1", beside=True)
    tale.poll(B, C, proc="m1")


@story("skip-poll")
def a_member_resumes_where_it_was_though_it_lost_the_partition(tale: Tale) -> None:
    tale.start("m1", iso="rc", group="g")
    sent(tale, "a", "b", "c")
    tale.position({"t/0": None}, proc="m1")
    tale.poll(A, proc="m1")
    tale.position({}, proc="m1")
    tale.position({"t/0": None}, proc="m1")
    tale.poll(B, C, proc="m1")


# ---- a compacted topic ---------------------------------------------------------------------------------------------

A1, B1, A2, A3 = (0, "w.1@a"), (1, "w.2@b"), (2, "w.3@a"), (3, "w.4@a")


def updated(tale: Tale, key: str = "table/0") -> None:
    for offset, value in (A1, B1, A2, A3):
        tale.send(value, offset, key=key)


@story()
def updates_are_compacted(tale: Tale) -> None:
    updated(tale)
    tale.poll(A1, B1, A3, key="table/0")
    tale.poll(B1, A2, A3, key="table/0", proc="another")
    tale.final({"table/0": [B1, A3]}, {"table/0": [B1, A2, A3]})
    tale.final({"table/0": [B1, A3]})


@story("lost-write", "skip-poll")
def the_last_record_of_a_key_is_gone(tale: Tale) -> None:
    updated(tale)
    tale.final({"table/0": [A1, A2, A3]})


@story("unseen")
def the_newest_record_of_a_key_is_gone_and_an_older_one_is_not(tale: Tale) -> None:
    updated(tale)
    tale.final({"table/0": [A1, B1, A2]}, ends={"table/0": (4, 4)})
    tale.final({"table/0": [B1, A2]}, ends={"table/0": (4, 4)})


@story("skip-poll")
def a_reader_is_not_shown_the_last_record_of_a_key(tale: Tale) -> None:
    updated(tale)
    tale.poll(A1, A2, A3, key="table/0")
    tale.final({"table/0": [B1, A3]})


@story("lost-write", "skip-poll")
def a_topic_that_is_not_compacted_is(tale: Tale) -> None:
    updated(tale, "t/0")
    tale.final({"t/0": [B1, A3]})


@story("vanished-read")
def a_record_was_read_that_superseded_and_is_gone(tale: Tale) -> None:
    updated(tale)
    tale.send("w.5@a", key="table/0", outcome="info")
    tale.poll(B1, A3, (4, "w.5@a"), key="table/0")
    tale.final({"table/0": [B1, A3]}, ends={"table/0": (5, 5)})


# ---- batches of a sink ---------------------------------------------------------------------------------------------


@story()
def batches_one_after_the_other(tale: Tale) -> None:
    tale.fence(-1)
    tale.txn([("t/0", "a", 0)], batch=("s", 0))
    tale.fence(0)
    tale.txn([("t/0", "b", 1)], batch=("s", 1), outcome="info")
    tale.fence(1)
    tale.final({"t/0": [(0, "a"), (1, "b")]})


@story()
def a_batch_is_tried_again(tale: Tale) -> None:
    tale.fence(-1)
    tale.txn([("t/0", "a", 0)], batch=("s", 0), outcome="info")
    tale.fence(-1)
    tale.txn([("t/0", "b", 2)], batch=("s", 0))
    tale.fence(0)
    tale.final({"t/0": [(2, "b")]}, {"t/0": [(0, "a"), (2, "b")]})


@story("batch-twice", "batch-not-locked-out")
def both_attempts_at_a_batch_are_there(tale: Tale) -> None:
    tale.fence(-1)
    tale.txn([("t/0", "a", 0)], batch=("s", 0), outcome="info")
    tale.fence(-1)
    tale.txn([("t/0", "b", 2)], batch=("s", 0))
    tale.final({"t/0": [(0, "a"), (2, "b")]})


@story("batch-twice")
def a_batch_is_committed_again_behind_its_fence(tale: Tale) -> None:
    tale.fence(-1)
    tale.txn([("t/0", "a", 0)], batch=("s", 0))
    tale.txn([("t/0", "b", 2)], batch=("s", 0))
    tale.final({"t/0": [(0, "a"), (2, "b")]})


@story("fence-back")
def the_fence_forgets_a_batch(tale: Tale) -> None:
    tale.fence(-1)
    tale.txn([("t/0", "a", 0)], batch=("s", 0))
    tale.fence(-1)
    tale.final({"t/0": [(0, "a")]})


@story("fence-back", "batch-not-locked-out")
def the_fence_goes_back(tale: Tale) -> None:
    tale.fence(-1)
    tale.txn([("t/0", "a", 0)], batch=("s", 0), outcome="info")
    tale.fence(0)
    tale.fence(-1)
    tale.final({"t/0": [(0, "a")]})


@story("fence-phantom")
def the_fence_names_an_unknown_batch(tale: Tale) -> None:
    tale.fence(7)
    tale.final({"t/0": []})


@story("lost-write")
def the_fence_names_a_batch_that_is_not_there(tale: Tale) -> None:
    tale.fence(-1)
    tale.txn([("t/0", "a", 0)], batch=("s", 0), outcome="info")
    tale.fence(0)
    tale.final({"t/0": []}, {"t/0": [(0, "a")]})


@story("batch-not-locked-out")
def a_driver_that_was_locked_out_commits(tale: Tale) -> None:
    tale.fence(-1, proc="zombie")
    begun = tale.tick()
    tale.fence(-1)
    tale.txn([("t/0", "a", 0)], batch=("s", 0), proc="zombie", at=begun)
    tale.final({"t/0": [(0, "a")]})


@story()
def sinks_do_not_know_each_other(tale: Tale) -> None:
    tale.fence(-1, sink="one")
    tale.fence(-1, sink="two")
    tale.txn([("t/0", "a", 0)], batch=("one", 0))
    tale.txn([("t/0", "b", 1)], batch=("two", 0))
    tale.fence(0, sink="two")
    tale.final({"t/0": [(0, "a"), (1, "b")]})


# ---- deleted records, topics made again, the bank ------------------------------------------------------------------


@story()
def deleted_records_are_gone(tale: Tale) -> None:
    sent(tale, "a", "b", "c")
    tale.poll(A, B)
    tale.trim(2)
    tale.poll(C, proc="late")
    tale.final({"t/0": [C]})


@story()
def deleted_by_a_request_without_an_answer(tale: Tale) -> None:
    sent(tale, "a", "b", "c")
    tale.trim(1, outcome="info")
    tale.final({"t/0": [B, C]})


@story()
def a_reader_resumes_behind_deleted_records(tale: Tale) -> None:
    sent(tale, "a", "b", "c")
    tale.position({"t/0": 0})
    tale.poll(A)
    tale.trim(2)
    tale.poll(C)
    tale.final({"t/0": [C]})


@story("lost-write", "skip-poll")
def more_is_gone_than_was_deleted(tale: Tale) -> None:
    sent(tale, "a", "b", "c")
    tale.trim(1)
    tale.final({"t/0": [C]})


@story("deleted-record-back")
def a_deleted_record_is_back(tale: Tale) -> None:
    sent(tale, "a", "b", "c")
    tale.trim(2)
    tale.final({"t/0": [B, C]})


@story()
def a_topic_is_made_again(tale: Tale) -> None:
    tale.again("one", ["a", "b"], ["a"], ["a", "b"])
    tale.again("two", ["c"], ["c"], ["b", "c"])  # b was never acknowledged: its Produce may have come late
    tale.again("three", ["d"], ["d"], None)


@story("record-of-a-deleted-topic")
def a_record_of_the_topic_before(tale: Tale) -> None:
    tale.again("one", ["a", "b"], ["a", "b"], ["a", "b"])
    tale.again("two", ["c"], ["c"], ["a", "b", "c"])


@story()
def a_late_request_names_the_topic_made_again(tale: Tale) -> None:
    tale.again("one", ["a", "b"], ["a", "b"], ["a", "b"])
    tale.again("two", ["c"], ["c"], ["b", "c"])


@story("lost-write", "duplicate", "phantom")
def a_topic_made_again_loses_and_repeats(tale: Tale) -> None:
    tale.again("one", ["a", "b"], ["a", "b"], ["b", "b", "damaged: x"])


@story()
def a_producer_repeats_what_it_sent_behind_a_record_that_it_gave_up(tale: Tale) -> None:
    tale.again("one", ["a", "b", "c"], ["b", "c"], ["a", "b", "b", "c"])


@story("duplicate")
def a_producer_repeats_more_than_it_gave_up(tale: Tale) -> None:
    tale.again("one", ["a", "b", "c"], ["a", "c"], ["a", "a", "c", "c"])


def transfer(tale: Tale, amounts: tuple[int, int], shown: tuple[int, ...] = (0, 1)) -> None:
    tale.send("order", 0, key="in/0")
    names = [f"x.1.in/0.0.{amount}" for amount in amounts]
    sends = [("bank/0", names[0], 0, ["in/0", 0]), ("bank/1", names[1], 0, ["in/0", 0])]
    tale.txn(sends, offsets={"in/0": 1}, group="tellers")
    tale.committed(1, key="in/0", group="tellers", final=True)
    tale.final({"in/0": [(0, "order")], **{f"bank/{n}": [(0, names[n])] if n in shown else [] for n in (0, 1)}})


@story()
def a_transfer_has_two_sides(tale: Tale) -> None:
    transfer(tale, (-5, 5))


@story("bank-unbalanced")
def a_transfer_makes_money(tale: Tale) -> None:
    transfer(tale, (-5, 6))


@story("bank-unbalanced", "unseen", "log-end-back", "torn-transaction", "processed-never")
def a_transfer_loses_a_side(tale: Tale) -> None:
    transfer(tale, (-5, 5), (0,))


# ---- share groups --------------------------------------------------------------------------------------------------

J0, J1, J2 = (0, "a@k"), (1, "b@k"), (2, "c@other")


def jobs(tale: Tale) -> None:
    sent(tale, *(value for _, value in (J0, J1, J2)), key="jobs/0")
    tale.final({"jobs/0": [J0, J1, J2]})


@story()
def records_of_a_key_come_one_after_the_other(tale: Tale) -> None:
    jobs(tale)
    first = tale.given(J0, J2)
    tale.say(first, "release", 0)
    again = tale.given(J0, proc="s2")
    tale.say(again, "accept", 0, proc="s2")
    tale.say(first, "reject", 2)
    tale.say(tale.given(J1, proc="s2"), "accept", 1, proc="s2")
    tale.letters((2, "rejected"))


@story("share-given-again")
def what_was_accepted_is_given_again(tale: Tale) -> None:
    jobs(tale)
    tale.say(tale.given(J2), "accept", 2)
    tale.given(J2, proc="s2")


@story("share-given-again")
def what_was_rejected_is_given_again(tale: Tale) -> None:
    jobs(tale)
    tale.say(tale.given(J2), "reject", 2)
    tale.given(J2, proc="s2")
    tale.say(tale.given(J0, J1), "accept", 0, 1)
    tale.letters((2, "rejected"))


@story()
def what_was_accepted_and_not_answered_comes_again(tale: Tale) -> None:
    jobs(tale)
    tale.say(tale.given(J2), "accept", 2, outcome="info")
    tale.say(tale.given(J2, proc="s2"), "accept", 2, proc="s2")


@story()
def what_was_asked_for_before_it_was_accepted_comes_late(tale: Tale) -> None:
    """Its lock ended before the other one got it."""
    jobs(tale)
    asked = tale.tick()
    tale.say(tale.given(J2), "accept", 2)
    tale.given(J2, proc="s2", at=asked)


@story("share-two-at-once")
def two_have_one_record(tale: Tale) -> None:
    jobs(tale)
    mine = tale.given(J2)
    tale.given(J2, proc="s2")
    tale.say(mine, "release", 2)


@story()
def what_is_said_of_a_finished_record_is_answered_so(tale: Tale) -> None:
    """Its lock had ended, and another one had accepted it."""
    jobs(tale)
    mine = tale.given(J0)
    tale.say(tale.given(J0, proc="s2"), "accept", 0, proc="s2")
    tale.given(J1, proc="s2")
    tale.say(mine, "accept", 0)


@story("share-order")
def another_one_of_a_key_is_given_out_while_its_lock_is_live(tale: Tale) -> None:
    jobs(tale)
    mine = tale.given(J0)
    tale.given(J1, proc="s2")
    tale.say(mine, "accept", 0)


@story("share-order")
def a_record_overtakes_one_of_its_key_that_was_given_back(tale: Tale) -> None:
    jobs(tale)
    tale.say(tale.given(J0), "release", 0)
    tale.say(tale.given(J1, proc="s2"), "accept", 1, proc="s2")
    tale.say(tale.given(J0, proc="s2"), "accept", 0, proc="s2")


@story()
def a_record_of_another_partition_is_of_another_key(tale: Tale) -> None:
    jobs(tale)
    sent(tale, "d@k", key="jobs/1")
    mine = tale.given(J0)
    tale.given((0, "d@k"), key="jobs/1", proc="s2")
    tale.say(mine, "accept", 0)


@story("dead-letter-missing")
def a_dead_letter_is_missing(tale: Tale) -> None:
    jobs(tale)
    tale.say(tale.given(J2), "reject", 2)
    tale.say(tale.given(J0), "accept", 0)
    tale.say(tale.given(J1), "accept", 1)
    tale.letters()


@story()
def a_rejection_without_an_answer_may_be_none(tale: Tale) -> None:
    jobs(tale)
    tale.say(tale.given(J0), "reject", 0, outcome="info")
    tale.say(tale.given(J0), "accept", 0)
    tale.say(tale.given(J1), "accept", 1)
    tale.say(tale.given(J2), "reject", 2, outcome="info")
    tale.letters((2, "rejected"))


@story("dead-letter-twice")
def a_dead_letter_is_doubled(tale: Tale) -> None:
    jobs(tale)
    tale.say(tale.given(J0), "accept", 0)
    tale.say(tale.given(J1, J2), "accept", 1)
    tale.letters((2, "too-many-deliveries"), (2, "too-many-deliveries"))


@story("dead-letter-unasked")
def a_dead_letter_of_what_nobody_rejected(tale: Tale) -> None:
    jobs(tale)
    tale.say(tale.given(J0, J2), "accept", 0, 2)
    tale.say(tale.given(J1), "accept", 1)
    tale.letters((1, "rejected"))


@story("share-skipped")
def a_record_is_finished_by_nobody(tale: Tale) -> None:
    jobs(tale)
    tale.say(tale.given(J0, J2), "accept", 0)
    tale.say(tale.given(J2), "release", 2)
    tale.letters((1, "too-many-deliveries"))


@story("phantom", "vanished-read")
def a_share_consumer_gets_what_nobody_wrote(tale: Tale) -> None:
    jobs(tale)
    tale.given((3, "ghost@k"))


@pytest.mark.parametrize("name", STORIES)
def test_history_by_hand(name: str) -> None:
    tell, kinds = STORIES[name]
    tale = Tale()
    tell(tale)
    report = check_events(tale.events)
    assert report.kinds == kinds, report.render()


def test_there_are_enough_stories() -> None:
    assert len(STORIES) >= 40
    assert sum(bool(kinds) for _, kinds in STORIES.values()) >= 30
    assert sum(not kinds for _, kinds in STORIES.values()) >= 15


# ---- unknown is not a pass -----------------------------------------------------------------------------------------


def _busy() -> Tale:
    tale = Tale()
    sent(tale, "a", "b", "c")
    tale.txn([("t/0", "d", 3)])
    tale.poll(A, B, C, (3, "d"))
    tale.fault("kill", 25, 55)
    tale.final({"t/0": [A, B, C, (3, "d")]})
    return tale


def test_enough_happened() -> None:
    demands = Demands(ok={"send ok": 3, "txn ok": 1}, faults={"kill": 1}, during_faults=1, final=True)
    report = check_events(_busy().events, demands)
    assert report.ok, report.render()


@pytest.mark.parametrize(
    ("demands", "kind"),
    [
        (Demands(ok={"send ok": 4}), "too-few-operations"),
        (Demands(ok={"commit ok": 1}), "too-few-operations"),
        (Demands(faults={"kill": 2}), "too-few-faults"),
        (Demands(faults={"pause": 1}), "too-few-faults"),
        (Demands(during_faults=3), "too-few-during-faults"),
    ],
)
def test_too_little_happened(demands: Demands, kind: str) -> None:
    report = check_events(_busy().events, demands)
    assert not report.anomalies
    assert report.kinds == {kind}
    assert not report.ok


def test_a_fault_without_a_proof_does_not_count() -> None:
    tale = _busy()
    tale.fault("pause", 60, 70, proof=None)
    assert check_events(tale.events, Demands(faults={"pause": 1})).kinds == {"too-few-faults"}


def test_a_key_that_was_not_read_to_its_end() -> None:
    tale = _busy()
    tale.send("z", 0, key="other/0")
    tale.poll((0, "z"), key="other/0")
    assert check_events(tale.events, Demands(final=True)).kinds == {"no-final-read"}


def test_dead_letters_that_nobody_read() -> None:
    tale = Tale()
    jobs(tale)
    tale.given(J0)
    assert check_events(tale.events, Demands(final=True)).kinds == {"no-final-letters"}


def test_strict_reading_believes_the_client() -> None:
    tale = Tale()
    tale.txn([("t/0", "a", 0)], outcome="fail", doubtful=True)
    tale.poll(A)
    assert check_events(tale.events).ok
    assert check_events(tale.events, strict=True).kinds == {"aborted-read"}


def test_longest_gap_per_fault() -> None:
    tale = Tale()
    tale.send("a", 0)
    tale.fault("kill", 25, 30)
    tale.now = 5_000_000_000
    tale.send("b", 1)
    tale.fault("pause", 6_000_000_000, 6_000_000_001)
    gaps = longest_gaps(parse(tale.events))
    assert gaps["kill"] == pytest.approx(5, abs=0.01)
    assert gaps["pause"] == 0, "no gap of at least 0.1 s"


# ---- files ---------------------------------------------------------------------------------------------------------


def test_history_files(tmp_path: Path) -> None:
    tale = _busy()
    writers = {event.get("p", "faults") for event in tale.events}
    for name in writers:
        lines = [json.dumps(event) for event in tale.events if event.get("p", "faults") == name]
        (tmp_path / f"{name}.jsonl").write_text(
            "\n".join(lines) + "\n" + ('{"e": "ok", "f": "se' if name == "r" else "")
        )
    assert check(read(tmp_path)).ok
    (tmp_path / "w.jsonl").write_text('{"e": "o\n{}\n')
    with pytest.raises(HistoryError, match=r"w\.jsonl:1"):
        read(tmp_path)


# ---- random histories and random corruptions -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_are_clean(seed: int) -> None:
    for number in range(40):
        events = corrupt.generate(random.Random(f"{seed}-{number}"))
        report = check_events(events, Demands(final=True))
        assert report.ok, f"seed {seed}-{number}\n{report.render()}"


@pytest.mark.parametrize("name", corrupt.CORRUPTIONS)
def test_each_corruption_is_seen(name: str) -> None:
    tried = 0
    for number in range(25):
        rng = random.Random(f"{name}-{number}")
        events = corrupt.generate(rng)
        expected = corrupt.CORRUPTIONS[name](rng, events)
        if expected is None:  # there is nothing to corrupt
            continue
        tried += 1
        report = check_events(events, Demands(final=True))
        assert report.kinds & expected, f"{name}-{number}: {expected} expected\n{report.render()}"
    assert tried >= 15
