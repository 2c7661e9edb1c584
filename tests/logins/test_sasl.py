"""The login of a connection: what may be sent when, both kinds of tokens, renewals and the end of a session."""

from __future__ import annotations

import gc
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fleetlog.brokers.logins.mechanisms import Authenticated, AuthenticationFailed, Deferred, LoginStep
from fleetlog.brokers.logins.plain import PlainServer, plain_message, verifier
from fleetlog.brokers.logins.principals import USER, Principal
from fleetlog.brokers.logins.sasl import (
    API_VERSIONS,
    FRAME_BYTES_MAX,
    MIN_RENEWAL_INTERVAL_MS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    STEPS_MAX,
    TOKEN_FRAME_BYTES_MAX,
    LoginAdmission,
    LoginState,
    SaslListener,
    SaslLogin,
    Then,
)
from fleetlog.brokers.logins.scram import ScramClient, ScramMechanism, ScramServer
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from tests.support.draw import examples
from tests.support.sasl_wire import credential_of_password

METADATA = 3
WALL = 1_700_000_000_000
ALICE = plain_message("alice", "secret")
CREDENTIAL = credential_of_password(ScramMechanism.SHA_256, "secret", b"salt", 4096)


class Scripted:
    """A mechanism that answers as its token says: ``more``, or a name with the ms that its credential has left."""

    def evaluate(self, token: bytes) -> LoginStep:
        if token == b"more":
            return LoginStep(b"go on")
        name, _, left = token.decode().partition(":")
        if not name:
            raise AuthenticationFailed("no", "no name")
        return LoginStep(b"", Authenticated(Principal(USER, name), WALL + int(left) if left else None))


def scram() -> ScramServer:
    return ScramServer(ScramMechanism.SHA_256, {"alice": CREDENTIAL}.get, lambda: "nonce", b"key")


def plain() -> PlainServer:
    return PlainServer(verifier({"alice": "secret", "bob": "geheim"}))


MECHANISMS = {"PLAIN": plain, "SCRAM-SHA-256": scram, "X": Scripted}


def login_of(**reauth_ms: int) -> SaslLogin:
    return SaslLogin(SaslListener(MECHANISMS, reauth_ms))


def shaken(mechanism: str = "PLAIN", version: int = 1, **reauth_ms: int) -> SaslLogin:
    login = login_of(**reauth_ms)
    assert login.admit(SASL_HANDSHAKE, 0) is LoginAdmission.HANDSHAKE
    assert login.handshake(version, mechanism).error is ErrorCode.NONE
    return login


def complete(mechanism: str = "PLAIN", token: bytes = ALICE, **reauth_ms: int) -> SaslLogin:
    login = shaken(mechanism, **reauth_ms)
    assert login.admit(SASL_AUTHENTICATE, 0) is LoginAdmission.AUTHENTICATE
    assert login.authenticate(token, 0, WALL).error is ErrorCode.NONE
    assert login.done
    return login


# ---------------------------------------------------------------- the first login


def test_a_login_with_versions_first() -> None:
    login = login_of()
    assert login.admit(API_VERSIONS, 0) is LoginAdmission.VERSIONS
    login.versions_answered(supported=False)
    assert login.admit(API_VERSIONS, 0) is LoginAdmission.VERSIONS
    login.versions_answered(supported=True)
    assert login.admit(SASL_HANDSHAKE, 0) is LoginAdmission.HANDSHAKE
    answer = login.handshake(1, "PLAIN")
    assert answer == (ErrorCode.NONE, ("PLAIN", "SCRAM-SHA-256", "X"), Then.CONTINUE)
    assert login.admit(SASL_AUTHENTICATE, 0) is LoginAdmission.AUTHENTICATE
    assert login.principal is None
    assert login.authenticate(ALICE, 0, WALL) == (ErrorCode.NONE, None, b"", 0, Then.CONTINUE, "")
    assert str(login.principal) == "User:alice"
    assert login.session_ends_mono_ms is None


def test_a_second_versions_request_closes() -> None:
    login = login_of()
    login.versions_answered(supported=True)
    assert login.admit(API_VERSIONS, 0) is LoginAdmission.CLOSE
    assert login.state is LoginState.FAILED


@pytest.mark.parametrize("api_key", sorted(set(APIS) - {SASL_HANDSHAKE, API_VERSIONS}))
def test_nothing_else_is_admitted_before_the_handshake(api_key: int) -> None:
    for answered in (False, True):
        login = login_of()
        login.versions_answered(answered)
        assert login.admit(api_key, 0) is LoginAdmission.CLOSE
        assert login.admit(SASL_HANDSHAKE, 0) is LoginAdmission.CLOSE


@pytest.mark.parametrize("api_key", sorted(set(APIS) - {SASL_AUTHENTICATE}))
def test_nothing_but_tokens_is_admitted_after_the_handshake(api_key: int) -> None:
    login = shaken()
    assert login.admit(api_key, 0) is LoginAdmission.ILLEGAL
    assert login.admit(SASL_AUTHENTICATE, 0) is LoginAdmission.CLOSE
    login = shaken(version=0)
    assert login.admit(api_key, 0) is LoginAdmission.CLOSE


def test_an_unknown_mechanism() -> None:
    login = login_of()
    answer = login.handshake(1, "GSSAPI")
    assert answer == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ("PLAIN", "SCRAM-SHA-256", "X"), Then.CLOSE)
    assert login.admit(SASL_HANDSHAKE, 0) is LoginAdmission.CLOSE


def test_a_wrong_password_is_answered_after_the_delay() -> None:
    login = shaken()
    answer = login.authenticate(plain_message("alice", "wrong"), 0, WALL)
    assert answer.error is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == "Authentication failed: Invalid username or password"
    assert answer.then is Then.CLOSE_AFTER_DELAY
    assert login.principal is None
    assert login.admit(SASL_AUTHENTICATE, 0) is LoginAdmission.CLOSE
    assert login.admit(METADATA, 0) is LoginAdmission.CLOSE


@pytest.mark.parametrize("version", [0, 1])
def test_scram_takes_two_messages(version: int) -> None:
    login = shaken("SCRAM-SHA-256", version)
    client = ScramClient(ScramMechanism.SHA_256, "alice", "secret", "abc")
    assert login.expects_raw_token is (version == 0)

    def send(token: bytes) -> bytes:
        if version == 0:
            raw = login.raw_token(token, 0, WALL)
            assert raw.then is Then.CONTINUE
            assert raw.token is not None
            return raw.token
        answer = login.authenticate(token, 0, WALL)
        assert (answer.error, answer.session_lifetime_ms) == (ErrorCode.NONE, 0)
        return answer.auth_bytes

    challenge = send(client.first())
    assert not login.done
    client.check(send(client.final(challenge)))
    assert login.done
    assert not login.expects_raw_token
    assert login.admit(METADATA, 0) is LoginAdmission.SERVE


def test_a_raw_token_that_fails_has_no_answer() -> None:
    login = shaken(version=0)
    answer = login.raw_token(plain_message("alice", "wrong"), 0, WALL)
    assert (answer.token, answer.then) == (None, Then.CLOSE_AFTER_DELAY)
    assert login.state is LoginState.FAILED
    assert not login.expects_raw_token


def test_a_login_has_an_end() -> None:
    login = shaken("X")
    for _ in range(STEPS_MAX):
        assert login.authenticate(b"more", 0, WALL).then is Then.CONTINUE
    assert login.authenticate(b"alice", 0, WALL).error is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_what_was_not_admitted_is_a_bug() -> None:
    with pytest.raises(RuntimeError):
        login_of().authenticate(ALICE, 0, WALL)
    with pytest.raises(RuntimeError):
        login_of().raw_token(ALICE, 0, WALL)
    with pytest.raises(RuntimeError):
        shaken().handshake(1, "PLAIN")
    with pytest.raises(RuntimeError):
        complete().authenticate(ALICE, 0, WALL)


def test_frames_are_short_unless_tokens_are_enabled() -> None:
    assert SaslListener(MECHANISMS).frame_bytes_max == FRAME_BYTES_MAX
    assert SaslListener({"OAUTHBEARER": Scripted}).frame_bytes_max == TOKEN_FRAME_BYTES_MAX


# ---------------------------------------------------------------- sessions and renewals


@pytest.mark.parametrize(
    ("token", "reauth_ms", "lifetime_ms"),
    [(b"alice", 0, 0), (b"alice", 5000, 5000), (b"alice:3000", 0, 3000), (b"alice:3000", 5000, 3000),
     (b"alice:9000", 5000, 5000)],
)  # fmt: skip
def test_how_long_a_session_is(token: bytes, reauth_ms: int, lifetime_ms: int) -> None:
    login = shaken("X", X=reauth_ms, PLAIN=1)
    assert login.authenticate(token, 100, WALL).session_lifetime_ms == lifetime_ms
    assert login.session_ends_mono_ms == (100 + lifetime_ms if lifetime_ms else None)


@pytest.mark.parametrize("left", [0, -1])
def test_an_expired_credential_is_refused(left: int) -> None:
    login = shaken("X")
    assert login.authenticate(f"alice:{left}".encode(), 0, WALL).error is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert login.principal is None


def test_without_an_end_no_renewal_begins() -> None:
    login = complete()
    assert login.admit(SASL_HANDSHAKE, 10**9) is LoginAdmission.SERVE
    assert login.admit(SASL_AUTHENTICATE, 10**9) is LoginAdmission.SERVE
    assert login.done


def test_a_session_that_is_over_admits_a_renewal_only() -> None:
    login = complete(PLAIN=5000)
    assert login.admit(METADATA, 5000) is LoginAdmission.SERVE
    assert login.admit(METADATA, 5001) is LoginAdmission.EXPIRED
    assert login.admit(SASL_HANDSHAKE, 5001) is LoginAdmission.CLOSE
    login = complete(PLAIN=5000)
    assert login.admit(SASL_HANDSHAKE, 60_000) is LoginAdmission.HANDSHAKE
    login.handshake(1, "PLAIN")
    assert login.authenticate(ALICE, 60_000, WALL).session_lifetime_ms == 5000
    assert login.admit(METADATA, 65_000) is LoginAdmission.SERVE


def test_a_renewal_holds_other_requests() -> None:
    login = complete(PLAIN=5000)
    assert login.admit(SASL_HANDSHAKE, 100) is LoginAdmission.HANDSHAKE
    assert login.admit(METADATA, 100) is LoginAdmission.CLOSE
    login = complete(PLAIN=5000)
    login.admit(SASL_HANDSHAKE, 100)
    login.handshake(1, "PLAIN")
    assert login.admit(METADATA, 100) is LoginAdmission.ILLEGAL


def test_renewals_are_a_second_apart() -> None:
    login = complete(PLAIN=60_000)
    for now, expected in (
        (10, LoginAdmission.HANDSHAKE),
        (10 + MIN_RENEWAL_INTERVAL_MS - 1, LoginAdmission.SERVE),
        (10 + MIN_RENEWAL_INTERVAL_MS, LoginAdmission.HANDSHAKE),
    ):
        assert login.admit(SASL_HANDSHAKE, now) is expected
        if expected is LoginAdmission.HANDSHAKE:
            login.handshake(1, "PLAIN")
            login.authenticate(ALICE, now, WALL)


def test_a_renewal_keeps_principal_and_mechanism() -> None:
    login = complete(PLAIN=5000)
    login.admit(SASL_HANDSHAKE, 100)
    login.handshake(1, "PLAIN")
    answer = login.authenticate(plain_message("bob", "geheim"), 100, WALL)
    assert answer.error is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert str(login.principal) == "User:alice"
    assert login.admit(METADATA, 100) is LoginAdmission.CLOSE
    login = complete(PLAIN=5000)
    login.admit(SASL_HANDSHAKE, 100)
    assert login.handshake(1, "X").error is ErrorCode.NONE
    assert login.authenticate(b"alice", 100, WALL).error is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_credential_deleted_before_the_renewal_ends_the_connection() -> None:
    users = {"alice": "secret"}
    login = SaslLogin(SaslListener({"PLAIN": lambda: PlainServer(verifier(users))}, {"PLAIN": 5000}))
    login.handshake(1, "PLAIN")
    login.authenticate(ALICE, 0, WALL)
    del users["alice"]
    login.admit(SASL_HANDSHAKE, 100)
    login.handshake(1, "PLAIN")
    assert login.authenticate(ALICE, 100, WALL).then is Then.CLOSE_AFTER_DELAY


# ---------------------------------------------------------------- any order of requests


class AnyClient(RuleBasedStateMachine):
    """Requests in any order, obeyed as the connection does: nothing is served before a right password was given."""

    def __init__(self) -> None:
        super().__init__()
        self.login = SaslLogin(SaslListener(MECHANISMS, {"PLAIN": 3000}))
        self.now = 0
        self.right: int | None = None
        self.closed = False

    @rule(ms=st.sampled_from([0, 1, 999, 1000, 2999, 3001]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(
        api_key=st.sampled_from([SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE, METADATA]),
        version=st.sampled_from([0, 1]),
        mechanism=st.sampled_from(["PLAIN", "PLAIN", "SCRAM-SHA-256", "GSSAPI"]),
        right=st.booleans(),
    )
    def request(self, api_key: int, version: int, mechanism: str, right: bool) -> None:
        if self.closed:
            return
        token = ALICE if right else b"\0alice\0wrong"
        if self.login.expects_raw_token:
            raw = self.login.raw_token(token, self.now, WALL)
            self.outcome(raw.then, right)
            return
        admission = self.login.admit(api_key, self.now)
        if admission is LoginAdmission.SERVE:
            assert self.right is not None
            assert self.now - self.right <= 3000
        elif admission is LoginAdmission.VERSIONS:
            self.login.versions_answered(version == 1)
        elif admission is LoginAdmission.HANDSHAKE:
            self.closed = self.login.handshake(version, mechanism).then is not Then.CONTINUE
        elif admission is LoginAdmission.AUTHENTICATE:
            self.outcome(self.login.authenticate(token, self.now, WALL).then, right)
        else:
            self.closed = True

    def outcome(self, then: Then, right: bool) -> None:
        self.closed = then is not Then.CONTINUE
        if self.login.done:
            assert right
            self.right = self.now

    @invariant()
    def principals_are_proven(self) -> None:
        assert (self.login.principal is not None) is (self.right is not None)
        assert self.closed is (self.login.state is LoginState.FAILED)


TestAnyClient = AnyClient.TestCase
TestAnyClient.settings = settings(max_examples=examples(150), stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("version", [0, 1])
def test_a_refused_login_lets_its_token_go(version: int) -> None:
    """Without the garbage collector: an exception that refers to its own call would keep the token, and its frame."""
    login = SaslLogin(SaslListener({"PLAIN": lambda: PlainServer(verifier({"bob": "secret"}))}))
    login.handshake(version, "PLAIN")
    token = bytes(30_000)
    gc.disable()
    try:
        before = sys.getrefcount(token)
        answer = login.authenticate(token, 0, 0) if version else login.raw_token(token, 0, 0)
        assert not isinstance(answer, Deferred)
        assert answer.then is Then.CLOSE_AFTER_DELAY
        assert sys.getrefcount(token) == before
    finally:
        gc.enable()
