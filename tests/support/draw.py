"""Tests that take turns: each commit runs one of several, by a draw that the commit decides."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def drawn(names: Iterable[str], asked: str, commit: str | None = None) -> list[str]:
    """The names to run: all for ``all``, those that are asked for, else one by the commit (the present one)."""
    known = list(names)
    if asked == "all":
        return known
    return asked.split() or [random.Random(_commit() if commit is None else commit).choice(known)]


def is_drawn(name: str, seed: str) -> bool:
    """Whether it is in the half that this seed draws."""
    return random.Random(f"{seed} {name}").random() < 0.5


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()
