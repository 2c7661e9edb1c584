"""Produce by calling its handler on a stage: decoded requests, and what each partition answers."""

from __future__ import annotations

import uuid
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import Done
from fleetlog.brokers.api.produce import handle_produce
from fleetlog.wire import hot
from tests.support.stage import Stage, body_of

TRANSACTIONAL = {"attributes": 16, "producer_id": 9, "producer_epoch": 0}
"""Fields of a transactional batch."""


def request(
    *parts: tuple[Any, int, bytes | None], acks: int = -1, transactional_id: str | None = None, timeout_ms: int = 1000
) -> hot.ProduceRequest:
    return hot.ProduceRequest(transactional_id, acks, timeout_ms, [
        hot.ProducePart(
            topic if isinstance(topic, str) else None, topic if isinstance(topic, uuid.UUID) else None, index,
            None if data is None else memoryview(bytearray(data)),
        )
        for topic, index, data in parts
    ])  # fmt: skip


def answer(stage: Stage, version: int, produce: hot.ProduceRequest) -> list[Any]:
    """The partitions' answers, in order."""
    outcome = stage.start(handle_produce, 0, version, produce)
    assert isinstance(outcome, Done)
    message = m.decode_response(0, version, body_of(outcome.response))
    return [part for topic in message.responses for part in topic.partition_responses]
