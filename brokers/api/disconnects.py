"""What is to be done when a connection closes, for handlers that leave something behind for its client."""

from __future__ import annotations

from collections.abc import Callable, Hashable

MAX_WATCHED = 1_000
"""Per connection; the oldest is dropped for a newer one."""


class Disconnects:
    """Callbacks by connection."""

    def __init__(self) -> None:
        self._watched: dict[int, dict[Hashable, Callable[[], None]]] = {}

    def watch(self, connection_id: int, key: Hashable, callback: Callable[[], None]) -> None:
        """Call back once, when the connection has closed; a second one of the same key replaces the first."""
        watched = self._watched.setdefault(connection_id, {})
        watched[key] = callback
        if len(watched) > MAX_WATCHED:
            del watched[next(iter(watched))]

    def unwatch(self, connection_id: int, key: Hashable) -> None:
        """There is nothing to do any more; a no-op if there never was."""
        watched = self._watched.get(connection_id)
        if watched is not None:
            watched.pop(key, None)
            if not watched:
                del self._watched[connection_id]

    def closed(self, connection_id: int) -> None:
        """The connection has closed."""
        for callback in self._watched.pop(connection_id, {}).values():
            callback()
