"""Answers list results by topic, then by partition."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from itertools import groupby
from typing import TypeVar

from fleetlog.brokers.model import TopicPartition

V = TypeVar("V")
Part = TypeVar("Part")
Topic = TypeVar("Topic")


def by_topic(results: Iterable[tuple[TopicPartition, V]]) -> list[tuple[str, list[tuple[TopicPartition, V]]]]:
    """The results of each topic, sorted by topic and partition."""
    ordered = sorted(results, key=lambda item: item[0])
    return [(name, list(items)) for name, items in groupby(ordered, key=lambda item: item[0].topic)]


def rows_by_topic(
    results: Iterable[tuple[TopicPartition, V]],
    part: Callable[[TopicPartition, V], Part],
    topic: Callable[[str, list[Part]], Topic],
) -> Generator[None, None, list[Topic]]:
    """A row of each topic, made of the rows of its partitions. Paced work."""
    rows = []
    for name, those in by_topic(results):
        parts = []
        for tp, result in those:
            yield
            parts.append(part(tp, result))
        rows.append(topic(name, parts))
    return rows
