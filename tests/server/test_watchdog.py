"""The watch over the loop: what it says while the loop stands, and how often."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import urllib.error
import urllib.request

import pytest

from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.server import watchdog
from fleetlog.brokers.server.admin import Admin
from fleetlog.brokers.server.watchdog import APART_S, MARK_S, RECENT_MARKS, REPEAT_S, LoopWatch

LOGGER = "fleetlog.brokers.server.watchdog"


def stands_here(over: threading.Event) -> None:
    assert over.wait(60)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_a_stall_is_logged_with_its_stack_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    over = threading.Event()
    pages: list[tuple[int, str]] = []

    async def run() -> None:
        watch = LoopWatch(asyncio.get_running_loop(), patience_s=1.0)
        admin = Admin(Metrics(), lambda: None, standing_ms=watch.standing_ms, dead_ms=600_000)
        port = await admin.start("127.0.0.1", 0)

        def get(path: str) -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/{path}", timeout=30) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        def look() -> None:
            while not said(caplog) or watch.standing_ms() < 1000:
                time.sleep(0.01)
            pages.append(get("live"))
            pages.append(get("ready"))
            admin._dead_ms = 1000
            pages.append(get("live"))
            over.set()

        watch.start()
        await asyncio.sleep(0.2)
        assert watch.standing_ms() < 60_000
        looking = threading.Thread(target=look)
        looking.start()
        stands_here(over)
        looking.join()
        while len(said(caplog)) < 2:
            await asyncio.sleep(0.01)
        watch.stop()
        assert watch.standing_ms() == 0
        await admin.close()

    asyncio.run(run())
    first, second = said(caplog)
    assert "the event loop has stood still for" in first
    assert "in stands_here" in first
    assert "moves again" in second
    (status, live), (unready, ready), (dead, _) = pages
    assert (status, unready, dead) == (200, 503, 503)
    assert "stood still for" in live
    assert "stood still for" in ready


def test_a_long_stall_and_many_short_ones_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    watch = LoopWatch(asyncio.new_event_loop())
    watch._marked = 1000.0

    def stacks(marked: float, first: float, last: float) -> int:
        watch._marked = marked
        before = sum("has stood still" in line for line in said(caplog))
        for step in range(int((last - first) * 4) + 1):
            watch.check(first + step / 4)
        return sum("has stood still" in line for line in said(caplog)) - before

    assert stacks(1000, 1000, 1000.75) == 0
    assert stacks(1000, 1001, 1000 + REPEAT_S) == 1
    assert stacks(1000, 1000 + REPEAT_S + 1, 1000 + 2 * REPEAT_S) == 1
    begin = 1000 + 2 * REPEAT_S + 1
    assert stacks(begin, begin, begin + APART_S) <= 1
    assert sum(stacks(begin + 20 + 2 * n, begin + 20 + 2 * n, begin + 21.5 + 2 * n) for n in range(50)) <= 100 / APART_S
    watch._loop.close()


def test_how_late_the_marks_of_the_last_minute_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test's: the loop stands once for 3 s, and is late by a millisecond, 2, 3 and so on up to 10."""
    loop = asyncio.new_event_loop()
    watch, now = LoopWatch(loop), [1000.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])

    def marks(*late_s: float) -> None:
        for one in late_s:
            now[0] += MARK_S + one
            watch._mark()
            assert watch._timer is not None
            watch._timer.cancel()

    marks(0.0)
    assert watch.lag_micros() == (-1, -1), "one mark alone says nothing"
    marks(*(n / 1000 for n in range(1, 11)))
    assert watch.lag_micros() == (10_000, 10_000)
    marks(3.0, *([0.001] * 200))
    assert watch.lag_micros() == (9_000, 3_000_000), "of 211 marks two are left out"
    marks(*([0.002] * RECENT_MARKS))
    assert watch.lag_micros() == (2_000, 2_000), "what is older than a minute counts no more"
    watch.stop()
    loop.close()


def test_what_is_not_watched_does_not_stand() -> None:
    loop = asyncio.new_event_loop()
    watch = LoopWatch(loop)
    assert watch.standing_ms() == 0
    assert watch.lag_micros() == (-1, -1)
    watch.check(watchdog.time.monotonic())
    loop.close()
