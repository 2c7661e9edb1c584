"""A scrape of a broker with 10,000 partitions, and of a group with as many, lets the loop move again and again.

``python -m tests.system.test_scrape`` measures on such a broker, as a process, for how long scrapes hold its loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers import app
from fleetlog.brokers.config import BrokerConfig, load_config
from fleetlog.brokers.coordinators.lags import LagWatch
from fleetlog.brokers.metrics.exposition import Exposition
from fleetlog.coordination.ensemble import start_local
from fleetlog.coordination.ports import free_ports
from fleetlog.wire.errors import ErrorCode
from tests.support.bytecodes import Bytecodes, CpuTimes, Steps, in_steps
from tests.support.fleet import says_ready
from tests.support.harness import Client
from tests.support.loopwatch import slower
from tests.support.waiting import eventually

TOPICS, PARTITIONS = 100, 100
GROUP = "wide"
TIMES = 5
BYTECODES_PER_TURN = 50_000
"""Some 2 ms of a slow core."""


def fill(port: int) -> None:
    """Make 10,000 partitions with a record each, and a group with an offset in each of them."""
    client = Client(port)
    client.sock.settimeout(120)
    names = [f"many-{number}" for number in range(TOPICS)]
    topic = m.CreateTopicsRequest.CreatableTopic
    create = m.CreateTopicsRequest(
        topics=[
            topic(name=name, num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[])
            for name in names
        ],
        timeout_ms=120_000, validate_only=False,
    )  # fmt: skip
    eventually(
        lambda: {one.error_code for one in client.ask(create, 5).topics}, "the topics are created", 120,
        good=lambda errors: errors <= {0, ErrorCode.TOPIC_ALREADY_EXISTS},
    )  # fmt: skip
    batch = encode_batch([Record(0, int(time.time() * 1000), b"k", b"v", ())])
    produce, commit = m.ProduceRequest, m.OffsetCommitRequest
    for name in names:
        to = produce.TopicProduceData(
            name=name,
            partition_data=[
                produce.TopicProduceData.PartitionProduceData(index=index, records=batch) for index in range(PARTITIONS)
            ],
        )
        request = produce(transactional_id=None, acks=1, timeout_ms=30_000, topic_data=[to])
        eventually(
            lambda request=request: _errors(client.ask(request, 7).responses), f"records in {name}", 60, good=_none
        )
    find = m.FindCoordinatorRequest(key=GROUP, key_type=0)
    eventually(lambda: client.ask(find, 1).error_code, "the group has a coordinator", 60, good=lambda error: error == 0)
    offsets = commit(
        group_id=GROUP, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=[
            commit.OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    commit.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=0, committed_leader_epoch=-1, committed_metadata="",
                    )
                    for index in range(PARTITIONS)
                ],
            )
            for name in names
        ],
    )  # fmt: skip
    eventually(lambda: _errors(client.ask(offsets, 7).topics), "the group has offsets", 60, good=_none)
    client.close()


def _errors(topics: Iterable[Any]) -> set[int]:
    return {
        one.error_code
        for topic in topics
        for one in (topic.partitions if hasattr(topic, "partitions") else topic.partition_responses)
    }


def _none(errors: set[int]) -> bool:
    return errors == {0}


def settings(directory: Path, zookeeper: str) -> dict[str, str]:
    port, admin = free_ports(2)
    return {
        "broker.id": "1", "listeners": f"PLAINTEXT://127.0.0.1:{port}", "admin.listener": f"127.0.0.1:{admin}",
        "log.dirs": str(directory / "data"), "zookeeper.connect": zookeeper, "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.replication.factor": "1", "group.lag.interval.ms": "3600000",
    }  # fmt: skip


async def counted(page: Exposition) -> dict[str, list[int]]:
    """Of each of a page's sources, what it executes at one go."""
    found: dict[str, list[int]] = {}
    for source in list(page.sources):
        counter = Bytecodes()
        page.sources = [lambda source=source, counter=counter: in_steps(source(), counter)]
        await page.collect()
        found[f"{len(found)} {getattr(source, '__qualname__', repr(source))}"] = counter.counted
    return found


@pytest.mark.zookeeper
@pytest.mark.slow
def test_nothing_that_a_scrape_reads_is_read_at_one_go(connect: str, tmp_path: Path) -> None:
    found: dict[str, list[int]] = {}

    async def scenario() -> None:
        config = load_config(overrides=settings(tmp_path, connect))
        broker = app.Broker(config, asyncio.get_running_loop())
        await broker.start()
        try:
            await asyncio.to_thread(fill, config.listener_endpoints()[0].port)
            services = broker._node.services  # type: ignore[union-attr]
            assert services is not None
            assert services.lags is not None
            for path, page in broker._metrics.pages.items():
                found.update({f"{path} {name}": steps for name, steps in (await counted(page)).items()})
            await _round(services.lags, found)
        finally:
            await broker.stop()

    asyncio.run(scenario())
    assert len(found) > 20
    longest = {name: max(steps) for name, steps in found.items()}
    assert sum(map(sum, found.values())) > 100 * BYTECODES_PER_TURN, longest
    too_long = {name: steps for name, steps in longest.items() if steps > BYTECODES_PER_TURN}
    assert not too_long


async def _round(lags: LagWatch, found: dict[str, list[int]]) -> None:
    """Two rounds: the first looks up the time of each record, the second knows them."""
    for what in ("the first round of the lag watch", "the second one"):
        counter = Bytecodes()
        await Steps(lags.round(), counter)
        assert len(lags.groups[GROUP].partitions) == TOPICS * PARTITIONS
        found[what] = counter.counted


# ---- measured, by hand


class Probe:
    """Takes part in every turn of a loop: how long the other callbacks of each took."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def held_ms(self, work: Callable[[], object]) -> tuple[float, float, int, float]:
        """While ``work`` is done in this thread: the longest turn in CPU time and in wall time, in ms, and the turns.

        The CPU time is told for the machine of ``tests.support.loopwatch``, and last how much slower this one is.
        """
        ended, longest, turns = threading.Event(), [0.0, 0.0], 0
        factors = []

        async def watch() -> None:
            nonlocal turns
            factors.append(slower())
            cpu, wall = time.thread_time(), time.perf_counter()
            while not ended.is_set():
                await asyncio.sleep(0)
                now_cpu, now_wall = time.thread_time(), time.perf_counter()
                longest[:] = max(longest[0], now_cpu - cpu), max(longest[1], now_wall - wall)
                cpu, wall = now_cpu, now_wall
                turns += 1
            factors.append(slower())

        watching = asyncio.run_coroutine_threadsafe(watch(), self._loop)
        work()
        ended.set()
        watching.result()
        return 1000 * longest[0] / max(factors), 1000 * longest[1], turns, max(factors)


def measure(config: BrokerConfig, brokers: list[app.Broker]) -> None:
    """In a thread beside the broker's loop: print how long it is held, then stop it."""
    try:
        eventually(lambda: says_ready(config.admin_endpoint()[1]), "the broker is ready", 60)
        fill(config.listener_endpoints()[0].port)
        broker = brokers[0]
        probe, services = Probe(broker._loop), broker._node.services  # type: ignore[union-attr]
        assert services is not None
        lags = services.lags
        assert lags is not None
        steps, named = CpuTimes(), dict[str, CpuTimes]()
        for path, page in broker._metrics.pages.items():
            for index, source in enumerate(page.sources):
                one = named[f"{path} {index} {getattr(source, '__qualname__', source)}"] = CpuTimes(steps.counted)
                page.sources[index] = lambda source=source, one=one: in_steps(source(), one)

        async def lag_round() -> None:
            await Steps(lags.round(), steps)

        works: dict[str, Callable[[], object]] = {"two idle seconds": lambda: time.sleep(2)}
        for path in broker._metrics.pages:
            url = f"http://{config.admin_listener}{path}"
            works[f"a scrape of {path}"] = lambda url=url: urlopen(url, timeout=60).read()
        works["a round of lag"] = lambda: asyncio.run_coroutine_threadsafe(lag_round(), broker._loop).result()
        for name, work in works.items():
            for _ in range(TIMES):
                steps.counted.clear()
                cpu, wall, turns, slower = probe.held_ms(work)
                own = sorted(one / slower for one in steps.counted) or [0.0]
                most = own[len(own) * 99 // 100]
                print(
                    f"{name}: {len(own)} steps, the longest {own[-1]:.1f} ms, 99 % within {most:.1f}; {turns} turns of "
                    f"the loop, the longest {cpu:.1f} ms CPU, {wall:.1f} by the clock; {slower:.1f} times slower"
                )
        for name, one in sorted(named.items(), key=lambda pair: -max(pair[1].mine, default=0))[:5]:
            print(f"the longest step of {name}: {max(one.mine, default=0):.1f} ms, not told for another machine")
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """See the module."""
    brokers: list[app.Broker] = []

    class Kept(app.Broker):
        async def start(self) -> None:
            brokers.append(self)
            await super().start()

    with tempfile.TemporaryDirectory(prefix="scrape-") as name:
        node = start_local(Path(name) / "zookeeper")
        try:
            config = load_config(overrides=settings(Path(name), node.address))
            app.Broker = Kept  # type: ignore[misc]
            threading.Thread(target=measure, args=(config, brokers)).start()
            app.run(config)
        finally:
            node.close()


if __name__ == "__main__":
    main()
