"""What may be asked of the controller, and whether it can be done: names, counts, assignments, settings. Pure.

Errors and their texts follow Kafka's, because tools show them to people.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from brokers.cluster.picture import Picture
from brokers.cluster.placement import PlacementError, assign, check_assignment
from brokers.config import ConfigError, TopicConfig
from brokers.model import BrokerId, BrokerInfo, TopicInfo
from wire.errors import ErrorCode

MAX_NAME_LENGTH = 249
MAX_NEW_PARTITIONS = 10_000
"""Per request; Kafka's controller has the same bound."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


@dataclass(frozen=True, slots=True)
class NewTopic:
    """One topic to create. -1 means the broker's default; ``assignments`` (partition to replicas) excludes both."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic's new total number of partitions; ``assignments`` has one replica list per added partition, or None."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


class Outcome(NamedTuple):
    """What became of one topic of a request. ``topic`` is the topic created (or extended, or to be)."""

    name: str
    error: ErrorCode
    message: str | None = None
    topic: TopicInfo | None = None
    topic_id: uuid.UUID | None = None

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return self.error is ErrorCode.NONE


class Refused(Exception):
    """The request can't be done; becomes an :class:`Outcome`."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


class Defaults(NamedTuple):
    """What -1 stands for, and what overrides are checked against."""

    partitions: int
    replication_factor: int
    config: TopicConfig


def check_name(name: str) -> str | None:
    """What is wrong with a topic's name, or None."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"Topic name is invalid: the length of '{name[:40]}...' is longer than the max allowed {MAX_NAME_LENGTH}"
    if not _LEGAL_NAME.match(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def colliding(name: str, existing: Collection[str]) -> str | None:
    """An existing topic whose metrics would be called the same ('.' and '_' are one there), or None."""
    if "." not in name and "_" not in name:
        return None
    folded = name.replace(".", "_")
    return next((other for other in existing if other != name and other.replace(".", "_") == folded), None)


def duplicates(names: Sequence[str]) -> set[str]:
    """Names that stand more than once in a request; each of them is refused."""
    return {name for name, count in Counter(names).items() if count > 1}


def plan_topic(
    new: NewTopic,
    picture: Picture,
    *,
    deleting: Collection[str],
    brokers: Mapping[int, BrokerInfo],
    defaults: Defaults,
    start: int,
) -> tuple[tuple[tuple[BrokerId, ...], ...], dict[str, str]]:
    """The assignment and the overrides the topic will have; raises Refused."""
    _check_new_name(new.name, picture, deleting)
    overrides = check_configs(new.configs, defaults.config)
    if new.assignments:
        if new.partitions != -1 or new.replication_factor != -1:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                "Both numPartitions or replicationFactor and replicasAssignments were set. "
                "Both cannot be used at the same time.",
            )
        wrong = check_assignment(new.assignments, brokers)
        if wrong is not None:
            raise Refused(ErrorCode.INVALID_REPLICATION_ASSIGNMENT, wrong)
        assignment = tuple(tuple(BrokerId(b) for b in new.assignments[i]) for i in range(len(new.assignments)))
        check_replication(max(map(len, assignment)), brokers)
        return assignment, overrides
    partitions = defaults.partitions if new.partitions == -1 else new.partitions
    factor = defaults.replication_factor if new.replication_factor == -1 else new.replication_factor
    if partitions > MAX_NEW_PARTITIONS:
        raise Refused(
            ErrorCode.POLICY_VIOLATION, f"Excessively large number of partitions: more than {MAX_NEW_PARTITIONS}."
        )
    return _place(brokers, partitions, factor, start, 0), overrides


def _check_new_name(name: str, picture: Picture, deleting: Collection[str]) -> None:
    wrong = check_name(name)
    if wrong is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, wrong)
    if name in picture.topics:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if name in deleting:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
    other = colliding(name, picture.topics)
    if other is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def check_configs(configs: Mapping[str, str | None], base: TopicConfig) -> dict[str, str]:
    """The overrides as text; raises Refused (INVALID_CONFIG)."""
    nulls = sorted(name for name, value in configs.items() if value is None)
    if nulls:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    overrides = {name: value for name, value in configs.items() if value is not None}
    try:
        TopicConfig.parse(overrides, base)
    except ConfigError as problem:
        raise Refused(ErrorCode.INVALID_CONFIG, str(problem)) from problem
    return overrides


def plan_partitions(
    new: NewPartitions, picture: Picture, brokers: Mapping[int, BrokerInfo]
) -> tuple[tuple[BrokerId, ...], ...]:
    """The replica lists of the added partitions; raises Refused."""
    topic = picture.topics.get(new.name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{new.name}' does not exist.")
    present = len(topic.partitions)
    added = new.count - present
    if added < 0:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {new.name} currently has {present} partition(s); {new.count} would not be an increase.",
        )
    if added == 0:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if added > MAX_NEW_PARTITIONS:
        raise Refused(
            ErrorCode.POLICY_VIOLATION, f"Excessively large number of partitions: more than {MAX_NEW_PARTITIONS}."
        )
    factor = len(topic.partitions[0].target)
    if new.assignments is None:
        first = topic.partitions[0].target[0]
        order = sorted(brokers)
        return _place(brokers, added, factor, order.index(first) if first in order else 0, present)
    if len(new.assignments) != added:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
            f"Increasing the number of partitions by {added} but {len(new.assignments)} assignments provided.",
        )
    given = {present + i: replicas for i, replicas in enumerate(new.assignments)}
    wrong = check_assignment(given, brokers, first_partition=present)
    if wrong is None and any(len(replicas) != factor for replicas in new.assignments):
        wrong = f"Existing partitions have {factor} replica(s), the new ones must have as many."
    if wrong is not None:
        raise Refused(ErrorCode.INVALID_REPLICATION_ASSIGNMENT, wrong)
    return tuple(tuple(BrokerId(b) for b in replicas) for replicas in new.assignments)


def check_replication(factor: int, brokers: Mapping[int, BrokerInfo]) -> None:
    """Raises Refused if there are to be several replicas while a broker lives that doesn't know how to follow.

    Such a broker as the leader would acknowledge what nobody else has; as the controller it would elect anybody.
    """
    old = sorted(broker.id for broker in brokers.values() if not broker.replicates) if factor > 1 else []
    if old:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {factor} is not possible yet: broker(s) {', '.join(map(str, old))} run a version "
            "without replication. Upgrade them first (docs/upgrading.md).",
        )


def _place(
    brokers: Mapping[int, BrokerInfo], partitions: int, factor: int, start: int, first: int
) -> tuple[tuple[BrokerId, ...], ...]:
    check_replication(factor, brokers)
    try:
        return assign(brokers.values(), partitions, factor, start=start, first_partition=first)
    except PlacementError as problem:
        code = ErrorCode.INVALID_PARTITIONS if problem.partitions else ErrorCode.INVALID_REPLICATION_FACTOR
        raise Refused(code, str(problem)) from problem
