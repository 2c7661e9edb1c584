"""The errors that kernels raise for damaged or invalid bytes."""

from __future__ import annotations

from typing import Any


class CorruptBatch(ValueError):
    """A damaged or invalid record batch. ``position`` is the byte offset in the buffer where it starts."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"{reason} (at byte {position})")
        self.reason = reason
        self.position = position


class MalformedMessage(ValueError):
    """The bytes are not a message of that API and version; nothing of it was executed."""


class LooseMessage(MalformedMessage):
    """The bytes are a message that is served all the same, as Kafka does; ``message`` is what it says.

    Strings are not UTF-8 (:class:`_native.byte_reader.ReplacedText`), or there are bytes behind its last field.
    """

    def __init__(self, reason: str, message: Any) -> None:
        super().__init__(reason)
        self.message = message
