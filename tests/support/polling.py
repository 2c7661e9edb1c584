"""Reading with librdkafka until so many records are there."""

from __future__ import annotations

from typing import Any

from tests.support.waiting import eventually


def polled_values(consumer: Any, count: int, timeout_s: float) -> list[bytes]:
    """The values of the first ``count`` records that an assigned consumer polls, errors passed over; it is closed then.

    AssertionError when there are not so many in ``timeout_s``.
    """
    found: list[bytes] = []

    def poll() -> int:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found)

    try:
        eventually(poll, f"{count} records", timeout_s, good=lambda so_many: so_many >= count, pause_s=0)
    finally:
        consumer.close()
    return found
