"""The broker's timer wheel: order, precision, cancellation, and one timer of the loop for all of them."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog.brokers.timers import EXACT_MS, TICK_MS, Timer, Timers, TimerWheel
from tests.coordinators.support import VirtualLoop


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=40), st.integers(1, 40))
def test_timers_run_in_order_never_early_and_not_when_cancelled(delays: list[tuple[int, bool]], step: int) -> None:
    wheel = TimerWheel()
    ran: list[int] = []
    now = 1_000_003
    for number, (delay, cancelled) in enumerate(delays):
        timer = wheel.add(now, delay, partial(ran.append, number))
        if cancelled:
            timer.cancel()
            timer.cancel()
    start = now
    while (due := wheel.next_ms()) is not None:
        assert due > now - step
        now += step
        before = len(ran)
        for timer in wheel.due(now):
            assert wheel.take(timer)
            timer.callback()
        for number in ran[before:]:
            late = now - start - delays[number][0]
            assert 0 <= late <= step + (TICK_MS if delays[number][0] >= EXACT_MS else 0)
    assert sorted(ran) == [number for number, (_, cancelled) in enumerate(delays) if not cancelled]
    assert len(wheel) == 0


@pytest.mark.parametrize("delay_ms", [1, 7, EXACT_MS - 1])
def test_a_short_delay_is_kept_to_the_millisecond(delay_ms: int) -> None:
    loop = VirtualLoop()
    loop.ms += 1
    timers, ran = Timers(loop, loop), list[int]()
    timers.later(delay_ms, lambda: ran.append(loop.ms))
    began = loop.ms
    loop.advance(1_000)
    assert ran == [began + delay_ms]


def test_a_callback_may_cancel_one_that_is_due_with_it() -> None:
    loop = VirtualLoop()
    timers, ran, later = Timers(loop, loop), list[str](), list[Timer]()
    timers.later(100, lambda: (ran.append("first"), later[0].cancel()))  # type: ignore[func-returns-value, arg-type]
    later.append(timers.later(100, lambda: ran.append("second")))
    loop.advance(1_000)
    assert ran == ["first"]
    assert len(timers) == 0


def test_a_callback_that_raises_keeps_no_other_from_running(caplog: pytest.LogCaptureFixture) -> None:
    loop = VirtualLoop()
    timers, ran = Timers(loop, loop), list[str]()
    timers.later(100, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    timers.later(100, lambda: ran.append("second"))
    timers.later(200, lambda: ran.append("third"))
    loop.advance(1_000)
    assert ran == ["second", "third"]
    assert "a timer's callback failed" in caplog.text


def test_an_earlier_timer_is_not_held_up_by_a_later_one() -> None:
    loop = VirtualLoop()
    timers, ran = Timers(loop, loop), list[int]()
    timers.later(10_000, lambda: ran.append(10_000))
    timers.later(20, lambda: ran.append(20))
    loop.advance(20)
    assert ran == [20]
    loop.advance(9_980)
    assert ran == [20, 10_000]


def test_nothing_is_called_after_the_end() -> None:
    loop = VirtualLoop()
    timers, ran = Timers(loop, loop), list[int]()
    timers.later(20, lambda: ran.append(20))
    timers.close()
    timers.later(20, lambda: ran.append(20))
    loop.advance(1_000)
    assert ran == []
