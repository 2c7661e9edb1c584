"""One consumer group member in a process of its own, so that a test can kill it.

``python -m tests.interop.member CLIENT BOOTSTRAP TOPIC GROUP [INSTANCE]`` prints JSON lines: {"assigned": [partitions]}
at every assignment, {"p": partition, "o": offset, "v": value} for each record (as committed, unless its client's text
says otherwise), and leaves the group properly on SIGTERM.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import signal
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

# A static member has to be back before its session ends, also when a busy machine starts processes slowly.
SESSION_TIMEOUT_MS = 30_000 if len(sys.argv) > 5 else 6_000
METADATA_AGE_MS = 2_000  # a member that joins before it knows the topic gets no partition until it asks again
STUCK_S = 30
CONSUMER = {"group.protocol": "consumer"}
CLASSIC = {
    "group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": 500,
}  # fmt: skip
stopping = False


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def _stop(*_: Any) -> None:
    global stopping
    stopping = True


def confluent(bootstrap: str, topic: str, group: str, instance: str | None) -> None:
    from confluent_kafka import Consumer

    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": 500,
    }  # fmt: skip
    if instance:
        settings["group.instance.id"] = instance
    consumer = Consumer(settings)
    consumer.subscribe([topic], on_assign=lambda _, parts: say(assigned=sorted(p.partition for p in parts)))
    while not stopping:
        message = consumer.poll(0.2)
        if message is None or message.error():
            continue
        consumer.commit(message, asynchronous=False)
        say(p=message.partition(), o=message.offset(), v=message.value().decode())
    consumer.close()


def consumer_protocol(
    bootstrap: str, topic: str, group: str, instance: str | None, own: Mapping[str, Any] = CONSUMER
) -> None:
    """librdkafka with ``group.protocol=consumer``: a topic that begins with ^ is a pattern.

    It says whatever changes in all that it has, each record before its commit, and which commits were acknowledged.
    """
    from confluent_kafka import KafkaException

    consumer = _consumer_of_the_protocol(bootstrap, topic, group, instance, own)
    known = None
    while not stopping:
        message = consumer.poll(0.2)
        assigned = sorted(p.partition for p in consumer.assignment())
        if assigned != known:
            known = assigned
            say(assigned=assigned)
        if message is None or message.error():
            continue
        say(p=message.partition(), o=message.offset(), v=message.value().decode())
        try:
            consumer.commit(message, asynchronous=False)
        except KafkaException:
            continue  # it was fenced meanwhile, or the coordinator is away: whoever has the partition reads it again
        say(committed=[message.topic(), message.partition(), message.offset()])
    consumer.close()


def _consumer_of_the_protocol(
    bootstrap: str, topic: str, group: str, instance: str | None, own: Mapping[str, Any] = CONSUMER
) -> Any:
    from confluent_kafka import Consumer

    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, **own, "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
    }  # fmt: skip
    if instance:
        settings["group.instance.id"] = instance
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    return consumer


def copier(bootstrap: str, topic: str, group: str, instance: str | None) -> None:
    """The same, which copies to TOPIC-copy, its offsets in the producer's transactions; says what it has committed."""
    from confluent_kafka import KafkaException, Producer, TopicPartition

    consumer = _consumer_of_the_protocol(bootstrap, topic, group, None)
    producer = Producer({
        "bootstrap.servers": bootstrap, "transactional.id": f"{group}-{instance}", "transaction.timeout.ms": 10_000,
    })  # fmt: skip
    producer.init_transactions(60)
    while not stopping:
        messages = [one for one in consumer.consume(10, 0.5) if not one.error()]
        if not messages:
            continue
        next_offsets = {(one.topic(), one.partition()): one.offset() + 1 for one in messages}
        # While coordinators die, librdkafka may wait without end in send_offsets_to_transaction, and ask nobody.
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        try:
            producer.begin_transaction()
            for one in messages:
                producer.produce(f"{topic}-copy", one.value(), partition=one.partition())
            offsets = [TopicPartition(*where, offset) for where, offset in next_offsets.items()]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
            producer.commit_transaction(60)
        except KafkaException as problem:
            if not problem.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(60)
            consumer.close()  # another begins at what is committed
            consumer = _consumer_of_the_protocol(bootstrap, topic, group, None)
            continue
        finally:
            faulthandler.cancel_dump_traceback_later()
        for one in messages:
            say(p=one.partition(), o=one.offset(), v=one.value().decode())
    consumer.close()


def kafka_python(bootstrap: str, topic: str, group: str, instance: str | None) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            say(assigned=sorted(p.partition for p in assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
        session_timeout_ms=SESSION_TIMEOUT_MS, heartbeat_interval_ms=500, group_instance_id=instance,
        metadata_max_age_ms=METADATA_AGE_MS,
    )  # fmt: skip
    consumer.partitions_for_topic(topic)  # it would join without knowing the topic, and be assigned nothing
    consumer.subscribe([topic], listener=Listener())
    while not stopping:
        # A short poll gives up on a join that is under way and begins it again: on a busy machine for ever.
        for batch in consumer.poll(timeout_ms=1000, max_records=1).values():
            consumer.commit()
            for message in batch:
                say(p=message.partition, o=message.offset, v=message.value.decode())
    consumer.close()


def aiokafka(bootstrap: str, topic: str, group: str, instance: str | None) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned: Any) -> None:
            say(assigned=sorted(p.partition for p in assigned))

        async def on_partitions_revoked(self, revoked: Any) -> None:
            pass

    async def work() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS, heartbeat_interval_ms=500, group_instance_id=instance,
        metadata_max_age_ms=METADATA_AGE_MS,
        )  # fmt: skip
        consumer.subscribe([topic], listener=Listener())
        await consumer.start()
        while not stopping:
            for batch in (await consumer.getmany(timeout_ms=200, max_records=1)).values():
                await consumer.commit()
                for message in batch:
                    say(p=message.partition, o=message.offset, v=message.value.decode())
        await consumer.stop()

    asyncio.run(work())


MEMBERS = {
    "confluent-kafka": confluent,
    "consumer-protocol": consumer_protocol,
    "classic-protocol": partial(consumer_protocol, own=CLASSIC),
    "copier": copier,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    MEMBERS[sys.argv[1]](sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5] if len(sys.argv) > 5 else None)
