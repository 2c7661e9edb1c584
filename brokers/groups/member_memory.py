"""The limit of the memory that the members of all groups of a broker may use, in bytes. Pure."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

RECOUNT_MS = 1_000


class Holder(Protocol):
    """A shard."""

    def member_bytes(self) -> int:
        """The bytes of its members and assigned ids."""


class MemberRoom:
    """Shared by the shards of a broker. Joins are added up; a recount finds members that have left.

    Members leave in many ways, and a count that missed one of them would block the groups forever.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._used = 0
        self._counted_ms: int | None = None
        self._holders: WeakSet[Holder] = WeakSet()

    def share(self, holder: Holder) -> None:
        """Count the members of this shard."""
        self._holders.add(holder)

    def take(self, size: int, now_ms: int) -> bool:
        """Reserve ``size`` bytes; False if there is no room."""
        if self._used + size > self.limit and (
            self._counted_ms is None or now_ms - self._counted_ms >= RECOUNT_MS
        ):  # fmt: skip
            self._counted_ms = now_ms
            self._used = sum(holder.member_bytes() for holder in self._holders)
        if self._used + size > self.limit:
            return False
        self._used += size
        return True
