"""The errors that kernels raise for damaged or invalid bytes."""

from __future__ import annotations


class CorruptBatch(ValueError):
    """A damaged or invalid record batch. ``position`` is the byte offset in the buffer where it starts."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"{reason} (at byte {position})")
        self.reason = reason
        self.position = position


class MalformedMessage(ValueError):
    """The bytes are not a message of that API and version; nothing of it was executed."""
