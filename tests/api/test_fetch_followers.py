"""The leader's side of replication: what followers get, what their fetches prove; consumers reading from followers."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import Done
from fleetlog.brokers.api.fetch import handle_fetch
from fleetlog.brokers.log import Origin
from fleetlog.brokers.model import BrokerId, BrokerInfo, Endpoint
from fleetlog.wire.errors import ErrorCode
from tests.support.fetching import Client, decoded, part, request
from tests.support.harness import RunningServer
from tests.support.logs import NOW, append_as_leader, produced
from tests.support.stage import ME, OTHER, Stage, offsets_in

THIRD = BrokerId(3)
BOTH, ALL = (ME, OTHER), (ME, OTHER, THIRD)
RACKS = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def follower(stage: Stage, broker_id: int = OTHER, version: int = 17) -> Client:
    return Client(stage, version, replica=broker_id)


def live(stage: Stage, broker_id: BrokerId, epoch: int = 1, rack: str | None = None) -> None:
    """Another broker is registered."""
    endpoints = (Endpoint("PLAINTEXT", "127.0.0.1", 9090 + broker_id),)
    stage.metadata.brokers[broker_id] = BrokerInfo(broker_id, epoch, stage.incarnation, endpoints, rack)


def error_of(stage: Stage, version: int = 17, **fields: Any) -> int:
    outcome = stage.start(handle_fetch, 1, version, request(part(uuid.uuid4(), 0), **fields))
    assert isinstance(outcome, Done)
    answer = decoded(version, outcome.response)
    assert not (answer.error and answer.parts)
    return answer.error


# -- what a follower gets ---------------------------------------------------------------------------------------------


def test_a_follower_reads_to_the_logs_end_and_a_consumer_does_not(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    stage.append("t", 2)
    found = follower(stage).fetch(part(topic.id, 0)).parts[topic.id, 0]
    assert (offsets_in(found.records), found.high_watermark) == ([0], 0)
    assert Client(stage).fetch(part(topic.id, 0)).parts[topic.id, 0].records == b""


def test_its_position_moves_the_high_watermark(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    client = follower(stage)
    client.fetch(part(topic.id, 0))
    stage.append("t", 2)
    committed: list[ErrorCode] = []
    stage.partition("t").wait_for(1, committed.append)
    client.fetch()
    assert not committed, "it was sent to the follower, which may not have it yet"
    answer = client.fetch(part(topic.id, 2))
    assert committed == [ErrorCode.NONE]
    assert answer.parts[topic.id, 0].high_watermark == 2


def test_partitions_that_are_not_named_keep_their_position(stage: Stage) -> None:
    first, second = stage.topic("a", replicas=BOTH), stage.topic("b", replicas=BOTH)
    stage.append("a")
    client = follower(stage)
    client.fetch(part(first.id, 1), part(second.id, 0))
    stage.append("b")
    client.fetch()
    client.fetch(part(second.id, 1))
    assert stage.partition("a").followers.ends()[OTHER] == stage.partition("b").followers.ends()[OTHER] == 1
    assert stage.partition("a").log.high_watermark == 1


def test_a_fetch_without_a_session_counts_as_well(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    stage.append("t", 2)
    for position in (0, 2):
        outcome = stage.start(
            handle_fetch, 1, 17,
            request(part(topic.id, position, current_leader_epoch=0), replica_id=OTHER, replica_epoch=1),
        )  # fmt: skip
        assert isinstance(outcome, Done)
        assert decoded(17, outcome.response).session_id == 0
    assert stage.partition("t").log.high_watermark == 2
    assert stage.partition("t").followers.ends()[OTHER] == 2
    assert not stage.partition("t").watchers
    assert len(stage.services.fetch_sessions) == 0


@pytest.mark.parametrize(("fields", "error"), [
    ({"replica_id": OTHER, "replica_epoch": 1}, ErrorCode.NONE),
    ({"replica_id": OTHER, "replica_epoch": 0}, ErrorCode.STALE_BROKER_EPOCH),
    ({"replica_id": OTHER, "replica_epoch": 2}, ErrorCode.STALE_BROKER_EPOCH),
    ({"replica_id": OTHER, "replica_epoch": -1}, ErrorCode.STALE_BROKER_EPOCH),
    ({"replica_id": 9, "replica_epoch": 1}, ErrorCode.STALE_BROKER_EPOCH),
    ({"replica_id": ME, "replica_epoch": 1}, ErrorCode.INVALID_REQUEST),
    ({"replica_id": OTHER, "version": 13}, ErrorCode.STALE_BROKER_EPOCH),
])  # fmt: skip
def test_a_follower_counts_by_its_registration(stage: Stage, fields: dict[str, int], error: ErrorCode) -> None:
    assert error_of(stage, **fields) == error


def test_a_restarted_follower_cannot_resume_its_session(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    old = follower(stage)
    old.fetch(part(topic.id, 0))
    live(stage, OTHER, epoch=5)
    stage.append("t")
    assert old.fetch(part(topic.id, 1)).error == ErrorCode.STALE_BROKER_EPOCH
    old.epoch = 1
    old.fields["replica_epoch"] = 5
    assert old.fetch(part(topic.id, 1)).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert stage.partition("t").log.high_watermark == 0
    fresh = follower(stage)
    fresh.fields["replica_epoch"] = 5
    fresh.fetch(part(topic.id, 1))
    assert stage.partition("t").log.high_watermark == 1
    assert len(stage.services.fetch_sessions) == 1, "the session of the previous incarnation is ended"


def test_a_full_fetch_that_comes_late_ends_the_session_that_would_not_say_the_position_again(stage: Stage) -> None:
    """A follower gives its connection up, fetches on with another, and then the leader reads the first one's rest."""
    topic = stage.topic("t", replicas=BOTH)
    late = follower(stage)  # what it will say has left already
    client = follower(stage)
    client.fetch(part(topic.id, 0))
    stage.append("t")
    client.fetch(part(topic.id, 1))
    waits = client.wait()
    late.fetch(part(topic.id, 0))
    assert stage.partition("t").followers.ends()[OTHER] == 0
    stage.turn()
    assert waits.done, "else the follower hears of it only at the end of its wait"
    client.take(waits.response)
    assert client.fetch().error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    client.fetch(part(topic.id, 1))
    assert stage.partition("t").followers.ends()[OTHER] == 1
    assert len(stage.services.fetch_sessions) == 1
    assert stage.partition("t").followers.known[OTHER].session is not None


# -- what does not count ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "error"), [
    ({"current_leader_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
    ({"current_leader_epoch": 6}, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ({"current_leader_epoch": -2}, ErrorCode.FENCED_LEADER_EPOCH),
    ({"fetch_offset": 9}, ErrorCode.OFFSET_OUT_OF_RANGE),
])  # fmt: skip
def test_a_position_that_is_refused_is_not_counted(stage: Stage, asked: dict[str, int], error: ErrorCode) -> None:
    topic = stage.topic("t", replicas=BOTH, epoch=5)
    stage.append("t", 2)
    client = follower(stage)
    for _ in range(2):
        answer = client.fetch(part(topic.id, 2, current_leader_epoch=5)._replace(**asked), max_wait_ms=500)
        assert answer.parts[topic.id, 0].error == error
        assert stage.partition("t").log.high_watermark == 0
    assert client.fetch(part(topic.id, 2, current_leader_epoch=5)).parts[topic.id, 0][:2] == (0, 2)


def test_a_position_below_the_logs_start_is_out_of_range(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH, epoch=1)
    stage.append("t", 5)
    stage.fetched("t", OTHER, 5)
    stage.partition("t").log.truncation.delete_records_before(3)
    for last_fetched_epoch in (-1, 1):
        found = follower(stage).fetch(part(topic.id, 2, last_fetched_epoch=last_fetched_epoch))
        assert found.parts[topic.id, 0].error == ErrorCode.OFFSET_OUT_OF_RANGE
        assert stage.partition("t").followers.ends()[OTHER] == 5, "it is not counted"


def test_a_fetcher_that_is_no_replica_is_sent_to_look_again(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    live(stage, THIRD)
    client = follower(stage, THIRD)
    assert client.fetch(part(topic.id, 0)).parts[topic.id, 0].error == ErrorCode.UNKNOWN_LEADER_EPOCH
    stage.topic("t", replicas=ALL, isr=BOTH)
    stage.append("t")
    found = client.fetch().parts[topic.id, 0]
    assert (found.error, offsets_in(found.records)) == (0, [0])
    assert stage.partition("t").followers.ends()[THIRD] == 0


def test_a_log_that_diverged_gets_the_diverging_epoch_and_is_not_counted(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH, epoch=1)
    stage.append("t", 3)
    stage.topic("t", replicas=BOTH, epoch=4)
    stage.append("t", 3)
    client = follower(stage)
    for _ in range(2):
        found = client.fetch(part(topic.id, 5, last_fetched_epoch=2, current_leader_epoch=4), max_wait_ms=500)
        assert found.parts[topic.id, 0].diverging == (1, 3)
    assert stage.partition("t").followers.ends()[OTHER] == -1
    found = client.fetch(part(topic.id, 3, last_fetched_epoch=1, current_leader_epoch=4))
    assert offsets_in(found.parts[topic.id, 0].records) == [3]
    assert stage.partition("t").followers.ends()[OTHER] == 3


@pytest.mark.parametrize(("offset", "epoch", "diverging"), [
    (3, 1, None), (2, 1, None), (4, 1, (1, 3)), (5, 1, (1, 3)), (6, 4, None), (3, 2, (1, 3)), (7, 4, (4, 6)),
])  # fmt: skip
def test_a_log_diverges_that_is_longer_in_an_epoch_that_both_have(
    stage: Stage, offset: int, epoch: int, diverging: tuple[int, int] | None
) -> None:
    topic = stage.topic("t", replicas=BOTH, epoch=1)
    stage.append("t", 3)
    stage.topic("t", replicas=BOTH, epoch=4)
    stage.append("t", 3)
    found = follower(stage).fetch(part(topic.id, offset, last_fetched_epoch=epoch, current_leader_epoch=4))
    assert found.parts[topic.id, 0].diverging == diverging


def test_after_a_truncation_it_gets_the_high_watermark_though_that_has_not_moved(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH, epoch=1)
    stage.append("t", 3)
    stage.partition("t").log.appender.set_high_watermark(3)
    stage.topic("t", replicas=BOTH, epoch=4)
    client = follower(stage)
    found = client.fetch(part(topic.id, 5, last_fetched_epoch=2)).parts[topic.id, 0]
    assert (found.diverging, found.high_watermark) == ((1, 3), 3)
    found = client.fetch(part(topic.id, 3, last_fetched_epoch=1)).parts[topic.id, 0]
    assert (found.diverging, found.high_watermark, found.records) == (None, 3, b"")


def test_the_high_watermark_it_names_counts_and_not_the_one_it_was_sent(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    stage.append("t", 3)
    client = follower(stage, version=18)
    client.fetch(part(topic.id, 3, high_watermark=0))
    assert client.fetch().parts == {}
    stage.partition("t").log.truncation.delete_records_before(2)
    stage.partition("t").committed()
    assert client.fetch().parts[topic.id, 0].log_start_offset == 2
    again = client.fetch(part(topic.id, 3, high_watermark=0, log_start_offset=2))
    assert again.parts[topic.id, 0].high_watermark == 3, "the answer that told it was dropped"
    delayed = client.wait(part(topic.id, 3, high_watermark=3, log_start_offset=2))
    delayed.expire()
    assert client.take(delayed.response).parts == {}
    again = client.fetch(part(topic.id, 3, high_watermark=3, log_start_offset=0))
    assert again.parts[topic.id, 0].log_start_offset == 2


def test_a_new_epoch_must_be_named(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH, epoch=1)
    client = follower(stage)
    client.fetch(part(topic.id, 0, current_leader_epoch=1))
    stage.append("t")
    client.fetch()
    stage.topic("t", replicas=BOTH, epoch=2)
    assert client.fetch(max_wait_ms=500).parts[topic.id, 0].error == ErrorCode.FENCED_LEADER_EPOCH
    assert stage.partition("t").followers.ends()[OTHER] == -1
    assert client.fetch(part(topic.id, 1, current_leader_epoch=2)).parts[topic.id, 0][:2] == (0, 1)


def test_a_forgotten_partition_says_nothing_of_its_follower(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    other = stage.topic("o", replicas=BOTH)
    client = follower(stage)
    client.fetch(part(topic.id, 0), part(other.id, 0))
    client.fetch(forget=((topic.id, 0),))
    assert stage.partition("t").followers.ends()[OTHER] == -1
    assert stage.partition("o").followers.ends()[OTHER] == 0


def test_an_old_session_does_not_forget_what_a_new_one_counts(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    old, new = follower(stage), follower(stage)
    old.fetch(part(topic.id, 0))
    new.fetch(part(topic.id, 0))
    sessions = stage.services.fetch_sessions
    assert list(sessions._sessions) == [new.id], "a follower has one"
    assert stage.partition("t").followers.ends()[OTHER] == 0
    sessions.close(sessions._sessions[new.id])
    assert stage.partition("t").followers.ends()[OTHER] == -1


def test_a_replica_that_comes_back_here_is_counted_by_its_name_again(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    client = follower(stage)
    client.fetch(part(topic.id, 0))
    stage.topic("t", replicas=(OTHER,), leader=OTHER, epoch=1)
    stage.topic("t", replicas=BOTH, epoch=2)
    assert client.fetch().parts[topic.id, 0].error == ErrorCode.FENCED_LEADER_EPOCH
    assert stage.partition("t").followers.ends()[OTHER] == -1
    client.fetch(part(topic.id, 0, current_leader_epoch=2))
    assert stage.partition("t").followers.ends()[OTHER] == 0


def test_followers_cannot_name_partitions_without_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetlog.brokers.api.fetch_sessions.MAX_FOLLOWER_PARTITIONS", 3)
    client = follower(stage)
    client.fetch(part(uuid.uuid4(), 0), part(uuid.uuid4(), 0))
    assert client.fetch(part(uuid.uuid4(), 0)).error == 0
    assert client.fetch(part(uuid.uuid4(), 0)).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(stage.services.fetch_sessions) == 0


# -- what a fetch proves ----------------------------------------------------------------------------------------------


def test_a_fetch_proves_that_the_follower_was_ours_when_the_answer_left(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    client = follower(stage)
    partition = stage.partition("t")
    stage.lease = False
    started_ms = stage.clock.now_ms
    confirmed: list[ErrorCode] = []
    delayed = client.wait(part(topic.id, 0))
    partition.when_confirmed(confirmed.append)
    stage.wait(5)  # the first answer has all partitions, so it does not wait for long
    client.take(delayed.response)
    assert partition.confirmations.confirmed_ms() is None or partition.confirmations.confirmed_ms() < started_ms
    stage.clock.now_ms += 100
    delayed = client.wait()
    assert partition.confirmations.confirmed_ms() == started_ms + 4
    assert confirmed == [ErrorCode.NONE], "the follower took in an answer that left after the question"
    partition.when_confirmed(confirmed.append)
    stage.clock.now_ms += 400
    delayed.expire()
    client.take(delayed.response)
    assert len(confirmed) == 1, "whether it received that is unknown yet"
    client.fetch()
    assert confirmed == [ErrorCode.NONE] * 2
    assert partition.confirmations.confirmed_ms() == started_ms + 504


@pytest.mark.parametrize("how", ["another epoch", "forgotten"])
def test_a_follower_that_turned_to_another_leader_confirms_nothing(stage: Stage, how: str) -> None:
    topic, other = stage.topic("t", replicas=BOTH, epoch=1), stage.topic("o", replicas=BOTH, epoch=1)
    client = follower(stage)
    client.fetch(part(topic.id, 0, current_leader_epoch=1), part(other.id, 0, current_leader_epoch=1))
    client.fetch()
    stage.lease = False
    heard: dict[str, list[ErrorCode]] = {"t": [], "o": []}
    delayed = client.wait()
    for name, answers in heard.items():
        stage.partition(name).when_confirmed(answers.append)
    stage.clock.now_ms += 100
    delayed.expire()  # while this answer is on its way, the follower hears of a new leader of t
    client.take(delayed.response)
    if how == "forgotten":
        client.fetch(forget=((topic.id, 0),))
    else:
        client.fetch(part(topic.id, 0, current_leader_epoch=2))
    assert heard == {"t": [], "o": [ErrorCode.NONE]}


def test_a_wait_for_a_proof_makes_replies_early_but_not_without_end(stage: Stage) -> None:
    first, second = stage.topic("t", replicas=BOTH), stage.topic("u", replicas=ALL)
    client = follower(stage)
    client.fetch(part(first.id, 0), part(second.id, 0))
    stage.lease = False
    delayed = client.wait()
    stage.clock.now_ms += 1000
    heard: list[ErrorCode] = []
    stage.partition("t").when_confirmed(heard.append)
    stage.partition("u").when_confirmed(heard.append)  # in vain: the third replica does not fetch
    stage.wait(5)
    assert client.take(delayed.response).parts == {}
    delayed = client.wait()
    assert heard == [ErrorCode.NONE]
    stage.wait(50)
    assert not delayed.done, "a second answer without news waits longer"
    stage.wait(50)
    assert delayed.done
    stage.topic("u", replicas=ALL, leader=OTHER, epoch=1)
    assert heard == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_an_append_wakes_a_follower_before_it_is_committed(stage: Stage) -> None:
    topic = stage.topic("t", replicas=ALL)
    client = follower(stage)
    client.fetch(part(topic.id, 0))
    delayed = client.wait()
    stage.append("t")
    stage.turn()
    assert offsets_in(client.take(delayed.response).parts[topic.id, 0].records) == [0]
    assert stage.partition("t").log.high_watermark == 0
    assert stage.timers == 0


def test_a_high_watermark_alone_is_sent_a_little_later(stage: Stage) -> None:
    topics = [stage.topic(name, replicas=ALL) for name in "ab"]
    live(stage, THIRD)
    slow, fast = follower(stage, THIRD), follower(stage)
    for client in (slow, fast):
        client.fetch(*(part(topic.id, 0) for topic in topics))
    for name in "ab":
        stage.append(name)
    fast.fetch()
    delayed = fast.wait(*(part(topic.id, 1) for topic in topics))
    stage.wait(4)
    slow.fetch(part(topics[0].id, 1))
    stage.wait(3)
    slow.fetch(part(topics[1].id, 1))
    assert not delayed.done
    assert stage.timers == 1, "one timer for all that moved"
    stage.wait(2)
    answer = fast.take(delayed.response)
    assert {key: seen[1:] for key, seen in answer.parts.items()} == {
        (topic.id, 0): (1, 0, b"", None, -1) for topic in topics
    }
    delayed = fast.wait()
    stage.wait(100)
    assert not delayed.done, "everything was told"
    delayed.cancel()
    assert stage.timers == 0


@pytest.mark.parametrize(("known", "told"), [(2, False), (1, True), (-1, True)])
def test_a_follower_says_which_high_watermark_it_knows(stage: Stage, known: int, told: bool) -> None:
    topic = stage.topic("t", replicas=BOTH)
    stage.append("t", 2)
    client = follower(stage, version=18)
    client.fetch(part(topic.id, 2))
    answer = client.fetch(part(topic.id, 2, high_watermark=known))
    assert (answer.parts.keys() == {(topic.id, 0)}) == told


def test_data_takes_the_news_with_it(stage: Stage) -> None:
    first, second = stage.topic("a", replicas=BOTH), stage.topic("b", replicas=BOTH)
    stage.append("a")
    client = follower(stage)
    client.fetch(part(first.id, 0), part(second.id, 0))
    delayed = client.wait(part(first.id, 1))
    assert stage.timers == 1
    stage.append("b")
    stage.turn()
    assert client.take(delayed.response).parts.keys() == {(first.id, 0), (second.id, 0)}
    assert stage.timers == 0


def test_a_consumer_is_not_woken_by_news_alone(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    stage.append("t", 2)
    stage.append("t")
    client = Client(stage)
    client.fetch(part(topic.id, 3))
    delayed = client.wait()
    stage.fetched("t", OTHER, 2)
    stage.wait(50)
    assert not delayed.done
    delayed.expire()
    assert client.take(delayed.response).parts[topic.id, 0].high_watermark == 2


# -- throttled --------------------------------------------------------------------------------------------------------


def test_a_throttled_follower_that_is_not_in_sync_waits_for_its_bytes(stage: Stage) -> None:
    live(stage, THIRD)
    topic = stage.topic("t", replicas=ALL, isr=BOTH, leader_replication_throttled_replicas="*")
    free = stage.topic("f", replicas=ALL, isr=BOTH)
    size = len(stage.batch(size=1000))
    stage.metadata.effective = replace(stage.metadata.effective, leader_replication_throttled_rate=size)
    for _ in range(10):
        stage.append("t", size=1000)
    client = follower(stage, THIRD)
    client.fetch(part(free.id, 0))
    found = client.fetch(part(topic.id, 0, max_bytes=3 * size))
    assert offsets_in(found.parts[topic.id, 0].records) == [0, 1, 2], "the budget may be overdrawn once"
    delayed = client.wait(part(topic.id, 3, max_bytes=size), max_wait_ms=60_000)
    stage.append("f")
    stage.turn()
    assert client.take(delayed.response).parts.keys() == {(free.id, 0)}, "only what is throttled waits"
    in_sync = follower(stage, OTHER).fetch(part(topic.id, 3, max_bytes=size))
    assert offsets_in(in_sync.parts[topic.id, 0].records) == [3], "a follower in sync is not held back, but it counts"
    delayed = client.wait(part(free.id, 1), max_wait_ms=60_000)
    stage.wait(5)
    assert client.take(delayed.response).parts[topic.id, 0][1:4] == (3, 0, b""), "news are not held back"
    delayed = client.wait(max_wait_ms=60_000)
    waited_ms = 0
    while not delayed.done:
        stage.wait(100)
        waited_ms += 100
        assert waited_ms < 60_000
    assert waited_ms >= 3000
    assert offsets_in(client.take(delayed.response).parts[topic.id, 0].records) == [3]
    assert stage.timers == 0


# -- consumers and followers (KIP-392) --------------------------------------------------------------------------------


@pytest.fixture
def as_follower(stage: Stage) -> Stage:
    """This broker follows: its log has offsets 0 to 5, of which 4 are known to be committed."""
    stage.topic("t", replicas=BOTH, epoch=1)
    for _ in range(3):
        stage.append("t", 2)
    stage.fetched("t", OTHER, 4)
    stage.topic("t", replicas=BOTH, leader=OTHER, epoch=2)
    return stage


def consumer(stage: Stage, version: int = 17, rack: str = "a") -> Client:
    return Client(stage, version, rack_id=rack)


def test_a_consumer_with_a_rack_reads_from_a_follower_what_it_knows_to_be_committed(as_follower: Stage) -> None:
    stage = as_follower
    topic = stage.metadata.topics["t"].id
    found = consumer(stage).fetch(part(topic, 0)).parts[topic, 0]
    assert (offsets_in(found.records), found.high_watermark) == ([0, 2], 4)
    client = consumer(stage)
    delayed = client.wait(part(topic, 4, current_leader_epoch=2))
    assert not delayed.done, "it is here, but not known to be committed"
    stage.partition("t").follower_role.replicate(2, memoryview(b""), 6, 0, stage.clock.now_ms)
    stage.turn()
    assert offsets_in(client.take(delayed.response).parts[topic, 0].records) == [4]


@pytest.mark.parametrize("selector", ["", RACKS])
@pytest.mark.parametrize("isolation", [0, 1])
def test_no_reader_at_a_follower_sees_more_than_is_committed_and_stable(
    tmp_path: Path, selector: str, isolation: int
) -> None:
    """Offsets 0 to 5 are committed, a transaction is open from 4 on, and the log has two records more."""
    stage = Stage(tmp_path, **{"replica.selector.class": selector})
    topic = stage.topic("t", replicas=BOTH, epoch=1)
    log = stage.partition("t").log
    stage.append("t", 2)
    stage.append("t", 2)
    guard = log.producers.verification_guard(9, 0, 0)
    opened = produced(9, 0, 0, 2, txn=True)
    appended = append_as_leader(log, bytearray(opened), leader_epoch=1, now_ms=NOW, verification_guard=guard)
    assert (appended.error, appended.first_offset) == (ErrorCode.NONE, 4)
    stage.append("t", 2)
    stage.fetched("t", OTHER, 6)
    stage.topic("t", replicas=BOTH, leader=OTHER, epoch=2)
    asked = Client(stage, 17, rack_id="a", isolation_level=isolation)
    found = asked.fetch(part(topic.id, 0)).parts[topic.id, 0]
    assert offsets_in(found.records) == ([0, 2] if isolation else [0, 2, 4])
    for offset in (4, 6) if isolation else (6,):
        asked = Client(stage, 17, rack_id="a", isolation_level=isolation)
        assert asked.fetch(part(topic.id, offset)).parts[topic.id, 0].records == b""
    assert log.log_end_offset == 8


@pytest.mark.parametrize(("version", "rack"), [(17, ""), (10, ""), (10, "a")])
def test_a_consumer_that_says_no_rack_has_old_metadata(as_follower: Stage, version: int, rack: str) -> None:
    name = "t" if version < 13 else as_follower.metadata.topics["t"].id
    found = Client(as_follower, version, rack_id=rack).fetch(part(name, 0)).parts[name, 0]
    assert found.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("asked", "error"), [
    ({"fetch_offset": 7}, ErrorCode.OFFSET_NOT_AVAILABLE),
    ({"fetch_offset": 1}, ErrorCode.OFFSET_NOT_AVAILABLE),
    ({"current_leader_epoch": 1}, ErrorCode.FENCED_LEADER_EPOCH),
    ({"current_leader_epoch": 3}, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ({"last_fetched_epoch": 0}, ErrorCode.NONE),
])  # fmt: skip
def test_only_the_leader_says_that_an_offset_is_nowhere(
    as_follower: Stage, asked: dict[str, int], error: ErrorCode
) -> None:  # fmt: skip
    stage = as_follower
    stage.partition("t").log.truncation.delete_records_before(2)
    topic = stage.metadata.topics["t"].id
    found = consumer(stage).fetch(part(topic, 2, current_leader_epoch=2)._replace(**asked)).parts[topic, 0]
    assert (found.error, found.diverging) == (error, None)


def test_whoever_debugs_reads_from_any_replica(as_follower: Stage) -> None:
    outcome = as_follower.start(handle_fetch, 1, 4, request(part("t", 0), replica_id=-2))
    assert isinstance(outcome, Done)
    assert offsets_in(decoded(4, outcome.response).parts["t", 0].records) == [0, 2]


def test_no_follower_reads_from_a_follower(as_follower: Stage) -> None:
    topic = as_follower.metadata.topics["t"].id
    found = follower(as_follower).fetch(part(topic, 0)).parts[topic, 0]
    assert found.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("what", ["led here", "deleted", "no longer here"])
def test_a_consumer_is_answered_when_the_follower_changes(as_follower: Stage, what: str) -> None:
    stage = as_follower
    topic = stage.metadata.topics["t"].id
    client = consumer(stage)
    client.fetch(part(topic, 4, current_leader_epoch=2))
    delayed = client.wait()
    if what == "led here":
        stage.topic("t", replicas=BOTH, epoch=3)
    elif what == "deleted":
        stage.delete("t")
    else:
        stage.topic("t", replicas=(OTHER,), leader=OTHER, epoch=2)
    stage.turn()
    expected = {
        "led here": ErrorCode.FENCED_LEADER_EPOCH,
        "deleted": ErrorCode.UNKNOWN_TOPIC_ID,
        "no longer here": ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
    assert client.take(delayed.response).parts[topic, 0].error == expected[what]


@pytest.mark.parametrize(("selector", "version", "rack", "preferred"), [
    (RACKS, 17, "far", OTHER), (RACKS, 12, "far", OTHER), (RACKS, 17, "near", -1), (RACKS, 17, "elsewhere", -1),
    (RACKS, 17, "", -1), (RACKS, 10, "far", -1), ("", 17, "far", -1),
])  # fmt: skip
def test_the_leader_sends_a_consumer_to_a_replica_in_its_rack(
    tmp_path: Path, selector: str, version: int, rack: str, preferred: int
) -> None:
    stage = Stage(tmp_path, **{"replica.selector.class": selector})
    live(stage, ME, rack="near")
    live(stage, OTHER, rack="far")
    topic = stage.topic("t", replicas=BOTH)
    stage.append("t", 3)
    stage.append("t")
    stage.fetched("t", OTHER, 4)
    name = topic.id if version >= 13 else "t"
    client = consumer(stage, version, rack)
    for _ in range(2):
        found = client.fetch(part(name, 0), max_wait_ms=500).parts[name, 0]
        assert found.preferred == preferred
        assert bool(found.records) == (preferred < 0)
        assert (found.error, found.high_watermark) == (0, 4)


def test_a_replica_that_lacks_the_offset_is_not_preferred(tmp_path: Path) -> None:
    stage = Stage(tmp_path, **{"replica.selector.class": RACKS})
    live(stage, ME, rack="near")
    live(stage, OTHER, rack="far")
    topic = stage.topic("t", replicas=BOTH)
    stage.append("t", 3)
    stage.append("t")
    stage.fetched("t", OTHER, 3)
    client = consumer(stage, rack="far")
    assert client.fetch(part(topic.id, 4)).parts[topic.id, 0].preferred == -1
    assert client.fetch(part(topic.id, 3)).parts[topic.id, 0].preferred == OTHER


# -- on real sockets --------------------------------------------------------------------------------------------------


class Broker:
    """A server on real sockets that serves Fetch from a stage's partitions, all on the server's loop."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.server = RunningServer({1: self.fetch})

    def fetch(self, asked: Any, context: Any) -> Any:
        ours = {"loop": context.services.loop, "timers": context.services.timers}
        services = SimpleNamespace(**{**vars(self.stage.services), **ours})
        return handle_fetch(asked, replace(context, services=services))


def fetch_message(topic: uuid.UUID, session: int, epoch: int, *positions: int, wait_ms: int = 30_000) -> Any:
    cls = m.FetchRequest
    parts = [
        cls.FetchTopic.FetchPartition(
            partition=0, current_leader_epoch=0, fetch_offset=position, last_fetched_epoch=-1, log_start_offset=0,
            partition_max_bytes=64 << 20,
        )
        for position in positions
    ]  # fmt: skip
    topics = [cls.FetchTopic(version=17, topic_id=topic, partitions=parts)] if parts else []
    return cls(
        version=17, replica_state=cls.ReplicaState(replica_id=OTHER, replica_epoch=1), max_wait_ms=wait_ms,
        min_bytes=1, max_bytes=64 << 20, isolation_level=0, session_id=session, session_epoch=epoch, topics=topics,
        forgotten_topics_data=[], rack_id="",
    )  # fmt: skip


def test_replication_over_real_sockets(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    broker = Broker(stage)
    batch = stage.batch(3, size=100_000)
    with broker.server as server:
        client = server.client()
        first = client.ask(fetch_message(topic.id, 0, 0, 0), 17)
        assert (first.error_code, len(first.responses)) == (0, 1)
        committed = threading.Event()

        def append() -> None:
            stage.partition("t").append(batch, acks=-1, origin=Origin.REPLICATION)
            stage.partition("t").wait_for(2, lambda _: committed.set())

        client.send(fetch_message(topic.id, first.session_id, 1), 17, 2)
        server.call(append)
        _, answer = client.receive()
        (found,) = answer.responses[0].partitions
        assert (offsets_in(found.records), len(found.records), found.high_watermark) == ([0], len(batch), 0)
        assert not committed.is_set()
        client.send(fetch_message(topic.id, first.session_id, 2, 3), 17, 3)
        assert committed.wait(20)
        _, news = client.receive()  # long before the fetch would have waited enough
        (found,) = news.responses[0].partitions
        assert (found.high_watermark, found.records or b"") == (3, b"")
        client.close()


def test_records_that_are_truncated_on_their_way_to_a_follower_never_arrive(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    broker = Broker(stage)
    stage.topic("t", replicas=BOTH, max_message_bytes=str(1 << 30))
    kept, lost = stage.batch(1, size=100), stage.batch(1, size=8 << 20)
    with broker.server as server:
        client = server.client()

        def append() -> None:
            for batch in (kept, lost):
                assert stage.partition("t").append(batch, acks=1, origin=Origin.REPLICATION).error == 0

        server.call(append)
        client.send(fetch_message(topic.id, 0, 0, 0), 17, 1)
        server.until(lambda: any(c.unsent for c in server.server.connections.values()), "the answer to get stuck")

        def cut() -> None:
            stage.topic("t", replicas=BOTH, leader=OTHER, epoch=1, max_message_bytes=str(1 << 30))
            stage.partition("t").log.truncation.truncate_to(1)
            other = stage.batch(1, size=9 << 20)
            log = stage.partition("t").log
            assert append_as_leader(log, other, leader_epoch=1, now_ms=0, origin=Origin.REPLICATION).error == 0

        server.call(cut)
        with pytest.raises(ConnectionError):
            client.receive()
