"""ShareFetch, ShareAcknowledge and the share coordinator's APIs over real logs: sessions, epochs, rights, bounds."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.acls.access import GROUP, Access
from fleetlog.brokers.api.base import ClientGone
from fleetlog.brokers.coordinators import share_partitions
from fleetlog.brokers.coordinators.share_partitions import iso_duration_ms
from fleetlog.brokers.model import AUDIT_TOPIC, SHARE_STATE_TOPIC
from fleetlog.brokers.shares.coordinator import ShareWrite, StateAnswer
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode as E
from tests.support.coordinator_broker import Broker
from tests.support.share_members import FETCH, KEY, TOPIC, Member, served
from tests.support.stage import offsets_in
from tests.support.waiting import eventually_async

READ, WRITE, INITIALIZE, DELETE, SUMMARY = 84, 85, 83, 86, 87
WINDOWS = 12020


@pytest.mark.parametrize("version", [1, 2])
def test_a_member_reads_acknowledges_and_another_goes_on(tmp_path: Path, version: int) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 5)
        one = Member(broker, "one", version)
        row = (await one.rows(0, 1, wait_ms=2_000))[0]
        assert offsets_in(row.records) == [0], "one batch"
        assert [(a.first_offset, a.last_offset, a.delivery_count) for a in row.acquired_records] == [(0, 4, 1)]
        assert await one.said(0, 2, 1) == 0
        assert await one.said(0, 2, 1) == 0, "below the start"
        rows = await one.rows(acks={0: ((3, 3, [2]), (4, 4, [3]))}, max_bytes=0)
        assert rows[0].acknowledge_error_code == 0
        two = Member(broker, "two", version)
        assert await two.taken(0) == [(3, 3, 2)]
        assert await two.said(4, 4, 1) == E.INVALID_RECORD_STATE
        assert await one.said(3, 3, 1) == E.INVALID_RECORD_STATE

    served(tmp_path, story)


def test_a_fetch_waits_for_records_and_for_what_is_given_back(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        one, two = Member(broker, "one"), Member(broker, "two")
        waits = asyncio.create_task(one.taken(0, wait_ms=9_000))
        await asyncio.sleep(0.05)
        broker.append("t", 2)
        assert await waits == [(0, 1, 1)]
        waits = asyncio.create_task(two.taken(0, wait_ms=9_000))
        await asyncio.sleep(0.05)
        assert await one.said(1, 1, 2) == 0
        assert await waits == [(1, 1, 2)]
        waits = asyncio.create_task(two.taken(wait_ms=9_000))
        await asyncio.sleep(0.05)
        broker.services.disconnects.closed(1)  # all of them have one connection here
        assert await waits == []

    served(tmp_path, story)


def test_locks_end_and_sessions_that_end_free_what_they_have(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 3)
        one, two = Member(broker, "one"), Member(broker, "two")
        assert await one.taken(0) == [(0, 2, 1)]
        assert await two.taken(0, wait_ms=9_000) == [(0, 2, 2)], "the lock has ended"
        assert await two.said(0, 0, 1, epoch=-1) == 0, "a last request may acknowledge"
        assert await one.taken(wait_ms=1_000) == [(1, 2, 3)]
        assert (await two.fetch(epoch=1)).error_code == E.SHARE_SESSION_NOT_FOUND

    served(tmp_path, story, **{"share.record.lock.duration.ms": "1000"})


def test_epochs_of_sessions(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 3)
        one = Member(broker)
        assert (await one.fetch(0, epoch=0, acks={0: ((0, 0, [1]),)})).error_code == E.INVALID_REQUEST
        assert (await one.fetch(epoch=3)).error_code == E.SHARE_SESSION_NOT_FOUND
        assert await one.taken(0, max_records=1, share_acquire_mode=1) == [(0, 0, 1)]
        assert (await one.fetch(epoch=7)).error_code == E.INVALID_SHARE_SESSION_EPOCH
        assert (await one.say(0, 0, 1, epoch=0)).error_code == E.INVALID_SHARE_SESSION_EPOCH
        assert (await one.say(0, 0, 1, epoch=9)).error_code == E.INVALID_SHARE_SESSION_EPOCH
        one.epoch = 0
        assert await one.taken(0) == [(1, 2, 1)], "a new session in the place of the one before"
        assert await one.said(0, 2, 1) == 0, "what it had it keeps"

    served(tmp_path, story)


def test_sessions_are_bounded(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        assert (await Member(broker, "one").fetch(0)).error_code == 0
        assert (await Member(broker, "two").fetch(0)).error_code == 0
        assert (await Member(broker, "three").fetch(0)).error_code == E.SHARE_SESSION_LIMIT_REACHED
        assert (await Member(broker, "one").fetch(0)).error_code == 0

    served(tmp_path, story)


def test_nobody_waits_for_a_session_that_is_gone(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await Member(broker, "one").fetch(0)
        await Member(broker, "two").fetch(0)
        waits = asyncio.create_task(Member(broker, "three").fetch(0, wait_ms=50_000))
        await asyncio.sleep(0.05)
        broker.services.disconnects.closed(1)
        with pytest.raises(ClientGone):
            await asyncio.wait_for(waits, 5)

    served(tmp_path, story)


def test_a_partition_that_is_named_twice_is_not_acknowledged(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 2)
        one = Member(broker)
        assert await one.taken(0) == [(0, 1, 1)]
        kind = m.ShareAcknowledgeRequest
        rows = [
            one.batches(kind.AcknowledgeTopic.AcknowledgePartition, {0: ((offset, offset, [1]),)}) for offset in (5, 0)
        ]
        request = kind(
            version=2, group_id="g", member_id="m", share_session_epoch=one.epoch,
            topics=[kind.AcknowledgeTopic(topic_id=TOPIC, partitions=some) for some in rows],
        )  # fmt: skip
        answer = await broker.call(79, 2, request)
        assert [row.error_code for row in answer.responses[0].partitions] == [E.INVALID_REQUEST]
        one.epoch += 1
        assert await one.said(0, 1, 1) == 0, "nothing was taken over"

    served(tmp_path, story)


def test_who_acknowledges_hears_of_the_leader(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 1)
        one = Member(broker)
        assert await one.taken(0) == [(0, 0, 1)]
        broker.topic("t", 2, leader=2, epoch=5, topic_id=TOPIC)
        row = (await one.say(0, 0, 1)).responses[0].partitions[0]
        assert (row.error_code, row.current_leader.leader_id) == (E.NOT_LEADER_OR_FOLLOWER, 2)

    served(tmp_path, story)


def test_renewing(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 1)
        one, two = Member(broker, "one"), Member(broker, "two")
        assert await one.taken(0) == [(0, 0, 1)]
        assert await one.said(0, 0, 4) == E.INVALID_REQUEST, "the request does not say so"
        for _ in range(4):
            await asyncio.sleep(0.4)
            assert await one.said(0, 0, 4, is_renew_ack=True) == 0
        assert await two.taken(0, wait_ms=100) == []
        renewed = (await one.rows(acks={0: ((0, 0, [4]),)}, is_renew_ack=True))[0]
        assert (renewed.acquired_records, renewed.records) == ([], b""), "librdkafka takes null for a broken answer"

    served(tmp_path, story, **{"share.record.lock.duration.ms": "1000"})


def test_what_no_client_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 1)
        one = Member(broker)
        assert (await one.fetch(0, epoch=0, group_id="")).error_code == E.INVALID_REQUEST
        assert (await one.fetch(0, epoch=0, member_id="")).error_code == E.INVALID_REQUEST
        assert (await one.rows(5, epoch=0))[5].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
        denies = SimpleNamespace(allows=lambda *asked: False, verdicts={})
        broker.services.access = Access(denies)  # type: ignore[arg-type]
        assert (await one.fetch(0, epoch=0)).error_code == E.GROUP_AUTHORIZATION_FAILED
        assert (await one.say(0, 0, 1)).error_code == E.GROUP_AUTHORIZATION_FAILED
        broker.services.access = Access()
        broker.metadata.features = {}
        assert (await one.fetch(0, epoch=0)).error_code == E.UNSUPPORTED_VERSION
        assert (await one.say(0, 0, 1)).error_code == E.UNSUPPORTED_VERSION
        broker.metadata.features = {"share.version": 1}
        monkeypatch.setattr(share_partitions, "MAX_SHARE_PARTITIONS", 0)
        assert (await one.rows(0, epoch=0))[0].error_code == E.NOT_LEADER_OR_FOLLOWER

    served(tmp_path, story)


def test_the_topic_is_asked_for_at_every_request(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 2)
        one = Member(broker)
        assert await one.taken(0, max_records=1, share_acquire_mode=1) == [(0, 0, 1)]
        groups_only = SimpleNamespace(allows=lambda who, host, what, kind, name: kind is GROUP, verdicts={})
        broker.services.access = Access(groups_only)  # type: ignore[arg-type]
        assert await one.said(0, 0, 1) == E.TOPIC_AUTHORIZATION_FAILED
        assert (await one.rows())[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
        row = (await one.rows(acks={0: ((0, 0, [1]),)}))[0]
        assert (row.error_code, row.acknowledge_error_code) == (E.TOPIC_AUTHORIZATION_FAILED,) * 2

    served(tmp_path, story)


def test_the_next_leader_knows_what_was_acknowledged(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 4)
        one = Member(broker)
        assert await one.taken(0) == [(0, 3, 1)]
        assert await one.said(1, 1, 1) == 0
        broker.topic("t", 2, leader=1, epoch=5, topic_id=TOPIC)
        assert await Member(broker, "two").taken(0) == [(0, 0, 1), (2, 3, 1)]
        assert await one.said(0, 0, 1) == E.INVALID_RECORD_STATE

    served(tmp_path, story)


def test_latest_is_where_the_group_began(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 4)
        one = Member(broker)
        assert await one.taken(0, wait_ms=200) == []
        broker.append("t", 1)
        broker.topic("t", 2, leader=1, epoch=5, topic_id=TOPIC)
        assert await one.taken() == [(4, 4, 1)], "the start was persisted before anything was acknowledged"

    served(tmp_path, story, **{"share.auto.offset.reset": "latest"})


def test_aborted_transactions_and_markers_are_passed_over(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 2, attributes=16, producer_id=7, producer_epoch=0, base_sequence=0)
        broker.append("t", 1)
        broker.marker("t", 7, commit=False)
        broker.append("t", 1)
        one = Member(broker)
        assert await one.taken(0) == [(2, 2, 1), (4, 4, 1)]
        assert await one.said(2, 2, 1) == 0
        assert await one.said(4, 4, 1) == 0
        share = broker.services.share_partitions.get(KEY)
        assert share is not None
        assert share.window.start == 5

    served(tmp_path, story, **{"share.isolation.level": "read_committed"})


def test_the_coordinators_apis(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        async def ask(key: int, name: str, version: int = 0, partition: int = 0, **said: Any) -> Any:
            kind = getattr(m, f"{name}Request")
            (topic,) = [one for one in vars(kind) if one.endswith("Data")]
            row = getattr(kind, topic).PartitionData(partition=partition, **said)
            topics = [getattr(kind, topic)(topic_id=TOPIC, partitions=[row])]
            answer = await broker.call(key, version, kind(version=version, group_id="g", topics=topics))
            return answer.results[0].partitions[0]

        row = await ask(READ, "ReadShareGroupState", leader_epoch=3)
        assert (row.error_code, row.start_offset, row.state_batches) == (0, -1, [])
        batch = m.WriteShareGroupStateRequest.WriteStateData.PartitionData.StateBatch
        states = [batch(first_offset=5, last_offset=6, delivery_state=2, delivery_count=1)]
        said = {"state_epoch": 0, "leader_epoch": 3, "start_offset": 4, "state_batches": states}
        assert (await ask(WRITE, "WriteShareGroupState", 1, delivery_complete_count=2, **said)).error_code == 0
        assert (await ask(WRITE, "WriteShareGroupState", 0, **said)).error_code == 0
        states[0].delivery_state = 9
        assert (await ask(WRITE, "WriteShareGroupState", 1, **said)).error_code == E.INVALID_REQUEST
        assert (await ask(READ, "ReadShareGroupState", leader_epoch=2)).error_code == E.FENCED_LEADER_EPOCH
        assert (await ask(READ, "ReadShareGroupState", partition=-1)).error_code == E.INVALID_REQUEST
        row = await ask(READ, "ReadShareGroupState", leader_epoch=3)
        assert [(b.first_offset, b.last_offset, b.delivery_state) for b in row.state_batches] == [(5, 6, 2)]
        row = await ask(SUMMARY, "ReadShareGroupStateSummary", 1)
        assert (row.start_offset, row.leader_epoch) == (4, 3)
        assert (await ask(INITIALIZE, "InitializeShareGroupState", state_epoch=1, start_offset=9)).error_code == 0
        assert (await ask(SUMMARY, "ReadShareGroupStateSummary")).start_offset == 9
        assert (await ask(DELETE, "DeleteShareGroupState")).error_code == 0
        assert (await ask(SUMMARY, "ReadShareGroupStateSummary")).start_offset == -1
        broker.metadata.features = {}
        assert (await ask(DELETE, "DeleteShareGroupState")).error_code == E.UNSUPPORTED_VERSION

    served(tmp_path, story)


def test_what_is_deleted_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 2)
        beat = {"group_id": "g", "member_id": "m", "subscribed_topic_names": ["t"], "rack_id": None}
        answer = await broker.call(76, 1, m.ShareGroupHeartbeatRequest(version=1, member_epoch=0, **beat))
        assert [row.partitions for row in answer.assignment.topic_partitions] == [[0, 1]]
        one = Member(broker)
        assert await one.taken(0) == [(0, 1, 1)]
        assert await one.said(0, 1, 1, epoch=-1) == 0
        delete = m.DeleteGroupsRequest(version=2, groups_names=["g"])
        assert (await broker.call(42, 2, delete)).results[0].error_code == E.NON_EMPTY_GROUP
        await broker.call(76, 1, m.ShareGroupHeartbeatRequest(version=1, member_epoch=-1, **beat))
        assert (await broker.call(42, 2, delete)).results[0].error_code == 0
        described = await broker.call(77, 1, m.ShareGroupDescribeRequest(version=1, group_ids=["g"]))
        assert described.groups[0].error_code == E.GROUP_ID_NOT_FOUND
        row = (await Member(broker).rows(0, wait_ms=500))[0]
        assert row.error_code == E.NOT_LEADER_OR_FOLLOWER, "of a group that is not there nothing begins"
        assert not any(shard.states for shard in broker.services.share_states.shards())
        await broker.call(76, 1, m.ShareGroupHeartbeatRequest(version=1, member_epoch=0, **beat))
        assert await Member(broker, "two").taken(0) == [(0, 1, 1)], "nothing of it is left"
        monkeypatch.setattr(share_partitions, "DROPPED_TOGETHER", 1)
        later: list[Callable[[], None]] = []
        assert await Member(broker, "two").taken(1) == []
        share_partitions.drop_topic_states(broker.services.share_states, [broker.metadata.topics["t"]], later.append)
        await asyncio.sleep(0.2)
        assert len(later) == 1, "one in each turn of the loop"
        later.pop()()
        await asyncio.sleep(0.2)
        assert not any(shard.states for shard in broker.services.share_states.shards())

    served(tmp_path, story)


def test_who_begins_late_takes_no_state_from_a_later_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 2)
        asked, goes_on = asyncio.Event(), asyncio.Event()
        home = broker.services.share_partitions

        async def subscribed(group_id: str, topic: str) -> bool:
            asked.set()
            await goes_on.wait()
            return False

        monkeypatch.setattr(home, "subscribed", subscribed)
        waiting = asyncio.create_task(Member(broker).rows(0, wait_ms=2_000))
        await asyncio.wait_for(asked.wait(), 10)
        assert (await home.states.read(KEY, 7)).error is E.NONE
        assert (await home.states.write(ShareWrite(KEY, 0, 7, 2, 0, ()))).error is E.NONE
        goes_on.set()
        assert (await waiting)[0].error_code == E.NOT_LEADER_OR_FOLLOWER
        assert (await home.states.summary(KEY)).state.start == 2

    served(tmp_path, story)


def test_what_is_forgotten_is_not_read_on(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 2)
        one = Member(broker, "one")
        assert await one.taken(0) == [(0, 1, 1)]
        forgotten = [m.ShareFetchRequest.ForgottenTopic(topic_id=TOPIC, partitions=[0])]
        rows = await one.rows(acks={0: ((0, 0, [1]),)}, forgotten_topics_data=forgotten)
        assert rows[0].acknowledge_error_code == 0, "clients do both in one request"
        broker.append("t", 1)
        assert await one.taken(wait_ms=100) == []
        assert await Member(broker, "two").taken(0) == [(2, 2, 1)]
        assert await one.said(1, 1, 1) == 0, "what it has it keeps"

    served(tmp_path, story)


def test_nothing_stays_open_without_a_session(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        shares = broker.services.share_partitions
        broker.append("t", 1)
        one = Member(broker)
        await one.fetch()
        assert await one.said(0, 0, 1) == E.INVALID_RECORD_STATE
        assert len(shares) == 0, "who acknowledges opens nothing"
        await one.fetch(0)
        assert (await one.fetch(epoch=-1)).error_code == 0
        await eventually_async(lambda: len(shares) == 0, "all have closed")
        await Member(broker).fetch(0)
        assert (await one.fetch(epoch=-1)).error_code == 0, "while a state is read that there is by now"
        await eventually_async(lambda: len(shares) == 0, "all have closed")
        asyncio.get_running_loop().call_soon(broker.services.disconnects.closed, 1)
        await Member(broker).fetch(*range(2, 60), 0)
        await eventually_async(lambda: len(shares) == 0, "all have closed")

    served(tmp_path, story)


def test_a_leader_that_is_fenced_says_so_at_once(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        kind = m.ReadShareGroupStateRequest
        row = kind.ReadStateData.PartitionData(partition=0, leader_epoch=9)
        topics = [kind.ReadStateData(topic_id=TOPIC, partitions=[row])]
        await broker.call(READ, 0, kind(version=0, group_id="g", topics=topics))
        async with asyncio.timeout(5):
            rows = await Member(broker).rows(0, wait_ms=9_000)
        assert rows[0].error_code == E.NOT_LEADER_OR_FOLLOWER

    served(tmp_path, story)


def test_a_coordinator_that_cannot_be_asked_breaks_nothing(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 2)
        topics, one = broker.metadata.topics, Member(broker, "one")
        states = topics.pop(SHARE_STATE_TOPIC)
        async with asyncio.timeout(5):
            assert (await one.rows(0, wait_ms=9_000))[0].error_code == E.UNKNOWN_SERVER_ERROR
        assert len(broker.services.share_partitions) == 0
        topics[SHARE_STATE_TOPIC] = states
        assert await one.taken(0) == [(0, 1, 1)]
        del topics[SHARE_STATE_TOPIC]
        assert await one.said(0, 0, 1) == E.UNKNOWN_SERVER_ERROR
        topics[SHARE_STATE_TOPIC] = states
        async with asyncio.timeout(5):
            assert await one.said(0, 0, 1) == 0

    served(tmp_path, story)


def test_types_of_more_records_than_a_member_can_have(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 1)
        one = Member(broker)
        assert await one.taken(0) == [(0, 0, 1)]
        assert await one.said(0, 49_999, *[1, 2] * 25_000) == E.INVALID_REQUEST
        assert await one.said(0, 0, 1) == 0

    served(tmp_path, story)


def test_a_disk_that_is_waited_for_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page cache can be made cold at will: the probe says that it is."""
    moved = asyncio.Event()

    def cold(fd: int, length: int, position: int) -> None:
        asyncio.get_running_loop().call_soon(moved.set)

    async def story(broker: Broker) -> None:
        broker.append("t", 2)
        one, two = Member(broker, "one"), Member(broker, "two")
        await one.fetch(0)
        await eventually_async(lambda: broker.services.share_partitions.get(KEY).window, "the state was read")
        monkeypatch.setattr(share_partitions, "read_if_cached", cold)
        reads = asyncio.create_task(one.taken())
        await moved.wait()
        assert not reads.done(), "the loop goes on while the disk is waited for"
        broker.services.disconnects.closed(1)
        assert await reads == [], "its session has ended since"
        assert await two.taken(0) == [(0, 1, 1)]

    served(tmp_path, story)


def test_a_connection_that_has_closed_leaves_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 1)
        context = broker.context(FETCH, 2)
        context.source = SimpleNamespace(closed=True)  # type: ignore[assignment]
        monkeypatch.setattr(broker, "context", lambda key, version: context)
        with pytest.raises(ClientGone):
            await Member(broker).fetch(0)
        assert len(broker.services.share_sessions) == 0

    served(tmp_path, story)


def test_a_fleet_that_serves_no_share_groups_any_more_is_not_asked_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(write: object) -> StateAnswer:
        return StateAnswer(E.UNSUPPORTED_VERSION)

    async def story(broker: Broker) -> None:
        shares = broker.services.share_partitions
        broker.append("t", 1)
        one = Member(broker)
        assert await one.taken(0) == [(0, 0, 1)]
        monkeypatch.setattr(shares.states, "write", refused)
        broker.services.disconnects.closed(1)
        await eventually_async(lambda: len(shares) == 0, "it has closed", 5)

    served(tmp_path, story)


def test_who_may_not_act_for_the_cluster_has_nothing_looked_at(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        denies = SimpleNamespace(allows=lambda *asked: False, verdicts={})
        broker.services.access = Access(denies)  # type: ignore[arg-type]
        kind = m.WriteShareGroupStateRequest
        data = kind.WriteStateData.PartitionData
        batch = data.StateBatch(first_offset=5, last_offset=6, delivery_state=2, delivery_count=1)
        row = data(partition=0, state_epoch=0, leader_epoch=0, start_offset=0, state_batches=[batch] * 200_000)
        request = kind(version=0, group_id="g", topics=[kind.WriteStateData(topic_id=TOPIC, partitions=[row])])
        tracemalloc.start()
        try:
            answer = await broker.outcome(WRITE, 0, request)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert answer.results[0].partitions[0].error_code == E.CLUSTER_AUTHORIZATION_FAILED
        assert most < 1 << 20, "its batches were not taken over"

    served(tmp_path, story)


@pytest.mark.parametrize("codec", [0, 4])
def test_records_are_given_out_at_their_time(tmp_path: Path, codec: int) -> None:
    async def story(broker: Broker) -> None:
        now_ms = broker.clock.wall_ms()
        said = [None, b"%d" % (now_ms + 700), b"soon", b"%d" % (now_ms + 10**9), b"%d" % (now_ms - 5)]
        headers = [(("fleetlog.deliver-at", value),) if value is not None else () for value in said]
        records = [Record(n, now_ms, None, b"v", each) for n, each in enumerate(headers)]
        compress = (lambda payload: compression.compress(codec, payload)) if codec else None
        broker.replicate("t", encode_batch(records, attributes=codec, compress=compress))
        one = Member(broker)
        assert await one.taken(0) == [(0, 0, 1), (2, 4, 1)]
        assert await one.taken(0, wait_ms=9_000) == [(1, 1, 1)]
        assert broker.clock.wall_ms() >= now_ms + 700
        assert broker.services.metrics.early_deliveries.value == 1, "what is too far ahead"

    served(tmp_path, story, **{"fleetlog.share.delay.max.ms": "60000"})


def test_which_record_holds_a_full_window_back(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        async def told() -> list[tuple[Any, ...]]:
            request = m.DescribeShareWindowsRequest(version=0, group_id="g")
            answer = await broker.call(WINDOWS, 0, request)
            assert answer.error_code == 0
            rows = [(topic.name, row) for topic in answer.topics for row in topic.partitions]
            return [(t, r.partition_index, r.start_offset, r.end_offset, r.locked, r.holder, r.holder_state,
                     r.holder_deliveries, r.holder_member) for t, r in rows]  # fmt: skip

        assert await told() == []
        broker.append("t", 150)
        one = Member(broker, "slow")
        assert await one.taken(0, max_records=60, share_acquire_mode=1) == [(0, 59, 1)]
        assert await told() == [("t", 0, 0, 60, 60, -1, "", 0, None)]
        assert await one.taken(max_records=90, share_acquire_mode=1) == [(60, 99, 1)]
        assert await told() == [("t", 0, 0, 100, 100, 0, "with a member", 1, "slow")]
        groups_only = SimpleNamespace(allows=lambda who, host, what, kind, name: kind is GROUP, verdicts={})
        broker.services.access = Access(groups_only)  # type: ignore[arg-type]
        assert await told() == [], "the topic may not be described"

    served(tmp_path, story, **{"share.partition.max.record.locks": "100"})


def test_durations() -> None:
    assert iso_duration_ms("PT1H") == 3_600_000
    assert iso_duration_ms("P1DT2H3M4.5S") == 93_784_500
    for text in ("", "P", "PT", "1H", "P1Y", AUDIT_TOPIC):
        assert iso_duration_ms(text) is None
