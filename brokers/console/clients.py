"""Admin clients that stay connected between pages, by login."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kafka.protocol.metadata import MetadataRequest

from fleetlog.brokers.cli.client import Target, admin, explained
from fleetlog.brokers.cli.command_config import JAAS, MECHANISM
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.logins.jaas import LoginModule
from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER
from fleetlog.brokers.logins.plain import PLAIN

IDLE_MAX: Final = 16
"""Clients of one login that are kept while no page uses them: as many as pages at the same time, since a new client
costs the brokers more than a page of some that follow a topic."""
IDLE_S: Final = 60.0
FRESH_S: Final = 2.0
"""A client that rested for longer asks first where the brokers are now."""


class UserLogin(NamedTuple):
    """The identity by which the console asks the brokers. Held in memory only, and not shown.

    With OAUTHBEARER ``password`` is the token, and ``user`` what the token calls its subject.
    """

    user: str
    password: str
    mechanism: str

    def __repr__(self) -> str:
        return f"UserLogin({self.user!r}, {self.mechanism})"

    def properties(self, base: Mapping[str, str]) -> dict[str, str]:
        """The properties of a client that logs in as this user; those of the connection stay."""
        if self.mechanism == OAUTHBEARER:
            line = f'{LoginModule.OAUTHBEARER.value} required token="{_quoted(self.password)}";'
            return {**base, MECHANISM: self.mechanism, JAAS: line}
        module = LoginModule.PLAIN if self.mechanism == PLAIN else LoginModule.SCRAM
        line = f'{module.value} required username="{_quoted(self.user)}" password="{_quoted(self.password)}";'
        return {**base, MECHANISM: self.mechanism, JAAS: line}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


class _Idle(NamedTuple):
    client: Any
    stack: ExitStack
    since_s: float


class FleetClients:
    """A pool: a page has a client to itself, since a client's requests wait for each other.

    Clients rest only for logins of which ``is_open`` says that a session has them, and for none at all.
    """

    def __init__(
        self, target: Target, is_open: Callable[[UserLogin], bool], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.target = target
        self._is_open, self._now_s = is_open, now_s
        self._idle: dict[UserLogin | None, list[_Idle]] = {}
        self._lock = threading.Lock()

    def target_of(self, login: UserLogin | None) -> Target:
        """How that user reaches the fleet."""
        return (
            self.target if login is None else replace(self.target, properties=login.properties(self.target.properties))
        )

    @contextmanager
    def lend(self, login: UserLogin | None, about: str = "") -> Iterator[Any]:
        """A client for one page. Raises CliError, whose text begins with ``about``."""
        target = self.target_of(login)
        lent = self._rested(login)
        if lent is None:
            stack = ExitStack()
            lent = _Idle(stack.enter_context(admin(target, about)), stack, self._now_s())
        try:
            with explained(target, about):
                yield lent.client
        except CliError as error:
            if isinstance(error.__cause__, Exception):  # the client's state is unknown
                lent.stack.close()
            else:
                self._give_back(login, lent)
            raise
        except BaseException:
            lent.stack.close()
            raise
        self._give_back(login, lent)

    def _rested(self, login: UserLogin | None) -> _Idle | None:
        while True:
            with self._lock:
                idle = self._idle.get(login)
                rested = idle.pop() if idle else None
            if rested is None:
                return None
            rested_s = self._now_s() - rested.since_s
            if rested_s < FRESH_S:
                return rested
            try:
                if rested_s < IDLE_S:
                    rested.client.know(rested.client.ask_any(MetadataRequest(topics=[])))
                    return rested
            except Exception:  # whatever went wrong with a rested client, a new one says it better
                pass
            rested.stack.close()

    def _give_back(self, login: UserLogin | None, lent: _Idle) -> None:
        with self._lock:
            if len(self._idle.get(login, ())) < IDLE_MAX and self._may_rest(login):
                self._idle.setdefault(login, []).append(lent._replace(since_s=self._now_s()))
                return
        lent.stack.close()

    def _may_rest(self, login: UserLogin | None) -> bool:
        return login is None or self._is_open(login)

    def resting(self) -> dict[UserLogin | None, int]:
        """How many clients rest, by login."""
        with self._lock:
            return {login: len(idle) for login, idle in self._idle.items()}

    def sweep(self) -> None:
        """Close the clients that rested for too long, and those of users that have no session any more."""
        ended: list[_Idle] = []
        with self._lock:
            oldest_s = self._now_s() - IDLE_S
            for login, idle in list(self._idle.items()):
                kept = [one for one in idle if one.since_s > oldest_s] if self._may_rest(login) else []
                ended += [one for one in idle if one not in kept]
                if kept:
                    self._idle[login] = kept
                else:
                    del self._idle[login]
        for one in ended:
            one.stack.close()

    def drop(self, login: UserLogin | None) -> None:
        """Close the idle clients of a user that logged out."""
        with self._lock:
            idle = self._idle.pop(login, [])
        for one in idle:
            one.stack.close()

    def close(self) -> None:
        """Close all that are idle."""
        for login in list(self._idle):
            self.drop(login)
