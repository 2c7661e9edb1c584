"""Validation of topic requests to the controller: names, counts, assignments, settings. Pure.

Errors and their texts follow Kafka's, because tools show them.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from fleetlog.brokers.config import ConfigError, TopicConfig
from fleetlog.brokers.controller.placement import PlacementError, assign, check_assignment
from fleetlog.brokers.metadata.features import SCHEMA_VERSION, TIERING_VERSION, TIERING_WAITS_LEVEL
from fleetlog.brokers.metadata.image import MetadataImage
from fleetlog.brokers.model import PROTECTED_TOPICS, SCHEMAS_TOPIC, BrokerId, BrokerInfo, TopicInfo
from fleetlog.wire.errors import ErrorCode

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
    assigned_twice: int | None = None
    """A partition that the request assigns more than once."""


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic's new total number of partitions; ``assignments`` has one replica list per added partition, or None."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


class TopicOutcome(NamedTuple):
    """The outcome for one topic of a request. ``topic`` is the created or extended topic, or the planned one."""

    name: str
    error: ErrorCode
    message: str | None = None
    topic: TopicInfo | None = None
    topic_id: uuid.UUID | None = None

    @property
    def ok(self) -> bool:
        """Whether the error is NONE."""
        return self.error is ErrorCode.NONE


def new_partitions(counts: Iterable[int]) -> int:
    """The new partitions of a request, without those of topics that are refused by themselves."""
    return sum(count for count in counts if 0 < count <= MAX_NEW_PARTITIONS)


def too_many(names: Iterable[str], partitions: int) -> Iterator[TopicOutcome]:
    """Refusals of all topics of a request that asks for too many partitions; the first one says what to do."""
    text = (
        f"Excessively large number of partitions per request: {partitions}, at most {MAX_NEW_PARTITIONS}. "
        "Ask for them in several requests."
    )
    short = "Excessively large number of partitions per request."
    for number, name in enumerate(names):
        yield TopicOutcome(name, ErrorCode.POLICY_VIOLATION, short if number else text)


class Refused(Exception):
    """The request is rejected; becomes a :class:`TopicOutcome`."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


class Defaults(NamedTuple):
    """The values that -1 stands for, and the base that overrides are checked against."""

    partitions: int
    replication_factor: int
    config: TopicConfig
    features: Mapping[str, int] = MappingProxyType({})


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
    """An existing topic with the same metric names ('.' and '_' are equal there), or None."""
    if "." not in name and "_" not in name:
        return None
    folded = name.replace(".", "_")
    return next((other for other in existing if other != name and other.replace(".", "_") == folded), None)


def duplicates(names: Sequence[str]) -> set[str]:
    """Names that occur more than once in a request; each of them is rejected."""
    return {name for name, count in Counter(names).items() if count > 1}


def plan_topic(
    new: NewTopic,
    image: MetadataImage,
    *,
    deleting: Container[str],
    brokers: Mapping[int, BrokerInfo],
    defaults: Defaults,
    start: int,
    absent: Sequence[BrokerInfo] = (),
) -> tuple[tuple[tuple[BrokerId, ...], ...], dict[str, str]]:
    """The topic's assignment and overrides; raises Refused. ``absent`` brokers are used if the live ones don't do."""
    _check_new_name(new.name, image, deleting)
    overrides = check_configs(new.configs, defaults.config)
    config = TopicConfig.parse(overrides, defaults.config)
    check_schemas(new.name, config, image.topics, defaults.features)
    check_tiering(new.name, config, defaults.features)
    if new.assignments:
        if new.partitions != -1 or new.replication_factor != -1:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                "Both numPartitions or replicationFactor and replicasAssignments were set. "
                "Both cannot be used at the same time.",
            )
        if new.assigned_twice is not None:
            raise Refused(
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {new.assigned_twice}",
            )
        _check_count(len(new.assignments))
        wrong = check_assignment(new.assignments, brokers, absent=[broker.id for broker in absent])
        if wrong is not None:
            raise Refused(ErrorCode.INVALID_REPLICATION_ASSIGNMENT, wrong)
        assignment = tuple(tuple(BrokerId(b) for b in new.assignments[i]) for i in range(len(new.assignments)))
        check_replication(max(map(len, assignment)), brokers)
        return assignment, overrides
    partitions = defaults.partitions if new.partitions == -1 else new.partitions
    factor = defaults.replication_factor if new.replication_factor == -1 else new.replication_factor
    _check_count(partitions)
    return _place(brokers, partitions, factor, start, 0, absent), overrides


def _check_count(partitions: int) -> None:
    if partitions > MAX_NEW_PARTITIONS:
        raise Refused(
            ErrorCode.POLICY_VIOLATION, f"Excessively large number of partitions: more than {MAX_NEW_PARTITIONS}."
        )


def _check_new_name(name: str, image: MetadataImage, deleting: Container[str]) -> None:
    wrong = check_name(name)
    if wrong is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, wrong)
    if name in image.topics:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if name in deleting:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
    other = colliding(name, image.topics)
    if other is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def check_configs(configs: Mapping[str, str | None], base: TopicConfig) -> dict[str, str]:
    """The overrides as text; raises Refused (INVALID_CONFIG)."""
    nulls = sorted(name for name, value in configs.items() if value is None)
    if nulls:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    overrides = {name: value for name, value in configs.items() if value is not None}
    try:
        TopicConfig.parse(overrides, base).check_together()
    except ConfigError as problem:
        raise Refused(ErrorCode.INVALID_CONFIG, str(problem)) from problem
    return overrides


def check_schemas(name: str, config: TopicConfig, topics: Container[str], features: Mapping[str, int]) -> None:
    """Refuse a check that not every broker would make, or that nothing could pass: INVALID_CONFIG."""
    if not config.checks_schemas:
        return
    level = 2 if config.checks_payloads else 1
    if features.get(SCHEMA_VERSION, 0) < level:
        what = "payloads" if config.checks_payloads else "schemas"
        why = f"{what} are not checked before {SCHEMA_VERSION} {level} is finalized: fleetlog features upgrade."
    elif SCHEMAS_TOPIC not in topics:
        why = f"there is no topic {SCHEMAS_TOPIC}, from which brokers have the ids: start a schema registry first."
    elif name == SCHEMAS_TOPIC or name in PROTECTED_TOPICS:
        why = f"what is written to {name} has no schema."
    else:
        return
    raise Refused(ErrorCode.INVALID_CONFIG, f"A check of schemas is not possible: {why}")


def check_tiering(name: str, config: TopicConfig, features: Mapping[str, int]) -> None:
    """Refuse a tier that not every broker would heed, or that the topic cannot have: INVALID_CONFIG."""
    if not config.remote_storage_enable:
        return
    newer = config.fleetlog_tiering_waits or config.remote_log_copy_disable or config.remote_copy_lag_ms
    level = TIERING_WAITS_LEVEL if newer else 1
    if features.get(TIERING_VERSION, 0) < level:
        newest = f"{TIERING_VERSION}={TIERING_WAITS_LEVEL}"
        why = f"{TIERING_VERSION} {level} is not finalized: fleetlog features upgrade {newest}."
    elif name in PROTECTED_TOPICS:
        why = f"brokers need all of {name} at hand."
    else:
        return
    raise Refused(ErrorCode.INVALID_CONFIG, f"remote.storage.enable is not possible: {why}")


def plan_partitions(
    new: NewPartitions, image: MetadataImage, brokers: Mapping[int, BrokerInfo], absent: Sequence[BrokerInfo] = ()
) -> tuple[tuple[BrokerId, ...], ...]:
    """The replica lists of the added partitions; raises Refused."""
    topic = image.topics.get(new.name)
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
    _check_count(added)
    factor = len(topic.partitions[0].target)
    if new.assignments is None:
        first = topic.partitions[0].target[0]
        order = sorted(brokers)
        return _place(brokers, added, factor, order.index(first) if first in order else 0, present, absent)
    if len(new.assignments) != added:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
            f"Increasing the number of partitions by {added} but {len(new.assignments)} assignments provided.",
        )
    given = {present + i: replicas for i, replicas in enumerate(new.assignments)}
    wrong = check_assignment(given, brokers, first_partition=present, absent=[broker.id for broker in absent])
    if wrong is None and any(len(replicas) != factor for replicas in new.assignments):
        wrong = f"Existing partitions have {factor} replica(s), the new ones must have as many."
    if wrong is not None:
        raise Refused(ErrorCode.INVALID_REPLICATION_ASSIGNMENT, wrong)
    return tuple(tuple(BrokerId(b) for b in replicas) for replicas in new.assignments)


def check_replication(factor: int, brokers: Mapping[int, BrokerInfo]) -> None:
    """Raises Refused if the factor is above 1 while a registered broker runs a version without replication.

    As a leader such a broker would acknowledge unreplicated records; as the controller it would elect any replica.
    """
    old = sorted(broker.id for broker in brokers.values() if not broker.replicates) if factor > 1 else []
    if old:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {factor} is not possible yet: broker(s) {', '.join(map(str, old))} run a version "
            "without replication. Upgrade them first (docs/upgrading.md).",
        )


def _place(
    brokers: Mapping[int, BrokerInfo],
    partitions: int,
    factor: int,
    start: int,
    first: int,
    absent: Sequence[BrokerInfo],
) -> tuple[tuple[BrokerId, ...], ...]:
    check_replication(factor, brokers)
    try:
        return assign(brokers.values(), partitions, factor, start=start, first_partition=first, absent=absent)
    except PlacementError as problem:
        code = ErrorCode.INVALID_PARTITIONS if problem.partitions else ErrorCode.INVALID_REPLICATION_FACTOR
        raise Refused(code, str(problem)) from problem


AUTO_CREATE_MS = 5_000
NOT_CONTROLLER_TEXT = "This is not the correct controller for this cluster."


Gone = Callable[[], bool]
Result = tuple[ErrorCode, str | None]


def still_there() -> bool:
    """For requests of the broker itself, which has no client connection."""
    return False


class RequestFailed(NamedTuple):
    """The error of a whole request: it failed, or its outcome is unknown."""

    error: ErrorCode
    message: str


TIMED_OUT = RequestFailed(ErrorCode.REQUEST_TIMED_OUT, "The request timed out.")
DEPOSED = RequestFailed(ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_TEXT)


class ControllerWork(NamedTuple):
    """What the active controller is doing; on other brokers the defaults.

    ``silent_brokers`` do not answer how far their logs reach, which elections and moves wait for;
    ``leaders_asked_to_move`` is the number of partitions whose leader is asked to let another one follow. ``since_ms``
    is by the wall clock.
    """

    epoch: int = -1
    since_ms: int = -1
    admin_requests: int = 0
    leaders_asked_to_move: int = 0
    silent_brokers: tuple[int, ...] = ()
    unclean_elections: int = 0
