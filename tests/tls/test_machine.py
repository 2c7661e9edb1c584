"""TLS of one connection: real handshakes between two engines, and of an engine with Python's and OpenSSL's own."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from fleetlog.brokers.tls.contexts import CertificateFiles, client_context, server_context
from fleetlog.brokers.tls.machine import (
    FED_BYTES_MAX,
    HANDSHAKE_BYTES_MAX,
    OUTGOING_BYTES_MAX,
    RECORD_BYTES_MAX,
    WRITE_BYTES_MAX,
    TlsEngine,
    TlsFailure,
    TlsProblem,
    TlsState,
    begins_hello,
    whole_records,
)
from fleetlog.brokers.tls.settings import TlsSettings
from tests.support.certificates import Authority, Pair

RECORD_BYTES = 16_384


class Side:
    """Certificates of both sides, and contexts made of settings."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory, "authority")
        self.stranger = Authority(directory, "stranger")
        self.server_file = self.authority.pair("/O=fleet/CN=broker").store(directory / "server.pem")
        self.alice = self.authority.pair("/C=DE/O=a, b/CN=alice").store(directory / "alice.pem")
        self.mallory = self.stranger.pair("/CN=mallory").store(directory / "mallory.pem")
        self.expired = self.authority.pair("/CN=late", days=-1).store(directory / "late.pem")

    def server_settings(self, auth: str = "none", **more: str) -> TlsSettings:
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority.file}
        store = {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.server_file}
        dotted = {"ssl." + name.replace("_", "."): text for name, text in more.items()}
        return TlsSettings.of({**store, **(trust if auth != "none" else {}), "ssl.client.auth": auth, **dotted})

    def server(self, auth: str = "none", **more: str) -> TlsEngine:
        made = server_context(self.server_settings(auth, **more), time.time())
        return TlsEngine(made.context, server_side=True)

    def client(self, own: str = "", name: str = "localhost", trust: str = "", **more: str) -> TlsEngine:
        usable = own and own != self.expired
        store = {"ssl.keystore.type": "PEM", "ssl.keystore.location": own} if usable else {}
        trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": trust or self.authority.file}
        dotted = {"ssl." + name.replace("_", "."): text for name, text in more.items()}
        made = client_context(TlsSettings.of({**store, **trusted, **dotted}), time.time())
        if own and not usable:
            made.context.load_cert_chain(own)  # the settings would refuse it
        return TlsEngine(made.context, server_side=False, server_name=name)


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Side:
    return Side(tmp_path_factory.mktemp("sides"))


def carried(one: TlsEngine, other: TlsEngine, piece: int = -1) -> bool:
    """Carry what is to be sent from one engine to the other, in pieces; whether there was something."""
    moved = False
    while data := one.take(piece):
        moved = True
        other.feed(data)
        if other.state is TlsState.HANDSHAKE:
            other.handshake()
    return moved


def shake_hands(client: TlsEngine, server: TlsEngine, piece: int = -1) -> None:
    client.handshake()
    while carried(client, server, piece) or carried(server, client, piece):
        pass
    assert client.state is server.state is TlsState.OPEN


def feed_handshake(engine: TlsEngine, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        engine.feed(piece)
        assert not engine.handshake()


def shake_hands_and_read(engine: TlsEngine) -> bytes:
    engine.handshake()
    return engine.read(1)


def failure_of(client: TlsEngine, server: TlsEngine) -> TlsFailure:
    """Of the server."""
    with pytest.raises(TlsFailure) as caught:
        shake_hands(client, server)
    assert server.state is TlsState.FAILED
    return caught.value


def opened(side: Side, auth: str = "none", own: str = "", **more: str) -> tuple[TlsEngine, TlsEngine]:
    client, server = side.client(own, **more), side.server(auth)
    shake_hands(client, server)
    client.read(1)  # what TLS 1.3's server sends behind the handshake
    return client, server


# ---------------------------------------------------------------- handshakes


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("piece", [-1, 1, 7])
def test_two_engines_shake_hands_and_speak(side: Side, version: str, piece: int) -> None:
    client, server = side.client(enabled_protocols=version), side.server()
    assert server.version is None
    assert server.cipher is None
    shake_hands(client, server, piece)
    assert client.version == server.version == version
    assert client.cipher == server.cipher
    assert client.write(b"a request") == 9
    carried(client, server, piece)
    assert server.read(100) == b"a request"
    assert server.read(100) == b""
    assert server.state is TlsState.OPEN
    server.write(b"an answer")
    carried(server, client, piece)
    assert client.read(2) == b"an"
    assert client.read(100) == b" answer"


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_client_certificates_in_all_modes(side: Side, version: str) -> None:
    for auth, own, subject in (
        ("none", "", None),
        ("none", side.alice, None),
        ("requested", "", None),
        ("requested", side.alice, "CN=alice,O=a\\, b,C=DE"),
        ("required", side.alice, "CN=alice,O=a\\, b,C=DE"),
    ):
        client, server = side.client(own, enabled_protocols=version), side.server(auth)
        assert server.peer_subject() is None
        shake_hands(client, server)
        assert server.peer_subject() == subject, (auth, own)
        assert client.peer_subject() == "CN=broker,O=fleet"


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_client_certificates_that_are_refused(side: Side, version: str) -> None:
    for auth, own, problem, text in (
        ("required", "", TlsProblem.NO_CERTIFICATE, "showed no certificate"),
        ("required", side.mallory, TlsProblem.CERTIFICATE, "unable to get local issuer"),
        ("requested", side.mallory, TlsProblem.CERTIFICATE, "unable to get local issuer"),
        ("requested", side.expired, TlsProblem.CERTIFICATE, "has expired"),
        ("required", side.expired, TlsProblem.CERTIFICATE, "has expired"),
    ):
        client, server = side.client(own, enabled_protocols=version), side.server(auth)
        failure = failure_of(client, server)
        assert failure.problem is problem, (auth, own)
        assert text in str(failure)
        assert server.peer_subject() is None
        client.feed(server.take())
        with pytest.raises(TlsFailure) as caught:
            shake_hands_and_read(client)  # TLS 1.3's client has finished before
        assert caught.value.problem is TlsProblem.REFUSED_BY_PEER


@pytest.mark.parametrize(("name", "trust"), [("elsewhere", ""), ("localhost", "stranger")])
def test_a_client_refuses_another_host_and_another_authority(side: Side, name: str, trust: str) -> None:
    client = side.client(name=name, trust=side.stranger.file if trust else "")
    server = side.server()
    with pytest.raises(TlsFailure) as caught:
        shake_hands(client, server)
    assert caught.value.problem is TlsProblem.CERTIFICATE
    assert client.state is TlsState.FAILED
    server.feed(client.take())
    with pytest.raises(TlsFailure) as caught:
        server.handshake()
    assert caught.value.problem is TlsProblem.REFUSED_BY_PEER


def test_without_identification_the_host_is_not_checked(side: Side) -> None:
    shake_hands(side.client(name="elsewhere", endpoint_identification_algorithm=""), side.server())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_older_versions_are_refused(side: Side, version: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.load_verify_locations(side.authority.file)
    server = side.server()
    failure = failure_of(TlsEngine(context, server_side=False, server_name="localhost"), server)
    assert failure.problem is TlsProblem.VERSION
    assert server.take().hex().startswith("15")


def test_no_shared_cipher(side: Side) -> None:
    server = side.server(cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
    client = side.client(cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384")
    assert failure_of(client, server).problem is TlsProblem.CIPHER


def test_a_session_is_resumed_with_its_subject(side: Side) -> None:
    made = server_context(side.server_settings("required"), time.time())
    settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": side.alice, "ssl.truststore.type": "PEM"}
    settings["ssl.truststore.location"] = side.authority.file
    context = client_context(TlsSettings.of(settings), time.time()).context
    session = None
    for resumed in (False, True):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session)
        server = TlsEngine(made.context, server_side=True)
        for _ in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            server.feed(outgoing.read())
            server.handshake()
            incoming.write(server.take())
        with contextlib.suppress(ssl.SSLWantReadError):
            client.read(1)
        session = client.session
        assert client.session_reused is resumed
        assert server.peer_subject() == "CN=alice,O=a\\, b,C=DE"


# ---------------------------------------------------------------- peers that speak something else, or nothing


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("record_bytes", [1, 3, 4, 38, 39, 40, 100, 16_384])
def test_every_part_of_a_client_hello_may_be_one(side: Side, version: str, record_bytes: int) -> None:
    client = side.client(enabled_protocols=version)
    client.handshake()
    message = client.take()[5:]
    parts = [message[at : at + record_bytes] for at in range(0, len(message), record_bytes)]
    data = b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)
    assert all(begins_hello(data[:size]) for size in range(len(data) + 1))


@pytest.mark.parametrize(
    ("at", "wrong"),
    [(5, b"\2"), (6, b"\1"), (6, b"\0\0\1"), (9, b"\2"), (43, b"\x21")],
    ids=["kind", "long", "short", "version", "session"],
)  # fmt: skip
def test_what_no_client_hello_has_is_seen(side: Side, at: int, wrong: bytes) -> None:
    client = side.client()
    client.handshake()
    data = bytearray(client.take())
    assert begins_hello(data)
    data[at : at + len(wrong)] = wrong
    assert not begins_hello(data)


@pytest.mark.parametrize(
    "data",
    [b"\0\0\0\x1a\0\x12\0\x03\0\0\0\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x02\x00", b"\x15\x03\x03\0\x02\x02("],
    ids=["kafka", "http", "ssl2", "alert"],
)  # fmt: skip
def test_a_peer_without_tls_gets_an_alert(side: Side, data: bytes) -> None:
    for pieces in ([data], [data[n : n + 1] for n in range(len(data))]):
        server = side.server()
        with pytest.raises(TlsFailure) as caught:
            feed_handshake(server, pieces)
        assert caught.value.problem is TlsProblem.NOT_TLS
        assert server.state is TlsState.FAILED
        assert server.take() == bytes.fromhex("15030300020246")
        with pytest.raises(TlsFailure):
            server.handshake()
        with pytest.raises(TlsFailure):
            server.feed(b"more")
        with pytest.raises(TlsFailure):
            server.read(1)
        with pytest.raises(TlsFailure):
            server.write(b"")
        server.close_notify()
        assert server.state is TlsState.FAILED
        assert server.take() == b""


def test_a_client_of_a_server_without_tls(side: Side) -> None:
    client = side.client()
    client.handshake()
    with pytest.raises(TlsFailure, match="does not speak TLS"):
        client.feed(b"HTTP/1.1 400 Bad Request\r\n")


def test_garbage_never_opens_and_ends_as_a_failure(side: Side) -> None:
    chance = random.Random(7)
    endings = set()
    context = server_context(side.server_settings(), time.time()).context
    for _ in range(500):
        server = TlsEngine(context, server_side=True)
        head = b"\x16\x03" + bytes([chance.randrange(4)]) if chance.random() < 0.9 else b""
        data = head + chance.randbytes(chance.randrange(300))
        try:
            server.feed(data)
            server.handshake()
        except TlsFailure as failure:
            endings.add(failure.problem)
        assert server.state in {TlsState.HANDSHAKE, TlsState.FAILED}
    assert TlsProblem.NOT_TLS in endings
    assert len(endings) > 1


def test_flipped_bytes_of_a_hello_never_open(side: Side) -> None:
    client = side.client()
    client.handshake()
    hello = client.take()
    context = server_context(side.server_settings(), time.time()).context
    for at in range(0, len(hello), 3):
        server = TlsEngine(context, server_side=True)
        with contextlib.suppress(TlsFailure):
            server.feed(hello[:at] + bytes([hello[at] ^ 0xFF]) + hello[at + 1 :])
            assert not server.handshake()
        assert server.state in {TlsState.HANDSHAKE, TlsState.FAILED}


def test_a_half_open_handshake_waits_and_its_end_fails(side: Side) -> None:
    client = side.client()
    client.handshake()
    hello = client.take()
    for end in (0, 1, 5, 50, len(hello) - 1):
        server = side.server()
        server.feed(hello[:end])
        for _ in range(3):
            assert not server.handshake()
        assert server.state is TlsState.HANDSHAKE
        assert server.take() == b""
        with pytest.raises(ValueError, match="in the state handshake"):
            server.read(10)
        with pytest.raises(ValueError, match="in the state handshake"):
            server.write(b"x")
        server.feed_eof()
        with pytest.raises(TlsFailure) as caught:
            server.handshake()
        assert caught.value.problem is TlsProblem.CUT_OFF


def test_a_handshake_that_does_not_end_is_cut(side: Side) -> None:
    """A hello of nearly the length that OpenSSL allows, and one of 16 MB."""
    for length, problem in ((HANDSHAKE_BYTES_MAX + 250, TlsProblem.TOO_LONG), (0xFFFFFF, TlsProblem.OTHER)):
        server = side.server()
        hello = b"\x01" + length.to_bytes(3, "big") + bytes(HANDSHAKE_BYTES_MAX)
        pieces = [hello[at : at + RECORD_BYTES] for at in range(0, len(hello), RECORD_BYTES)]
        with pytest.raises(TlsFailure) as caught:
            feed_handshake(server, [b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces])
        assert caught.value.problem is problem
        assert server.state is TlsState.FAILED


def test_close_during_a_handshake(side: Side) -> None:
    server = side.server()
    server.close_notify()
    assert server.state is TlsState.CLOSED
    assert server.take() == b""


# ---------------------------------------------------------------- records


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_record_that_is_cut_is_not_read_and_a_changed_one_fails(side: Side, version: str) -> None:
    client, server = opened(side, enabled_protocols=version)
    client.write(b"x" * 1000)
    record = client.take()
    for at in range(len(record)):
        assert server.read(10) == b""
        server.feed(record[at : at + 1])
    assert server.read(2000) == b"x" * 1000
    client.write(b"y" * 1000)
    record = bytearray(client.take())
    record[500] ^= 1
    server.feed(record)
    with pytest.raises(TlsFailure) as caught:
        server.read(10)
    assert caught.value.problem is TlsProblem.OTHER
    assert server.take(), "an alert"
    with pytest.raises(TlsFailure):
        server.write(b"x")


def test_what_came_before_a_bad_record_is_read_first(side: Side) -> None:
    client, server = opened(side)
    client.write(b"good")
    good = client.take()
    server.feed(good + b"\x17\x03\x03\x00\x30" + bytes(48))
    assert server.read(100) == b"good"
    with pytest.raises(TlsFailure):
        server.read(100)


def test_a_peer_that_is_cut_off_has_ended(side: Side) -> None:
    client, server = opened(side)
    client.write(b"last")
    server.feed(client.take())
    server.feed_eof()
    assert server.read(2) == b"la"
    assert server.state is TlsState.OPEN
    assert server.read(10) == b"st"
    assert server.read(10) == b""
    assert server.state is TlsState.ENDED
    assert server.was_cut_off


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_the_end_of_one_direction(side: Side, version: str) -> None:
    client, server = opened(side, enabled_protocols=version)
    client.write(b"last")
    client.close_notify()
    assert client.state is TlsState.CLOSED
    client.close_notify()
    with pytest.raises(ValueError, match="in the state closed"):
        client.write(b"x")
    carried(client, server)
    assert server.read(10) == b"last"
    assert server.read(10) == b""
    assert server.state is TlsState.ENDED
    assert not server.was_cut_off
    assert server.read(10) == b""
    server.close_notify()
    assert server.take(), "the end of the other direction"


def test_close_with_unread_data_still_tells_the_peer(side: Side) -> None:
    client, server = opened(side)
    client.write(b"unread")
    carried(client, server)
    server.close_notify()
    client.feed(server.take())
    assert client.read(10) == b""
    assert client.state is TlsState.ENDED
    assert not client.was_cut_off


def test_what_is_held_for_a_connection_is_bounded(side: Side) -> None:
    client, server = opened(side)
    data = random.Random(1).randbytes(3 * WRITE_BYTES_MAX)
    assert client.write(data) == WRITE_BYTES_MAX
    written = WRITE_BYTES_MAX
    while count := client.write(bytes(WRITE_BYTES_MAX)):
        assert count <= WRITE_BYTES_MAX
        written += count
    assert OUTGOING_BYTES_MAX <= client.outgoing_bytes < OUTGOING_BYTES_MAX + 2 * RECORD_BYTES
    assert client.write(b"x") == 0
    sent = client.take()
    assert client.write(b"x") == 1
    with pytest.raises(BufferError):
        server.feed(bytes(FED_BYTES_MAX + 1))
    server.feed(sent[:600_000])
    with pytest.raises(BufferError):
        server.feed(sent[600_000 : 600_000 + FED_BYTES_MAX])
    assert server.state is TlsState.OPEN
    got = server.read(1000)
    assert got == data[:1000]
    while piece := server.read(100_000):
        assert len(piece) <= 100_000
        got += piece
    server.feed(sent[600_000:])
    while piece := server.read(100_000):
        got += piece
    assert len(got) == written
    assert got[:WRITE_BYTES_MAX] == data[:WRITE_BYTES_MAX]


def test_empty_reads_and_writes(side: Side) -> None:
    client, server = opened(side)
    assert client.write(b"") == 0
    assert client.take() == b""
    client.write(b"x")
    carried(client, server)
    assert server.read(0) == b""
    assert server.state is TlsState.OPEN
    assert server.read(1) == b"x"


def test_reading_into_a_block_touches_nothing_behind(side: Side) -> None:
    client, server = opened(side)
    data = random.Random(2).randbytes(40_000)
    client.write(memoryview(data))
    carried(client, server)
    block = bytearray(b"\xaa" * 50_000)
    assert server.read_into(memoryview(block)[100:20_100]) == 20_000
    assert server.read_into(memoryview(block)[20_100:]) == 20_000
    assert block == b"\xaa" * 100 + data + b"\xaa" * 9_900


# ---------------------------------------------------------------- other implementations, over sockets


class Serving(threading.Thread):
    """An engine behind a listening socket that echoes, one connection after the other."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(daemon=True)
        self.context = context
        self.failures: list[TlsFailure] = []
        self.handshakes = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(20)
                self._serve(connection, TlsEngine(self.context, server_side=True))

    def _serve(self, connection: socket.socket, engine: TlsEngine) -> None:
        try:
            while engine.state in {TlsState.HANDSHAKE, TlsState.OPEN}:
                received = connection.recv(65_536)
                engine.feed(received) if received else engine.feed_eof()
                if engine.state is TlsState.HANDSHAKE and engine.handshake():
                    self.handshakes += 1
                while engine.state is TlsState.OPEN and (data := engine.read(10_000)):
                    assert engine.write(data) == len(data)
                connection.sendall(engine.take())
        except TlsFailure as failure:
            self.failures.append(failure)
        except OSError:
            return
        engine.close_notify()
        with contextlib.suppress(OSError):
            connection.sendall(engine.take())

    def stop(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.join(30)
        assert not self.is_alive()


@contextlib.contextmanager
def serving(context: ssl.SSLContext) -> Iterator[Serving]:
    thread = Serving(context)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_pythons_own_sockets(side: Side, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cafile=side.authority.file)
    context.minimum_version = context.maximum_version = version
    data = random.Random(3).randbytes(200_000)
    with serving(server_context(side.server_settings(), time.time()).context) as server:
        for _ in range(3):
            plain = socket.create_connection(("127.0.0.1", server.port), 20)
            with context.wrap_socket(plain, server_hostname="localhost") as client:
                got = b""
                for at in range(0, len(data), 20_000):
                    client.sendall(data[at : at + 20_000])
                    while len(got) < at + 20_000:
                        got += client.recv(65_536)
                assert got == data
        assert not server.failures
        assert server.handshakes == 3


def test_an_engine_as_client_of_pythons_server(side: Side) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=side.authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(side.server_file)
    listening = socket.create_server(("127.0.0.1", 0))
    subjects: list[object] = []

    def serve() -> None:
        plain, _ = listening.accept()
        with plain, context.wrap_socket(plain, server_side=True) as connection:
            certificate = connection.getpeercert()
            assert certificate is not None
            subjects.append(certificate["subject"])
            connection.sendall(connection.recv(100).upper())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    client = side.client(side.alice)
    with listening, socket.create_connection(listening.getsockname(), 20) as connection:
        while not client.handshake():
            connection.sendall(client.take())
            client.feed(connection.recv(65_536))
        client.write(b"hello")
        connection.sendall(client.take())
        got = b""
        while not got:
            client.feed(connection.recv(65_536))
            got = client.read(100)
        assert got == b"HELLO"
    thread.join(20)
    assert subjects == [((("countryName", "DE"),), (("organizationName", "a, b"),), (("commonName", "alice"),))]


def test_renegotiation_is_refused(side: Side) -> None:
    """OpenSSL's client asks for it when it reads a line with an R."""
    context = server_context(side.server_settings(), time.time()).context
    with serving(context) as server:
        words = ["openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{server.port}", "-CAfile"]
        with subprocess.Popen(
            [*words, side.authority.file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write(b"echoed\n")
            client.stdin.flush()
            before = b""
            while b"\nechoed\n" not in before:
                line = client.stdout.readline()
                assert line, before
                before += line
            client.stdin.write(b"R\n")
            client.stdin.flush()
            after = client.stdout.read()
            client.wait(20)
        assert b"Secure Renegotiation IS supported" in before
        assert b"RENEGOTIATING" in after
        assert b"no renegotiation" in after
        assert server.handshakes == 1


# ---------------------------------------------------------------- certificates that change


def test_new_connections_get_the_new_certificate_and_old_ones_go_on(side: Side, tmp_path: Path) -> None:
    def pair(number: int) -> Pair:
        return side.authority.pair("/O=fleet/CN=broker", names=f"DNS:localhost,DNS:n{number}")

    path = tmp_path / "server.pem"
    settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": pair(0).store(path)}
    settings["ssl.allow.san.changes"] = "true"
    files = CertificateFiles(TlsSettings.of(settings), server_context, time.time())
    open_ones, seen = [], set()
    for number in range(1, 4):
        client = side.client(name=f"n{number - 1}")
        server = TlsEngine(files.current.context, server_side=True)
        shake_hands(client, server)
        assert client.peer_subject() == "CN=broker,O=fleet"
        open_ones.append((client, server))
        seen.add(id(files.current.context))
        other = tmp_path / "other.pem"
        pair(number).store(other)
        other.rename(path)
        assert files.changed()
        assert not isinstance(files.reloaded(time.time()), str)
    assert len(seen) == 3
    for client, server in open_ones:
        client.write(b"still here")
        carried(client, server)
        assert server.read(100) == b"still here"


def record(length: int) -> bytes:
    """A record of application data whose payload has that many bytes, or says so."""
    return b"\x17\x03\x03" + length.to_bytes(2, "big") + bytes(min(length, RECORD_BYTES_MAX))


@pytest.mark.parametrize(
    ("data", "start", "expected"),
    [
        pytest.param(b"", 0, 0, id="nothing"),
        pytest.param(record(100)[:4], 0, 0, id="a part of a head"),
        pytest.param(record(100)[:-1], 0, 0, id="a record without its last byte"),
        pytest.param(record(100), 0, 105, id="one record"),
        pytest.param(record(100) + record(7) + record(9)[:8], 0, 117, id="two records and a part"),
        pytest.param(record(100) + record(7), 105, 12, id="from the second one on"),
        pytest.param(record(16_406) * 2, 0, 16_411, id="no more than the longest record has"),
        pytest.param(record(60_000)[:40], 0, 40, id="too long a record is no reason to wait"),
        pytest.param(record(100) + record(60_000)[:40], 0, 105, id="what is before it first"),
        pytest.param(record(0), 0, 5, id="an empty record"),
    ],
)
def test_whole_records(data: bytes, start: int, expected: int) -> None:
    assert whole_records(data, start) == expected
    assert whole_records(memoryview(bytearray(data)), start) == expected
