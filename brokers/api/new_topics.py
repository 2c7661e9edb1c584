"""A limit on the topics that a connection creates by naming them in Metadata: each costs the whole cluster."""

from __future__ import annotations


class NewTopics:
    """Counts the new topics of each connection in the present second."""

    def __init__(self) -> None:
        self._second = 0
        self._taken: dict[int, int] = {}

    def take(self, connection_id: int, wanted: int, per_second: int, now_ms: int) -> int:
        """How many of the ``wanted`` topics may be made now; they are counted."""
        second = now_ms // 1000
        if second != self._second:
            self._second = second
            self._taken.clear()
        taken = self._taken.get(connection_id, 0)
        given = min(wanted, max(0, per_second - taken))
        self._taken[connection_id] = taken + given
        return given
