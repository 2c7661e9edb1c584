"""Who may try a login, in which order, and how long one that a broker took is good for."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import pytest

from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER
from fleetlog.brokers.schemas import callers
from fleetlog.brokers.schemas.callers import LOGINS_AT_ONCE, LOGINS_PER_ADDRESS_MAX, Callers, LoginTurns
from fleetlog.brokers.schemas.registry import RegistryRefusal


class Tries:
    """Logins of addresses, each of which takes as long as a broker does not answer."""

    def __init__(self) -> None:
        self.turns = LoginTurns()
        self.begun: list[str] = []
        self.answers: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def add(self, address: str, count: int = 1) -> None:
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._one(address)))
            await settled()

    async def _one(self, address: str) -> None:
        async with self.turns.turn(address):
            answer = asyncio.Event()
            self.begun.append(address)
            self.answers.append(answer)
            await answer.wait()

    async def answer(self) -> None:
        self.answers.pop(0).set()
        await settled()

    async def end(self) -> None:
        while self.answers:
            await self.answer()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert not self.turns._begun
        assert not self.turns._waiting
        assert self.turns._free == LOGINS_AT_ONCE


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_an_address_waits_for_one_login_of_each_other() -> None:
    """Three addresses with all the logins that they may try: a fourth one's waits for no second one of theirs."""

    async def attacked() -> list[str]:
        tries = Tries()
        for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
            await tries.add(address, LOGINS_PER_ADDRESS_MAX)
        await tries.add("10.0.0.4")
        for _ in range(4):
            await tries.answer()
        begun = list(tries.begun)
        await tries.end()
        return begun

    begun = asyncio.run(attacked())
    assert begun[:LOGINS_AT_ONCE] == ["10.0.0.1"] * LOGINS_AT_ONCE
    assert sorted(begun[LOGINS_AT_ONCE:]) == ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]


def test_an_address_tries_eight_at_a_time() -> None:
    async def tried(*addresses: str) -> int:
        tries = Tries()
        for address in addresses:
            await tries.add(address, LOGINS_PER_ADDRESS_MAX + 3)
        refused = [task.exception() for task in tries.tasks if task.done()]
        assert all(isinstance(error, RegistryRefusal) and error.code == 503 for error in refused)
        await tries.end()
        return len(refused)

    assert asyncio.run(tried("10.0.0.1")) == 3
    assert asyncio.run(tried("10.0.0.1", "10.0.0.2")) == 6
    same = LOGINS_PER_ADDRESS_MAX + 6
    assert asyncio.run(tried("2001:db8::1", "2001:db8::ffff:2")) == same, "a machine has a network of IPv6"
    assert asyncio.run(tried("2001:db8::1", "2001:db8:0:1::1")) == 6
    assert asyncio.run(tried("::ffff:10.0.0.1", "::ffff:10.0.0.2")) == 6
    assert asyncio.run(tried("fe80::1%eth0", "fe80::2%eth0", "not an address")) == same + 3


def test_who_goes_away_while_it_waits_takes_no_turn() -> None:
    async def gone() -> list[str]:
        tries = Tries()
        await tries.add("10.0.0.1", LOGINS_AT_ONCE)
        await tries.add("10.0.0.2", 2)
        await tries.add("10.0.0.3")
        tries.tasks[LOGINS_AT_ONCE].cancel()
        await settled()
        for _ in range(2):
            await tries.answer()
        begun = list(tries.begun)
        await tries.end()
        return begun

    assert asyncio.run(gone())[LOGINS_AT_ONCE:] == ["10.0.0.3", "10.0.0.2"]


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
