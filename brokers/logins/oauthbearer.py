"""SASL OAUTHBEARER (RFC 7628, KIP-255): one message with a token, and the client's acknowledgement of a refusal.

``n,[a=<authorization id>],`` 0x01 ``auth=Bearer <token>`` 0x01 (``key=value`` 0x01)* 0x01. A refused token is answered
with JSON and error 0; the client sends one byte 0x01, and only then the login fails. Extensions are read and ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from fleetlog.brokers.logins.mechanisms import Authenticated, AuthenticationFailed, Deferred, LoginStep
from fleetlog.brokers.logins.principals import USER, Principal
from fleetlog.brokers.logins.scram import decode_saslname

OAUTHBEARER: Final = "OAUTHBEARER"
MESSAGE_BYTES_MAX: Final = 524_288
EXTENSIONS_MAX: Final = 64

_SEPARATOR: Final = b"\x01"
_AUTH: Final = re.compile(rb"auth=(\w+) +([A-Za-z0-9_.-]+)")
_EXTENSION: Final = re.compile(rb"[A-Za-z]+=[\x21-\x7e \t\r\n]+")
_REFUSED: Final = json.dumps({"status": "invalid_token"})


class VerifiedToken(NamedTuple):
    """What a token proves: the subject's name, and until when (wall clock)."""

    subject: str
    expires_at_ms: int


class BadToken(Exception):
    """The token is refused. The text is for the log: it says why, and holds no part of a signature."""


TokenOutcome = VerifiedToken | BadToken
TokenVerifier = Callable[[bytes, Callable[[TokenOutcome], None]], None]
"""Takes a token and a callback, which it calls once, on the loop, at once or later."""


class ClientResponse(NamedTuple):
    """The client's message. ``authorization`` is empty where it has none."""

    authorization: str
    token: bytes
    extensions: dict[str, str]

    def __repr__(self) -> str:
        return f"ClientResponse(authorization={self.authorization!r})"


def client_response(message: bytes) -> ClientResponse:
    """The parts of the client's message; raises ValueError, whose text holds nothing of them."""
    header, _, rest = message.partition(_SEPARATOR)
    if len(message) > MESSAGE_BYTES_MAX or not rest.endswith(_SEPARATOR * 2):
        raise ValueError("not a message of OAUTHBEARER")
    flag, authorization, nothing = header.split(b",")
    if flag != b"n" or nothing or (authorization and not authorization.startswith(b"a=")):
        raise ValueError("not a header without channel binding")
    first, *others = rest[:-2].split(_SEPARATOR, EXTENSIONS_MAX + 1)
    auth = _AUTH.fullmatch(first)
    if auth is None or auth[1].lower() != b"bearer":
        raise ValueError("no bearer token")
    if len(others) > EXTENSIONS_MAX or not all(_EXTENSION.fullmatch(one) for one in others):
        raise ValueError("not extensions")
    extensions = dict(one.decode("ascii").split("=", 1) for one in others)
    if "auth" in extensions or len(extensions) < len(others):
        raise ValueError("an extension is given twice")
    return ClientResponse(decode_saslname(authorization[2:].decode()) if authorization else "", auth[2], extensions)


def token_message(token: str) -> bytes:
    """The message of a client of ours."""
    return b"n,,\x01auth=Bearer " + token.encode("ascii") + b"\x01\x01"


class OauthBearerServer:
    """One login. ``verify`` decides about its token."""

    def __init__(self, verify: TokenVerifier) -> None:
        self._verify = verify
        self._refusal = ""
        self._spent = False

    def evaluate(self, token: bytes) -> LoginStep | Deferred:
        """The server's next message; raises AuthenticationFailed."""
        if self._refusal:
            raise AuthenticationFailed(_REFUSED, self._refusal)
        if self._spent:
            raise AuthenticationFailed(_REFUSED, "a message after the end of the exchange")
        self._spent = True
        try:
            response = client_response(token)
        except ValueError as error:
            raise AuthenticationFailed("Invalid SASL/OAUTHBEARER message", f"malformed message: {error}") from None
        return Deferred(lambda done: self._verify(response.token, lambda found: done(self._step(response, found))))

    def _step(self, response: ClientResponse, found: TokenOutcome) -> LoginStep:
        if isinstance(found, BadToken):
            return self._refused(str(found))
        if response.authorization and response.authorization != found.subject:
            return self._refused("an authorization id that is not the token's subject")
        return LoginStep(b"", Authenticated(Principal(USER, found.subject), found.expires_at_ms))

    def _refused(self, reason: str) -> LoginStep:
        self._refusal = f"the token was refused: {reason}"
        return LoginStep(_REFUSED.encode())
