"""Command line options of all suites."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.build import ROOT
from perf.load import Pace
from perf.targets.fleetlog import Fleetlog


@dataclass(frozen=True, slots=True)
class Options:
    """``short``: the pass of ``make perf``, which has a few minutes for each suite."""

    short: bool = False
    rounds: int = 3
    measure_s: float = 3.0
    warmup_s: float = 1.0
    brokers: int = 1
    only: str = ""
    tree: Path = ROOT
    """``peers`` compares it with this one; the other suites measure it."""
    directory: Path | None = None
    tls: bool = False
    sasl: bool = False

    @property
    def pace(self) -> Pace:
        """How long each run takes."""
        return Pace(self.warmup_s, self.measure_s)

    def wanted(self, part: str) -> bool:
        """Whether ``--only`` asks for this part of a suite."""
        return not self.only or any(word in part for word in self.only.split(","))

    @property
    def keeps(self) -> bool:
        """Whether the results are written: a part, or another tree's, would take the place of the whole."""
        return not (self.only or self.compares_trees or self.secured)

    @property
    def secured(self) -> bool:
        """Whether ``peers`` measures what TLS or logins cost."""
        return self.tls or self.sasl

    @property
    def compares_trees(self) -> bool:
        """Whether ``--tree`` names another tree than this one."""
        return self.tree != ROOT

    def fleetlog(self, brokers: int = 1, **more: Any) -> Fleetlog:
        """A fleetlog cluster from the tree that is measured."""
        return Fleetlog(brokers, self.directory, **{"tree": self.tree, **more})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of all suites."""
    argument: Callable[..., Any] = parser.add_argument
    argument("--short", action="store_true", help="fewer rounds and cases: the pass of make perf")
    argument("--rounds", type=int, help="how often each case is run on each server, in turn")
    argument("--seconds", type=float, help="how long each run is measured")
    argument("--warmup", type=float, help="how long each run warms up before")
    argument("--brokers", type=int, default=1, help="brokers in each cluster (peers: 1 or 3)")
    argument(
        "--only", default="", help="only what has one of these words in its name (with commas); nothing is written"
    )
    argument(
        "--tree",
        type=_source_tree,
        default=ROOT,
        help="another source tree, with compiled kernels: its brokers are measured (peers: beside those of this tree)",
    )
    argument("--tls", action="store_true", help="peers: what TLS costs the brokers; nothing is written")
    argument("--sasl", action="store_true", help="peers: what logins cost the brokers; nothing is written")
    argument("--dir", type=Path, default=None, help="where the servers keep their data (default: the temporary files)")


def _source_tree(text: str) -> Path:
    tree = Path(text).resolve()
    if not (tree / "brokers" / "cli" / "main.py").is_file():
        raise argparse.ArgumentTypeError(f"{text} is no source tree of fleetlog")
    return tree


def options_of(found: argparse.Namespace) -> Options:
    """The parsed command line, with the defaults of a short or full run."""
    rounds, seconds, warmup = (2, 2.0, 0.5) if found.short else (5, 4.0, 1.0)
    return Options(
        short=found.short,
        rounds=found.rounds or rounds,
        measure_s=found.seconds or seconds,
        warmup_s=warmup if found.warmup is None else found.warmup,
        brokers=found.brokers,
        only=found.only,
        tree=found.tree,
        directory=found.dir,
        tls=found.tls,
        sasl=found.sasl,
    )
