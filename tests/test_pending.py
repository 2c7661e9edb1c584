"""What comes later: completed or cancelled once, with one callback, and nothing left behind."""

from __future__ import annotations

import pytest

from fleetlog.brokers.pending import Pending


@pytest.mark.parametrize("first", ["result", "callback"])
def test_the_callback_gets_the_result_whichever_comes_first(first: str) -> None:
    pending, told = Pending(), list[int]()
    if first == "callback":
        pending.on_done(told.append)
    pending.complete(7)
    if first == "result":
        assert pending.response == 7
        pending.on_done(told.append)
    pending.complete(8)
    pending.cancel()
    assert told == [7]


def test_what_is_cancelled_is_reported_once_and_has_no_result() -> None:
    told: list[str] = []
    pending = Pending(lambda: told.append("cancelled"))
    pending.on_done(told.append)
    pending.cancel()
    pending.cancel()
    pending.complete("result")
    assert told == ["cancelled"]


def test_a_failing_callback_does_not_interrupt_what_completes(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    pending = Pending()
    pending.on_done(fail)
    pending.complete(1)
    assert pending.done
    assert "the callback of a result that was waited for failed" in caplog.text


def test_an_ended_wait_lets_go_of_what_it_was_given() -> None:
    for end in (lambda p: p.complete(1), lambda p: p.cancel()):
        pending = Pending(lambda: None)
        pending.on_done(lambda _: None)
        end(pending)
        assert pending.on_cancel is pending._callback is None
