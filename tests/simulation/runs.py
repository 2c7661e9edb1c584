"""Many seeds on several processes, and how a run is shown."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import signal
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.simulation.faults import WEIGHTS
from tests.simulation.invariants import INVARIANTS
from tests.simulation.world import Report, World

ENOUGH, FIRED, CHECKED = 2_000, 10, 100
"""From so many runs on, each kind of fault must have happened, and each invariant been checked, so often."""


CPU_S = 120.0
"""What one history may take, a hundred times what most do: virtual time stands still in a callback that never ends."""


class Endless(BaseException):
    """A history that takes too long, raised where it is: no handler of the code under test takes it for its own."""


@contextlib.contextmanager
def bounded(cpu_s: float) -> Iterator[None]:
    """Raises :class:`Endless` in the block after so much of this process's CPU time. Main thread only."""

    def stop(_signal: int, _frame: object) -> None:
        raise Endless(f"this history has taken {cpu_s:g} s of CPU, and a callback of it does not end")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_seed(seed: int) -> Report:
    """One seed, on this process."""
    gc.disable()
    try:
        with bounded(CPU_S):
            report = World(seed).run()
    except Endless:  # between two callbacks; one that does not end is among the world's errors
        report = Report(seed, errors=[traceback.format_exc()])
    gc.enable()
    gc.collect()  # a world is one heap of cycles
    return report


def run_seeds(seeds: Iterable[int], jobs: int = 1) -> Iterator[Report]:
    """The seeds' reports, in any order. Each world is thrown away as soon as it is over."""
    gc.collect()
    gc.freeze()
    if jobs <= 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=4)


def story(report: Report) -> str:
    """What went wrong and what led to it, and how to see it again."""
    lines = [f"seed {report.seed} after {report.virtual_s:.1f} virtual s:"]
    lines += [f"  VIOLATION {text}" for text in report.violations]
    lines += [f"  ERROR {text}" for text in report.errors[:5]]
    lines += [
        f"again, with everything that is logged: python -m tests.simulation {report.again} --trace",
        "it ended so:",
    ]
    return "\n".join([*lines, *(f"  {line}" for line in report.trace)])


class Summary:
    """What many runs came to."""

    def __init__(self) -> None:
        self.runs = 0
        self.steps = 0
        self.failed: list[int] = []
        self.checked: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def add(self, report: Report) -> None:
        self.runs += 1
        self.steps += report.steps
        self.checked += report.checked
        self.faults += report.faults
        if not report.ok:
            self.failed.append(report.seed)

    def thin(self) -> list[str]:
        """What so many runs should have shown more often. Without it they were good about nothing."""
        if self.runs < ENOUGH:
            return []
        rare = [f"{kind!r} happened {self.faults[kind]} times" for kind in WEIGHTS if self.faults[kind] < FIRED]
        return rare + [
            f"{kind!r} was checked {self.checked[kind]} times" for kind in INVARIANTS if self.checked[kind] < CHECKED
        ]

    def lines(self) -> list[str]:
        """For people."""

        def listed(counter: Counter[str]) -> str:
            return ", ".join(f"{count} {what}" for what, count in counter.most_common())

        failed = f", {len(self.failed)} of them FAILED: {sorted(self.failed)}" if self.failed else ", all good"
        return [
            f"{self.runs} seeds, {self.steps} steps{failed}",
            f"  checked: {listed(self.checked)}",
            f"  faults: {listed(self.faults)}",
        ]
