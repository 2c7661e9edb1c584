"""The bounds of a login: its time, and the delay of a refusal."""

from __future__ import annotations

from fleetlog.brokers.config import BROKER_SETTINGS
from fleetlog.brokers.logins.plain import PlainServer
from fleetlog.brokers.logins.sasl import SaslListener, Then
from fleetlog.brokers.server.connection import LOGIN_MS, ConnectionLogin

LISTENER = SaslListener({"PLAIN": lambda: PlainServer(lambda _user, _password: False)})


def test_the_longest_delay_of_a_refusal_ends_after_the_time_for_a_login() -> None:
    """A refusal whose delay ends later than that is still answered."""
    assert BROKER_SETTINGS["connection.failed.authentication.delay.ms"].high == LOGIN_MS
    login = ConnectionLogin(LISTENER, 0)
    assert not login.overdue(LOGIN_MS)
    assert login.overdue(LOGIN_MS + 1)
    login.sasl.handshake(1, "PLAIN")
    assert login.sasl.authenticate(b"\0alice\0wrong", 9_000, 0).then is Then.CLOSE_AFTER_DELAY
    assert not login.overdue(LOGIN_MS + 1)
