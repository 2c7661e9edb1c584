"""Several runs of one scenario at a time: what harms all of them happens once, when each has come to that point.

Every run has its own topics, sink, checkpoint, traps, reader and verdict. What they share is the fleet, the drivers,
and the one signal that kills a driver or a broker while each of them stands at the frame that its scenario names.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

WAIT_S = 300.0


class NotTried(Exception):
    """The scenario's fault did not take place as it should: the run says nothing about the sink."""


def took_place(happened: object, otherwise: str) -> None:
    """Raise NotTried unless the fault, or what it needs, really happened."""
    if not happened:
        raise NotTried(otherwise)


@dataclass
class _Point:
    """``came``: what each run there wants. ``results``: by what was wanted, once it is done."""

    came: dict[int, Hashable] = field(default_factory=dict)
    begun: bool = False
    results: dict[Hashable, Any] | None = None
    problem: BaseException | None = None


class Together:
    """Runs numbered from 0. A run that ends or fails leaves, and no other waits for it any more."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._members = set(range(size))
        self._points: dict[int, _Point] = {}
        self._changed = threading.Condition()

    def leave(self, member: int) -> None:
        """This run is over."""
        with self._changed:
            self._members.discard(member)
            self._changed.notify_all()

    def once(
        self, member: int, turn: int, action: Callable[[Any], Any], wanted: Hashable = None, each: bool = False
    ) -> Any:
        """The result of ``action(wanted)``, done once when every run has come to its point number ``turn``.

        Where runs want different things, the one that most want is done and the others fail; with ``each``, all are
        done, one after the other.
        """
        with self._changed:
            point = self._points.setdefault(turn, _Point())
            point.came[member] = wanted
            self._changed.notify_all()
            there = self._changed.wait_for(lambda: point.begun or self._members <= point.came.keys(), WAIT_S)
            took_place(there, f"others did not come to point {turn} in {WAIT_S:.0f} s")
            mine = not point.begun
            point.begun = True
        if mine:
            self._do(point, action, each)
        with self._changed:
            assert self._changed.wait_for(lambda: point.results is not None, WAIT_S), f"point {turn} takes too long"
        if point.problem is not None:
            raise point.problem
        assert point.results is not None
        took_place(wanted in point.results, f"this run wanted {wanted}, most of its group {list(point.results)}")
        return point.results[wanted]

    def _do(self, point: _Point, action: Callable[[Any], Any], each: bool) -> None:
        counts = Counter(point.came.values()).most_common()
        results: dict[Hashable, Any] = {}
        try:
            for wanted, _ in counts if each else counts[:1]:
                results[wanted] = action(wanted)
        except BaseException as problem:
            point.problem = problem
        finally:
            with self._changed:
                point.results = results
                self._changed.notify_all()
