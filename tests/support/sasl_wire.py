"""A connection that logs in by hand, and sends what no client does."""

from __future__ import annotations

import secrets
import socket
import struct
import time
from typing import Any

from fleetlog.brokers.logins.scram import (
    ScramClient,
    ScramCredential,
    ScramMechanism,
    credential_of,
    random_text,
    salted_password,
)
from fleetlog.brokers.server.connection import LOGIN_MS
from fleetlog.wire import messages


class RawLogin:
    """A connection that sends what no client does."""

    def __init__(self, port: int) -> None:
        self.lifetime_ms = 0
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)

    def send(self, key: int, version: int, message: Any) -> None:
        body = bytes(message.encode(version=version))
        self.socket.sendall(messages.frame_request(key, version, 1, "raw", body))

    def answer(self, key: int, version: int) -> Any:
        (size,) = struct.unpack(">i", self.exactly(4))
        _, body = messages.split_response(key, version, self.exactly(size))
        return messages.decode_response(key, version, body)

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise EOFError("the broker closed the connection")
            data += more
        return data

    def closed_within(self, seconds: float) -> float:
        """Seconds until the broker closes, without one byte before."""
        began = time.monotonic()
        self.socket.settimeout(seconds)
        try:
            assert self.socket.recv(1) == b""
        except ConnectionResetError:
            pass
        return time.monotonic() - began

    def closed_at_once(self) -> None:
        """The broker closes because of what was sent, not because the time of a login is over."""
        assert self.closed_within(60) < LOGIN_MS / 1000 - 2

    def handshake(self, mechanism: str) -> Any:
        self.send(17, 1, messages.request_class(17)(version=1, mechanism=mechanism))
        return self.answer(17, 1)

    def authenticate(self, token: bytes) -> Any:
        self.send(36, 2, messages.request_class(36)(version=2, auth_bytes=token))
        return self.answer(36, 2)

    def challenge(self, user: str) -> tuple[str, str]:
        """Salt and iterations that SCRAM-SHA-256 answers for a user; the login goes no further."""
        assert self.handshake("SCRAM-SHA-256").error_code == 0
        _, salt, iterations = bytes(self.authenticate(f"n,,n={user},r=abc".encode()).auth_bytes).decode().split(",")
        return salt, iterations

    def scram(self, user: str, password: str, mechanism: ScramMechanism = ScramMechanism.SHA_256) -> int:
        """A login by SCRAM, or its renewal; returns the error code."""
        client = ScramClient(mechanism, user, password, random_text(secrets.randbits))
        assert self.handshake(mechanism.value).error_code == 0
        challenge = self.authenticate(client.first())
        if challenge.error_code:
            return int(challenge.error_code)
        answer = self.authenticate(client.final(bytes(challenge.auth_bytes)))
        if not answer.error_code:
            client.check(bytes(answer.auth_bytes))
            self.lifetime_ms = answer.session_lifetime_ms
        return int(answer.error_code)

    def metadata(self) -> list[Any]:
        """The brokers; raises EOFError where the broker closes instead."""
        self.send(3, 12, metadata_request())
        return list(self.answer(3, 12).brokers)

    def close(self) -> None:
        self.socket.close()


def metadata_request() -> Any:
    return messages.request_class(3)(version=12, topics=[], allow_auto_topic_creation=False)


def credential_of_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)
