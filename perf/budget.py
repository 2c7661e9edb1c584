"""How many instructions a request may cost: the guard against slow regressions that needs no clock.

``python -m perf.budget`` counts and compares, ``--write`` makes what was counted the new budget. Counting needs
valgrind; with a fixed hash seed and a clock that stands still the numbers repeat to a few parts in a million. They
belong to one Python version and processor family, so ``budget.json`` has a table for each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from perf import build
from perf.counted import REQUESTS, SPEND, SPENT

FILE = Path(__file__).parent / "budget.json"
SOURCE = Path(__file__).parent / "counting.c"
LIMIT_S = 240
SECURED, SECURED_MAX = ", authorized and measured", 0.03
"""Works with an authorizer and quotas, and how much more they may cost than without."""
FIGURES_ON, FIGURES_OFF, FIGURES_MAX = ", figures on", ", figures off", 0.02
"""Works with what metrics count and without, and how much more the first may cost than the second.

They cost 0.9 to 1.3 %; a count is off by up to 0.2 % now and then.
"""
HASH_SEED = "0"


class BudgetError(Exception):
    """Nothing can be counted or compared here; the message says what to do."""


def environment() -> str:
    """The table of ``budget.json`` for this environment."""
    return (
        f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]} {platform.machine()}".lower()
    )


def count(plant: int = 0) -> dict[str, int]:
    """Instructions per request of each work, and of one round of ``spend``. ``plant``: rounds spent in each request."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise BudgetError("counting instructions needs valgrind: apt install valgrind")
    library = build.program(SOURCE, "-shared", "-fPIC")
    with tempfile.TemporaryDirectory(prefix="perf-") as name:
        directory = Path(name)
        command = [
            valgrind, "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={directory / 'counts'}",
            sys.executable, "-m", "perf.counted", str(library), str(plant), str(directory / "data"),
        ]  # fmt: skip
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LD_LIBRARY_PATH") if key in os.environ}
        settings = {**kept, "PYTHONHASHSEED": HASH_SEED, "FLEETLOG_NATIVE": "cython"}
        done = subprocess.run(
            command, cwd=build.ROOT, env=settings, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode:
            raise BudgetError(f"the counted work failed:\n{done.stderr[-2000:]}")
        found = dict(_read(path) for path in sorted(directory.glob("counts.*"), key=_number))
    spent = found.pop(SPEND) // (REQUESTS * SPENT)
    return {**{work: total // REQUESTS for work, total in found.items()}, SPEND: spent}


def _number(path: Path) -> int:
    """Dumps have the order in which the works were done."""
    return int(path.suffix[1:])


def _read(path: Path) -> tuple[str, int]:
    """What was counted in one of callgrind's dumps."""
    text = path.read_text()
    name = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.MULTILINE)
    total = re.search(r"^summary: (\d+)$", text, re.MULTILINE)
    if name is None or total is None:
        raise BudgetError(f"{path.name} is no dump of callgrind:\n{text[:300]}")
    return name.group(1), int(total.group(1))


def load() -> dict[str, Any]:
    """The budget of this environment: ``tolerance`` and instructions per request."""
    everything: dict[str, Any] = json.loads(FILE.read_text())
    ours = everything["instructions"].get(environment())
    if ours is None:
        raise BudgetError(
            f"{FILE.name} has no budget for {environment()}: python -m perf.budget --write, and commit it"
        )
    return {"tolerance": everything["tolerance"], "instructions": ours}


def over(counted: dict[str, int], budget: dict[str, int], tolerance: float) -> list[str]:
    """Lines about the works that cost more than they may."""
    return [
        f"{work}: {counted[work]:,} instructions per request, {counted[work] / allowed - 1:+.1%} of the budget "
        f"{allowed:,} (allowed: {tolerance:+.1%})"
        for work, allowed in budget.items()
        if work in counted and counted[work] > allowed * (1 + tolerance)
    ]


def dearer(counted: dict[str, int]) -> list[str]:
    """Lines about the works that cost too much more with an authorizer and quotas, or with figures."""
    found = []
    for more, less, most in ((SECURED, "", SECURED_MAX), (FIGURES_ON, FIGURES_OFF, FIGURES_MAX)):
        for work, count in counted.items():
            if work.endswith(more):
                share = count / counted[work.removesuffix(more) + less] - 1
                if share > most:
                    found.append(f"{work}: {share:+.2%} of what it costs without (allowed: {most:+.1%})")
    return found


def write(counted: dict[str, int]) -> None:
    """Make it the budget."""
    everything: dict[str, Any] = {"tolerance": 0.02, "instructions": {}}
    if FILE.exists():
        everything = json.loads(FILE.read_text())
    works = {work: total for work, total in counted.items() if work != SPEND}
    everything["instructions"][environment()] = works
    FILE.write_text(json.dumps(everything, indent=2) + "\n")


def main() -> int:
    """Count, then compare or write."""
    parser = argparse.ArgumentParser(prog="python -m perf.budget", description="instructions per request")
    parser.add_argument("--write", action="store_true", help="make what is counted the new budget")
    options = parser.parse_args()
    try:
        counted = count()
        if options.write:
            write(counted)
        budget = load()
    except (BudgetError, build.BuildError) as error:
        print(error, file=sys.stderr)
        return 2
    for work, allowed in budget["instructions"].items():
        print(f"{work:<42}{counted[work]:>12,}{allowed:>12,}{counted[work] / allowed - 1:>+9.1%}")
    lines = over(counted, budget["instructions"], budget["tolerance"]) + dearer(counted)
    print("\n".join(lines), file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
