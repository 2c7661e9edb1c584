"""The most expensive conversations that never become a login, and what one of them costs the broker."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import fleetlog.wire.messages as m
from fleetlog.brokers.logins.sasl import FRAME_BYTES_MAX, TOKEN_FRAME_BYTES_MAX
from fleetlog.brokers.server.connection import LOGIN_REQUESTS_MAX

TOO_OLD = 99
"""A version of ApiVersions that there is not: it is answered, and may be asked for again."""
PAUSE_S = 0.00002
"""So that no two pieces are received at once."""
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Conversation(NamedTuple):
    """Bytes, sent in pieces with a pause behind each; the peer then waits until the broker closes."""

    pieces: list[bytes]
    pause_s: float = 0.0


def _frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def _handshake(mechanism: str, version: int = 1) -> bytes:
    return m.encode_request(17, version, 1, "work", m.SaslHandshakeRequest(version=version, mechanism=mechanism))


def _token(data: bytes, version: int = 2) -> bytes:
    return m.encode_request(36, version, 2, "work", m.SaslAuthenticateRequest(version=version, auth_bytes=data))


def _versions(body: bytes, version: int) -> bytes:
    return _frame(b"\0\x12" + version.to_bytes(2, "big") + b"\0\0\0\1" + body)


def conversations() -> Mapping[str, Conversation]:
    """By what they are; on a listener without OAUTHBEARER."""
    room = FRAME_BYTES_MAX - 100
    short = b"\0\4work"
    tags = b"".join(tag + b"\0" for tag in map(_varint, range(room // 4)))
    many = _varint(room // 4) + tags
    return {
        "versions that there are not": Conversation(
            [_versions(short + b"\0" * room, TOO_OLD)] * (LOGIN_REQUESTS_MAX + 1)
        ),
        "long client ids": Conversation(
            [_versions((32_000).to_bytes(2, "big") + b"x" * 32_000 + b"\0", TOO_OLD)] * (LOGIN_REQUESTS_MAX + 1)
        ),
        "tagged fields in the header": Conversation(
            [_versions(short + many[:room], TOO_OLD)] * LOGIN_REQUESTS_MAX + [_versions(short + many[:room], 3)]
        ),
        "tagged fields in the body": Conversation(
            [_versions(short + b"\0" * room, TOO_OLD)] * (LOGIN_REQUESTS_MAX - 1)
            + [_versions(short + b"\0\2x\2x" + many[:room], 4), _handshake("?" * 30_000)]
        ),
        "an unknown mechanism": Conversation(
            [_versions(short, TOO_OLD)] * (LOGIN_REQUESTS_MAX - 1) + [_handshake("\x1b" * 32_000)]
        ),
        **{
            f"a long token of {name}": Conversation(
                [_versions(short + b"\0" * room, TOO_OLD)] * (LOGIN_REQUESTS_MAX - 3)
                + [_versions(short + b"\0\2x\2x\0", 3), _handshake(name), _token(token[:room])]
            )
            for name in MECHANISMS
            for token in (b"n,,n=u,r=" + b"x," * room if "SCRAM" in name else b"u\0" * room,)
        },
        "raw tokens": Conversation(
            [
                _handshake("SCRAM-SHA-512", 0),
                _frame(b"n,,n=" + b"u" * 8_000 + b",r=1"),
                _frame(b"c=biws,r=" + b"x" * 8_000),
                _frame(b"x" * room),
            ]
        ),
        "challenges": Conversation(
            [
                _handshake("SCRAM-SHA-512"),
                _token(b"n,,n=" + b"=2C" * 2_600 + b",r=1"),
                _token(b"c=biws,r=" + b"x" * 8_000 + b",p=" + b"x" * 100),
            ]
        ),
        "one byte at a time": Conversation(_bytes(_versions(short + b"\0" * room, TOO_OLD) * 3), PAUSE_S),
        "a few bytes at a time": Conversation(
            [data for _ in range(LOGIN_REQUESTS_MAX) for data in _cut(_versions(short + b"\0" * room, TOO_OLD), 50)],
            0.00002,
        ),
    }


def token_conversations() -> Mapping[str, Conversation]:
    """By what they are; on a listener with OAUTHBEARER. Each has one token, and the rest as before."""
    room = TOKEN_FRAME_BYTES_MAX - 200
    opened = [_versions(b"\0\4work" + b"\0" * room, TOO_OLD)] * (LOGIN_REQUESTS_MAX - 3) + [_handshake("OAUTHBEARER")]

    def encoded(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    header = encoded({"alg": "RS256", "kid": "key-1"})
    claims = encoded({"iss": "x", "sub": ["group"] * (room // 14)})
    long = b"n,,\x01auth=Bearer %s.%s.%s\x01\x01"
    return {
        name: Conversation([*opened, _token(token[: room - 2] + b"\x01\x01"), _token(b"\x01")])
        for name, token in {
            "a long token": long % (header, claims[: room - 400], b"c2ln" * 64),
            "a long header": long % (encoded({"alg": "RS256", "kid": "k" * 7_000}), claims[: room - 10_000], b"c2ln"),
            "a long signature": long % (header, b"e30", b"c2ln" * (room // 4 - 100)),
            "separators": b"n,,\x01auth=Bearer a.b.c" + b"\x01" * room,
            "extensions": b"n,,\x01auth=Bearer a.b.c" + b"\x01a=b" * (room // 4),
            "a long extension": b"n,,\x01auth=Bearer a.b.c\x01a=" + b"b" * room,
            "a long authorization id": b"n,a=" + b"=2C" * (room // 3) + b",\x01auth=Bearer a.b.c\x01\x01",
        }.items()
    }


def handshakes(hello: bytes) -> Mapping[str, Conversation]:
    """By what they are; on a listener with TLS, whose clients begin with that ``hello``."""
    record = b"\x16\x03\x01\x3f\x00\x01\x00\x3e\xfc\x03\x03" + bytes(16_000)
    in_records = b"".join(b"\x16\x03\x01\0\1" + one for one in _bytes(hello[5:]))
    return {
        "a record, one byte at a time": Conversation(_bytes(record), PAUSE_S),
        "a record for each byte": Conversation(list(_cut(in_records, 6)), PAUSE_S),
        "empty changes of the cipher": Conversation([hello, *[b"\x14\x03\x03\0\1\1"] * 2_000], PAUSE_S),
        "records that cannot be decrypted": Conversation([hello, *[b"\x17\x03\x03\0\x20" + bytes(32)] * 100], PAUSE_S),
        "the second record, one byte at a time": Conversation([hello, *_bytes(b"\x17" + record[1:])], PAUSE_S),
    }


def held(kind: str, hello: bytes) -> bytes:
    """What makes a connection cost most memory, of those that the broker does not close before the time is over."""
    room = FRAME_BYTES_MAX - 100
    return {
        "a frame but for a byte": _versions(b"\0\4work" + bytes(room), TOO_OLD)[:-1],
        "a refused login, and more behind it": _handshake("PLAIN") + _token(b"u\0" * (room // 2)) + bytes(200_000),
        "a refused token, and more behind it": _handshake("OAUTHBEARER")
        + _token(b"n,,\x01auth=Bearer %s.e30.c2ln\x01\x01" % (b"x" * (room - 100)))
        + _token(b"\x01")
        + bytes(200_000),
        "a record but for a byte": b"\x16\x03\x01\x3f\x00\x01\x00\x3e\xfc\x03\x03" + bytes(16_000),
        "a hello, and a record but for a byte": hello + b"\x17\x03\x03\x3f\x00" + bytes(16_000),
    }[kind]


def _bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def _cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def hold(sock: socket.socket, conversation: Conversation, limit_s: float = 15.0) -> bool:
    """Hold it, until the broker closes; False: it did not."""
    sock.settimeout(limit_s)
    by = time.monotonic() + limit_s
    with contextlib.suppress(OSError):
        for piece in conversation.pieces:
            sock.sendall(piece)
            if conversation.pause_s:
                time.sleep(conversation.pause_s)
    try:
        while sock.recv(65_536):
            if time.monotonic() > by:
                return False
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
