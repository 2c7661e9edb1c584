"""A deliberate bug stands where the function stood, as long as the block runs, or it does not get in at all."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.replacing import Mutation, instead, mutated
from tests.spark.matrix.broken_broker import SAFEGUARDS


def plus(number: int, more: int = 1) -> int:
    return number + more


class Counter:
    def __init__(self) -> None:
        self.count = 1

    @property
    def twice(self) -> int:
        return 2 * self.count

    @staticmethod
    def sign(number: int) -> int:
        return -1 if number < 0 else 1

    def add(self, number: int, *, times: int = 1) -> int:
        self.count += number * times
        return self.count


def test_a_function_is_replaced_where_it_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("fleetlog.brokers.of_this_test")
    other.also = plus  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, other.__name__, other)
    with mutated(Mutation("", (instead(plus, lambda original, number, more=1: 10 * original(number, more)),), 0)):
        assert (plus(1, 2), other.also(1)) == (30, 20)
    assert (plus(1, 2), other.also(1)) == (3, 2)


def test_a_method_a_property_and_a_static_method_stay_what_they_are() -> None:
    counter = Counter()
    changes = (
        instead(Counter.twice, lambda self: self.count),
        instead(Counter.sign, lambda number: 0),
        instead(Counter.add, lambda original, self, number, *, times=1: original(self, -number, times=times)),
    )
    with mutated(Mutation("", changes, 0)):
        assert (counter.twice, counter.sign(-1), Counter.sign(1)) == (1, 0, 0)
        assert counter.add(2, times=3) == -5
    assert (counter.twice, counter.sign(-1), counter.add(6)) == (-10, -1, 1)


def test_two_replacements_of_one_function_stand_in_each_other() -> None:
    change = instead(Counter.add, lambda original, self, number, *, times=1: 1 + original(self, number, times=times))
    with mutated(Mutation("", (change, change), 0)):
        assert Counter().add(1) == 4
    assert Counter().add(1) == 2


@pytest.mark.parametrize(
    "replacement",
    [
        lambda self, amount, *, times=1: 0,
        lambda self, number, times=1: 0,
        lambda original, self, number: 0,
        lambda *args, **named: 0,
    ],
)
def test_other_parameters_are_refused(replacement: Any) -> None:
    with pytest.raises(TypeError, match=r"Counter\.add has the parameters"):
        instead(Counter.add, replacement)


def test_the_function_is_back_when_the_block_fails() -> None:
    with pytest.raises(ZeroDivisionError), mutated(Mutation("", (instead(plus, lambda number, more=1: 1 // 0),), 0)):
        plus(1)
    assert plus(1) == 2


@pytest.mark.parametrize("mutation", [*MUTATIONS, *SAFEGUARDS.values()], ids=lambda mutation: mutation.name)
def test_each_bug_gets_in(mutation: Mutation) -> None:
    with mutated(mutation):
        pass
