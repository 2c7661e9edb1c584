"""Runs histories of a simulation, each seed of a range once: ``python -m MODULE 0-99999 FILE``.

What ran is kept in the file, a line of JSON for each hundred, so that a run that ended goes on where it was; several
processes with a file each may share a range's parts. A seed that failed is told with what led to it.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

CHUNK = 100


def chunks(first: int, last: int) -> list[range]:
    """The range in parts of a hundred, which begin at multiples of it."""
    starts = [first, *range((first // CHUNK + 1) * CHUNK, last + 1, CHUNK)]
    return [range(start, min(last, (start // CHUNK + 1) * CHUNK - 1) + 1) for start in starts]


def kept(file: Path) -> list[dict[str, object]]:
    """What ran before; a last line that is torn counts for nothing."""
    rows = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def histories(seeds: range, run: Callable[[int], object]) -> dict[str, object]:
    """Run them: the seeds that failed, and the CPU seconds."""
    began, failed = time.process_time(), []
    for seed in seeds:
        try:
            run(seed)
        except AssertionError as problem:
            failed.append(seed)
            print(f"seed {seed}: {problem}", *getattr(problem, "__notes__", ()), sep="\n", flush=True)
    took = round(time.process_time() - began, 3)
    return {"first": seeds[0], "last": seeds[-1], "failed": failed, "cpu_s": took}


def run_range(module: str, about: str | None, run: Callable[[int], object]) -> int:
    """Run what the command line asks for; the exit code, 1 where a seed failed."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("seeds", help="A-B")
    parser.add_argument("file", type=Path, help="where results are kept")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    parts = chunks(int(first), int(last))
    before = {(row["first"], row["last"]): row for row in kept(asked.file)}
    rows = [before[part[0], part[-1]] for part in parts if (part[0], part[-1]) in before]
    with asked.file.open("a") as file:
        if file.tell() and not asked.file.read_bytes().endswith(b"\n"):
            file.write("\n")
        logging.disable(logging.WARNING)
        try:
            for part in parts:
                if (part[0], part[-1]) not in before:
                    rows.append(histories(part, run))
                    file.write(json.dumps(rows[-1]) + "\n")
                    file.flush()
        finally:
            logging.disable(logging.NOTSET)
    ran = sum(int(str(row["last"])) - int(str(row["first"])) + 1 for row in rows)
    failed = [seed for row in rows for seed in row["failed"]]  # type: ignore[attr-defined]
    cpu_s = sum(float(str(row["cpu_s"])) for row in rows)
    told = f"{ran} histories, {len(failed)} failed {failed[:20]}"
    print(f"{told}, {cpu_s:.0f} s of CPU, {ran / max(cpu_s, 0.001):.1f} a second")
    return 1 if failed else 0
