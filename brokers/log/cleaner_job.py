"""A pass of compaction under way, and the wish for one."""

from __future__ import annotations

import logging

from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.background import PendingSync, PendingWork
from fleetlog.brokers.log.compaction import Compaction, Overtaken, Rewritten
from fleetlog.brokers.log.failures import DiskError
from fleetlog.brokers.log.log import Log
from fleetlog.wire.compression import CodecError

logger = logging.getLogger(__name__)

KNOWN_ENDS = (Overtaken, DiskError, CorruptBatch, CodecError, MemoryError)
"""What ends a pass, but for its end."""
TRIES = 4
SLICE_BYTES = 1024 * 1024
"""Read and written at once, in some 3 ms of a core: requests that want that core wait no longer."""


class CleaningWish:
    """That a partition is cleaned soon."""

    __slots__ = ("tries", "young")

    def __init__(self, young: bool) -> None:
        self.young = young
        """Also records that are younger than ``min.compaction.lag.ms``."""
        self.tries = TRIES
        """How often it may still be found that nothing can be done."""


class CleaningJob:
    """A pass under way: the log, the work, and what was so when it was planned."""

    __slots__ = ("begun_ms", "compaction", "cuts", "handled_bytes", "log", "noted", "pending", "ready", "steps", "wish")

    def __init__(
        self, log: Log, compaction: Compaction, noted: PendingSync | None, now_ms: int, wish: CleaningWish | None
    ) -> None:
        self.log = log
        self.cuts = log.cuts
        self.compaction = compaction
        self.noted = noted
        """That the log may have holes is being made durable: nothing is swapped before."""
        self.begun_ms = now_ms
        self.wish = wish
        """What the pass fulfils; a later one needs another."""
        self.steps = compaction.run()
        self.pending: PendingWork | None = None
        self.ready: Rewritten | None = None
        self.handled_bytes = 0
        """By the work that is pending or has just ended."""

    def advance(self, budget_bytes: int) -> None:
        """On the worker's thread: go on until a slice is done, or the budget, or a segment is to be swapped in."""
        enough = min(budget_bytes, SLICE_BYTES)
        try:
            while self.handled_bytes < enough:
                found = next(self.steps)
                if isinstance(found, Rewritten):
                    self.ready = found
                    return
                self.handled_bytes += found
        except (StopIteration, *KNOWN_ENDS):
            raise
        except Exception:
            logger.exception("%s: a fault of compaction", self.log.directory)
            raise
