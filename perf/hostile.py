"""``python -m perf.hostile``: what clients that never log in do to one that has, by hand.

A broker with a SASL_SSL listener; a client that is logged in produces 1 KiB every few ms, alone; then while silent
connections are open (``--silent``, as many as the limit of open files allows); then while garbage comes instead of
handshakes (``--garbage`` per second). Its latencies are printed each time, with the CPU and memory of the broker.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from perf.generator.frames import Frame, batch_of, produce_frame
from perf.load import KIB
from perf.secure_client import Door, exchange
from perf.secured import Secured
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
    parser.add_argument("--garbage", type=int, default=5_000, help="garbage handshakes per second")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each part is measured")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    silent = options.silent if hard == resource.RLIM_INFINITY else min(options.silent, hard - FILES_LEFT)
    one = Secured(Fleetlog(1), "SASL_SSL")
    with one.cluster.running():
        one.cluster.create_topic("t")
        frame = produce_frame("t", 0, batch_of(KIB, KIB)[0])
        _measured("alone", one, frame, options.seconds)
        with _silent(one.address, silent) as opened:
            _measured(f"{opened} silent connections", one, frame, options.seconds)
        _measured("these are closed", one, frame, options.seconds)
        with _garbage(one.address, options.garbage) as sent:
            seconds = _measured(f"garbage, {options.garbage} per second asked for", one, frame, options.seconds)
        print(f"  garbage handshakes per second: {sent() / seconds:.0f}")
        _measured("alone again", one, frame, options.seconds)
    return 0


def _measured(what: str, one: Secured, frame: Frame, seconds: float) -> float:
    """Print the latencies of a client that is logged in; returns how long that took, in seconds."""
    before, started = one.cpu_s(), time.monotonic()
    latencies = _latencies(one.door, frame, seconds)
    took = time.monotonic() - started
    percentiles = statistics.quantiles(latencies, n=100, method="inclusive")
    print(
        f"{what:<50} p50 {percentiles[49] * 1e3:7.2f} ms  p99 {percentiles[98] * 1e3:7.2f} ms"
        f"  max {max(latencies) * 1e3:7.2f} ms  broker {(one.cpu_s() - before) / took:.2f} cores"
        f"  {one.rss_kib() / 1024:.0f} MiB", flush=True,
    )  # fmt: skip
    return took


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
def _garbage(address: Address, rate: int) -> Iterator[Callable[[], int]]:
    """Another process that opens connections, sends garbage and closes them. Yields what counts them."""
    count: Any = multiprocessing.get_context("fork").Value("q", 0)
    process = multiprocessing.get_context("fork").Process(
        target=_send_garbage, args=(address, rate, count), daemon=True
    )
    process.start()
    before = count.value
    try:
        yield lambda: int(count.value - before)
    finally:
        process.terminate()
        process.join()


def _send_garbage(address: Address, rate: int, count: Any) -> None:
    noise, started, sent = random.Random(1), time.monotonic(), 0
    while True:
        due = int((time.monotonic() - started) * rate)
        while sent < due:
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=5) as sock:
                # every other one begins like a record of TLS
                head = b"\x16\x03\x01\x00\xc3" if sent % 2 else b""
                sock.sendall(head + noise.randbytes(GARBAGE_BYTES))
            sent += 1
            count.value = sent
        time.sleep(BATCH_S)


if __name__ == "__main__":
    sys.exit(main())
