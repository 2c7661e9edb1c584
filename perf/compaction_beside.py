"""``perf compaction --produce``: latency of produce beside passes of compaction, and without, in turn.

In each round a topic is filled while its policy is ``delete``; an open loop produces to another topic, once while
nothing else goes on and once while a pass goes on, which begins when the window does. ``--megabytes`` must be enough
for a pass as long as the window: what a round says of its pass shows whether it was. Clusters take turns, so that all
see the same noise; the last line of each is over the requests of all rounds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from perf.compaction_peers import EAGER, MB, QUIET_S, SEGMENT_BYTES, TOPIC, alter, closed_bytes, fill_topic
from perf.generator import Latency
from perf.load import KIB, Load, Pace, Prepared, merged
from perf.targets import Cluster
from perf.targets.fleetlog import Fleetlog
from perf.targets.kafka import Kafka

WARMUP_S = 1.0
FINISH_S = 120.0
PACED = Load("paced produce 16 KiB", batch_bytes=16 * KIB, connections=16)


class Beside(NamedTuple):
    """One round of one cluster: latencies without and during a pass, and how long that was seen to change files."""

    without: Latency
    during: Latency
    before_bytes: int
    after_bytes: int
    pass_s: float

    def line(self) -> str:
        """For people."""
        without, during = self.without.percentile_ms(99), self.during.percentile_ms(99)
        return (
            f"p99 {without:7.2f} ms without, {during:7.2f} ms during ({during / without:4.2f}), p50"
            f" {self.without.percentile_ms(50):6.2f} and {self.during.percentile_ms(50):6.2f} ms; the pass:"
            f" {self.before_bytes / MB:5.0f} MB to {self.after_bytes / MB:5.1f} MB in {self.pass_s:4.1f} s"
        )


def compare_produce(
    megabytes: int, keys: int, rate: float, rounds: int, window_s: float, *, kafka: bool, trees: Sequence[Path]
) -> None:
    """Measure and print. Raises TargetError."""
    clusters: list[Cluster] = [Fleetlog(**EAGER)]
    clusters += [Fleetlog(tree=tree.resolve(), label=tree.name, **EAGER) for tree in trees]
    if kafka:
        clusters.append(Kafka(**EAGER))
    print(f"{rate:.0f} requests/s of {PACED.batch_bytes} bytes for {window_s:.0f} s; passes over {megabytes} MB")
    found: dict[str, list[Beside]] = {cluster.label: [] for cluster in clusters}
    with contextlib.ExitStack() as running:
        for cluster in clusters:
            running.enter_context(cluster.running())
            cluster.create_topic(TOPIC, cleanup_policy="delete", segment_bytes=SEGMENT_BYTES)
            Prepared(cluster, PACED).run(Pace(0.5, 1.0, rate))
        for number in range(rounds):
            for cluster in clusters:
                one = _round(cluster, megabytes, keys, Pace(WARMUP_S, window_s, rate), number)
                found[cluster.label].append(one)
                print(f"  {cluster.label:<12} round {number + 1}: {one.line()}", flush=True)
    for label, results in found.items():
        without = merged([one.without for one in results])
        during = merged([one.during for one in results])
        ratios = sorted(one.during.percentile_ms(99) / one.without.percentile_ms(99) for one in results)
        print(
            f"  {label:<12} all rounds: p99 {without.percentile_ms(99):.2f} ms without, {during.percentile_ms(99):.2f}"
            f" ms during: {during.percentile_ms(99) / without.percentile_ms(99):.2f}; median of the rounds' ratios"
            f" {ratios[len(ratios) // 2]:.2f}"
        )


def _round(cluster: Cluster, megabytes: int, keys: int, pace: Pace, number: int) -> Beside:
    fill_topic(cluster, megabytes, keys, seed=number)
    time.sleep(QUIET_S)  # what was written is flushed
    without = during = Latency([])
    for which in ("without", "during") if number % 2 else ("during", "without"):
        if which == "without":
            without = _latency(cluster, pace)
            continue
        before = closed_bytes(cluster)
        watching = _PassWatch(cluster, pace)
        watching.start()
        during = _latency(cluster, pace)
        watching.join()
        after = closed_bytes(cluster)
        _wait_for_pass(cluster, before)
        alter(cluster, "delete")
        time.sleep(QUIET_S)
    return Beside(without, during, before, after, watching.changed_s)


def _wait_for_pass(cluster: Cluster, before: int) -> None:
    """Otherwise the next round's pass is longer, and that of a slow cluster ever longer."""
    until = time.monotonic() + FINISH_S
    while closed_bytes(cluster) > before // 2 and time.monotonic() < until:
        time.sleep(0.2)


def _latency(cluster: Cluster, pace: Pace) -> Latency:
    return merged([flow.latency for flow in Prepared(cluster, PACED).run(pace).flows])


class _PassWatch(threading.Thread):
    """Begins a pass when the window begins, and looks how long files change."""

    def __init__(self, cluster: Cluster, pace: Pace) -> None:
        super().__init__(daemon=True)
        self.changed_s = 0.0
        self._cluster, self._pace = cluster, pace

    def run(self) -> None:
        """Until the window ends."""
        time.sleep(self._pace.warmup_s)
        began, size = time.monotonic(), closed_bytes(self._cluster)
        alter(self._cluster, "compact")
        while time.monotonic() < began + self._pace.measure_s:
            time.sleep(0.1)
            found = closed_bytes(self._cluster)
            if found != size:
                size, self.changed_s = found, time.monotonic() - began
