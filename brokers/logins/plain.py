"""SASL PLAIN (RFC 4616): one message with user and password, in clear text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fleetlog.brokers.logins.mechanisms import Authenticated, AuthenticationFailed, LoginStep, same_secret
from fleetlog.brokers.logins.principals import USER, Principal, has_outer_blanks

PLAIN: Final = "PLAIN"
MESSAGE_BYTES_MAX: Final = 8192

_WRONG: Final = "Authentication failed: Invalid username or password"


class PlainServer:
    """The server's side: ``verify(user, password)`` says whether they belong together."""

    def __init__(self, verify: Callable[[str, str], bool]) -> None:
        self._verify = verify
        self._spent = False

    def evaluate(self, token: bytes) -> LoginStep:
        """The one step there is. Raises AuthenticationFailed."""
        if self._spent:
            raise AuthenticationFailed(_WRONG, "a second PLAIN message")
        self._spent = True
        authorization, user, password = _parts(token)
        if authorization and authorization != user:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        if has_outer_blanks(user) or not self._verify(user, password):
            raise AuthenticationFailed(_WRONG)
        return LoginStep(b"", Authenticated(Principal(USER, user)))


def _parts(token: bytes) -> tuple[str, str, str]:
    parts = token.split(b"\0") if len(token) <= MESSAGE_BYTES_MAX else []
    if len(parts) != 3:
        raise AuthenticationFailed("Invalid SASL/PLAIN response: expected 3 tokens")
    try:
        authorization, user, password = (part.decode() for part in parts)
    except UnicodeDecodeError:
        raise AuthenticationFailed("Invalid SASL/PLAIN response: not UTF-8") from None
    if not user or not password:
        what = "username" if not user else "password"
        raise AuthenticationFailed(f"Authentication failed: {what} not specified")
    return authorization, user, password


def verifier(passwords: Mapping[str, str]) -> Callable[[str, str], bool]:
    """Compares with the passwords of a JAAS line; an unknown user takes as long as a wrong password."""

    def verify(user: str, password: str) -> bool:
        expected = passwords.get(user)
        equal = same_secret((expected or "").encode(), password.encode())
        return equal and bool(expected)

    return verify


def plain_message(user: str, password: str) -> bytes:
    """The client's one message. Raises ValueError where user or password are empty or contain NUL."""
    if not user or not password or "\0" in user + password:
        raise ValueError("user and password for SASL/PLAIN must not be empty or contain NUL")
    return b"\0".join((b"", user.encode(), password.encode()))
