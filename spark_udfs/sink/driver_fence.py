"""The fence in driver mode: a committed offset of the group ``spark-sink/<sinkId>``.

The brokers keep it because it must commit in the same transaction as the rows. The offset is of partition 0 of a topic
without records: batch id + 1, with the query's id in its metadata.

On Apache Kafka, offsets of a group without members expire (``offsets.retention.minutes``, seven days after the last
commit). A query that rests longer than that finds no fence and stops with FenceLost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from fleetlog.spark.client.failures import FenceError
from fleetlog.spark.client.settings import connection_settings, librdkafka_settings
from fleetlog.spark.sink.fence import FENCE_TOPIC, Fence, target_in, transactional_name

CALL_TIMEOUT_S = 60.0
LATE_S = 5.0
"""How far beyond its timeout a call may go on."""
_RETRY_PAUSE_S = 0.1
_COORDINATOR_MOVES = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)

T = TypeVar("T")


def retrying(call: Callable[[float], T], timeout_s: float = CALL_TIMEOUT_S) -> T:
    """Repeat a librdkafka call while its error is retryable; the last error is raised."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call(max(0.1, deadline - time.monotonic()))
        except KafkaException as exc:
            error = exc.args[0]
            if not (isinstance(error, KafkaError) and _is_retryable(error)) or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_PAUSE_S)


def within(call: Callable[[], T], timeout_s: float) -> T:
    """What a call returns or raises; FenceError where it goes on after that time, in a thread that is left to it.

    ``send_offsets_to_transaction`` does: librdkafka can wait in it without end after the group's coordinator was away
    for a moment, whatever timeout it is given (librdkafka issue 5511).
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as problem:
            outcome.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    try:
        return outcome.result(timeout_s)
    except TimeoutError:
        raise FenceError(
            f"librdkafka has not sent the fence in {timeout_s:.0f} s and waits without end (its issue 5511, after the "
            "group's coordinator was away): nothing of this batch is committed, start the query again"
        ) from None


def _is_retryable(error: KafkaError) -> bool:
    if error.fatal() or error.txn_requires_abort():
        return False
    return error.retriable() or error.code() in (
        *_COORDINATOR_MOVES,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._TRANSPORT,
    )


def create_fence_topic(settings: Mapping[str, str]) -> None:
    """Create the topic of the fence's offset; brokers refuse transactional offsets of unknown topics."""
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
    """A consumer of group ``name`` that never joins it: it reads the committed offset.

    With read_committed an offset fetch asks for stable offsets only, and would wait for this sink's own transaction.
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
    return committed_write(consumer)[0]


def committed_write(consumer: Consumer) -> tuple[Fence | None, str]:
    """The committed fence, and the target of the write that set it; empty where it is not known."""
    wanted = [TopicPartition(FENCE_TOPIC, 0)]
    committed = retrying(lambda timeout: consumer.committed(wanted, timeout=timeout))[0]
    if committed.error is not None:
        raise KafkaException(committed.error)
    return Fence.decode(committed.offset, committed.metadata), target_in(committed.metadata)


def send_fence(producer: Producer, consumer: Consumer, fence: Fence, target: str) -> None:
    """Add the fence to the producer's open transaction. Raises FenceError, KafkaException."""
    offset, metadata = fence.encode(target)
    position = [TopicPartition(FENCE_TOPIC, 0, offset, metadata)]
    group = consumer.consumer_group_metadata()
    send = producer.send_offsets_to_transaction
    retrying(lambda timeout: within(partial(send, position, group, timeout), timeout + LATE_S))


def begin_with_fence(
    producer: Producer, consumer: Consumer, fence: Fence, target: str = "", timeout_s: float = CALL_TIMEOUT_S
) -> None:
    """Begin a transaction that holds the fence with its write's target, and nothing else yet.

    While a group's coordinator loads or moves, librdkafka requires an abort instead of a retry. The transaction is
    empty then, so a new one may begin; any other error is raised.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        producer.begin_transaction()
        try:
            send_fence(producer, consumer, fence, target)
            return
        except KafkaException as exc:
            error = exc.args[0]
            retryable = error.txn_requires_abort() and not error.fatal() and error.code() in _COORDINATOR_MOVES
            if not retryable or time.monotonic() > deadline:
                raise
        retrying(producer.abort_transaction)
        time.sleep(_RETRY_PAUSE_S)


@contextmanager
def fencing_producer(settings: Mapping[str, str], sink_id: str) -> Iterator[tuple[Producer, Consumer]]:
    """A sink's transactional producer, which fences every older driver, and the consumer that reads its fence."""
    name = transactional_name(sink_id)
    create_fence_topic(settings)
    consumer = fence_consumer(connection_settings(settings), name)
    try:
        producer = Producer({**librdkafka_settings(settings), "transactional.id": name})
        retrying(producer.init_transactions)
        yield producer, consumer
    finally:
        consumer.close()
