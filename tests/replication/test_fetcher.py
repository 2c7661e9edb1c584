"""The fetchers' loop: when they ask, when they rest, when they give up. The leader is a small one behind the port."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog._native.batch import crc32c
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.peers.calls import PeerUnavailable
from fleetlog.brokers.replication.fetch_plan import Request
from fleetlog.brokers.replication.fetcher import FETCH, FETCH_VERSION, LATEST, LIST_OFFSETS, ReplicaFetchers
from fleetlog.wire.api_keys import ACCEPTED_POSITIONS
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import FetchAnswer, FetchOutcome, FetchPart, decode_fetch, encode_fetch_response
from fleetlog.wire.messages import AcceptedPositionsResponse, ListOffsetsResponse
from tests.support.clocks import RealClock
from tests.support.small_leader import SmallFollower, SmallLeader, topic_id
from tests.support.stores import on_loop
from tests.support.waiting import eventually_async


class Wire:
    """The peers port with small leaders behind it. A fetch without news waits as it would at a broker."""

    def __init__(self, *leaders: SmallLeader) -> None:
        self.leaders = {leader.broker_id: leader for leader in leaders}
        self.fetches: list[Any] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.gone: set[int] = set()
        self.garbage = False
        self.listed: list[Any] = []
        self.asked_positions: list[tuple[int, int]] = []
        self.positions = b"positions"
        self.closed = False
        self.stirred = asyncio.Event()

    async def exchange(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int = 30_000
    ) -> memoryview:
        assert (api_key, version) == (FETCH, FETCH_VERSION)
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            await asyncio.sleep(0)
            if broker_id in self.gone:
                raise PeerUnavailable(broker_id, "is gone")
            if self.garbage:
                return memoryview(b"\xff" * 20)
            fetch = decode_fetch(version, memoryview(body))
            assert timeout_ms > fetch.max_wait_ms
            self.fetches.append(fetch)
            leader = self.leaders[broker_id]
            request = Request(
                fetch.session_id, fetch.session_epoch, list(fetch.parts),
                [(name, indexes) for name, indexes in fetch.forgotten if not isinstance(name, str)],
            )  # fmt: skip
            answer = leader.fetch(request)
            if not answer.parts and not answer.error:
                self.stirred.clear()
                try:
                    async with asyncio.timeout(fetch.max_wait_ms / 1000):
                        await self.stirred.wait()
                except TimeoutError:
                    pass
                answer = answer._replace(parts=leader._parts(everything=False))
            return memoryview(self.encode(answer))
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        self.closed = True

    @staticmethod
    def encode(answer: FetchAnswer) -> bytes:
        rows = []
        for part in answer.parts:
            asked = FetchPart(None, part.topic_id, part.partition, 0, 0, 0, 0, 0, -1)
            slices = (SimpleNamespace(size=len(part.records), read=lambda part=part: bytes(part.records)),)
            outcome = FetchOutcome(
                part.error, part.high_watermark, part.last_stable_offset, part.log_start_offset,
                slices=slices if len(part.records) else (), size=len(part.records), diverging=part.diverging,
            )  # fmt: skip
            rows.append((asked, outcome))
        encoded = encode_fetch_response(FETCH_VERSION, rows, error=answer.error, session_id=answer.session_id)
        return b"".join(piece.read() if hasattr(piece, "read") else bytes(piece) for piece in encoded.chunks)

    async def call(self, broker_id: int, api_key: int, version: int, message: Any, timeout_ms: int = 30_000) -> Any:
        if api_key == ACCEPTED_POSITIONS:
            return self.told(message)
        assert api_key == LIST_OFFSETS
        self.listed.append(message)
        if broker_id in self.gone:
            raise PeerUnavailable(broker_id, "is gone")
        topics = []
        for topic in message.topics:
            parts = []
            for part in topic.partitions:
                log = self.leaders[broker_id].led[topic_id(topic.name), part.partition_index].log
                offset = log.log_end_offset if part.timestamp == LATEST else log.log_start_offset
                parts.append(
                    ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
                        partition_index=part.partition_index, error_code=0, timestamp=-1, offset=offset, leader_epoch=0
                    )
                )
            topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return ListOffsetsResponse(version=version, topics=topics)

    def told(self, message: Any) -> AcceptedPositionsResponse:
        """A part of ``positions``; the first one fails."""
        self.asked_positions.append((message.offset, message.position))
        if len(self.asked_positions) == 1:
            return AcceptedPositionsResponse(version=0, error_code=ErrorCode.OFFSET_NOT_AVAILABLE, positions=b"")
        part = self.positions[message.position : message.position + 4]
        return AcceptedPositionsResponse(
            version=0, error_code=0, size=len(self.positions), checksum=crc32c(self.positions), positions=part
        )


class Bench:
    """Fetchers of broker 2 and their leaders."""

    def __init__(self, *leaders: SmallLeader, **settings: Any) -> None:
        self.leaders = leaders or (SmallLeader(1),)
        self.wire = Wire(*self.leaders)
        self.broker_epoch = 7
        config = BrokerConfig(
            broker_id=2, **{"replica_fetch_backoff_ms": 20, "replica_fetch_wait_max_ms": 100, **settings}
        )
        self.fetchers = ReplicaFetchers(
            config, self.wire, RealClock(), broker_epoch=lambda: self.broker_epoch, loop=asyncio.get_running_loop()
        )

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fetchers.close()
        assert len(asyncio.all_tasks()) <= 2, "a fetcher outlived its end"

    def follow(self, name: str = "t", partition: int = 0, leader: int = 1, records: int = 0) -> SmallFollower:
        follower = SmallFollower(name, partition, leader)
        self.wire.leaders[leader].lead(follower, [0] * records)
        self.fetchers.follow(follower)
        return follower

    def led(self, follower: SmallFollower, leader: int = 1) -> Any:
        return self.wire.leaders[leader].led[follower.topic_id, follower.tp.partition]


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def reached(follower: SmallFollower, offset: int) -> None:
    await eventually_async(
        lambda: follower.log.log_end_offset, f"the log ends at {offset}", good=lambda end: end == offset
    )


@on_loop
async def test_one_task_per_leader_and_one_fetch_in_flight() -> None:
    async with Bench(SmallLeader(1), SmallLeader(3)) as bench:
        followers = [bench.follow(partition=n, leader=(1, 3)[n % 2], records=10) for n in range(6)]
        for follower in followers:
            await reached(follower, 10)
        assert bench.fetchers.leaders() == {1: 3, 3: 3}
        assert bench.wire.most_in_flight == 2
        first = bench.wire.fetches[0]
        assert (first.replica_id, first.replica_epoch) == (2, 7)
        assert first.max_bytes == 10 * 1024 * 1024
        assert {part.max_bytes for part in first.parts} == {1024 * 1024}
        assert [part.partition for part in first.parts] in ([0, 2, 4], [1, 3, 5])


@on_loop
async def test_new_records_come_by_the_long_poll() -> None:
    async with Bench(replica_fetch_wait_max_ms=60_000) as bench:
        follower = bench.follow(records=1)
        await reached(follower, 1)
        await eventually_async(lambda: bench.wire.in_flight == 1, "the next fetch is out")
        await turns()
        asked = len(bench.wire.fetches)
        bench.led(follower).log.records.append(0)
        bench.wire.stirred.set()
        await reached(follower, 2)
        assert len(bench.wire.fetches) <= asked + 1


@on_loop
async def test_nothing_to_fetch_nothing_sent() -> None:
    async with Bench() as bench:
        follower = bench.follow(records=1)
        await reached(follower, 1)
        bench.fetchers.unfollow(follower.tp)
        await eventually_async(lambda: bench.wire.in_flight == 0, "no fetch is out")
        await turns()
        asked = len(bench.wire.fetches)
        await asyncio.sleep(0.3)
        assert len(bench.wire.fetches) == asked
        again = bench.follow(partition=1, records=2)
        await reached(again, 2)


@on_loop
async def test_without_a_registration_nothing_is_sent() -> None:
    async with Bench() as bench:
        bench.broker_epoch = -1
        follower = bench.follow(records=1)
        await asyncio.sleep(0.1)
        assert bench.wire.fetches == []
        bench.broker_epoch = 8
        await reached(follower, 1)
        assert bench.wire.fetches[0].replica_epoch == 8


@on_loop
async def test_a_leader_that_is_gone_is_tried_again_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    async with Bench() as bench:
        bench.wire.gone.add(1)
        follower = bench.follow(records=1)
        await eventually_async(lambda: bench.fetchers.counts.errors >= 3, "three fetches failed")
        assert caplog.text.count("is gone") == 1, "said once"
        bench.wire.gone.clear()
        await reached(follower, 1)


@on_loop
async def test_an_answer_that_is_none_is_tried_again() -> None:
    async with Bench() as bench:
        bench.wire.garbage = True
        follower = bench.follow(records=1)
        await eventually_async(lambda: bench.fetchers.counts.errors >= 2, "two fetches failed")
        bench.wire.garbage = False
        await reached(follower, 1)


@on_loop
async def test_a_lost_session_costs_no_pause_but_endless_refusal_does() -> None:
    async with Bench(replica_fetch_backoff_ms=10_000) as bench:
        follower = bench.follow(records=1)
        await reached(follower, 1)
        bench.leaders[0].evict()
        bench.led(follower).log.records.append(0)
        await reached(follower, 2)
        bench.leaders[0].error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        asked = len(bench.wire.fetches)
        bench.wire.stirred.set()
        await asyncio.sleep(0.3)
        assert len(bench.wire.fetches) - asked <= 3


@on_loop
async def test_a_partition_moves_to_another_leader() -> None:
    async with Bench(SmallLeader(1), SmallLeader(3)) as bench:
        follower = bench.follow(records=3)
        await reached(follower, 3)
        follower.lead_by(3, 1)
        led = bench.wire.leaders[3].lead(follower, [0, 0, 1, 1])
        assert led.epoch == 1
        bench.fetchers.follow(follower)
        await eventually_async(lambda: follower.log.records == [0, 0, 1, 1], "the log has the records of both epochs")
        assert bench.fetchers.leaders() == {1: 0, 3: 1}
        follower.lead_by(2, 2)
        bench.fetchers.follow(follower)
        assert bench.fetchers.leaders() == {1: 0, 3: 0}


@on_loop
async def test_out_of_range_asks_the_leader_for_its_ends() -> None:
    async with Bench() as bench:
        follower, other = SmallFollower(partition=0), SmallFollower(partition=1)
        for one in (follower, other):
            bench.leaders[0].lead(one, [0] * 10)
        bench.led(follower).log.drop_before(6)
        bench.led(other).log.cut(1)
        other.log.records.extend([0] * 4)
        other.fetch_position = lambda: (other.log.log_end_offset, -1, 0)  # type: ignore[method-assign]
        bench.wire.gone.add(1)
        bench.fetchers.follow(follower)
        bench.fetchers.follow(other)
        await eventually_async(lambda: bench.fetchers.counts.errors > 0, "a fetch failed")
        bench.wire.gone.clear()
        await eventually_async(
            lambda: (follower.log.log_start_offset, follower.log.log_end_offset) == (6, 10),
            "the log begins where the leader's does",
        )
        await reached(other, 1)
        assert all(message.replica_id == 2 for message in bench.wire.listed)
        assert {part.current_leader_epoch for part in bench.wire.listed[0].topics[0].partitions} == {0}


@on_loop
async def test_out_of_range_with_a_leader_that_left_waits() -> None:
    async with Bench() as bench:
        follower = SmallFollower()
        bench.leaders[0].lead(follower, [0] * 10).log.drop_before(6)
        exchange = bench.wire.exchange

        async def last_words(*args: Any, **options: Any) -> memoryview:
            answer = await exchange(*args, **options)
            bench.wire.gone.add(1)
            return answer

        bench.wire.exchange = last_words  # type: ignore[method-assign]
        bench.fetchers.follow(follower)
        await eventually_async(lambda: len(bench.wire.listed) > 0, "the leader's range is asked for")
        bench.wire.exchange = exchange  # type: ignore[method-assign]
        bench.wire.gone.clear()
        await reached(follower, 10)


@on_loop
async def test_a_replica_that_lacks_positions_fetches_once_it_has_them() -> None:
    async with Bench() as bench:
        follower = SmallFollower()
        follower.positions_from = 3
        bench.wire.leaders[1].lead(follower, [0] * 5)
        bench.fetchers.follow(follower)
        other = bench.follow("other", records=2)
        await reached(other, 2)
        await reached(follower, 5)
        assert bench.wire.asked_positions == [(3, 0), (3, 0), (3, 4), (3, 8)], "in parts, after the refusal"
        assert follower.told == b"positions"


@on_loop
async def test_a_mistake_in_the_loop_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with Bench() as bench:
        follower = SmallFollower()
        bench.leaders[0].lead(follower, [0])
        position, broken = follower.fetch_position, [True]

        def stumbles() -> tuple[int, int, int]:
            if broken:
                broken.clear()
                raise RuntimeError("a mistake")
            return position()

        follower.fetch_position = stumbles  # type: ignore[method-assign]
        bench.fetchers.follow(follower)
        await reached(follower, 1)
        assert "a mistake" in caplog.text


@on_loop
async def test_metrics_show_what_was_done() -> None:
    async with Bench() as bench:
        metrics = Metrics()
        bench.fetchers.watch(metrics)
        follower = bench.follow(records=7)
        await reached(follower, 7)
        text = metrics.render().decode()
        assert 'fleetlog_replica_fetcher{what="records"} 7.0' in text
        assert f'fleetlog_replica_fetcher{{what="bytes"}} {7 * 12}.0' in text
        assert "fleetlog_followers 1.0" in text
        assert "fleetlog_replica_max_lag 0.0" in text


@on_loop
async def test_a_failed_log_is_not_followed() -> None:
    async with Bench() as bench:
        follower = SmallFollower()
        bench.leaders[0].lead(follower, [0])
        follower.log.offline = True
        bench.fetchers.follow(follower)
        await turns()
        assert bench.fetchers.leaders() == {}
        assert bench.wire.fetches == []


@on_loop
async def test_after_close_no_leader_is_followed() -> None:
    bench = Bench()
    bench.follow(records=1)
    await bench.fetchers.close()
    assert bench.wire.closed
    bench.follow(partition=1, records=1)
    await turns()
    assert bench.fetchers.leaders() == {}
    assert bench.wire.in_flight == 0
