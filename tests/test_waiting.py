"""The tests' own patience: what was waited for is named, and what was seen last is shown."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.support.waiting import eventually, eventually_async


def test_the_first_good_value_is_the_answer() -> None:
    numbers = itertools.count()
    assert eventually(lambda: next(numbers), "a number", pause_s=0) == 1
    assert eventually(lambda: next(numbers), "a larger one", good=lambda n: n > 5, pause_s=0) == 6


def test_it_looks_once_more_when_the_time_is_up() -> None:
    assert eventually(lambda: "there", "something", timeout_s=0) == "there"


def test_a_vain_wait_names_its_aim_and_the_last_value() -> None:
    with pytest.raises(AssertionError, match=r"0 s in vain: the set is whole; the last value was \[1, 2\]"):
        eventually(lambda: [1, 2], "the set is whole", timeout_s=0, good=lambda found: len(found) == 3)


def test_tasks_wait_by_the_same_words() -> None:
    numbers = itertools.count()

    async def look() -> int:
        return next(numbers)

    async def scenario() -> None:
        assert await eventually_async(look, "a number", pause_s=0) == 1
        assert await eventually_async(lambda: next(numbers), "a larger one", good=lambda n: n > 5, pause_s=0) == 6
        with pytest.raises(AssertionError, match="0 s in vain: never; the last value was 7"):
            await eventually_async(look, "never", timeout_s=0, good=lambda _: False)

    asyncio.run(scenario())
