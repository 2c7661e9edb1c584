"""Keeps what a broker has read from ZooKeeper up to date: a task that reads again whenever something may have changed.

It reads at the start, after a watch event, after a reconnect (watches may be lost with the old connection), and every
``RELIST_SECONDS`` without either, so that a lost watch costs seconds at most. A read that fails is repeated until it
succeeds; what was read last counts until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.coordination.store import SessionEvent, SessionState, Store, StoreError, WatchEvent
from fleetlog.coordination.tree import ensure

logger = logging.getLogger(__name__)

RELIST_SECONDS = 20.0
RETRY_SECONDS = 0.2
UNEXPECTED_RETRY_SECONDS = 2.0
"""The wait after an unexpected error, behind which everything is read again."""
START_LOOK_SECONDS = 30.0
"""The interval of the log message while a start waits for ZooKeeper."""

ReadPass = Callable[[bool], Awaitable[None]]
"""Reads once: watches first, then the data that they guard, so that no change is missed.

The argument says that all of it must be read, not only what changed since the last pass: so it is in the first pass,
after an unexpected error, and where the watcher's flags say so.
"""


class ZnodeWatcher:
    """See the module. ``subject`` (plural) is named in log messages; ``parents`` are created before the first pass.

    ``whole_after_reconnect`` and ``whole_after_relist``: such a pass reads everything.
    """

    def __init__(
        self,
        store: Store,
        subject: str,
        read: ReadPass,
        parents: Sequence[str] = (),
        *,
        whole_after_reconnect: bool = False,
        whole_after_relist: bool = False,
    ) -> None:
        self._store = store
        self._subject = subject
        self._read = read
        self._parents = parents
        self._whole_after_reconnect = whole_after_reconnect
        self._whole_after_relist = whole_after_relist
        self._whole = True
        self._wanted = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._read_once = asyncio.Event()
        self._latest_problem: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def has_read(self) -> bool:
        """Whether a pass has succeeded."""
        return self._read_once.is_set()

    async def start(self) -> None:
        """Read everything and follow changes; returns after the first pass, however long ZooKeeper is unreachable.

        Raises BadZnode if what is there cannot be read.
        """
        self._store.on_session(self._session_changed)
        self._wanted.set()
        self._task = task = asyncio.create_task(self._follow(), name=f"watcher of {self._subject}")
        while not self.has_read:
            first = asyncio.create_task(self._read_once.wait())
            try:
                done, _ = await asyncio.wait({task, first}, timeout=START_LOOK_SECONDS, return_when="FIRST_COMPLETED")
            finally:
                first.cancel()
            if task in done:
                await task  # it ends before stop only by BadZnode, within the first pass
            if not self.has_read:
                logger.warning(
                    "%s cannot be read from ZooKeeper yet; waiting (%s)", self._subject, self._latest_problem or ""
                )

    async def stop(self) -> None:
        """Stop following; what was read stays."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def read_soon(self) -> None:
        """Something may have changed."""
        self._wanted.set()

    def watch(self, _event: WatchEvent) -> None:
        """The callback of the watches that a pass sets."""
        self._wanted.set()

    async def read_now(self) -> None:
        """One pass, behind one that is under way. Raises what the pass raises."""
        async with self._one_at_a_time:
            whole, self._whole = self._whole, False
            try:
                if not self.has_read:
                    for path in self._parents:
                        await ensure(self._store, path)
                await self._read(whole)
            except BaseException:
                self._whole = self._whole or whole
                raise
            self._read_once.set()
            self._latest_problem = None

    def _session_changed(self, event: SessionEvent) -> None:
        if event.state is SessionState.CONNECTED:
            self._whole = self._whole or self._whole_after_reconnect
            self._wanted.set()

    async def _follow(self) -> None:
        while True:
            try:
                # not wait_for: before Python 3.12 it can swallow a cancellation that comes with the event
                async with asyncio.timeout(RELIST_SECONDS):
                    await self._wanted.wait()
            except TimeoutError:
                self._whole = self._whole or self._whole_after_relist
            self._wanted.clear()
            try:
                await self.read_now()
                continue
            except BadZnode as problem:
                logger.error("%s in ZooKeeper cannot be read: %s", self._subject, problem)
                if not self.has_read:
                    raise
                self._latest_problem = problem
                pause = RETRY_SECONDS
            except StoreError as problem:
                if str(problem) != str(self._latest_problem):
                    logger.info("reading %s from ZooKeeper failed, retrying: %s", self._subject, problem)
                self._latest_problem = problem
                pause = RETRY_SECONDS
            except Exception as problem:  # outdated content on a live broker would be worse than any bug
                logger.exception("%s: a read failed with an unexpected error; reading everything again", self._subject)
                self._latest_problem = problem
                self._whole = True
                pause = UNEXPECTED_RETRY_SECONDS
            await asyncio.sleep(pause)
            self._wanted.set()
