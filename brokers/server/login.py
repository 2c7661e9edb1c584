"""Logins on listeners with SASL: what happens to a request before its connection is logged in, and when it renews that.

``brokers.logins.sasl`` decides; this module decodes, answers, delays and closes. A connection whose login is done for
good has no :class:`ConnectionLogin` any more, and is like one of a PLAINTEXT listener from then on.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fleetlog._native.errors import LooseMessage
from fleetlog.brokers.logins.listener_settings import ListenerLogins
from fleetlog.brokers.logins.mechanism_names import SCRAM_MECHANISMS
from fleetlog.brokers.logins.mechanisms import AuthenticationFailed, Deferred, LoginStep, ServerMechanism
from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER, OauthBearerServer, TokenVerifier
from fleetlog.brokers.logins.plain import PLAIN, PlainServer, verifier
from fleetlog.brokers.logins.sasl import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    AuthenticateAnswer,
    LoginAdmission,
    LoginState,
    RawAnswer,
    SaslListener,
    SaslLogin,
    Then,
)
from fleetlog.brokers.logins.scram import ScramMechanism, ScramServer, random_text
from fleetlog.brokers.server.connection import LOGIN_REQUESTS_MAX, Connection, ConnectionLogin, Slot
from fleetlog.wire import hot, messages
from fleetlog.wire.answered_errors import error_response
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.api.base import Services
    from fleetlog.brokers.logins.users import ScramUsers
    from fleetlog.brokers.server.limits import QuietLog

logger = logging.getLogger(__name__)


def sasl_listener(
    logins: ListenerLogins, credentials: ScramUsers, fake_key: bytes, verify: TokenVerifier | None = None
) -> SaslListener:
    """The mechanisms of a listener. ``fake_key`` is the fleet's secret for the salts of users that do not exist.

    ``verify`` decides about tokens; there must be one where OAUTHBEARER is enabled.
    """

    def scram(mechanism: ScramMechanism) -> ServerMechanism:
        return ScramServer(
            mechanism, partial(credentials.credential, mechanism), lambda: random_text(secrets.randbits), fake_key,
            credentials.forms(mechanism),
        )  # fmt: skip

    makers: dict[str, Callable[[], ServerMechanism]] = {}
    for name in logins.mechanisms:
        if name == PLAIN:
            makers[name] = partial(PlainServer, verifier(logins.passwords))
        elif name == OAUTHBEARER:
            if verify is None:
                raise RuntimeError("OAUTHBEARER needs a verifier of tokens")
            makers[name] = partial(OauthBearerServer, verify)
        else:
            makers[name] = partial(scram, SCRAM_MECHANISMS[name])
    return SaslListener(makers, logins.reauth_ms)


class LoginGate:
    """Stands before the dispatcher for connections that have a login."""

    def __init__(self, services: Services, quiet: QuietLog, delay_ms: int) -> None:
        self._services = services
        self._quiet = quiet
        self._delay_ms = delay_ms

    def admits(self, connection: Connection, login: ConnectionLogin, frame: memoryview, slot: Slot) -> bool:
        """Whether the request goes on to its handler; else it is answered here, now or later, or closes."""
        clock, sasl = self._services.clock, login.sasl
        if not login.count():
            return self._close(connection, login, "login", f"more than {LOGIN_REQUESTS_MAX} requests before a login")
        if sasl.expects_raw_token:
            raw = sasl.raw_token(bytes(frame), clock.mono_ms(), clock.wall_ms())
            if isinstance(raw, Deferred):
                raw.begin(partial(self._raw_resumed, connection, login, slot))
            else:
                self._answer_raw(connection, login, slot, raw)
            return False
        try:
            header = _served(messages.parse_request_header, frame)
        except messages.MalformedRequest as error:
            return self._close(connection, login, "login", f"malformed header before a login: {error}")
        key, version = header.api_key, header.api_version
        api = APIS.get(key)
        admission = sasl.admit(key, clock.mono_ms())
        if admission is LoginAdmission.SERVE:
            return True
        if admission is LoginAdmission.VERSIONS:
            assert api is not None, "ApiVersions is in the table"
            sasl.versions_answered(api.lowest <= version <= api.max_version)
            return True
        if admission is LoginAdmission.EXPIRED:
            return self._close(connection, login, "session", f"the SASL session of {str(sasl.principal)!r} is over")
        if admission is LoginAdmission.CLOSE or api is None or not api.lowest <= version <= api.max_version:
            return self._close(connection, login, "login", f"API key {key} version {version} before a login")
        try:
            if admission is LoginAdmission.ILLEGAL:
                response = error_response(key, version, None, ErrorCode.ILLEGAL_SASL_STATE)
                then, detail = Then.CLOSE, f"{api.name} in the middle of a login"
            elif admission is LoginAdmission.HANDSHAKE:
                response, then, detail = _handshake(sasl, version, frame[header.body :])
            else:
                answered = partial(self._answer_authenticate, connection, login, slot, version, header.correlation_id)
                self._authenticate(sasl, version, frame[header.body :], answered)
                return False
        except messages.MalformedRequest as error:
            return self._close(connection, login, "login", f"malformed {api.name} version {version}: {error}")
        framed = [] if response is None else _framed(response, key, version, header.correlation_id)
        self._conclude(connection, login, slot, framed, then, detail)
        return False

    def _authenticate(
        self, sasl: SaslLogin, version: int, body: memoryview, answered: Callable[[AuthenticateAnswer], None]
    ) -> None:
        """``answered`` gets the answer, now or, where a token must be waited for, later. Raises MalformedRequest."""
        request, clock = _served(messages.decode_request, SASL_AUTHENTICATE, version, body), self._services.clock
        answer = sasl.authenticate(bytes(request.auth_bytes), clock.mono_ms(), clock.wall_ms())
        if not isinstance(answer, Deferred):
            answered(answer)
            return

        def resume(step: LoginStep | AuthenticationFailed) -> None:
            answered(sasl.authenticated(step, clock.mono_ms(), clock.wall_ms()))

        answer.begin(resume)

    def _raw_resumed(
        self, connection: Connection, login: ConnectionLogin, slot: Slot, step: LoginStep | AuthenticationFailed
    ) -> None:
        clock = self._services.clock
        self._answer_raw(
            connection, login, slot, login.sasl.raw_authenticated(step, clock.mono_ms(), clock.wall_ms())
        )  # fmt: skip

    def _answer_raw(self, connection: Connection, login: ConnectionLogin, slot: Slot, answer: RawAnswer) -> None:
        framed = [] if answer.token is None else hot.framed(b"", [answer.token])
        self._conclude(connection, login, slot, framed, answer.then, answer.detail)

    def _answer_authenticate(
        self,
        connection: Connection,
        login: ConnectionLogin,
        slot: Slot,
        version: int,
        correlation_id: int,
        answer: AuthenticateAnswer,
    ) -> None:
        response = messages.response_class(SASL_AUTHENTICATE)(
            version=version, error_code=int(answer.error), error_message=answer.error_message,
            auth_bytes=answer.auth_bytes,
        )  # fmt: skip
        if version >= 1:
            response.session_lifetime_ms = answer.session_lifetime_ms
        framed = _framed(response, SASL_AUTHENTICATE, version, correlation_id)
        self._conclude(connection, login, slot, framed, answer.then, answer.detail)

    def _conclude(
        self,
        connection: Connection,
        login: ConnectionLogin,
        slot: Slot,
        answer: list[bytes],
        then: Then,
        detail: str,
    ) -> None:
        if connection.closed:  # while its token was checked
            return
        audit, mechanism = self._services.audit, login.sasl.mechanism
        listener, host = connection.peer.listener, connection.peer.peer_host
        if then is Then.CONTINUE:
            if login.sasl.state is LoginState.COMPLETE:
                if audit is not None and not audit.logged_in(listener, host, str(login.sasl.principal), mechanism):
                    self._close(connection, login, "audit", "the login cannot be recorded")
                    return
                self._services.metrics.authenticated(listener, mechanism, well=True)
                lasting = login.sasl.session_ends_mono_ms is None
                connection.logged_in(str(login.sasl.principal), mechanism, lasting=lasting)
            slot.answer(list(answer))
            return
        self._count(connection, login, "login")
        self._quiet.warning("%s: login refused: %s", host, detail)
        if audit is not None:
            audit.login_refused(listener, host, mechanism, detail)
        if then is Then.CLOSE_AFTER_DELAY and self._delay_ms:
            finish = partial(connection.last_answer, slot, answer, "login refused")
            self._services.timers.later(self._delay_ms, finish)
        else:
            connection.last_answer(slot, answer, "login refused")

    def _count(self, connection: Connection, login: ConnectionLogin, reason: str) -> None:
        metrics = self._services.metrics
        metrics.refused.labels(reason).inc()
        if reason == "login":
            metrics.authenticated(connection.peer.listener, login.sasl.mechanism, well=False)

    def _close(self, connection: Connection, login: ConnectionLogin, reason: str, text: str) -> bool:
        self._count(connection, login, reason)
        self._quiet.warning("%s: %s; the connection is closed", connection.peer.peer_host, text)
        connection.close(text)
        return False


def _served(decode: Callable[..., Any], *arguments: Any) -> Any:
    """What is decoded, of bytes that are not quite right, too."""
    try:
        return decode(*arguments)
    except LooseMessage as loose:
        return loose.message


def _handshake(sasl: SaslLogin, version: int, body: memoryview) -> tuple[Any, Then, str]:
    request = _served(messages.decode_request, SASL_HANDSHAKE, version, body)
    answer = sasl.handshake(version, request.mechanism)
    response = messages.response_class(SASL_HANDSHAKE)(
        version=version, error_code=int(answer.error), mechanisms=list(answer.mechanisms)
    )
    return response, answer.then, f"mechanism {request.mechanism[:100]!r} is not enabled"


def _framed(response: Any, key: int, version: int, correlation_id: int) -> list[bytes]:
    header = messages.encode_response_header(key, version, correlation_id)
    framed: list[bytes] = hot.framed(header, [messages.encode_response(response, key, version)])
    return framed
