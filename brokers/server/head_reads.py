"""File parts that are next to leave and not in memory: a worker of the disk reads them in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fleetlog.brokers.log import SliceGone
from fleetlog.brokers.server import disk

if TYPE_CHECKING:
    from fleetlog.brokers.server.framing import Outbox

SMALL_SLICE = 64 * 1024
READ_AHEAD_BYTES = 4 * 1024 * 1024


class HeadReads:
    """The reads of one outbox, one at a time."""

    __slots__ = ("_missed", "_outbox", "_read_ahead", "pending")

    def __init__(self, outbox: Outbox, read_ahead: disk.ReadAhead) -> None:
        self._outbox = outbox
        self._read_ahead = read_ahead
        self._missed: tuple[int, int] | None = None
        self.pending = False
        """Whether a worker reads: until it is through the outbox keeps its file."""

    def fetch(self, read_in: Callable[[OSError | None], None]) -> str | None:
        """Have the head read in, and call ``read_in`` then, with None or the disk's error. Returns what is wrong with
        the head, if something is.

        If it was read in and is gone again already, memory is short, and a little is read here rather than for ever.
        """
        head = self._outbox.head_slice()
        assert head is not None, "the disk was waited for, but no file part is next"
        chunk, position, length = head
        try:
            place = (chunk.fileno(), position)
        except SliceGone as error:
            return f"send failed: {error}"
        if self._missed == place:
            self._missed = None
            data = disk.read(*place, min(length, SMALL_SLICE))
            if not data:
                return "a log file is shorter than its index says"
            self._outbox.read_in(data)
            return None
        self._missed = place
        self.pending = True
        self._read_ahead.fetch(*place, min(length, READ_AHEAD_BYTES), partial(self._through, read_in))
        return None

    def _through(self, read_in: Callable[[OSError | None], None], error: OSError | None) -> None:
        self.pending = False
        read_in(error)
