"""What SASL mechanisms have in common: a server's side takes tokens and gives challenges, then a principal."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import NamedTuple, Protocol

from fleetlog.brokers.logins.principals import Principal


class AuthenticationFailed(Exception):
    """The login is refused. ``str()`` may be sent to the peer; ``detail`` is for the log. Neither holds a secret."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail or message


class Authenticated(NamedTuple):
    """The outcome of a login. ``expires_at_ms`` (wall clock) is the end of the credential, where it has one."""

    principal: Principal
    expires_at_ms: int | None = None


class LoginStep(NamedTuple):
    """What a mechanism answers to a token: bytes for the client, and the outcome once there is one."""

    response: bytes
    authenticated: Authenticated | None = None


class Deferred(NamedTuple):
    """A step that may have to wait: ``begin`` takes a callback and calls it once, on the loop, at once or later."""

    begin: Callable[[Callable[[LoginStep | AuthenticationFailed], None]], None]


class ServerMechanism(Protocol):
    """One login under way."""

    def evaluate(self, token: bytes) -> LoginStep | Deferred:
        """The next step; raises AuthenticationFailed, after which the object is spent."""


def same_secret(one: bytes, other: bytes) -> bool:
    """Whether two secrets are equal, in a time that depends neither on where they differ nor on their lengths."""
    return hmac.compare_digest(hashlib.sha256(one).digest(), hashlib.sha256(other).digest())
