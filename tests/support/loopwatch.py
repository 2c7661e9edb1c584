"""A broker that says how long its loop was held: ``python -m tests.support.loopwatch broker CONFIG``.

A probe runs on the loop every few milliseconds. What the loop's thread has computed between two of them is how long it
was held: CPU time, so that a machine with other work to do makes no difference. The figures stand in a file beside the
configuration that the test maps.

CPU time is still longer on a slow machine, and on a core that shares its units and caches with a busy one. So the
loop's thread does a fixed piece of Python work, of the kind that requests are, whenever the figures begin anew: before
each request and behind it. A hold is told in milliseconds of a machine that needs ``PIECE_MS`` for that piece: the time
measured, divided by how much slower than that the thread was before or behind it, whichever was slower.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.fleet import Broker

PROBE_S = 0.004
TURN_LIMIT_S = 120.0
FIGURES = struct.Struct("=dddddd")
"""Asked resets, done resets, longest hold (CPU s), longest hold (wall s), the loop's CPU time (s), of it per piece."""
PIECE_MS = 1.25
"""What the piece of work takes on the machine whose milliseconds the bounds are: 2 cores of a server of about 2020."""
PIECE_ROWS = 2_000
ROW = struct.Struct(">hihq")
RESET = struct.Struct("=d")
FOUND = struct.Struct("=ddddd")
"""The same without the first, which only the test writes: else the broker could undo a reset it has not seen."""


class Figures:
    """The mapped file, as the test sees it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), FIGURES.size)
        self.last = (0.0, 0.0)
        self.slower = 1.0
        """How much longer the loop's thread needs for its work than the machine of the bounds, as of the last reset."""

    def reset(self) -> None:
        """Begin anew, and wait until the broker has."""
        wanted = FIGURES.unpack_from(self._map)[0] + 1
        RESET.pack_into(self._map, 0, wanted)
        eventually(
            lambda: FIGURES.unpack_from(self._map)[1], "the loop begins anew", TURN_LIMIT_S,
            good=lambda begun: begun == wanted, pause_s=0.002,
        )  # fmt: skip
        self.slower = FIGURES.unpack_from(self._map)[5] * 1000 / PIECE_MS

    def reset_after_a_turn(self) -> None:
        """Let the loop come round once more, keep the longest hold in ``last``, and begin anew.

        Its CPU time is told in milliseconds of the machine of the bounds, its wall time as it was measured.
        """
        turns = FIGURES.unpack_from(self._map)[4]
        eventually(
            lambda: FIGURES.unpack_from(self._map)[4], "the loop comes round", TURN_LIMIT_S,
            good=lambda now: now != turns, pause_s=0.002,
        )  # fmt: skip
        (cpu_ms, wall_ms), before = self.held_ms(), self.slower
        self.reset()
        self.last = (cpu_ms / max(before, self.slower), wall_ms)

    def held_ms(self) -> tuple[float, float]:
        """The longest hold since the reset: CPU time as it was measured, and wall time."""
        _, _, cpu, wall, _, _ = FIGURES.unpack_from(self._map)
        return cpu * 1000, wall * 1000

    def cpu_ms(self) -> float:
        """What the loop's thread has computed so far."""
        return float(FIGURES.unpack_from(self._map)[4]) * 1000


def started(broker: Broker) -> Figures:
    """Start the broker with a probe, and wait until it is ready."""
    broker.module = "tests.support.loopwatch"
    watched = broker.directory / "loop.watch"
    watched.write_bytes(bytes(FIGURES.size))
    broker.start()
    broker.wait_ready()
    return Figures(watched)


class _Probe:
    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), FIGURES.size)
        self._loop = loop
        self._cpu, self._wall = time.thread_time(), time.monotonic()
        self()

    def __call__(self) -> None:
        cpu, wall = time.thread_time(), time.monotonic()
        asked, done, longest, longest_wall, _, piece = FIGURES.unpack_from(self._map)
        if asked != done:
            longest = longest_wall = 0.0
            fixed_work()  # brings what it needs into the caches
            begun = time.thread_time()
            fixed_work()
            cpu, wall = time.thread_time(), time.monotonic()
            piece = cpu - begun
        else:
            longest = max(longest, cpu - self._cpu)
            longest_wall = max(longest_wall, wall - self._wall - PROBE_S)
        FOUND.pack_into(self._map, RESET.size, asked, longest, longest_wall, cpu, piece)
        self._cpu, self._wall = cpu, wall
        self._loop.call_later(PROBE_S, self)


class _Row:
    def __init__(self, name: str, partition: int) -> None:
        self.name, self.partition, self.error, self.message = name, partition, 0, None


def fixed_work() -> int:
    """Rows of names and numbers: made, looked up and packed, as those of requests and answers are."""
    rows = {}
    for number in range(PIECE_ROWS):
        row = _Row(f"topic-{number}", number)
        rows[row.name, row.partition] = row
    packed = []
    for (name, number), row in rows.items():
        raw = name.encode()
        packed.append(len(raw).to_bytes(2, "big") + raw + ROW.pack(row.error, row.partition, 0, number))
    return len(b"".join(packed))


def slower() -> float:
    """How much longer this thread takes for a piece of work than the machine of the bounds."""
    fixed_work()
    begun = time.thread_time()
    fixed_work()
    return (time.thread_time() - begun) * 1000 / PIECE_MS


def main() -> None:
    import uvloop

    from fleetlog.brokers.cli.main import main as fleetlog

    path = Path(sys.argv[2]).with_name("loop.watch")
    run = uvloop.run

    async def watched(broker: Coroutine[Any, Any, Any]) -> Any:
        _Probe(path, asyncio.get_running_loop())
        return await broker

    uvloop.run = lambda broker, **options: run(watched(broker), **options)  # type: ignore[assignment]
    fleetlog()


if __name__ == "__main__":
    main()
