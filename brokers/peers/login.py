"""How a broker logs in at another one: SaslHandshake and SaslAuthenticate over a new link, before any other call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fleetlog.brokers.peers.link import PeerLink, PeerUnavailable
from fleetlog.brokers.security.listener_logins import ClientLogin
from fleetlog.brokers.security.mechanism_names import SCRAM_MECHANISMS
from fleetlog.brokers.security.mechanisms import AuthenticationFailed
from fleetlog.brokers.security.plain import plain_message
from fleetlog.brokers.security.scram import ScramClient
from fleetlog.wire import messages

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_VERSION: Final = 2
RENEWED_AT: Final = 0.8
"""The part of a session after which new calls go over a new connection; those under way have the rest to end."""

_SHOWN_CHARACTERS: Final = 200

_Exchange = Callable[[bytes], Awaitable[bytes]]


async def log_in(
    link: PeerLink, login: ClientLogin, client_id: str, timeout_ms: int, nonce: Callable[[], str]
) -> float | None:
    """Log in; returns after how many seconds the link should be replaced, None for never.

    Raises PeerUnavailable, also where the other broker refuses the login or cannot prove that it knows the credential.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    lifetime_ms = 0

    async def call(key: int, version: int, message: Any) -> Any:
        body = bytes(message.encode(version=version))
        return await link.call(key, version, body, client_id, deadline, timeout_ms, raw=False)

    async def exchange(token: bytes) -> bytes:
        nonlocal lifetime_ms
        request = messages.request_class(SASL_AUTHENTICATE)(version=AUTHENTICATE_VERSION, auth_bytes=token)
        answer = await call(SASL_AUTHENTICATE, AUTHENTICATE_VERSION, request)
        if answer.error_code:
            raise AuthenticationFailed(f"error {answer.error_code}, {_shown(answer.error_message or '')}")
        lifetime_ms = answer.session_lifetime_ms
        return bytes(answer.auth_bytes)

    handshake = messages.request_class(SASL_HANDSHAKE)(version=HANDSHAKE_VERSION, mechanism=login.mechanism)
    try:
        answer = await call(SASL_HANDSHAKE, HANDSHAKE_VERSION, handshake)
        if answer.error_code:
            listed = _shown(", ".join(answer.mechanisms))
            raise AuthenticationFailed(f"its listener has {listed}, not {login.mechanism}")
        await _authenticate(login, exchange, nonce)
    except AuthenticationFailed as refusal:
        reason = f"the login of user {login.user} by {login.mechanism} failed: {refusal}"
        link.close(reason)
        raise PeerUnavailable(link.broker_id, reason) from None
    except BaseException:
        link.close("the login was given up")
        raise
    return lifetime_ms / 1000 * RENEWED_AT if lifetime_ms > 0 else None


def _shown(text: str) -> str:
    """What the other side says, in a line of the log: bounded and escaped."""
    return repr(text[:_SHOWN_CHARACTERS])


async def _authenticate(login: ClientLogin, exchange: _Exchange, nonce: Callable[[], str]) -> None:
    """Raises AuthenticationFailed."""
    mechanism = SCRAM_MECHANISMS.get(login.mechanism)
    if mechanism is None:
        await exchange(plain_message(login.user, login.password))
        return
    client = ScramClient(mechanism, login.user, login.password, nonce())
    challenge = await exchange(client.first())
    # PBKDF2: milliseconds, so not on the loop
    final = await asyncio.get_running_loop().run_in_executor(None, client.final, challenge)
    client.check(await exchange(final))
