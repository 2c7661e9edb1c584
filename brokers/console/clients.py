"""Admin clients that stay connected between pages, by login."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kafka.protocol.metadata import MetadataRequest

from brokers.cli.client import Target, admin, explained
from brokers.cli.command_config import JAAS, MECHANISM
from brokers.cli.output import CliError
from brokers.security.jaas import LoginModule
from brokers.security.plain import PLAIN

IDLE_MAX: Final = 4
"""Clients of one login that are kept while no page uses them."""
IDLE_S: Final = 60.0
FRESH_S: Final = 2.0
"""A client that rested for longer asks first where the brokers are now."""


class UserLogin(NamedTuple):
    """The identity by which the console asks the brokers. Held in memory only, and not shown."""

    user: str
    password: str
    mechanism: str

    def __repr__(self) -> str:
        return f"UserLogin({self.user!r}, {self.mechanism})"

    def properties(self, base: Mapping[str, str]) -> dict[str, str]:
        """The properties of a client that logs in as this user; those of the connection stay."""
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
    """A pool: a page has a client to itself, since a client's requests wait for each other."""

    def __init__(self, target: Target) -> None:
        self.target = target
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
            lent = _Idle(stack.enter_context(admin(target, about)), stack, time.monotonic())
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
                found = idle.pop() if idle else None
            if found is None:
                return None
            rested_s = time.monotonic() - found.since_s
            if rested_s < FRESH_S:
                return found
            try:
                if rested_s < IDLE_S:
                    found.client.know(found.client.ask_any(MetadataRequest(topics=[])))
                    return found
            except Exception:  # whatever went wrong with a rested client, a new one says it better
                pass
            found.stack.close()

    def _give_back(self, login: UserLogin | None, lent: _Idle) -> None:
        with self._lock:
            idle = self._idle.setdefault(login, [])
            if len(idle) < IDLE_MAX:
                idle.append(lent._replace(since_s=time.monotonic()))
                return
        lent.stack.close()

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
