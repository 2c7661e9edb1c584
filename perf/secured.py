"""``perf peers --tls`` and ``--sasl``: what TLS and logins cost a broker, beside Apache Kafka, by the same client.

CPU of the brokers' processes: per GB of records over TLS and without it, per 1,000 full handshakes (P-256) or logins
(PLAIN); and their memory for each idle connection. The client is a Python program, so nothing is said of throughput.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from fleetlog.brokers.cli.dev_security import load_or_make
from fleetlog.coordination.ports import free_ports
from perf.generator.frames import Frame, batch_of, fetch_frame, produce_frame
from perf.load import KIB, MIB, send_all
from perf.options import Options
from perf.results import Results
from perf.secure_client import API_VERSIONS, PASSWORD, USER, Door, ask, in_turns, load, trusting
from perf.targets import Address, Cluster
from perf.targets.base import HOST
from perf.targets.fleetlog import Fleetlog
from perf.targets.kafka import Kafka

HANDSHAKES, AT_ONCE, IDLE = 1_000, 8, 1_000
ENOUGH, WARM_UP_S = 20_000, (15.0, 90.0)
"""Answers before a load is measured, and the least and the most seconds that these may take."""
STEADY, LOOK_S = 0.03, 5.0
"""A broker is warm when a look of so many seconds costs no less CPU per answer, but this share, than the one before."""
PARTITIONS, DEPTH, FILL_BYTES = 4, 8, 4 * MIB
LISTENER = "SECURE"
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int]) -> float:
    """CPU time of processes so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / _TICKS


class Secured:
    """A cluster of one broker with a second listener. ``protocol`` as in ``listener.security.protocol.map``."""

    def __init__(self, cluster: Fleetlog | Kafka, protocol: str) -> None:
        self.cluster: Cluster = cluster
        self.protocol = protocol
        self.security = load_or_make(cluster.home)
        (port,) = free_ports(1)
        self.address = Address(HOST, port)
        plain = f"PLAINTEXT://{HOST}:{cluster.brokers[0].address.port}"
        secure = f"{LISTENER}://{HOST}:{port}"
        listeners, names = [plain, secure], ["PLAINTEXT:PLAINTEXT", f"{LISTENER}:{protocol}"]
        if isinstance(cluster, Kafka):
            listeners.append(f"CONTROLLER://{HOST}:{cluster.controllers[0]}")
            names.append("CONTROLLER:PLAINTEXT")
        cluster.settings |= {
            "listeners": ",".join(listeners),
            "advertised.listeners": f"{plain},{secure}",
            "listener.security.protocol.map": ",".join(names),
            "inter.broker.listener.name": "PLAINTEXT",
        }
        if "SSL" in protocol:
            store = {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.security.directory / "broker.pem"}
            cluster.settings |= store
        if "SASL" in protocol:
            users = f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config"
            cluster.settings |= {
                "sasl.enabled.mechanisms": "PLAIN", users: f'{_MODULE} required user_{USER}="{PASSWORD}";'
            }  # fmt: skip

    @property
    def door(self) -> Door:
        """For clients."""
        context = trusting(self.security.authority) if "SSL" in self.protocol else None
        return Door(self.address, context, "SASL" in self.protocol)

    @property
    def plain(self) -> Door:
        """The listener beside it."""
        return Door(self.cluster.brokers[0].address)

    def cpu_s(self) -> float:
        """CPU time of the brokers so far."""
        return cpu_s(self.cluster.pids)

    def rss_kib(self) -> int:
        """Memory of the brokers that is theirs alone."""
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self.cluster.pids]
        return sum(int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("RssAnon:"))


def run(options: Options) -> Results:
    """TLS, logins, or both."""
    results = Results.begin("peers-secured", rounds=options.rounds, seconds=options.measure_s)
    for protocol in (*(["SSL"] if options.tls else []), *(["SASL_PLAINTEXT"] if options.sasl else [])):
        with _compared(options, protocol) as clusters:
            _measure(results, options, clusters, protocol)
    return results


@contextlib.contextmanager
def _compared(options: Options, protocol: str) -> Iterator[list[Secured]]:
    with contextlib.ExitStack() as stack:
        found = [Secured(Kafka(1, options.directory), protocol), Secured(options.fleetlog(1), protocol)]
        for one in found:
            stack.enter_context(one.cluster.running())
        yield found


def _measure(results: Results, options: Options, clusters: list[Secured], protocol: str) -> None:
    kind = "TLS" if protocol == "SSL" else "PLAIN"
    for one in clusters:  # before loads leave free memory that connections would use
        results.add(f"memory of an idle connection, {kind}", one.cluster.label, {"kib": _idle_kib(one, one.door)})
    batch, records = batch_of(16 * KIB, KIB)
    for one in clusters:
        one.cluster.create_topic("filled", PARTITIONS)
        for number in range(PARTITIONS):
            send_all(one.cluster.brokers[0].address, produce_frame("filled", number, batch), FILL_BYTES // len(batch))
    produces = [produce_frame("filled", number, batch) for number in range(PARTITIONS)]
    fetches = [
        fetch_frame("filled", number, batch_bytes=len(batch), batch_records=records, max_bytes=MIB)
        for number in range(PARTITIONS)
    ]
    loads: list[tuple[str, list[Frame], int, int]] = [
        ("produce 16 KiB", produces, DEPTH, len(batch)),
        ("fetch 1 MiB", fetches, 1, MIB // len(batch) * len(batch)),
    ]
    for one in clusters:
        for door in (one.door, one.plain):
            for _, frames, depth, _ in loads:
                _warm(one, door, frames, depth)
    for round_ in range(options.rounds):
        for name, frames, depth, payload in loads:
            for one in clusters:
                for door, case in ((one.door, f"{kind} {name}"), (one.plain, f"plain {name}")):
                    row = _load(one, door, frames, depth, options.measure_s, payload)
                    if options.wanted(case):
                        results.add(case, one.cluster.label, row, round_=round_)
        for one in clusters:
            case = f"{HANDSHAKES} {'handshakes' if kind == 'TLS' else 'logins'}"
            row = {"cpu_s": _cost(one, lambda one=one: in_turns(HANDSHAKES, AT_ONCE, lambda: _visit(one.door)))}  # type: ignore[misc]
            if options.wanted(case):
                results.add(case, one.cluster.label, row, round_=round_)


def _warm(one: Secured, door: Door, frames: list[Frame], depth: int) -> None:
    """A JVM compiles what is used often, TLS among the last: until an answer costs what it did a while before."""
    done, best, began = 0, math.inf, time.monotonic()
    least_s, most_s = WARM_UP_S
    while time.monotonic() < began + most_s:
        before = one.cpu_s()
        answers = load(door, frames, depth, LOOK_S)
        done += answers
        each = (one.cpu_s() - before) / answers
        if each >= (1 - STEADY) * best and (done >= ENOUGH or time.monotonic() >= began + least_s):
            return
        best = min(best, each)


def _load(
    one: Secured, door: Door, frames: list[Frame], depth: int, seconds: float, payload: int
) -> dict[str, Any]:  # fmt: skip
    answers = 0

    def act() -> None:
        nonlocal answers
        answers = load(door, frames, depth, seconds)

    cpu_s = _cost(one, act)
    return {"cpu_s_gb": cpu_s / (answers * payload) * 1e9, "cpu_us_request": cpu_s / answers * 1e6}


def _cost(one: Secured, act: Callable[[], None]) -> float:
    before = one.cpu_s()
    act()
    return one.cpu_s() - before


def _visit(door: Door) -> None:
    with door.opened():
        pass


def _idle_kib(one: Secured, door: Door) -> float:
    """Anonymous memory of the broker for each connection that has asked once. A JVM's heap says little of it."""
    before = one.rss_kib()
    opened = []
    try:
        for _ in range(IDLE):
            sock = door.opened()
            opened.append(sock)
            ask(sock, API_VERSIONS, 0)
        time.sleep(1.0)
        return (one.rss_kib() - before) / IDLE
    finally:
        for sock in opened:
            sock.close()
