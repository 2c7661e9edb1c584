"""The pure parts of Spark's side: options, offsets, the fence's decision, settings."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, Not

from spark_udfs import offsets
from spark_udfs.fence import Decision, Fence, FenceConflict, FenceError, FenceLost, begin_with_fence, decide, sink_name
from spark_udfs.frames import COMMIT_BATCH, PRODUCE, CommitFrame, Frame, ProduceFrame
from spark_udfs.offsets import Bound, Range, limit_offsets, parse_assign, parse_bound, share_out, split_ranges
from spark_udfs.producing import Member
from spark_udfs.pushdown import Push
from spark_udfs.settings import OptionError, kafka_settings, librdkafka_settings, reader_settings
from spark_udfs.sink import SinkOptions
from wire.messages import request_class
from wire.types import TopicPartition

PARTS = [TopicPartition("t", number) for number in range(5)]
logs = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=5)


@given(logs, st.integers(1, 10**7))
def test_limit_moves_on_and_stays_within(log: list[tuple[int, int]], most: int) -> None:
    start = {PARTS[number]: first for number, (first, _) in enumerate(log)}
    latest = {PARTS[number]: first + size for number, (first, size) in enumerate(log)}
    end = limit_offsets(start, latest, most)
    assert all(start[tp] <= end[tp] <= latest[tp] for tp in start)
    moved = sum(end[tp] - start[tp] for tp in start)
    waiting = sum(size for _, size in log)
    assert moved == min(most, waiting)
    if most >= len(log):
        assert all(end[tp] > start[tp] for tp in start if latest[tp] > start[tp]), "a partition starves"


@given(logs, st.integers(1, 40))
def test_split_covers_each_offset_once(log: list[tuple[int, int]], pieces: int) -> None:
    ranges = [Range("t", number, first, first + size) for number, (first, size) in enumerate(log)]
    found = split_ranges(ranges, pieces)
    assert all(item.size > 0 for item in found)
    for whole in ranges:
        edges = sorted((item.start, item.end) for item in found if item.partition == whole.partition)
        covered = whole.start
        for low, high in edges:
            assert low == covered
            covered = high
        assert covered == whole.end if edges else whole.size == 0


@given(logs, st.integers(1, 8))
def test_tasks_share_ranges_evenly(log: list[tuple[int, int]], most: int) -> None:
    ranges = [Range("t", number, first, first + size) for number, (first, size) in enumerate(log)]
    tasks = share_out(ranges, most)
    assert sorted(item for task in tasks for item in task) == ranges
    assert len(tasks) == min(most, len(ranges))
    sizes = [sum(item.size for item in task) for task in tasks]
    assert max(sizes) - min(sizes) <= max(item.size for item in ranges)


def test_filters_narrow_and_unknown_ones_do_not() -> None:
    push = Push()
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    filters = [
        In(("topic",), ("a", "b")),
        EqualTo(("topic",), "a"),
        GreaterThan(("partition",), 1),
        In(("partition",), (0, 2, 3)),
        GreaterThanOrEqual(("offset",), 10),
        LessThan(("offset",), 20),
        GreaterThan(("timestamp",), noon),
        LessThan(("timestamp",), noon),
        EqualTo(("key",), b"x"),
        Not(EqualTo(("partition",), 2)),
        EqualTo(("headers", "partition"), 7),
    ]
    assert push(filters) is filters, "Spark applies them all itself"
    found = push.narrowing
    assert len(found.used) == 7
    assert [(t, p) for t in "ab" for p in range(5) if found.keeps(t, p)] == [("a", 2), ("a", 3)]
    assert found.cut(Range("a", 2, 0, 100)) == Range("a", 2, 10, 20)
    assert found.cut(Range("a", 2, 30, 100)).size == 0
    assert found.since_ms == int(noon.timestamp() * 1000)
    assert pickle.loads(pickle.dumps(push)).narrowing == found


def test_offsets_have_sparks_form() -> None:
    value = {"b": {"0": 7}, "a": {"10": 1, "2": 5}}
    assert offsets.to_json(offsets.from_json(value)) == value
    assert json.dumps(offsets.to_json(offsets.from_json(value))) == '{"a": {"2": 5, "10": 1}, "b": {"0": 7}}'


def test_bounds() -> None:
    everything = {"startingtimestamp": "5", "startingoffsetsbytimestamp": '{"t":{"0":9}}', "startingoffsets": "latest"}
    assert parse_bound(everything, "starting", -2) == Bound(timestamp_ms=5)
    del everything["startingtimestamp"]
    assert parse_bound(everything, "starting", -2) == Bound(timestamps={PARTS[0]: 9})
    del everything["startingoffsetsbytimestamp"]
    assert parse_bound(everything, "starting", -2) == Bound(everywhere=-1)
    assert parse_bound({}, "starting", -2) == Bound(everywhere=-2)
    assert parse_bound({"endingoffsets": '{"t":{"0":-1,"1":3}}'}, "ending", -1) == Bound(
        offsets={PARTS[0]: -1, PARTS[1]: 3}
    )
    assert parse_assign('{"t":[1,0]}') == PARTS[:2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("startingoffsets", "first"),
        ("startingoffsets", '{"t": 5}'),
        ("startingoffsets", '{"t": {"0": -3}}'),
        ("startingoffsets", '{"t": {"x": 3}}'),
        ("startingtimestamp", "now"),
        ("startingoffsetsbytimestamp", '{"t": {"0": -1}}'),
        ("endingoffsets", "earliest"),
        ("endingoffsets", '{"t": {"0": -2}}'),
    ],
)
def test_bad_bounds_name_the_option(name: str, text: str) -> None:
    side = "starting" if name.startswith("starting") else "ending"
    with pytest.raises(OptionError, match=f"(?i){name}"):
        parse_bound({name: text}, side, -2)


@pytest.mark.parametrize("text", ["", "[]", '{"t": 1}', "{}", '{"t": ["x"]}'])
def test_bad_assign(text: str) -> None:
    with pytest.raises(OptionError, match="assign"):
        parse_assign(text)


# -- the fence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fence", "batch_id", "outcome"),
    [
        (None, 0, Decision.WRITE),
        (None, 1, FenceLost),
        (Fence("q", 4), 5, Decision.WRITE),
        (Fence("q", 5), 5, Decision.SKIP),
        (Fence("q", 6), 5, FenceConflict),
        (Fence("q", 3), 5, FenceConflict),
        (Fence("other", 4), 5, FenceConflict),
        (Fence("other", 5), 5, FenceConflict),
        (Fence(None, -1), 5, Decision.WRITE),
    ],
)
def test_decision(fence: Fence | None, batch_id: int, outcome: Decision | type[Exception]) -> None:
    if isinstance(outcome, Decision):
        assert decide(fence, "q", batch_id) is outcome
    else:
        with pytest.raises(outcome):
            decide(fence, "q", batch_id)


def test_overrides_of_the_decision_are_narrow() -> None:
    assert decide(None, "q", 5, adopt=True) is Decision.WRITE
    assert decide(Fence("old", 9), "q", 0, takeover="old") is Decision.WRITE
    with pytest.raises(FenceConflict):
        decide(Fence("old", 9), "q", 0, takeover="older")
    with pytest.raises(FenceConflict):
        decide(Fence("old", 9), "q", 0, adopt=True)


def test_fence_is_kept_as_offset_and_metadata() -> None:
    for fence in (Fence("q", 0), Fence("q", 2**40), Fence(None, -1)):
        assert Fence.decode(*fence.encode()) == fence
    assert Fence.decode(-1001, None) is None
    for offset, metadata in ((5, ""), (5, "null"), (5, "{}"), (5, '{"v":1,"queryId":"q","batchId":5}'), (5, None)):
        with pytest.raises(FenceError):
            Fence.decode(offset, metadata)


class MovingCoordinator:
    """Stands in for a producer whose group coordinator is loading: a moment that can't be had on purpose."""

    def __init__(self, *errors: KafkaError) -> None:
        self.errors = list(errors)
        self.calls: list[str] = []

    def begin_transaction(self) -> None:
        self.calls.append("begin")

    def abort_transaction(self, _: float) -> None:
        self.calls.append("abort")

    def send_offsets_to_transaction(self, *_: object) -> None:
        self.calls.append("send")
        if self.errors:
            raise KafkaException(self.errors.pop(0))

    def consumer_group_metadata(self) -> None:
        return None


def test_moving_coordinator_is_waited_for() -> None:
    loading = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "loading", txn_requires_abort=True)
    stub = MovingCoordinator(loading, loading)
    begin_with_fence(stub, stub, Fence("q", 0))
    assert stub.calls == ["begin", "send", "abort"] * 2 + ["begin", "send"]
    for error in (
        KafkaError(KafkaError._FENCED, "fenced", fatal=True),
        KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "no", txn_requires_abort=True),
    ):
        stub = MovingCoordinator(error)
        with pytest.raises(KafkaException):
            begin_with_fence(stub, stub, Fence("q", 0))
        assert stub.calls == ["begin", "send"]


def test_sink_ids() -> None:
    assert sink_name("orders-v1") == "spark-sink/orders-v1"
    for bad in ("", "a b", "a/b", "ü", "x" * 201):
        with pytest.raises(OptionError, match="sinkId"):
            sink_name(bad)


SINK = {"kafka.bootstrap.servers": "h:1", "sinkId": "s", "checkpointLocation": "/c"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sinkId": ""}, "sinkId is required"),
        ({"checkpointLocation": " "}, "checkpointLocation is required"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is required"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id can't be set"),
        ({"kafka.acks": "1"}, "kafka.acks can't be set"),
        ({"kafka.enable.idempotence": "false"}, "kafka.enable.idempotence can't be set"),
        ({"sinkID2": "x"}, "option sinkid2 is unknown"),
        ({"fence.onMissing": "ignore"}, "fence.onMissing"),
        ({"sink.mode": "member"}, "sink.mode"),
        ({"sink.repartition": "hash"}, "sink.repartition: 'hash' is not none or key"),
        ({"sink.repartition": "key"}, "sink.repartition=key goes with option topic"),
        ({"sink.transaction.timeout.ms": "soon"}, "sink.transaction.timeout.ms: 'soon' is not a whole number"),
    ],
)
def test_sink_refuses(change: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SinkOptions.parse({**SINK, **change})


def test_sink_options_ignore_case() -> None:
    parsed = SinkOptions.parse({name.upper(): value for name, value in SINK.items()})
    assert (parsed.name, parsed.checkpoint, parsed.settings) == ("spark-sink/s", "/c", {"bootstrap.servers": "h:1"})


# -- settings ------------------------------------------------------------------------------------------------------


def test_settings_reach_both_libraries() -> None:
    settings = kafka_settings(
        {
            "kafka.bootstrap.servers": "a:1, b:2",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": 'org.x.PlainLoginModule required username="me" password=\'s "p"\';',
            "kafka.ssl.truststore.location": "/ca.pem",
            "kafka.ssl.truststore.type": "pem",
            "kafka.ssl.endpoint.identification.algorithm": "",
            "kafka.request.timeout.ms": "1234",
            "topic": "not kafka's",
        }
    )
    stock = librdkafka_settings(settings)
    assert stock["sasl.mechanisms"] == "PLAIN"
    assert (stock["sasl.username"], stock["sasl.password"]) == ("me", 's "p"')
    assert stock["ssl.ca.location"] == "/ca.pem"
    assert "topic" not in stock
    assert "sasl.jaas.config" not in stock
    assert reader_settings(settings) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": 's "p"',
        "ssl_cafile": "/ca.pem",
        "ssl_check_hostname": False,
        "request_timeout_ms": 1234,
    }


def test_keystores_of_java_are_refused() -> None:
    with pytest.raises(OptionError, match="truststore"):
        kafka_settings({"kafka.bootstrap.servers": "a:1", "kafka.ssl.truststore.type": "JKS"})
    with pytest.raises(OptionError, match="no password"):
        kafka_settings({"kafka.bootstrap.servers": "a:1", "kafka.sasl.jaas.config": 'x username="u";'})


@pytest.mark.parametrize("transactional_id", [None, "sink-1"])
def test_a_frame_is_what_the_library_would_send(transactional_id: str | None) -> None:
    topics = {"orders": [(0, b"x" * 200), (5, bytearray(20_000))], "bad": [(1, b"")]}
    ours = ProduceFrame(transactional_id, 1234, topics)
    kind = request_class(PRODUCE)
    theirs = kind(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1234,
        topic_data=[
            kind.TopicProduceData(
                name=name,
                partition_data=[
                    kind.TopicProduceData.PartitionProduceData(index=index, records=bytes(records))
                    for index, records in parts
                ],
            )
            for name, parts in topics.items()
        ],
    )
    same_bytes(ours, theirs)


def same_bytes(ours: Frame, theirs: Any) -> None:
    theirs.API_VERSION = ours.API_VERSION
    for request in (ours, theirs):
        request.with_header(correlation_id=77, client_id="fleetlog")
    assert ours.encode() == bytes(theirs.encode(framed=True, header=True))
    assert ours.header.get_response_class() is theirs.header.get_response_class()


@pytest.mark.parametrize("winners", [0, 1, 300])
def test_a_commits_frame_is_what_the_library_would_send(winners: int) -> None:
    members = [Member(2**40 + 7 * n, n % 2**15) for n in range(winners)]
    fields: dict[str, Any] = {
        "sink_id": "orders-\u00e9", "producer_id": 5, "producer_epoch": 2**15 - 1, "query_id": "q" * 36,
        "batch_id": 2**33, "digest": "d",
    }  # fmt: skip
    kind = request_class(COMMIT_BATCH)
    named = [kind.BatchMember(producer_id=member.producer_id, producer_epoch=member.epoch) for member in members]
    same_bytes(CommitFrame(**fields, winners=members), kind(**fields, winners=named))
