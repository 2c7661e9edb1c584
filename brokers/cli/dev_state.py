"""The state file of a local fleet, and how to distinguish a process from a later one with the same pid.

The state file is written after every start and stop, so ``dev down`` always finds what runs. A pid alone is
never trusted: it is signalled only while the process started at the time that was written down.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

STATE_FILE = "state.json"
LOCK_FILE = "lock"
VERSION = 1


def default_directory() -> Path:
    """FLEETLOG_DEV_DIR, or the directory of the user's local state."""
    chosen = os.environ.get("FLEETLOG_DEV_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "fleetlog" / "dev"


class DevError(Exception):
    """A condition that the user has to change; the message says which."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process by pid and start; ``started`` is the kernel's spelling and only compared."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has the pid now; raises DevError when there is none."""
        started = start_time(pid)
        if started is None:
            raise DevError(f"process {pid} ended at once")
        return cls(pid, started)

    def alive(self) -> bool:
        """Whether this process still runs (a zombie does not)."""
        return start_time(self.pid) == self.started

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this process; False when it is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        except (AttributeError, OSError):  # no pidfd on this system: the check below is the best available
            if not self.alive():
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            return True
        try:
            if not self.alive():
                return False
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            return True
        finally:
            os.close(handle)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end, even if it is not a child; False when it still runs."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            _wait_a_little(self.pid, min(left_s, 0.05))
        return True


def _wait_a_little(pid: int, seconds: float) -> None:
    with contextlib.suppress(OSError):
        os.waitpid(pid, os.WNOHANG)  # otherwise a child of this process stays a zombie
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        time.sleep(seconds)
        return
    try:
        poller = select.poll()  # select() takes no descriptor above 1,023
        poller.register(handle, select.POLLIN)
        poller.poll(seconds * 1000)
    finally:
        os.close(handle)


def start_time(pid: int) -> str | None:
    """When the process with the pid started, as the kernel counts; None when there is none or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _start_time_by_ps(pid)
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may contain anything
    if fields[0] in "ZX":
        return None
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip() if boot.exists() else ''}:{fields[19]}"


def _start_time_by_ps(pid: int) -> str | None:
    process = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    status, _, started = process.stdout.strip().partition(" ")
    return None if not status or status.startswith("Z") else started.strip()


@dataclass(slots=True)
class BrokerState:
    """One broker of the local fleet."""

    id: int
    port: int
    admin_port: int
    directory: str
    process: Process | None = None
    rack: str = ""

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.port}"


@dataclass(slots=True)
class FleetState:
    """A local fleet. ``supervisor`` is the ``dev up`` that waits in the foreground, if one does."""

    zookeeper_port: int
    detached: bool
    brokers: list[BrokerState] = field(default_factory=list)
    zookeeper: Process | None = None
    supervisor: Process | None = None
    secure: bool = False
    registry: Process | None = None
    registry_port: int = 0
    """Of the schema registry, where there is one."""

    @property
    def bootstrap(self) -> str:
        """``bootstrap.servers`` for clients."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def registry_url(self) -> str:
        """``schema.registry.url`` for clients."""
        return f"http://127.0.0.1:{self.registry_port}"

    @property
    def zookeeper_connect(self) -> str:
        """``zookeeper.connect`` of the brokers."""
        return f"127.0.0.1:{self.zookeeper_port}/fleetlog"

    def broker(self, broker_id: int) -> BrokerState:
        """The broker with the id; raises DevError."""
        for broker in self.brokers:
            if broker.id == broker_id:
                return broker
        raise DevError(f"there is no broker {broker_id}; there are {', '.join(str(b.id) for b in self.brokers)}")

    def running(self) -> bool:
        """Whether a broker or the ZooKeeper server runs; the schema registry is a client of them."""
        started = [*(broker.process for broker in self.brokers), self.zookeeper]
        return any(process is not None and process.alive() for process in started)


def load(directory: Path) -> FleetState | None:
    """The state in a directory, None when there is none; raises DevError when it cannot be read."""
    path = directory / STATE_FILE
    try:
        document = json.loads(path.read_text())
        if document.pop("version") != VERSION:
            raise ValueError("written by another version")
        brokers = [
            BrokerState(**{**broker, "process": _process(broker["process"])}) for broker in document.pop("brokers")
        ]
        return FleetState(
            **{
                **document,
                "brokers": brokers,
                "zookeeper": _process(document["zookeeper"]),
                "supervisor": _process(document["supervisor"]),
                "registry": _process(document.get("registry")),
            }
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DevError(f"{path} cannot be read ({error}); remove it if no fleet runs there") from error


def save(directory: Path, state: FleetState) -> None:
    """Write the state, whole or not at all."""
    path = directory / STATE_FILE
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"version": VERSION, **asdict(state)}, indent=2) + "\n")
    fresh.replace(path)


def forget(directory: Path) -> None:
    """Delete the state file: nothing runs any more."""
    (directory / STATE_FILE).unlink(missing_ok=True)


def _process(document: dict[str, object] | None) -> Process | None:
    return None if document is None else Process(int(str(document["pid"])), str(document["started"]))


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One ``dev`` command at a time changes a fleet; raises DevError when another one does."""
    with (directory / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DevError(f"another `fleetlog dev` command is running in {directory}") from None
        yield


def end_all(processes: Iterable[Process], patience_s: float) -> None:
    """SIGTERM to all, and SIGKILL to those that still run after the patience. Returns when all are gone."""
    waiting = [process for process in processes if process.send(signal.SIGTERM)]
    deadline = time.monotonic() + patience_s
    for process in waiting:
        if not process.wait(max(0.0, deadline - time.monotonic())):
            process.send(signal.SIGKILL)
            process.wait(10.0)
