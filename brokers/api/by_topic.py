"""Answers list results by topic, then by partition."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TypeVar

from fleetlog.brokers.model import TopicPartition

V = TypeVar("V")


def by_topic(results: Iterable[tuple[TopicPartition, V]]) -> list[tuple[str, list[tuple[TopicPartition, V]]]]:
    """The results of each topic, sorted by topic and partition."""
    ordered = sorted(results, key=lambda item: item[0])
    return [(name, list(items)) for name, items in groupby(ordered, key=lambda item: item[0].topic)]
