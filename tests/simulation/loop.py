"""A seeded event loop on virtual time that runs many simulated processes at once, one handle after the other.

Unmodified asyncio code runs on it: tasks, futures, events, locks, timeouts, gather. Time stands still while anything
is ready and then jumps to the next timer. Every handle belongs to an :class:`Owner`, the process that scheduled it; the
owner travels in a context variable, so a task that is woken by another owner's result still belongs to its own process.
Within one owner handles run in order, as in a real loop; which owner comes next is the seed's choice.

A crashed owner stops in mid-air: its handles are dropped, no finally-block runs, and what it held is kept alive until
the end, so that no destructor acts for a dead process. A paused one (SIGSTOP) is held and goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import random
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

_OWNER: contextvars.ContextVar[Owner] = contextvars.ContextVar("owner")
_PRUNE_TASKS = 512


class Killed(BaseException):
    """Raised by a port to unwind the code of a process that has just died; its owner is dead by then."""


class Stuck(AssertionError):
    """Nothing is ready, no timer is set: the run waits for something that will never come."""


class Owner:
    """One simulated process. ``context`` is what its handles run in."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self.ready: deque[_Handle] = deque()
        self.tasks: list[_Task] = []
        self.kept: list[object] = []
        self.context = contextvars.Context()
        self.context.run(_OWNER.set, self)
        self._loop = loop
        self._prune_at = _PRUNE_TASKS

    def remember(self, task: _Task) -> None:
        """Keep a task alive while it runs, even when nothing else refers to it."""
        self.tasks.append(task)
        if len(self.tasks) >= self._prune_at:
            self.tasks = [task for task in self.tasks if not task.done()]
            self._prune_at = 2 * len(self.tasks) + _PRUNE_TASKS

    def __repr__(self) -> str:
        return self.name


class _Handle:
    """A scheduled call; what asyncio expects of a Handle and of a TimerHandle."""

    __slots__ = ("args", "callback", "context", "owner", "when_us")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context, owner: Owner
    ) -> None:
        self.callback: Callable[..., Any] | None = callback
        self.args = args
        self.context = context
        self.owner = owner
        self.when_us = 0

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.when_us / 1e6


class _Task(asyncio.Task):  # type: ignore[type-arg]
    """A task whose place in a set does not depend on its address."""

    __slots__ = ("serial",)

    def __hash__(self) -> int:
        return self.serial


class _Future(asyncio.Future):  # type: ignore[type-arg]
    """A future whose place in a set does not depend on its address."""

    __slots__ = ("serial",)

    def __hash__(self) -> int:
        return self.serial


class SimLoop(asyncio.AbstractEventLoop):
    """See the module. ``now_us`` is the virtual time in microseconds; ``steps`` counts the handles that ran."""

    def __init__(self, seed: int) -> None:
        self.now_us = 1_000_000
        self.steps = 0
        self.errors: list[str] = []
        self._random = random.Random(seed).random
        self._timers: list[tuple[int, int, _Handle]] = []
        self._numbers = 0
        self._active: list[Owner] = []
        self._owners: list[Owner] = []
        self._closed = False
        self.world = self.owner("world")

    # ---- processes

    def owner(self, name: str) -> Owner:
        """A new process."""
        made = Owner(self, name)
        self._owners.append(made)
        return made

    def spawn(self, owner: Owner, coroutine: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
        """Run a coroutine as that process."""
        return self.create_task(coroutine, name=name, context=owner.context.copy())

    def current(self) -> Owner:
        """The process whose handle runs now."""
        return _OWNER.get(self.world)

    def crash(self, owner: Owner) -> None:
        """The process is gone, between two of its instructions."""
        self.pause(owner)
        owner.dead = True
        owner.kept.extend(owner.ready)
        owner.ready.clear()

    def pause(self, owner: Owner) -> None:
        """Hold all handles of the process."""
        owner.paused = True
        if owner in self._active:
            self._active.remove(owner)

    def resume(self, owner: Owner) -> None:
        """Let the process go on; what came due meanwhile runs in its order."""
        if owner.dead or not owner.paused:
            return
        owner.paused = False
        if owner.ready:
            self._active.append(owner)

    # ---- what asyncio calls

    def time(self) -> float:
        return self.now_us / 1e6

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = _Handle(callback, args, context, context.get(_OWNER) or self.world)
        self._push(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        return self._at(self.now_us + math.ceil(delay * 1e6), callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        # never early, and never at once when it is later: asking again at the same moment would go on for ever
        when_us = math.ceil(when * 1e6)
        if when_us <= self.now_us and when > self.time():
            when_us = self.now_us + 1
        return self._at(when_us, callback, args, context)

    def _at(
        self, when_us: int, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> _Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = _Handle(callback, args, context, context.get(_OWNER) or self.world)
        handle.when_us = when_us
        if handle.owner.dead or self._closed:
            handle.owner.kept.append(handle)
        else:
            self._numbers += 1
            heapq.heappush(self._timers, (when_us, self._numbers, handle))
        return handle

    def _push(self, handle: _Handle) -> None:
        owner = handle.owner
        if owner.dead or self._closed:
            owner.kept.append(handle)
            return
        if not owner.ready and not owner.paused:
            self._active.append(owner)
        owner.ready.append(handle)

    def create_future(self) -> _Future:
        future = _Future(loop=self)
        self._numbers += 1
        future.serial = self._numbers
        return future

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """What a thread would do is done at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except OSError as wrong:
            future.set_exception(wrong)
        return future

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> _Task:
        self._numbers += 1
        # The C constructor puts the task into a set at once, so its hash must be there before.
        task = _Task.__new__(_Task)
        task.serial = self._numbers
        task.__init__(coro, loop=self, name=name, context=context)  # type: ignore[misc]
        owner = self.current() if context is None else context.get(_OWNER) or self.world
        owner.remember(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception that was not caught: a bug."""
        error = context.get("exception")
        if self._closed or isinstance(error, Killed):
            return
        frames = traceback.extract_tb(error.__traceback__)[-3:] if error is not None else []
        where = " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames))
        self.errors.append(f"{context.get('message')}: {error!r} at {where}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def get_task_factory(self) -> None:
        return None

    # ---- running

    def run_until(self, done: Callable[[], bool], deadline_us: int) -> bool:
        """Run until ``done()`` (asked whenever time is about to move) or the deadline; whether it is done."""
        asyncio._set_running_loop(self)
        try:
            while True:
                self._run_ready()
                if done():
                    return True
                if not self._next_moment(deadline_us):
                    self.now_us = max(self.now_us, deadline_us)
                    return done()
        finally:
            asyncio._set_running_loop(None)

    def run_coroutine(self, owner: Owner, coroutine: Coroutine[Any, Any, Any], timeout_s: float = 3600.0) -> Any:
        """Run a coroutine as that process to its end and return its result."""
        asyncio._set_running_loop(self)
        try:
            task = self.spawn(owner, coroutine)
        finally:
            asyncio._set_running_loop(None)
        if not self.run_until(task.done, self.now_us + round(timeout_s * 1e6)):
            raise Stuck(f"{coroutine} is not done after {timeout_s} virtual seconds")
        return task.result()

    def _run_ready(self) -> None:
        active, choose = self._active, self._random
        while active:
            count = len(active)
            index = int(choose() * count) if count > 1 else 0
            owner = active[index]
            handle = owner.ready.popleft()
            if not owner.ready:
                active[index] = active[-1]
                active.pop()
            callback = handle.callback
            if callback is None:
                continue
            self.steps += 1
            try:
                handle.context.run(callback, *handle.args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"a callback of {owner} failed", "exception": error})
            if owner.dead:
                owner.kept.append(handle)

    def _next_moment(self, deadline_us: int) -> bool:
        timers = self._timers
        while timers and (timers[0][2].callback is None or timers[0][2].owner.dead):
            handle = heapq.heappop(timers)[2]
            if handle.owner.dead:
                handle.owner.kept.append(handle)
        if not timers or timers[0][0] > deadline_us:
            return False
        self.now_us = max(self.now_us, timers[0][0])
        while timers and timers[0][0] <= self.now_us:
            handle = heapq.heappop(timers)[2]
            if handle.callback is not None:
                self._push(handle)
        return True

    def close(self) -> None:
        """The end of the world: nothing runs any more, and all that was held is given back quietly."""
        self._closed = True
        self._timers.clear()
        self._active.clear()
        for owner in self._owners:
            owner.dead = True
            for task in owner.tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    try:
                        task.get_coro().close()
                    except BaseException:
                        pass
            owner.ready.clear()
            owner.kept.clear()
            owner.tasks.clear()
