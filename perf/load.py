"""A load on a cluster: which requests, over how many connections; and what one run of it measures."""

from __future__ import annotations

import itertools
import socket
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from perf import generator
from perf.generator import Flow, Latency, Result
from perf.generator.frames import Frame, batch_of, fetch_frame, produce_frame
from perf.targets import Address, Cluster, TargetError

KIB, MIB = 1024, 1024 * 1024
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Load:
    """Produce (``fetch`` False), or Fetch of data that was written before and is read over and over.

    ``depth``: requests under way on each connection of a closed loop; a fetch always has one.
    """

    name: str
    fetch: bool = False
    batch_bytes: int = 16 * KIB
    record_bytes: int = KIB
    partitions: int = 4
    connections: int = 4
    depth: int = 8
    replicas: int = 1
    max_bytes: int = MIB
    hot_bytes: int = 64 * MIB


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to run; ``rate`` in requests per second makes it an open loop."""

    warmup_s: float = 1.0
    measure_s: float = 3.0
    rate: float = 0.0


class Prepared:
    """A load with its topic on a cluster. Produce gets a new topic for every run, so that the disk stays small."""

    def __init__(self, cluster: Cluster, load: Load) -> None:
        self.cluster, self.load = cluster, load
        self._batch, self._records = batch_of(load.batch_bytes, load.record_bytes)
        self._topic = ""
        if load.fetch:
            self._topic = self._new_topic()
            self._fill()

    def run(self, pace: Pace) -> Result:
        """Once. Raises GeneratorError when an answer was wrong."""
        if not self.load.fetch:
            self._topic = self._new_topic()
        try:
            return generator.run(
                self._flows(pace.rate), pids=self.cluster.pids, warmup_s=pace.warmup_s, measure_s=pace.measure_s
            )  # fmt: skip
        finally:
            if not self.load.fetch:
                self.close()

    def close(self) -> None:
        """Remove the topic."""
        self.cluster.delete_topic(self._topic)

    def _new_topic(self) -> str:
        name = f"perf-{next(_numbers)}"
        self.cluster.create_topic(name, self.load.partitions, self.load.replicas, max_message_bytes=4 * MIB)
        return name

    def _flows(self, rate: float) -> list[Flow]:
        """One flow for each broker that leads partitions."""
        load = self.load
        by_leader: dict[Address, list[int]] = {}
        for number, address in sorted(self.cluster.leaders(self._topic).items()):
            by_leader.setdefault(address, []).append(number)
        flows = []
        for place, (address, numbers) in enumerate(sorted(by_leader.items())):
            share = len(numbers) / load.partitions
            flows.append(
                Flow(
                    f"{'fetch' if load.fetch else 'produce'}-{place}",
                    *address,
                    [self._frame(number) for number in numbers],
                    connections=max(1, round(load.connections * share)),
                    depth=0 if rate else 1 if load.fetch else load.depth,
                    rate=rate * share,
                )
            )
        return flows

    def _frame(self, partition: int) -> Frame:
        load = self.load
        if not load.fetch:
            return produce_frame(self._topic, partition, self._batch)
        return fetch_frame(
            self._topic, partition, batch_bytes=len(self._batch), batch_records=self._records,
            max_bytes=load.max_bytes, wrap=self._filled() * self._records,
        )  # fmt: skip

    def _filled(self) -> int:
        """Batches in each partition: whole answers, so that every fetch brings as much."""
        per_answer = max(1, self.load.max_bytes // len(self._batch))
        return max(1, self.load.hot_bytes // self.load.partitions // len(self._batch) // per_answer) * per_answer

    def _fill(self) -> None:
        for partition, address in sorted(self.cluster.leaders(self._topic).items()):
            send_all(address, produce_frame(self._topic, partition, self._batch), self._filled())


def send_all(address: Address, frame: Frame, count: int) -> None:
    """Send a frame ``count`` times and read every answer. Raises TargetError for an answer with an error."""
    send_frames(address, itertools.repeat(frame, count))


def send_frames(address: Address, frames: Iterable[Frame], window: int = 4) -> None:
    """Send each and read every answer, so many under way. Raises TargetError for an answer with an error."""
    waiting: deque[Frame] = deque()
    with socket.create_connection(address, timeout=60) as sock, sock.makefile("rb") as answers:

        def expect_none() -> None:
            at = waiting.popleft().error_at
            size = int.from_bytes(answers.read(4), "big")
            error = int.from_bytes(answers.read(size)[at : at + 2], "big")
            if error:
                raise TargetError(f"a Produce was answered with error code {error}")

        for frame in frames:
            sock.sendall(frame.data)
            waiting.append(frame)
            if len(waiting) > window:
                expect_none()
        while waiting:
            expect_none()


def numbers(result: Result, load: Load) -> dict[str, Any]:
    """One run as a row of results. CPU is that of all the cluster's processes, the generator's is separate."""
    requests = result.requests
    payload = sum(flow.payload_bytes for flow in result.flows)
    latency = merged([flow.latency for flow in result.flows])
    return {
        "requests_s": requests / result.seconds,
        "mb_s": payload / result.seconds / 1e6,
        "cpu_us_request": result.cpu_s / requests * 1e6,
        "requests_cpu_s": requests / result.cpu_s if result.cpu_s else float("nan"),
        "cpu_s_gb": result.cpu_s / payload * 1e9 if payload else float("nan"),
        "cores": result.cpu_s / result.seconds,
        "p50_ms": latency.percentile_ms(50),
        "p99_ms": latency.percentile_ms(99),
        "p999_ms": latency.percentile_ms(99.9),
        "rss_mib": sum(process.rss_kib for process in result.processes) / 1024,
        "generator_us_request": result.self_cpu_s / requests * 1e6,
        "others_cores": result.others_share,
        "unanswered": sum(flow.unanswered for flow in result.flows),
    }


def merged(latencies: list[Latency]) -> Latency:
    """All of them as one."""
    counts: dict[int, int] = {}
    for latency in latencies:
        for value, count in latency.counts:
            counts[value] = counts.get(value, 0) + count
    return Latency(sorted(counts.items()))
