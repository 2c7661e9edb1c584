"""Interleaved runs: each round runs every case on every cluster, in turns, so that a noisy minute hits all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from perf.generator import GeneratorError
from perf.load import Load, Pace, Prepared, numbers
from perf.results import Results
from perf.targets import Cluster

MOST_RUNS = 8


def warm(cluster: Cluster, loads: Sequence[Load], seconds: float) -> float:
    """Run every load without counting until a request costs no less than before; returns the seconds it took.

    A JVM compiles what is used often, so it takes requests, not time: each run lasts ``seconds``, and the next follows
    while it was cheaper by a tenth than the one before, ``MOST_RUNS`` times at most.
    """
    started = time.monotonic()
    for load in loads:
        prepared = Prepared(cluster, load)
        before = math.inf
        for _ in range(MOST_RUNS):
            cost = numbers(prepared.run(Pace(0.3, seconds)), load)["cpu_us_request"]
            if cost > 0.9 * before:
                break
            before = cost
        if load.fetch:
            prepared.close()
    return time.monotonic() - started


def interleave(
    results: Results,
    clusters: Sequence[Cluster],
    loads: Sequence[Load],
    pace: Pace,
    rounds: int,
) -> None:
    """Add a row for each load, cluster and round. The order of the clusters alternates."""
    for load in loads:
        prepared = [Prepared(cluster, load) for cluster in clusters]
        for round_ in range(rounds):
            for one in prepared if round_ % 2 == 0 else reversed(prepared):
                try:
                    row = numbers(one.run(pace), load)
                except GeneratorError as error:
                    raise GeneratorError(f"{load.name} on {one.cluster.label}: {error}") from error
                results.add(load.name, one.cluster.label, row, round_=round_)
        for one in prepared:
            if load.fetch:
                one.close()
