"""The runtime's guarantees, on a partition whose replication the test controls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog._native.batch import scan
from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime, java_string_hash
from fleetlog.brokers.coordinators.shard_host import LONG_WRITE, Beside, TransactionMarker
from fleetlog.txn.commands import (
    DEFERRED,
    Answer,
    Cancel,
    CommandFailed,
    CoordinatorRecord,
    Now,
    Result,
    Schedule,
    Ticket,
)
from fleetlog.wire.errors import ErrorCode as E
from fleetlog.wire.types import TopicPartition
from tests.coordinators.support import TOPIC, Bench, ListShard, MemoryLog, get, put
from tests.support.draw import examples
from tests.support.gauges import added_up


@pytest.fixture
def bench() -> Bench:
    return Bench()


def batches(bench: Bench) -> int:
    return len(bench.partition.log.batches)


# ---- the partition of a key -----------------------------------------------------------------------------------------

# Printed by Java's String.hashCode and Kafka 4.1.1's Utils.abs(...) % 50.
HASHES = [
    ("", 0, 0),
    ("a", 97, 47),
    ("group-1", 293427299, 49),
    ("my-transactional-id", -959806496, 46),
    ("ä€😀", 16603051, 1),
    ("polygenelubricants", -2147483648, 0),
    ("spark-sink-0b9f", -771205879, 29),
]


@pytest.mark.parametrize(("text", "value", "partition"), HASHES)
def test_partitions_are_kafkas(text: str, value: int, partition: int) -> None:
    runtime = CoordinatorRuntime(
        "x", TOPIC, lambda p: ListShard(p), partition_count=lambda: 50, loop=None, timers=None, clock=None, origin=None
    )  # type: ignore[arg-type]
    assert java_string_hash(text) == value
    assert runtime.partition_for(text) == partition


# ---- answers wait for replication ----------------------------------------------------------------------------------


def test_nothing_is_applied_or_answered_before_it_is_replicated(bench: Bench) -> None:
    answers = bench.submit("a", put("a", "1"))
    bench.loop.settle()
    assert batches(bench) == 1
    assert (answers, bench.shard.lists) == ([], {})
    bench.partition.commit()
    assert answers == [[]]
    assert bench.shard.lists == {"a": ["1"]}


def test_commands_of_a_key_see_its_committed_state_and_others_continue(bench: Bench) -> None:
    first, second = bench.submit("a", put("a", "1")), bench.submit("a", put("a", "2"))
    other = bench.submit("b", put("b", "9"))
    bench.loop.settle()
    assert bench.shard.log == ["loaded", "run a+1", "run b+9"], "a's second waits, b does not"
    bench.partition.commit()
    assert first == [[]]
    assert other == [[]]
    bench.loop.settle()
    assert second == []
    bench.partition.commit()
    assert second == [["1"]]


def of_part(part: str) -> Beside:
    return Beside(part, lambda shard: True)


def test_commands_of_other_parts_of_a_key_do_not_wait_for_each_other(bench: Bench) -> None:
    parts = [bench.submit("a", put("a", part), beside=of_part(part)) for part in "123"]
    again = bench.submit("a", put("a", "1 again"), beside=of_part("1"))
    behind = bench.submit("a", put("a", "4"), beside=of_part("4"))
    whole = bench.submit("a", put("a", "whole"))
    after = bench.submit("a", put("a", "5"), beside=of_part("5"))
    bench.loop.settle()

    def ran() -> list[str]:
        return [line.removeprefix("run a+") for line in bench.shard.log if line.startswith("run")]

    assert batches(bench) == 1
    assert ran() == ["1", "2", "3"], "the order of the key stays"
    bench.partition.commit()
    assert parts == [[[]]] * 3, "they saw what was in the log"
    bench.loop.settle()
    assert ran() == ["1", "2", "3", "1 again", "4"]
    assert (again, behind, whole, after) == ([], [], [], [])
    bench.partition.commit()
    assert again == behind == [["1"]], "as soon as what they wait for was applied"
    bench.loop.settle()
    assert ran()[-1] == "whole"
    bench.partition.commit()
    assert whole == [["1", "2", "3", "1 again", "4"]]
    bench.loop.settle()
    bench.partition.commit()
    assert after == [["1", "2", "3", "1 again", "4", "whole"]]
    assert bench.submit("a", get("a"))[0][-1] == "5", "nothing is held"


def test_a_command_that_does_not_commute_is_run_as_any(bench: Bench) -> None:
    first = bench.submit("a", put("a", "1"), beside=of_part("1"))
    second = bench.submit("a", put("a", "2"), beside=Beside("2", lambda shard: "a" in shard.lists))
    third = bench.submit("a", put("a", "3"), beside=of_part("3"))
    bench.loop.settle()
    assert bench.shard.log == ["loaded", "run a+1"]
    bench.partition.commit()
    bench.loop.settle()
    assert bench.shard.log[-2:] == ["run a+2", "run a+3"], "it commutes now"
    bench.partition.commit()
    assert (first, second, third) == ([[]], [["1"]], [["1"]])


def test_parts_that_cannot_be_written_free_their_key(bench: Bench) -> None:
    bench.partition.refuse = E.NOT_ENOUGH_REPLICAS
    answers = [bench.submit("a", put("a", part), beside=of_part(part)) for part in "12"]
    whole = bench.submit("a", get("a"))
    bench.loop.settle()
    assert answers == [[CommandFailed(E.COORDINATOR_NOT_AVAILABLE)]] * 2
    assert whole == [[]]
    bench.partition.refuse = E.NONE
    answers = [bench.submit("a", put("a", part), beside=of_part(part)) for part in "12"]
    bench.loop.settle()
    assert answers == [[], []]
    bench.runtime.partition_resigned(bench.partition.tp)
    assert answers == [[CommandFailed(E.NOT_COORDINATOR)]] * 2


def test_one_round_of_the_loop_makes_one_batch(bench: Bench) -> None:
    for key in "abcdef":
        bench.submit(key, put(key, "1", "2"))
    bench.loop.settle()
    assert batches(bench) == 1
    assert bench.partition.log.log_end_offset == 12
    bench.partition.commit()
    assert [line for line in bench.shard.log if line.startswith("apply")] == [
        f"apply {key}={value}" for key in "abcdef" for value in "12"
    ]


def test_a_long_write_is_applied_in_another_turn_and_before_what_is_behind_it() -> None:
    bench = Bench(instant=True)
    bench.loop.settle()
    long = [str(number) for number in range(LONG_WRITE + 1)]
    first = bench.submit("a", put("a", *long))
    bench.loop.round()
    assert (batches(bench), first, bench.shard.lists) == (1, [], {})
    second = bench.submit("b", put("b", "1"))
    bench.loop.settle()
    assert (first, second) == ([[]], [[]])
    applied = [line for line in bench.shard.log if line.startswith("apply")]
    assert applied == [*(f"apply a={value}" for value in long), "apply b=1"]


def test_large_writes_are_split_between_batches_never_inside_a_write(bench: Bench) -> None:
    for key in "abc":
        bench.submit(key, put(key, "x" * 150_000, "y" * 150_000))
    bench.loop.settle()
    assert [following - first for first, _, following in bench.partition.log.batches] == [2, 2, 2]


def test_a_partial_watermark_applies_whole_batches_in_order(bench: Bench) -> None:
    first = bench.submit("a", put("a", "1"))
    bench.loop.settle()
    second = bench.submit("b", put("b", "2"))
    bench.loop.settle()
    bench.partition.commit(1)
    assert (first, second) == ([[]], [])
    bench.partition.commit(2)
    assert second == [[]]


def test_what_commits_in_another_order_is_applied_in_the_logs(bench: Bench) -> None:
    """A wait that ended without an answer is repeated, and may hear later than the one behind it."""
    bench.submit("a", put("a", "1"))
    bench.loop.settle()
    bench.submit("b", put("b", "2"))
    bench.loop.settle()
    (_, first), (_, second) = bench.partition.waiters
    bench.partition.waiters = []
    second(E.NONE)
    assert bench.shard.lists == {}
    first(E.NONE)
    assert list(bench.shard.lists.items()) == [("a", ["1"]), ("b", ["2"])]


def test_effects_come_after_the_records(bench: Bench) -> None:
    answers: list[object] = []

    def joined(shard: ListShard, now: Now, ticket: Ticket) -> Result:
        shard.log.append("joined")
        return Result(DEFERRED, effects=(Schedule("wake/a", 500),))

    pending = bench.runtime.submit("a", joined)
    pending.on_done(answers.append)
    bench.submit("a", put("a", "1", effects=(Answer(pending.ticket, "done"), Cancel("wake/a"))))
    bench.loop.settle()
    assert answers == []
    bench.partition.commit()
    assert answers == ["done"]
    bench.loop.advance(1_000)
    assert "timer wake/a" not in bench.shard.log


def test_a_callback_that_submits_again_keeps_the_order_of_effects(bench: Bench) -> None:
    seen: list[str] = []

    def later(shard: ListShard, now: Now, ticket: Ticket) -> Result:
        seen.append("second command")
        return Result("ok", effects=(Schedule("t/a", 100),))

    def deferred(shard: ListShard, now: Now, ticket: Ticket) -> Result:
        return Result("first", effects=(Cancel("t/a"),))

    bench.runtime.submit("a", deferred).on_done(lambda _: bench.runtime.submit("a", later))
    bench.loop.advance(1)
    pending = bench.runtime.submit("a", lambda s, n, t: Result(DEFERRED))
    pending.on_done(lambda _: bench.runtime.submit("a", later))
    bench.runtime.submit("a", lambda s, n, t: Result("x", effects=(Answer(pending.ticket, 1), Cancel("t/a"))))
    bench.loop.advance(200)
    assert seen == ["second command", "second command"]
    assert bench.shard.log.count("timer t/a") == 1, "the timer set by the second command survives the first's Cancel"


# ---- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
        (E.INVALID_PRODUCER_EPOCH, E.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_refused_append_fails_its_ticket_and_frees_the_key(bench: Bench, error: E, told: E) -> None:
    bench.partition.refuse = error
    answers, behind = bench.submit("a", put("a", "1")), bench.submit("a", put("a", "2"))
    bench.loop.settle()
    assert answers == [CommandFailed(told)]
    bench.partition.refuse = E.NONE
    bench.loop.settle()
    assert behind in ([], [CommandFailed(told)])
    again = bench.submit("a", put("a", "3"))
    bench.loop.settle()
    bench.partition.commit()
    bench.loop.settle()
    bench.partition.commit()
    assert again, "the key is free"


def test_failed_gives_an_alternative_for_the_real_error(bench: Bench) -> None:
    asked: list[E] = []

    def failed(error: E, now: Now) -> Result:
        asked.append(error)
        return Result("sorry")

    bench.partition.refuse = E.MESSAGE_TOO_LARGE
    answers = bench.submit("a", put("a", "1", failed=failed))
    bench.loop.settle()
    assert (asked, answers) == ([E.MESSAGE_TOO_LARGE], ["sorry"])


def test_resigning_fails_everything_delayed_and_forgets_the_rest(bench: Bench) -> None:
    in_flight, behind = bench.submit("a", put("a", "1")), bench.submit("a", put("a", "2"))
    deferred = bench.submit("b", lambda s, n, t: Result(DEFERRED, effects=(Schedule("t/b", 10),)))
    bench.loop.settle()
    staged = bench.submit("c", put("c", "1"))
    shard = bench.shard
    bench.runtime.partition_resigned(bench.partition.tp)
    for answers in (in_flight, behind, deferred, staged):
        assert answers == [CommandFailed(E.NOT_COORDINATOR)]
    bench.partition.commit()
    bench.loop.advance(1_000)
    assert shard.lists == {}
    assert "timer t/b" not in shard.log
    assert batches(bench) == 1, "what was only staged is not written any more"
    assert bench.submit("a", put("a", "3")) == [CommandFailed(E.NOT_COORDINATOR)]


def test_a_lost_leadership_seen_by_the_append_unloads(bench: Bench) -> None:
    bench.partition.leader_epoch = 4  # another broker led in between
    answers, behind = bench.submit("a", put("a", "1")), bench.submit("a", put("a", "2"))
    bench.loop.settle()
    assert answers == behind == [CommandFailed(E.NOT_COORDINATOR)]
    assert bench.runtime.hosts() == []


def test_a_lapsed_lease_refuses_but_keeps_the_shard(bench: Bench) -> None:
    """Partition.append says NOT_LEADER_OR_FOLLOWER without a lease; no election follows when the lease comes back."""
    bench.partition.refuse = E.NOT_LEADER_OR_FOLLOWER
    answers = bench.submit("a", put("a", "1"))
    bench.loop.settle()
    assert answers == [CommandFailed(E.NOT_COORDINATOR)]
    bench.partition.refuse = E.NONE
    after = bench.submit("a", put("a", "2"))
    bench.loop.settle()
    bench.partition.commit()
    assert after == [[]]


def test_an_append_that_breaks_stops_the_shard(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **how: object) -> None:
        raise OSError("odd")

    monkeypatch.setattr(bench.partition, "append", broken)
    answers, behind = bench.submit("a", put("a", "1")), bench.submit("a", put("a", "2"))
    bench.loop.settle()
    assert answers == behind == [CommandFailed(E.COORDINATOR_NOT_AVAILABLE)]
    assert bench.submit("b", put("b", "1")) == [CommandFailed(E.COORDINATOR_NOT_AVAILABLE)]


def test_a_failing_answer_callback_does_not_stop_the_shard(bench: Bench) -> None:
    def broken(answer: object) -> None:
        raise ZeroDivisionError

    bench.runtime.submit("a", put("a", "1")).on_done(broken)
    after = bench.submit("a", put("a", "2"))
    for _ in range(2):
        bench.loop.settle()
        bench.partition.commit()
    assert after == [["1"]]


def test_a_lost_leadership_seen_by_the_wait_unloads(bench: Bench) -> None:
    answers = bench.submit("a", put("a", "1"))
    bench.loop.settle()
    bench.partition.fail_waiters(E.NOT_LEADER_OR_FOLLOWER)
    assert answers == [CommandFailed(E.NOT_COORDINATOR)]
    assert bench.runtime.hosts() == []


def test_a_write_in_the_log_is_waited_for_whatever_the_wait_says(bench: Bench) -> None:
    answers = bench.submit("a", put("a", "1"))
    bench.loop.settle()
    bench.partition.fail_waiters(E.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    bench.loop.advance(600)
    assert answers == []
    bench.partition.commit()
    assert answers == [[]]


def test_a_deadline_answers_the_ticket_but_the_work_continues(bench: Bench) -> None:
    answers = bench.submit("a", put("a", "1"), deadline_ms=100)
    bench.loop.advance(150)
    assert answers == [CommandFailed(E.REQUEST_TIMED_OUT)]
    bench.partition.commit()
    assert answers == [CommandFailed(E.REQUEST_TIMED_OUT)]
    assert bench.shard.lists == {"a": ["1"]}


def test_a_bug_in_a_command_is_that_commands_alone(bench: Bench) -> None:
    def broken(shard: ListShard, now: Now, ticket: Ticket) -> Result:
        raise ZeroDivisionError

    assert bench.submit("a", broken) == [CommandFailed(E.UNKNOWN_SERVER_ERROR)]
    bench.partition.instant = True
    after = bench.submit("a", put("a", "1"))
    bench.loop.settle()
    assert after == [[]]


def test_a_record_that_cannot_be_applied_stops_the_shard(bench: Bench) -> None:
    bench.shard.poison = "1"
    answers, behind = bench.submit("a", put("a", "1")), bench.submit("b", put("b", "2"))
    bench.loop.settle()
    bench.partition.commit()
    assert answers == behind == [CommandFailed(E.COORDINATOR_NOT_AVAILABLE)]
    assert bench.submit("a", put("a", "3")) == [CommandFailed(E.COORDINATOR_NOT_AVAILABLE)]


def test_without_its_lease_a_broker_answers_from_memory_only_when_its_followers_confirm_it(bench: Bench) -> None:
    assert bench.runtime.shard_for("a") == (E.NONE, bench.shard)
    bench.partition.confirmed = False
    assert bench.runtime.shard_for("a") == (E.COORDINATOR_LOAD_IN_PROGRESS, None)
    seen, lost = bench.submit("a", get("a")), bench.submit("b", get("b"))
    assert seen == lost == []
    bench.partition.unconfirmed.pop()(E.NOT_LEADER_OR_FOLLOWER)
    bench.partition.confirm()
    assert (seen, lost) == ([[]], [CommandFailed(E.NOT_COORDINATOR)])


def test_a_partition_that_is_handed_over_answers_no_reads_from_memory(bench: Bench) -> None:
    refused = (E.COORDINATOR_LOAD_IN_PROGRESS, None)
    bench.partition.lease.resigning = True
    assert bench.runtime.shard_for("a") == refused, "a successor may have committed since"
    bench.partition.lease.new_epoch()
    bench.partition.lease.waive(0)
    assert bench.runtime.shard_for("a") == refused


def test_without_its_lease_a_broker_answers_what_was_replicated(bench: Bench) -> None:
    bench.partition.confirmed = False
    answers = bench.submit("a", put("a", "1"))
    bench.loop.settle()
    assert answers == []
    bench.partition.commit()
    assert answers == [[]], "the replicas' having it is proof enough"
    assert bench.partition.unconfirmed == []


def test_what_writes_nothing_may_be_answered_at_once_by_a_host_that_is_idle(bench: Bench) -> None:
    host = bench.runtime.idle_host("a", "1")
    assert host is not None
    assert host.shard is bench.shard
    host.schedule("t/a", 50)
    bench.submit("a", put("a", "1"))
    assert bench.runtime.idle_host("a", "1") is None, "what is in flight comes first"
    assert bench.runtime.idle_host("b", "1") is host
    bench.loop.settle()
    bench.partition.commit()
    assert bench.runtime.idle_host("a", "1") is host
    bench.loop.advance(60)
    assert bench.shard.log.count("timer t/a") == 1
    bench.partition.confirmed = False
    assert bench.runtime.idle_host("a", "1") is None, "it may have been replaced"
    bench.partition.confirmed = True
    bench.runtime.close()
    assert bench.runtime.idle_host("a", "1") is None


def test_an_abandoned_command_is_finished_and_its_answer_dropped(bench: Bench) -> None:
    pending = bench.runtime.submit("a", put("a", "1"))
    pending.cancel()
    bench.loop.settle()
    bench.partition.commit()
    assert bench.shard.lists == {"a": ["1"]}


def test_a_line_behind_one_key_is_bounded(bench: Bench) -> None:
    bench.submit("a", put("a", "0"))
    answers = [bench.submit("a", put("a", str(n))) for n in range(10_100)]
    assert answers.index([CommandFailed(E.COORDINATOR_NOT_AVAILABLE)]) == 10_000, "all members of a large group wait"
    assert bench.submit("b", put("b", "1")) == []


# ---- timers --------------------------------------------------------------------------------------------------------


def test_timers_fire_once_and_can_be_pushed_back(bench: Bench) -> None:
    def arm(ms: int) -> None:
        bench.runtime.submit("a", lambda s, n, t: Result(effects=(Schedule("t/a", ms),)))

    arm(100)
    bench.loop.advance(60)
    arm(100)
    bench.loop.advance(60)
    assert "timer t/a" not in bench.shard.log
    bench.loop.advance(60)
    assert bench.shard.log.count("timer t/a") == 1
    bench.loop.advance(1_000)
    assert bench.shard.log.count("timer t/a") == 1
    arm(1_000)
    arm(10)
    bench.loop.advance(20)
    assert bench.shard.log.count("timer t/a") == 2


def test_a_timer_due_behind_a_held_key_is_dropped_when_the_command_before_it_cancels(bench: Bench) -> None:
    bench.runtime.submit("a", lambda s, n, t: Result(effects=(Schedule("t/a", 100),)))
    bench.submit("a", put("a", "1", effects=(Cancel("t/a"),)))
    bench.loop.advance(200)
    bench.partition.commit()
    assert "timer t/a" not in bench.shard.log
    bench.runtime.submit("a", lambda s, n, t: Result(effects=(Schedule("t/a", 100),)))
    bench.submit("a", put("a", "1"))
    bench.loop.advance(200)
    assert "timer t/a" not in bench.shard.log
    bench.partition.commit()
    assert "timer t/a" in bench.shard.log


def test_a_timers_records_are_written(bench: Bench) -> None:
    bench.shard.timer_result = lambda name: Result(records=(CoordinatorRecord(b"a", b"from timer"),))
    bench.partition.instant = True
    bench.runtime.submit("a", lambda s, n, t: Result(effects=(Schedule("t/a", 10),)))
    bench.loop.advance(20)
    assert bench.shard.lists == {"a": ["from timer"]}


# ---- transactions --------------------------------------------------------------------------------------------------


def test_transactional_writes_stand_alone_and_wait_for_their_marker(bench: Bench) -> None:
    guard = object()
    bench.submit("a", put("a", "1"))
    inside = bench.submit("b", put("b", "2", producer=(7, 1)), guard=guard)
    bench.submit("c", put("c", "3"))
    bench.loop.settle()
    assert batches(bench) == 3
    ((_, header),) = scan(bench.partition.log.batches[1][1])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, -1)
    assert header.is_transactional
    assert [how["verification_guard"] for how in bench.partition.appends] == [None, guard, None]
    bench.partition.commit()
    assert inside == [[]]
    assert bench.shard.lists == {"a": ["1"], "c": ["3"]}
    done: list[E] = []
    bench.runtime.append_marker(bench.partition.tp, TransactionMarker(7, 1, 5, True), done.append)
    bench.loop.settle()
    assert done == []
    bench.partition.commit()
    assert done == [E.NONE]
    assert bench.shard.lists["b"] == ["2"]


def test_markers_that_cannot_be_written(bench: Bench) -> None:
    done: list[E] = []
    marker = TransactionMarker(7, 1, 5, True)
    bench.runtime.append_marker(TopicPartition(TOPIC, 9), marker, done.append)
    bench.partition.refuse = E.TRANSACTION_COORDINATOR_FENCED
    bench.runtime.append_marker(bench.partition.tp, marker, done.append)
    bench.loop.settle()
    bench.partition.refuse = E.NONE
    bench.runtime.append_marker(bench.partition.tp, marker, done.append)
    bench.loop.settle()
    bench.runtime.append_marker(bench.partition.tp, marker, done.append)
    bench.runtime.partition_resigned(bench.partition.tp)
    bench.loop.settle()
    assert done == [E.NOT_LEADER_OR_FOLLOWER, E.TRANSACTION_COORDINATOR_FENCED] + [E.NOT_LEADER_OR_FOLLOWER] * 2


# ---- loading -------------------------------------------------------------------------------------------------------


def written(records: int) -> MemoryLog:
    bench = Bench(instant=True)
    for number in range(records):
        bench.submit(f"k{number % 7}", put(f"k{number % 7}", str(number)))
        if number % 50 == 0:
            bench.loop.settle()
    bench.loop.settle()
    return bench.partition.log


def test_a_load_is_sliced_and_refuses_commands_meanwhile() -> None:
    log = written(9_000)
    bench = Bench(log=log, start=False)
    bench.elect()
    bench.loop.round()
    assert bench.runtime.loading
    assert bench.runtime.shards() == []
    assert bench.submit("k1", put("k1", "x")) == [CommandFailed(E.COORDINATOR_LOAD_IN_PROGRESS)]
    bench.loop.settle()
    assert bench.loop.rounds >= 5, "it gave the loop back in between"
    assert not bench.runtime.loading
    assert bench.shard.log[-1] == "loaded"
    assert sum(len(values) for values in bench.shard.lists.values()) == 9_000
    assert bench.shard.lists["k3"][:2] == ["3", "10"]


def test_a_load_serves_only_when_what_it_read_is_replicated() -> None:
    log = written(10)
    log.high_watermark = 4
    bench = Bench(log=log)
    assert bench.submit("k1", put("k1", "x")) == [CommandFailed(E.COORDINATOR_LOAD_IN_PROGRESS)]
    bench.partition.commit()
    assert bench.runtime.shard_for("k1") == (E.NONE, bench.shard)


def test_resigning_during_a_load_stops_it() -> None:
    bench = Bench(log=written(9_000), start=False)
    bench.elect()
    bench.loop.round()
    bench.runtime.partition_resigned(bench.partition.tp)
    bench.loop.settle()
    assert "loaded" not in bench.shard.log
    assert bench.submit("k1", put("k1", "x")) == [CommandFailed(E.NOT_COORDINATOR)]


def test_a_new_epoch_loads_anew() -> None:
    bench = Bench(instant=True)
    bench.submit("a", put("a", "1"))
    bench.loop.settle()
    bench.elect()
    assert len(bench.shards) == 1, "the same epoch again is no news"
    bench.partition.leader_epoch = 4
    bench.elect()
    bench.loop.settle()
    assert len(bench.shards) == 2
    assert bench.shard.lists == {"a": ["1"]}
    after = bench.submit("a", put("a", "2"))
    bench.loop.settle()
    assert after == [["1"]]


def test_transactions_and_markers_are_replayed() -> None:
    bench = Bench(instant=True)
    for producer, commit in ((7, True), (8, False)):
        bench.submit("a", put("a", f"by {producer}", producer=(producer, 0)))
        bench.loop.settle()
        bench.runtime.append_marker(bench.partition.tp, TransactionMarker(producer, 0, 1, commit), lambda error: None)
        bench.loop.settle()
    bench.submit("a", put("a", "open", producer=(9, 0)))
    bench.loop.settle()
    again = Bench(log=bench.partition.log)
    assert again.shard.lists == {"a": ["by 7"]}
    assert again.shard.pending == [((9, 0), "a", "open")]


def test_a_damaged_log_stops_that_shard_only() -> None:
    log = written(10)
    first, data, following = log.batches[0]
    log.batches[0] = (first, data[:40] + bytes([data[40] ^ 1]) + data[41:], following)
    bench = Bench(log=log)
    assert bench.submit("k1", put("k1", "x")) == [CommandFailed(E.COORDINATOR_NOT_AVAILABLE)]


def test_what_loading_wants_is_done() -> None:
    bench = Bench(instant=True, start=False)

    def setup(shard: ListShard) -> None:
        shard.on_load = Result(records=(CoordinatorRecord(b"a", b"x"),), effects=(Schedule("t/a", 50),))

    bench.setup = setup
    bench.elect()
    bench.loop.settle()
    assert not bench.runtime.loading
    assert bench.shard.lists == {"a": ["x"]}
    bench.loop.advance(60)
    assert "timer t/a" in bench.shard.log
    assert added_up(bench.runtime.metric_parts()) == {"lists_partitions": 1.0, "keys": 1.0}


# ---- all of it together --------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.integers(1, 2)),
        st.tuples(st.just("round"), st.none(), st.none()),
        st.tuples(st.just("commit"), st.none(), st.none()),
        st.tuples(st.just("refuse"), st.sampled_from([E.NONE, E.NOT_ENOUGH_REPLICAS]), st.none()),
        st.tuples(st.just("elect"), st.none(), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=examples(200), deadline=None)
@given(STEPS)
def test_answers_are_linearizable_per_key_and_survive_reloads(steps: list[tuple[str, object, object]]) -> None:
    """Answered values are in the log; an answer has the values before it, in log order."""
    bench = Bench()
    acknowledged: list[tuple[str, str, list[str]]] = []
    number = 0
    for kind, first, second in steps:
        if kind == "put":
            assert isinstance(first, str)
            assert isinstance(second, int)
            number += 1
            values = [f"{number}.{part}" for part in range(second)]

            def take(answer: object, key: str = first, value: str = values[0]) -> None:
                if isinstance(answer, list):
                    acknowledged.append((key, value, answer))

            bench.runtime.submit(first, put(first, *values)).on_done(take)
        elif kind == "round":
            bench.loop.round()
        elif kind == "commit":
            bench.partition.commit()
        elif kind == "refuse":
            assert isinstance(first, E)
            bench.partition.refuse = first
        else:
            bench.partition.leader_epoch += 1
            bench.partition.waiters.clear()
            bench.elect()
    bench.partition.refuse = E.NONE
    for _ in range(5):
        bench.loop.settle()
        bench.partition.commit()
    final = Bench(log=bench.partition.log).shard.lists
    for key, value, before in acknowledged:
        position = final[key].index(value)
        assert final[key][:position] == before
    for values_of_key in final.values():
        assert len(values_of_key) == len(set(values_of_key)), "nothing is written twice"
