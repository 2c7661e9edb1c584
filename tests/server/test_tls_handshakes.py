"""Handshakes on a real server: what peers that never finish one, or know nothing of TLS, may cost."""

from __future__ import annotations

import gc
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.audit.events import AuditSettings, EventSource, EventType
from fleetlog.brokers.audit.recorder import Audit
from fleetlog.brokers.server import tls_transport
from fleetlog.brokers.server.connection import TlsConnection
from fleetlog.brokers.server.listener import CONNECTIONS_PER_BROKER, MAX_WAITING
from fleetlog.brokers.server.tls_transport import TlsTransport
from fleetlog.brokers.tls import listeners as tls_listeners
from fleetlog.brokers.tls.machine import TlsEngine
from tests.server.memory import rss_mib
from tests.support.certificates import replaced
from tests.support.harness import RunningServer, beat
from tests.support.tls_listeners import Certificates, engines, handshakes, hello, waiting

HEARTBEAT = 12
REQUEST = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
CLIENTS = 150


@pytest.fixture
def server(certificates: Certificates) -> Iterator[RunningServer]:
    with RunningServer({HEARTBEAT: beat}, tls=[certificates.listener()]) as running:
        yield running
        running.until(lambda: waiting(running) == 0 and engines(running) == 0, "the end of all handshakes")


def raw(server: RunningServer, data: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.endpoint("SSL").port), timeout=20)
    sock.sendall(data)
    return sock


def is_served(server: RunningServer, certificates: Certificates) -> bool:
    client = server.client("SSL", certificates.client())
    try:
        return bool(client.ask(REQUEST, 4).error_code == 0)
    finally:
        client.close()


def everything(sock: socket.socket) -> bytes:
    """What the server sends until it closes."""
    data = b""
    try:
        while more := sock.recv(65_536):
            data += more
    except ConnectionResetError:
        pass
    return data


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "listener SSL" in record.getMessage()]


@pytest.mark.parametrize(
    "data",
    [
        m.encode_request(HEARTBEAT, 4, 1, "c", REQUEST),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x02",
        b"\x16\x03\x01\xff\xff" + b"x" * 30,
        b"\x16\x03\x01\x00\x05hello",
        b"\x16\x03\x01\x00\x00",
        os.urandom(1),
    ],
    ids=["kafka", "http", "version", "length", "hello", "empty", "byte"],
)
def test_a_peer_without_tls_is_closed_with_an_alert_and_one_line(
    server: RunningServer, certificates: Certificates, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    for _ in range(4):
        with raw(server, data) as sock:
            if len(data) == 1 and data != b"\x16":
                sock.shutdown(socket.SHUT_WR)
            if data == b"\x16" or data == b"\x16\x03\x01\x00\x00":
                continue
            answer = everything(sock)
            assert answer[:2] in (b"\x15\x03", b"")
    server.until(lambda: waiting(server) == 0, "the close")
    assert len(lines(caplog)) <= 1, lines(caplog)
    if len(data) > 10 and data[:1] != b"\x16":
        (line,) = lines(caplog)
        assert line == (
            "127.0.0.1: listener SSL is SSL, and the client does not speak TLS: set security.protocol=SSL at the "
            "client; the connection is closed"
        )
        assert server.refused("handshake") == 4
    assert is_served(server, certificates)


def test_connections_are_described_by_their_ids_also_where_a_handshake_took_longer(
    server: RunningServer, certificates: Certificates
) -> None:
    slow = raw(server)
    server.until(lambda: waiting(server) == 1, "the slow one")
    first, second = (server.client("SSL", certificates.client()) for _ in range(2))
    server.until(lambda: len(server.server) == 2, "two that were quicker")
    with certificates.client().wrap_socket(slow, server_hostname="127.0.0.1"):
        server.until(lambda: len(server.server) == 3, "the slow one")
        total, described = server.call(lambda: server.server.described(0))
        ids = server.call(lambda: [one.peer.id for one in described])
        assert (total, ids) == (3, sorted(ids)), "a page ends at an id: what is behind it has a higher one"
        assert server.call(lambda: [one.peer.id for one in server.server.described(ids[1])[1]]) == ids[2:]
        _, described = server.call(lambda: server.server.described(0))
        first.close()
        server.until(lambda: len(server.server) == 2, "the close")
        assert server.call(lambda: [one.peer.id for one in described]) == [ids[0], ids[2]], "it is gone meanwhile"
    second.close()


def test_garbage_gets_no_engine(
    server: RunningServer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What begins like TLS, too: it costs the socket, one look at it and an alert."""
    made: list[bool] = []
    own_init = TlsEngine.__init__

    def init(engine: TlsEngine, context: ssl.SSLContext, **sides: Any) -> None:
        made.append(sides["server_side"])
        own_init(engine, context, **sides)

    monkeypatch.setattr(TlsEngine, "__init__", init)
    head = b"\x16\x03\x01\x00\xc3"
    for number, data in enumerate([os.urandom(200), head + b"\x02" + os.urandom(199), head + b"\x01" + bytes(199)], 1):
        with raw(server, data) as sock:
            assert everything(sock)[:2] in (b"\x15\x03", b"")
        server.until(lambda number=number: server.refused("handshake") == number, "the count")
    assert made == []
    assert is_served(server, certificates)
    assert made == [True]


def test_accepted_connections_have_the_options_of_their_listener(server: RunningServer) -> None:
    """They inherit them: TCP_NODELAY, so that answers do not wait, and SO_KEEPALIVE, so that dead peers are noticed."""
    with raw(server):
        server.until(lambda: waiting(server) == 1, "the connection")
        (handshake,) = handshakes(server).all
        assert handshake.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert handshake.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_client_that_does_not_trust_the_broker_is_named(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        server.client("SSL", ssl.create_default_context())
    server.until(lambda: server.refused("handshake") == 1, "the count")
    assert "the peer refused TLS" in caplog.text
    assert "UNKNOWN_CA" in caplog.text


@pytest.mark.parametrize("case", ["two records", "other group", "both"])
def test_only_workers_sign(certificates: Certificates, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Also where the client's first message comes in two records, or it must send another one."""
    steps: list[tuple[str, int]] = []
    own_step = TlsEngine.handshake

    def step(engine: TlsEngine) -> bool:
        done = own_step(engine)
        if engine._server_side:
            steps.append((threading.current_thread().name, engine.outgoing_bytes))
        return done

    monkeypatch.setattr(TlsEngine, "handshake", step)
    listener = certificates.listener()
    if case != "two records":
        listener.context.set_ecdh_curve("secp384r1")  # no client has a share of it at first
    with RunningServer({HEARTBEAT: beat}, tls=[listener]) as server, raw(server) as sock:
        client = TlsEngine(certificates.client(), server_side=False, server_name="localhost")
        while not client.handshake():
            message = client.take()
            if case != "other group" and message[:1] == b"\x16":  # the first ones
                size = 5 + int.from_bytes(message[3:5], "big")
                behind = message[size:]
                for part in (message[5:105], message[105:size]):
                    sock.sendall(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part)
                    time.sleep(0.05)
                sock.sendall(behind)
            else:
                sock.sendall(message)
            client.feed(sock.recv(65_536))
        sock.sendall(client.take())
        server.until(lambda: len(server.server) == 1, "the handshake")
    signed = [thread for thread, made in steps if made >= tls_transport.FLIGHT_BYTES_MIN]
    assert signed, steps
    assert all(thread.startswith("fleetlog-tls") for thread in signed), steps
    assert len(steps) >= (4 if case == "both" else 3), steps
    assert not steps[-1][0].startswith("fleetlog-tls"), "the last step takes less than the way to a worker"


@pytest.mark.parametrize("own", ["", "mallory"])
def test_a_client_without_a_good_certificate_is_named(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, own: str
) -> None:
    listener = certificates.listener("SSL", "required")
    with RunningServer({HEARTBEAT: beat}, tls=[listener]) as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            server.client("SSL", certificates.client(certificates.mallory if own else "")).ask(REQUEST, 4)
        server.until(lambda: server.refused("handshake") == 1, "the count")
        assert ("the peer's certificate is not accepted" if own else "the client showed no certificate") in caplog.text
        assert server.client("SSL", certificates.client(certificates.alice)).ask(REQUEST, 4).error_code == 0


def test_silent_and_half_open_handshakes_are_closed_in_time(
    server: RunningServer, certificates: Certificates, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_transport, "HANDSHAKE_MS", 60_000)
    began = hello(certificates)
    silent, halfway, half_open = raw(server), raw(server, began[:40]), raw(server, began)
    assert half_open.recv(5)[:1] == b"\x16", "the server's flight"
    server.until(lambda: waiting(server) == 3, "three handshakes")
    assert server.call(lambda: engines(server)) == 1
    server.clock.ahead_ms += tls_transport.HANDSHAKE_MS - 6_000
    assert is_served(server, certificates)
    assert server.call(lambda: waiting(server)) == 3
    server.clock.ahead_ms += 6_000
    assert is_served(server, certificates)  # a timer of its own lets the wheel look at the clock
    for sock in (silent, halfway, half_open):
        everything(sock)
        sock.close()
    assert len(lines(caplog)) == 1
    assert server.refused("handshake") == 3


def test_the_time_of_a_login_begins_with_the_connection(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleetlog.brokers.logins.sasl import SaslListener
    from fleetlog.brokers.server import connection
    from fleetlog.brokers.server.login import PlainServer, verifier

    for module, name in ((connection, "LOGIN_MS"), (tls_transport, "HANDSHAKE_MS")):
        monkeypatch.setattr(module, name, 60_000)
    sasl = SaslListener({"PLAIN": lambda: PlainServer(verifier({"bob": "secret"}))}, {"PLAIN": 0})
    listener = certificates.listener("SASL_SSL")
    with RunningServer({HEARTBEAT: beat}, tls=[listener], logins={"SASL_SSL": sasl}) as server:
        sock = socket.create_connection(("127.0.0.1", server.endpoint("SASL_SSL").port), timeout=20)
        server.until(lambda: waiting(server) == 1, "the connection")
        server.clock.ahead_ms += 35_000
        slow = certificates.client().wrap_socket(sock, server_hostname="localhost")
        server.until(lambda: len(server.server) == 1, "the handshake")
        server.clock.ahead_ms += 30_000
        assert slow.recv(1) == b"", "it waits for 20 s, and the handshake was less than 40 s ago by the server's clock"


def test_beyond_the_bound_the_oldest_half_open_handshake_goes(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_transport, "UNDER_WAY_MAX", 5)
    began = hello(certificates)
    with RunningServer({HEARTBEAT: beat}, tls=[certificates.listener()]) as server:
        held = [raw(server, began) for _ in range(5)]
        for sock in held:
            assert sock.recv(1) == b"\x16"
        server.until(lambda: len(handshakes(server)._idle) == 5, "five half-open handshakes")
        assert is_served(server, certificates)
        assert server.refused("handshakes") == 1
        assert server.call(lambda: engines(server)) == 4
        for sock in held:
            sock.close()
        server.until(lambda: engines(server) == 0, "the end of all")


def test_many_clients_at_once_with_few_places(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is served though they outnumber the places by far: they wait for one."""
    monkeypatch.setattr(tls_transport, "UNDER_WAY_MAX", 10)
    monkeypatch.setattr(tls_transport, "ROOM_MS", 20_000)
    context = certificates.client()
    with RunningServer({HEARTBEAT: beat}, tls=[certificates.listener()]) as server:
        served: list[bool] = []

        def ask() -> None:
            served.append(server.client("SSL", context).ask(REQUEST, 4).error_code == 0)

        threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert served == [True] * CLIENTS
        assert server.refused("handshakes") == 0
        server.until(lambda: waiting(server) == 0 and engines(server) == 0, "the end of all handshakes")


def test_caps_count_handshakes_and_are_given_back(certificates: Certificates) -> None:
    settings = {"max.connections": "3"}
    with RunningServer({HEARTBEAT: beat}, settings, [certificates.listener()]) as server:
        silent = [raw(server) for _ in range(3)]
        server.until(lambda: waiting(server) == 3, "three handshakes")
        with raw(server) as fourth:
            assert everything(fourth) == b""
        assert server.refused("connections") == 1
        silent[0].close()
        server.until(lambda: waiting(server) == 2, "a place")
        silent[1].sendall(b"no TLS")
        everything(silent[1])
        server.until(lambda: waiting(server) == 1, "two places")
        assert is_served(server, certificates)
        assert is_served(server, certificates)
        silent[2].close()
        server.until(lambda: server.server.caps.count == 0, "all places")


def test_logins_by_certificate_are_audited(certificates: Certificates) -> None:
    server = RunningServer({HEARTBEAT: beat}, tls=[certificates.listener("SSL", "required")])
    settings = AuditSettings(types=frozenset({EventType.AUTHENTICATE}))
    server.audit = Audit(
        settings, EventSource("cluster", 1, "1"), server.clock, "User:broker", lambda listener: listener, {}
    )
    with server:
        assert server.client("SSL", certificates.client(certificates.alice)).ask(REQUEST, 4).error_code == 0
        with pytest.raises((ssl.SSLError, ConnectionError)):
            server.client("SSL", certificates.client(certificates.mallory)).ask(REQUEST, 4)
        server.until(lambda: server.refused("handshake") == 1, "the refusal")
        accepted, refused = (json.loads(event) for event in server.audit.trail.pending(10**6))
    assert (accepted["user"]["name"], accepted["status_id"]) == ("CN=alice,O=fleet", 1)
    assert (accepted["auth_protocol"], accepted["is_cleartext"]) == ("SSL/CERTIFICATE", False)
    assert (refused["status_id"], refused["src_endpoint"]) == (2, {"ip": "127.0.0.1"})
    assert "the peer's certificate is not accepted" in refused["status_detail"]


def test_no_room_is_kept_where_no_broker_comes(certificates: Certificates) -> None:
    """A handshake would cost more than to refuse the connection."""
    with RunningServer({HEARTBEAT: beat}, {"max.connections": "1"}, [certificates.listener()]) as server:
        server.call(lambda: setattr(server.metadata, "brokers", dict.fromkeys((1, 2, 3))))
        first = server.client("SSL", certificates.client())
        server.until(lambda: len(server.server) == 1, "the first")
        with raw(server) as second:
            assert everything(second) == b""
        assert server.refused("connections") == 1
        assert waiting(server) == 0
        assert first.ask(REQUEST, 4).error_code == 0


def named(client_id: str) -> bytes:
    return m.encode_request(HEARTBEAT, 4, 5, client_id, REQUEST)


def test_other_brokers_have_room_beside_the_caps(certificates: Certificates) -> None:
    context = certificates.client()
    settings = {"max.connections": "1", "listeners": "SSL://127.0.0.1:0"}
    with RunningServer({HEARTBEAT: beat}, settings, [certificates.listener()]) as server:
        first = server.client("SSL", context)
        server.until(lambda: len(server.server) == 1, "the first")
        with raw(server) as alone:
            assert everything(alone) == b"", "there is no other broker yet"
        server.call(lambda: setattr(server.metadata, "brokers", dict.fromkeys((1, 2, 3))))
        for client_id in ("broker-1", "broker-4", "client"):
            stranger = server.client("SSL", context)
            stranger.raw(named(client_id))
            assert stranger.closed(), client_id
        silent = [raw(server) for _ in range(MAX_WAITING + 10)]
        server.until(lambda: server.refused("connections") == 14, "those that waited longest")
        links = [server.client("SSL", context) for _ in range(CONNECTIONS_PER_BROKER)]
        for number, link in enumerate(links):
            link.raw(named("broker-2") + named("broker-2"))
            for _ in range(2):
                assert link.frame()[:4] == b"\0\0\0\x05", number
        options = server.call(
            lambda: [
                (
                    one._sock._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
                    one._sock._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                )
                for one in server.server.connections.values()
            ]
        )
        assert options == [(1, 1)] * (CONNECTIONS_PER_BROKER + 1), "no answer waits for an acknowledgement"
        more = server.client("SSL", context)
        more.raw(named("replica-2"))
        assert more.closed(), "one broker doesn't take the room of the others"
        for link in links:
            link.close()
        server.until(lambda: len(server.server) == 1, "the close")
        assert server.call(lambda: server.server.caps.count) == 1
        again = server.client("SSL", context)
        again.raw(named("replica-3"))
        assert again.frame()[:4] == b"\0\0\0\x05"
        for one in silent:
            one.close()
        server.until(lambda: waiting(server) == 0, "no handshakes")
        assert first.ask(REQUEST, 4).error_code == 0


def test_a_stop_amid_handshakes(certificates: Certificates) -> None:
    with RunningServer({HEARTBEAT: beat}, tls=[certificates.listener()]) as server:
        socks = [raw(server, hello(certificates)) for _ in range(20)] + [raw(server)]
        server.until(lambda: waiting(server) > 10, "handshakes")
    for sock in socks:
        everything(sock)


def test_memory_of_silent_and_half_open_peers(server: RunningServer, certificates: Certificates) -> None:
    assert is_served(server, certificates)
    began = hello(certificates)
    for kind, data, limit_kib in (("silent", b"", 20), ("half-open", began, 100)):
        gc.collect()
        before = rss_mib(os.getpid())
        socks = [raw(server, data) for _ in range(300)]
        server.until(lambda: waiting(server) == 300, "the handshakes")
        server.until(lambda: not any(one.working for one in handshakes(server).all), "the workers")
        each = (rss_mib(os.getpid()) - before) * 1024 / 300
        print(f"{kind}: {each:.1f} KiB each, with the client's socket")
        assert each < limit_kib
        for sock in socks:
            sock.close()
        server.until(lambda: waiting(server) == 0, "their end")


# ---- certificates that change


def serial(server: RunningServer, certificates: Certificates) -> int:
    client = server.client("SSL", certificates.client())
    try:
        assert client.ask(REQUEST, 4).error_code == 0
        assert isinstance(client.sock, ssl.SSLSocket)
        shown = client.sock.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)
    finally:
        client.close()


def metric(server: RunningServer, name: str) -> float:
    value = server.metrics.registry.get_sample_value(f"fleetlog_certificate_{name}", {"listener": "SSL"})
    assert value is not None
    return value


def test_a_new_certificate_is_taken_over_and_a_bad_one_is_not(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(tls_listeners, "CHECK_MS", 50)
    path = certificates.authority.pair("/O=fleet/CN=broker", days=2).store(tmp_path / "own.pem")
    listener = certificates.listener("SSL", keystore_location=path)
    with RunningServer({HEARTBEAT: beat}, tls=[listener]) as server:
        old = server.client("SSL", certificates.client())
        first = serial(server, certificates)
        assert 86_400 < metric(server, "seconds") < 2 * 86_400
        pair = certificates.authority.pair("/O=fleet/CN=broker", days=20)
        replaced(path, pair.key + pair.chain)
        server.until(lambda: metric(server, "seconds") > 10 * 86_400, "the new certificate")
        second = serial(server, certificates)
        assert second != first
        assert "listener SSL: the certificate was replaced" in caplog.text
        other = certificates.authority.pair("/O=fleet/CN=broker")
        replaced(path, other.key + pair.chain)
        server.until(lambda: metric(server, "refused") == 1, "the refusal")
        assert serial(server, certificates) == second
        time.sleep(0.3)
        refusals = [line for line in caplog.messages if "the old certificate stays in use" in line]
        assert len(refusals) == 1
        assert "ssl.keystore.location" in refusals[0]
        assert "the private key does not belong to the first certificate" in refusals[0]
        replaced(path, other.key + other.chain)
        server.until(lambda: metric(server, "refused") == 0, "the third certificate")
        assert serial(server, certificates) not in (first, second)
        assert old.ask(REQUEST, 4).error_code == 0, "a connection from before the first change"


@pytest.mark.parametrize("end", ["goes", "breaks", "opens", "breaks later"])
def test_a_connection_that_ends_leaves_nothing_to_the_garbage_collector(
    server: RunningServer, certificates: Certificates, end: str
) -> None:
    """What waits for a full collection waits for very long: a flood of begun handshakes took 12 KB each for good."""
    assert is_served(server, certificates)
    garbage = b"\x17\x03\x03\x00\x40" + bytes(0x40)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            if end in ("opens", "breaks later"):
                client = server.client("SSL", certificates.client())
                assert client.ask(REQUEST, 4).error_code == 0
                if end == "breaks later":
                    os.write(client.sock.fileno(), garbage)
                    with pytest.raises(ssl.SSLError):
                        client.sock.recv(1)
                client.close()
                continue
            with raw(server, hello(certificates)) as sock:
                assert sock.recv(5)[:2] == b"\x16\x03"
                if end == "breaks":
                    sock.sendall(garbage)
                    everything(sock)
        server.until(lambda: waiting(server) == 0 and engines(server) == 0, "the end of all handshakes")
        server.until(lambda: not left_over(), "the end of all connections")
    finally:
        gc.enable()


def left_over() -> list[Any]:
    """What connections with TLS are made of."""
    kinds = (tls_transport.Handshake, TlsEngine, TlsTransport, TlsConnection)
    return [found for found in gc.get_objects() if type(found) in kinds]
