"""Which lines of the cores the simulation runs: a small line tracer for a named list of files."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.simulation.runs import run_seed

CORES = (
    "fleetlog.brokers.replication.partition",
    "fleetlog.brokers.replication.followers",
    "fleetlog.brokers.replication.follower_progress",
    "fleetlog.brokers.replication.isr",
    "fleetlog.brokers.replication.isr_writer",
    "fleetlog.brokers.replication.fetcher",
    "fleetlog.brokers.replication.fetch_plan",
    "fleetlog.brokers.replication.replicas",
    "fleetlog.brokers.controller.elections",
    "fleetlog.brokers.controller.plans",
    "fleetlog.brokers.controller.writes",
    "fleetlog.brokers.controller.controller",
    "fleetlog.brokers.controller.log_end_probes",
    "fleetlog.brokers.controller.leader_commands",
    "fleetlog.brokers.controller.move_commands",
    "fleetlog.brokers.controller.topic_commands",
    "fleetlog.brokers.metadata.cache",
    "fleetlog.brokers.metadata.image",
    "fleetlog.brokers.api.fetch",
    "fleetlog.brokers.api.fetch_followers",
    "fleetlog.brokers.api.fetch_reads",
    "fleetlog.brokers.api.fetch_sessions",
    "fleetlog.brokers.coordinators.shard_host",
    "fleetlog.brokers.coordinators.runtime",
    "fleetlog.brokers.coordinators.transactions.coordinator",
    "fleetlog.brokers.coordinators.transactions.verification",
    "fleetlog.txn.coordinator",
    "fleetlog.txn.transaction",
    "fleetlog.txn.sinks",
    "fleetlog.txn.batches",
    "fleetlog.txn.markers",
    "fleetlog.brokers.groups.shard",
    "fleetlog.brokers.groups.classic",
    "fleetlog.brokers.groups.members",
    "fleetlog.brokers.groups.offsets",
    "fleetlog.coordination.election",
    "fleetlog.coordination.registration",
    "fleetlog.brokers.node",
)


class Coverage:
    """Lines that can run and lines that did, by file."""

    def __init__(self, modules: Iterable[str]) -> None:
        self.wanted: dict[str, set[int]] = {}
        self.names: dict[str, str] = {}
        for name in modules:
            path = inspect.getsourcefile(importlib.import_module(name))
            assert path is not None
            self.names[path] = name
            self.wanted[path] = _body_lines(path)
        self.ran: dict[str, set[int]] = {path: set() for path in self.wanted}

    def __enter__(self) -> Coverage:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in self.ran else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.ran[frame.f_code.co_filename].add(frame.f_lineno)
        return self._line

    def share(self, path: str) -> float:
        wanted = self.wanted[path]
        return len(wanted & self.ran[path]) / len(wanted) if wanted else 1.0

    @property
    def total(self) -> float:
        """The share of all lines."""
        wanted = sum(len(lines) for lines in self.wanted.values())
        return sum(len(lines & self.ran[path]) for path, lines in self.wanted.items()) / wanted

    def lines(self) -> list[str]:
        """For people: file by file, what did not run."""
        rows = [
            f"{self.share(path):6.1%} {name:40} without {_ranges(sorted(self.wanted[path] - self.ran[path]))}"
            for path, name in self.names.items()
        ]
        return [*rows, f"{self.total:6.1%} of the cores' lines"]


def covered(seeds: Iterable[int], modules: Iterable[str] = CORES) -> Coverage:
    """What these seeds run."""
    coverage = Coverage(modules)
    for seed in seeds:
        with coverage:
            run_seed(seed)
    return coverage


def _stubs(tree: ast.AST) -> set[int]:
    """Lines of functions without a body of their own: a protocol's, or an abstract one's. Nothing can run them."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body[-1]:
                case ast.Expr(ast.Constant(value)) if value is Ellipsis:
                    found.update(range(node.lineno, (node.end_lineno or 0) + 1))
                case ast.Raise(exc=ast.Name("NotImplementedError")) if len(node.body) <= 2:
                    found.update(range(node.lineno, (node.end_lineno or 0) + 1))
    return found


def _body_lines(path: str) -> set[int]:
    """Lines within functions; what runs at import says nothing."""
    found: set[int] = set()

    def walk(code: CodeType, inside: bool) -> None:
        if inside:
            found.update(line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                walk(constant, inside=constant.co_flags & inspect.CO_OPTIMIZED != 0)

    text = Path(path).read_text()
    walk(compile(text, path, "exec"), False)
    return found - _stubs(ast.parse(text))


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "nothing"
