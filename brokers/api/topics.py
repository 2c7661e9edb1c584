"""CreateTopics, DeleteTopics, CreatePartitions.

Topics are made and unmade at the controller only; other brokers answer NOT_CONTROLLER, and Metadata names the one to
ask. Results stand in the order of the request, each topic succeeds or fails by itself.
"""

from __future__ import annotations

import uuid
from typing import Any

from brokers.api.base import Context, Done
from brokers.api.config_values import ConfigEntry, topic_entries
from brokers.cluster.requests import NewPartitions, NewTopic, Outcome
from wire import messages
from wire.errors import ErrorCode

CREATE_TOPICS_KEY = 19
DELETE_TOPICS_KEY = 20
CREATE_PARTITIONS_KEY = 37

UNKNOWN = -1


async def handle_create_topics(request: Any, context: Context) -> Done:
    """CreateTopics v2-v7; from v5 the answer echoes what the topic will be like."""
    outcomes = await context.services.controller.create_topics(
        [_new_topic(topic) for topic in request.topics],
        validate_only=request.validate_only,
        timeout_ms=request.timeout_ms,
    )
    response = messages.response_class(CREATE_TOPICS_KEY)
    version = context.api_version
    return Done(response(version=version, topics=[_created(outcome, response, context) for outcome in outcomes]))


def _new_topic(topic: Any) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={part.partition_index: tuple(part.broker_ids) for part in topic.assignments},
        configs={config.name: config.value for config in topic.configs},
    )


def _created(outcome: Outcome, response: Any, context: Context) -> Any:
    version = context.api_version
    result = response.CreatableTopicResult
    row = {"name": outcome.name, "error_code": int(outcome.error), "error_message": outcome.message}
    if version >= 7:
        row["topic_id"] = outcome.topic_id
    if version >= 5:
        row["configs"] = None
        if outcome.topic is not None and outcome.ok:
            row["num_partitions"] = len(outcome.topic.partitions)
            row["replication_factor"] = len(outcome.topic.partitions[0].replicas)
            entries = topic_entries(outcome.topic.configs, context.services.view)
            row["configs"] = [_echo(entry, result.CreatableTopicConfigs, version) for entry in entries]
    return result(version=version, **row)


def _echo(entry: ConfigEntry, config: Any, version: int) -> Any:
    return config(
        version=version,
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=entry.sensitive,
    )


async def handle_delete_topics(request: Any, context: Context) -> Done:
    """DeleteTopics v1-v6; from v6 by name or by id."""
    response = messages.response_class(DELETE_TOPICS_KEY)
    version = context.api_version
    rows: list[tuple[str | None, uuid.UUID | None]]
    if version >= 6:
        rows = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        rows = [(name, None) for name in request.topic_names]
    answers = await _delete(rows, request.timeout_ms, context)
    return Done(
        response(
            version=version,
            responses=[_deleted(row, outcome, response, version) for row, outcome in zip(rows, answers, strict=True)],
        )
    )


async def _delete(rows: list[tuple[str | None, uuid.UUID | None]], timeout_ms: int, context: Context) -> list[Outcome]:
    refused = {
        index: refusal for index, row in enumerate(rows) if (refusal := _refusal(row, rows, context)) is not None
    }
    wanted = [name if name is not None else topic_id for name, topic_id in rows]
    asked = [index for index in range(len(rows)) if index not in refused]
    outcomes = await context.services.controller.delete_topics(
        [topic for index in asked if (topic := wanted[index]) is not None], timeout_ms=timeout_ms
    )
    return [refused[i] if i in refused else outcomes[asked.index(i)] for i in range(len(rows))]


def _refusal(
    row: tuple[str | None, uuid.UUID | None], rows: list[tuple[str | None, uuid.UUID | None]], context: Context
) -> Outcome | None:
    """What is wrong with one line of the request itself, before anybody is asked."""
    name, topic_id = row
    if not context.services.config.delete_topic_enable:
        return Outcome(name or "", ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.", None, topic_id)
    if (name is None) == (topic_id is None):
        text = "You may not specify both topic name and topic id." if name else "Neither topic name nor id was given."
        return Outcome(name or "", ErrorCode.INVALID_REQUEST, text, None, topic_id)
    if rows.count(row) > 1:
        return Outcome(name or "", ErrorCode.INVALID_REQUEST, "Duplicate topic in the request.", None, topic_id)
    return None


def _deleted(row: tuple[str | None, uuid.UUID | None], outcome: Outcome, response: Any, version: int) -> Any:
    asked_name, asked_id = row
    name = asked_name if asked_name is not None else (outcome.name or None)
    fields: dict[str, Any] = {"name": name, "error_code": int(outcome.error)}
    if version >= 5:
        fields["error_message"] = outcome.message
    if version >= 6:
        fields["topic_id"] = asked_id if asked_id is not None else outcome.topic_id
    return response.DeletableTopicResult(version=version, **fields)


async def handle_create_partitions(request: Any, context: Context) -> Done:
    """CreatePartitions v0-v3: a topic's new total; every topic of the request is echoed."""
    new = [
        NewPartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else tuple(tuple(one.broker_ids) for one in topic.assignments),
        )
        for topic in request.topics
    ]
    outcomes = await context.services.controller.create_partitions(
        new, validate_only=request.validate_only, timeout_ms=request.timeout_ms
    )
    response = messages.response_class(CREATE_PARTITIONS_KEY)
    version = context.api_version
    results = [
        response.CreatePartitionsTopicResult(
            version=version, name=outcome.name, error_code=int(outcome.error), error_message=outcome.message
        )
        for outcome in outcomes
    ]
    return Done(response(version=version, results=results))
