"""Runs the load generator (``generator.c``) and reads what it measured.

A :class:`Flow` is a number of connections to one address that send the same frames: *closed* keeps a number of requests
under way on each connection and finds the throughput; *open* sends at a rate by the clock and finds the latency.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from perf import build
from perf.generator.frames import Frame, write_frames

SOURCE = Path(__file__).parent / "generator.c"


class GeneratorError(Exception):
    """The generator could not run its plan, or an answer was wrong."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Connections to one address. ``depth`` (closed) or ``rate`` in requests per second (open), not both."""

    name: str
    host: str
    port: int
    frames: Sequence[Frame]
    connections: int = 1
    depth: int = 0
    rate: float = 0.0

    def line(self, file: Path) -> str:
        """Its line in the plan."""
        assert (self.depth > 0) != (self.rate > 0), "a flow is closed or open"
        assert self.depth < 2 or not self.frames[0].records_at, "the next fetch needs the answer to the one before"
        mode = f"closed {self.depth}" if self.depth else f"open {self.rate:.6f}"
        return f"flow {self.name} {self.host} {self.port} {self.connections} {mode} {file}\n"


class Process(NamedTuple):
    """What a server's process used while it was measured."""

    pid: int
    cpu_s: float
    rss_kib: int
    peak_kib: int


class Latency:
    """Durations as counted by the generator."""

    def __init__(self, counts: Sequence[tuple[int, int]]) -> None:
        self.counts = [(int(value), int(count)) for value, count in counts]
        self.total = sum(count for _, count in self.counts)

    def percentile_ms(self, share: float) -> float:
        """The smallest duration that ``share`` percent of all do not pass; NaN if there are none."""
        wanted = share / 100 * self.total
        seen = 0
        for value, count in self.counts:
            seen += count
            if seen >= wanted:
                return value / 1e6
        return float("nan")


class FlowResult(NamedTuple):
    """One flow's requests that were answered in (closed) or due in (open) the window."""

    name: str
    requests: int
    payload_bytes: int
    unanswered: int
    errors: dict[int, int]
    latency: Latency


@dataclass(frozen=True, slots=True)
class Result:
    """What one run measured; CPU in seconds over ``seconds``."""

    seconds: float
    self_cpu_s: float
    machine_busy_s: float
    closed: int
    processes: list[Process]
    flows: list[FlowResult] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Of all flows."""
        return sum(flow.requests for flow in self.flows)

    @property
    def cpu_s(self) -> float:
        """Of all watched processes."""
        return sum(process.cpu_s for process in self.processes)

    @property
    def others_share(self) -> float:
        """Cores that neither the servers nor the generator used: how noisy the machine was."""
        return max(0.0, self.machine_busy_s - self.cpu_s - self.self_cpu_s) / self.seconds

    def flow(self, name: str) -> FlowResult:
        """The flow of that name."""
        return next(flow for flow in self.flows if flow.name == name)


def run(
    flows: Sequence[Flow],
    *,
    pids: Sequence[int] = (),
    warmup_s: float = 1.0,
    measure_s: float = 3.0,
    drain_s: float = 5.0,
    forgive: bool = False,
) -> Result:
    """Run the flows side by side. Raises GeneratorError, also for errors in answers unless ``forgive``."""
    binary = build.program(SOURCE)
    with tempfile.TemporaryDirectory(prefix="perf-") as name:
        directory = Path(name)
        plan = [f"warmup {warmup_s}\n", f"measure {measure_s}\n", f"drain {drain_s}\n"]
        plan += [f"pid {pid}\n" for pid in pids]
        files: dict[int, Path] = {}
        for flow in flows:
            file = files.get(id(flow.frames))
            if file is None:
                file = files[id(flow.frames)] = directory / f"frames-{len(files)}"
                write_frames(file, flow.frames)
            plan.append(flow.line(file))
        (directory / "plan").write_text("".join(plan))
        command = [str(binary), str(directory / "plan")]
        limit = warmup_s + measure_s + drain_s + 120
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode:
        raise GeneratorError(done.stderr.strip() or f"the generator ended with {done.returncode}")
    result = _read(json.loads(done.stdout))
    if not forgive:
        _check(result)
    return result


def _read(found: dict[str, Any]) -> Result:
    flows = [
        FlowResult(
            flow["name"], flow["requests"], flow["payload_bytes"], flow["unanswered"],
            {int(code): count for code, count in flow["errors"].items()}, Latency(flow["latency_ns"]),
        )
        for flow in found["flows"]
    ]  # fmt: skip
    processes = [Process(**process) for process in found["processes"]]
    return Result(
        found["seconds"], found["self_cpu_s"], found["machine_busy_s"], found["closed"], processes, flows
    )  # fmt: skip


def _check(result: Result) -> None:
    if result.closed:
        raise GeneratorError(f"{result.closed} connections were closed by the server")
    for flow in result.flows:
        if flow.errors:
            raise GeneratorError(f"{flow.name}: answers with error codes {flow.errors} (0: cannot be read)")
        if not flow.requests:
            raise GeneratorError(f"{flow.name}: not one request was answered")
