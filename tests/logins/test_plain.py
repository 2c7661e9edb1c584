"""SASL PLAIN: what is accepted, what is refused, and stock clients."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.conn import SaslPlainAuthenticator
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.sasl.plain import SaslMechanismPlain

from fleetlog.brokers.logins import mechanisms
from fleetlog.brokers.logins.mechanisms import AuthenticationFailed, same_secret
from fleetlog.brokers.logins.plain import MESSAGE_BYTES_MAX, PlainServer, plain_message, verifier

PASSWORDS = {"alice": "secret", "empty": "", "bob": "geheim", "dave ": "secret"}


def evaluate(token: bytes) -> str:
    step = PlainServer(verifier(PASSWORDS)).evaluate(token)
    assert step.response == b""
    assert step.authenticated is not None
    return str(step.authenticated.principal)


def test_our_own_message_and_those_of_stock_clients() -> None:
    assert evaluate(plain_message("alice", "secret")) == "User:alice"
    names = {"sasl_plain_username": "alice", "sasl_plain_password": "secret"}
    aiokafka: Any = SaslPlainAuthenticator(loop=None, **names)
    assert evaluate(aiokafka._step(None)[0]) == "User:alice"
    assert evaluate(SaslMechanismPlain(**names).auth_bytes()) == "User:alice"


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"alice\0secret",
        b"\0alice\0secret\0",
        b"\0alice\0secret\0more",
        b"\0\0secret",
        b"\0alice\0",
        b"\0empty\0",
        b"\0alice\0Secret",
        b"\0dave \0secret",
        b"\0alice\0secre",
        b"\0alice\0secrett",
        b"\0bob\0secret",
        b"\0carol\0secret",
        b"\0ALICE\0secret",
        b"bob\0alice\0secret",  # CVE-2017-12610: alice may not act for bob
        b"alice\0bob\0secret",
        b"\0\xff\0secret",
        b"\0alice\0secret" + b"x" * MESSAGE_BYTES_MAX,
    ],
)
def test_messages_that_are_refused(token: bytes) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        evaluate(token)
    assert "secret" not in str(caught.value) + caught.value.detail


def test_an_unknown_user_is_answered_like_a_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = set()
    compared = []
    monkeypatch.setattr(
        "fleetlog.brokers.logins.plain.same_secret", lambda *pair: compared.append(pair) or same_secret(*pair)
    )
    for token in (b"\0alice\0wrong", b"\0carol\0wrong", b"\0empty\0wrong"):
        with pytest.raises(AuthenticationFailed) as caught:
            evaluate(token)
        answers.add((str(caught.value), caught.value.detail))
    assert len(answers) == 1
    assert len(compared) == 3


def test_no_user_has_an_empty_password() -> None:
    verify = verifier(PASSWORDS)
    assert verify("alice", "secret")
    assert not verify("empty", "")
    assert not verify("carol", "")


def test_a_second_message_is_refused() -> None:
    server = PlainServer(verifier(PASSWORDS))
    server.evaluate(b"alice\0alice\0secret")
    with pytest.raises(AuthenticationFailed):
        server.evaluate(b"\0alice\0secret")


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_secrets_are_the_same_only_if_equal(one: bytes, other: bytes) -> None:
    assert same_secret(one, other) is (one == other)
    assert same_secret(one, one)


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(mechanisms.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    assert not same_secret(b"a", b"much longer")
    assert [len(part) for part in compared[0]] == [32, 32]


def test_what_cannot_be_sent() -> None:
    for user, password in (("", "p"), ("u", ""), ("u\0", "p"), ("u", "p\0")):
        with pytest.raises(ValueError, match="PLAIN"):
            plain_message(user, password)
