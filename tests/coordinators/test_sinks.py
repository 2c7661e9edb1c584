"""Batch transactions through the handlers: BeginBatch, EnlistProducer, CommitBatch and the others, on real logs."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.coordinators.shard_host import TransactionMarker
from fleetlog.brokers.log import Origin
from fleetlog.brokers.log.producers.markers import encode_marker_run
from fleetlog.brokers.model import BrokerId
from fleetlog.wire.errors import ErrorCode as E
from fleetlog.wire.types import TopicPartition
from tests.support.coordinator_broker import TRANSACTIONAL, Broker, play
from tests.support.one_znode import OneZnode
from tests.support.stage import ME, OTHER, Stage


@pytest.fixture
def znode() -> OneZnode:
    return OneZnode()


class SinkBroker(Broker):
    """Speaks the private APIs as an executor-side client does."""

    async def begin(self, sink: str = "s") -> Any:
        while True:
            answer = await self.call(12001, 0, m.BeginBatchRequest(version=0, sink_id=sink, timeout_ms=60_000))
            if answer.error_code != E.CONCURRENT_TRANSACTIONS:
                return answer

    async def enlist(self, driver: Any, count: int = 1) -> Any:
        request = m.EnlistProducerRequest(version=0, count=count, **identity(driver))
        return await self.call(12002, 0, request)

    async def commit(self, driver: Any, batch_id: int, winners: list[Any], query: str = "q") -> Any:
        kind = m.CommitBatchRequest
        named = [
            kind.BatchMember(version=0, producer_id=w.producer_id, producer_epoch=w.producer_epoch) for w in winners
        ]
        request = kind(version=0, query_id=query, batch_id=batch_id, digest="", winners=named, **identity(driver))
        return await self.call(12003, 0, request)

    async def write(self, member: Any, index: int = 0, sequence: int = 0) -> int:
        return await self.produce(
            member.producer_id, member.producer_epoch, sequence, version=12, name="s", index=index
        )

    async def stable(self, index: int = 0) -> None:
        """Wait until everything in the log is decided."""
        async with asyncio.timeout(10):
            while True:
                last_stable, end = self.visible(index)
                if last_stable == end:
                    return
                await asyncio.sleep(0.005)


def identity(driver: Any) -> dict[str, Any]:
    return {"sink_id": "s", "producer_id": driver.producer_id, "producer_epoch": driver.producer_epoch}


def test_only_the_winners_records_count(tmp_path: Path, znode: OneZnode) -> None:
    async def scenario() -> None:
        broker = await SinkBroker(tmp_path, znode).ready()
        driver = await broker.begin()
        assert (driver.error_code, driver.fence) == (E.NONE, None)
        winner, loser = (await broker.enlist(driver, 2)).members
        for sequence in range(3):
            assert await broker.write(winner, 0, sequence) == E.NONE
            assert await broker.write(loser, 0, sequence) == E.NONE
        assert await broker.write(winner, 1) == E.NONE
        assert broker.visible() == (0, 6)
        done = await broker.commit(driver, 0, [winner])
        assert (done.error_code, done.already_committed, done.fence.batch_id) == (E.NONE, False, 0)
        await broker.stable(0)
        await broker.stable(1)
        log = broker.partition("t", 0).log
        assert [a.producer_id for a in log.reader.aborted_transactions(0, log.log_end_offset)] == [loser.producer_id]
        assert broker.visible(1) == (3, 3), "the loser is ended there too, though it wrote nothing"
        late = await broker.write(loser, 1)
        assert late in (E.INVALID_PRODUCER_EPOCH, E.INVALID_TXN_STATE), E(late).name
        again = await broker.begin()
        assert (again.fence.query_id, again.fence.batch_id) == ("q", 0)
        (reused,) = (await broker.enlist(again)).members
        assert reused.producer_epoch == 1
        assert await broker.write(reused, 0) == E.NONE
        refused = await broker.commit(again, 5, [reused])
        assert refused.error_code == E.FENCE_CONFLICT
        assert "does not follow" in refused.error_message
        await broker.stop()

    play(scenario)


def test_tasks_that_ask_together_share_a_record(tmp_path: Path, znode: OneZnode) -> None:
    async def scenario() -> None:
        broker = await SinkBroker(tmp_path, znode).ready()
        driver = await broker.begin()
        zombie = await broker.begin()
        driver, zombie = zombie, driver
        before = sum(h.partition.log.log_end_offset for h in broker.transactions.hosts())  # type: ignore[attr-defined]
        answers = await asyncio.gather(
            broker.enlist(zombie), *(broker.enlist(driver) for _ in range(50)), broker.enlist(driver, 7)
        )
        after = sum(h.partition.log.log_end_offset for h in broker.transactions.hosts())  # type: ignore[attr-defined]
        assert answers[0].error_code == E.PRODUCER_FENCED
        members = [(x.producer_id, x.producer_epoch) for answer in answers[1:] for x in answer.members]
        assert len(members) == len(set(members)) == 57
        assert after - before < 10
        await broker.stop()

    play(scenario)


def test_a_crashed_coordinator_keeps_fence_slots_and_decisions(tmp_path: Path, znode: OneZnode) -> None:
    async def scenario() -> None:
        broker = await SinkBroker(tmp_path, znode).ready()
        driver = await broker.begin()
        (member,) = (await broker.enlist(driver)).members
        await broker.write(member)
        for host in broker.transactions.hosts():
            host._write_markers = lambda host, effect: None  # it dies before the first marker
        assert (await broker.commit(driver, 0, [member])).error_code == E.NONE
        assert broker.visible() == (0, 1)
        await broker.crash()
        broker = await SinkBroker(tmp_path, znode, epoch=1).ready()
        await broker.stable()
        retried = await broker.commit(driver, 0, [member])
        assert (retried.error_code, retried.already_committed) == (E.NONE, True)
        assert broker.visible() == (2, 2)
        await broker.stop()

    play(scenario)


def test_sinks_are_described_kept_alive_given_up_and_reset(tmp_path: Path, znode: OneZnode) -> None:
    async def scenario() -> None:
        broker = await SinkBroker(tmp_path, znode).ready()
        driver = await broker.begin()
        (member,) = (await broker.enlist(driver)).members
        await broker.write(member)
        alive = await broker.call(12004, 0, m.HeartbeatBatchRequest(version=0, **identity(driver)))
        assert alive.error_code == E.NONE
        answer = await broker.call(12006, 0, m.DescribeSinksRequest(version=0, sink_ids=None))
        (sink,) = answer.sinks
        assert (sink.sink_id, sink.state, sink.members, sink.fence) == ("s", "Ongoing", 1, None)
        assert [(t.name, list(t.partitions)) for t in sink.topics] == [("t", [0])]
        assert (await broker.call(12005, 0, m.AbortBatchRequest(version=0, **identity(driver)))).error_code == E.NONE
        await broker.stable()
        reset = m.ResetSinkRequest(version=0, sink_id="s", expected_query_id="", query_id="q", batch_id=8)
        moved = await broker.call(12007, 0, reset)
        assert (moved.error_code, moved.fence.batch_id) == (E.NONE, 8)
        names = ["s", "unknown"]
        answer = await broker.call(12006, 0, m.DescribeSinksRequest(version=0, sink_ids=names))
        assert [one.error_code for one in answer.sinks] == [E.NONE, E.TRANSACTIONAL_ID_NOT_FOUND]
        assert answer.sinks[0].fence.query_id == "q"
        assert (await broker.init("s")).error_code == E.INVALID_REQUEST
        await broker.stop()

    play(scenario)


def test_a_run_of_markers_becomes_stable_as_one(tmp_path: Path) -> None:
    """Also on a replica that has only a part of it: no read has one winner's records without the other's."""
    stage = Stage(tmp_path)
    third = BrokerId(3)
    stage.topic("t", replicas=(ME, OTHER, third), isr=(ME, OTHER))
    partition = stage.partition("t")
    for producer in (11, 12):
        guard = partition.log.producers.verification_guard(producer, 0, 0)
        info = partition.append(
            stage.batch(attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0, base_sequence=0),
            acks=-1, origin=Origin.CLIENT, verification_guard=guard,
        )  # fmt: skip
        assert info.error is E.NONE
    run = encode_marker_run([(11, 1, True), (12, 1, True)], 5, 0)
    assert partition.append(run, acks=-1, origin=Origin.COORDINATOR, transaction_version=2).error is E.NONE
    for offset, stable in ((2, 0), (3, 0), (4, 4)):
        stage.fetched("t", OTHER, offset)
        assert (partition.log.high_watermark, partition.log.last_stable_offset) == (offset, stable)
    stage.topic("copy", replicas=(ME, OTHER), leader=OTHER)
    follower = stage.partition("copy")
    data = b"".join(piece.read() for piece in partition.log.reader.read(0, 1 << 20, end_offset=4).slices)
    size = len(data) - len(run) // 2 + 2  # about one of the two markers
    assert follower.follower_role.replicate(0, memoryview(data)[:size], 3, 0, 0) is E.NONE
    assert (follower.log.log_end_offset, follower.log.last_stable_offset) == (3, 0)
    rest = data[sum(len(p.read()) for p in partition.log.reader.read(0, 1 << 20, end_offset=3).slices) :]
    assert follower.follower_role.replicate(0, memoryview(rest), 3, 0, 0) is E.NONE
    assert follower.log.last_stable_offset == 0
    assert follower.follower_role.replicate(0, memoryview(b""), 4, 0, 0) is E.NONE
    assert follower.log.last_stable_offset == 4


def test_the_worst_outcome_of_a_run_of_markers_counts(tmp_path: Path, znode: OneZnode) -> None:
    """One member was ended by an operator, so each is appended by itself. What is refused stays so, wherever it is."""

    async def scenario() -> None:
        broker = await Broker(tmp_path, znode).ready()

        async def written(*markers: tuple[int, int, int], as_run: bool) -> list[E]:
            last = len(markers) - 1
            done: asyncio.Future[list[E]] = asyncio.get_running_loop().create_future()
            run = [
                (TopicPartition("t", 0), TransactionMarker(*marker, False, 2, last - index if as_run else 0))
                for index, marker in enumerate(markers)
            ]
            broker.transactions.write_markers_here(run, done.set_result)
            return await done

        assert await written((11, 5, 7), (12, 1, 9), as_run=False) == [E.NONE] * 2
        ended, refused = (11, 1, 8), (12, 2, 8)
        for number, members in enumerate(itertools.permutations([ended, refused, (13, 1, 8)])):
            fresh = [member if member[0] != 13 else (20 + number, 1, 8) for member in members]
            assert await written(*fresh, as_run=True) == [E.TRANSACTION_COORDINATOR_FENCED] * 3, fresh
        assert await written(ended, (30, 1, 8), as_run=True) == [E.NONE] * 2
        await broker.stop()

    play(scenario)
