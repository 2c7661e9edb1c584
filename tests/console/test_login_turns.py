"""How many logins are tried, and wait, at the same time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fleetlog.brokers.console.asking import PageError
from fleetlog.brokers.console.logins import LOGINS, LOGINS_WAITING_MAX, LoginTurns

ADMITTED = LOGINS + LOGINS_WAITING_MAX


def test_logins_that_come_in_one_turn_of_the_loop_are_counted() -> None:
    asked, release = threading.Semaphore(0), threading.Event()

    def work() -> str:
        asked.release()
        assert release.wait(60)
        return "in"

    async def scenario() -> None:
        turns = LoginTurns()
        tried = [asyncio.ensure_future(turns.run(work)) for _ in range(2 * ADMITTED)]
        try:
            await asyncio.sleep(0)  # every one of them has begun
            with pytest.raises(PageError, match="too many logins") as refused:
                await asyncio.wait_for(turns.run(work), 5)
            assert refused.value.status == 503
            for _ in range(LOGINS):
                assert await asyncio.to_thread(asked.acquire, timeout=60)
            assert not asked.acquire(blocking=False), "no more at the same time"
        finally:
            release.set()
        found = await asyncio.gather(*tried, return_exceptions=True)
        assert found[:ADMITTED] == ["in"] * ADMITTED
        assert all(isinstance(one, PageError) for one in found[ADMITTED:])
        assert await turns.run(work) == "in", "there is room again"

    asyncio.run(scenario())


def test_a_login_that_fails_gives_its_place_back() -> None:
    def fail() -> None:
        raise PageError(403, "no")

    async def scenario() -> None:
        turns = LoginTurns()
        for _ in range(ADMITTED + 1):
            with pytest.raises(PageError, match="no"):
                await turns.run(fail)

    asyncio.run(scenario())
