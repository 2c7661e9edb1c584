"""Groups of the consumer protocol, rule by rule: what a heartbeat answers, and what is in the log then."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from fleetlog.brokers.config import load_config
from fleetlog.brokers.groups.consumer.group import NO_PICTURE, Beat
from fleetlog.brokers.groups.consumer.records import Resolved
from fleetlog.brokers.groups.records import CommittedOffset, ConsumerKind, decode_group_key
from fleetlog.brokers.groups.requests import (
    ConsumerSettings,
    GroupSettings,
    JoinRequest,
    Leaver,
    OffsetCommitRequest,
    Protocol,
)
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.groups.consumer_calls import SETTINGS, U, ask, commit, committing, joining, keys, send, t
from tests.groups.consumer_world import logged, topic
from tests.support.group_driver import Client, Driver


def test_a_second_member_gets_what_the_first_has_given_up() -> None:
    driver = Driver()
    first = send(driver, joining("a"))
    assert (first.epoch, first.assignment) == (1, t(0, 1, 2, 3))
    second = send(driver, joining("b"))
    assert (second.epoch, second.assignment) == (2, ()), "all of it is with a"
    told = send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1, 2, 3))))
    assert (told.epoch, told.assignment) == (1, t(0, 1)), "it keeps its epoch until it has given up the others"
    assert driver.shard.consumers["g"].state == "Reconciling"
    assert send(driver, Beat("g", "b", 2)).assignment is None
    assert send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1)))).epoch == 2
    assert send(driver, Beat("g", "b", 2)).assignment == t(2, 3)
    assert send(driver, Beat("g", "b", 2)).assignment is None, "told once"
    assert driver.shard.consumers["g"].state == "Stable"
    assert logged(driver.restart()) == logged(driver)


FULL: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "topics": ("t",)}


@pytest.mark.parametrize(
    "late",
    [
        Beat("g", "a", 1, link=1), Beat("g", "a", 1, owned=frozenset(), link=1),
        Beat("g", "a", 1, owned=frozenset(), link=1, **FULL), joining("a", link=1),
    ],
)  # fmt: skip
def test_what_comes_behind_a_newer_connection_gives_nothing_up(late: Beat) -> None:
    """It was sent by a connection that its member has given up, and arrives in the same epoch."""
    driver = Driver()
    send(driver, joining("a", link=1))
    assert send(driver, Beat("g", "a", 1, owned=frozenset(), link=2, **FULL)).assignment == t(0, 1, 2, 3)
    driver.advance(1_000)
    send(driver, late)
    send(driver, joining("b"))
    send(driver, Beat("g", "a", 1, link=2))  # the answer, which takes two partitions away, is lost
    for _ in range(2):
        assert send(driver, late).epoch == 1
    assert send(driver, Beat("g", "b", 2)).assignment is None, "the first may have taken them"
    told = send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1, 2, 3)), link=3, **FULL))
    assert (told.epoch, told.assignment) == (1, t(0, 1))
    assert send(driver, late).epoch == 1
    assert send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1)), link=3)).epoch == 2
    assert send(driver, Beat("g", "b", 2)).assignment == t(2, 3)


def test_what_a_member_says_at_the_epoch_before_is_taken_in() -> None:
    driver = Driver()
    send(driver, joining("a"))
    send(driver, Beat("g", "a", 1, owned=frozenset(), **FULL))
    send(driver, joining("b", ("u",)))
    driver.advance(1_000)
    assert send(driver, Beat("g", "a", 1)).epoch == 2  # lost; the member takes what it was told before
    send(driver, joining("c"))
    driver.advance(1_000)
    told = send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1, 2, 3)), **FULL))
    assert (told.epoch, told.assignment) == (2, t(2, 3))
    assert send(driver, Beat("g", "a", 2)).epoch == 2, "it has not given up the others yet"
    assert send(driver, Beat("g", "a", 2, owned=frozenset(t(2, 3)))).epoch == 3


def test_what_comes_late_does_not_tell_what_a_member_has() -> None:
    driver = Driver()
    send(driver, joining("a", link=1))
    send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1, 2, 3)), link=2, **FULL))
    send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1)), link=1))  # when it was sent the member had these only
    driver.advance(1_000)
    send(driver, joining("b"))
    told = send(driver, Beat("g", "a", 1, link=2))
    assert (told.epoch, told.assignment) == (1, t(0, 1))
    assert send(driver, Beat("g", "a", 1, link=2)).epoch == 1, "it is still at giving them up"
    assert send(driver, Beat("g", "b", 2)).assignment is None


def test_what_comes_late_is_not_answered_with_what_changes() -> None:
    """Nobody gets its answer: what it takes away the member has still, though it goes on as if nothing had changed."""
    driver = Driver()
    send(driver, joining("a", link=1))
    send(driver, Beat("g", "a", 1, owned=frozenset(), link=2, **FULL))  # told all; it takes them later
    send(driver, joining("b"))
    driver.advance(1_000)
    late = send(driver, Beat("g", "a", 1, owned=frozenset(), link=1, **{**FULL, "topics": ("u",)}))
    assert (late.epoch, late.assignment) == (1, t(0, 1, 2, 3))
    told = send(driver, Beat("g", "a", 1, link=2))
    assert (told.epoch, told.assignment) == (1, t(0, 1)), "it reads the topic that it named last"
    assert send(driver, Beat("g", "b", 2)).assignment is None, "the first may have taken them"


def test_members_that_join_at_once_do_not_ask_at_once_ever_after() -> None:
    driver, whole = Driver(), SETTINGS.heartbeat_interval_ms
    assert send(driver, joining("first")).interval_ms == whole
    told = sorted(send(driver, joining(f"m{number}")).interval_ms for number in range(100))
    assert whole / 2 <= told[0] < 0.55 * whole
    assert 0.95 * whole < told[-1] <= whole
    assert max(after - before for before, after in itertools.pairwise(told)) < 0.1 * whole
    member = driver.shard.consumers["g"].members["m7"]
    assert send(driver, Beat("g", "m7", member.at.epoch)).interval_ms == whole
    driver.advance(whole)
    assert send(driver, joining("late")).interval_ms == whole, "the others have given up by then what it gets"


def test_a_heartbeat_without_news_writes_nothing() -> None:
    driver = Driver()
    send(driver, joining("a"))
    send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1, 2, 3))))
    before = len(driver.log)
    for version in range(5):
        send(driver, Beat("g", "a", 1), version=version)
    assert len(driver.log) == before


def test_records_are_in_kafkas_order() -> None:
    driver = Driver()
    send(driver, joining("a"))
    assert keys(driver.log) == [(5, "a", False), (3, "", False), (7, "a", False), (6, "", False), (8, "a", False)]
    del driver.log[:]
    send(driver, Beat("g", "a", -1))
    assert keys(driver.log)[:3] == [(8, "a", True), (7, "a", True), (5, "a", True)]
    del driver.log[:]
    assert ask(driver, lambda shard, now, ticket: shard.delete_group("g", now, ticket)) is ErrorCode.NONE
    assert keys(driver.log) == [(6, "", True), (3, "", True)]
    assert not driver.shard.consumers


def test_no_tombstone_of_what_never_was() -> None:
    """KAFKA-17306: a member without a target has no record of one."""
    driver = Driver()
    send(driver, joining("a", ("nothing",)))
    del driver.log[:]
    send(driver, Beat("g", "a", -1))
    assert [key for key in keys(driver.log) if key[2]] == [(8, "a", True), (5, "a", True)]


def test_tombstones_of_what_the_cleaner_took_have_no_effect() -> None:
    """KAFKA-19862: the records are gone, their tombstones are still there; KAFKA-20254: offsets come first."""
    driver = Driver()
    send(driver, joining("a"))
    send(driver, joining("b"))
    assert commit(driver, committing("a", 1, 0)) is ErrorCode.NONE
    send(driver, Beat("g", "a", -1))
    cleaned = [entry for entry in driver.log if len(entry) == 2 and entry[0].value is None]
    latest = {entry[0].key: entry for entry in driver.log if len(entry) == 2}
    for log in (cleaned, [*cleaned, *latest.values()], sorted(latest.values(), key=lambda entry: entry[0].key)):
        loaded = Driver(log=list(log))
        assert loaded.shard.skipped.total() == 0
    assert logged(Driver(log=[*cleaned, *latest.values()])) == logged(driver)


def test_members_without_their_own_record_are_dropped_at_load() -> None:
    driver = Driver()
    send(driver, joining("a"))
    torn = [
        entry
        for entry in driver.log
        if len(entry) == 2 and decode_group_key(entry[0].key)[0] is not ConsumerKind.MEMBER
    ]
    loaded = Driver(log=list(torn))
    assert not loaded.shard.consumers["g"].members
    assert not loaded.shard.consumers["g"].owners
    assert send(loaded, joining("b")).assignment == t(0, 1, 2, 3)


@pytest.mark.parametrize("epoch", [3, 7, 1])
def test_another_epoch_is_fenced(epoch: int) -> None:
    driver = Driver()
    send(driver, joining("a"))
    send(driver, joining("b"))
    send(driver, joining("c"))
    assert send(driver, Beat("g", "b", epoch)).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert send(driver, Beat("g", "nobody", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_epoch_before_is_heard_with_what_the_member_has() -> None:
    """The answer may be lost."""
    driver = Driver()
    send(driver, joining("a"))
    send(driver, joining("b"))
    send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1, 2, 3))))
    assert send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1)))).epoch == 2
    again = send(driver, Beat("g", "a", 1, rebalance_timeout_ms=60_000, topics=("t",), owned=frozenset(t(0, 1))))
    assert (again.error, again.epoch, again.assignment) == (ErrorCode.NONE, 2, t(0, 1))
    assert send(driver, Beat("g", "a", 1, owned=frozenset(t(2)))).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert send(driver, Beat("g", "a", 1)).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_commits_by_epoch() -> None:
    """KIP-1251: an older epoch may commit what it has had since then."""
    driver = Driver()
    send(driver, joining("a"))
    send(driver, joining("b"))
    send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1, 2, 3))))
    assert commit(driver, committing("a", 1, 3)) is ErrorCode.NONE, "still to be given up"
    send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1))))
    assert commit(driver, committing("a", 1, 0)) is ErrorCode.NONE
    assert commit(driver, committing("a", 1, 3)) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(driver, committing("a", 3, 0)) is ErrorCode.STALE_MEMBER_EPOCH
    send(driver, Beat("g", "b", 2))
    assert commit(driver, committing("b", 1, 2)) is ErrorCode.STALE_MEMBER_EPOCH, "it has it since 2"
    assert commit(driver, committing("nobody", 2, 0)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(driver, committing("", -1, 0)) is ErrorCode.UNKNOWN_MEMBER_ID, "of an operator, with members"
    assert commit(driver, committing("a", 2, 0, knows_missing_groups=False)) is ErrorCode.UNSUPPORTED_VERSION
    group = driver.shard.consumers["g"]
    assert group.fetch_error(None, -1) is ErrorCode.NONE
    assert group.fetch_error("a", 2) is ErrorCode.NONE
    assert group.fetch_error("a", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.fetch_error("nobody", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    for name in ("a", "b"):
        send(driver, Beat("g", name, -1))
    assert commit(driver, committing("", -1, 0)) is ErrorCode.NONE
    assert commit(driver, committing("a", 2, 0)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_comes_back_has_what_it_had() -> None:
    driver = Driver()
    static = joining("a", instance_id="i")
    send(driver, static)
    send(driver, joining("b"))
    assert send(driver, joining("other", instance_id="i")).error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert send(driver, Beat("g", "other", 1, "i")).error is ErrorCode.FENCED_INSTANCE_ID
    assert send(driver, Beat("g", "a", 1, "unknown")).error is ErrorCode.UNKNOWN_MEMBER_ID
    epoch = driver.shard.consumers["g"].epoch
    assert send(driver, Beat("g", "a", -2, "i")).epoch == -2
    assert send(driver, Beat("g", "b", 2)).assignment is None, "kept for the one that comes back"
    driver = driver.restart()
    back = send(driver, joining("c", instance_id="i"))
    assert (back.error, driver.shard.consumers["g"].epoch) == (ErrorCode.NONE, epoch), "nobody else moves"
    assert back.assignment == t(0, 1)
    assert set(driver.shard.consumers["g"].members) == {"b", "c"}
    assert send(driver, Beat("g", "a", 1, "i")).error is ErrorCode.FENCED_INSTANCE_ID
    assert logged(driver.restart()) == logged(driver)


def test_the_session_of_one_that_is_away_for_now_ends() -> None:
    driver = Driver()
    send(driver, joining("a", instance_id="i"))
    send(driver, Beat("g", "a", -2, "i"))
    driver.advance(SETTINGS.session_timeout_ms)
    assert not driver.shard.consumers["g"].members
    assert driver.shard.consumers["g"].state == "Empty"


def test_an_operator_removes_members_with_one_new_epoch() -> None:
    driver = Driver()
    send(driver, joining("a", instance_id="i"))
    send(driver, joining("b", instance_id="j"))
    send(driver, joining("c"))
    group = driver.shard.consumers["g"]
    before = group.epoch
    wrong = (Leaver("b", "i"), Leaver("", None), Leaver("z", None), Leaver("", "k"))
    gone = (Leaver("", "i"), Leaver("b", "j"), Leaver("c", None), Leaver("c", None))
    del driver.log[:]
    answer = ask(driver, lambda shard, now, ticket: shard.leave("g", (*wrong, *gone), now, ticket, NO_PICTURE))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert [error for _, error in answer.members] == [ErrorCode.FENCED_INSTANCE_ID, *[unknown] * 3, *[0] * 4]
    assert (group.state, group.epoch, group.owners) == ("Empty", before + 1, {})
    assert [row for row in keys(driver.log) if row[0] == 3] == [(3, "", False)]
    assert commit(driver, committing("c", before, 0)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(driver, committing("", -1, 0)) is ErrorCode.NONE, "an operator may, now that it is empty"
    assert ask(driver, lambda s, now, ticket: s.delete_group("g", now, ticket)) is ErrorCode.NONE
    assert (driver.shard.listing(), driver.shard.describe("g").message) == ([], "Group g not found.")


def test_a_removal_that_is_not_written_removes_nobody() -> None:
    driver = Driver()
    send(driver, joining("a"))
    driver.fail_appends = ErrorCode.NOT_ENOUGH_REPLICAS
    answer = ask(driver, lambda shard, now, ticket: shard.leave("g", (Leaver("a", None),), now, ticket, NO_PICTURE))
    assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert send(driver, Beat("g", "a", 1)).error is ErrorCode.NONE


def test_a_member_that_is_silent_or_gives_up_nothing_is_removed() -> None:
    driver = Driver()
    send(driver, joining("a"))
    send(driver, joining("b"))
    for _ in range(13):
        told = send(driver, Beat("g", "a", 1, owned=frozenset(t(0, 1, 2, 3))))
        driver.advance(5_000)
    assert told.error is ErrorCode.UNKNOWN_MEMBER_ID, "60 s are over"
    assert not driver.shard.consumers["g"].members, "and b has said nothing for 45 s"


def test_a_timer_whose_records_fail_comes_again() -> None:
    driver = Driver()
    send(driver, joining("a"))
    driver.fail_appends = ErrorCode.NOT_ENOUGH_REPLICAS
    driver.advance(SETTINGS.session_timeout_ms)
    assert driver.shard.consumers["g"].members
    driver.advance(500)
    assert not driver.shard.consumers["g"].members


def test_topics_that_change_move_the_group() -> None:
    driver = Driver()
    send(driver, joining("a", ("t", "u")))
    one = {"t": topic("t", 5)}
    assert send(driver, Beat("g", "a", 1, owned=frozenset()), one, 1).assignment == (), "the old topics are gone"
    told = send(driver, Beat("g", "a", 1, owned=frozenset()), one, 1)
    assert told.assignment == tuple((one["t"].id.bytes, index) for index in range(5))
    assert told.epoch == 2
    assert driver.shard.consumers["g"].epoch == 2


def test_a_pattern_has_the_topics_that_were_looked_up() -> None:
    driver = Driver()
    resolved = Resolved(("t",), 1, 5)
    beat = joining("a", (), regex="t.*", resolved={"t.*": resolved, "of nobody": resolved})
    assert send(driver, beat).assignment == t(0, 1, 2, 3)
    assert driver.shard.consumers["g"].regexes == {"t.*": resolved}
    assert driver.restart().shard.consumers["g"].regexes == {"t.*": resolved}
    assert driver.shard.consumers["g"].subscribes_to("t")
    more = Beat("g", "a", 1, owned=frozenset(t(0, 1, 2, 3)), resolved={"t.*": Resolved(("t", "u"), 2, 6)})
    assert send(driver, more).assignment == (*sorted([*t(0, 1, 2, 3), (U, 0), (U, 1)]),)
    del driver.log[:]
    send(driver, Beat("g", "a", -1))
    assert (16, "t.*", True) in keys(driver.log)


def test_joins_within_the_interval_are_assigned_together() -> None:
    driver, settings = Driver(), ConsumerSettings(assignment_interval_ms=1_000)
    send(driver, joining("a"), settings=settings)
    send(driver, joining("b"), settings=settings)
    before = driver.shard.consumers["g"].assignment_epoch
    for name in ("c", "d"):
        assert send(driver, joining(name), settings=settings).epoch == before, "with what is known until then"
    assert driver.shard.consumers["g"].state == "Assigning"
    driver.advance(1_000)
    assert driver.shard.consumers["g"].assignment_epoch == driver.shard.consumers["g"].epoch == before + 2


def test_metrics_count_groups_by_their_own_states() -> None:
    driver = Driver()
    send(driver, joining("a"))
    commit(driver, committing("a", 1, 0))
    send(driver, joining("b"))

    def counted() -> Counter[str]:
        total: Counter[str] = Counter()
        for part in driver.shard.metric_parts():
            total.update(part)
        return total

    found = counted()
    assert (found["groups"], found["groups_Reconciling"], found["groups_Empty"]) == (1, 1, 0)
    assert (found["members"], found["offsets"], found["groups_Assigning"]) == (2, 1, 0)
    send(driver, Beat("g", "a", -1))
    send(driver, Beat("g", "b", -1))
    assert (counted()["groups_Empty"], counted()["members"]) == (1, 0)


def test_limits() -> None:
    driver = Driver(GroupSettings(member_max_bytes=2_000))
    assert send(driver, joining("a", assignor="mine")).error is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert send(driver, joining("a", ("t" * 200,) * 10)).error is ErrorCode.INVALID_REQUEST
    small = ConsumerSettings(max_size=1)
    assert send(driver, joining("a"), settings=small).error is ErrorCode.NONE
    assert send(driver, joining("b"), settings=small).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.shard.member_bytes() > 0
    tight = Driver(GroupSettings(members_max_bytes=500))
    assert send(tight, joining("a")).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=0))
    classic = Client(driver, "a", group="g", protocols=(Protocol("range", b"r"),))
    classic.join()
    assert send(driver, joining("n")).error is ErrorCode.GROUP_ID_NOT_FOUND, "its member says what no consumer says"
    classic.sync({classic.member_id: b"x"})
    assert send(driver, joining("n")).error is ErrorCode.GROUP_ID_NOT_FOUND
    classic.commit(7)
    classic.leave()
    del driver.log[:]
    assert send(driver, joining("n")).error is ErrorCode.NONE
    assert keys(driver.log)[0] == (2, "", True)
    shard = driver.shard
    assert [(one.group_id, one.group_type, one.state) for one in shard.listing()] == [("g", "consumer", "Stable")]
    told = shard.describe("g")
    assert (told.error, told.state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert (told.message, shard.describe("h").message) == ("Group g is not a classic group.", "Group h not found.")
    request = JoinRequest("g", "", None, "c", "/h", "consumer", (Protocol("range", b"r"),), 10_000, 60_000, "id")
    joined = ask(driver, lambda shard, now, ticket: shard.join(request, now, ticket, NO_PICTURE))
    assert joined.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert ask(driver, lambda s, now, ticket: s.delete_group("g", now, ticket)) is ErrorCode.NON_EMPTY_GROUP
    offsets = dict(shard.groups["g"].offsets)
    assert offsets
    send(driver, Beat("g", "n", -1))
    joined = ask(driver, lambda shard, now, ticket: shard.join(request, now, ticket, NO_PICTURE))
    assert joined.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the client asks again"
    assert not shard.consumers
    joined = ask(driver, lambda shard, now, ticket: shard.join(request, now, ticket, NO_PICTURE))
    assert joined.error is ErrorCode.MEMBER_ID_REQUIRED
    assert shard.groups["g"].offsets == offsets


@pytest.mark.parametrize(
    ("text", "served"),
    [
        ("range", ("range",)),
        ("org.apache.kafka.coordinator.group.assignor.RangeAssignor,com.example.Own,uniform", ("range", "uniform")),
        ("com.example.Own", ("uniform", "range")),
        ("", ("uniform", "range")),
    ],
)
def test_a_broker_starts_with_any_assignors_and_serves_those_that_there_are(text: str, served: tuple[str, ...]) -> None:
    """The setting was accepted without an effect before."""
    config = load_config(f"broker.id=1\nlog.dirs=/x\nzookeeper.connect=z:1\ngroup.consumer.assignors={text}\n")
    assert ConsumerSettings.of(config).assignors == served


def test_a_classic_group_of_a_coordinator_that_skips_the_others_records_is_one_after_a_load() -> None:
    driver, older = Driver(), Driver(GroupSettings(initial_rebalance_delay_ms=0))
    send(driver, joining("a"))
    classic = Client(older, "c", group="g", protocols=(Protocol("range", b"r"),))
    classic.join()
    classic.join()
    classic.sync({classic.member_id: b"x"})
    loaded = Driver(older.settings, log=[*driver.log, *older.log])
    assert not loaded.shard.consumers
    assert [(one.group_id, one.group_type, one.state) for one in loaded.shard.listing()] == [("g", "classic", "Stable")]
    request = OffsetCommitRequest("g", 1, classic.member_id, None, ((TopicPartition("t", 0), CommittedOffset(5)),))
    assert commit(loaded, request) is ErrorCode.NONE
    loaded.advance(20_000)
    assert loaded.shard.groups["g"].offsets, "no timer of the members from before"


def test_offsets_expire_without_a_subscriber_and_the_group_with_the_last() -> None:
    driver = Driver(GroupSettings(offsets_retention_ms=60_000, offsets_retention_check_interval_ms=10_000))
    send(driver, joining("a"))
    assert commit(driver, committing("a", 1, 0)) is ErrorCode.NONE
    for _ in range(20):
        driver.advance(5_000)
        send(driver, Beat("g", "a", 1))
    assert driver.shard.groups["g"].offsets
    tp = (TopicPartition("t", 0),)
    answer = ask(driver, lambda shard, now, ticket: shard.delete_offsets("g", tp, now, ticket))
    assert answer == {tp[0]: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    send(driver, Beat("g", "a", -1))
    driver.advance(20_000)
    assert not driver.shard.consumers
    assert not driver.shard.groups.get("g")
    assert keys(driver.log)[-2:] == [(6, "", True), (3, "", True)]
