"""Transactions by librdkafka: polls and sends mixed, with delays and aborts; read-process-write in a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.chaos.login import confluent as confluent_login
from tests.chaos.login import python as python_login
from tests.chaos.outcomes import text_of
from tests.chaos.recorder import Recorder, RoleControl, pack
from tests.chaos.workload_produce import CONFLUENT
from tests.chaos.workload_read import CONSUMER, records_of

TRANSACTION_TIMEOUT_MS = 10_000
CALL_S = 15.0
ABORT = 1 / 10
"""How often a transaction is aborted on purpose, at each step."""
DELAY_MAX_S = 0.5
INITIALISE_S = 60.0


class Fatal(Exception):
    """This producer is done for; the process ends and another one takes its transactional id."""


class Transactions:
    """One transactional producer and the record of what it does."""

    def __init__(self, recorder: Recorder, control: RoleControl, bootstrap: str, transactional_id: str) -> None:
        from confluent_kafka import KafkaException, Producer

        self._error = KafkaException
        self._recorder = recorder
        self._control = control
        settings = {
            **confluent_login(bootstrap), "transactional.id": transactional_id, "linger.ms": 2, **CONFLUENT,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }  # fmt: skip
        self.producer = Producer(settings)
        self.producer.init_transactions(INITIALISE_S)
        self.name: dict[str, Any] = {}

    def begin(self) -> None:
        """A transaction begins."""
        self.name = {}
        self.producer.begin_transaction()
        self.name = self._recorder.begin("txn")

    def send(self, topic: str, partition: int, value: str, source: tuple[str, int] | None = None) -> None:
        """Send a record in it."""
        key, name = f"{topic}/{partition}", self.name
        self._recorder.then(name, "send", k=key, v=value, **({"s": list(source)} if source else {}))

        def sent(error: Any, message: Any) -> None:
            if error is None:
                self._recorder.then(name, "sent", k=key, v=value, o=message.offset())

        self.producer.produce(topic, pack(value), partition=partition, on_delivery=sent)
        self.producer.poll(0)

    def offsets(self, group: str, offsets: dict[tuple[str, int], int], metadata: Any) -> None:
        """Send a group's offsets in it."""
        from confluent_kafka import TopicPartition

        found = {f"{topic}/{partition}": offset for (topic, partition), offset in offsets.items()}
        self._recorder.then(self.name, "offsets", g=group, o=found)
        positions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        self._insist(lambda: self.producer.send_offsets_to_transaction(positions, metadata, CALL_S))

    def _insist(self, call: Callable[[], object]) -> None:
        """Try again while the client says that it is worth it, for a while."""
        for _ in range(4):
            try:
                call()
                return
            except self._error as error:
                if not error.args[0].retriable():
                    raise
                last = error
                self._recorder.write(e="retry", t=self._recorder.now(), error=text_of(error))
        raise last

    def commit(self) -> bool:
        """Commit; True when it is known to be committed. Raises Fatal."""
        self._insist_flush()
        self._recorder.then(self.name, "committing")
        try:
            self._insist(lambda: self.producer.commit_transaction(CALL_S))
        except self._error as error:
            kind = error.args[0]
            if kind.txn_requires_abort() and self._abort():
                self._recorder.then(self.name, "fail", doubtful=True, error=text_of(error))
                return False
            self._recorder.then(self.name, "info", error=text_of(error))
            raise Fatal(str(error)) from error
        self._recorder.then(self.name, "ok")
        return True

    def _insist_flush(self) -> None:
        """Delivery reports first: commit_transaction would wait for them, too, but then offsets are known earlier."""
        self.producer.flush(CALL_S)

    def abort(self, why: object) -> None:
        """Abort, on purpose or because something failed. Raises Fatal when that doesn't work either."""
        if not self.name:
            raise Fatal(str(why))
        if not self._abort():
            self._recorder.then(self.name, "info", error=text_of(why))
            raise Fatal(str(why))
        self._recorder.then(self.name, "fail", error=text_of(why))

    def _abort(self) -> bool:
        try:
            self._insist(lambda: self.producer.abort_transaction(CALL_S))
        except self._error:
            return False
        return True


def mixed(
    recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, partitions: int, rate: float, slot: str
) -> None:
    """Transactions of one to four steps, each a poll or a send to the same topic that the others write to."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    rng = control.rng
    work = Transactions(recorder, control, bootstrap, slot)
    consumer = Consumer(
        {**confluent_login(bootstrap), "group.id": "unused", "isolation.level": "read_committed", **CONSUMER}
    )
    positions = {}
    for partition in range(partitions):
        positions[f"{topic}/{partition}"] = consumer.get_watermark_offsets(TopicPartition(topic, partition), CALL_S)[1]
    consumer.assign(
        [TopicPartition(topic, partition, positions[f"{topic}/{partition}"]) for partition in range(partitions)]
    )
    recorder.single("position", recorder.now(), r=positions)
    while control.on:
        before = dict(positions)
        try:
            work.begin()
            patient = rng.random() < 0.5
            for step in range(rng.randint(1, 4)):
                if patient:
                    control.pause(rng.random() * DELAY_MAX_S)
                if rng.random() < 0.4:
                    start = recorder.now()
                    found = records_of(recorder, consumer.consume(10, 0.1))
                    if found:
                        recorder.then(work.name, "poll", t0=start, r=found)
                        positions |= {key: records[-1][0] + 1 for key, records in found.items()}
                else:
                    partition = rng.randrange(partitions)
                    work.send(topic, partition, f"{recorder.proc}.{work.name['n']}.{step}")
                if rng.random() < ABORT:
                    raise _OnPurpose
            done = work.commit()
        except (_OnPurpose, KafkaException) as why:
            work.abort(why)
            done = False
        if not done:
            positions = _rewind(recorder, consumer, topic, positions, before)
        control.pause(rng.random() * 2 / rate)
    consumer.close()


class _OnPurpose(Exception):
    pass


def _rewind(
    recorder: Recorder, consumer: Any, topic: str, positions: dict[str, int], before: dict[str, int]
) -> dict[str, int]:
    """What a failed transaction polled is polled again."""
    from confluent_kafka import TopicPartition

    for key, offset in before.items():
        if positions[key] != offset:
            consumer.seek(TopicPartition(topic, int(key.rsplit("/", 1)[1]), offset))
    recorder.single("position", recorder.now(), r=before)
    return before


def kafka_python(
    recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, partitions: int, rate: float, slot: str
) -> None:
    """Transactions of one to four sends by kafka-python; any error of a commit is the end of this producer."""
    from kafka import KafkaProducer

    rng = control.rng
    producer = KafkaProducer(
        **python_login(bootstrap), transactional_id=slot, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        acks="all", linger_ms=2, request_timeout_ms=5_000, delivery_timeout_ms=TRANSACTION_TIMEOUT_MS,
        max_block_ms=int(INITIALISE_S * 1000), retry_backoff_ms=100, metadata_max_age_ms=5_000,
    )  # fmt: skip
    producer.init_transactions()
    while control.on:
        name: dict[str, Any] = {}
        try:
            producer.begin_transaction()
            name = recorder.begin("txn")
            futures = []
            for step in range(rng.randint(1, 4)):
                partition, value = rng.randrange(partitions), f"{recorder.proc}.{name['n']}.{step}"
                recorder.then(name, "send", k=f"{topic}/{partition}", v=value)
                futures.append((partition, value, producer.send(topic, pack(value), partition=partition)))
                if rng.random() < ABORT:
                    raise _OnPurpose
            for partition, value, future in futures:
                offset = future.get(TRANSACTION_TIMEOUT_MS / 1000 + 5).offset
                recorder.then(name, "sent", k=f"{topic}/{partition}", v=value, o=offset)
            recorder.then(name, "committing")
            producer.commit_transaction()
            recorder.then(name, "ok")
        except _OnPurpose as why:
            producer.abort_transaction()
            recorder.then(name, "fail", error=text_of(why))
        except Exception as why:
            if name:
                recorder.then(name, "info", error=text_of(why))
            raise Fatal(str(why)) from why
        control.pause(rng.random() * 2 / rate)
    producer.close(5)


Outputs = Callable[[str, int, str], list[tuple[int, str]]]
"""(key, offset, name of the operation) of an input -> (partition, value) of its outputs."""


def worker(
    recorder: Recorder,
    control: RoleControl,
    bootstrap: str,
    source: str,
    target: str,
    partitions: int,
    slot: str,
    group: str,
) -> None:
    """Read-process-write: each input makes one output, its offset is committed in the same transaction."""

    def one(key: str, offset: int, name: str) -> list[tuple[int, str]]:
        return [(int(key.rsplit("/", 1)[1]) % partitions, f"{name}.{key}.{offset}")]

    _process(recorder, control, bootstrap, source, target, slot, group, one)


def teller(
    recorder: Recorder,
    control: RoleControl,
    bootstrap: str,
    source: str,
    target: str,
    partitions: int,
    slot: str,
    group: str,
) -> None:
    """A bank: each order moves an amount between two accounts, which are partitions; both sides or none."""

    def both(key: str, offset: int, name: str) -> list[tuple[int, str]]:
        debit, credit = control.rng.sample(range(partitions), 2)
        amount = control.rng.randint(1, 1000)
        return [(debit, f"{name}.{key}.{offset}.{-amount}"), (credit, f"{name}.{key}.{offset}.{amount}")]

    _process(recorder, control, bootstrap, source, target, slot, group, both)


def _process(
    recorder: Recorder,
    control: RoleControl,
    bootstrap: str,
    source: str,
    target: str,
    slot: str,
    group: str,
    outputs: Outputs,
) -> None:
    from confluent_kafka import Consumer, KafkaException

    rng = control.rng
    work = Transactions(recorder, control, bootstrap, slot)
    consumer = Consumer(
        {**confluent_login(bootstrap), "group.id": group, "isolation.level": "read_committed", **CONSUMER,
         "auto.offset.reset": "earliest", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
    )  # fmt: skip

    def assigned(_: Any, parts: Any) -> None:
        recorder.single("position", recorder.now(), r={f"{part.topic}/{part.partition}": None for part in parts})

    consumer.subscribe([source], on_assign=assigned)
    while control.on:
        start = recorder.now()
        messages = consumer.consume(rng.randint(1, 8), 0.2)
        found = records_of(recorder, messages)
        if not found:
            continue
        try:
            work.begin()
            recorder.then(work.name, "poll", t0=start, r=found)
            for key, records in found.items():
                for offset, _ in records:
                    for partition, value in outputs(key, offset, f"{recorder.proc}.{work.name['n']}"):
                        work.send(target, partition, value, (key, offset))
            if rng.random() < 0.3:
                control.pause(rng.random() * DELAY_MAX_S)
            if rng.random() < ABORT:
                raise _OnPurpose
            ends = {(source, int(key.rsplit("/", 1)[1])): records[-1][0] + 1 for key, records in found.items()}
            work.offsets(group, ends, consumer.consumer_group_metadata())
            done = work.commit()
        except (_OnPurpose, KafkaException) as why:
            work.abort(why)
            done = False
        if not done:
            _back_to_committed(recorder, consumer)
    consumer.close()


def _back_to_committed(recorder: Recorder, consumer: Any) -> None:
    """A worker whose transaction failed goes on where its group stands."""
    from confluent_kafka import TopicPartition

    assignment = consumer.assignment()
    if not assignment:
        return
    start = recorder.now()
    found = consumer.committed(assignment, CALL_S)
    at = {}
    for part in found:
        if part.error is not None:
            raise Fatal(str(part.error))
        offset = max(part.offset, 0)
        consumer.seek(TopicPartition(part.topic, part.partition, offset))
        at[f"{part.topic}/{part.partition}"] = offset
    recorder.single("position", start, r=at)
