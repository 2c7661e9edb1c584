"""The leader-epoch cache of one partition: which leader epoch appended from which offset on (KIP-101, KIP-279).

Pure but for ``to_bytes``/``from_bytes``. The log writes the checkpoint when ``dirty`` is set and records are appended;
before that only when ``behind`` is set. An epoch in which nothing was appended need not be in the file: a load drops
such epochs at the log's end.
"""

from __future__ import annotations

from bisect import bisect_right

from fleetlog.brokers.log.disk.checkpoints import EpochEntry, decode_epochs, encode_epochs

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochCache:
    """Entries with rising epochs and non-falling start offsets."""

    __slots__ = ("behind", "dirty", "entries", "latest", "saves")

    def __init__(self, entries: list[EpochEntry] | None = None) -> None:
        self.entries: list[EpochEntry] = list(entries or ())
        self.latest = UNDEFINED_EPOCH
        """The newest epoch, -1 if none is known."""
        self.dirty = False
        """Whether the checkpoint says something else."""
        self.behind = False
        """Whether it says something else of records that are in the log."""
        self.saves = 0
        """How often the checkpoint was written."""
        self._changed()

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> EpochCache:
        """The cache a checkpoint holds; raises DamagedFile."""
        return cls(decode_epochs(data, name))

    def to_bytes(self) -> bytes:
        """The checkpoint's content."""
        return encode_epochs(self.entries)

    def _changed(self) -> None:
        self.latest = self.entries[-1].epoch if self.entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Epoch ``epoch`` appends from ``start_offset`` on. Returns whether that was news.

        Entries that contradict it (a higher or equal epoch, or a later start) are dropped: they are of records that
        the log no longer holds.
        """
        entries = self.entries
        if epoch < 0 or (entries and entries[-1].epoch == epoch):
            return False
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochEntry(epoch, start_offset))
        self.dirty = self.behind = True
        self._changed()
        return True

    def begin(self, epoch: int, end_offset: int) -> None:
        """A leader is about to append in this epoch, at the log's end."""
        contradicted = bool(self.entries) and self.entries[-1].epoch > epoch
        behind = self.behind
        if self.assign(epoch, end_offset):
            self.behind = behind or contradicted

    def saved(self) -> None:
        """The checkpoint says the same now."""
        self.dirty = self.behind = False
        self.saves += 1

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch known here that is not above ``epoch``, and the offset at which it ended.

        (-1, -1) when the epoch is unknown or above all known ones, as OffsetForLeaderEpoch answers.
        """
        entries = self.entries
        if epoch < 0 or not entries:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == entries[-1].epoch:
            return epoch, log_end_offset
        if epoch > entries[-1].epoch:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        above = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        if above == 0:
            return epoch, entries[0].start_offset
        return entries[above - 1].epoch, entries[above].start_offset

    def epoch_at(self, offset: int) -> int:
        """The epoch that appended ``offset``; -1 if unknown."""
        entries = self.entries
        if not entries or offset >= entries[-1].start_offset:
            return self.latest
        above = bisect_right(entries, offset, key=lambda entry: entry.start_offset)
        return entries[above - 1].epoch if above else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends at ``end_offset``: drop epochs that start there or later. The file may keep them."""
        entries = self.entries
        while entries and entries[-1].start_offset >= end_offset:
            entries.pop()
            self.dirty = True
        self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now starts at ``start_offset``: drop epochs that ended before.

        The first one keeps its start (Kafka raises it): there the epochs before it ended, and a follower whose log goes
        on in one of them differs, though only in records that are deleted here. What those say of producers, of an open
        transaction for instance, must not stay with it.
        """
        entries = self.entries
        above = bisect_right(entries, start_offset, key=lambda entry: entry.start_offset)
        if above <= 1:
            return
        self.entries = entries[above - 1 :]
        self.dirty = self.behind = True
        self._changed()

    def clear(self) -> None:
        """Forget everything."""
        self.dirty = self.behind = self.dirty or bool(self.entries)
        self.entries.clear()
        self._changed()
