"""Reads the fence of driver mode by the library's own client: executor mode looks for one, and needs no librdkafka."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import kafka.errors

from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.failures import ClientError
from fleetlog.spark.client.settings import kafka_python_settings
from fleetlog.spark.sink.fence import FENCE_TOPIC, Fence, transactional_name
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.messages import request_class

FIND_COORDINATOR, GROUP, OFFSET_FETCH = 10, 0, 9
TIMEOUT_S = 60.0
_PAUSE_S = 0.1
_MOVING = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


def read_driver_fence(settings: Mapping[str, str], sink_id: str) -> Fence | None:
    """The fence of driver mode, without a query after a reset; None before the first batch.

    Transactions that are open are not waited for. ``settings`` under Kafka's names; brokers of Kafka 3.0 or later.
    Raises ClientError after a minute, and at once for an error that a retry does not cure.
    """
    name = transactional_name(sink_id)
    client = Client(kafka_python_settings(settings))
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while True:
            code, fence = _asked(client, name)
            if code is ErrorCode.NONE:
                return fence
            if code not in _MOVING or time.monotonic() > deadline:
                raise ClientError(f"sink {sink_id}: the fence of driver mode could not be read: {code.name}", code)
            time.sleep(_PAUSE_S)
    finally:
        client.close()


def _asked(client: Client, group: str) -> tuple[ErrorCode, Fence | None]:
    response = client.request(
        request_class(FIND_COORDINATOR)(key_type=GROUP, key=group, coordinator_keys=[group], min_version=4)
    )
    (coordinator,) = response.coordinators
    code = ErrorCode(coordinator.error_code)
    if code is not ErrorCode.NONE:
        return code, None
    try:
        answer = client.wait(client.send(_offset_fetch(group), int(coordinator.node_id)))
    except (kafka.errors.KafkaConnectionError, kafka.errors.NodeNotReadyError):
        return ErrorCode.NETWORK_EXCEPTION, None
    (one,) = answer.groups
    code = ErrorCode(one.error_code)
    for topic in one.topics if code is ErrorCode.NONE else ():
        for part in topic.partitions:
            code = ErrorCode(part.error_code)
            if code is not ErrorCode.NONE:
                return code, None
            # librdkafka (seen in 2.16) commits metadata together with the end of its C string, and reads up to there.
            return code, Fence.decode(part.committed_offset, (part.metadata or "").removesuffix("\0"))
    return code, None


def _offset_fetch(group: str) -> Any:
    kind: Any = request_class(OFFSET_FETCH)
    asked = kind.OffsetFetchRequestGroup
    topic = asked.OffsetFetchRequestTopics(name=FENCE_TOPIC, partition_indexes=[0])
    return kind(
        groups=[asked(group_id=group, member_id=None, member_epoch=-1, topics=[topic])],
        require_stable=False, min_version=8, max_version=9,
    )  # fmt: skip
