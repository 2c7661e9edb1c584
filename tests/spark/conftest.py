"""One Spark session for all tests of this directory, and topics of known content.

The tests run on our fleet; ``FLEETLOG_TEST_BOOTSTRAP=host:port`` runs them on another one, Apache Kafka for instance.
"""

from __future__ import annotations

import gc
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

import fleetlog.wire.messages as m
from fleetlog.spark.java import spark_environment
from tests.spark.processes import CONF
from tests.support import low_descriptors
from tests.support.raw_transactions import Wire
from tests.support.waiting import eventually


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    chosen = os.environ.get("FLEETLOG_TEST_BOOTSTRAP")
    return chosen or str(request.getfixturevalue("fleet").bootstrap)


HERE = Path(__file__).parent


class Sparks:
    """The Spark session of this worker's tests: one, and another after a test that ran out of time."""

    def __init__(self) -> None:
        self._session: Any = None
        self._timer = threading.Timer(0, self.kill)

    def session(self, warehouse: Path) -> Any:
        """The session that there is, or a new one."""
        self._forget_the_dead()
        if self._session is None:
            os.environ.update(spark_environment())
            from pyspark.sql import SparkSession

            named = SparkSession.builder.master("local[2,4]").appName("tests")
            self._session = (
                named.config(map={**CONF, "spark.sql.warehouse.dir": str(warehouse)})
                .config("spark.sql.shuffle.partitions", "2")
                .config("spark.sql.session.timeZone", "UTC")
                .getOrCreate()
            )
            self._session.sparkContext.setLogLevel("OFF")
        return self._session

    def stop(self) -> None:
        """At the end of all tests."""
        self._forget_the_dead()
        if self._session is not None:
            self._session.stop()

    def kill_after(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self.kill)
        self._timer.daemon = True
        self._timer.start()

    def kill_no_more(self) -> None:
        self._timer.cancel()

    def kill(self) -> None:
        """SIGKILL to the JVM: a call into it that was left waits for its answer in whatever is called next."""
        if self._session is not None:
            gateway: Any = self._session.sparkContext._gateway
            gateway.proc.kill()
            gateway.proc.wait()

    def _forget_the_dead(self) -> None:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        gateway: Any = SparkContext._gateway
        if self._session is None or gateway.proc.poll() is None:
            return
        context = self._session.sparkContext
        context._jsc = None  # nothing is asked of a JVM that is gone
        context.stop()
        gateway.close(close_callback_server_connections=True)
        self._session = SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None


SPARKS = Sparks()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Iterator[None]:
    """A test whose time ran out may wait in ``stop()`` once more, for the same JVM: it is killed a second later."""
    if HERE in item.path.parents:
        SPARKS.kill_after(settings.timeout + 1)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> Iterator[None]:
    SPARKS.kill_no_more()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A test that hangs costs its own time, not that of the tests after it."""
    if call.excinfo is not None and str(call.excinfo.value).startswith("Timeout"):
        SPARKS.kill()
    return (yield)


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where Spark keeps tables; the session stops when it goes."""
    yield tmp_path_factory.mktemp("warehouse")
    SPARKS.stop()


@pytest.fixture
def spark(warehouse: Path) -> Iterator[Any]:
    gc.collect()  # what other tests let go keeps descriptors: one above 1,023 ends py4j's server, which selects
    with low_descriptors.released():
        yield SPARKS.session(warehouse)


TO_THE_END_S = 240
"""For a query that ends by itself; a few seconds are usual."""
FAR_ENOUGH_S = 200
"""For what a query that goes on does first."""
STARTS = 8
"""Of a query whose Python process does not call back in the ten seconds that Spark gives it."""


class Cluster:
    """What the tests do to topics, through a stock client."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def topic(self, partitions: int = 2, name: str | None = None) -> str:
        topic = name or f"spark-{uuid.uuid4().hex[:10]}"
        self.create(NewTopic(topic, partitions, -1, config={"retention.ms": "-1"}))
        return topic

    def create(self, new: NewTopic) -> None:
        """A topic that every broker knows afterwards, with its leaders: any of them may be asked for it first."""
        self.admin.create_topics([new])[new.topic].result(30)

        def known(found: Any) -> bool:
            parts = found.partitions or ()
            return len(parts) == new.num_partitions and all(part.leader_id >= 0 for part in parts)

        self._known_everywhere(new.topic, f"the new topic {new.topic}", known)

    def producer(self, **settings: Any) -> Producer:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, **named})

    def add_partitions(self, topic: str, count: int) -> None:
        """As many as ``count`` afterwards, known to every broker: a producer refuses those that its broker misses."""
        self.admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)
        self._known_everywhere(topic, "the new partitions", lambda found: len(found.partitions) == count)

    def recreate(self, topic: str) -> None:
        """Delete the topic and create it again, with one partition; every broker knows the new one then."""
        (before,) = self._known_everywhere(topic, "the topic", lambda found: found.error_code == 0)
        self.admin.delete_topics([topic])[topic].result(30)
        eventually(
            lambda: self.admin.create_topics([NewTopic(topic, 1, 1)])[topic].exception(30),
            "the topic is created again", good=lambda problem: problem is None,
        )  # fmt: skip
        self._known_everywhere(
            topic, "the new topic", lambda found: found.error_code == 0 and found.topic_id not in (before, None)
        )

    def _known_everywhere(self, topic: str, what: str, good: Callable[[Any], bool]) -> set[Any]:
        """Wait until each broker describes the topic so; the ids that they give."""
        asked = m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        found = set()
        for broker in self.admin.list_topics(timeout=30).brokers.values():
            wire = Wire(broker.host, broker.port, 30)
            described = eventually(
                lambda wire=wire: wire.ask(asked, 10).topics[0], f"broker {broker.id} knows {what}", good=good
            )
            found.add(described.topic_id)
            wire.close()
        return found

    def send(self, topic: str, rows: list[dict[str, Any]], **settings: Any) -> None:
        producer, failed = self.producer(**settings), []
        for row in rows:
            producer.produce(topic, **row, on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(30) == 0
        assert failed == []

    def transactional(self, topic: str, rows: list[dict[str, Any]], outcome: str) -> Producer:
        """``outcome``: commit, abort, or open (the producer is returned with its transaction under way).

        One that is open stays so while a whole query runs, which may take longer than librdkafka's minute.
        """
        own = f"test-{uuid.uuid4().hex[:10]}"
        producer = self.producer(transactional_id=own, transaction_timeout_ms=600_000)
        producer.init_transactions(30)
        producer.begin_transaction()
        for row in rows:
            producer.produce(topic, **row)
        assert producer.flush(30) == 0
        if outcome != "open":
            self.end(producer, topic, outcome)
        return producer

    def end(self, producer: Producer, topic: str, outcome: str) -> None:
        """Ends its transaction, the only one that is open in the topic.

        The coordinator answers when the end is decided; partitions have its markers a moment later.
        """
        (producer.commit_transaction if outcome == "commit" else producer.abort_transaction)(30)
        of_topic = self.admin.list_topics(topic, 30).topics[topic].partitions

        def ends(isolation: IsolationLevel) -> list[int]:
            asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in of_topic}
            found = self.admin.list_offsets(asked, isolation_level=isolation, request_timeout=30)
            return [one.result(30).offset for one in found.values()]

        stable, written = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        eventually(lambda: ends(stable) == ends(written), f"markers in {topic}")

    def read(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """All messages up to the last stable offset (or the end), by partition and offset."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"test-{uuid.uuid4().hex[:10]}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
            }
        )
        numbers = set(self.admin.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        found = []
        while numbers:
            message = consumer.poll(30)
            assert message is not None, f"{topic} gave nothing for 30 s"
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                numbers.discard(message.partition())
        consumer.close()
        return sorted(found, key=lambda message: (message.partition(), message.offset()))

    def values(self, topic: str, isolation: str = "read_committed") -> list[str]:
        """All values as text, sorted."""
        return sorted(message.value().decode() for message in self.read(topic, isolation))


def run_until(start: Callable[[], Any], wait: Callable[[Any], Any]) -> Any:
    """Starts a query that has come as far as it should when ``wait`` returns; the query. Raises what it ends with.

    Spark gives a new Python worker ten seconds to call back, which a busy machine may not keep: then it starts again.
    """
    from pyspark.errors import StreamingQueryException

    starts_left = STARTS
    while True:
        starts_left -= 1
        query = start()
        try:
            wait(query)
            return query
        except StreamingQueryException as problem:
            if not starts_left or "worker failed to connect back" not in str(problem):
                raise
        except BaseException:
            query.stop()
            raise


def run_to_end(start: Callable[[], Any]) -> Any:
    """The same of a query that ends by itself."""

    def end(query: Any) -> None:
        assert query.awaitTermination(TO_THE_END_S), "a query that ends by itself did not"

    return run_until(start, end)


def run_while(
    start: Callable[[], Any], look: Callable[[], Any], what: str, good: Callable[[Any], object] = bool
) -> Any:
    """The same of a query that goes on: it has come far enough when ``look`` gives what is good."""

    def far_enough(query: Any) -> None:
        def looked() -> Any:
            query.awaitTermination(0.1)  # raises what it ends with
            return look()

        eventually(looked, what, FAR_ENOUGH_S, good=good)

    return run_until(start, far_enough)


@pytest.fixture(scope="session")
def cluster(bootstrap: str) -> Cluster:
    return Cluster(bootstrap)


@pytest.fixture
def read(spark: Any, bootstrap: str) -> Callable[..., Any]:
    """A batch DataFrame: options by name, ``__`` for a dot."""

    def load(**options: Any) -> Any:
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        return spark.read.format("fleetlog").options(**{"kafka.bootstrap.servers": bootstrap, **named}).load()

    return load


@pytest.fixture
def read_stream(spark: Any, bootstrap: str) -> Callable[..., Any]:
    """A streaming DataFrame from the topic's start."""

    def load(**options: Any) -> Any:
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        defaults = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest"}
        return spark.readStream.format("fleetlog").options(**{**defaults, **named}).load()

    return load
