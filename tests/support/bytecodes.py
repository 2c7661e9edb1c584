"""How much work is done at one go, in bytecodes: a measure that no busy machine changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from types import FrameType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Counter(Protocol):
    """Measures calls."""

    def of(self, call: Callable[[], T]) -> T:
        """Call it, and measure."""
        ...


class CpuTimes:
    """Measures the CPU time that this thread takes for each call, in ms."""

    def __init__(self, counted: list[float] | None = None) -> None:
        """``counted`` gets the times of several of these."""
        self.counted: list[float] = [] if counted is None else counted
        self.mine: list[float] = []

    def of(self, call: Callable[[], T]) -> T:
        """Call it, and measure."""
        begun = time.thread_time()
        try:
            return call()
        finally:
            self.mine.append(1000 * (time.thread_time() - begun))
            self.counted.append(self.mine[-1])


class Bytecodes:
    """Counts what this thread executes in :meth:`of`, one call after the other."""

    def __init__(self) -> None:
        self.counted: list[int] = []
        self._executed = 0

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            self._executed += 1
        else:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return self._trace

    def of(self, call: Callable[[], T]) -> T:
        """Call it, and count."""
        self._executed = 0
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return call()
        finally:
            sys.settrace(before)
            self.counted.append(self._executed)


def in_steps(source: Iterable[T], counter: Counter) -> Iterator[T]:
    """The same elements; what the source executes before each of them, and behind the last one, is counted."""
    every = iter(counter.of(lambda: iter(source)))
    ended = object()
    while (found := counter.of(lambda: next(every, ended))) is not ended:
        yield found  # type: ignore[misc]


class Steps:
    """Awaits a coroutine; what it executes between two turns of the loop is counted."""

    def __init__(self, work: Coroutine[Any, Any, Any], counter: Counter) -> None:
        self._work = work
        self._counter = counter

    def __await__(self) -> Generator[Any, None, None]:
        while True:
            try:
                waits_for = self._counter.of(lambda: self._work.send(None))
            except StopIteration:
                return
            yield waits_for
