"""What a console bears from visitors that have no login: silent connections, many visits, many attempts to log in."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleetlog.brokers.console.logins import LOGINS_PER_ADDRESS_MAX
from fleetlog.brokers.console.serving import OPEN_PER_ADDRESS_MAX, REQUEST_S, ServerCertificate
from tests.console.served import Served, Visitor, scram_config
from tests.support.certificates import Authority, replaced


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With login, at a broker that takes connections and never answers."""
    file = scram_config(tmp_path_factory.mktemp("console"))
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        options = ("--login", "SCRAM-SHA-256", "--command-config", str(file), "--timeout", "1")
        served = Served(f"127.0.0.1:{silent.getsockname()[1]}", *options)
        yield served
        served.close()


def test_connections_that_send_no_request_are_closed(console: Served) -> None:
    """A part of a head is none; a connection that has been answered is closed sooner."""
    host, _, port = Visitor(console).address.rpartition(":")
    request = f"GET /alive HTTP/1.1\r\nHost: {host}:{port}\r\n".encode()
    begun_s = time.monotonic()
    connections = [socket.create_connection((host, int(port)), 30) for _ in range(3)]
    try:
        for connection, sent in zip(connections, (b"", request, request + b"\r\n" + request), strict=True):
            connection.sendall(sent)
        answers = []
        for connection in connections:
            answer = b""
            while part := connection.recv(65536):
                answer += part
            answers.append(answer)
        assert time.monotonic() - begun_s < 20
        assert [answer.count(b"HTTP/1.1 200") for answer in answers] == [0, 0, 1]
    finally:
        for connection in connections:
            connection.close()


def login_head(console: Served, body: bytes) -> tuple[tuple[str, int], bytes]:
    """The console's address, and a login's request whose body has only begun."""
    host, _, port = Visitor(console).address.rpartition(":")
    kind = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100000"
    return (host, int(port)), f"POST /login HTTP/1.1\r\nHost: {host}:{port}\r\n{kind}\r\n\r\n".encode() + body


def test_slow_bodies_keep_nobody_out(console: Served) -> None:
    """More than the console takes, each with a head and one byte: the longest that waits makes way for a visitor."""
    address, sent = login_head(console, b"a")
    slow = []
    try:
        for _ in range(210):
            slow.append(socket.create_connection(address, 30))
            slow[-1].sendall(sent)
        begun_s = time.monotonic()
        assert [Visitor(console).get("/login").status for _ in range(5)] == [200] * 5
        assert time.monotonic() - begun_s < 5
        held = []
        for connection in slow:
            connection.settimeout(0.01)
            try:
                assert connection.recv(1000) == b""
            except TimeoutError:
                held.append(connection)
            except ConnectionResetError:
                pass
        assert len(held) <= OPEN_PER_ADDRESS_MAX
        for connection in held:  # and the others when their time is over
            connection.settimeout(max(0.1, begun_s + 20 - time.monotonic()))
            try:
                assert b"200" not in connection.recv(1000)
            except ConnectionResetError:
                pass
    finally:
        for connection in slow:
            connection.close()


def test_a_peer_that_takes_no_answer_is_closed(console: Served) -> None:
    """Each request's answer is a page; what is not taken stays in the console's memory."""
    host, _, port = Visitor(console).address.rpartition(":")
    request = f"GET /static/htmx.min.js HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall(request * 200)
        time.sleep(REQUEST_S + 3)
        taken = 0
        while part := connection.recv(1 << 20):
            taken += len(part)
    assert taken < 100 * 52_000, "what the system had taken from it, and then the end"


def test_logins_beyond_those_that_wait_are_refused_at_once(console: Served) -> None:
    visitor = Visitor(console)
    token = visitor.token(visitor.page("/login"))

    def attempt(number: int) -> int:
        return visitor.post("/login", {"form_token": token, "user": f"user-{number}", "password": "x"}).status

    with ThreadPoolExecutor(40) as pool:
        statuses = list(pool.map(attempt, range(40)))
    assert set(statuses) == {403, 503}
    assert statuses.count(403) >= LOGINS_PER_ADDRESS_MAX
    assert attempt(40) == 403


def served_certificate(context: ssl.SSLContext) -> bytes:
    """What a client gets in its handshake."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    client = asking.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    certificate = client.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def test_a_renewed_certificate_is_taken_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "ca")
    first, second = authority.pair("/CN=one"), authority.pair("/CN=one")
    files = str(tmp_path / "tls.pem"), str(tmp_path / "tls.key")

    def write(*texts: str) -> None:
        for file, text in zip(files, texts, strict=True):
            replaced(file, text)

    write(first.chain, first.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    certificate, begun = ServerCertificate(*files), served_certificate(context)
    certificate.renew(context)
    assert not caplog.records
    for texts in (("nothing", first.key), (second.chain, first.key)):
        write(*texts)
        for _ in range(2):
            certificate.renew(context)
        assert served_certificate(context) == begun
        assert [record.levelname for record in caplog.records] == ["ERROR"], "why is said once"
        caplog.clear()
    Path(files[1]).unlink()
    certificate.renew(context)
    assert "No such file" in caplog.text
    caplog.clear()
    write(second.chain, second.key)
    certificate.renew(context)
    assert served_certificate(context) == ssl.PEM_cert_to_DER_cert(second.chain) != begun
    assert "new connections get the certificate" in caplog.text
