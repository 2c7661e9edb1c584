"""Browser sessions: the cookie, the token of its forms, and the login by which the console asks the brokers.

Logins that are tried at the same time: some are, others wait for their address's turn.

A login takes a worker for seconds where it fails, since brokers answer a wrong password late.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import math
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fleetlog.brokers.console.clients import UserLogin

SESSIONS_MAX: Final = 1_000
IDLE_SESSION_S: Final = 30 * 60.0
LONGEST_SESSION_S: Final = 12 * 3600.0
WARNINGS_KEPT: Final = 5


class Notice(NamedTuple):
    """What was done; ``secret`` is a password that is shown with it."""

    text: str
    secret: str = ""


@dataclass(slots=True)
class BrowserSession:
    """One browser. ``login`` is None before a login, and always where none is wanted; it is good until ``ends_s``."""

    key: str
    begun_s: float
    used_s: float
    login: UserLogin | None = None
    ends_s: float = math.inf
    notices: list[Notice] = field(default_factory=list)

    def notify(self, text: str, secret: str = "") -> None:
        """Show the text on the next page."""
        self.notices = [*self.notices, Notice(text, secret)][-WARNINGS_KEPT:]

    def noticed(self) -> list[Notice]:
        """What is to be shown, once."""
        notices, self.notices = self.notices, []
        return notices


class BrowserSessions:
    """In memory: they, and the passwords in them, end with the process."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._secret = secrets.token_bytes(32)
        self._open: dict[str, BrowserSession] = {}

    def find(self, key: str | None, *, renews: bool = True) -> BrowserSession | None:
        """The session of a cookie, unless it has ended. ``renews``: a person asks, not the page by itself."""
        session = self._open.get(key or "")
        if session is None:
            return None
        if self._is_over(session):
            del self._open[session.key]
            return None
        if renews:
            session.used_s = self._now_s()
        return session

    def _is_over(self, session: BrowserSession) -> bool:
        now_s = self._now_s()
        idle_s, age_s = now_s - session.used_s, now_s - session.begun_s
        return idle_s > IDLE_SESSION_S or age_s > LONGEST_SESSION_S or now_s >= session.ends_s

    def forget_ended(self) -> None:
        """Drop the sessions whose time is over, with their passwords."""
        for session in [one for one in self._open.values() if self._is_over(one)]:
            self.end(session)

    def begin(self, login: UserLogin | None = None, lasts_s: float = math.inf) -> BrowserSession:
        """A new session, with a key that was not used before. The one that rested longest makes way.

        ``lasts_s`` is how long the login is good for.
        """
        while len(self._open) >= SESSIONS_MAX:
            del self._open[min(self._open.values(), key=lambda one: one.used_s).key]
        now_s = self._now_s()
        session = BrowserSession(secrets.token_urlsafe(32), now_s, now_s, login, now_s + lasts_s)
        self._open[session.key] = session
        return session

    def visitor(self, key: str | None) -> BrowserSession:
        """The session of a browser that is about to log in: the cookie's, else a new one.

        It is in no table, so that visitors drive out nothing: its key says when it began, and is signed.
        """
        now_s = self._now_s()
        named, _, signature = (key or "").rpartition(".")
        begun = named.partition(".")[0]
        is_ours = hmac.compare_digest(self._signature(named).encode(), signature.encode())
        if is_ours and 0 <= now_s - int(begun) <= IDLE_SESSION_S:
            return BrowserSession(key or "", int(begun), now_s)
        named = f"{int(now_s)}.{secrets.token_urlsafe(32)}"
        return BrowserSession(f"{named}.{self._signature(named)}", int(now_s), now_s)

    def _signature(self, named: str) -> str:
        return hmac.new(self._secret, b"visitor " + named.encode(), hashlib.sha256).hexdigest()

    def end(self, session: BrowserSession) -> None:
        """Log out."""
        self._open.pop(session.key, None)

    def logged_in(self, login: UserLogin) -> bool:
        """Whether a session has that login. From any thread."""
        return any(one.login == login for one in list(self._open.values()))

    def form_token(self, session: BrowserSession) -> str:
        """What a form of this session must send back, so that no other site's form is obeyed."""
        return hmac.new(self._secret, session.key.encode(), hashlib.sha256).hexdigest()

    def accepts(self, session: BrowserSession | None, token: str) -> bool:
        """Whether the token is the session's."""
        return session is not None and hmac.compare_digest(self.form_token(session).encode(), token.encode())


LOGINS_AT_ONCE: Final = 4
LOGINS_PER_ADDRESS_MAX: Final = 8
"""That are tried, or wait for that."""


class TooManyLogins(Exception):
    """An address has as many logins tried, or waiting for that, as it may have."""


class LoginTurns:
    """Whose login is tried next: addresses take turns, so the many of one keep another's waiting for one only.

    An address of IPv6 counts as its network of 64 bits, which one machine may have to itself. For one loop. What waits
    is bounded by the connections that are open.
    """

    def __init__(self) -> None:
        self._free = LOGINS_AT_ONCE
        self._begun: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for the address's turn, and have it. Raises TooManyLogins."""
        whose = _network(address)
        count = self._begun.get(whose, 0)
        if count >= LOGINS_PER_ADDRESS_MAX:
            raise TooManyLogins("too many logins of this address are being tried; try again in a few seconds")
        self._begun[whose] = count + 1
        try:
            await self._wait(whose)
            try:
                yield
            finally:
                self._pass_on()
        finally:
            self._begun[whose] -= 1
            if not self._begun[whose]:
                del self._begun[whose]

    async def _wait(self, whose: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(whose, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it has come meanwhile
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """To the address whose last turn is longest ago; who has gone meanwhile gets none."""
        while self._waiting:
            whose = next(iter(self._waiting))
            queue = self._waiting.pop(whose)
            turn = queue.popleft()
            if queue:
                self._waiting[whose] = queue
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._free += 1


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address) or parsed.ipv4_mapped is not None:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))
