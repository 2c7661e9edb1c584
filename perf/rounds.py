"""Interleaved runs: each round runs every case on every cluster, in turns, so that a noisy minute hits all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from perf.generator import GeneratorError
from perf.load import Load, Pace, Prepared, numbers
from perf.results import Results
from perf.targets import Cluster

ENOUGH = 40_000


def warm(cluster: Cluster, loads: Sequence[Load], seconds: float, at_most_s: float = 30.0) -> int:
    """Run every load without counting; returns how many requests that were.

    A JVM compiles what is used often, so it takes requests, not time: the first load is run until it had ``ENOUGH`` of
    them or ``at_most_s`` are over, which a machine without free cores needs; the others until a request costs no less
    than in the run before.
    """
    requests = 0
    for place, load in enumerate(loads):
        prepared = Prepared(cluster, load)
        started, before, done = time.monotonic(), math.inf, 0
        while time.monotonic() - started < at_most_s:
            result = prepared.run(Pace(0.3, seconds))
            done += result.requests
            cost = numbers(result, load)["cpu_us_request"]
            if cost > 0.9 * before and (place or done >= ENOUGH):
                break
            before = cost
        requests += done
        if load.fetch:
            prepared.close()
    return requests


def _lag(before: dict[float, int], after: dict[float, int]) -> dict[str, float]:
    """Below which bound of its histogram the event loop's lag was meanwhile, but for one look in a thousand."""
    looks = max((after[bound] - before.get(bound, 0) for bound in after), default=0)
    enough = [bound for bound in after if after[bound] - before.get(bound, 0) >= looks * 0.999]
    return {"lag_ms": min(enough)} if looks else {}


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
                lags = one.cluster.loop_lags()
                try:
                    row = numbers(one.run(pace), load)
                except GeneratorError as error:
                    raise GeneratorError(f"{load.name} on {one.cluster.label}: {error}") from error
                results.add(load.name, one.cluster.label, row | _lag(lags, one.cluster.loop_lags()), round_=round_)
        for one in prepared:
            if load.fetch:
                one.close()
