"""CreateTopics, DeleteTopics, CreatePartitions.

Only the controller creates and deletes topics; other brokers answer NOT_CONTROLLER, and Metadata names the
controller. Results stand in the order of the request, each topic succeeds or fails by itself.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Iterable
from functools import partial

from fleetlog.brokers.acls.access import (
    ALTER_TOPIC,
    CLUSTER_ACTION_CLUSTER,
    CREATE_CLUSTER,
    CREATE_TOPIC,
    DELETE_TOPIC,
    DESCRIBE_CONFIGS_TOPIC,
    DESCRIBE_TOPIC,
)
from fleetlog.brokers.acls.image import AclOperation
from fleetlog.brokers.api.base import Context, Done, in_task
from fleetlog.brokers.api.changes import codes_of, named
from fleetlog.brokers.api.config_values import ConfigEntry, topic_entries
from fleetlog.brokers.api.letter_topics import check_schema_letters
from fleetlog.brokers.api.rows import Recorded, Row
from fleetlog.brokers.audit.events import Change, Changes
from fleetlog.brokers.controller.requests import (
    MAX_NEW_PARTITIONS,
    NewPartitions,
    NewTopic,
    Refused,
    TopicOutcome,
    new_partitions,
    too_many,
)
from fleetlog.brokers.model import AUDIT_TOPIC, INTERNAL_TOPICS, id_text
from fleetlog.brokers.topic_config import SCHEMA_SETTINGS
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import CreatePartitionsRequest, CreateTopicsRequest, CreateTopicsTopics, DeleteTopicsRequest
from fleetlog.wire.rows import NamedRows

CREATE_STRICT, DELETE_STRICT, PARTITIONS_STRICT = 6, 5, 3
"""The versions from which on CreateTopics, DeleteTopics and CreatePartitions know THROTTLING_QUOTA_EXCEEDED."""


def throttled_outcome(name: str, topic_id: uuid.UUID | None = None) -> TopicOutcome:
    """Nothing was done: the client's quota is used up."""
    message = "The throttling quota has been exceeded."
    return TopicOutcome(name, ErrorCode.THROTTLING_QUOTA_EXCEEDED, message, None, topic_id)


class MutationCharge:
    """What one request that creates or deletes partitions is charged (KIP-599), at the controller, which does it.

    A topic is charged before the controller is asked, and gets back what could not be done. Above its quota a client is
    told so for each topic that was not done, if its version of the request knows that error; else all is done, and its
    connection is muted. ``free``: nothing is done, or this broker is not the controller.
    """

    def __init__(self, context: Context, *, free: bool, strict_from: int) -> None:
        self._context = context
        self._strict = context.api_version >= strict_from
        self._free = free or context.meter is None or not context.services.controller.is_active
        self._charged: dict[str, int] = {}
        self._refused: list[str] = []

    def takes(self, topic: str, partitions: int) -> bool:
        """Charges a topic; False: it must not be done."""
        if self._free or partitions <= 0:
            return True
        if not self._context.may_mutate(partitions, strict=self._strict):
            self._refused.append(topic)
            return False
        self._charged[topic] = self._charged.get(topic, 0) + partitions
        return True

    def kept(self, outcomes: Iterable[TopicOutcome]) -> list[TopicOutcome]:
        """The outcomes; what could not be done is given back."""
        rows = list(outcomes)
        for outcome in rows:
            charged = 0 if outcome.ok else self._charged.pop(outcome.name, 0)
            if charged:
                self._context.may_mutate(-charged, strict=False)
        return rows

    def settled(self, outcomes: Iterable[TopicOutcome]) -> Iterable[TopicOutcome]:
        """The outcomes, and those of topics that were not done."""
        if self._free:
            return outcomes
        return [*self.kept(outcomes), *map(throttled_outcome, self._refused)]


def _create_topics(request: CreateTopicsRequest, response: messages.CreateTopicsResponse) -> Changes:
    only = "validated only" if request.validate_only else ""
    names = ((topic.name, only) for topic in request.topics)
    return named("Topic", AclOperation.CREATE, names, codes_of(response.topics, "name"))


# one of the first three (brokers create internal topics); configs of the answer
@Row(
    api_keys.CREATE_TOPICS,
    (CREATE_CLUSTER, CREATE_TOPIC, CLUSTER_ACTION_CLUSTER, DESCRIBE_CONFIGS_TOPIC),
    Recorded(_create_topics, ("topics",)),
    brokers_too=True,
)
@in_task
async def handle_create_topics(request: CreateTopicsRequest, context: Context) -> Done:
    """CreateTopics v2-v7; from v5 the answer echoes what the topic will be like."""
    controller = context.services.controller
    denied: frozenset[str] = frozenset()
    if not (context.allows(*CREATE_CLUSTER, logged=False) or context.acts_as_broker()):
        denied = await context.denied_meanwhile(*CREATE_TOPIC, (topic.name for topic in request.topics))
    denied |= _kept_for_brokers(request, context)
    allowed = [topic for topic in request.topics if topic.name not in denied]
    asked = new_partitions(len(topic.assignments) or topic.num_partitions for topic in allowed)
    if asked > MAX_NEW_PARTITIONS and controller.is_active:
        outcomes: Iterable[TopicOutcome] = too_many((topic.name for topic in allowed), asked)
    else:
        charge = MutationCharge(context, free=request.validate_only, strict_from=CREATE_STRICT)
        new, refused = [], []
        for topic in allowed:
            await context.yield_now()
            made = _new_topic(topic)
            problem = _refused_letters(made, context)
            if problem is not None:
                refused.append(problem)
            elif charge.takes(topic.name, _partition_count(topic, context)):
                new.append(made)
        done = await controller.create_topics(
            new, validate_only=request.validate_only, timeout_ms=request.timeout_ms, gone=context.gone
        )
        outcomes = [*charge.settled(done), *refused]
    rows = NamedRows(messages.CreateTopicsResponse, context.api_version)
    echoed: _Echoed = {}
    for outcome in itertools.chain(outcomes, map(_denied, sorted(denied))):
        await context.yield_now()
        context.services.metrics.failed("CreateTopics", outcome.error)
        make = partial(_created, outcome, context, echoed)
        if outcome.ok or outcome.topic_id is not None:
            rows.add(make())
        else:
            rows.add_alike(outcome.name, (outcome.error, outcome.message), make)
    return Done(rows.body())


def _kept_for_brokers(request: CreateTopicsRequest, context: Context) -> frozenset[str]:
    """The audit topic, unless a broker creates it: with settings of a client's choice it would keep nothing."""
    named = any(topic.name == AUDIT_TOPIC for topic in request.topics)
    kept = named and context.services.audit is not None and not context.writes_audit()
    return frozenset({AUDIT_TOPIC}) if kept else frozenset()


def _partition_count(topic: CreateTopicsTopics, context: Context) -> int:
    count = len(topic.assignments) or topic.num_partitions
    return count if count > 0 else context.services.metadata.effective.num_partitions


def _refused_letters(new: NewTopic, context: Context) -> TopicOutcome | None:
    """Why what the topic is to do with dead letters is not possible; asked where it is made."""
    if SCHEMA_SETTINGS.isdisjoint(new.configs) or not context.services.controller.is_active:
        return None
    wanted = {name: value for name, value in new.configs.items() if value is not None}
    try:
        check_schema_letters(new.name, {}, wanted, context.services.metadata.effective.topic_defaults(), context)
    except Refused as refused:
        return TopicOutcome(new.name, refused.error, refused.message)
    return None


def _partitions_of(topic: str, context: Context) -> int:
    info = context.services.metadata.topics.get(topic)
    return 0 if info is None else len(info.partitions)


def _denied(name: str, topic_id: uuid.UUID | None = None) -> TopicOutcome:
    return TopicOutcome(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.", None, topic_id)


def _new_topic(topic: CreateTopicsTopics) -> NewTopic:
    assigned = Counter(part.partition_index for part in topic.assignments)
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={part.partition_index: tuple(part.broker_ids) for part in topic.assignments},
        configs={config.name: config.value for config in topic.configs},
        assigned_twice=next((index for index, times in assigned.items() if times > 1), None),
    )


_Result = messages.CreateTopicsResponse.CreatableTopicResult
_Echoed = dict[frozenset[tuple[str, str]], list[_Result.CreatableTopicConfigs]]
"""What a topic's overrides make of its settings: most topics of a request have the same."""


def _created(outcome: TopicOutcome, context: Context, echoed: _Echoed) -> _Result:
    topic = outcome.topic
    row = _Result(
        name=outcome.name, topic_id=outcome.topic_id, error_code=int(outcome.error),
        error_message=outcome.message, configs=None,
    )  # fmt: skip
    if context.api_version < 5 or topic is None or not outcome.ok:
        return row
    if not context.allows(*DESCRIBE_CONFIGS_TOPIC, outcome.name, logged=False):
        row.topic_config_error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return row
    row.num_partitions, row.replication_factor = len(topic.partitions), len(topic.partitions[0].replicas)
    same = frozenset(topic.configs.items())
    if same not in echoed:
        echoed[same] = [_echo(entry) for entry in topic_entries(topic.configs, context.services.metadata)]
    row.configs = echoed[same]
    return row


def _echo(entry: ConfigEntry) -> _Result.CreatableTopicConfigs:
    return _Result.CreatableTopicConfigs(
        name=entry.name, value=entry.value, read_only=entry.read_only,
        config_source=int(entry.source), is_sensitive=entry.sensitive,
    )  # fmt: skip


def _delete_topics(request: DeleteTopicsRequest, response: messages.DeleteTopicsResponse) -> Changes:
    for row in response.responses:
        topic_id = getattr(row, "topic_id", None)
        identity = id_text(topic_id) if topic_id is not None else ""
        detail = f"topic id {identity}" if row.name and identity else ""
        yield Change("Topic", row.name or identity, AclOperation.DELETE, ErrorCode(row.error_code), detail)


# DESCRIBE to see the name of an id
@Row(api_keys.DELETE_TOPICS, (DELETE_TOPIC, DESCRIBE_TOPIC), Recorded(_delete_topics, ("topics", "topic_names")))
@in_task
async def handle_delete_topics(request: DeleteTopicsRequest, context: Context) -> Done:
    """DeleteTopics v1-v6; from v6 by name or by id."""
    version = context.api_version
    rows: list[tuple[str | None, uuid.UUID | None]]
    if version >= 6:
        rows = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        rows = [(name, None) for name in request.topic_names]
    answers = await _delete(rows, request.timeout_ms, context)
    responses = []
    for row, outcome in zip(rows, answers, strict=True):
        await context.yield_now()
        responses.append(_deleted(row, outcome))
    return Done(messages.DeleteTopicsResponse(version=version, responses=responses))


async def _delete(
    rows: list[tuple[str | None, uuid.UUID | None]], timeout_ms: int, context: Context
) -> list[TopicOutcome]:
    counted = Counter(rows)
    answers: list[TopicOutcome | None] = []
    wanted: list[str | uuid.UUID] = []
    charge = MutationCharge(context, free=False, strict_from=DELETE_STRICT)
    names = context.services.metadata.topic_names
    for row in rows:
        await context.yield_now()
        refused = _refusal(row, context, twice=counted[row] > 1)
        topic = row[0] if row[0] is not None else row[1]
        known = row[0] if row[1] is None else names.get(row[1])
        if refused is None and known is not None and not charge.takes(known, _partitions_of(known, context)):
            refused = throttled_outcome(known, row[1])
        answers.append(refused)
        if refused is None and topic is not None:
            wanted.append(topic)
    done = await context.services.controller.delete_topics(wanted, timeout_ms=timeout_ms, gone=context.gone)
    outcomes = iter(charge.kept(done))
    return [answer if answer is not None else next(outcomes) for answer in answers]


def _refusal(row: tuple[str | None, uuid.UUID | None], context: Context, *, twice: bool) -> TopicOutcome | None:
    """The error of one line of the request itself, before the controller is asked."""
    name, topic_id = row
    if not context.services.config.delete_topic_enable:
        return TopicOutcome(
            name or "", ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.", None, topic_id
        )
    if (name is None) == (topic_id is None):
        text = "You may not specify both topic name and topic id." if name else "Neither topic name nor id was given."
        return TopicOutcome(name or "", ErrorCode.INVALID_REQUEST, text, None, topic_id)
    if twice:
        return TopicOutcome(name or "", ErrorCode.INVALID_REQUEST, "Duplicate topic in the request.", None, topic_id)
    known = name if topic_id is None else context.services.metadata.topic_names.get(topic_id)
    if known is not None and not context.allows(*DELETE_TOPIC, known):
        return _denied(known if name is not None or context.allows(*DESCRIBE_TOPIC, known) else "", topic_id)
    if known in INTERNAL_TOPICS and not context.services.config.internal_topics_alter_enable:
        text = (
            f"{known} is an internal topic: what groups and producers committed would be lost. The brokers' setting "
            "internal.topics.alter.enable permits it."
        )
        return TopicOutcome(known, ErrorCode.POLICY_VIOLATION, text, None, topic_id)
    return None


def _deleted(
    row: tuple[str | None, uuid.UUID | None], outcome: TopicOutcome
) -> messages.DeleteTopicsResponse.DeletableTopicResult:
    asked_name, asked_id = row
    name = asked_name if asked_name is not None else (outcome.name or None)
    return messages.DeleteTopicsResponse.DeletableTopicResult(
        name=name, topic_id=asked_id if asked_id is not None else outcome.topic_id,
        error_code=int(outcome.error), error_message=outcome.message,
    )  # fmt: skip


def _create_partitions(request: CreatePartitionsRequest, response: messages.CreatePartitionsResponse) -> Changes:
    names = ((topic.name, f"{topic.count} partitions") for topic in request.topics)
    return named("Topic", AclOperation.ALTER, names, codes_of(response.results, "name"))


@Row(api_keys.CREATE_PARTITIONS, (ALTER_TOPIC,), Recorded(_create_partitions, ("topics",)))
@in_task
async def handle_create_partitions(request: CreatePartitionsRequest, context: Context) -> Done:
    """CreatePartitions v0-v3: a topic's new total; every topic of the request is echoed."""
    new = []
    charge = MutationCharge(context, free=request.validate_only, strict_from=PARTITIONS_STRICT)
    denied = await context.denied_meanwhile(*ALTER_TOPIC, (topic.name for topic in request.topics))
    for topic in request.topics:
        await context.yield_now()
        if topic.name in denied:
            continue
        present = _partitions_of(topic.name, context)
        if present and not charge.takes(topic.name, topic.count - present):
            continue
        replicas = None if topic.assignments is None else tuple(tuple(one.broker_ids) for one in topic.assignments)
        new.append(NewPartitions(topic.name, topic.count, replicas))
    outcomes = charge.settled(
        await context.services.controller.create_partitions(
            new, validate_only=request.validate_only, timeout_ms=request.timeout_ms, gone=context.gone
        )
    )
    response = messages.CreatePartitionsResponse
    rows = NamedRows(response, context.api_version)
    for outcome in itertools.chain(outcomes, map(_denied, sorted(denied))):
        await context.yield_now()
        context.services.metrics.failed("CreatePartitions", outcome.error)
        rows.add_alike(outcome.name, (outcome.error, outcome.message), partial(_extended, outcome, response, context))
    return Done(rows.body())


def _extended(
    outcome: TopicOutcome, response: type[messages.CreatePartitionsResponse], context: Context
) -> messages.CreatePartitionsResponse.CreatePartitionsTopicResult:
    return response.CreatePartitionsTopicResult(
        name=outcome.name, error_code=int(outcome.error), error_message=outcome.message
    )
