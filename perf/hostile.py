"""``python -m perf.hostile``: what clients that never log in do to one that has, by hand.

A broker with a listener of ``--protocol``; a client that is logged in produces 1 KiB every few ms, alone; then while
silent connections are open (``--silent``, as many as the limit of open files allows); then while handshakes come that
end with their first message (``--half-open`` connections, each again when the broker has closed it); then while garbage
comes instead of handshakes (``--garbage`` per second, by ``--senders`` processes). Its latencies are printed each time,
with the CPU and memory of the broker, what a connection costs it, and the CPU of the processes that connect: on a busy
machine, or where these take all that is left of it, only what a connection costs can be compared.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import resource
import selectors
import socket
import ssl
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from perf.generator.frames import Frame, batch_of, produce_frame
from perf.load import KIB
from perf.secure_client import Door, exchange
from perf.secured import Secured, cpu_s
from perf.targets import Address
from perf.targets.fleetlog import Fleetlog

PERIOD_S = 0.005
FILES_LEFT = 500
PER_ADDRESS = 10_000
"""Connections from one address of the loopback: its ports are not endless."""
GARBAGE_BYTES = 200
BATCH_S = 0.01


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m perf.hostile", description="clients that never log in")
    parser.add_argument("--silent", type=int, default=20_000, help="silent connections")
    parser.add_argument("--half-open", type=int, default=500, help="handshakes that are begun, at a time")
    parser.add_argument("--garbage", type=int, default=5_000, help="garbage handshakes per second")
    parser.add_argument("--senders", type=int, default=1, help="processes that send garbage")
    parser.add_argument("--protocol", choices=("SASL_SSL", "SASL_PLAINTEXT"), default="SASL_SSL")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each part is measured")
    options = parser.parse_args()
    silent = min(options.silent, _files(options.silent + FILES_LEFT) - FILES_LEFT)
    one = Secured(Fleetlog(1), options.protocol)
    with one.cluster.running():
        one.cluster.create_topic("t")
        frame = produce_frame("t", 0, batch_of(KIB, KIB)[0])
        alone = _measured("alone", one, frame, options.seconds)
        with _silent(one.address, silent) as opened:
            _measured(f"{opened} silent connections", one, frame, options.seconds)
        _measured("these are closed", one, frame, options.seconds)
        if "SSL" in options.protocol:
            with _senders(1, _begin_handshakes, one.address, options.half_open) as sent:
                found = _measured(f"{options.half_open} half-open handshakes", one, frame, options.seconds)
                _cost(sent(), found, alone)
        rate = options.garbage / options.senders
        with _senders(options.senders, _send_garbage, one.address, rate) as sent:
            found = _measured(f"garbage, {options.garbage} per second asked for", one, frame, options.seconds)
            _cost(sent(), found, alone)
        _measured("alone again", one, frame, options.seconds)
    return 0


def _files(wanted: int) -> int:
    """How many files this process and the broker may open: those wanted, if the system allows it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        most = wanted
    else:
        most = hard
        with contextlib.suppress(OSError, ValueError):  # an administrator may have more
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
            return wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


class Spent(NamedTuple):
    """How long a part took, and the broker's CPU time in it."""

    seconds: float
    cpu_s: float


def _measured(what: str, one: Secured, frame: Frame, seconds: float) -> Spent:
    """Print the latencies of a client that is logged in."""
    before, started = one.cpu_s(), time.monotonic()
    latencies = _latencies(one.door, frame, seconds)
    spent = Spent(time.monotonic() - started, one.cpu_s() - before)
    percentiles = statistics.quantiles(latencies, n=100, method="inclusive")
    print(
        f"{what:<50} p50 {percentiles[49] * 1e3:7.2f} ms  p99 {percentiles[98] * 1e3:7.2f} ms"
        f"  max {max(latencies) * 1e3:7.2f} ms  broker {spent.cpu_s / spent.seconds:.2f} cores"
        f"  {one.rss_kib() / 1024:.0f} MiB", flush=True,
    )  # fmt: skip
    return spent


class Sent(NamedTuple):
    """What the processes that connect have done: connections, and their own CPU time."""

    connections: int
    cpu_s: float


def _cost(sent: Sent, spent: Spent, alone: Spent) -> None:
    """Print what each of the connections has cost the broker, beside what its client costs it."""
    more_s = spent.cpu_s - alone.cpu_s / alone.seconds * spent.seconds
    each_us = more_s / sent.connections * 1e6 if sent.connections else float("nan")
    print(
        f"  {sent.connections / spent.seconds:.0f} connections per second, {each_us:.0f} us of CPU each; those that"
        f" connect take {sent.cpu_s / spent.seconds:.2f} cores", flush=True,
    )  # fmt: skip


def _latencies(door: Door, frame: Frame, seconds: float) -> list[float]:
    """Of one request after the other, each ``PERIOD_S`` after the one before was answered, in seconds."""
    found = []
    with door.opened() as sock:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter()
            exchange(sock, frame)
            found.append(time.perf_counter() - began)
            time.sleep(PERIOD_S)
    return found


@contextlib.contextmanager
def _silent(address: Address, count: int) -> Iterator[int]:
    """Connections that send nothing. Yields how many could be opened; the broker may close them meanwhile."""
    opened: list[socket.socket] = []
    try:
        for number in range(count):
            source = (f"127.0.0.{2 + number // PER_ADDRESS}", 0)
            try:
                opened.append(socket.create_connection(address, timeout=10, source_address=source))
            except OSError as error:
                print(f"  after {number} silent connections: {error}", file=sys.stderr)
                break
        yield len(opened)
    finally:
        for sock in opened:
            sock.close()


@contextlib.contextmanager
def _senders(count: int, act: Callable[[Address, Any, Any], None], *what: Any) -> Iterator[Callable[[], Sent]]:
    """Processes that open connections. Yields what counts these since then."""
    context = multiprocessing.get_context("fork")
    counts: list[Any] = [context.Value("q", 0, lock=False) for _ in range(count)]
    processes = [context.Process(target=act, args=(*what, one), daemon=True) for one in counts]
    for process in processes:
        process.start()

    def sent() -> Sent:
        taken_s = cpu_s(process.pid for process in processes if process.pid is not None)
        return Sent(sum(one.value for one in counts), taken_s)

    def since(now: Sent) -> Sent:
        return Sent(now.connections - before.connections, now.cpu_s - before.cpu_s)

    before = sent()
    try:
        yield lambda: since(sent())
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _send_garbage(address: Address, rate: float, count: Any) -> None:
    """It is made ahead, and sent by as few calls as there are: a busy sender takes a core from the broker."""
    noise, started, sent = random.Random(1), time.monotonic(), 0
    # every other one begins like a record of TLS
    heads = (b"", b"\x16\x03\x01\x00\xc3")
    garbage = [heads[number % 2] + noise.randbytes(GARBAGE_BYTES) for number in range(KIB)]
    where = tuple(address)
    while True:
        due = int((time.monotonic() - started) * rate)
        while sent < due:
            sock = socket.socket()
            with contextlib.suppress(OSError):
                sock.connect(where)
                sock.send(garbage[sent % KIB])
            sock.close()
            sent += 1
            count.value = sent
        time.sleep(BATCH_S)


def _begin_handshakes(address: Address, most: int, count: Any) -> None:
    """The first message of a client, and no other one; so many connections at a time."""
    wire = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), wire, server_hostname=address.host)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello, opened = wire.read(), selectors.DefaultSelector()
    while True:
        while len(opened.get_map()) < most:
            with contextlib.suppress(OSError):
                sock = socket.create_connection(address, timeout=5)
                sock.sendall(hello)
                opened.register(sock, selectors.EVENT_READ)
                count.value += 1
        for key, _ in opened.select(BATCH_S):
            sock = cast("socket.socket", key.fileobj)
            try:
                gone = not sock.recv(KIB * 16)
            except OSError:
                gone = True
            if gone:
                opened.unregister(sock)
                sock.close()


if __name__ == "__main__":
    sys.exit(main())
