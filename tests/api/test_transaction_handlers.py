"""The transaction APIs in every version, over real logs: from request bytes to what a reader may see."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api.transaction_lists import handle_describe_producers, handle_list_transactions
from fleetlog.brokers.api.unpacking import PAUSE
from fleetlog.brokers.coordinators.shard_host import TransactionMarker
from fleetlog.brokers.log import RealDisk
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from fleetlog.brokers.replication import isr
from fleetlog.txn.commands import Now
from fleetlog.txn.states import PREPARED, TransactionState
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode as E
from tests.log.compaction.compacted import clean, cleaner_of
from tests.support.coordinator_broker import TRANSACTIONAL, Broker, play
from tests.support.one_znode import OneZnode
from tests.support.stage import ME, OTHER, Stage
from tests.support.waiting import PATIENCE_S


def versions(key: int) -> range:
    return range(APIS[key].lowest, APIS[key].max_version + 1)


@pytest.fixture
def znode() -> OneZnode:
    return OneZnode()


# ---- InitProducerId ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(22))
def test_init_producer_id(tmp_path: Path, znode: OneZnode, version: int) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        first = await broker.init(None, version)
        assert (first.error_code, first.producer_id, first.producer_epoch) == (0, 0, 0)
        assert (await broker.init(None, version)).producer_id == 1
        mine = await broker.init("x", version)
        assert (mine.error_code, mine.producer_id, mine.producer_epoch) == (0, 2, 0)
        again = await broker.init("x", version)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (0, 2, 1)
        assert (await broker.init("x", version, timeout=2**31 - 1)).error_code == E.INVALID_TRANSACTION_TIMEOUT
        assert (await broker.init("", version)).error_code == E.INVALID_REQUEST
        if version >= 3:
            bumped = await broker.init("x", version, expected=(2, 1))
            assert (bumped.error_code, bumped.producer_epoch) == (0, 2)
            fenced = E.PRODUCER_FENCED if version >= 4 else E.INVALID_PRODUCER_EPOCH
            assert (await broker.init("x", version, expected=(2, 0))).error_code == fenced
            assert (await broker.init("x", version, expected=(2, -1))).error_code == E.INVALID_REQUEST
        await broker.stop()

    play(scenario)


def test_init_waits_for_the_abort_of_an_open_transaction(tmp_path: Path, znode: OneZnode) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid = (await broker.init()).producer_id
        assert await broker.add(pid, 0, 0) == 0
        assert await broker.produce(pid, 0, 0) == 0
        assert broker.visible() == (0, 1)
        newer = await broker.init()
        assert (newer.error_code, newer.producer_epoch) == (0, 2), "no CONCURRENT_TRANSACTIONS for a few milliseconds"
        assert broker.visible() == (2, 2)
        assert (await broker.end(pid, 0, True)).error_code == E.PRODUCER_FENCED
        assert await broker.produce(pid, 0, 1) == E.INVALID_PRODUCER_EPOCH
        await broker.stop()

    play(scenario)


# ---- whole transactions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", range(6))
def test_a_transaction_in_every_version(tmp_path: Path, znode: OneZnode, version: int, commit: bool) -> None:
    """Version 5 of EndTxn is transaction version 2: no announcement, a new epoch."""

    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid, epoch = (await broker.init()).producer_id, 0
        for number in range(4):
            if version >= 5:
                assert await broker.produce(pid, epoch, 0, 12) == 0
                assert await broker.produce(pid, epoch, 0, 12, index=1) == 0
                assert await broker.commit_offsets(pid, epoch, "group", number, 5) == 0
            else:
                assert await broker.add(pid, epoch, 0, 1, version=min(version, 3)) == 0
                assert await broker.produce(pid, epoch, number) == 0
                assert await broker.produce(pid, epoch, number, index=1) == 0
                assert await broker.add_offsets(pid, epoch, "group", min(version, 4)) == 0
                assert await broker.commit_offsets(pid, epoch, "group", number, min(version, 4)) == 0
            assert broker.offset("group") == (number - 1 if commit and number else None), "pending"
            ended = await broker.end(pid, epoch, commit, version)
            assert ended.error_code == 0
            if version >= 5:
                assert (ended.producer_id, ended.producer_epoch) == (pid, epoch + 1)
                epoch += 1
        while broker.visible() != (8, 8) or broker.visible(1) != (8, 8):
            await asyncio.sleep(0.001)
        _, shard = broker.transactions.shard_for("x")
        while shard.describe("x").state not in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
            await asyncio.sleep(0.001)
        assert broker.offset("group") == (3 if commit else None)
        aborted = broker.partition("t").log.reader.aborted_transactions(0, 8)
        assert len(aborted) == (0 if commit else 4)
        await broker.stop()

    play(scenario)


@pytest.mark.parametrize("version", versions(24))
def test_add_partitions_refused(tmp_path: Path, znode: OneZnode, version: int) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        assert await broker.add(7, 0, 0, version=version) == E.INVALID_PRODUCER_ID_MAPPING
        pid = (await broker.init()).producer_id
        await broker.init()
        fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
        assert await broker.add(pid, 0, 0, version=version) == fenced
        if version < 4:
            assert await broker.add(pid, 1, 0, 9, version=version) == E.OPERATION_NOT_ATTEMPTED
            assert broker.transactions.shard_for("x")[1].describe("x").state is TransactionState.EMPTY
        assert await broker.add(pid, 1, 0, 1, version=version) == 0
        await broker.stop()

    play(scenario)


@pytest.mark.parametrize("version", [*versions(0)])
def test_a_batch_outside_a_transaction_is_never_appended(tmp_path: Path, znode: OneZnode, version: int) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid = (await broker.init()).producer_id
        error = await broker.produce(pid + 1, 0, 0, min(version, 12))
        assert error == E.INVALID_PRODUCER_ID_MAPPING
        error = await broker.produce(pid, 0, 0, min(version, 12))
        if version >= 12:
            assert error == 0, "version 2 adds the partition by the same question"
        else:
            assert error == (E.TRANSACTION_ABORTABLE if version >= 11 else E.INVALID_TXN_STATE)
            assert broker.visible() == (0, 0)
        await broker.stop()

    play(scenario)


@pytest.mark.parametrize("version", versions(28))
def test_offsets_outside_a_transaction_are_refused(tmp_path: Path, znode: OneZnode, version: int) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid = (await broker.init()).producer_id
        error = await broker.commit_offsets(pid, 0, "group", 5, version)
        expected = {6: 0, 5: 0, 4: E.TRANSACTION_ABORTABLE}.get(version, E.INVALID_TXN_STATE)
        assert error == expected
        missing = E.UNKNOWN_TOPIC_OR_PARTITION if version < 6 else E.UNKNOWN_TOPIC_ID
        assert await broker.commit_offsets(pid, 0, "group", 5, version, topic="none") == missing
        assert broker.offset("group") is None
        await broker.stop()

    play(scenario)


def test_a_late_batch_of_an_ended_transaction(tmp_path: Path, znode: OneZnode) -> None:
    """KIP-890: held up on its way, it must neither hang nor join the next transaction."""

    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid = (await broker.init()).producer_id
        assert await broker.produce(pid, 0, 0, 12) == 0
        assert (await broker.end(pid, 0, False, 5)).producer_epoch == 1
        while broker.visible() != (2, 2):
            await asyncio.sleep(0.001)
        assert await broker.produce(pid, 0, 1, 12) == E.INVALID_PRODUCER_EPOCH
        assert await broker.produce(pid, 1, 0, 12) == 0
        assert await broker.produce(pid, 0, 1, 12) == E.INVALID_PRODUCER_EPOCH
        assert (await broker.end(pid, 0, True, 5)).error_code == E.PRODUCER_FENCED, "KAFKA-17754"
        assert (await broker.end(pid, 1, True, 5)).error_code == 0
        await broker.stop()

    play(scenario)


def test_a_late_marker_does_not_end_the_next_transaction(tmp_path: Path, znode: OneZnode) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid = (await broker.init()).producer_id
        await broker.produce(pid, 0, 0, 12)
        await broker.end(pid, 0, False, 5)
        while broker.visible() != (2, 2):
            await asyncio.sleep(0.001)
        assert await broker.produce(pid, 1, 0, 12) == 0
        assert await marker(broker, pid, 1, 2, transaction_version=2) == E.INVALID_PRODUCER_EPOCH
        assert broker.visible() == (2, 3)
        await broker.end(pid, 1, True, 5)
        while broker.visible() != (4, 4):
            await asyncio.sleep(0.001)
        assert len(broker.partition("t").log.reader.aborted_transactions(0, 4)) == 1
        await broker.stop()

    play(scenario)


async def marker(
    broker: Broker, pid: int, epoch: int, version: int, sender: tuple[int, int, int] | None = None, **more: Any
) -> int:
    kind = m.WriteTxnMarkersRequest
    inner = kind.WritableTxnMarker
    request = kind(
        version=version,
        markers=[
            inner(
                version=version,
                producer_id=pid,
                producer_epoch=epoch,
                transaction_result=False,
                coordinator_epoch=0,
                topics=[inner.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
                **more,
            )
        ],
    )
    if sender is not None:
        request.sender_id, request.sender_incarnation, request.sender_number = sender
    response = await broker.call(27, version, request)
    ((topic,),) = [found.topics for found in response.markers]
    return int(topic.partitions[0].error_code)


def test_with_one_epoch_too_a_late_marker_does_not_end_the_next_transaction(tmp_path: Path, znode: OneZnode) -> None:
    """Protocol 1. The coordinator had given the request up with its connection, and the next one was answered."""

    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid = (await broker.init()).producer_id
        incarnation = broker.metadata.brokers[2].incarnation
        await broker.add(pid, 0, 0)
        assert await broker.produce(pid, 0, 0) == 0
        assert await marker(broker, pid, 0, 2, (2, incarnation, 4)) == 0
        assert broker.visible() == (2, 2)
        await broker.end(pid, 0, False)
        await broker.add(pid, 0, 0)
        assert await broker.produce(pid, 0, 1) == 0
        before = broker.visible()
        assert await marker(broker, pid, 0, 2, (2, incarnation, 3)) == E.STALE_BROKER_EPOCH
        assert await marker(broker, pid, 0, 2, (2, incarnation - 1, 9)) == E.STALE_BROKER_EPOCH
        assert broker.visible() == before
        assert await marker(broker, pid, 0, 2, (2, incarnation, 5)) == 0
        assert broker.visible() == (before[1] + 1, before[1] + 1)
        await broker.stop()

    play(scenario)


@pytest.mark.parametrize("version", versions(27))
def test_an_operator_ends_a_hanging_transaction(tmp_path: Path, znode: OneZnode, version: int) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid = (await broker.init()).producer_id
        await broker.add(pid, 0, 0)
        await broker.produce(pid, 0, 0)
        assert await marker(broker, pid, 0, version) == 0
        assert broker.visible() == (2, 2)
        assert await marker(broker, pid, -1, version) == E.INVALID_PRODUCER_EPOCH
        broker.topic("t", 2, leader=2, epoch=5, replicas=(1, 2))  # type: ignore[arg-type]
        assert await marker(broker, pid, 0, version) == E.NOT_LEADER_OR_FOLLOWER
        await broker.stop()

    play(scenario)


def test_a_marker_that_cannot_be_committed_holds_no_others_up(tmp_path: Path, znode: OneZnode) -> None:
    """While a broker waits for the markers that it sent to a leader, itself included, it sends it no others."""

    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        broker.topic("t", 2, replicas=(1, 2), isr=(1, 2), min_insync_replicas="2")  # type: ignore[arg-type]
        answers: list[list[E]] = []
        written = TransactionMarker(7, 0, 1, True, 1, 0)
        broker.transactions.write_markers_here([(broker.tp("t"), written)], answers.append)
        partition = broker.partition("t")
        assert (partition.log.log_end_offset, answers) == (1, [])
        state, alone = partition.state, isr.without(partition.state, {OTHER}, 2)
        partition.update_state(replace(alone, partition_epoch=state.partition_epoch + 1))
        assert answers == [[E.NOT_ENOUGH_REPLICAS_AFTER_APPEND]], "it is sent again"
        broker.transactions.write_markers_here([(broker.tp("t"), written)], answers.append)
        assert (partition.log.log_end_offset, answers[1:]) == (1, [[E.NOT_ENOUGH_REPLICAS]])
        await broker.stop()

    play(scenario)


# ---- crashes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_coordinator_that_died_between_prepare_and_complete(tmp_path: Path, znode: OneZnode, commit: bool) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid = (await broker.init()).producer_id
        await broker.produce(pid, 0, 0, 12)
        await broker.commit_offsets(pid, 0, "group", 9, 5)
        broker.transactions.write_markers = None
        broker.transactions.markers._schedule = lambda: None  # type: ignore[method-assign]
        answered = await broker.end(pid, 0, commit, 5)
        assert (answered.error_code, answered.producer_epoch) == (0, 1)
        assert broker.visible() == (0, 1)
        await broker.crash()

        after = await Broker(tmp_path, znode, epoch=1).ready()
        while after.visible() != (2, 2):
            await asyncio.sleep(0.001)
        retried = await after.end(pid, 0, commit, 5)
        assert (retried.error_code, retried.producer_epoch) == (0, 1), "the retry of a lost answer"
        other = E.INVALID_TXN_STATE if commit else E.PRODUCER_FENCED
        assert (await after.end(pid, 0, not commit, 5)).error_code == other
        assert after.offset("group") == (9 if commit else None)
        assert len(after.partition("t").log.reader.aborted_transactions(0, 2)) == (0 if commit else 1)
        assert await after.produce(pid, 1, 0, 12) == 0
        assert (await after.init(None)).producer_id >= 1000, "a new incarnation takes a new block"
        await after.stop()

    play(scenario)


def test_the_timeout_is_kept_over_a_crash(tmp_path: Path, znode: OneZnode) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid = (await broker.init(timeout=4_000)).producer_id
        assert await broker.add(pid, 0, 0) == 0
        assert await broker.produce(pid, 0, 0) == 0
        await broker.crash()
        after = await Broker(tmp_path, znode, epoch=1).ready()
        while after.visible() != (2, 2):
            await asyncio.sleep(0.005)
        assert (await after.end(pid, 0, True)).error_code == E.PRODUCER_FENCED
        assert await after.produce(pid, 0, 1) == E.INVALID_PRODUCER_EPOCH
        assert (await after.init()).producer_epoch == 2
        await after.stop()

    play(scenario)


# ---- without a coordinator -----------------------------------------------------------------------------------------


def test_a_broker_that_does_not_coordinate(tmp_path: Path, znode: OneZnode) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid = (await broker.init()).producer_id
        for topic in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
            broker.topic(topic, 2, leader=OTHER, epoch=1)
        wrong = E.NOT_COORDINATOR
        assert (await broker.init()).error_code == wrong
        assert await broker.add(pid, 0, 0) == wrong
        assert await broker.add(pid, 0, 0, version=5) == wrong
        assert await broker.add_offsets(pid, 0, "group") == wrong
        assert (await broker.end(pid, 0, True)).error_code == wrong
        assert await broker.commit_offsets(pid, 0, "group", 1) == wrong
        assert (await describe(broker, "x")).error_code == wrong
        await broker.stop()

    play(scenario)


# ---- looking in ----------------------------------------------------------------------------------------------------


async def describe(broker: Broker, name: str) -> Any:
    response = await broker.call(65, 0, m.DescribeTransactionsRequest(version=0, transactional_ids=[name]))
    (found,) = response.transaction_states
    return found


def test_descriptions_and_lists(tmp_path: Path, znode: OneZnode) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid = (await broker.init("app-1")).producer_id
        await broker.init("other")
        await broker.add(pid, 0, 1, 0, name="app-1")
        await broker.produce(pid, 0, 0, name="app-1")
        found = await describe(broker, "app-1")
        assert (found.error_code, found.transaction_state, found.producer_id) == (0, "Ongoing", pid)
        assert found.transaction_timeout_ms == 60_000
        assert [(topic.topic, list(topic.partitions)) for topic in found.topics] == [("t", [0, 1])]
        assert (await describe(broker, "unknown")).error_code == E.TRANSACTIONAL_ID_NOT_FOUND
        assert (await describe(broker, "")).error_code == E.INVALID_REQUEST

        async def listed(version: int, **filters: Any) -> Any:
            more: dict[str, Any] = {"state_filters": [], "producer_id_filters": []} | filters
            return await broker.call(66, version, m.ListTransactionsRequest(version=version, **more))

        for version in versions(66):
            everything = await listed(version)
            assert sorted(t.transactional_id for t in everything.transaction_states) == ["app-1", "other"]
            some = await listed(version, state_filters=["Ongoing", "Strange"])
            assert [t.transactional_id for t in some.transaction_states] == ["app-1"]
            assert some.unknown_state_filters == ["Strange"]
        assert [t.transactional_id for t in (await listed(1, duration_filter=10**9)).transaction_states] == []
        await asyncio.sleep(0.005)
        running = (await listed(1, duration_filter=0)).transaction_states
        assert [t.transactional_id for t in running] == ["app-1"], "the other id has no transaction"
        by_pattern = await listed(2, transactional_id_pattern="app-.*")
        assert [t.transactional_id for t in by_pattern.transaction_states] == ["app-1"]
        assert (await listed(2, transactional_id_pattern="(")).error_code == E.INVALID_REGULAR_EXPRESSION
        asked = m.ListTransactionsRequest(
            version=2, state_filters=[], producer_id_filters=[], transactional_id_pattern=r"\pL" * 333
        )
        handler = handle_list_transactions(asked, broker.context(66, 2))
        assert next(handler.work) is PAUSE, "one pattern is compiled in a turn of the loop"

        kind = m.DescribeProducersRequest
        request = kind(version=0, topics=[kind.TopicRequest(name="t", partition_indexes=[0, 1, 7])])
        (topic,) = (await broker.call(61, 0, request)).topics
        assert [p.error_code for p in topic.partitions] == [0, 0, E.UNKNOWN_TOPIC_OR_PARTITION]
        (producer,) = topic.partitions[0].active_producers
        assert (producer.producer_id, producer.current_txn_start_offset, producer.last_sequence) == (pid, 0, 0)
        assert topic.partitions[1].active_producers == []
        await broker.stop()

    play(scenario)


def test_followers_describe_the_producers_of_their_logs(tmp_path: Path) -> None:
    """Tools ask a broker for all partitions that it has."""
    stage = Stage(tmp_path)
    stage.topic("t", replicas=(ME, OTHER), leader=OTHER)
    batch = stage.batch(attributes=TRANSACTIONAL, producer_id=11, producer_epoch=3, base_sequence=0)
    assert stage.partition("t").follower_role.replicate(0, memoryview(batch), 1, 0, 0) is E.NONE
    stage.topic("elsewhere", replicas=(OTHER,), leader=OTHER)
    kind = m.DescribeProducersRequest
    topics = [kind.TopicRequest(version=0, name=name, partition_indexes=[0]) for name in ("t", "elsewhere", "no")]

    def described() -> list[tuple[int, list[tuple[int, int, int]]]]:
        request = kind(version=0, topics=topics)
        response = stage.made(stage.start(handle_describe_producers, 61, 0, request).response)
        return [
            (part.error_code, [(p.producer_id, p.producer_epoch, p.current_txn_start_offset) for p in active])
            for topic in response.topics
            for part in topic.partitions
            for active in [part.active_producers]
        ]

    assert described() == [(0, [(11, 3, 0)]), (E.NOT_LEADER_OR_FOLLOWER, []), (E.UNKNOWN_TOPIC_OR_PARTITION, [])]
    stage.partition("t").log.offline = True
    assert described()[0] == (E.KAFKA_STORAGE_ERROR, [])


def test_clients_add_no_internal_partitions(tmp_path: Path, znode: OneZnode) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        pid = (await broker.init()).producer_id
        kind = m.AddPartitionsToTxnRequest
        request = kind(
            version=3, v3_and_below_transactional_id="x", v3_and_below_producer_id=pid, v3_and_below_producer_epoch=0,
            v3_and_below_topics=[
                kind.AddPartitionsToTxnTopic(version=3, name=name, partitions=[0])
                for name in ("t", "__consumer_offsets", "__transaction_state")
            ],
        )  # fmt: skip
        answer = await broker.call(24, 3, request)
        assert [part.partition_error_code for topic in answer.results_by_topic_v3_and_below
                for part in topic.results_by_partition] == [
            E.OPERATION_NOT_ATTEMPTED, E.TOPIC_AUTHORIZATION_FAILED, E.TOPIC_AUTHORIZATION_FAILED,
        ]  # fmt: skip
        assert (await describe(broker, "x")).transaction_state == "Empty"
        assert await broker.add_offsets(pid, 0, "group") == 0
        await broker.stop()

    play(scenario)


def test_ids_expire_at_the_configured_interval(tmp_path: Path, znode: OneZnode) -> None:
    async def scenario() -> None:
        times = {
            "transactional.id.expiration.ms": "1",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "20",
        }
        broker = await Broker(tmp_path, znode, **times).ready()
        assert (await broker.init()).error_code == 0
        async with asyncio.timeout(PATIENCE_S):
            while (await describe(broker, "x")).error_code != E.TRANSACTIONAL_ID_NOT_FOUND:
                await asyncio.sleep(0.01)
        await broker.stop()

    play(scenario)


def test_transactions_are_aborted_at_the_configured_looks(tmp_path: Path, znode: OneZnode) -> None:
    async def scenario() -> None:
        broker = await Broker(
            tmp_path, znode, **{"transaction.abort.timed.out.transaction.cleanup.interval.ms": "700"}
        ).ready()
        _, shard = broker.transactions.shard_for("x")
        assert [shard.abort_later("x", left, Now(0, 600)).delay_ms for left in (0, 100, 101)] == [100, 100, 800]
        pid = (await broker.init(timeout=1)).producer_id
        assert await broker.add_offsets(pid, 0, "group") == 0
        async with asyncio.timeout(PATIENCE_S):
            while (await describe(broker, "x")).transaction_state != "CompleteAbort":
                await asyncio.sleep(0.01)
        await broker.stop()

    play(scenario)


@pytest.mark.parametrize("last", ["committed", "aborted", "open"])
def test_what_a_compacted_log_loads_is_what_it_held(tmp_path: Path, znode: OneZnode, last: str) -> None:
    """The cleaner leaves gaps, emptied batches and markers; both coordinators come back the same."""

    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        epochs = {}
        for name in ("x", "y", "expired"):
            epochs[name] = ((await broker.init(name)).producer_id, 0)
        for number in range(12):
            for name in ("x", "y"):
                pid, epoch = epochs[name]
                assert await broker.commit_offsets(pid, epoch, f"group-{name}", number, 5, name=name) == 0
                ended = await broker.end(pid, epoch, number % 3 != 0, 5, name=name)
                assert ended.error_code == 0
                epochs[name] = (ended.producer_id, ended.producer_epoch)
        internal = [partition.log for partition in broker.replicas.all() if partition.tp.topic != "t"]
        for log in internal:
            log.appender.roll(broker.clock.wall_ms())
        pid, epoch = epochs["x"]
        assert await broker.commit_offsets(pid, epoch, "group-x", 99, 5) == 0
        if last != "open":
            assert (await broker.end(pid, epoch, last == "committed", 5)).error_code == 0
        _, shard = broker.transactions.shard_for("expired")
        shard.settings = replace(shard.settings, id_expiration_ms=0)
        _, host = broker.transactions.host_for("expired")
        assert not isinstance(host, E)
        host.run("expired", lambda shard, now, ticket: shard.on_timer("expire/expired", now))
        while shard.describe("expired") is not None or any(
            t.state in PREPARED for s in broker.transactions.shards() for t in s.transactions.values()
        ):
            await asyncio.sleep(0.001)
        before = [dict(shard.transactions) for shard in broker.transactions.shards()]
        offsets = [broker.offset(group) for group in ("group-x", "group-y")]
        assert offsets == [99 if last == "committed" else 11, 11]
        for log in internal:
            log.appender.roll(broker.clock.wall_ms())
            size = log.size_bytes
            clean(cleaner_of(RealDisk(), log), broker.clock.wall_ms())
            assert log.size_bytes < size or size == 0
        await broker.crash()

        after = await Broker(tmp_path, znode, epoch=1).ready()
        assert [dict(shard.transactions) for shard in after.transactions.shards()] == before
        assert [after.offset(group) for group in ("group-x", "group-y")] == offsets
        if last == "open":
            assert (await after.end(pid, epoch, True, 5)).error_code == 0
            while after.offset("group-x") != 99:
                await asyncio.sleep(0.001)
        await after.stop()

    play(scenario)


def test_enlistments_one_by_one_write_little(tmp_path: Path, znode: OneZnode) -> None:
    """A record has all members of the batch: a client that asks for one at a time writes 1 MB in a second at most."""

    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()
        begun = await broker.call(12001, 0, m.BeginBatchRequest(version=0, sink_id="s", timeout_ms=60_000))

        async def enlist(count: int) -> int:
            request = m.EnlistProducerRequest(
                version=0, sink_id="s", producer_id=begun.producer_id, producer_epoch=begun.producer_epoch, count=count
            )
            while (answer := await broker.call(12002, 0, request)).error_code == E.COORDINATOR_LOAD_IN_PROGRESS:
                await asyncio.sleep(0.01)
            assert answer.error_code == 0
            return len(answer.members)

        def written() -> int:
            logs = broker.logs.all().items()
            return sum(log.segments.size_bytes for tp, log in logs if tp.topic == TRANSACTION_STATE_TOPIC)

        for _ in range(10):  # producer ids are handed out in blocks
            assert await enlist(400) == 400
        began, before = time.monotonic(), written()
        for _ in range(8):
            assert await enlist(1) == 1
        rate = (written() - before) / (time.monotonic() - began)
        assert rate < 1_300_000, f"{rate:.0f} bytes in a second"
        before = written()
        assert await asyncio.gather(*(enlist(1) for _ in range(100))) == [1] * 100
        assert written() - before < 3 * 45_000, "those that wait share a record"
        await broker.stop()

    play(scenario)
