"""What a console bears from visitors that have no login: silent connections, many visits, many attempts to log in."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.console.served import Served, Visitor, scram_config


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


def test_logins_beyond_those_that_wait_are_refused_at_once(console: Served) -> None:
    visitor = Visitor(console)
    token = visitor.token(visitor.page("/login"))

    def attempt(number: int) -> int:
        return visitor.post("/login", {"form_token": token, "user": f"user-{number}", "password": "x"}).status

    with ThreadPoolExecutor(40) as pool:
        statuses = list(pool.map(attempt, range(40)))
    assert set(statuses) == {403, 503}
    assert statuses.count(403) >= 20
    assert attempt(40) == 403
