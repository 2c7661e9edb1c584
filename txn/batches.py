"""A batch transaction: one transaction, many producers, and a fence with the last committed batch.

A sink (a transactional id) has a record like any producer's, with a :class:`SinkBatch` in it. Each micro-batch starts
with a bump of the sink's epoch, which fences every earlier driver. Tasks write as members: producers that were enlisted
in the batch. One commit names the members that count and sets the fence, in one record. A batch id that is already in
the fence is not committed again.

Members come from the sink's slots. These are producer ids that are reused, but only after all markers of the previous
batch are written, and always with a bumped epoch, so that delayed requests are fenced.

This module has the values and the steps between them; ``txn.sinks`` decides which requests are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

__all__ = ["BatchFence", "BatchMember", "MemberMarker", "SinkBatch", "members_of"]

MAX_EPOCH = 2**15 - 1
LAST_MEMBER_EPOCH = MAX_EPOCH - 1
"""The highest epoch of a slot: its marker still has to bump it."""


class BatchMember(NamedTuple):
    """A producer of a batch: an id and the epoch it writes with."""

    producer_id: int
    epoch: int


class MemberMarker(NamedTuple):
    """The marker that ends one member's part, with the bumped epoch."""

    producer_id: int
    epoch: int
    commit: bool


# A commit handles thousands of these: construction from tuples takes a quarter of the time of a call of the class.
_member = cast(Callable[[Any], BatchMember], partial(tuple.__new__, BatchMember))
_marker = cast(Callable[[Any], MemberMarker], partial(tuple.__new__, MemberMarker))


def members_of(pairs: Iterable[tuple[Any, ...]]) -> Iterator[BatchMember]:
    """Pairs of producer id and epoch as members."""
    return map(_member, pairs)


class BatchFence(NamedTuple):
    """The last committed batch of a sink. ``digest`` is the writer's digest of its content."""

    query_id: str
    batch_id: int
    digest: str
    committed_ms: int


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """The sink's part of its record. ``slots`` are free producer ids, with their next epoch."""

    members: tuple[BatchMember, ...] = ()
    slots: tuple[BatchMember, ...] = ()
    winners: tuple[BatchMember, ...] = ()
    fence: BatchFence | None = None

    def take_slots(self, count: int) -> tuple[tuple[BatchMember, ...], SinkBatch]:
        """Up to ``count`` free slots as new members, and the batch with them."""
        taken = self.slots[:count]
        return taken, replace(self, members=self.members + taken, slots=self.slots[count:])

    def with_new(self, producer_ids: Iterable[int]) -> tuple[tuple[BatchMember, ...], SinkBatch]:
        """Members with fresh producer ids, and the batch with them."""
        new = tuple(BatchMember(producer_id, 0) for producer_id in producer_ids)
        return new, replace(self, members=self.members + new)

    def ended(self, winners: AbstractSet[BatchMember], fence: BatchFence | None) -> SinkBatch:
        """End the batch with these members committed (none: an abort) and this fence."""
        counting = [member for member in self.members if member in winners]  # nearly sorted already
        return replace(self, winners=tuple(sorted(counting)), fence=fence)

    def markers(self) -> tuple[MemberMarker, ...]:
        """One marker for each member, with its bumped epoch."""
        winners = set(self.winners)
        return tuple([_marker((m.producer_id, m.epoch + 1, m in winners)) for m in self.members])

    def released(self) -> SinkBatch:
        """After all markers: the members' ids are free slots with bumped epochs; exhausted ids are dropped."""
        freed = tuple(BatchMember(m.producer_id, m.epoch + 1) for m in self.members if m.epoch + 1 <= LAST_MEMBER_EPOCH)
        return replace(self, members=(), winners=(), slots=tuple(sorted((*self.slots, *freed))))
