"""Connections with TLS or a login, for loads that are measured by what they cost the broker, not by their speed."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetlog.wire import messages
from perf.generator.frames import Frame
from perf.targets import Address, TargetError

SASL_HANDSHAKE, SASL_AUTHENTICATE, API_VERSIONS = 17, 36, 18
USER, PASSWORD = "perf", "of-perf-1"


@dataclass(frozen=True, slots=True)
class Door:
    """How to connect: with TLS where there is a context, by SASL PLAIN where ``logs_in``."""

    address: Address
    context: ssl.SSLContext | None = None
    logs_in: bool = False

    def opened(self) -> socket.socket:
        """A connection that is ready for requests."""
        sock = socket.create_connection(self.address, timeout=60)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.context is not None:
            sock = self.context.wrap_socket(sock, server_hostname=self.address.host)
        if self.logs_in:
            ask(sock, SASL_HANDSHAKE, 1, mechanism="PLAIN")
            ask(sock, SASL_AUTHENTICATE, 2, auth_bytes=f"\0{USER}\0{PASSWORD}".encode())
        return sock


def trusting(authority: Path) -> ssl.SSLContext:
    """A client's context; each of its connections shakes hands anew."""
    context = ssl.create_default_context(cafile=str(authority))
    context.options |= ssl.OP_NO_TICKET
    return context


def ask(sock: socket.socket, key: int, version: int, **fields: Any) -> Any:
    """One request and its answer. Raises TargetError for an answer with an error."""
    request = messages.request_class(key)(version=version, **fields)
    sock.sendall(messages.encode_request(key, version, 1, "perf", request))
    head = _whole(sock, bytearray(4))
    frame = memoryview(_whole(sock, bytearray(int.from_bytes(head, "big"))))
    _, body = messages.split_response(key, version, frame)
    answer = messages.decode_response(key, version, body)
    if answer.error_code:
        raise TargetError(f"request {key} was answered with error code {answer.error_code}")
    return answer


def _whole(sock: socket.socket, data: bytearray) -> bytearray:
    view = memoryview(data)
    while view:
        count = sock.recv_into(view)
        if not count:
            raise TargetError("the broker closed the connection")
        view = view[count:]
    return data


def load(door: Door, frames: Sequence[Frame], depth: int, seconds: float) -> int:
    """Each frame on a connection of its own, so many under way, for so long; the answers. Raises TargetError."""
    until = time.monotonic() + seconds
    counts, problems = [0] * len(frames), []

    def run(place: int, frame: Frame) -> None:
        try:
            with door.opened() as sock:
                counts[place] = _stream(sock, frame, depth, until)
        except (OSError, TargetError) as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=one) for one in enumerate(frames)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise TargetError(f"a connection failed: {problems[0]}")
    return sum(counts)


def exchange(sock: socket.socket, frame: Frame) -> None:
    """One request, and its answer. Raises TargetError for one with an error."""
    sock.sendall(frame.data)
    answer = _whole(sock, bytearray(int.from_bytes(_whole(sock, bytearray(4)), "big")))
    error = int.from_bytes(answer[frame.error_at : frame.error_at + 2], "big")
    if error:
        raise TargetError(f"an answer has error code {error}")


def _stream(sock: socket.socket, frame: Frame, depth: int, until: float) -> int:
    head, body, count, open_ = bytearray(4), bytearray(2 << 20), 0, 0
    while True:
        while open_ < depth and time.monotonic() < until:
            sock.sendall(frame.data)
            open_ += 1
        if not open_:
            return count
        size = int.from_bytes(_whole(sock, head), "big")
        view = memoryview(body)[:size]
        while view:
            got = sock.recv_into(view)
            if not got:
                raise TargetError("the broker closed the connection")
            view = view[got:]
        error = int.from_bytes(body[frame.error_at : frame.error_at + 2], "big")
        if error:
            raise TargetError(f"an answer has error code {error}")
        open_ -= 1
        count += 1


def in_turns(count: int, at_once: int, act: Callable[[], None]) -> None:
    """Do it so often, some at a time. Raises what one of them raised."""
    left, lock = [count], threading.Lock()
    problems: list[BaseException] = []

    def run() -> None:
        while not problems:
            with lock:
                if not left[0]:
                    return
                left[0] -= 1
            try:
                act()
            except (OSError, TargetError) as problem:
                problems.append(problem)

    threads = [threading.Thread(target=run) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
