"""``perf floor``: a broker beside the C program that does the least possible, for the ratio to the machine's limit."""

from __future__ import annotations

from perf.load import KIB, MIB, Load
from perf.options import Options
from perf.results import Results
from perf.rounds import interleave, warm
from perf.targets.floor import Floor

LOADS = (
    Load("produce 1 KiB", batch_bytes=KIB, connections=8, depth=16),
    Load("produce 16 KiB", batch_bytes=16 * KIB, connections=8, depth=8),
    Load("produce 128 KiB", batch_bytes=128 * KIB, connections=8, depth=4),
    Load("produce 1 MiB", batch_bytes=MIB, connections=4, depth=2),
    Load("fetch 1 MiB", fetch=True, batch_bytes=16 * KIB, connections=4),
)
"""As fast as it goes: many requests under way."""


def run(options: Options) -> Results:
    """Floor and fleetlog in turns."""
    results = Results.begin("floor", rounds=options.rounds, seconds=options.measure_s)
    loads = [load for load in LOADS if options.wanted(load.name)]
    with Floor(options.directory).running() as floor, options.fleetlog().running() as fleetlog:
        warm(fleetlog, loads, 0.5, 2.0)
        interleave(results, [floor, fleetlog], loads, options.pace, options.rounds)
    return results
