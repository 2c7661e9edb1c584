"""A batch transaction: one transaction, many producers, and a fence that says which batch was committed last.

A sink (a transactional id) has a record like any producer's, with a :class:`Batch` in it. Each micro-batch begins by
bumping the sink's epoch, which locks out every driver before; tasks write under members, producers of their own that
were enlisted in the batch; one commit names the members that count and sets the fence, all in one record. A batch id
that stands in the fence already is not committed again.

Members come from the sink's slots: producer ids that are used again, but only after all markers of the batch before
are written, and always with a bumped epoch, so that nothing delayed can be taken for something new.

Here: the values and the steps between them. Who may ask for which is in ``txn.sinks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

__all__ = ["Batch", "Fence", "Member", "MemberMarker", "members_of"]

MAX_EPOCH = 2**15 - 1
LAST_MEMBER_EPOCH = MAX_EPOCH - 1
"""A slot isn't used with a higher epoch: its marker still has to bump it."""


class Member(NamedTuple):
    """A producer of a batch: an id and the epoch it writes with."""

    producer_id: int
    epoch: int


class MemberMarker(NamedTuple):
    """The marker that ends one member's part: with the bumped epoch."""

    producer_id: int
    epoch: int
    commit: bool


# A commit handles thousands of these: made from tuples, one costs a quarter of a call of its class.
_member = cast(Callable[[Any], Member], partial(tuple.__new__, Member))
_marker = cast(Callable[[Any], MemberMarker], partial(tuple.__new__, MemberMarker))


def members_of(pairs: Iterable[tuple[Any, ...]]) -> Iterator[Member]:
    """Pairs of producer id and epoch as members."""
    return map(_member, pairs)


class Fence(NamedTuple):
    """The last committed batch of a sink. ``digest`` is whatever the writer says of its content."""

    query_id: str
    batch_id: int
    digest: str
    committed_ms: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What a sink's record holds beside a transaction. ``slots`` are free, with the epoch to use next."""

    members: tuple[Member, ...] = ()
    slots: tuple[Member, ...] = ()
    winners: tuple[Member, ...] = ()
    fence: Fence | None = None

    def take_slots(self, count: int) -> tuple[tuple[Member, ...], Batch]:
        """Up to ``count`` free slots as new members, and the batch with them."""
        taken = self.slots[:count]
        return taken, replace(self, members=self.members + taken, slots=self.slots[count:])

    def with_new(self, producer_ids: Iterable[int]) -> tuple[tuple[Member, ...], Batch]:
        """Members under producer ids nobody ever had, and the batch with them."""
        new = tuple(Member(producer_id, 0) for producer_id in producer_ids)
        return new, replace(self, members=self.members + new)

    def ended(self, winners: AbstractSet[Member], fence: Fence | None) -> Batch:
        """The fate is decided: these members count (none of them: an abort), and this is the fence from now on."""
        counting = [member for member in self.members if member in winners]  # nearly sorted already
        return replace(self, winners=tuple(sorted(counting)), fence=fence)

    def markers(self) -> tuple[MemberMarker, ...]:
        """One marker for each member: every one of them bumps its epoch."""
        winners = set(self.winners)
        return tuple([_marker((m.producer_id, m.epoch + 1, m in winners)) for m in self.members])

    def released(self) -> Batch:
        """All markers are written: the members' ids are free again, with their bumped epochs; used up ones go."""
        freed = tuple(Member(m.producer_id, m.epoch + 1) for m in self.members if m.epoch + 1 <= LAST_MEMBER_EPOCH)
        return replace(self, members=(), winners=(), slots=tuple(sorted((*self.slots, *freed))))
