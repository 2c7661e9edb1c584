"""Processes of a run, each in a Unix session of its own, and what they say on standard output, a line of JSON each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.spark.matrix.sessions import command_line, processes_of, signal_all

ROOT = Path(__file__).parents[3]
EXECUTOR = "CoarseGrainedExecutorBackend"
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Processor time that a process has used; 0 of one that has gone."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def busy_s() -> float:
    """Processor time that the whole machine has used."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8])
    return (user + nice + system + sum(interrupts)) / TICKS


class Part:
    """A process of this package, with all that it starts."""

    def __init__(self, module: str, *arguments: str, log: Path) -> None:
        command = [sys.executable, "-m", f"tests.spark.realtime.{module}", *arguments]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, cwd=ROOT, text=True,
                start_new_session=True,
            )  # fmt: skip
        self.last: Any = None
        """What the last line said."""
        self._log = log
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = json.loads(line)
            self.heard(self.last)

    def heard(self, what: Any) -> None:
        """A line came."""

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def processes(self) -> list[int]:
        """Those that live now."""
        return processes_of(self.process.pid)

    def kill(self) -> None:
        """SIGKILL for all its processes."""
        signal_all(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def begin(self) -> None:
        """A line on its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write("begin\n")
        self.process.stdin.flush()

    def finish(self, timeout_s: float) -> None:
        """Standard input ends; AssertionError unless it ends well."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout_s) == 0, self.said()
        self._reader.join()

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


class Query(Part):
    """A driver with its executors."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self.batches = self.failures = self.runs = 0
        super().__init__("query", *arguments, log=log)

    def heard(self, what: Any) -> None:
        self.batches += "batch" in what
        self.failures += "failed" in what
        self.runs += "running" in what

    def executors(self) -> list[int]:
        """Those that live now."""
        return [one for one in self.processes() if EXECUTOR in command_line(one)]

    def kill_executor(self, pid: int) -> bool:
        """SIGKILL, if the id is still that of an executor of this driver; it is then waited for until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                if pid not in self.executors():
                    return False
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
            finally:
                os.close(handle)
        return False

    def kill_driver(self) -> None:
        """SIGKILL for Python and its Java; executors see their driver gone, and write until then."""
        for pid in self.processes():
            if EXECUTOR not in command_line(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()
