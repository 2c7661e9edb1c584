"""Signals that come while a process is being started."""

from __future__ import annotations

import signal

import pytest

from fleetlog.brokers.cli.interrupts import Interrupted, Interrupts


def _caught(interrupts: Interrupts) -> None:
    interrupts._on_signal(signal.SIGINT, None)


def _failing(interrupts: Interrupts, *, signalled: bool) -> None:
    with interrupts.held():
        if signalled:
            _caught(interrupts)
        raise ValueError("the process ended at once")


def test_a_signal_is_raised_at_once() -> None:
    with pytest.raises(Interrupted):
        _caught(Interrupts())


def test_a_held_signal_is_raised_at_the_end_of_the_outermost_block() -> None:
    interrupts, reached = Interrupts(), []

    def work() -> None:
        with interrupts.held():
            with interrupts.held():
                _caught(interrupts)
            reached.append("end")

    with pytest.raises(Interrupted):
        work()
    assert reached == ["end"]


def test_a_held_signal_counts_more_than_an_error_that_it_may_have_caused() -> None:
    interrupts = Interrupts()
    with pytest.raises(Interrupted):
        _failing(interrupts, signalled=True)
    with pytest.raises(ValueError, match="ended at once"):
        _failing(interrupts, signalled=False)
