"""Interleaved runs: each round runs every case on every cluster, in turns, so that a noisy minute hits all of them."""

from __future__ import annotations

from collections.abc import Sequence

from perf.generator import GeneratorError
from perf.load import Load, Pace, Prepared, numbers
from perf.results import Results
from perf.targets import Cluster


def warm(cluster: Cluster, loads: Sequence[Load], seconds: float) -> None:
    """Run every load for a while without counting: a JVM compiles what is used often."""
    for load in loads:
        prepared = Prepared(cluster, load)
        prepared.run(Pace(0.3, seconds))
        if load.fetch:
            prepared.close()


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
