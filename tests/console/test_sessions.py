"""Which sessions the console keeps, and how long."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.console.clients import UserLogin
from fleetlog.brokers.console.logins import IDLE_SESSION_S, SESSIONS_MAX, BrowserSessions
from fleetlog.brokers.console.web import Console, ConsoleSettings, LoginNeeded

LOGIN = UserLogin("alice", "secret", "SCRAM-SHA-256")


def test_a_visitors_key_is_its_session_until_it_is_too_old() -> None:
    now_s = [1000.5]
    sessions = BrowserSessions(lambda: now_s[0])
    visitor = sessions.visitor(None)
    token = sessions.form_token(visitor)
    now_s[0] += IDLE_SESSION_S - 1
    assert sessions.visitor(visitor.key).key == visitor.key
    assert sessions.accepts(sessions.visitor(visitor.key), token)
    assert sessions.find(visitor.key) is None, "a visitor is not logged in"
    for forged in ("", ".", "1000.x.y", f"1001.{visitor.key}", visitor.key[:-1], f"{visitor.key}é", "é.é"):
        assert not sessions.accepts(sessions.visitor(forged), token), forged
    assert not sessions.accepts(BrowserSessions(lambda: now_s[0]).visitor(visitor.key), token)
    now_s[0] += 2
    assert not sessions.accepts(sessions.visitor(visitor.key), token)
    logged_in = sessions.begin(LOGIN)
    assert sessions.visitor(logged_in.key).key != logged_in.key


def test_visitors_drive_out_no_session() -> None:
    sessions = BrowserSessions()
    session = sessions.begin(LOGIN)
    for _ in range(SESSIONS_MAX + 1):
        sessions.visitor(None)
    assert sessions.find(session.key) is session


def test_a_session_whose_time_is_over_is_forgotten_with_its_login() -> None:
    now_s = [0.0]
    sessions = BrowserSessions(lambda: now_s[0])
    sessions.begin(LOGIN)
    now_s[0] = IDLE_SESSION_S
    sessions.forget_ended()
    assert sessions.logged_in(LOGIN)
    now_s[0] += 1
    sessions.forget_ended()
    assert not sessions.logged_in(LOGIN)


@pytest.mark.parametrize(("header", "lasts"), [("hx-request", False), ("fleetlog-automatic", False), ("accept", True)])
def test_what_a_page_asks_by_itself_keeps_no_session(header: str, lasts: bool) -> None:
    now_s = [0.0]
    console = Console(ConsoleSettings(Target("127.0.0.1:1", 1.0), frozenset(), "SCRAM-SHA-256"))
    console.sessions = BrowserSessions(lambda: now_s[0])
    session = console.sessions.begin(LOGIN)
    headers = [(b"cookie", f"{console.cookie}={session.key}".encode()), (header.encode(), b"true")]
    request = Request({"type": "http", "headers": headers})
    now_s[0] = IDLE_SESSION_S - 1
    assert console.session(request) is session
    now_s[0] += 2
    if lasts:
        assert console.session(request) is session
    else:
        with pytest.raises(LoginNeeded):
            console.session(request)
