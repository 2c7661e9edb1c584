"""Shared by the tests of replication: a partition's metadata, its copies on disk, and a load that records its acks."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from fleetlog._native.batch import BatchHeader, scan
from tests.support.fleet import Broker, Fleet
from tests.support.ports import free_port
from tests.support.stores import Proxy
from tests.support.waiting import PATIENCE_S, eventually


@contextmanager
def quick_cleaning(directory: Path) -> Iterator[Cluster]:
    """Three brokers whose cleaners rest for a tenth of a second only."""
    fleet = Fleet(directory, log_cleaner_backoff_ms=100, log_flush_offset_checkpoint_interval_ms=500)
    try:
        yield Cluster(fleet.start())
    finally:
        fleet.close()


class Cluster:
    """A fleet as an administrator sees it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def broker(self, number: int) -> Broker:
        return next(broker for broker in self.fleet.brokers if broker.id == number)

    @property
    def alive(self) -> str:
        """Bootstrap servers that run."""
        return ",".join(
            broker.address
            for broker in self.fleet.brokers
            if broker.process is not None and broker.process.poll() is None
        )

    def create(self, topic: str, partitions: int = 1, replicas: int = 3, **config: object) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        settings = {name.replace("_", "."): str(value) for name, value in config.items()}
        admin = AdminClient({"bootstrap.servers": self.alive})
        admin.create_topics([NewTopic(topic, partitions, replicas, config=settings)])[topic].result(PATIENCE_S)
        eventually(
            lambda: all(self.state(topic, p, broker) is not None for p in range(partitions) for broker in self.running),
            f"everybody knows {topic}",
        )

    @property
    def running(self) -> list[Broker]:
        return [b for b in self.fleet.brokers if b.process is not None and b.process.poll() is None]

    def state(self, topic: str, partition: int = 0, broker: Broker | None = None) -> Any:
        """The partition's metadata (leader, isrs, replicas), as that broker or any knows it; None if it does not."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": broker.address if broker is not None else self.alive})
        try:
            found = admin.list_topics(topic, timeout=5).topics.get(topic)
        except KafkaException:
            return None
        return found.partitions.get(partition) if found is not None and found.error is None else None

    def leader(self, topic: str, partition: int = 0, *, other_than: int = -1) -> Broker:
        """The partition's leader, once there is one."""

        def elected() -> int:
            state = self.state(topic, partition)
            return state.leader if state is not None and state.leader not in (-1, other_than) else 0

        return self.broker(eventually(elected, f"{topic}-{partition} has a leader"))

    def wait_isr(self, topic: str, members: set[int], partition: int = 0, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the in-sync set is exactly this."""

        def there() -> bool:
            state = self.state(topic, partition)
            return state is not None and set(state.isrs) == members

        eventually(there, f"the in-sync set of {topic}-{partition} becomes {members}", timeout_s)

    def coordinator(self, group: str) -> int:
        """Id of the group's coordinator, -1 while there is none."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.alive})
        try:
            return int(admin.describe_consumer_groups([group], request_timeout=5)[group].result(10).coordinator.id)
        except KafkaException:
            return -1

    def lost_commits(self) -> float:
        """How often a running broker truncated committed records."""
        return sum(self.metric(broker, "fleetlog_lost_commits") for broker in self.running)

    def metric(self, broker: Broker, name: str) -> float:
        """One of the broker's numbers, with its labels as the exposition writes them."""
        with urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])

    def mistakes(self) -> list[str]:
        """Errors in the brokers' logs."""
        said = []
        for broker in self.fleet.brokers:
            text = broker.log_file.read_text(errors="replace")
            at = text.find("Traceback")
            if at >= 0:
                said.append(f"broker {broker.id}: {text[max(0, at - 300) : at + 3000]}")
        return said

    # ---- on disk -------------------------------------------------------------------------------------------------

    def log(self, broker: Broker, topic: str, partition: int = 0) -> bytes:
        """All bytes of the replica's segments, in order."""
        return b"".join(path.read_bytes() for path in self.segments(broker, topic, partition))

    def segments(self, broker: Broker, topic: str, partition: int = 0) -> list[Path]:
        return sorted(broker.directory.glob(f"data*/{topic}-{partition}/*.log"))

    def batches(self, broker: Broker, topic: str, partition: int = 0) -> list[BatchHeader]:
        return [header for _, header in scan(self.log(broker, topic, partition))]

    def epochs(self, broker: Broker, topic: str, partition: int = 0) -> list[str]:
        """The lines of the replica's leader-epoch checkpoint."""
        (file,) = broker.directory.glob(f"data*/{topic}-{partition}/leader-epoch-checkpoint")
        return file.read_text().splitlines()[2:]

    def wait_equal(self, topic: str, partitions: int = 1, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all replicas are the same bytes; what differs in the end is said by batch."""

        def logs(partition: int) -> list[bytes]:
            state = self.state(topic, partition)
            assert state is not None
            return [self.log(self.broker(number), topic, partition) for number in state.replicas]

        deadline = time.monotonic() + timeout_s
        for partition in range(partitions):
            while len(set(logs(partition))) > 1 and time.monotonic() < deadline:
                time.sleep(0.2)
            found = logs(partition)
            if len(set(found)) > 1:
                raise AssertionError(f"the replicas of {topic}-{partition} differ: {_difference(found)}")


def _difference(logs: list[bytes]) -> str:
    heads = [
        [(h.base_offset, h.last_offset, h.partition_leader_epoch, f"{h.crc:08x}") for _, h in scan(data)]
        for data in logs
    ]
    for number, row in enumerate(itertools.zip_longest(*heads)):
        if len(set(row)) > 1:
            return f"batch {number}: {row}; {[len(one) for one in heads]} batches"
    return f"{[len(data) for data in logs]} bytes"


class Load:
    """An idempotent producer with acks=all that writes 0, 1, 2, ... to a partition and keeps the acknowledged ones."""

    def __init__(self, bootstrap: str, topic: str, partition: int = 0, **settings: object) -> None:
        from confluent_kafka import Producer

        self.topic, self.partition = topic, partition
        self.acked: dict[int, int] = {}
        self.failed: dict[int, str] = {}
        self.sent = 0
        self.last_ack = time.monotonic()
        self.longest_pause_s = 0.0
        self._stop = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 2,
             "message.timeout.ms": 120_000, "retry.backoff.ms": 50, "topic.metadata.refresh.interval.ms": 1_000,
             "reconnect.backoff.max.ms": 500, **settings}
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name="load")

    def start(self) -> Load:
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.is_set():
            for _ in range(min(5, 200 - len(self._producer))):
                self._produce()
            self._producer.poll(0.005)

    def _produce(self) -> None:
        value = self.sent
        self.sent += 1

        def done(error: Any, message: Any) -> None:
            if error is not None:
                self.failed[value] = str(error)
                return
            now = time.monotonic()
            self.longest_pause_s = max(self.longest_pause_s, now - self.last_ack)
            self.last_ack = now
            self.acked[value] = message.offset()

        self._producer.produce(self.topic, b"%d" % value, partition=self.partition, on_delivery=done)

    def wait_acks(self, more: int, what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until so many more records than now are acknowledged."""
        before = len(self.acked)
        eventually(lambda: len(self.acked) >= before + more or self.failed,
              f"{what}: {self.topic}-{self.partition}, {before} were acknowledged", timeout_s)  # fmt: skip
        assert not self.failed, self.failed

    def finish(self) -> None:
        """Stop, and have everything answered."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(PATIENCE_S)
        assert left == 0, f"{left} records were not answered, {len(self.acked)} were"

    @contextmanager
    def running(self) -> Iterator[Load]:
        self.start()
        try:
            yield self
        finally:
            self.finish()

    @staticmethod
    @contextmanager
    def many(bootstrap: str, topic: str, partitions: int) -> Iterator[list[Load]]:
        """One for each partition, running."""
        with ExitStack() as stack:
            yield [stack.enter_context(Load(bootstrap, topic, partition).running()) for partition in range(partitions)]

    def check(self, bootstrap: str) -> None:
        """Everything acknowledged is there once, at the acknowledged offset, in the order of sending."""
        assert not self.failed, self.failed
        found = read_all(bootstrap, self.topic, self.partition)
        values = [int(value) for _, value in found]
        assert len(values) == len(set(values)), "doubled"
        assert values == sorted(values), "out of order"
        offsets = {int(value): offset for offset, value in found}
        wrong = {value: (offset, offsets.get(value)) for value, offset in self.acked.items()
                 if offsets.get(value) != offset}  # fmt: skip
        assert not wrong, f"acknowledged but lost or moved (value: told, found): {dict(list(wrong.items())[:10])}"


class Transactions:
    """A transactional producer that writes the same number to every partition, as one transaction; some are aborted."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, name: str = "writer") -> None:
        self._settings = {
            "bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, "transaction.timeout.ms": 30_000,
            "message.timeout.ms": 30_000, "retry.backoff.ms": 50, "reconnect.backoff.max.ms": 500,
        }  # fmt: skip
        self.topic, self.partitions = topic, partitions
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.unknown: list[int] = []
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="transactions")

    def _run(self) -> None:
        try:
            number = 0
            while not self._stop.is_set():
                producer = self._begin()
                healthy = True
                while healthy and not self._stop.is_set():
                    healthy = self._one(producer, number)
                    number += 1
        except BaseException as failure:
            self._failure = failure

    def _begin(self) -> Any:
        from confluent_kafka import KafkaException, Producer

        while True:
            producer = Producer(self._settings)
            try:
                producer.init_transactions(PATIENCE_S)
            except KafkaException as error:
                if error.args[0].fatal():
                    raise
                continue
            return producer

    def _one(self, producer: Any, number: int) -> bool:
        """One transaction; False if the producer is of no use any more."""
        from confluent_kafka import KafkaException

        committing = False
        try:
            producer.begin_transaction()
            for partition in range(self.partitions):
                producer.produce(self.topic, b"%d" % number, partition=partition)
            if number % 5 == 4:
                assert producer.flush(PATIENCE_S) == 0
                producer.abort_transaction(PATIENCE_S)
                self.aborted.append(number)
                return True
            committing = True
            producer.commit_transaction(PATIENCE_S)
        except KafkaException as problem:
            error = problem.args[0]
            if error.txn_requires_abort():
                with suppress(KafkaException):
                    producer.abort_transaction(PATIENCE_S)
                    self.aborted.append(number)
                    return True
            (self.unknown if committing else self.aborted).append(number)
            return False
        self.committed.append(number)
        return True

    def wait_commits(self, more: int, what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until so many more transactions than now are committed."""
        before = len(self.committed)
        eventually(lambda: len(self.committed) >= before + more or self._failure,
              f"{what}: {before} were committed", timeout_s)  # fmt: skip
        assert self._failure is None, self._failure

    @contextmanager
    def running(self) -> Iterator[Transactions]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()

    def check(self, bootstrap: str) -> None:
        """Every committed transaction is there once and whole, no other, except those with an unknown outcome."""
        assert self._failure is None, self._failure
        found = [
            [int(value) for _, value in read_all(bootstrap, self.topic, partition, "read_committed")]
            for partition in range(self.partitions)
        ]
        for values in found:
            assert values == sorted(set(values)), "doubled or out of order"
            assert values == found[0], "a transaction is there in part"
            assert set(self.committed) <= set(values), "committed, but not there"
            assert set(values) <= {*self.committed, *self.unknown}, "there, though it was aborted"


class Cables:
    """A proxy before each broker's listener for other brokers; ``cut`` keeps them from reaching it."""

    def __init__(self, fleet: Fleet) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cables")
        self._thread.start()
        self._proxies: dict[int, Proxy] = {}
        for broker in fleet.brokers:
            inside = free_port()
            proxy = self._proxies[broker.id] = Proxy(inside)
            self._run(proxy.__aenter__())
            kept = [line for line in broker.config_file.read_text().splitlines() if not line.startswith("listeners=")]
            kept += [
                f"listeners=PLAINTEXT://{broker.address},INSIDE://127.0.0.1:{inside}",
                f"advertised.listeners=PLAINTEXT://{broker.address},INSIDE://{proxy.address}",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
                "inter.broker.listener.name=INSIDE",
            ]
            broker.config_file.write_text("\n".join(kept) + "\n")

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def cut(self, broker: Broker) -> None:
        async def now() -> None:
            self._proxies[broker.id].accepting = False
            self._proxies[broker.id].cut()

        self._run(now())

    def mend(self, broker: Broker) -> None:
        self._proxies[broker.id].accepting = True

    def close(self) -> None:
        for proxy in self._proxies.values():
            self._run(proxy.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def read_all(
    bootstrap: str, topic: str, partition: int = 0, isolation: str = "read_uncommitted"
) -> list[tuple[int, bytes]]:
    """(offset, value) of all records of a partition, up to the leader's current end."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False,
         "isolation.level": isolation, "auto.offset.reset": "error", "enable.partition.eof": True}
    )  # fmt: skip
    found: list[tuple[int, bytes]] = []
    try:
        start, end = eventually(
            lambda: _watermarks(consumer, TopicPartition(topic, partition)), f"the end of {topic}-{partition}"
        )
        consumer.assign([TopicPartition(topic, partition, start)])
        deadline = time.monotonic() + PATIENCE_S
        position = start
        while position < end:
            assert time.monotonic() < deadline, f"{topic}-{partition}: no record at {position}, the end is {end}"
            came = consumer.consume(1000, 0.2)
            found += [(message.offset(), message.value()) for message in came if message.error() is None]
            position = max([position, *(p.offset for p in consumer.position([TopicPartition(topic, partition)]))])
    finally:
        consumer.close()
    return found


def _watermarks(consumer: Any, tp: Any) -> tuple[int, int] | None:
    from confluent_kafka import KafkaException

    try:
        start, end = consumer.get_watermark_offsets(tp, timeout=5)
    except KafkaException:
        return None
    return start, end
