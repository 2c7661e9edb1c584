"""Keeps the client processes going: one that ends is started anew, with a new name in the history and the same slot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleetlog.coordination.ensemble import spawn
from tests.chaos.client import GAVE_UP
from tests.chaos.network import Network

ROOT = Path(__file__).parents[2]
AGAIN_S = 1.0
"""A slot is filled at most once in this time."""


@dataclass
class Slot:
    """A client's place: its role, its host, and the process that fills it now."""

    name: str
    role: str
    host: str
    starts: int = 0
    started: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    zombies: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None


class Clients:
    """All clients of a run."""

    def __init__(self, network: Network, bootstrap: str, directory: Path, seed: str) -> None:
        self.slots: list[Slot] = []
        self.ends: Counter[str] = Counter()
        self._network = network
        self._bootstrap = bootstrap
        self._directory = directory
        self._history = directory / "history"
        self._history.mkdir(parents=True, exist_ok=True)
        self._seed = seed

    def add(self, name: str, role: str, host: str) -> None:
        """A new slot, filled at the next look."""
        self.slots.append(Slot(name, role, host))

    def fill(self, slot: Slot) -> subprocess.Popen[bytes]:
        """Start a process for a slot. The one that still fills it is kept among its zombies."""
        if slot.process is not None and slot.process.poll() is None and slot.process not in slot.zombies:
            slot.zombies.append(slot.process)
        slot.starts += 1
        slot.started = time.monotonic()
        proc = f"{slot.name}.{slot.starts}"
        command = [
            sys.executable, "-m", "tests.chaos.client", slot.role, proc, slot.name, f"{self._seed}-{proc}",
            self._bootstrap, str(self._history),
        ]  # fmt: skip
        environment = self._network.environment(slot.host)
        with (self._directory / "clients.log").open("ab") as log, self._network.inside(slot.host):
            process = spawn(command, ROOT, log, die_with_parent=True, environment=os.environ | environment)
        slot.process = process
        return process

    def look(self) -> None:
        """Fill the empty slots again."""
        for slot in self.slots:
            if slot.pid is None and time.monotonic() - slot.started > AGAIN_S:
                self._ended(slot.role, slot.process)
                self.fill(slot)

    def _ended(self, role: str, process: subprocess.Popen[bytes] | None) -> None:
        if process is None:
            return
        status = process.poll()
        told = {0: "left", GAVE_UP: "gave up", -signal.SIGKILL: "killed"}.get(status or 0, f"ended with {status}")
        self.ends[f"{role} {told}"] += 1

    def stop(self, timeout_s: float) -> list[str]:
        """Ask all to finish and go; kill those that don't in time. Returns those that had to be killed."""
        running = [(slot.name, p) for slot in self.slots for p in (slot.process, *slot.zombies) if p is not None]
        for _, process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        deadline = time.monotonic() + timeout_s
        late = []
        for name, process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                late.append(name)
        return late

    def run(self, roles: Sequence[str], host: str, timeout_s: float) -> list[tuple[str, int]]:
        """Play roles to their ends, at a time: how each ended; raises subprocess.TimeoutExpired."""
        processes = [(role, self.fill(Slot(role, role, host))) for role in roles]
        deadline = time.monotonic() + timeout_s
        try:
            return [(role, process.wait(max(0.1, deadline - time.monotonic()))) for role, process in processes]
        except subprocess.TimeoutExpired:
            for _, process in processes:
                process.kill()
                process.wait()
            raise
