"""Whose login is tried next, and how many are tried, and wait, at the same time."""

from __future__ import annotations

import asyncio

from fleetlog.brokers.console.logins import LOGINS_AT_ONCE, LOGINS_PER_ADDRESS_MAX, LoginTurns, TooManyLogins


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
        ended = len(self.begun)
        await self.add("10.9.9.9", LOGINS_PER_ADDRESS_MAX)
        assert len(self.begun) == ended + LOGINS_AT_ONCE, "there is room again"
        for task in self.tasks:
            task.cancel()


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
        assert all(isinstance(error, TooManyLogins) for error in refused)
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
