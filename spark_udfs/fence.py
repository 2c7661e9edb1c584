"""The fence: which batch of which query a sink has committed last, kept as a committed offset of a group of its own.

It lives on the broker side because it must commit in the same transaction as the rows. The group
``spark-sink/<sinkId>`` holds one offset, of partition 0 of a topic that never gets a record: batch id + 1, with the
query's id in its metadata.

On Apache Kafka, offsets of a group without members expire (``offsets.retention.minutes``, seven days after the last
commit). A query that rests longer than that finds no fence and stops with FenceLost rather than guess.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from spark_udfs.failures import FenceConflict, FenceError, FenceLost
from spark_udfs.settings import OptionError, check_sink_id, kafka_settings, librdkafka_settings

FENCE_TOPIC = "__spark_sink_fence"
CALL_TIMEOUT_S = 60.0
_RETRY_PAUSE_S = 0.1
_COORDINATOR_MOVES = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)

T = TypeVar("T")


class Decision(Enum):
    """What the fence says of a batch."""

    WRITE = "write"
    SKIP = "skip"


class Fence(NamedTuple):
    """The last batch that was committed. ``query_id`` of None: the fence was reset, the next query takes it over."""

    query_id: str | None
    batch_id: int

    def encode(self) -> tuple[int, str]:
        """As (offset, metadata)."""
        fields = {"v": 1, "queryId": self.query_id, "batchId": self.batch_id}
        return self.batch_id + 1, json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, offset: int, metadata: str | None) -> Fence | None:
        """None where no offset is committed. FenceError for metadata that is not ours."""
        if offset < 0:
            return None
        try:
            fields = json.loads(metadata or "")
            fence = cls(fields["queryId"], int(fields["batchId"]))
            known = fields["v"] == 1 and fence.batch_id + 1 == offset
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise FenceError(f"the fence's offset {offset} carries metadata {metadata!r}, no fence of version 1")
        return fence


def decide(fence: Fence | None, query_id: str, batch_id: int, *, adopt: bool = False, takeover: str = "") -> Decision:
    """Whether to write ``batch_id``. Raises FenceConflict or FenceLost where neither answer is safe."""
    if fence is None:
        if batch_id == 0 or adopt:
            return Decision.WRITE
        raise FenceLost(
            f"batch {batch_id} of query {query_id} finds no fence: it was reset or has expired, or sinkId or "
            "cluster changed. If the last batch is known to be complete, set fence.onMissing=adopt for one run"
        )
    if fence.query_id is None:
        return Decision.WRITE
    if fence.query_id != query_id:
        if takeover and takeover == fence.query_id:
            return Decision.WRITE
        raise FenceConflict(
            f"the fence belongs to query {fence.query_id} (batch {fence.batch_id}), this is query {query_id}: the "
            "checkpoint is new, or two queries share a sinkId. reset_fence() or the option fence.takeover.queryId "
            "hands it over"
        )
    if fence.batch_id == batch_id:
        return Decision.SKIP
    if fence.batch_id == batch_id - 1:
        return Decision.WRITE
    raise FenceConflict(
        f"query {query_id} brings batch {batch_id}, and the last one committed is {fence.batch_id}: the checkpoint was "
        "rolled back or belongs to another run"
    )


def adopts(given: Mapping[str, str]) -> bool:
    """Option ``fence.onMissing``: whether a missing fence means that every batch before is written."""
    value = given.get("fence.onmissing", "fail")
    if value not in ("fail", "adopt"):
        raise OptionError(f"option fence.onMissing: {value!r} is not fail or adopt")
    return value == "adopt"


def sink_name(sink_id: str) -> str:
    """The group and the transactional id of a sink. OptionError for an id that Kafka's names don't allow."""
    return f"spark-sink/{check_sink_id(sink_id)}"


def retrying(call: Callable[[float], T], timeout_s: float = CALL_TIMEOUT_S) -> T:
    """Repeats a librdkafka call while its error is one that repeating cures; the last error is raised."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call(max(0.1, deadline - time.monotonic()))
        except KafkaException as exc:
            error = exc.args[0]
            if not (isinstance(error, KafkaError) and _worth_repeating(error)) or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_PAUSE_S)


def _worth_repeating(error: KafkaError) -> bool:
    if error.fatal() or error.txn_requires_abort():
        return False
    return error.retriable() or error.code() in (
        *_COORDINATOR_MOVES,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._TRANSPORT,
    )


def create_fence_topic(settings: Mapping[str, str]) -> None:
    """Makes the topic the fence's offset names; brokers refuse transactional offsets of unknown topics."""
    admin = AdminClient({**librdkafka_settings(settings)})
    try:
        admin.create_topics([NewTopic(FENCE_TOPIC, num_partitions=1, replication_factor=-1)])[FENCE_TOPIC].result(
            CALL_TIMEOUT_S
        )
    except KafkaException as exc:
        # Without the right to create it, the topic may still be there.
        if (
            exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS
            and FENCE_TOPIC not in admin.list_topics(timeout=CALL_TIMEOUT_S).topics
        ):
            raise


def fence_consumer(settings: Mapping[str, str], name: str) -> Consumer:
    """A consumer that never joins: it names the group and reads its committed offset.

    With read_committed the group fetch asks for stable offsets only, and would wait for our own open transaction.
    """
    return Consumer(
        {
            **librdkafka_settings(settings),
            "group.id": name,
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
        }
    )


def committed_fence(consumer: Consumer) -> Fence | None:
    """The group's committed fence, whatever transactions are open."""
    wanted = [TopicPartition(FENCE_TOPIC, 0)]
    found = retrying(lambda timeout: consumer.committed(wanted, timeout=timeout))[0]
    if found.error is not None:
        raise KafkaException(found.error)
    return Fence.decode(found.offset, found.metadata)


def send_fence(producer: Producer, consumer: Consumer, fence: Fence) -> None:
    """Puts the fence into the producer's open transaction."""
    offset, metadata = fence.encode()
    position = [TopicPartition(FENCE_TOPIC, 0, offset, metadata)]
    group = consumer.consumer_group_metadata()
    retrying(lambda timeout: producer.send_offsets_to_transaction(position, group, timeout))


def begin_with_fence(producer: Producer, consumer: Consumer, fence: Fence, timeout_s: float = CALL_TIMEOUT_S) -> None:
    """Begins a transaction that holds the fence, and nothing else yet.

    While a group's coordinator loads or moves, librdkafka asks for an abort instead of trying again. Nothing has been
    written then, so a new transaction may be tried; any other error is raised.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        producer.begin_transaction()
        try:
            send_fence(producer, consumer, fence)
            return
        except KafkaException as exc:
            error = exc.args[0]
            passing = error.txn_requires_abort() and not error.fatal() and error.code() in _COORDINATOR_MOVES
            if not passing or time.monotonic() > deadline:
                raise
        retrying(producer.abort_transaction)
        time.sleep(_RETRY_PAUSE_S)


def settings_of(bootstrap_servers: str, kafka: Mapping[str, Any]) -> dict[str, str]:
    """``kafka.*`` settings from keyword arguments with ``_`` for ``.``."""
    options = {f"kafka.{name.replace('_', '.')}": str(value) for name, value in kafka.items()}
    return kafka_settings({**options, "kafka.bootstrap.servers": bootstrap_servers})


def read_fence(bootstrap_servers: str, sink_id: str, **kafka: Any) -> Fence | None:
    """The last batch a sink has committed, in whichever mode; None before the first.

    ``kafka``: further settings, ``_`` for ``.``.
    """
    from spark_udfs import modes

    settings = settings_of(bootstrap_servers, kafka)
    consumer = fence_consumer(settings, sink_name(sink_id))
    try:
        found = committed_fence(consumer)
    finally:
        consumer.close()
    if found is not None and found.query_id is not None:
        return found
    return modes.executor_fence(settings, sink_id) or found


def reset_fence(bootstrap_servers: str, sink_id: str, *, expected_query_id: str | None, **kafka: Any) -> None:
    """Frees a sink for a new checkpoint: the next query takes it over with its batch 0.

    In driver mode it may stand at any batch; in executor mode that takes ``fence.onMissing=adopt``. A driver that still
    runs is cut off. Raises FenceConflict, and changes nothing, when the fence is not of ``expected_query_id``.
    """
    from spark_udfs import modes

    settings = settings_of(bootstrap_servers, kafka)
    if modes.executor_fence(settings, sink_id) is not None:
        modes.reset_executor_fence(settings, sink_id, expected_query_id or "")
        return
    name = sink_name(sink_id)
    create_fence_topic(settings)
    consumer = fence_consumer(settings, name)
    producer = Producer({**librdkafka_settings(settings), "transactional.id": name})
    try:
        retrying(producer.init_transactions)
        begin_with_fence(producer, consumer, Fence(None, -1))
        found = committed_fence(consumer)
        if (found.query_id if found else None) != expected_query_id:
            retrying(producer.abort_transaction)
            raise FenceConflict(f"the fence is {found}, not of query {expected_query_id}: left as it was")
        retrying(producer.commit_transaction)
    finally:
        consumer.close()
