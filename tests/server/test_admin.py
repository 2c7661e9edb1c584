"""The operators' HTTP endpoint."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from fleetlog.brokers.config import load_config
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.server import admin as admin_module
from fleetlog.brokers.server.admin import MAX_REQUEST, MAX_SCRAPES, ROOM, TIMEOUT_SECONDS, Admin, admin_contexts
from fleetlog.brokers.setting_kinds import ConfigError
from tests.support.tls_listeners import Certificates
from tests.support.waiting import eventually_async


def test_health_and_metrics_are_served() -> None:
    metrics = Metrics()
    metrics.request_seconds.labels("Produce").observe(0.001, 3)
    missing: list[str | None] = ["starting"]
    troubles: list[str] = []
    admin = Admin(metrics, lambda: missing[0], lambda: troubles)

    async def run() -> None:
        port = await admin.start("127.0.0.1", 0)
        loop = asyncio.get_running_loop()

        def get(path: str) -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        assert await loop.run_in_executor(None, get, "/health/live") == (200, "live\n")
        assert await loop.run_in_executor(None, get, "/health/ready") == (503, "not ready: starting\n")
        missing[0] = None
        assert await loop.run_in_executor(None, get, "/health/ready?verbose") == (200, "ready\n")
        troubles.extend(["log directory /a has no room", "log directory /b is offline"])
        said = "ready\nbut: log directory /a has no room\nbut: log directory /b is offline\n"
        assert await loop.run_in_executor(None, get, "/health/ready") == (200, said)
        status, text = await loop.run_in_executor(None, get, "/metrics")
        assert status == 200
        assert 'fleetlog_requests_total{api="Produce"} 3.0' in text
        assert (await loop.run_in_executor(None, get, "/else"))[0] == 404
        await admin.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "head", [b"POST / HTTP/1.1\r\n\r\n", b"\r\n\r\n", b"GET /\r\n\r\n", b"\xff\x00 \x01 \x02\r\n\r\n"]
)
def test_anything_but_get_is_refused(head: bytes) -> None:
    assert asyncio.run(Admin(Metrics(), lambda: None).answer(head)).startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\n"], ids=["silent", "half a head"])
def test_silent_connections_shut_out_no_probe(sent: bytes) -> None:
    """More threads than there is room open one again as soon as theirs is closed; each probe waits a second."""
    metrics = Metrics()
    admin = Admin(metrics, lambda: None)
    stopped = threading.Event()

    def hold(port: int) -> None:
        while not stopped.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as held:
                held.sendall(sent)
                held.settimeout(TIMEOUT_SECONDS + 1)
                held.recv(1)

    def probe(port: int) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/live", timeout=1) as answer:
            return int(answer.status)

    async def run() -> None:
        port = await admin.start("127.0.0.1", 0)
        holders = [threading.Thread(target=hold, args=(port,), daemon=True) for _ in range(ROOM + 44)]
        for holder in holders:
            holder.start()
        await eventually_async(lambda: len(admin._open), "the room is full", good=ROOM.__le__)
        loop = asyncio.get_running_loop()
        assert [await loop.run_in_executor(None, probe, port) for _ in range(20)] == [200] * 20
        stopped.set()
        await admin.close()
        for holder in holders:
            await loop.run_in_executor(None, holder.join, 20)

    asyncio.run(run())


def test_scrapes_that_hang_take_no_place_from_probes() -> None:
    """Their pages are made on the broker's loop, which stands still here; one too many is refused."""
    metrics = Metrics()
    admin = Admin(metrics, lambda: None)

    async def run() -> None:
        port = await admin.start("127.0.0.1", 0)
        scrapes = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_SCRAPES + 1)]
        for scrape in scrapes:
            scrape.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        # on the broker's loop itself, which this keeps from making the pages
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/live", timeout=1) as answer:
            assert answer.status == 200
        assert scrapes[-1].recv(100).startswith(b"HTTP/1.1 503 ")
        for scrape in scrapes:
            scrape.close()
        await admin.close()

    asyncio.run(run())


def test_a_request_without_end_is_dropped() -> None:
    admin = Admin(Metrics(), lambda: None)

    async def run() -> None:
        port = await admin.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"x" * (2 * MAX_REQUEST))
        assert await reader.read() == b""
        writer.close()
        await admin.close()

    asyncio.run(run())


class _Hurried(asyncio.SelectorEventLoop):
    """An event loop whose clock is ``ahead`` by so many seconds."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


@pytest.mark.parametrize("head", [b"", b"GET /health/live HTTP/1.1\r\n"], ids=["silent", "begun"])
def test_a_head_that_drips_has_five_seconds(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    """Each byte is in time after the one before it; a probe that is answered shows that the clock was looked at."""
    monkeypatch.setattr(asyncio, "SelectorEventLoop", _Hurried)
    monkeypatch.setattr(_Hurried, "ahead", 0.0)
    admin = Admin(Metrics(), lambda: None)

    def drip(port: int) -> list[int]:
        """At which seconds it was still open."""
        still_open = []
        with socket.create_connection(("127.0.0.1", port), 10) as slow:
            slow.sendall(head)
            for second in range(8):
                _Hurried.ahead = float(second)
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/live", timeout=10) as answer:
                    assert answer.status == 200
                slow.settimeout(0.2 if second < 6 else 10)
                try:
                    if slow.recv(1) == b"":
                        break
                except TimeoutError:
                    still_open.append(second)
                except ConnectionResetError:
                    break
                with suppress(OSError):
                    slow.sendall(b"X")
        return still_open

    async def run() -> None:
        port = await admin.start("127.0.0.1", 0)
        still_open = await asyncio.get_running_loop().run_in_executor(None, drip, port)
        await admin.close()
        assert {0, 1, 2} <= set(still_open) <= set(range(6))

    asyncio.run(run())


BROKER = "broker.id=1\nzookeeper.connect=a:1\n"


def test_pages_over_tls_with_certificates_that_change(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    config = load_config(
        f"{BROKER}admin.listener=127.0.0.1:9644\nadmin.ssl.keystore.type=PEM\n"
        f"admin.ssl.keystore.location={made.broker_file}\nadmin.ssl.client.auth=required\n"
        f"admin.ssl.truststore.type=PEM\nadmin.ssl.truststore.location={made.authority.file}\n"
    )
    assert config.without_effect() == []
    contexts = admin_contexts(config, time.time)
    assert contexts is not None
    admin = Admin(Metrics(), lambda: None)

    def get(port: int, context: ssl.SSLContext) -> tuple[int, str, int]:
        plain = socket.create_connection(("127.0.0.1", port), 10)
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            certificate = connection.getpeercert() or {}
            connection.sendall(b"GET /health/ready HTTP/1.1\r\n\r\n")
            text = b"".join(iter(lambda: connection.recv(1000), b"")).decode()
        if not text:
            raise ConnectionError("closed without an answer")
        return int(text.split()[1]), text.rpartition("\r\n")[2], int(str(certificate["serialNumber"]), 16)

    async def run() -> None:
        port = await admin.start("127.0.0.1", 0, contexts.newest)
        loop = asyncio.get_running_loop()
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(16)]
        alice = made.client(made.alice)
        status, text, first = await loop.run_in_executor(None, get, port, alice)
        assert (status, text) == (200, "ready\n")
        made.authority.pair("/O=fleet/CN=broker").store(Path(made.broker_file))
        assert (await loop.run_in_executor(None, get, port, alice))[2] != first
        for refused in (made.client(), made.client(made.mallory)):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await loop.run_in_executor(None, get, port, refused)
        with socket.create_connection(("127.0.0.1", port), 10) as plain:
            plain.sendall(b"GET /health/ready HTTP/1.1\r\n\r\n")
            assert b"ready" not in await loop.run_in_executor(None, plain.recv, 1000)
        for one in silent:
            one.close()
        await admin.close()

    asyncio.run(run())


def accepted(port: int) -> int:
    """How many sockets of this process are the server's end of a connection to that port."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                found += not listens and one.getsockname()[1:2] == (port,)
    return found


@pytest.mark.parametrize("asks", [True, False], ids=["answered", "too late"])
def test_a_peer_that_never_ends_tls_keeps_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    """Its place is free when its socket is closed, and that is soon."""
    made = Certificates(tmp_path)
    config = load_config(
        f"{BROKER}admin.listener=127.0.0.1:9644\nadmin.ssl.keystore.type=PEM\n"
        f"admin.ssl.keystore.location={made.broker_file}\n"
    )
    contexts = admin_contexts(config, time.time)
    assert contexts is not None
    monkeypatch.setattr(admin_module, "TIMEOUT_SECONDS", 4.0)
    admin = Admin(Metrics(), lambda: None)

    def connected(port: int) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port), 10)
        return made.client().wrap_socket(plain, server_hostname="localhost")

    async def run() -> None:
        port = await admin.start("127.0.0.1", 0, contexts.newest)
        loop = asyncio.get_running_loop()
        peers = await asyncio.gather(*(loop.run_in_executor(None, connected, port) for _ in range(5)))
        for one in peers if asks else []:
            one.sendall(b"GET /health/live HTTP/1.1\r\n\r\n")
        await eventually_async(lambda: (len(admin._open), accepted(port)), "all are there", good=(5, 5).__eq__)
        # sooner than asyncio closes them by itself, which is after 30 s
        await eventually_async(lambda: (len(admin._open), accepted(port)), "all are gone", 20, good=(0, 0).__eq__)
        for one in peers:
            one.close()
        await admin.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("admin.listener=127.0.0.1:1\nadmin.ssl.client.auth=required\n", r"admin\.ssl\.truststore\.location"),
        ("admin.listener=127.0.0.1:1\nadmin.ssl.enabled.protocols=TLSv1.3\n", r"admin\.ssl\.keystore\.location"),
        ("admin.ssl.keystore.location=/x\n", r"there is no admin\.listener"),
    ],
)
def test_half_of_tls_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        admin_contexts(load_config(BROKER + text), time.time)
