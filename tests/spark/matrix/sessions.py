"""Spark's processes as the matrix handles them: drivers, a standalone cluster; killed, stopped, resumed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fleetlog.spark.java import spark_environment
from tests.support.ports import free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
PYTHONPATH = os.pathsep.join([str(Path(__file__).parent / "early"), str(ROOT)])
START_S = 300.0
CLUSTER_CORES = 12
"""Tasks at a time on each of the two hosts: several runs at once, each with tasks that stand still."""
LOCAL = "local[48,4]"


def processes_of(session_id: int) -> list[int]:
    """Every process of a Unix session: a driver, its JVM, Python's daemon and workers."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session_id and fields[0] not in "ZX":
                found.append(int(stat.parent.name))
    return found


def command_line(pid: int) -> str:
    """What runs under that id; empty when nothing does."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def state_of(pid: int) -> str:
    """R runs, S sleeps, T stands still; empty when there is none."""
    with contextlib.suppress(OSError):
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return "" if found in "ZX" else found
    return ""


def signal_all(session_id: int, number: signal.Signals) -> list[int]:
    """Signal them all; returns those that were there. SIGKILL goes on until none is left."""
    hit: list[int] = []
    deadline = time.monotonic() + 20
    while True:
        there = processes_of(session_id)
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        hit += [pid for pid in there if pid not in hit]
        if number is not signal.SIGKILL or not there:
            return hit
        assert time.monotonic() < deadline, f"processes {there} do not die"
        time.sleep(0.02)


def within(environment: Mapping[str, str], temporary: Path) -> dict[str, str]:
    """An environment whose JVMs and Python processes put there what they leave behind when they are killed."""
    options = f'{environment.get("JAVA_TOOL_OPTIONS", "")} "-Djava.io.tmpdir={temporary}" -XX:-UsePerfData'.strip()
    folder = str(temporary)
    return {**environment, "TMPDIR": folder, "SPARK_LOCAL_DIRS": folder, "JAVA_TOOL_OPTIONS": options}


class Query:
    """A query in a driver."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number

    def wait(self, what: Callable[[dict[str, Any]], bool], timeout_s: float, complaint: str) -> dict[str, Any]:
        """The first event of this query that fits."""
        return self.session.wait(lambda event: event.get("id") == self.number and what(event), timeout_s, complaint)

    def started(self, timeout_s: float = 240.0) -> str:
        """The query's id."""
        event = self.wait(lambda e: e["event"] in ("started", "ended"), timeout_s, "the query did not start")
        assert event["event"] == "started", event
        return str(event["query"])

    def ended(self, timeout_s: float = 400.0) -> str:
        """What it ended with: empty, or the error."""
        return str(self.wait(lambda e: e["event"] == "ended", timeout_s, "the query did not end")["error"])

    def over(self) -> bool:
        """Whether it has ended."""
        return any(e.get("id") == self.number and e["event"] == "ended" for e in self.session.events)

    def stands(self, timeout_s: float = 240.0) -> dict[str, Any]:
        """Waits until it stands still at the stage it was told."""
        return self.wait(lambda e: e["event"] == "waiting", timeout_s, "the query did not come to its stage")

    def go(self) -> None:
        """Go on from there."""
        self.session.send({"op": "go", "id": self.number})


class Session:
    """One Spark driver process."""

    numbers = iter(range(1, 1 << 30))

    def __init__(self, directory: Path, master: str = LOCAL) -> None:
        self.master = master
        self.number = next(self.numbers)
        self.log_file = directory / f"driver-{self.number}.log"
        self.events: list[dict[str, Any]] = []
        self.stopped = False
        self._changed = threading.Condition()
        self._temporary = Path(tempfile.mkdtemp(prefix="driver-"))
        env = within(spark_environment({**os.environ, "PYTHONPATH": PYTHONPATH}), self._temporary)
        env["SPARK_LOCAL_IP"] = "127.0.0.1"
        work = directory / f"driver-{self.number}"
        work.mkdir(parents=True)
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.matrix.driver", master, str(work)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=env,
                start_new_session=True,
            )
        self.pid = self.process.pid
        threading.Thread(target=self._read, daemon=True).start()

    def ready(self) -> Session:
        """Waits until Spark has started."""
        self.wait(lambda event: event["event"] == "ready", START_S, "Spark did not start")
        return self

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith(b"{"):
                continue
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait(self, what: Callable[[dict[str, Any]], bool], timeout_s: float, complaint: str) -> dict[str, Any]:
        """The first event that fits; AssertionError when it does not come."""

        def found() -> dict[str, Any] | None:
            return next((event for event in self.events if what(event)), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, timeout_s), (
                f"{complaint} in {timeout_s:.0f} s, see {self.log_file}; last: {self.events[-3:]}"
            )
        event = found()
        assert event is not None
        return event

    def send(self, command: dict[str, Any]) -> None:
        """A command for the driver."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def start(self, **given: Any) -> Query:
        """Start a query."""
        query = Query(self, next(self.numbers))
        self.send({"op": "start", "id": query.number, **given})
        return query

    @property
    def alive(self) -> bool:
        """Whether the driver runs."""
        return self.process.poll() is None

    def kill(self) -> str:
        """SIGKILL to driver, JVM and workers at once; what was done."""
        hit = signal_all(self.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)
        assert self.process.returncode == -signal.SIGKILL, self.process.returncode
        return f"driver {self.pid} and {len(hit) - 1} processes of it killed with SIGKILL"

    def stop(self) -> str:
        """SIGSTOP to all of them."""
        hit = signal_all(self.pid, signal.SIGSTOP)
        self.stopped = True
        eventually(lambda: all(state_of(pid) in ("T", "") for pid in hit), f"all of {hit} stand still", 20)
        return f"driver {self.pid} and {len(hit) - 1} processes of it stopped with SIGSTOP"

    def resume(self) -> str:
        """SIGCONT."""
        signal_all(self.pid, signal.SIGCONT)
        self.stopped = False
        return f"driver {self.pid} resumed with SIGCONT"

    def close(self) -> None:
        """End, without ceremony."""
        with contextlib.suppress(AssertionError, ProcessLookupError):
            signal_all(self.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def log(self) -> str:
        """What Spark logged."""
        return self.log_file.read_text(errors="replace")


class Standalone:
    """A standalone cluster: a master, and two workers on two loopback addresses, which Spark takes for two hosts.

    ``environment``: of its processes, otherwise one in which executors import this checkout.
    """

    HOSTS = ("127.0.0.2", "127.0.0.3")

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        import pyspark

        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        home = Path(pyspark.__file__).parent
        self._temporary = Path(tempfile.mkdtemp(prefix="cluster-"))
        given = environment or spark_environment({**os.environ, "PYTHONPATH": PYTHONPATH})
        self._env = within(given, self._temporary)
        java = Path(self._env["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in self._env else Path("java")
        self._java = [str(java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{home}/jars/*"]
        self._env |= {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13", "SPARK_WORKER_DIR": str(directory)}
        self.port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        directory = self.directory
        self._spawn("master", "Master", "127.0.0.1", "--port", str(self.port), "--webui-port", "0")
        self._logged("master", "I have been elected leader")
        for host in self.HOSTS:
            work = directory / f"work-{host}"
            more = ("--cores", str(CLUSTER_CORES), "--memory", "1g", "--webui-port", "0", "--work-dir", str(work))
            self.workers[host] = self._spawn(f"worker-{host}", "Worker", host, *more, self.master)
        for host in self.HOSTS:
            self._logged(f"worker-{host}", "Successfully registered with master")

    @property
    def master(self) -> str:
        """Spark's name of the cluster."""
        return f"spark://127.0.0.1:{self.port}"

    def _spawn(self, name: str, what: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [*self._java, f"org.apache.spark.deploy.{what.lower()}.{what}", "--host", host, *arguments]
        env = {**self._env, "SPARK_LOCAL_IP": host, "SPARK_LOCAL_HOSTNAME": host}
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, start_new_session=True
            )
        self._processes.append(process)
        return process

    def _logged(self, name: str, text: str) -> None:
        path = self.directory / f"{name}.log"
        eventually(lambda: text in path.read_text(errors="replace"), f"{path} says {text!r}", START_S)

    def executors(self) -> dict[str, int]:
        """The process of the executor on each host."""
        found = {}
        for host, worker in self.workers.items():
            for pid in processes_of(worker.pid):
                if "CoarseGrainedExecutorBackend" in command_line(pid):
                    found[host] = pid
        return found

    def kill_executor(self, host: str) -> str:
        """SIGKILL to an executor and its Python processes; its worker starts another."""
        pid = self.executors()[host]
        children = _descendants(pid)
        for one in [pid, *children]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        eventually(lambda: not command_line(pid), f"executor {pid} dies", 20)
        return f"executor on {host} (process {pid}) and {len(children)} Python processes killed with SIGKILL"

    def host_of(self, pid: int) -> str:
        """The host whose executor a process belongs to; empty for others."""
        return next((host for host, executor in self.executors().items() if pid in _descendants(executor)), "")

    def close(self) -> None:
        """End all."""
        for process in self._processes:
            signal_all(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


class Sessions:
    """Drivers that live over several scenarios: started when asked for, forgotten when they were harmed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._all: list[Session] = []
        self._lock = threading.Lock()
        self.cluster: Standalone | None = None

    def get(self, where: str = "local", but: tuple[Session, ...] = ()) -> Session:
        """A healthy driver, other than ``but``."""
        with self._lock:
            if where == "cluster" and self.cluster is None:
                self.cluster = Standalone(self.directory / "cluster")
            master = LOCAL if where == "local" else self.cluster.master if self.cluster else ""
            wanted = 2 if where == "local" else 1  # a spare one starts meanwhile; on a cluster it would take all cores
            there = [one for one in self._all if one.alive and not one.stopped and one.master == master]
            while len(there) < wanted or not set(there) - set(but):
                there.append(self._new(master))
        return next(one for one in there if one not in but).ready()

    def _new(self, master: str) -> Session:
        self._all.append(Session(self.directory, master))
        return self._all[-1]

    def keep_only(self, where: str) -> None:
        """End the drivers of the other kind: the machine is small."""
        for session in self._all:
            if session.alive and session.master.startswith("spark://") != (where == "cluster"):
                session.close()

    def close(self) -> None:
        """End all."""
        for session in self._all:
            session.close()
        if self.cluster is not None:
            self.cluster.close()
