"""Hosts for the chaos runs: each has a network namespace with one TUN device, all joined by the switch.

Everything between two hosts can be cut or delayed, one way or both: clients, brokers and ZooKeeper nodes are hosts, so
every kind of connection goes through it, also those between ZooKeeper nodes. What is cut is silent, as on a real
network: no reset, no refusal. The whole run is in namespaces of its own (:func:`isolate`), which the kernel takes
away with the last process. Where namespaces aren't allowed, relays on the loopback do the same for TCP connections.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import logging
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.chaos import relay, switch

_CLONE_NEWNS, _CLONE_NEWNET = 0x0002_0000, 0x4000_0000
_MS_REC, _MS_PRIVATE = 0x4000, 0x4_0000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x4004_54CA, 0x0001, 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


class NetworkError(Exception):
    """Namespaces or TUN devices cannot be had here; the message says which call was refused."""


def _call(name: str, *args: object) -> None:
    if getattr(_libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise NetworkError(f"{name}{args}: {os.strerror(number)}")


def isolate() -> None:
    """Move this process into a mount and a network namespace of its own; raises NetworkError where that isn't
    allowed."""
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


class Counts(NamedTuple):
    """Packets of one direction between two hosts."""

    passed: int
    dropped: int
    delayed: int


class Network:
    """The hosts by name, and what is wrong between them. The caller's own process is the first host."""

    name = ""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = list(hosts)
        self._number = {name: number for number, name in enumerate(self.hosts)}

    def _start(self, module: str, log: Path, descriptors: Sequence[int], *arguments: str) -> None:
        self._control, theirs = socket.socketpair()
        self._answers = self._control.makefile("r")
        inherited = (theirs.fileno(), *descriptors)
        command = [sys.executable, "-m", module, str(theirs.fileno()), *map(str, descriptors), *arguments]
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, pass_fds=inherited, stdout=out, stderr=out, cwd=Path(__file__).parents[2]
            )
        theirs.close()

    def address(self, host: str) -> str:
        """The host's IPv4 address."""
        raise NotImplementedError

    def environment(self, host: str) -> dict[str, str]:
        """What a process on the host needs in its environment."""
        return {}

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """The calling thread is on the host within the block: what it starts there stays there."""
        yield

    def _ask(self, command: dict[str, object]) -> object:
        self._control.sendall(json.dumps(command).encode() + b"\n")
        line = self._answers.readline()
        if not line:
            raise NetworkError(f"the {self.name} ended with {self._process.wait()}")
        return json.loads(line)

    def rule(self, pairs: Iterable[tuple[str, str]], *, drop: bool = False, delay_ms: float = 0.0) -> None:
        """For each (from, to): drop everything, or hold it for a while; neither: as it should be."""
        number = self._number
        self._ask({"rules": [(number[a], number[b], drop, delay_ms) for a, b in pairs]})

    def hold_answer(self, client: str, server: str, port: int, api: int, seconds: float) -> None:
        """Hold what the connection of the client's next request of this Kafka API answers, and nothing else.

        Port 0: no request is waited for any more.
        """
        self._ask({"hold": [self._number[client], self._number[server], port, api, seconds]})

    def heal(self) -> None:
        """Everything passes at once again; what is held still arrives."""
        self._ask({"heal": True})

    def counts(self) -> dict[tuple[str, str], Counts]:
        """What happened so far between each two hosts."""
        rows = self._ask({"counts": True})
        assert isinstance(rows, list)
        return {(self.hosts[a], self.hosts[b]): Counts(*rest) for a, b, *rest in rows}

    def close(self) -> None:
        """End the process that carries everything."""
        self._answers.close()
        self._control.close()
        self._process.wait()


class Namespaces(Network):
    """Hosts are network namespaces; a switch carries their packets."""

    name = "switch"

    def __init__(self, hosts: Sequence[str], log: Path) -> None:
        super().__init__(hosts)
        self._own = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._namespaces: dict[str, int] = {self.hosts[0]: self._own}
        devices = []
        for name in self.hosts:
            if name != self.hosts[0]:
                _call("unshare", _CLONE_NEWNET)
                self._namespaces[name] = os.open("/proc/self/ns/net", os.O_RDONLY)
            devices.append(self._device(name))
        _call("setns", self._own, _CLONE_NEWNET)
        self._start("tests.chaos.switch", log, devices)
        for descriptor in devices:
            os.close(descriptor)

    def _device(self, name: str) -> int:
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"tun0", _IFF_TUN | _IFF_NO_PI))
        except OSError as problem:
            raise NetworkError(f"/dev/net/tun: {problem}") from problem
        for line in (
            "link set lo up",
            f"link set tun0 mtu {switch.MTU} up",
            f"addr add {self.address(name)}/24 dev tun0",
        ):
            done = subprocess.run(["ip", *line.split()], capture_output=True, text=True, check=False)
            if done.returncode:
                raise NetworkError(f"ip {line}: {done.stderr.strip()}")
        return device

    def address(self, host: str) -> str:
        return f"{switch.PREFIX}.{self._number[host] + switch.FIRST}"

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        _call("setns", self._namespaces[host], _CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", self._own, _CLONE_NEWNET)


class Relays(Network):
    """Hosts are addresses of the loopback; relays carry their connections. The shim must be preloaded."""

    name = "relays"

    def __init__(self, hosts: Sequence[str], log: Path, ports: Iterable[int], shim: Path) -> None:
        super().__init__(hosts)
        self._shim = shim
        self._start("tests.chaos.relay", log, (), str(len(self.hosts)), ",".join(map(str, ports)))

    def address(self, host: str) -> str:
        return f"{relay.PREFIX}.0.{self._number[host] + relay.FIRST}"

    def environment(self, host: str) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._shim), "CHAOS_HOST": str(self._number[host] + relay.FIRST)}


def open_network(kind: str, hosts: Sequence[str], log: Path, ports: Iterable[int], shim: Path) -> Network:
    """``namespaces``, ``relays``, or ``auto``: the first where it is allowed, else the second. Raises NetworkError."""
    if kind != "relays":
        try:
            _call("unshare", _CLONE_NEWNET)
            return Namespaces(hosts, log)
        except (NetworkError, FileNotFoundError) as problem:
            if kind == "namespaces":
                raise NetworkError(str(problem)) from problem
            logging.getLogger("chaos").warning("relays instead of namespaces: %s", problem)
    return Relays(hosts, log, ports, shim)
