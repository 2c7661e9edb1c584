"""One face for three stock clients, so that each behaviour is one test run with all of them.

Every adapter is thin: it only calls the client's own public API, in the way its documentation shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

DEADLINE_S = 60.0
TRANSACTION_MS = 120_000
READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True)
class Message:
    """A record as a test writes and reads it. ``headers`` in order; ``timestamp`` in ms, None for the client's now."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int | None = None
    partition: int | None = None
    offset: int = field(default=-1, compare=False)


class Fenced(Exception):
    """The client's error: another producer has taken over its transactional id."""


class TransactionalProducer:
    """begin, send, send_offsets, commit, abort: as every client has them."""

    def begin(self) -> None:
        raise NotImplementedError

    def send(self, topic: str, message: Message) -> None:
        raise NotImplementedError

    def send_offsets(self, offsets: dict[tuple[str, int], int], group: str) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Client:
    """What every stock client can do."""

    name = ""

    def produce(
        self, bootstrap: str, topic: str, messages: Sequence[Message], *, compression: str = "none",
        idempotent: bool = False, acks: str = "all",
    ) -> list[tuple[int, int]]:  # fmt: skip
        """Write, wait for all acknowledgements, return (partition, offset) in the order of ``messages``."""
        raise NotImplementedError

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0,
        isolation: str = READ_UNCOMMITTED, timeout_s: float = DEADLINE_S,
    ) -> list[Message]:  # fmt: skip
        """Read ``count`` records of one partition from ``offset``; fewer only when ``timeout_s`` passes."""
        raise NotImplementedError

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int | None:
        raise NotImplementedError

    def committed(self, bootstrap: str, group: str, topic: str, partition: int = 0) -> int | None:
        raise NotImplementedError

    def transactional(self, bootstrap: str, transactional_id: str) -> TransactionalProducer:
        """A producer after its init_transactions."""
        raise NotImplementedError

    def create_topic(self, bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
        raise NotImplementedError

    def delete_topic(self, bootstrap: str, topic: str) -> None:
        raise NotImplementedError

    def topics(self, bootstrap: str) -> set[str]:
        raise NotImplementedError

    def topic_config(self, bootstrap: str, topic: str) -> dict[str, str]:
        raise NotImplementedError

    def alter_topic(self, bootstrap: str, topic: str, incremental: bool, **config: str) -> None:
        """IncrementalAlterConfigs, or the older AlterConfigs, which replaces all settings."""
        raise NotImplementedError


# ---------------------------------------------------------------------------------------------- confluent-kafka


class ConfluentTransactional(TransactionalProducer):
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        import confluent_kafka

        self._bootstrap = bootstrap
        self._kafka = confluent_kafka
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_MS,
            }
        )
        self._guarded(self._producer.init_transactions, DEADLINE_S)

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except self._kafka.KafkaException as error:
            if error.args[0].code() in (self._kafka.KafkaError._FENCED, self._kafka.KafkaError.PRODUCER_FENCED):
                raise Fenced(str(error)) from error
            raise

    def begin(self) -> None:
        self._guarded(self._producer.begin_transaction)

    def send(self, topic: str, message: Message) -> None:
        self._producer.produce(topic, message.value, message.key, partition=message.partition or 0)

    def send_offsets(self, offsets: dict[tuple[str, int], int], group: str) -> None:
        consumer = self._kafka.Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        try:
            positions = [self._kafka.TopicPartition(t, p, o) for (t, p), o in offsets.items()]
            self._guarded(
                self._producer.send_offsets_to_transaction, positions, consumer.consumer_group_metadata(), DEADLINE_S
            )
        finally:
            consumer.close()

    def commit(self) -> None:
        self._guarded(self._producer.commit_transaction, DEADLINE_S)

    def abort(self) -> None:
        self._guarded(self._producer.abort_transaction, DEADLINE_S)

    def close(self) -> None:
        with contextlib.suppress(self._kafka.KafkaException):  # a fenced producer raises the same error again
            self._producer.flush(1)


class Confluent(Client):
    name = "confluent-kafka"

    def produce(self, bootstrap, topic, messages, *, compression="none", idempotent=False, acks="all"):  # type: ignore[no-untyped-def]
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": compression, "enable.idempotence": idempotent,
             "acks": acks, "linger.ms": 20, "message.timeout.ms": int(DEADLINE_S * 1000)}
        )  # fmt: skip
        placed: list[tuple[int, int] | None] = [None] * len(messages)
        errors: list[Any] = []

        def report(number: int) -> Callable[[Any, Any], None]:
            def done(error: Any, message: Any) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    placed[number] = (message.partition(), message.offset())

            return done

        for number, m in enumerate(messages):
            options: dict[str, Any] = {"timestamp": m.timestamp} if m.timestamp is not None else {}
            if m.partition is not None:
                options["partition"] = m.partition
            producer.produce(topic, m.value, m.key, headers=list(m.headers), on_delivery=report(number), **options)
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0, "not all records were answered"
        assert not errors, errors
        return [place for place in placed if place is not None]

    def consume(  # type: ignore[no-untyped-def]
        self, bootstrap, topic, count, *, partition=0, offset=0, isolation=READ_UNCOMMITTED, timeout_s=DEADLINE_S
    ):
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False,
             "isolation.level": isolation, "auto.offset.reset": "error"}
        )  # fmt: skip
        found: list[Message] = []
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            deadline = time.monotonic() + timeout_s
            while len(found) < count and time.monotonic() < deadline:
                for m in consumer.consume(count - len(found), 0.2):
                    assert m.error() is None, m.error()
                    headers = tuple((k, v) for k, v in m.headers() or ())
                    found.append(Message(m.value(), m.key(), headers, m.timestamp()[1], m.partition(), m.offset()))
        finally:
            consumer.close()
        return found

    def offset_for_time(self, bootstrap, topic, timestamp):  # type: ignore[no-untyped-def]
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
        try:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], DEADLINE_S)
        finally:
            consumer.close()
        return found.offset if found.offset >= 0 else None

    def committed(self, bootstrap, group, topic, partition=0):  # type: ignore[no-untyped-def]
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        try:
            (found,) = consumer.committed([TopicPartition(topic, partition)], DEADLINE_S)
        finally:
            consumer.close()
        return found.offset if found.offset >= 0 else None

    def transactional(self, bootstrap, transactional_id):  # type: ignore[no-untyped-def]
        return ConfluentTransactional(bootstrap, transactional_id)

    def _admin(self, bootstrap: str) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": bootstrap})

    def create_topic(self, bootstrap, topic, partitions=1, **config):  # type: ignore[no-untyped-def]
        from confluent_kafka.admin import NewTopic

        settings = {name.replace("_", "."): value for name, value in config.items()}
        admin = self._admin(bootstrap)  # results die with the client
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(DEADLINE_S)

    def delete_topic(self, bootstrap, topic):  # type: ignore[no-untyped-def]
        admin = self._admin(bootstrap)  # results die with the client
        admin.delete_topics([topic])[topic].result(DEADLINE_S)

    def topics(self, bootstrap):  # type: ignore[no-untyped-def]
        return set(self._admin(bootstrap).list_topics(timeout=DEADLINE_S).topics)

    def topic_config(self, bootstrap, topic):  # type: ignore[no-untyped-def]
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, topic)
        admin = self._admin(bootstrap)
        entries = admin.describe_configs([resource])[resource].result(DEADLINE_S)
        return {name: entry.value for name, entry in entries.items()}

    def alter_topic(self, bootstrap, topic, incremental, **config):  # type: ignore[no-untyped-def]
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        admin = self._admin(bootstrap)
        settings = {name.replace("_", "."): value for name, value in config.items()}
        if incremental:
            set_ = AlterConfigOpType.SET
            entries = [ConfigEntry(name, value, incremental_operation=set_) for name, value in settings.items()]
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
            admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
        else:
            resource = ConfigResource(ResourceType.TOPIC, topic, set_config=settings)
            admin.alter_configs([resource])[resource].result(DEADLINE_S)


# ------------------------------------------------------------------------------------------------- kafka-python


# A broker that was just killed is in Metadata until its session ends. By default kafka-python connects again 50 ms
# after a refusal and refreshes its metadata 100 ms after it: both attempts may choose the killed broker, and a call
# fails although the others of bootstrap_servers are up. With a longer pause the refresh asks one of them.
KAFKA_PYTHON = {"reconnect_backoff_ms": 500}


class KafkaPythonTransactional(TransactionalProducer):
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap.split(","), transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_MS, **KAFKA_PYTHON,
        )  # fmt: skip
        with self._fencing():
            self._producer.init_transactions()

    @contextlib.contextmanager
    def _fencing(self) -> Iterator[None]:
        from kafka import errors

        fencing = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
        try:
            yield
        except fencing as error:
            raise Fenced(str(error)) from error
        except errors.KafkaError as error:
            if isinstance(error.__cause__, fencing) or "Fenced" in str(error) or "InvalidProducerEpoch" in str(error):
                raise Fenced(str(error)) from error
            raise

    def begin(self) -> None:
        with self._fencing():
            self._producer.begin_transaction()

    def send(self, topic: str, message: Message) -> None:
        with self._fencing():
            self._producer.send(topic, message.value, message.key, partition=message.partition or 0)

    def send_offsets(self, offsets: dict[tuple[str, int], int], group: str) -> None:
        from kafka.structs import OffsetAndMetadata, TopicPartition

        with self._fencing():
            self._producer.send_offsets_to_transaction(
                {TopicPartition(t, p): OffsetAndMetadata(o, "", -1) for (t, p), o in offsets.items()}, group
            )

    def commit(self) -> None:
        with self._fencing():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with self._fencing():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(5)


class KafkaPython(Client):
    name = "kafka-python"

    def produce(self, bootstrap, topic, messages, *, compression="none", idempotent=False, acks="all"):  # type: ignore[no-untyped-def]
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=bootstrap.split(","), acks=acks if acks == "all" else int(acks), linger_ms=20,
            compression_type=None if compression == "none" else compression, enable_idempotence=idempotent,
            **KAFKA_PYTHON,
        )  # fmt: skip
        try:
            futures = [
                producer.send(
                    topic, m.value, m.key, headers=list(m.headers), partition=m.partition, timestamp_ms=m.timestamp
                )
                for m in messages
            ]
            producer.flush(DEADLINE_S)
            results = [future.get(DEADLINE_S) for future in futures]
            return [(result.partition, result.offset) for result in results]
        finally:
            producer.close(5)

    def consume(  # type: ignore[no-untyped-def]
        self, bootstrap, topic, count, *, partition=0, offset=0, isolation=READ_UNCOMMITTED, timeout_s=DEADLINE_S
    ):
        from kafka import KafkaConsumer
        from kafka.structs import TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap.split(","), isolation_level=isolation, enable_auto_commit=False,
            auto_offset_reset="none", **KAFKA_PYTHON,
        )  # fmt: skip
        found: list[Message] = []
        try:
            position = TopicPartition(topic, partition)
            consumer.assign([position])
            consumer.seek(position, offset)
            deadline = time.monotonic() + timeout_s
            while len(found) < count and time.monotonic() < deadline:
                for batch in consumer.poll(timeout_ms=200, max_records=count - len(found)).values():
                    found.extend(
                        Message(m.value, m.key, tuple((k, bytes(v)) for k, v in m.headers), m.timestamp, m.partition,
                                m.offset)
                        for m in batch
                    )  # fmt: skip
        finally:
            consumer.close()
        return found

    def offset_for_time(self, bootstrap, topic, timestamp):  # type: ignore[no-untyped-def]
        from kafka import KafkaConsumer
        from kafka.structs import TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), **KAFKA_PYTHON)
        try:
            deadline = time.monotonic() + DEADLINE_S
            # this client treats a topic that a broker does not know yet as one without such an offset
            while not consumer.partitions_for_topic(topic) and time.monotonic() < deadline:
                time.sleep(0.1)
            found = consumer.offsets_for_times({TopicPartition(topic, 0): timestamp})[TopicPartition(topic, 0)]
        finally:
            consumer.close()
        return found.offset if found is not None and found.offset >= 0 else None

    def committed(self, bootstrap, group, topic, partition=0):  # type: ignore[no-untyped-def]
        from kafka import KafkaConsumer
        from kafka.structs import TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), group_id=group, **KAFKA_PYTHON)
        try:
            return consumer.committed(TopicPartition(topic, partition))
        finally:
            consumer.close()

    def transactional(self, bootstrap, transactional_id):  # type: ignore[no-untyped-def]
        return KafkaPythonTransactional(bootstrap, transactional_id)

    @contextlib.contextmanager
    def _admin(self, bootstrap: str) -> Iterator[Any]:
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
        try:
            yield admin
        finally:
            admin.close()

    def create_topic(self, bootstrap, topic, partitions=1, **config):  # type: ignore[no-untyped-def]
        from kafka.admin import NewTopic

        settings = {name.replace("_", "."): value for name, value in config.items()}
        with self._admin(bootstrap) as admin:
            admin.create_topics(
                [NewTopic(topic, num_partitions=partitions, replication_factor=1, topic_configs=settings)]
            )

    def delete_topic(self, bootstrap, topic):  # type: ignore[no-untyped-def]
        with self._admin(bootstrap) as admin:
            admin.delete_topics([topic])

    def topics(self, bootstrap):  # type: ignore[no-untyped-def]
        with self._admin(bootstrap) as admin:
            return set(admin.list_topics())

    def topic_config(self, bootstrap, topic):  # type: ignore[no-untyped-def]
        from kafka.admin import ConfigResource, ConfigResourceType

        with self._admin(bootstrap) as admin:
            answer = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        return _flatten_configs(answer, topic)

    def alter_topic(self, bootstrap, topic, incremental, **config):  # type: ignore[no-untyped-def]
        from kafka.admin import ConfigResource, ConfigResourceType

        settings = {name.replace("_", "."): value for name, value in config.items()}
        with self._admin(bootstrap) as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)], incremental=incremental)


def _flatten_configs(answer: Any, topic: str) -> dict[str, str]:
    """kafka-python's answer to describe_configs: {resource type: {name: {config: {...}}}}."""
    while isinstance(answer, dict) and topic not in answer:
        answer = next(iter(answer.values()))
    entries = answer[topic]
    return {name: (entry["value"] if isinstance(entry, dict) else entry) for name, entry in entries.items()}


# ------------------------------------------------------------------------------------------------------ aiokafka


class AioTransactional(TransactionalProducer):
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        from aiokafka import AIOKafkaProducer

        self._loop = asyncio.new_event_loop()

        async def make() -> Any:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=TRANSACTION_MS
            )
            await producer.start()
            return producer

        self._producer = self._run(make())
        self._pending: list[Any] = []

    def _run(self, work: Any) -> Any:
        from aiokafka import errors

        try:
            return self._loop.run_until_complete(asyncio.wait_for(work, DEADLINE_S))
        except (errors.ProducerFenced, errors.InvalidProducerEpoch) as error:
            raise Fenced(str(error)) from error

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, message: Message) -> None:
        future = self._run(self._producer.send(topic, message.value, message.key, partition=message.partition or 0))
        self._pending.append(future)

    def _settle(self) -> None:
        pending, self._pending = self._pending, []
        for future in pending:
            self._run(future)

    def send_offsets(self, offsets: dict[tuple[str, int], int], group: str) -> None:
        from aiokafka import TopicPartition

        positions = {TopicPartition(t, p): o for (t, p), o in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(positions, group))

    def commit(self) -> None:
        self._settle()
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())
        self._pending.clear()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(asyncio.wait_for(self._producer.stop(), 10))
        self._loop.close()


class Aio(Client):
    name = "aiokafka"

    def produce(self, bootstrap, topic, messages, *, compression="none", idempotent=False, acks="all"):  # type: ignore[no-untyped-def]
        from aiokafka import AIOKafkaProducer

        async def work() -> list[tuple[int, int]]:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, acks=acks if acks == "all" else int(acks), linger_ms=20,
                compression_type=None if compression == "none" else compression, enable_idempotence=idempotent,
                request_timeout_ms=int(DEADLINE_S * 1000),
            )  # fmt: skip
            async with producer:
                futures = [
                    await producer.send(
                        topic, m.value, m.key, headers=list(m.headers), partition=m.partition, timestamp_ms=m.timestamp
                    )
                    for m in messages
                ]
                results = [await asyncio.wait_for(future, DEADLINE_S) for future in futures]
                return [(result.partition, result.offset) for result in results]

        return asyncio.run(work())

    def consume(  # type: ignore[no-untyped-def]
        self, bootstrap, topic, count, *, partition=0, offset=0, isolation=READ_UNCOMMITTED, timeout_s=DEADLINE_S
    ):
        from aiokafka import AIOKafkaConsumer, TopicPartition

        async def work() -> list[Message]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap, isolation_level=isolation, enable_auto_commit=False,
                auto_offset_reset="none",
            )  # fmt: skip
            found: list[Message] = []
            async with consumer:
                position = TopicPartition(topic, partition)
                consumer.assign([position])
                consumer.seek(position, offset)
                deadline = time.monotonic() + timeout_s
                while len(found) < count and time.monotonic() < deadline:
                    batches = await consumer.getmany(timeout_ms=200, max_records=count - len(found))
                    for batch in batches.values():
                        found.extend(
                            Message(m.value, m.key, tuple(m.headers), m.timestamp, m.partition, m.offset) for m in batch
                        )
            return found

        return asyncio.run(work())

    def offset_for_time(self, bootstrap, topic, timestamp):  # type: ignore[no-untyped-def]
        from aiokafka import AIOKafkaConsumer, TopicPartition

        async def work() -> int | None:
            async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
                position = TopicPartition(topic, 0)
                consumer.assign([position])
                found = (await consumer.offsets_for_times({position: timestamp}))[position]
                return found.offset if found is not None and found.offset >= 0 else None

        return asyncio.run(work())

    def committed(self, bootstrap, group, topic, partition=0):  # type: ignore[no-untyped-def]
        from aiokafka import AIOKafkaConsumer, TopicPartition

        async def work() -> int | None:
            async with AIOKafkaConsumer(
                bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
            ) as consumer:
                position = TopicPartition(topic, partition)
                consumer.assign([position])
                return await consumer.committed(position)

        return asyncio.run(work())

    def transactional(self, bootstrap, transactional_id):  # type: ignore[no-untyped-def]
        return AioTransactional(bootstrap, transactional_id)

    def _admin_do(self, bootstrap: str, what: Callable[[Any], Any]) -> Any:
        from aiokafka.admin import AIOKafkaAdminClient

        async def work() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            try:
                return await what(admin)
            finally:
                await admin.close()

        return asyncio.run(work())

    def create_topic(self, bootstrap, topic, partitions=1, **config):  # type: ignore[no-untyped-def]
        from aiokafka.admin import NewTopic

        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, topic_configs=settings)
        answer = self._admin_do(bootstrap, lambda admin: admin.create_topics([new]))
        assert all(row[1] == 0 for row in answer.topic_errors), answer

    def delete_topic(self, bootstrap, topic):  # type: ignore[no-untyped-def]
        answer = self._admin_do(bootstrap, lambda admin: admin.delete_topics([topic]))
        assert all(row[1] == 0 for row in answer.topic_error_codes), answer

    def topics(self, bootstrap):  # type: ignore[no-untyped-def]
        return set(self._admin_do(bootstrap, lambda admin: admin.list_topics()))

    def topic_config(self, bootstrap, topic):  # type: ignore[no-untyped-def]
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        (answer,) = self._admin_do(
            bootstrap, lambda admin: admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        )
        (resource,) = answer.resources
        return {row[0]: row[1] for row in resource[4]}

    def alter_topic(self, bootstrap, topic, incremental, **config):  # type: ignore[no-untyped-def]
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        settings = {name.replace("_", "."): value for name, value in config.items()}  # it has the older call only
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, settings)
        answers = self._admin_do(bootstrap, lambda admin: admin.alter_configs([resource]))
        assert all(row[0] == 0 for answer in answers for row in answer.resources), answers


CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), Aio())
