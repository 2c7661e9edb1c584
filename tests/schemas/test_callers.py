"""How long a login that a broker took is good for."""

from __future__ import annotations

import base64
import json
import time

import pytest

from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER
from fleetlog.brokers.schemas import callers
from fleetlog.brokers.schemas.callers import Callers
from fleetlog.brokers.schemas.registry import RegistryRefusal


def bearer(**claims: object) -> str:
    text = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"Bearer e30.{text}.c2ln"


@pytest.mark.parametrize(("lifetime_s", "good_s"), [(5.0, 5.0), (1_000.0, 60.0), (-1.0, -1.0), (1e999, 60.0)])
def test_a_token_is_good_for_a_minute_and_to_its_end_at_most(
    lifetime_s: float, good_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "takes_login", lambda target: True)
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    known, token = Callers(Target("localhost:1", 1.0, {}), (OAUTHBEARER,)), bearer(sub="bob", exp=1e6 + lifetime_s)
    assert known.log_in(token) == "User:bob"
    for moment_s in (0.0, good_s - 0.1, good_s + 0.1):
        now_s[0] = 100.0 + moment_s
        assert known.known(token) == ("User:bob" if moment_s < good_s else None), moment_s


@pytest.mark.parametrize("claims", [{}, {"exp": "soon"}, {"exp": [1]}, {"exp": float("nan")}, {"exp": 10**400}])
def test_a_token_without_an_end_is_none(claims: dict[str, object]) -> None:
    known = Callers(Target("localhost:1", 1.0, {}), (OAUTHBEARER,))
    with pytest.raises(RegistryRefusal) as refused:
        known.log_in(bearer(sub="bob", **claims))
    assert refused.value.code == 401
