"""The login of one connection on a SASL listener, and its renewals (KIP-43, KIP-152, KIP-368), without I/O.

The connection asks :meth:`SaslLogin.admit` about the header of each request *before* it decodes the body, calls the
method that the answer names, sends what that returns, and obeys ``then``. Frames that come while
:attr:`SaslLogin.expects_raw_token` is set have no header: they are tokens (SaslHandshake v0).

============================ ===================================================================================
state                        what may come
============================ ===================================================================================
HANDSHAKE_OR_VERSIONS        ApiVersions (until one was answered), SaslHandshake
HANDSHAKE                    SaslHandshake
AUTHENTICATE                 SaslAuthenticate, or raw tokens; any other API is answered error 34 and ends it
COMPLETE                     any request; SaslHandshake begins a renewal where the session has an end
FAILED                       nothing
============================ ===================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from fleetlog.brokers.logins.mechanisms import (
    Authenticated,
    AuthenticationFailed,
    Deferred,
    LoginStep,
    ServerMechanism,
)
from fleetlog.brokers.logins.principals import Principal
from fleetlog.wire.errors import ErrorCode

SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36

FRAME_BYTES_MAX: Final = 32_768
"""The longest frame before the login is done: mechanisms with passwords have messages of 8 KiB at most."""
TOKEN_FRAME_BYTES_MAX: Final = 524_288
"""The longest frame before the login is done where OAUTHBEARER is enabled: tokens with many groups are long."""
MIN_RENEWAL_INTERVAL_MS: Final = 1000
STEPS_MAX: Final = 8
"""The most tokens of one login; SCRAM has two, a refused OAUTHBEARER token adds one."""


class LoginState(Enum):
    """Where a login stands."""

    HANDSHAKE_OR_VERSIONS = "handshake or versions"
    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    COMPLETE = "complete"
    FAILED = "failed"


class LoginAdmission(Enum):
    """What the connection does with a request, by its header."""

    VERSIONS = "versions"
    """Answers ApiVersions as ever, then calls ``versions_answered``."""
    HANDSHAKE = "handshake"
    """Decodes it and calls ``handshake``."""
    AUTHENTICATE = "authenticate"
    """Decodes it and calls ``authenticate``."""
    SERVE = "serve"
    """Serves it: the login is done. A SaslHandshake or SaslAuthenticate is answered ILLEGAL_SASL_STATE there."""
    ILLEGAL = "illegal"
    """Answers with the API's own error response, ILLEGAL_SASL_STATE, then closes; ``detail`` is for the log."""
    CLOSE = "close"
    """Closes without an answer."""
    EXPIRED = "expired"
    """Closes without an answer: the session is over, and the client did not renew it. Counted apart."""


class Then(Enum):
    """What follows an answer."""

    CONTINUE = "continue"
    CLOSE = "close"
    CLOSE_AFTER_DELAY = "close after delay"
    """The answer itself waits for ``connection.failed.authentication.delay.ms``; reading stops meanwhile."""


class HandshakeAnswer(NamedTuple):
    """The fields of SaslHandshakeResponse."""

    error: ErrorCode
    mechanisms: tuple[str, ...]
    then: Then


class AuthenticateAnswer(NamedTuple):
    """The fields of SaslAuthenticateResponse; ``detail`` is for the log of failures and holds no secret."""

    error: ErrorCode
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int
    then: Then
    detail: str = ""


class RawAnswer(NamedTuple):
    """The token to send with its size before it; None: nothing."""

    token: bytes | None
    then: Then
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SaslListener:
    """What a listener's logins have in common.

    ``mechanisms`` makes the server's side for each enabled mechanism, in the order of ``sasl.enabled.mechanisms``.
    ``reauth_ms`` is ``connections.max.reauth.ms`` by mechanism; none or 0: sessions end only with their credential.
    """

    mechanisms: Mapping[str, Callable[[], ServerMechanism]]
    reauth_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def frame_bytes_max(self) -> int:
        """The longest frame that is read before a login is done."""
        return TOKEN_FRAME_BYTES_MAX if "OAUTHBEARER" in self.mechanisms else FRAME_BYTES_MAX


class SaslLogin:
    """One connection's login. Times are the caller's: ``mono_ms`` for sessions, ``wall_ms`` for a credential's end."""

    def __init__(self, listener: SaslListener) -> None:
        self._listener = listener
        self.state = LoginState.HANDSHAKE_OR_VERSIONS
        self.principal: Principal | None = None
        """Set once the first login is done; no renewal changes it."""
        self.mechanism = ""
        self.session_ends_mono_ms: int | None = None
        """From then on only a renewal is admitted."""
        self.expects_raw_token = False
        self._server: ServerMechanism | None = None
        self._steps = 0
        self._changed_mechanism = False
        self._last_renewal_mono_ms: int | None = None

    @property
    def done(self) -> bool:
        """Whether requests are served now; not so during a renewal."""
        return self.state is LoginState.COMPLETE

    def admit(self, api_key: int, mono_ms: int) -> LoginAdmission:
        """What to do with a request. A refusal of a login under way ends it."""
        state = self.state
        if state is LoginState.COMPLETE:
            return self._admit_after_login(api_key, mono_ms)
        if state is LoginState.AUTHENTICATE and not self.expects_raw_token:
            if api_key == SASL_AUTHENTICATE:
                return LoginAdmission.AUTHENTICATE
            self._fail()
            return LoginAdmission.ILLEGAL
        if state in {LoginState.HANDSHAKE, LoginState.HANDSHAKE_OR_VERSIONS}:
            if api_key == SASL_HANDSHAKE:
                return LoginAdmission.HANDSHAKE
            if api_key == API_VERSIONS and state is LoginState.HANDSHAKE_OR_VERSIONS:
                return LoginAdmission.VERSIONS
        self._fail()
        return LoginAdmission.CLOSE

    def _admit_after_login(self, api_key: int, mono_ms: int) -> LoginAdmission:
        ends = self.session_ends_mono_ms
        if ends is None:
            return LoginAdmission.SERVE
        last = self._last_renewal_mono_ms
        if api_key == SASL_HANDSHAKE and (last is None or mono_ms - last >= MIN_RENEWAL_INTERVAL_MS):
            self._last_renewal_mono_ms = mono_ms
            self.state = LoginState.HANDSHAKE
            return LoginAdmission.HANDSHAKE
        if mono_ms > ends:
            self._fail()
            return LoginAdmission.EXPIRED
        return LoginAdmission.SERVE

    def versions_answered(self, supported: bool) -> None:
        """ApiVersions was answered; one of an unsupported version (error 35) may be asked again."""
        if supported and self.state is LoginState.HANDSHAKE_OR_VERSIONS:
            self.state = LoginState.HANDSHAKE

    def handshake(self, version: int, mechanism: str) -> HandshakeAnswer:
        """SaslHandshake v0 (raw tokens follow) or v1 (SaslAuthenticate requests follow)."""
        if self.state not in {LoginState.HANDSHAKE, LoginState.HANDSHAKE_OR_VERSIONS}:
            raise RuntimeError(f"SaslHandshake was not admitted in state {self.state.value}")
        enabled = tuple(self._listener.mechanisms)
        make = self._listener.mechanisms.get(mechanism)
        if make is None:
            self._fail()
            return HandshakeAnswer(ErrorCode.UNSUPPORTED_SASL_MECHANISM, enabled, Then.CLOSE)
        self._changed_mechanism = self.principal is not None and mechanism != self.mechanism
        if not self._changed_mechanism:
            self.mechanism = mechanism
            self._server = make()
        self._steps = 0
        self.expects_raw_token = version == 0
        self.state = LoginState.AUTHENTICATE
        return HandshakeAnswer(ErrorCode.NONE, enabled, Then.CONTINUE)

    def authenticate(self, token: bytes, mono_ms: int, wall_ms: int) -> AuthenticateAnswer | Deferred:
        """One SaslAuthenticate request. The outcome of a step that is deferred goes to :meth:`authenticated`."""
        if self.expects_raw_token:
            raise RuntimeError("SaslAuthenticate was not admitted: raw tokens are expected")
        step = self._step(token)
        return step if isinstance(step, Deferred) else self.authenticated(step, mono_ms, wall_ms)

    def authenticated(self, step: LoginStep | AuthenticationFailed, mono_ms: int, wall_ms: int) -> AuthenticateAnswer:
        """The answer to a SaslAuthenticate request, by its outcome."""
        if isinstance(step, AuthenticationFailed):
            return self._refused(step)
        try:
            lifetime_ms = self._complete(step.authenticated, mono_ms, wall_ms) if step.authenticated else 0
        except AuthenticationFailed as failure:
            return self._refused(failure)
        return AuthenticateAnswer(ErrorCode.NONE, None, step.response, lifetime_ms, Then.CONTINUE)

    def _refused(self, failure: AuthenticationFailed) -> AuthenticateAnswer:
        self._fail()
        code, then = ErrorCode.SASL_AUTHENTICATION_FAILED, Then.CLOSE_AFTER_DELAY
        return AuthenticateAnswer(code, str(failure), b"", 0, then, failure.detail)

    def raw_token(self, token: bytes, mono_ms: int, wall_ms: int) -> RawAnswer | Deferred:
        """One frame without a header. The outcome of a step that is deferred goes to :meth:`raw_authenticated`."""
        if not self.expects_raw_token:
            raise RuntimeError("no raw token is expected")
        step = self._step(token)
        return step if isinstance(step, Deferred) else self.raw_authenticated(step, mono_ms, wall_ms)

    def raw_authenticated(self, step: LoginStep | AuthenticationFailed, mono_ms: int, wall_ms: int) -> RawAnswer:
        """The answer to a raw token. A failure has none: the connection is closed after the delay."""
        answer = self.authenticated(step, mono_ms, wall_ms)
        token = answer.auth_bytes if answer.error is ErrorCode.NONE else None
        return RawAnswer(token, answer.then, answer.detail)

    def _step(self, token: bytes) -> LoginStep | Deferred | AuthenticationFailed:
        if self.state is not LoginState.AUTHENTICATE:
            raise RuntimeError(f"a token was not admitted in state {self.state.value}")
        if self._changed_mechanism or self._server is None:
            return AuthenticationFailed("Cannot change the SASL mechanism during re-authentication")
        self._steps += 1
        if self._steps > STEPS_MAX:
            return AuthenticationFailed(_FIXED, f"more than {STEPS_MAX} messages")
        try:
            return self._server.evaluate(token)
        except AuthenticationFailed as failure:
            # That one refers to its call, and with it to this one, to itself, and to the token for long.
            return AuthenticationFailed(str(failure), failure.detail)

    def _complete(self, outcome: Authenticated, mono_ms: int, wall_ms: int) -> int:
        """The login is done; returns the session's length, 0 without an end. Raises AuthenticationFailed."""
        if self.principal is not None and self.principal != outcome.principal:
            raise AuthenticationFailed(
                "Cannot change principals during re-authentication",
                f"{self.principal} renewed its login as {outcome.principal}",
            )
        lifetimes = []
        if outcome.expires_at_ms is not None:
            lifetimes.append(outcome.expires_at_ms - wall_ms)
        reauth_ms = self._listener.reauth_ms.get(self.mechanism, 0)
        if reauth_ms > 0:
            lifetimes.append(reauth_ms)
        lifetime_ms = min(lifetimes, default=0)
        if lifetimes and lifetime_ms <= 0:
            raise AuthenticationFailed(_FIXED, "the credential is expired")
        self.principal = outcome.principal
        self.session_ends_mono_ms = mono_ms + lifetime_ms if lifetimes else None
        self._server = None
        self.expects_raw_token = False
        self.state = LoginState.COMPLETE
        return lifetime_ms

    def _fail(self) -> None:
        self.state = LoginState.FAILED
        self.expects_raw_token = False
        self._server = None


_FIXED: Final = "Authentication failed due to invalid credentials"
