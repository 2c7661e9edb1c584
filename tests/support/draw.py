"""Tests that take turns: each commit runs some of them, by a draw that the commit decides."""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = ROOT / "tests" / "seconds.tsv"
"""What the longer files of tests take (``tools/test_seconds.py``), and why the longest do; the others always run."""
LONG_S = 8
"""From so many seconds on a file stands there."""
SHARE_S = 60
"""Of a file that takes longer so much is drawn, or more where the files are few."""

MANY_S = 120
"""A folder with more of them has one in every draw."""


def drawn(names: Iterable[str], asked: str, commit: str | None = None) -> list[str]:
    """The names to run: all for ``all``, those that are asked for, else one by the commit (the present one)."""
    known = list(names)
    if asked == "all":
        return known
    return asked.split() or [random.Random(_commit() if commit is None else commit).choice(known)]


def is_drawn(name: str, seed: str, share: float = 0.5) -> bool:
    """Whether it is in the share that this seed draws."""
    return random.Random(f"{seed} {name}").random() < share


def examples(whole: int) -> int:
    """How many random examples a test tries: a third of them where others are drawn for each commit (``make test``)."""
    return whole // 3 if os.environ.get("FLEETLOG_SAMPLE") else whole


def read_seconds() -> dict[str, int]:
    """Seconds by file."""
    return {row[0]: int(row[1]) for row in seconds_rows()}


def seconds_rows() -> list[list[str]]:
    """Of each longer file its name, its seconds and perhaps the reason."""
    return [line.split("\t") for line in SECONDS.read_text().splitlines()]


def drawn_files(seconds: Mapping[str, int], seed: str, budget_s: int) -> dict[str, float]:
    """The files that this seed draws, with the share of their tests, to the budget.

    One of each folder that has many (MANY_S) is among them: those are the folders that begin processes.
    """
    shuffled = sorted(seconds)
    random.Random(seed).shuffle(shuffled)
    folders = {file: Path(file).parts[1:-1][:1] for file in reversed(shuffled)}
    total: Counter[tuple[str, ...]] = Counter()
    for file, folder in folders.items():
        total[folder] += seconds[file]
    firsts = {folder: file for file, folder in folders.items() if total[folder] > MANY_S}
    chosen: dict[str, float] = {}
    spent = 0.0
    share_s = max(SHARE_S, budget_s / max(1, len(seconds)))
    for file in (*firsts.values(), *shuffled):
        cost = min(seconds[file], share_s)
        if file not in chosen and (file in firsts.values() or spent + cost <= budget_s):
            chosen[file] = cost / seconds[file]
            spent += cost
    return chosen


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()
