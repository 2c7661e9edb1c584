"""Connections with TLS on a real server: bytes are exact in both directions, order and bounds are those of others."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog._native.io import FilePart
from fleetlog.brokers.api.base import Done
from fleetlog.brokers.config import load_config
from fleetlog.brokers.logins.sasl import SaslListener
from fleetlog.brokers.model import Endpoint
from fleetlog.brokers.server import disk
from fleetlog.brokers.server.listener import Server
from fleetlog.brokers.server.login import PlainServer, verifier
from fleetlog.brokers.tls.machine import TlsEngine
from fleetlog.wire import hot
from tests.support.harness import RunningServer, beat
from tests.support.needs import lacks
from tests.support.tls_listeners import Certificates

PRODUCE, HEARTBEAT = 0, 12
MIB = 1024 * 1024
VERSIONS = ["TLSv1.2", "TLSv1.3"]


def heartbeat(number: int = 1, padding: int = 0) -> Any:
    return m.HeartbeatRequest(group_id="g" * padding, generation_id=number, member_id="m")


def principal(_: Any, context: Any) -> Done:
    return Done(context.connection.principal.encode())


class Piece:
    """A file slice that counts its release."""

    def __init__(self, file: Any, position: int, length: int) -> None:
        self.file, self.position, self.length, self.released = file, position, length, 0

    def fileno(self) -> int:
        return int(self.file.fileno())

    def part(self, position: int, length: int) -> FilePart:
        return FilePart(self.fileno(), position, length)

    def release(self) -> None:
        self.released += 1


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("sizes", [(10,), (70_000,), (5 * MIB, 3), (100, 200_000, 1, 64 * 1024, 16_384)])
def test_slices_of_files_are_sent_between_the_bytes(
    certificates: Certificates, sizes: tuple[int, ...], version: str
) -> None:
    content = os.urandom(8 * MIB)
    pieces: list[Piece] = []
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()

        def handler(*_: Any) -> Done:
            found: list[Any] = []
            position = 17
            for size in sizes:
                pieces.append(Piece(file, position, size))
                found += [b"<", pieces[-1], b">" * 20_000]
                position += size
            return Done(hot.Encoded(found))

        with RunningServer({HEARTBEAT: handler}, tls=[certificates.listener()]) as server:
            client = server.client("SSL", certificates.client(version=version))
            for number in range(3):
                client.send(heartbeat(), 0, number)
            for number in range(3):
                frame = client.frame()
                expected, position = number.to_bytes(4, "big"), 17
                for size in sizes:
                    expected += b"<" + content[position : position + size] + b">" * 20_000
                    position += size
                assert frame == expected
            server.until(lambda: all(piece.released == 1 for piece in pieces), "the release")
            assert server.call(lambda: server.server.held_bytes) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_cut_at_all_places_and_many_in_a_record(certificates: Certificates, version: str) -> None:
    executed: list[tuple[int, int]] = []

    def handler(request: Any, context: Any) -> Done:
        executed.append((request.generation_id, len(request.group_id)))
        return beat(request, context)

    sizes = [0, 30_000, 5, 15_000, 16_384, 1, 2]
    wanted = [(number, sizes[number % len(sizes)]) for number in range(200)]
    stream = b"".join(m.encode_request(HEARTBEAT, 4, n, "c", heartbeat(n, padding)) for n, padding in wanted)
    with RunningServer({HEARTBEAT: handler}, tls=[certificates.listener()]) as server:
        for piece in (7, 4_099, 16_384, 100_000):
            executed.clear()
            client = server.client("SSL", certificates.client(version=version))
            begin = 3_000 if piece == 7 else 0
            for at in range(0, begin, 7):
                client.raw(stream[at : at + 7])
            for at in range(begin - begin % 7 + (7 if begin % 7 else 0), len(stream), max(piece, 1_000)):
                client.raw(stream[at : at + max(piece, 1_000)])
            for number in range(200):
                assert int.from_bytes(client.frame()[:4], "big") == number
            assert executed == wanted
            client.close()


def test_a_large_request_arrives_whole(certificates: Certificates) -> None:
    found: list[bytes] = []

    def handler(request: Any, context: Any) -> Done:
        found.append(bytes(request.parts[0].records))
        return Done(m.ProduceResponse(version=context.api_version))

    topic = m.ProduceRequest.TopicProduceData
    with RunningServer({PRODUCE: handler}, tls=[certificates.listener()]) as server:
        client = server.client("SSL", certificates.client())
        sent = [os.urandom(size) for size in (6 * MIB, 70_000, 100, 9 * MIB, 9 * MIB)]
        for number, records in enumerate(sent):
            data = [topic(name="t", partition_data=[topic.PartitionProduceData(index=0, records=records)])]
            client.ask(m.ProduceRequest(acks=1, timeout_ms=1, topic_data=data), 9, number)
        assert found == sent


def test_a_request_that_comes_with_the_end_of_the_handshake(certificates: Certificates) -> None:
    with RunningServer({HEARTBEAT: beat}, tls=[certificates.listener()]) as server:
        engine = TlsEngine(certificates.client(), server_side=False, server_name="localhost")
        with socket.create_connection(("127.0.0.1", server.endpoint("SSL").port), timeout=10) as sock:
            while not engine.handshake():
                sock.sendall(engine.take())
                engine.feed(sock.recv(65_536))
            engine.write(m.encode_request(HEARTBEAT, 4, 7, "c", heartbeat()))
            sock.sendall(engine.take())  # the handshake's last message as well
            answer = b""
            while len(answer) < 8:
                engine.feed(sock.recv(65_536))
                answer += engine.read(100)
            assert answer[4:8] == (7).to_bytes(4, "big")


def test_a_slow_reader_stops_its_own_requests_and_loses_nothing(certificates: Certificates) -> None:
    executed: list[int] = []

    def handler(request: Any, _: Any) -> Done:
        executed.append(request.generation_id)
        return Done(bytes([request.generation_id % 251]) * MIB)

    settings = {"connection.outbox.max.bytes": str(2 * MIB)}
    with RunningServer({HEARTBEAT: handler}, settings, [certificates.listener()]) as server:
        client = server.client("SSL", certificates.client())

        def unsent() -> int:
            return max((c.unsent for c in server.server.connections.values()), default=0)

        for number in range(100):
            client.raw(m.encode_request(HEARTBEAT, 4, number, "c", heartbeat(number)))
        server.until(lambda: unsent() > 2 * MIB, "a full outbox")
        for _ in range(20):
            assert server.call(unsent) <= 3 * MIB + 100
            time.sleep(0.005)
        (connection,) = server.call(lambda: list(server.server.connections.values()))
        assert server.call(lambda: connection.held_in_all - connection.held) < 100_000
        assert server.call(lambda: server.server.held_bytes - connection.held_in_all) == 0
        assert len(executed) < 60, "requests ran although their answers cannot leave"
        for number in range(100):
            frame = client.frame()
            assert int.from_bytes(frame[:4], "big") == number
            assert frame[5:] == bytes([number % 251]) * MIB
        assert executed == list(range(100))
        server.until(lambda: server.server.held_bytes == 0, "nothing held")


def test_what_waits_in_tls_counts_as_held_and_the_greediest_goes(certificates: Certificates) -> None:
    def handler(request: Any, _: Any) -> Done:
        return Done(b"x" * (request.generation_id * MIB))

    settings = {"queued.max.request.bytes": str(20 * MIB)}
    with RunningServer({HEARTBEAT: handler}, settings, [certificates.listener()]) as server:
        clients = [server.client("SSL", certificates.client()) for _ in range(12)]
        for size, client in enumerate(clients):
            client.send(heartbeat(size + 1), 0, 1)
        server.until(lambda: server.refused("memory") > 0, "a closed connection")
        server.until(lambda: server.server.held_bytes <= 20 * MIB, "the bound")
        for client in clients:
            client.close()
        server.until(lambda: len(server.server) == 0, "the end of all")
        assert server.call(lambda: server.server.held_bytes) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_the_principal_of_a_certificate(certificates: Certificates, version: str) -> None:
    rules = r"RULE:^CN=([a-z]+),.*$/$1-of-the-fleet/U"
    for auth, own, more, expected in [
        ("none", "alice", {}, b"User:ANONYMOUS"),
        ("requested", "", {}, b"User:ANONYMOUS"),
        ("requested", "alice", {}, b"User:CN=alice,O=fleet"),
        ("required", "alice", {}, b"User:CN=alice,O=fleet"),
        ("required", "alice", {"principal_mapping_rules": rules}, b"User:ALICE-OF-THE-FLEET"),
    ]:
        with RunningServer({HEARTBEAT: principal}, tls=[certificates.listener("SSL", auth, **more)]) as server:
            context = certificates.client(certificates.alice if own else "", version)
            client = server.client("SSL", context)
            client.send(heartbeat(), 0, 1)
            assert client.frame()[4:] == expected


def test_a_certificate_that_no_rule_maps_is_refused(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    listener = certificates.listener("SSL", "required", principal_mapping_rules="RULE:^CN=bob$/bob/")
    with RunningServer({HEARTBEAT: principal}, tls=[listener]) as server:
        client = server.client("SSL", certificates.client(certificates.alice))
        client.send(heartbeat(), 0, 1)
        assert client.closed()
        server.until(lambda: server.refused("handshake") == 1, "the count")
        assert "no rule of ssl.principal.mapping.rules gives a name" in caplog.text


@pytest.mark.parametrize("auth", ["none", "required"])
def test_a_login_over_tls(certificates: Certificates, auth: str) -> None:
    """The login gives the principal, whatever certificate the client has."""
    sasl = SaslListener({"PLAIN": lambda: PlainServer(verifier({"bob": "secret"}))}, {"PLAIN": 0})
    listener = certificates.listener("SASL_SSL", auth)
    with RunningServer({HEARTBEAT: principal}, tls=[listener], logins={"SASL_SSL": sasl}) as server:
        context = certificates.client(certificates.alice)
        client = server.client("SASL_SSL", context)
        client.send(heartbeat(), 0, 1)
        assert client.closed(), "a request before the login"
        client = server.client("SASL_SSL", context)
        assert client.ask(m.SaslHandshakeRequest(version=1, mechanism="PLAIN"), 1).error_code == 0
        assert client.ask(m.SaslAuthenticateRequest(version=2, auth_bytes=b"\0bob\0secret"), 2).error_code == 0
        client.send(heartbeat(), 0, 5)
        assert client.frame()[4:] == b"User:bob"
        client = server.client("SASL_SSL", context)
        client.ask(m.SaslHandshakeRequest(version=1, mechanism="PLAIN"), 1)
        answer = client.ask(m.SaslAuthenticateRequest(version=2, auth_bytes=b"\0bob\0wrong"), 2)
        assert answer.error_code == 58
        assert client.closed()


def test_a_stop_sends_the_end_of_tls(certificates: Certificates) -> None:
    with RunningServer({HEARTBEAT: beat}, tls=[certificates.listener()]) as server:
        client = server.client("SSL", certificates.client())
        assert client.ask(heartbeat(), 4).error_code == 0
    assert isinstance(client.sock, ssl.SSLSocket)
    assert client.sock.recv(1) == b""  # an end without TLS's own would raise SSLEOFError


def test_garbage_after_the_handshake_closes_and_is_counted(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningServer({HEARTBEAT: beat}, tls=[certificates.listener()]) as server:
        for _ in range(3):
            client = server.client("SSL", certificates.client())
            assert client.ask(heartbeat(), 4).error_code == 0
            os.write(client.sock.fileno(), b"\x17\x03\x03\x00\x20" + b"x" * 32)
            with pytest.raises(ssl.SSLError):
                client.sock.recv(1)
        server.until(lambda: len(server.server) == 0, "the close")
        assert server.refused("handshake") == 3
        lines = [record.getMessage() for record in caplog.records if "listener SSL" in record.getMessage()]
        assert len(lines) == 1, lines
        assert server.client("SSL", certificates.client()).ask(heartbeat(), 4).error_code == 0


@pytest.mark.parametrize("length", [1000, 9 * MIB])
def test_a_slice_that_is_not_in_the_page_cache(certificates: Certificates, length: int, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    content = os.urandom(MIB) * 9
    path.write_bytes(content)
    with path.open("rb") as file:
        pieces: list[Piece] = []

        def chilled() -> bool:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return disk.read_cached(file.fileno(), 5 * MIB, memoryview(bytearray(1))) is None

        if not chilled():
            lacks("cold files")

        def handler(*_: Any) -> Done:
            chilled()
            pieces.append(Piece(file, 0, length))
            return Done(hot.Encoded([b"<", pieces[-1], b">"]))

        with RunningServer({HEARTBEAT: handler}, tls=[certificates.listener()]) as server:
            asked: list[int] = []
            fetch = server.server.read_ahead.fetch

            def counted(fd: int, position: int, size: int, done: Any) -> None:
                asked.append(size)
                fetch(fd, position, size, done)

            server.call(lambda: setattr(server.server.read_ahead, "fetch", counted))
            client = server.client("SSL", certificates.client())
            while not asked:  # the system keeps a page that it has in hand
                assert len(pieces) < 20, "no worker was asked to read it in"
                client.send(heartbeat(), 0, len(pieces))
                assert client.frame()[4:] == b"<" + content[:length] + b">"
            server.until(lambda: all(piece.released == 1 for piece in pieces), "the release")


def test_a_file_that_is_shorter_than_its_slice_closes_the_connection(certificates: Certificates) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 100_000)
        file.flush()
        piece = Piece(file, 0, 200_000)
        handlers = {HEARTBEAT: lambda *_: Done(hot.Encoded([b"x", piece]))}
        with RunningServer(handlers, tls=[certificates.listener()]) as server:
            client = server.client("SSL", certificates.client())
            client.send(heartbeat(), 0, 1)
            with pytest.raises((ConnectionError, ssl.SSLError)):
                client.frame()
            server.until(lambda: piece.released == 1, "the release")


def test_a_listener_and_its_tls_must_agree(certificates: Certificates) -> None:
    config = load_config(overrides={"broker.id": "1", "zookeeper.connect": "none:1"})
    none: Any = None
    for protocol, tls in (("SSL", {}), ("PLAINTEXT", {"X": certificates.listener()})):
        server = Server(config)
        server.bind([Endpoint("X", "127.0.0.1", 0, protocol)])
        with pytest.raises(RuntimeError, match=f"listener X is {protocol}, but its TLS is not"):
            server.serve(none, tls=tls)
        server.close()
