"""Committed offsets: permission to commit, transactions, deletion, expiry."""

from __future__ import annotations

import struct
import uuid

import pytest

from fleetlog.brokers.groups.records import CommittedOffset, GroupRecord, OffsetKey, decode_group_key, group_record
from fleetlog.brokers.groups.requests import FetchRequest, GroupSettings, Protocol
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.support.group_driver import Client, Driver, commit, fetched, settle

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
OLD, NEW = uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes
"""Ids of two topics "t"."""
DAY_MS = 24 * 3600 * 1000


def subscription(*topics: str) -> tuple[Protocol, ...]:
    names = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    return (Protocol("range", struct.pack(">hi", 1, len(topics)) + names + struct.pack(">ii", -1, 0)),)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_a_simple_consumer_commits_without_membership(driver: Driver) -> None:
    assert commit(driver, "s", {T0: CommittedOffset(7, 3, "note")})[T0] is ErrorCode.NONE
    (one,) = driver.shard.fetch(FetchRequest("s", (T0,)))
    assert one.committed is not None
    assert (one.committed.offset, one.committed.leader_epoch, one.committed.metadata) == (7, 3, "note")
    assert driver.shard.describe("s").state == "Empty"
    assert fetched(driver, "unknown group") == -1
    assert fetched(driver, "s", partition=9) == -1


def test_all_offsets_of_a_group(driver: Driver) -> None:
    commit(driver, "s", {U0: CommittedOffset(1), T1: CommittedOffset(2), T0: CommittedOffset(3)})
    assert [f.partition for f in driver.shard.fetch(FetchRequest("s", None))] == [T0, T1, U0]


def test_members_commit_in_their_generation_only(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b")
    settle(a, b)
    assert a.commit(5) is ErrorCode.NONE
    assert a.commit(6, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert a.commit(6, anonymous=True) is ErrorCode.UNKNOWN_MEMBER_ID
    stranger = Client(driver, "x")
    stranger.member_id, stranger.generation = "x-1", 1
    assert stranger.commit(6) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetched(driver, "g") == 5
    assert stranger.__class__(driver, "y", group="none").commit(1, generation=4) is ErrorCode.ILLEGAL_GENERATION


def test_commits_around_a_rebalance(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b")
    settle(a)
    b.join()
    assert a.commit(1) is ErrorCode.NONE, "the old generation may commit until the next one begins"
    a.join()
    assert a.commit(2) is ErrorCode.REBALANCE_IN_PROGRESS
    a.sync({})
    assert a.commit(3) is ErrorCode.NONE


def test_a_commit_counts_as_a_heartbeat(driver: Driver) -> None:
    a = Client(driver, "a")
    settle(a)
    for offset in range(5):
        driver.advance(9_000)
        assert a.commit(offset) is ErrorCode.NONE


def test_metadata_has_a_limit(driver: Driver) -> None:
    answer = commit(driver, "s", {T0: CommittedOffset(1, metadata="x" * 4097), T1: CommittedOffset(2, metadata="ok")})
    assert answer == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE, T1: ErrorCode.NONE}
    assert fetched(driver, "s") == -1
    assert fetched(driver, "s", 1) == 2


@pytest.mark.parametrize(
    ("metadata", "fits"),
    [
        ("x" * 4096, True), ("\u0436" * 4096, True), ("\u6f22" * 4096, True), ("\u0436" * 4097, False),
        ("\U0001f600" * 2048, True), ("\U0001f600" * 2049, False),
    ],
)  # fmt: skip
def test_the_limit_of_metadata_is_of_characters(driver: Driver, metadata: str, fits: bool) -> None:
    answer = commit(driver, "s", {T0: CommittedOffset(1, metadata=metadata)})
    assert answer == {T0: ErrorCode.NONE if fits else ErrorCode.OFFSET_METADATA_TOO_LARGE}


def test_a_commit_that_cannot_be_logged(driver: Driver) -> None:
    driver.fail_appends = ErrorCode.MESSAGE_TOO_LARGE
    assert commit(driver, "s", {T0: CommittedOffset(1)})[T0] is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert driver.shard.groups == {}


# --- transactions -----------------------------------------------------------------------------------------------


def test_offsets_in_a_transaction_count_after_its_commit(driver: Driver) -> None:
    commit(driver, "s", {T0: CommittedOffset(1)})
    commit(driver, "s", {T0: CommittedOffset(10), T1: CommittedOffset(11)}, producer=(77, 0))
    assert fetched(driver, "s") == 1
    assert fetched(driver, "s", stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert [f.error for f in driver.shard.fetch(FetchRequest("s", None, True))] == [
        ErrorCode.UNSTABLE_OFFSET_COMMIT
    ] * 2
    assert driver.restart().durable() == driver.durable()
    driver.marker(77, 1, commit=True)
    assert fetched(driver, "s", stable=True) == 10
    assert fetched(driver, "s", 1, stable=True) == 11
    assert driver.restart().durable() == driver.durable()


def test_offsets_of_an_aborted_transaction_never_were(driver: Driver) -> None:
    commit(driver, "s", {T0: CommittedOffset(10)}, producer=(77, 0))
    driver.marker(77, 0, commit=False)
    assert driver.shard.groups == {}
    assert fetched(driver, "s", stable=True) == -1


def test_a_later_plain_commit_beats_an_open_transaction(driver: Driver) -> None:
    commit(driver, "s", {T0: CommittedOffset(10)}, producer=(77, 0))
    commit(driver, "s", {T0: CommittedOffset(20)})
    driver.marker(77, 0, commit=True)
    assert fetched(driver, "s") == 20
    assert driver.restart().durable() == driver.durable()


def test_transactions_of_several_producers_and_groups(driver: Driver) -> None:
    commit(driver, "s", {T0: CommittedOffset(1)}, producer=(1, 0))
    commit(driver, "s", {T1: CommittedOffset(2)}, producer=(2, 0))
    commit(driver, "r", {T0: CommittedOffset(3)}, producer=(1, 0))
    driver.marker(1, 0, commit=True)
    assert fetched(driver, "s", stable=True) == 1
    assert fetched(driver, "r", stable=True) == 3
    assert fetched(driver, "s", 1, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    driver.marker(9, 0, commit=True)  # of a producer that wrote nothing here
    driver.marker(2, 0, commit=False)
    assert fetched(driver, "s", 1, stable=True) == -1


def test_transactional_commits_are_fenced_by_member_and_generation(driver: Driver) -> None:
    a = Client(driver, "a")
    settle(a)
    b = Client(driver, "b")
    b.join()
    assert a.commit(1, producer=(5, 0)) is ErrorCode.NONE
    assert a.commit(1, generation=9, producer=(5, 0)) is ErrorCode.ILLEGAL_GENERATION
    a.member_id += "?"
    assert a.commit(1, producer=(5, 0)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert a.commit(2, anonymous=True, producer=(5, 0)) is ErrorCode.NONE, "before v3 there is nothing to check"


# --- forgetting -------------------------------------------------------------------------------------------------


def delete_offsets(driver: Driver, group: str, *partitions: TopicPartition) -> object:
    return driver.submit(
        group, lambda shard, now, ticket: shard.delete_offsets(group, partitions, now, ticket)
    ).response


def delete_group(driver: Driver, group: str) -> object:
    return driver.submit(group, lambda shard, now, ticket: shard.delete_group(group, now, ticket)).response


def test_delete_offsets(driver: Driver) -> None:
    a = Client(driver, "a", protocols=subscription("t"))
    settle(a)
    a.commit(5)
    commit(driver, "g", {U0: CommittedOffset(1)}, a.generation, a.member_id)
    assert delete_offsets(driver, "g", T0, U0, T1) == {
        T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        U0: ErrorCode.NONE,
        T1: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    }
    assert fetched(driver, "g") == 5
    assert driver.shard.fetch(FetchRequest("g", (U0,)))[0].committed is None
    assert delete_offsets(driver, "nope", T0) is ErrorCode.GROUP_ID_NOT_FOUND


def test_nothing_is_deleted_under_members_whose_subscriptions_are_unreadable(driver: Driver) -> None:
    a = Client(driver, "a", protocols=(Protocol("range", b"not a subscription"),))
    settle(a)
    a.commit(5)
    assert delete_offsets(driver, "g", T0) == {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert fetched(driver, "g") == 5


def test_delete_offsets_of_members_that_are_no_consumers(driver: Driver) -> None:
    a = Client(driver, "a")
    a.protocol_type = "connect"
    settle(a)
    assert delete_offsets(driver, "g", T0) is ErrorCode.NON_EMPTY_GROUP


def test_delete_groups(driver: Driver) -> None:
    a = Client(driver, "a")
    settle(a)
    a.commit(5)
    assert delete_group(driver, "g") is ErrorCode.NON_EMPTY_GROUP
    a.leave()
    commit(driver, "g", {T1: CommittedOffset(1)}, producer=(3, 0))
    assert delete_group(driver, "g") is ErrorCode.NONE
    assert driver.shard.groups == {}
    assert delete_group(driver, "g") is ErrorCode.GROUP_ID_NOT_FOUND
    driver.marker(3, 0, commit=True)
    assert driver.shard.groups == {}
    assert driver.restart().shard.groups == {}


def test_offsets_of_deleted_topics_go(driver: Driver) -> None:
    commit(driver, "s", {T0: CommittedOffset(1, topic_id=OLD), U0: CommittedOffset(2)})
    topics = {"t": {OLD}}
    assert driver.shard.groups_with_topics(topics) == ["s"]
    driver.submit("s", lambda shard, now, ticket: shard.forget_topics("s", topics, now, ticket))
    assert [f.partition for f in driver.shard.fetch(FetchRequest("s", None))] == [U0]
    assert driver.shard.groups_with_topics(topics) == []


def test_offsets_of_a_later_topic_of_the_name_stay(driver: Driver) -> None:
    commit(driver, "s", {T0: CommittedOffset(1, topic_id=OLD)}, producer=(3, 0))
    commit(driver, "s", {T0: CommittedOffset(2, topic_id=NEW)})
    commit(driver, "s", {T1: CommittedOffset(3)})  # of before the records told it
    driver.submit("s", lambda shard, now, ticket: shard.forget_topics("s", {"t": {OLD}}, now, ticket))
    for shard in (driver.shard, driver.restart().shard):
        (found,) = shard.fetch(FetchRequest("s", None))
        assert found.partition == T0
        assert found.committed is not None
        assert (found.committed.offset, found.committed.topic_id) == (2, NEW)


def test_offsets_expire_after_the_group_has_been_empty_for_the_retention(driver: Driver) -> None:
    a = Client(driver, "a", protocols=subscription("t"), session_ms=1_800_000)
    settle(a)
    a.commit(5)
    for _ in range(8 * 50):
        driver.advance(DAY_MS // 50)
        a.heartbeat()
    assert fetched(driver, "g") == 5, "a subscribed member keeps them"
    a.leave()
    driver.advance(6 * DAY_MS)
    assert fetched(driver, "g") == 5
    driver.advance(DAY_MS + 600_000)
    assert driver.shard.groups == {}
    assert driver.restart().shard.groups == {}


def test_a_running_group_loses_offsets_of_topics_it_gave_up(driver: Driver) -> None:
    a = Client(driver, "a", protocols=subscription("u"), session_ms=1_800_000)
    settle(a)
    a.commit(5)
    for _ in range(8 * 50):
        driver.advance(DAY_MS // 50)
        a.heartbeat()
    assert fetched(driver, "g") == -1
    assert a.heartbeat() is ErrorCode.NONE
    assert driver.restart().shard.describe("g").state == "Stable", "the group itself stays"


@pytest.mark.parametrize("stage", ["joining", "assigned by nobody yet"])
def test_nothing_expires_while_the_group_rebalances(driver: Driver, stage: str) -> None:
    """What its members subscribe to is not known before they have all come back."""
    long_ms = 20 * DAY_MS
    a = Client(driver, "a", protocols=subscription("u"), session_ms=1_800_000, rebalance_ms=long_ms)
    settle(a)
    a.commit(5)
    b = Client(driver, "b", protocols=subscription("t"), session_ms=1_800_000, rebalance_ms=long_ms)
    b.join()
    if stage != "joining":
        a.join()
        assert a.joining.done
    for _ in range(8 * 50):
        driver.advance(DAY_MS // 50)
        assert a.heartbeat() is (ErrorCode.REBALANCE_IN_PROGRESS if stage == "joining" else ErrorCode.NONE)
        if stage != "joining":
            b.heartbeat()
    assert driver.shard.describe("g").state == ("PreparingRebalance" if stage == "joining" else "CompletingRebalance")
    assert fetched(driver, "g") == 5


@pytest.mark.parametrize("kind", ["unreadable subscriptions", "no consumers"])
def test_nothing_expires_under_members_of_whom_no_topics_are_known(driver: Driver, kind: str) -> None:
    a = Client(driver, "a", session_ms=1_800_000)
    if kind == "no consumers":
        a.protocol_type, a.protocols = "connect", subscription("u")
    settle(a)
    a.commit(5)
    for _ in range(8 * 50):
        driver.advance(DAY_MS // 50)
        assert a.heartbeat() is ErrorCode.NONE
    assert fetched(driver, "g") == 5


def test_a_sweep_at_the_very_end_of_the_retention() -> None:
    """Offsets live for less than their retention, as in Kafka: at its end they are gone."""
    settings = GroupSettings(offsets_retention_ms=60_000, offsets_retention_check_interval_ms=1_000)
    for retention_ms in (-1, 60_000):
        driver = Driver(settings)
        commit(driver, "s", {T0: CommittedOffset(1)}, retention_ms=retention_ms)
        driver.advance(59_999)
        assert fetched(driver, "s") == 1
        driver.advance(1)
        assert fetched(driver, "s") == -1


def test_a_group_without_offsets_stays_while_something_of_it_is_left(driver: Driver) -> None:
    commit(driver, "open", {T0: CommittedOffset(1)})
    driver.advance(DAY_MS)
    commit(driver, "open", {T1: CommittedOffset(1)}, producer=(4, 0))
    awaited = Client(driver, "a", group="awaited", session_ms=1_800_000)
    commit(driver, "awaited", {T0: CommittedOffset(1)})
    driver.advance(7 * DAY_MS - 600_000)
    awaited.send_join()
    driver.advance(1_200_000)
    assert fetched(driver, "open") == fetched(driver, "awaited") == -1
    assert set(driver.shard.groups) == {"open", "awaited"}
    tombstones = [entry[0] for entry in driver.log if len(entry) == 2 and entry[0].value is None]
    assert all(isinstance(decode_group_key(record.key), OffsetKey) for record in tombstones), "of offsets alone"


def test_offsets_of_a_group_that_does_not_say_since_when_it_is_empty_expire_by_their_own_age(driver: Driver) -> None:
    """Groups of old records of Kafka's."""
    commit(driver, "g", {T0: CommittedOffset(1)})
    driver.replay((group_record("g", GroupRecord("consumer", 1, None, None, -1, ())), None))
    driver.advance(6 * DAY_MS)
    assert fetched(driver, "g") == 1
    driver.advance(DAY_MS + 600_000)
    assert fetched(driver, "g") == -1


def test_simple_offsets_expire_by_their_own_age(driver: Driver) -> None:
    commit(driver, "s", {T0: CommittedOffset(1), T1: CommittedOffset(1)})
    driver.advance(5 * DAY_MS)
    commit(driver, "s", {T1: CommittedOffset(2)})
    driver.advance(3 * DAY_MS)
    assert fetched(driver, "s") == -1
    assert fetched(driver, "s", 1) == 2


def test_a_group_that_lost_its_last_offset_stays_until_the_next_sweep(driver: Driver) -> None:
    commit(driver, "s", {T0: CommittedOffset(1)})
    delete_offsets(driver, "s", T0)
    assert driver.shard.describe("s").state == "Empty"
    driver.advance(600_001)
    assert driver.shard.groups == {}
    commit(driver, "s", {T0: CommittedOffset(1)})
    delete_offsets(driver, "s", T0)
    assert delete_group(driver, "s") is ErrorCode.NONE
    assert driver.shard.groups == {}


def test_an_old_clients_retention_counts(driver: Driver) -> None:
    commit(driver, "s", {T0: CommittedOffset(1)}, retention_ms=DAY_MS)
    assert driver.restart().durable() == driver.durable()
    driver.advance(DAY_MS - 1)
    assert fetched(driver, "s") == 1
    driver.advance(600_001)
    assert fetched(driver, "s") == -1


def test_an_open_transaction_keeps_the_offset_it_is_about_to_replace(driver: Driver) -> None:
    commit(driver, "s", {T0: CommittedOffset(1)})
    commit(driver, "s", {T0: CommittedOffset(2)}, producer=(4, 0))
    driver.advance(9 * DAY_MS)
    assert fetched(driver, "s") == 1
    driver.marker(4, 0, commit=False)
    driver.advance(600_001)
    assert driver.shard.groups == {}


def test_retention_is_a_setting() -> None:
    driver = Driver(GroupSettings(offsets_retention_ms=60_000, offsets_retention_check_interval_ms=1_000))
    commit(driver, "s", {T0: CommittedOffset(1)})
    driver.advance(59_000)
    assert fetched(driver, "s") == 1
    driver.advance(2_000)
    assert fetched(driver, "s") == -1
