"""``perf peers``: fleetlog beside Apache Kafka on one machine, with the same generator, the same topics, in turns.

Beside one broker each, the C program of ``perf floor`` runs the same loads: what it needs is the machine's share.
With ``--brokers 3`` three brokers each, topics with three replicas; the CPU and memory are those of all three.

With ``--tree`` the brokers of another source tree take Kafka's place, and the results are printed but not kept.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from perf import clients, secured
from perf.build import ROOT
from perf.load import KIB, Load, Pace, Prepared, numbers
from perf.options import Options
from perf.results import Results
from perf.rounds import interleave, warm
from perf.targets import Cluster
from perf.targets.floor import Floor
from perf.targets.kafka import Kafka, version

WARMUP_S = 4.0
SETTLE_S = 5.0
LOADED_PARTITIONS = 1000
PACED_SECONDS = 6.0

LOADS = (
    Load("produce 1 KiB", batch_bytes=KIB),
    Load("produce 16 KiB", batch_bytes=16 * KIB),
    Load("produce 128 KiB", batch_bytes=128 * KIB),
    Load("produce at full speed", batch_bytes=128 * KIB, connections=8),
    Load("fetch 64 KiB", fetch=True, batch_bytes=16 * KIB, max_bytes=64 * KIB),
    Load("fetch 1 MiB", fetch=True, batch_bytes=16 * KIB),
)
PACED = Load("paced produce 16 KiB", batch_bytes=16 * KIB, connections=16)


def run(options: Options) -> Results:
    """Everything that ``--only`` does not leave out."""
    if options.secured:
        return secured.run(options)
    replicas = options.brokers
    suite = "peers" if replicas == 1 else f"peers-{replicas}"
    about = {} if options.compares_trees else {"kafka": version()}
    results = Results.begin(suite, rounds=options.rounds, seconds=options.measure_s, **about)
    if options.wanted("start") and replicas == 1:
        _starts(results, options)
    loads = [replace(load, replicas=replicas) for load in LOADS if options.wanted(load.name)]
    if replicas > 1:
        loads = [load for load in loads if not load.fetch]
    with contextlib.ExitStack() as stack:
        clusters: tuple[Cluster, ...] = tuple(stack.enter_context(one.running()) for one in compared(options))
        measured = clusters
        if replicas == 1:
            measured = (*clusters, stack.enter_context(Floor(options.directory).running()))
        time.sleep(SETTLE_S)
        if options.wanted("memory"):
            _memory(results, clusters, "idle")
        _warm(results, options, clusters, loads)
        interleave(results, measured, loads, options.pace, options.rounds)
        if options.wanted("paced"):
            _paced(results, measured, replace(PACED, replicas=replicas), options)
        if options.wanted("clients"):
            for cluster in clusters:
                clients.run(results, cluster, options, replicas)
        if options.wanted("memory") and replicas == 1:
            _loaded(results, clusters)
    return results


def compared(options: Options) -> Iterator[Cluster]:
    """The clusters side by side, not yet started: the one to compare with, then fleetlog of this tree."""
    if options.compares_trees:
        yield options.fleetlog(options.brokers, label="other tree")
    else:
        yield Kafka(options.brokers, options.directory)
    yield options.fleetlog(options.brokers, tree=ROOT)


def _warm(results: Results, options: Options, clusters: tuple[Cluster, ...], loads: list[Load]) -> None:
    """Both until they are steady."""
    seconds = WARMUP_S / 2 if options.short else WARMUP_S
    names = ("produce 1 KiB", "produce 128 KiB", "fetch 64 KiB", "fetch 1 MiB")
    representative = [load for load in loads if load.name in names] or loads
    for cluster in clusters:
        results.about[f"{cluster.label}_warmed_up_by"] = warm(cluster, representative, seconds, 10 * seconds)


def _paced(results: Results, clusters: tuple[Cluster, ...], load: Load, options: Options) -> None:
    """All at half of what the first can do, by the clock."""
    most = [numbers(Prepared(clusters[0], load).run(Pace(0.5, 2.0)), load)["requests_s"] for _ in range(2)]
    rate = max(most) / 2
    results.about["paced_rate"] = rate
    seconds = PACED_SECONDS / 2 if options.short else PACED_SECONDS
    interleave(results, clusters, [load], Pace(options.warmup_s, seconds, rate), options.rounds)


def _memory(results: Results, clusters: tuple[Cluster, ...], when: str) -> None:
    for cluster in clusters:
        results.add(f"memory, {when}", cluster.label, {"rss_mib": rss_mib(cluster)})


def _loaded(results: Results, clusters: tuple[Cluster, ...]) -> None:
    """1,000 partitions with some data in each."""
    load = Load("loaded", batch_bytes=KIB, partitions=LOADED_PARTITIONS, connections=8, depth=4)
    for cluster in clusters:
        prepared = Prepared(cluster, load)
        prepared.run(Pace(0.5, 3.0))
    _memory(results, clusters, f"{LOADED_PARTITIONS} partitions loaded")


def _starts(results: Results, options: Options) -> None:
    """From the process's start to its first answer; ZooKeeper is up, Kafka's directory is formatted."""
    for round_ in range(min(3, options.rounds)):
        for cluster in compared(options):
            with cluster.running():
                (broker,) = cluster.brokers
                broker.end()
                started = time.monotonic()
                cluster.launch(broker)
                cluster.wait_serving(broker, poll_s=0.005)
                results.add("start", cluster.label, {"start_s": time.monotonic() - started}, round_=round_)


def rss_mib(cluster: Cluster) -> float:
    """Memory of all the cluster's processes that is theirs alone: files' pages are the page cache's (docs/adr/0010)."""
    return sum(_kib(pid, "RssAnon:") for pid in cluster.pids) / 1024


def _kib(pid: int, name: str) -> int:
    def lines() -> Iterator[str]:
        yield from Path(f"/proc/{pid}/status").read_text().splitlines()

    return next(int(line.split()[1]) for line in lines() if line.startswith(name))
