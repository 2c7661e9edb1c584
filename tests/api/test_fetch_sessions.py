"""Fetch sessions: incremental answers, applied in order, show what full fetches would show."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleetlog._native.batch import scan
from fleetlog.brokers.api import fetch_answers, fetch_sessions
from fleetlog.brokers.api.base import Done
from fleetlog.brokers.api.fetch import handle_fetch
from fleetlog.brokers.api.fetch_reads import PartitionReader
from fleetlog.brokers.api.fetch_sessions import EVICTION_MS, FetchSessions, FollowerSession, Owner, partitions_read
from fleetlog.brokers.replication.partition import Partition
from fleetlog.wire.errors import ErrorCode
from tests.support.draw import examples
from tests.support.fetching import Client, decoded, part, request
from tests.support.stage import ME, OTHER, Stage, offsets_in

THIRD = 3
BOTH = (ME, OTHER)
HUGE = 1 << 30
IN_MEMORY = Path("/dev/shm")
"""The model's logs are made and flushed too often for a disk."""


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def started(stage: Stage, *topics: str, partitions: int = 1, **fields: Any) -> Client:
    """A consumer's session that has been told everything of empty partitions."""
    client = Client(stage, version=12, **fields)
    for topic in topics:
        stage.topic(topic, partitions)
    client.fetch(*(part(topic, 0, index) for topic in topics for index in range(partitions)))
    return client


# -- the protocol of sessions -----------------------------------------------------------------------------------------


def test_a_session_names_its_partitions_once(stage: Stage) -> None:
    client = started(stage, "a", "b", partitions=3)
    assert (client.id > 0, client.epoch) == (True, 1)
    assert client.fetch().parts == {}
    stage.append("a", index=2)
    answer = client.fetch()
    assert answer.session_id == client.id
    assert list(answer.parts) == [("a", 2)]
    assert offsets_in(answer.parts["a", 2].records) == [0]
    again = client.fetch()
    assert again.parts == answer.parts, "the position is still the old one"
    assert client.fetch(part("a", 1, 2)).parts == {}


def test_idle_partitions_are_not_looked_at(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    client = started(stage, "a", "b", partitions=50)
    client.fetch()
    seen: list[Any] = []
    read = PartitionReader.read
    monkeypatch.setattr(
        PartitionReader, "read", lambda r, p, asked, *a, **k: seen.append(asked) or read(r, p, asked, *a, **k)
    )
    stage.append("b", index=7)
    client.fetch()
    client.fetch(part("b", 1, 7))
    client.fetch()
    assert [(p.topic, p.partition) for p in seen] == [("b", 7)] * 2


@pytest.mark.parametrize(("session", "epoch", "error"), [
    (5, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND), (0, 3, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    (None, 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH), (None, 1, ErrorCode.NONE),
])  # fmt: skip
def test_unknown_sessions_and_wrong_epochs(stage: Stage, session: int | None, epoch: int, error: ErrorCode) -> None:
    client = started(stage, "t")
    client.id, client.epoch = client.id if session is None else session, epoch
    answer = client.fetch()
    assert (answer.error, answer.session_id != 0) == (error, not error)


def test_an_epoch_is_used_once(stage: Stage) -> None:
    client = started(stage, "t")
    for _ in range(3):
        assert client.fetch().error == 0
    client.epoch -= 1
    assert client.fetch().error == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_the_epoch_begins_again_at_one(stage: Stage) -> None:
    client = started(stage, "t")
    session = stage.services.fetch_sessions._sessions[client.id]
    session.epoch = client.epoch = 2**31 - 1
    client.fetch()
    client.epoch = 1
    assert client.fetch().error == 0


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_ends_the_session_that_it_names(stage: Stage, epoch: int) -> None:
    client = started(stage, "t")
    outcome = stage.start(handle_fetch, 1, 12, request(part("t", 0), session_id=client.id, session_epoch=epoch))
    assert isinstance(outcome, Done)
    fresh = decoded(12, outcome.response).session_id
    assert fresh == 0 if epoch else fresh not in (0, client.id)
    assert len(stage.services.fetch_sessions) == (0 if epoch else 1)
    assert client.fetch().error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("fields", [{"session_epoch": -1}, {"session_id": 7, "session_epoch": -1}])
def test_a_fetch_that_wants_no_session_gets_none(stage: Stage, fields: dict[str, int]) -> None:
    stage.topic("t")
    outcome = stage.start(handle_fetch, 1, 12, request(part("t", 0), **fields))
    assert isinstance(outcome, Done)
    assert decoded(12, outcome.response).session_id == 0
    assert len(stage.services.fetch_sessions) == 0


def test_forgotten_partitions_are_answered_no_more(stage: Stage) -> None:
    client = started(stage, "a", "b")
    client.fetch(forget=(("a", 0), ("unknown", 3)))
    assert not stage.partition("a").watchers
    stage.append("a")
    stage.append("b")
    assert list(client.fetch().parts) == [("b", 0)]


def test_a_session_without_partitions_ends(stage: Stage) -> None:
    client = started(stage, "t")
    session_id, epoch = client.id, client.epoch
    assert client.fetch(forget=(("t", 0),)) == (0, 0, {})
    client.id, client.epoch = session_id, epoch + 1
    assert client.fetch().error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not stage.partition("t").watchers


def test_names_and_ids_are_not_mixed(stage: Stage) -> None:
    client = started(stage, "t")
    client.version = 13
    assert client.fetch().error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_session_belongs_to_its_owner(stage: Stage) -> None:
    sessions = stage.services.fetch_sessions
    client = started(stage, "t")
    stranger = Owner("User:other", -1)
    asked = request(session_id=client.id, session_epoch=1)
    assert sessions.find(asked, stranger.principal, 0, False) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.end(client.id, stranger)
    assert client.fetch().error == 0
    client.fields |= {"replica_id": OTHER, "replica_epoch": 1}
    assert client.fetch().error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_partition_that_stands_twice_is_answered_once(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 2)
    outcome = stage.start(handle_fetch, 1, 12, request(part("t", 9), part("t", 0), session_epoch=0))
    assert isinstance(outcome, Done)
    assert offsets_in(decoded(12, outcome.response).parts["t", 0].records) == [0]


# -- what an incremental answer tells ---------------------------------------------------------------------------------


def test_the_high_watermark_is_answered_when_it_moves(stage: Stage) -> None:
    stage.topic("t", replicas=BOTH)
    client = Client(stage, version=12)
    for _ in range(3):
        stage.append("t")
    client.fetch(part("t", 3))
    stage.fetched("t", OTHER, 2)
    assert client.fetch().parts["t", 0][:4] == (0, 2, 0, b"")
    assert client.fetch().parts == {}


def test_the_logs_start_is_answered_when_it_moves(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 5)
    client = Client(stage, version=12)
    client.fetch(part("t", 5))
    stage.partition("t").log.truncation.delete_records_before(4)
    stage.partition("t").committed()
    assert client.fetch().parts["t", 0].log_start_offset == 4


@pytest.mark.parametrize("where", ["gone", "elsewhere", "fenced"])
def test_errors_are_answered_each_time_until_they_are_gone(stage: Stage, where: str) -> None:
    stage.topic("t", epoch=3)
    client = Client(stage, version=12)
    client.fetch(part("t", 0, current_leader_epoch=3))
    if where == "gone":
        stage.delete("t")
    else:
        stage.topic("t", epoch=4, replicas=BOTH, leader=ME if where == "fenced" else OTHER)
    expected = {
        "gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "elsewhere": ErrorCode.FENCED_LEADER_EPOCH,
        "fenced": ErrorCode.FENCED_LEADER_EPOCH,
    }[where]
    for _ in range(3):
        assert client.fetch(max_wait_ms=500).parts["t", 0].error == expected
    stage.topic("t", epoch=5)
    assert client.fetch(part("t", 0, current_leader_epoch=5)).parts["t", 0][:3] == (0, 0, 0)
    assert client.fetch().parts == {}


def test_a_topic_that_is_not_known_yet_is_served_when_it_is(stage: Stage) -> None:
    later = uuid.uuid4()
    client = Client(stage)
    assert client.fetch(part(later, 0)).parts[later, 0].error == ErrorCode.UNKNOWN_TOPIC_ID
    assert client.fetch(max_wait_ms=500).parts[later, 0].error == ErrorCode.UNKNOWN_TOPIC_ID
    stage.topic("t", topic_id=later)
    stage.append("t")
    assert offsets_in(client.fetch().parts[later, 0].records) == [0]


def test_a_topic_of_the_same_name_is_another_one(stage: Stage) -> None:
    first = stage.topic("t")
    stage.append("t", 3)
    by_id, by_name = Client(stage), Client(stage, version=12)
    by_id.fetch(part(first.id, 3))
    by_name.fetch(part("t", 3))
    stage.topic("t", topic_id=uuid.uuid4())
    assert by_id.fetch().parts[first.id, 0].error == ErrorCode.UNKNOWN_TOPIC_ID
    assert by_name.fetch().parts["t", 0].error == ErrorCode.OFFSET_OUT_OF_RANGE


def test_what_may_be_read_depends_on_the_isolation_of_the_moment(stage: Stage) -> None:
    stage.topic("t")
    open_transaction = stage.batch(attributes=16, producer_id=5, producer_epoch=0, base_sequence=0)
    stage.replicate("t", open_transaction)
    client = Client(stage, version=12, isolation_level=1)
    assert client.fetch(part("t", 0)).parts["t", 0].records == b""
    assert client.fetch().parts == {}
    assert offsets_in(client.fetch(isolation_level=0).parts["t", 0].records) == [0]


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_a_fetch_of_a_session_waits_and_is_woken(stage: Stage) -> None:
    client = started(stage, "a", "b", "c")
    delayed = client.wait()
    assert delayed.deadline_ms == 500
    stage.append("b")
    assert not delayed.done
    stage.turn()
    assert list(client.take(delayed.response).parts) == [("b", 0)]


def test_many_moves_of_one_turn_are_one_look(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    client = started(stage, "a", "b", "c")
    delayed = client.wait(min_bytes=1 << 20)
    reads: list[Any] = []
    read = PartitionReader.read
    monkeypatch.setattr(
        PartitionReader, "read", lambda r, p, asked, *a, **k: reads.append(asked.topic) or read(r, p, asked, *a, **k)
    )
    for _ in range(5):
        for topic in "abc":
            stage.append(topic)
    stage.turn()
    assert reads == ["a", "b", "c"]
    delayed.cancel()


def test_a_fetch_waits_for_min_bytes_of_all_partitions_together(stage: Stage) -> None:
    client = started(stage, "a", "b")
    size = len(stage.batch())
    delayed = client.wait(min_bytes=3 * size)
    for topic in ("a", "b", "a"):
        assert not delayed.done
        stage.append(topic)
        stage.turn()
    assert [len(seen.records) // size for seen in client.take(delayed.response).parts.values()] == [2, 1]


def test_at_the_deadline_there_is_what_there_is(stage: Stage) -> None:
    client = started(stage, "a", "b")
    delayed = client.wait(min_bytes=1 << 20)
    stage.append("b")
    delayed.expire()
    assert list(client.take(delayed.response).parts) == [("b", 0)]
    delayed = client.wait(part("b", 1))
    delayed.expire()
    assert client.take(delayed.response).parts == {}
    assert client.fetch().error == 0


def test_a_lost_leadership_wakes_a_session(stage: Stage) -> None:
    client = started(stage, "a", "b")
    delayed = client.wait()
    stage.topic("b", leader=OTHER, epoch=1, replicas=BOTH)
    stage.turn()
    assert client.take(delayed.response).parts["b", 0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_session_that_waits_takes_no_other_fetch(stage: Stage) -> None:
    client = started(stage, "t")
    delayed = client.wait()
    other = Client(stage, version=12)
    other.id, other.epoch = client.id, client.epoch + 1
    assert other.fetch().error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    stage.append("t")
    stage.turn()
    assert client.take(delayed.response).parts


def test_a_connection_that_goes_leaves_a_session_that_can_be_ended(stage: Stage) -> None:
    client = started(stage, "t")
    delayed = client.wait()
    delayed.cancel()
    for _ in range(3):
        stage.append("t")
        stage.turn()
    assert not stage.partition("t").watchers, "an abandoned session has no watcher"
    client.epoch = 0
    assert offsets_in(client.fetch(part("t", 0)).parts["t", 0].records) == [0, 1, 2]
    assert len(stage.services.fetch_sessions) == 1


def test_a_first_fetch_that_is_dropped_leaves_nothing(stage: Stage) -> None:
    stage.topic("t")
    delayed = Client(stage, version=12).wait(part("t", 0))
    delayed.cancel()
    assert len(stage.services.fetch_sessions) == 0
    assert not stage.partition("t").watchers


# -- limits and fairness ----------------------------------------------------------------------------------------------


def test_no_partition_starves(stage: Stage) -> None:
    names = [f"t{n}" for n in range(5)]
    client = started(stage, *names, max_bytes=1)
    for name in names:
        for _ in range(4):
            stage.append(name, size=1000)
    positions = dict.fromkeys(names, 0)
    order = []
    named: list[Any] = []
    for _ in range(20):
        found = [(topic, seen) for (topic, _), seen in client.fetch(*named).parts.items() if seen.records]
        ((topic, seen),) = found  # only one batch fits
        order.append(topic)
        positions[topic] = offsets_in(seen.records)[-1] + 1
        named = [part(topic, positions[topic])]
    assert order == names * 4
    assert client.fetch(*named).parts == {}


def test_a_large_batch_does_not_hold_up_small_ones_for_ever(stage: Stage) -> None:
    client = started(stage, "small", "large", max_bytes=500)
    seen_large = 0
    positions = {"small": 0, "large": 0}
    stage.append("large", size=5000)
    for _ in range(6):
        stage.append("small")
        answer = client.fetch(*(part(name, offset) for name, offset in positions.items()))
        for (topic, _), seen in answer.parts.items():
            if seen.records:
                positions[topic] = offsets_in(seen.records)[-1] + 1
                seen_large += topic == "large"
    assert seen_large == 1


def test_an_answer_has_so_many_partitions_and_the_next_one_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetlog.brokers.api.fetch_answers.READS_PER_ANSWER", 10)
    client = started(stage, "t", partitions=25)
    for index in range(25):
        stage.append("t", index=index)
    seen: list[int] = []
    named: list[Any] = []
    for size in (10, 10, 5, 0):
        indexes = [index for _, index in client.fetch(*named).parts]
        assert len(indexes) == size
        seen += indexes
        named = [part("t", 1, index) for index in indexes]
    assert sorted(seen) == list(range(25))


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_answer_has_records_of_so_many_partitions(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    monkeypatch.setattr("fleetlog.brokers.api.fetch_answers.READS_PER_ANSWER", 10)
    stage.topic("t", 25)
    for index in range(25):
        stage.append("t", index=index)
    everything = [part("t", 0, index) for index in range(25)]
    outcome = stage.start(handle_fetch, 1, 12, request(*everything, session_epoch=epoch))
    assert isinstance(outcome, Done)
    found = decoded(12, outcome.response).parts
    assert [(len(offsets_in(seen.records)), seen.high_watermark) for seen in found.values()] == [
        (int(n < 10), 1) for n in range(25)
    ]


def test_a_full_answer_has_all_partitions_also_those_whose_turn_it_is_not(stage: Stage) -> None:
    stage.topic("t", 3)
    for index in range(3):
        stage.append("t", size=1000, index=index)
    client = Client(stage, version=12, max_bytes=1)
    first = client.fetch(*(part("t", 0, index) for index in range(3)))
    assert [(len(offsets_in(s.records)), s.high_watermark) for s in first.parts.values()] == [(1, 1), (0, 1), (0, 1)]
    assert list(client.fetch(part("t", 1, 0)).parts) == [("t", 1)]
    assert list(client.fetch(part("t", 1, 1)).parts) == [("t", 2)]


# -- the cache --------------------------------------------------------------------------------------------------------


def opened(sessions: FetchSessions, now_ms: int, size: int = 1, *, replica: int = -1, slots: int = 3) -> Any:
    follower = FollowerSession(replica, 1, now_ms) if replica >= 0 else None
    session = sessions.open(now_ms, slots, size, Owner("User:A", replica), by_id=False, replica=follower)
    if session is not None:
        assert sessions.update(session, [part("t", 0, index) for index in range(size)], ())
    return session


def used(sessions: FetchSessions, session: Any, now_ms: int) -> None:
    asked = request(session_id=session.id, session_epoch=session.epoch, replica_id=session.owner.broker_id)
    if session.replica is not None:
        asked = asked._replace(replica_epoch=session.replica.broker_epoch)
    assert sessions.find(asked, session.owner.principal, now_ms, False) is session


def test_a_full_cache_gives_no_session(stage: Stage) -> None:
    client = started(stage, "t")
    stage.config = stage.services.config = stage.config.__class__(
        **{**{f: getattr(stage.config, f) for f in stage.config.__slots__},
           "max_incremental_fetch_session_cache_slots": 1}
    )  # fmt: skip
    stage.append("t")
    other = Client(stage, version=12)
    for _ in range(2):
        answer = other.fetch(part("t", 0))
        assert (answer.session_id, offsets_in(answer.parts["t", 0].records)) == (0, [0])
    assert client.fetch().error == 0


def test_which_session_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "EVICTION_RETRY_MS", 0)
    sessions = FetchSessions()
    small, large, follower = opened(sessions, 0, 2), opened(sessions, 0, 9), opened(sessions, 0, 1, replica=2)
    assert opened(sessions, 1, 5) is None, "all are in use, and none is old"
    now = EVICTION_MS + 1
    for session in (large, small, follower):
        used(sessions, session, now)
    assert opened(sessions, now, 1) is None, "none is worth less"
    medium = opened(sessions, now, 5)
    assert medium is not None
    assert small.id not in sessions._sessions, "the smallest old one goes"
    assert opened(sessions, now, 8) is None, "the young one is not evicted by its equals"
    second = opened(sessions, now, 1, replica=3)
    assert second is not None
    assert medium.id not in sessions._sessions, "but by a follower's, however large it is"
    third = opened(sessions, now, 1, replica=4)
    assert third is not None
    assert large.id not in sessions._sessions
    assert opened(sessions, now, 10_000) is None, "a consumer's evicts no follower's"
    assert sessions.metrics() == {"consumers": 0, "followers": 3, "partitions": 3, "evicted": 3}
    used(sessions, second, 2 * now)
    used(sessions, third, 2 * now)
    assert opened(sessions, 2 * now, 1) is not None, "an idle one goes, whichever owner it has"
    assert follower.id not in sessions._sessions


def test_a_search_in_vain_is_not_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = FetchSessions()
    for _ in range(3):
        opened(sessions, 0)
    assert opened(sessions, EVICTION_MS, 5) is None
    for session in list(sessions._sessions.values()):
        used(sessions, session, EVICTION_MS + 1)
    assert opened(sessions, EVICTION_MS + 1, 5) is None
    assert opened(sessions, EVICTION_MS + 1 + fetch_sessions.EVICTION_RETRY_MS, 5) is not None


def test_without_slots_there_are_no_sessions() -> None:
    sessions = FetchSessions()
    assert opened(sessions, 0, slots=0) is None
    assert opened(sessions, 0, slots=0, replica=2) is None


def test_consumers_cannot_name_partitions_without_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_CONSUMER_PARTITIONS", 10)
    sessions = stage.services.fetch_sessions
    client = started(stage, "t", partitions=4)
    assert Client(stage, version=12).fetch(*(part("t", 0, index) for index in range(7))).session_id == 0
    other = Client(stage, version=12)
    assert other.fetch(part("t", 0, 1), part("t", 0, 2), part("t", 0, 3)).session_id != 0
    assert sessions._consumer_partitions == sessions.partitions
    more = [part("x", 0, index) for index in range(5)]
    assert client.fetch(*(part("t", 1, index) for index in range(4))).error == 0, "no news, and so no new partitions"
    assert client.fetch(*more, forget=(("t", 0),)).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions._consumer_partitions == sessions.partitions == 3
    assert other.fetch(part("t", 0), forget=(("t", 1), ("t", 2))).error == 0
    assert sessions._consumer_partitions == sessions.partitions == 2


def test_partitions_of_idle_sessions_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_CONSUMER_PARTITIONS", 10)
    sessions = FetchSessions()
    idle, busy = opened(sessions, 0, 4), opened(sessions, 0, 4)
    assert opened(sessions, EVICTION_MS, 4) is None
    used(sessions, busy, EVICTION_MS)
    assert opened(sessions, EVICTION_MS + 1, 11) is None, "too large for the cache"
    assert opened(sessions, EVICTION_MS + 1, 6) is not None
    assert idle.id not in sessions._sessions
    assert sessions._consumer_partitions == 10
    assert opened(sessions, EVICTION_MS + 1, 50, replica=2) is not None, "followers' don't count"


def test_an_evicted_session_answers_its_waiting_fetch(stage: Stage) -> None:
    client = started(stage, "t")
    delayed = client.wait()
    sessions = stage.services.fetch_sessions
    sessions.close(sessions._sessions[client.id])
    stage.turn()
    assert delayed.done
    assert client.take(delayed.response).parts == {}
    assert client.fetch().error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_session_ids_of_two_incarnations_differ() -> None:
    first, second = FetchSessions(), FetchSessions()
    ids = {opened(first, 1, slots=99).id for _ in range(50)} | {opened(second, 2, slots=99).id for _ in range(50)}
    assert len(ids) == 100
    assert min(ids) > 0


# -- the model --------------------------------------------------------------------------------------------------------


class Sessions(RuleBasedStateMachine):
    """Random histories of partitions, and a client with a session. It is compared with reading everything each time."""

    TOPICS = ("a", "b", "c")
    PARTITIONS = 2
    TURNS = 0
    """Of the loop, besides the one in which partitions move, until a waiting fetch has looked at all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.exists() else None)
        self.stage = Stage(Path(self.directory.name))
        self.epochs = dict.fromkeys(self.TOPICS, 0)
        self.ids: dict[str, uuid.UUID] = {}
        self.transactions: list[tuple[Partition, int]] = []
        """Those that are open, by producer id."""
        self.client: Client

    @initialize(follower=st.booleans())
    def begin(self, follower: bool) -> None:
        self.client = Client(self.stage, replica=OTHER if follower else -1, max_bytes=HUGE)
        for topic in self.TOPICS:
            self.declare(topic, ME)

    def teardown(self) -> None:
        self.stage.logs.close()
        self.directory.cleanup()

    def declare(self, topic: str, leader: int) -> None:
        info = self.stage.topic(
            topic, self.PARTITIONS, leader=leader, epoch=self.epochs[topic], replicas=(ME, OTHER, THIRD),
            isr=(ME, OTHER), topic_id=self.ids.get(topic),
        )  # fmt: skip
        self.ids[topic] = info.id

    # what happens to partitions

    @rule(topic=st.sampled_from(TOPICS), index=st.integers(0, 1), count=st.integers(1, 3))
    def append(self, topic: str, index: int, count: int) -> None:
        if self.stage.partition(topic, index).is_leader:
            self.stage.append(topic, count, index)
        self.settle()

    @rule(topic=st.sampled_from(TOPICS), index=st.integers(0, 1))
    def begin_transaction(self, topic: str, index: int) -> None:
        partition, producer_id = self.stage.partition(topic, index), 1 + len(self.transactions)
        if partition.is_leader:
            batch = self.stage.batch(attributes=16, producer_id=producer_id, producer_epoch=0, base_sequence=0)
            self.stage.replicate(topic, batch, index)
            self.transactions.append((partition, producer_id))
        self.settle()

    @precondition(lambda self: self.transactions)
    @rule(commit=st.booleans())
    def end_transaction(self, commit: bool) -> None:
        partition, producer_id = self.transactions.pop()
        if partition.is_leader and not partition.deleted:
            self.stage.marker(partition.tp.topic, producer_id, commit=commit, index=partition.tp.partition)
        self.settle()

    @rule(topic=st.sampled_from(TOPICS), index=st.integers(0, 1), share=st.integers(0, 4))
    def acknowledge(self, topic: str, index: int, share: int) -> None:
        """Another follower's fetch, or the client's own connection's, moves the high watermark."""
        end = self.stage.partition(topic, index).log.log_end_offset
        self.stage.fetched(topic, OTHER, end * share // 4, index)
        self.settle()

    @rule(topic=st.sampled_from(TOPICS), index=st.integers(0, 1))
    def delete_records(self, topic: str, index: int) -> None:
        self.delete(topic, index)
        self.settle()

    def delete(self, topic: str, index: int) -> None:
        partition = self.stage.partition(topic, index)
        partition.log.truncation.delete_records_before(partition.log.high_watermark)
        partition.committed()

    @rule(topic=st.sampled_from(TOPICS), leader=st.sampled_from((ME, ME, OTHER)))
    def elect(self, topic: str, leader: int) -> None:
        self.epochs[topic] += 1
        self.declare(topic, leader)
        self.settle()

    @rule(topic=st.sampled_from(TOPICS))
    def create_again(self, topic: str) -> None:
        self.ids[topic] = uuid.uuid4()
        self.epochs[topic] = 0
        self.declare(topic, ME)
        self.settle()

    # what the client does

    @precondition(lambda self: self.client.delayed is None)
    @rule(
        names=st.lists(
            st.tuples(st.sampled_from(TOPICS), st.integers(0, 2), st.integers(0, 4), st.integers(-1, 2)), max_size=3
        ),
        forget=st.lists(st.integers(0, 9), max_size=2),
        wait=st.booleans(),
        isolation=st.sampled_from((0, 0, 0, 1)),
    )
    def fetch(self, names: list[tuple[str, int, int, int]], forget: list[int], wait: bool, isolation: int) -> None:
        known = list(self.client.parts)
        gone = {known[n % len(known)] for n in forget} if known else set()
        named = {}
        for topic, index, share, last_epoch in names:
            found = self.stage.replicas.get(self.stage.tp(topic, index))
            log_end = found.log.log_end_offset if found else 0
            epoch = self.epochs[topic] if share % 2 else -1
            named[self.ids[topic], index] = part(
                self.ids[topic], log_end * share // 4, index, current_leader_epoch=epoch,
                last_fetched_epoch=min(last_epoch, self.epochs[topic]),
            )  # fmt: skip
        if not {*known, *named} - gone:
            return
        if self.client.fields["replica_id"] < 0:
            self.client.fields["isolation_level"] = isolation
        outcome = self.client.start(
            *(p for key, p in named.items() if key not in gone), forget=tuple(sorted(gone, key=str)),
            max_wait_ms=500 if wait else 0, min_bytes=1,
        )  # fmt: skip
        if isinstance(outcome, Done):
            self.compare(outcome.response)
        else:
            self.settle()

    @precondition(lambda self: self.client.delayed is not None)
    @rule()
    def deadline(self) -> None:
        delayed = self.client.delayed
        assert delayed is not None
        delayed.expire()
        self.compare(delayed.response)

    @precondition(lambda self: self.client.delayed is not None)
    @rule()
    def lose_the_connection(self) -> None:
        delayed = self.client.delayed
        assert delayed is not None
        delayed.cancel()
        self.client.delayed, self.client.epoch = None, 0

    @precondition(lambda self: self.client.delayed is None)
    @rule(max_bytes=st.sampled_from((0, 1, 100, 200)))
    def catch_up(self, max_bytes: int) -> None:
        """Small answers, one after the other, bring everything there is, and the news at last."""
        named: list[Any] = []
        for _ in range(1000):
            if not self.client.parts:
                return
            answer = self.client.fetch(*named, max_bytes=max_bytes)
            named = []
            for key, seen in answer.parts.items():
                if seen.records:
                    *_, (_, last) = scan(seen.records)
                    asked = self.client.parts[key]
                    assert last.last_offset >= asked.fetch_offset
                    named.append(asked._replace(fetch_offset=last.last_offset + 1))
            if not named and not answer.error and not self.disturbed():
                break
        else:
            raise AssertionError("there is no end of it")
        for key, seen in self.client.without_session().items():
            assert not seen.records, f"{key}: records that were never sent"
            assert self.client.known[key][:3] == seen[:3]

    @precondition(lambda self: self.client.delayed is None)
    @rule()
    def evict(self) -> None:
        self.close_all()

    def close_all(self) -> None:
        sessions = self.stage.services.fetch_sessions
        for session in list(sessions._sessions.values()):
            sessions.close(session)

    # what must hold

    def settle(self) -> None:
        """Let what is due happen: a waiting fetch must not sleep through anything worth telling."""
        if self.client.delayed is None:
            return
        delayed = self.client.delayed
        self.stage.wait(5)
        for _ in range(self.TURNS):
            self.stage.turn()
        if delayed.done:
            self.compare(delayed.response)
            return
        follower = self.client.fields["replica_id"] >= 0
        for key, seen in self.client.without_session().items():
            told = self.client.known.get(key)
            assert not seen.records, f"{key}: the waiting fetch sleeps through records"
            assert not seen.error, f"{key}: the waiting fetch sleeps through error {seen.error}"
            assert seen.diverging is None, f"{key}: the waiting fetch sleeps through a diverging epoch"
            if follower and self.client.epoch:
                assert told is not None
                assert told[:3] == seen[:3], f"{key}: the follower waits for news"

    def compare(self, response: Any) -> None:
        answer = self.client.take(response)
        if answer.error:
            assert answer.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            return
        if self.disturbed():
            return
        for key, seen in self.client.without_session().items():
            told = self.client.known[key]
            assert (told[:3], told[4:]) == (seen[:3], seen[4:]), f"{key}: told {told}, is {seen}"
            assert (answer.parts[key].records if key in answer.parts else b"") == seen.records

    def disturbed(self) -> bool:
        """Whether partitions moved while the answer was made."""
        return False

    @invariant()
    def the_books_balance(self) -> None:
        sessions = self.stage.services.fetch_sessions
        consumers = sum(len(s.parts) for s in sessions._sessions.values() if s.replica is None)
        assert sessions._consumer_partitions == consumers
        for session in sessions._sessions.values():
            for session_part in session.parts.values():
                assert session_part.watching or session_part in session.dirty, (
                    "a partition that is never looked at again"
                )


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


Event = tuple[str, str, int, int]


class SessionsInSlices(Sessions):
    """The same with every fetch executed in slices of one partition, between which anything happens."""

    TURNS = len(Sessions.TOPICS) * Sessions.PARTITIONS

    def __init__(self) -> None:
        super().__init__()
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(fetch_answers, "LONG_PARTS", 0)
        self.patched.setattr(fetch_answers, "SLICE_PARTS", 1)
        self.stage.between = self.something_happens
        self.coming: list[Event | None] = []
        self.happened = 0

    def teardown(self) -> None:
        self.patched.undo()
        super().teardown()

    @rule(
        events=st.lists(
            st.none()
            | st.tuples(
                st.sampled_from(("append", "append", "acknowledge", "acknowledge", "delete", "elect", "evict")),
                st.sampled_from(Sessions.TOPICS), st.integers(0, 1), st.integers(0, 4),
            ),
            max_size=12,
        )
    )  # fmt: skip
    def plan(self, events: list[Event | None]) -> None:
        """What will happen in the midst of fetches."""
        self.coming = events

    def something_happens(self) -> None:
        event = self.coming.pop(0) if self.coming else None
        if event is None:
            return
        self.happened += 1
        what, topic, index, number = event
        partition = self.stage.partition(topic, index)
        match what:
            case "append" if partition.is_leader:
                self.stage.append(topic, 1 + number, index)
            case "acknowledge":
                self.stage.fetched(topic, OTHER, partition.log.log_end_offset * number // 4, index)
            case "delete":
                self.delete(topic, index)
            case "elect":
                self.epochs[topic] += 1
                self.declare(topic, OTHER if number == 0 else ME)
            case "evict" if number == 0:
                self.close_all()

    def disturbed(self) -> bool:
        happened, self.happened = self.happened, 0
        return happened > 0


def test_a_fetch_that_waits_looks_at_its_partitions_one_in_each_turn() -> None:
    state = SessionsInSlices()
    try:
        state.begin(follower=False)
        state.fetch(forget=[], isolation=0, names=[("a", 0, 0, -1), ("a", 1, 1, -1)], wait=True)
        state.elect(leader=ME, topic="a")
        assert state.client.delayed is None, "the second partition has another leader epoch"
    finally:
        state.teardown()


@pytest.mark.parametrize(("kind", "place"), [
    (Sessions, -1), (Sessions, 0), *((SessionsInSlices, place) for place in range(-1, 10)),
])  # fmt: skip
def test_no_follower_waits_though_the_log_start_moved(kind: type[Sessions], place: int) -> None:
    """It moves before the fetch (-1), in the midst of it, or while it waits."""
    state = kind()
    try:
        state.begin(follower=True)
        state.append(count=1, index=0, topic="a")
        state.fetch(forget=[], isolation=0, names=[("a", 0, 0, -1), ("b", 0, 0, -1)], wait=False)
        state.catch_up(max_bytes=0)
        if place < 0:
            state.delete("a", 0)
        elif isinstance(state, SessionsInSlices):
            state.plan([*[None] * place, ("delete", "a", 0, 0)])
        state.fetch(forget=[], isolation=0, names=[("a", 0, 4, -1), ("b", 0, 0, -1)], wait=True)
        state.delete_records(index=0, topic="a")
        (known,) = [seen for (topic, _), seen in state.client.known.items() if topic == state.ids["a"]]
        assert known[:3] == (0, 1, 1)
    finally:
        state.teardown()


TestSessionsInSlices = SessionsInSlices.TestCase
TestSessionsInSlices.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def test_a_connection_keeps_no_names_of_topics_that_are_none(stage: Stage) -> None:
    stage.topic("t", 2)
    context = stage.context(1, 12)
    context.source = source = cast("Any", SimpleNamespace(fetches=(), meter=None))
    strange = [part("n" * 30_000 + str(number), 0) for number in range(200)]
    stage.made(handle_fetch(request(part("t", 0), *strange, part("t", 0, 1)), context))
    assert partitions_read(source.fetches, "t", None) == [0, 1]
    assert len(source.fetches) == 2
