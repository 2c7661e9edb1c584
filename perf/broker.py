"""``perf broker``: a whole broker with the Cython kernels beside one with their pure twins."""

from __future__ import annotations

from perf.load import KIB, Load
from perf.options import Options
from perf.results import Results
from perf.rounds import interleave, warm

LOADS = (
    Load("produce 1 KiB", batch_bytes=KIB),
    Load("produce 16 KiB", batch_bytes=16 * KIB),
    Load("produce 16 KiB of 100 B records", batch_bytes=16 * KIB, record_bytes=100),
    Load("produce 128 KiB", batch_bytes=128 * KIB),
    Load("fetch 64 KiB", fetch=True, batch_bytes=16 * KIB, max_bytes=64 * KIB),
    Load("fetch 1 MiB", fetch=True, batch_bytes=16 * KIB),
)


def run(options: Options) -> Results:
    """Both in turns."""
    results = Results.begin("broker", rounds=options.rounds, seconds=options.measure_s)
    loads = [load for load in LOADS if options.wanted(load.name)]
    with (
        options.fleetlog(native="cython", label="cython").running() as fast,
        options.fleetlog(native="pure", label="pure").running() as pure,
    ):
        for cluster in (fast, pure):
            warm(cluster, loads, 0.3, 2.0)
        interleave(results, [fast, pure], loads, options.pace, options.rounds)
    return results
