"""Requests between brokers that ask about many partitions, cut into bounded ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def in_chunks(pairs: Iterable[tuple[K, V]], most: int) -> Iterator[dict[K, list[V]]]:
    """The pairs grouped by their keys, ``most`` of them at a time, in their order."""
    chunk: dict[K, list[V]] = {}
    count = 0
    for key, value in pairs:
        chunk.setdefault(key, []).append(value)
        count += 1
        if count == most:
            yield chunk
            chunk, count = {}, 0
    if chunk:
        yield chunk
