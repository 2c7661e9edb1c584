"""Peers that send records of TLS without data in them: what they cost, and that small records are none of these."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

import fleetlog.wire.messages as m
from fleetlog.brokers.server.tls_transport import BARREN_BYTES_MAX, TlsBlocks, TlsTransport
from fleetlog.brokers.tls.contexts import server_context
from fleetlog.brokers.tls.machine import RECORD_BYTES_MAX, TlsEngine
from fleetlog.brokers.tls.settings import TlsSettings
from tests.support.harness import Client, RunningServer, beat
from tests.support.key_updates import SUITE, KeyUpdates, logs_keys
from tests.support.tls_listeners import Certificates

HEARTBEAT = 12
KIB = 1024


def request(number: int, padding: int = 0) -> bytes:
    asked = m.HeartbeatRequest(group_id="g" * padding, generation_id=number, member_id="m")
    return m.encode_request(HEARTBEAT, 4, number, "c", asked)


def client_of(server: RunningServer, certificates: Certificates, log: Path) -> tuple[Client, KeyUpdates]:
    client = server.client("SSL", logs_keys(certificates.client(version="TLSv1.3"), log))
    assert client.sock.cipher()[0] == SUITE  # type: ignore[attr-defined]
    return client, KeyUpdates(log)


def send(client: Client, records: bytes) -> None:
    with socket.socket(fileno=os.dup(client.sock.fileno())) as plain:
        plain.settimeout(20)
        plain.sendall(records)


def test_a_peer_that_sends_only_new_keys_is_closed(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningServer({HEARTBEAT: beat}, tls=[certificates.listener()]) as server:
        client, keys = client_of(server, certificates, tmp_path / "keys")
        sent = keys.updates(2 * BARREN_BYTES_MAX)
        with suppress(ConnectionError):  # the server has closed it amid them
            send(client, sent)
        server.until(lambda: len(server.server) == 0, "the close")
        assert server.refused("handshake") == 1
        assert f"more than {BARREN_BYTES_MAX} bytes without any data in them" in caplog.text
        assert server.call(lambda: server.server.held_bytes) == 0


def test_new_keys_between_requests_are_no_fault(certificates: Certificates, tmp_path: Path) -> None:
    with RunningServer({HEARTBEAT: beat}, tls=[certificates.listener()]) as server:
        client, keys = client_of(server, certificates, tmp_path / "keys")
        for number in range(4):
            sent = keys.updates(40 * KIB) + keys.data(request(number)) + keys.updates(27)
            send(client, sent)
            assert client.frame()[:4] == number.to_bytes(4, "big")


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_records_of_one_byte_are_served(certificates: Certificates, version: str) -> None:
    with RunningServer({HEARTBEAT: beat}, tls=[certificates.listener()]) as server:
        engine = TlsEngine(certificates.client(version=version), server_side=False, server_name="localhost")
        with socket.create_connection(("127.0.0.1", server.endpoint("SSL").port), timeout=10) as sock:
            while not engine.handshake():
                sock.sendall(engine.take())
                engine.feed(sock.recv(65_536))
            for byte in request(7, 20_000):
                engine.write(bytes([byte]))
            sent = engine.take()
            assert len(sent) > 5 * BARREN_BYTES_MAX
            sock.sendall(sent)
            answer = b""
            while len(answer) < 8:
                engine.feed(sock.recv(65_536))
                answer += engine.read(100)
            assert answer[4:8] == (7).to_bytes(4, "big")


def test_one_call_reads_one_piece_of_them(certificates: Certificates, tmp_path: Path) -> None:
    """The others' turn comes after it."""
    log = tmp_path / "keys"
    client_context = logs_keys(certificates.client(version="TLSv1.3"), log)
    settings = TlsSettings.of(certificates.settings())
    server = TlsEngine(server_context(settings, time.time()).context, server_side=True)
    client = TlsEngine(client_context, server_side=False, server_name="localhost")
    while not (client.handshake() and server.handshake()):
        server.feed(client.take())
        server.handshake()
        client.feed(server.take())
    keys = KeyUpdates(log)
    here, there = socket.socketpair()
    loop = uvloop.new_event_loop()
    for sock in (here, there):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 1024 * KIB)
    transport = TlsTransport(loop, here, server, TlsBlocks(), b"", b"", lambda _: None, lambda _: None)
    try:
        # one byte of data in each piece: such a peer is served, in turns
        length = RECORD_BYTES_MAX // 27 * 27 - 54
        sent = b"".join(keys.data(b"x") + keys.updates(length) for _ in range(8))
        assert there.send(sent) == len(sent)
        found, calls, buffer = b"", 0, memoryview(bytearray(256 * KIB))
        while len(found) < 8:
            before = server._fed_bytes
            try:
                count = transport.recv_into(buffer)
            except BlockingIOError:
                count = 0
            found += bytes(buffer[:count])
            assert server._fed_bytes - before <= RECORD_BYTES_MAX
            calls += 1
        assert found == b"x" * 8
        assert calls > 5
    finally:
        transport.close()
        there.close()
        loop.close()
