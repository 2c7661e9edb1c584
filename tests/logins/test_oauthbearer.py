"""The messages of OAUTHBEARER, and a login over them by the state machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog.brokers.logins.mechanisms import AuthenticationFailed, Deferred, LoginStep
from fleetlog.brokers.logins.oauthbearer import (
    BadToken,
    OauthBearerServer,
    TokenOutcome,
    VerifiedToken,
    client_response,
    token_message,
)
from fleetlog.brokers.logins.sasl import AuthenticateAnswer, LoginState, RawAnswer, SaslListener, SaslLogin, Then
from fleetlog.wire.errors import ErrorCode

TOKEN = "eyJh.eyJz.c2ln-_"
WALL_MS = 1_700_000_000_000


def test_what_clients_send() -> None:
    found = client_response(token_message(TOKEN))
    assert (found.authorization, found.token, found.extensions) == ("", TOKEN.encode(), {})
    assert TOKEN not in repr(found)
    whole = f"n,a=al=2Cice,\x01auth=BEARER   {TOKEN}\x01traceId=1 2\x01logicalCluster=lkc-1\x01\x01"
    found = client_response(whole.encode())
    assert (found.authorization, found.extensions) == ("al,ice", {"traceId": "1 2", "logicalCluster": "lkc-1"})


@pytest.mark.parametrize(
    "message",
    [
        b"", b"\x01", b"\x01\x01", b"n,,\x01\x01", f"n,,\x01auth=Bearer {TOKEN}\x01".encode(),
        f"n,,\x01auth=Bearer {TOKEN}".encode(), f"n,,auth=Bearer {TOKEN}\x01\x01".encode(),
        f"y,,\x01auth=Bearer {TOKEN}\x01\x01".encode(), f"p=x,,\x01auth=Bearer {TOKEN}\x01\x01".encode(),
        f"n,b=x,\x01auth=Bearer {TOKEN}\x01\x01".encode(), f"n,a=,\x01auth=Bearer {TOKEN}\x01\x01".encode(),
        f"n,a=x=y,\x01auth=Bearer {TOKEN}\x01\x01".encode(), f"n,,x\x01auth=Bearer {TOKEN}\x01\x01".encode(),
        f"n,,\x01auth=Basic {TOKEN}\x01\x01".encode(), b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        f"n,,\x01auth=Bearer {TOKEN}\x01auth=Bearer {TOKEN}\x01\x01".encode(),
        f"n,,\x01auth=Bearer {TOKEN}\x01a=1\x01a=2\x01\x01".encode(),
        f"n,,\x01a=1\x01auth=Bearer {TOKEN}\x01\x01".encode(), f"n,,\x01auth=Bearer {TOKEN}\x01a1=1\x01\x01".encode(),
        f"n,,\x01auth=Bearer {TOKEN}\x01a=\x01\x01".encode(), f"n,,\x01auth=Bearer {TOKEN}\x01a=\xe9\x01\x01".encode(),
        f"n,,\x01auth=Bearer {TOKEN}\x01".encode() + b"a=1\x01" * 65 + b"\x01", b"n,,\x01auth=Bearer " + b"a" * 524_288,
        b"\xff,,\x01\x01",
    ],
)  # fmt: skip
def test_what_is_no_message(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        client_response(message)
    with pytest.raises(AuthenticationFailed):
        OauthBearerServer(lambda _token, done: done(VerifiedToken("alice", 5))).evaluate(message)


class Logins:
    """One login whose token is decided about by the test."""

    def __init__(self, version: int = 1, reauth_ms: int = 0) -> None:
        self.asked: list[tuple[bytes, Callable[[TokenOutcome], None]]] = []
        listener = SaslListener(
            {"OAUTHBEARER": lambda: OauthBearerServer(lambda token, done: self.asked.append((token, done)))},
            {"OAUTHBEARER": reauth_ms},
        )
        assert listener.frame_bytes_max == 524_288
        self.version = version
        self.sasl = SaslLogin(listener)
        self.sasl.handshake(version, "OAUTHBEARER")

    def send(self, message: bytes, outcome: TokenOutcome | None = None) -> Any:
        found: list[LoginStep | AuthenticationFailed] = []
        send = self.sasl.authenticate if self.version else self.sasl.raw_token
        answer = send(message, 1000, WALL_MS)
        if not isinstance(answer, Deferred):
            return answer
        answer.begin(found.append)
        assert found == []
        assert outcome is not None
        assert self.sasl.state is LoginState.AUTHENTICATE
        self.asked.pop()[1](outcome)
        resume = self.sasl.authenticated if self.version else self.sasl.raw_authenticated
        return resume(found[0], 1000, WALL_MS)


def test_a_session_ends_with_its_token() -> None:
    logins = Logins()
    answer = logins.send(token_message(TOKEN), VerifiedToken("alice", WALL_MS + 7000))
    assert answer == AuthenticateAnswer(ErrorCode.NONE, None, b"", 7000, Then.CONTINUE)
    assert str(logins.sasl.principal) == "User:alice"
    assert logins.sasl.session_ends_mono_ms == 8000
    shorter = Logins(reauth_ms=3000).send(token_message(TOKEN), VerifiedToken("alice", WALL_MS + 7000))
    assert shorter.session_lifetime_ms == 3000


def test_a_token_that_expired_while_it_was_checked() -> None:
    answer = Logins().send(token_message(TOKEN), VerifiedToken("alice", WALL_MS))
    assert answer.error is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_refused_token() -> None:
    logins = Logins()
    answer = logins.send(token_message(TOKEN), BadToken("it expired 5 s ago"))
    assert answer == AuthenticateAnswer(ErrorCode.NONE, None, b'{"status": "invalid_token"}', 0, Then.CONTINUE)
    assert not logins.sasl.done
    answer = logins.send(b"\x01")
    assert (answer.error, answer.then) == (ErrorCode.SASL_AUTHENTICATION_FAILED, Then.CLOSE_AFTER_DELAY)
    assert answer.error_message == '{"status": "invalid_token"}'
    assert answer.detail == "the token was refused: it expired 5 s ago"
    assert logins.sasl.state is LoginState.FAILED


def test_no_second_token_after_a_refused_one() -> None:
    logins = Logins()
    logins.send(token_message(TOKEN), BadToken("wrong"))
    answer = logins.send(token_message(TOKEN))
    assert answer.error is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert logins.asked == []


def test_an_authorization_id_must_be_the_subject() -> None:
    message = f"n,a=bob,\x01auth=Bearer {TOKEN}\x01\x01".encode()
    assert Logins().send(message, VerifiedToken("alice", WALL_MS + 7000)).auth_bytes
    assert Logins().send(message, VerifiedToken("bob", WALL_MS + 7000)).auth_bytes == b""


def test_tokens_without_headers() -> None:
    logins = Logins(version=0)
    answer = logins.send(token_message(TOKEN), VerifiedToken("alice", WALL_MS + 7000))
    assert answer == RawAnswer(b"", Then.CONTINUE)
    assert logins.sasl.done
    refused = Logins(version=0)
    assert refused.send(token_message(TOKEN), BadToken("wrong")).token == b'{"status": "invalid_token"}'
    assert refused.send(b"\x01").then is Then.CLOSE_AFTER_DELAY


def test_a_renewal_as_another_subject_fails() -> None:
    logins = Logins()
    logins.send(token_message(TOKEN), VerifiedToken("alice", WALL_MS + 7000))
    logins.sasl.admit(17, 2500)
    logins.sasl.handshake(1, "OAUTHBEARER")
    answer = logins.send(token_message(TOKEN), VerifiedToken("bob", WALL_MS + 7000))
    assert answer.error is ErrorCode.SASL_AUTHENTICATION_FAILED


@settings(deadline=None)
@given(st.binary(max_size=120))
def test_any_bytes_are_refused_or_a_token_but_never_a_login(message: bytes) -> None:
    for sent in (message, b"n,,\x01auth=Bearer " + message + b"\x01\x01"):
        try:
            found = OauthBearerServer(lambda _token, done: done(BadToken("any"))).evaluate(sent)
        except AuthenticationFailed:
            continue
        assert isinstance(found, Deferred)
        steps: list[LoginStep | AuthenticationFailed] = []
        found.begin(steps.append)
        assert steps == [LoginStep(b'{"status": "invalid_token"}')]
