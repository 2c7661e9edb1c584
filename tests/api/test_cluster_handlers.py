"""Handlers over all their versions, on a fixed metadata image: answers must encode, decode and say the right thing."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleetlog.brokers.acls.access import NOT_ASKED, Access
from fleetlog.brokers.api import cluster, configs, elections, log_dirs, metadata, metadata_body, reassignments, topics
from fleetlog.brokers.api.base import (
    ROWS_PER_YIELD,
    ClientConnection,
    Context,
    Done,
    InSlices,
    InTask,
    NewTopics,
    Services,
    through,
)
from fleetlog.brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig
from fleetlog.brokers.controller.requests import TopicOutcome
from fleetlog.brokers.log import LogStore, RealDisk
from fleetlog.brokers.metadata.cache import MetadataCache, MetadataChange
from fleetlog.brokers.metadata.image import MetadataDelta
from fleetlog.brokers.metadata.znodes import ConfigChanged, StatesChanged, TopicChanged, TopicZnode
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.model import BrokerId, BrokerInfo, Endpoint, PartitionState, TopicPartition
from fleetlog.wire import messages
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import Encoded
from tests.support.clocks import ManualClock
from tests.support.logs import append, batch

A, C = uuid.UUID(int=77), uuid.UUID(int=78)
GROUPS_ID = uuid.UUID(int=79)


def broker(broker_id: int, incarnation: int, rack: str | None = None) -> BrokerInfo:
    endpoints = [Endpoint("PLAINTEXT", "127.0.0.1", 9090 + broker_id)]
    if broker_id != 3:
        endpoints.append(Endpoint("OUTSIDE", f"b{broker_id}.example", 19090 + broker_id))
    return BrokerInfo(BrokerId(broker_id), 100 + broker_id, incarnation, tuple(endpoints), rack)


def led(leader: int, incarnation: int, *replicas: int, epoch: int = 5) -> PartitionState:
    ids = tuple(map(BrokerId, replicas))
    return PartitionState(ids, leader, epoch, ids, 1, 1, incarnation, (incarnation,) * len(ids))


class FixedController:
    """Answers what the test says; keeps what it was asked."""

    is_active = True

    def __init__(self, view: MetadataCache) -> None:
        self.metadata = view
        self.asked: list[Any] = []
        self.outcomes: list[TopicOutcome] = []
        self.results: dict[TopicPartition, tuple[ErrorCode, str | None]] = {}
        self.created: Mapping[str, ErrorCode] = {}

    async def create_topics(
        self, new: Any, *, validate_only: bool = False, timeout_ms: int = 0, gone: Any = None
    ) -> list[TopicOutcome]:
        self.asked.append(new)
        return self.outcomes

    async def create_partitions(
        self, new: Any, *, validate_only: bool = False, timeout_ms: int = 0, gone: Any = None
    ) -> list[TopicOutcome]:
        self.asked.append(new)
        return self.outcomes

    async def delete_topics(self, wanted: Any, *, timeout_ms: int = 0, gone: Any = None) -> list[TopicOutcome]:
        self.asked.append(wanted)
        return self.outcomes

    async def alter_reassignments(self, wanted: Any, *, timeout_ms: int = 0) -> Any:
        self.asked.append(dict(wanted))
        return {tp: self.results.get(tp, (ErrorCode.NONE, None)) for tp in wanted}

    async def elect_leaders(self, partitions: Any, *, unclean: bool, timeout_ms: int = 0) -> Any:
        self.asked.append((partitions, unclean))
        if partitions is None:
            return self.results
        return {tp: self.results.get(tp, (ErrorCode.NONE, None)) for tp in partitions}

    def creation_refused(self, name: str) -> str | None:
        return "too few brokers"

    async def auto_create(self, names: Any, timeout_ms: int = 0) -> dict[str, ErrorCode]:
        self.asked.append(list(names))
        return {name: self.created.get(name, ErrorCode.REQUEST_TIMED_OUT) for name in names}


@pytest.fixture
def services() -> Services:
    config = BrokerConfig(broker_id=1, zookeeper_connect="unused", num_partitions=2, broker_rack="r1")
    view = MetadataCache(cast(Any, None), config, cast(Any, None))
    view.image.apply(
        [
            TopicChanged("a", TopicZnode(A, ((BrokerId(1),), (BrokerId(2),), (BrokerId(9),), (BrokerId(3),))), 0),
            StatesChanged(
                "a",
                A,
                {0: led(1, 4, 1), 1: led(2, 7, 2, epoch=6), 2: led(9, 1, 9), 3: led(3, 2, 3)},
            ),
            TopicChanged("c", TopicZnode(C, ((BrokerId(2),), (BrokerId(1),))), 0),
            StatesChanged("c", C, {0: led(2, 6, 2)}),  # led by broker 2's last incarnation; partition 1 has no state
            ConfigChanged("topics", "c", 0, {"retention.ms": "-1", "cleanup.policy": "compact"}),
            ConfigChanged("brokers", "<default>", 3, {"log.retention.ms": "1000", "message.max.bytes": "2000"}),
            ConfigChanged("brokers", "1", 3, {"log.retention.ms": "2000"}),
            ConfigChanged("groups", "g", 3, {"consumer.session.timeout.ms": "50000"}),
            TopicChanged("__consumer_offsets", TopicZnode(GROUPS_ID, ((BrokerId(1),), (BrokerId(9),))), 0),
            StatesChanged("__consumer_offsets", GROUPS_ID, {0: led(1, 4, 1), 1: led(9, 1, 9)}),
        ],
        MetadataDelta(),
    )
    view.brokers = {1: broker(1, 4, "r1"), 2: broker(2, 7), 3: broker(3, 2)}
    view.cluster_id, view.controller_id, view.ready = "cluster-id", 2, True
    controller = FixedController(view)
    runtime = SimpleNamespace(partition_for=lambda key: int(key[-1]) % 2)
    fields = dict.fromkeys(Services.__slots__, None)
    fields["metrics"] = Metrics()
    fields |= {"config": config, "metadata": view, "controller": controller, "groups": runtime, "transactions": runtime}
    fields |= {
        "new_topics": NewTopics(),
        "clock": SimpleNamespace(mono_ms=lambda: 0),
        "process_troubles": list,
        "access": Access(),
    }
    return Services(**cast(Any, fields))


def ask(services: Services, key: int, version: int, request: Any, handler: Any, listener: str = "PLAINTEXT") -> Any:
    """Through bytes both ways, as a client would."""
    body = request.encode(version=version)
    decoded = messages.decode_request(key, version, memoryview(body))
    context = Context(services, ClientConnection(1, listener, "127.0.0.1"), key, version, 1, "test")

    async def run() -> Any:
        outcome = handler(decoded, context)
        while isinstance(outcome, InSlices | InTask):
            outcome = through(outcome.work) if isinstance(outcome, InSlices) else await outcome.coroutine
        return outcome

    done = asyncio.run(run())
    if isinstance(done.response, InSlices):
        done = Done(through(done.response.work))
    if isinstance(done.response, Encoded):
        raw = b"".join(done.response.chunks)
        decoded = messages.decode_response(key, version, raw)
        assert messages.encode_response(decoded, key, version) == raw, "the library writes the same bytes"
        return decoded
    encoded = done.response
    if not isinstance(encoded, bytes):
        encoded = messages.encode_response(encoded, key, version)
    return messages.decode_response(key, version, encoded)


def versions(key: int) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


def metadata_request(version: int, names: list[Any] | None, **fields: Any) -> Any:
    request = messages.request_class(3)
    if names is None:
        return request(version=version, topics=[] if version == 0 else None, **fields)
    rows = [
        request.MetadataRequestTopic(version=version, topic_id=one, name=None)
        if isinstance(one, uuid.UUID)
        else request.MetadataRequestTopic(version=version, name=one)
        for one in names
    ]
    return request(version=version, topics=rows, **fields)


@pytest.mark.parametrize("version", versions(3))
def test_metadata_of_all_topics(services: Services, version: int) -> None:
    found = ask(services, 3, version, metadata_request(version, None), metadata.handle_metadata)
    assert [(b.node_id, b.host, b.port) for b in found.brokers] == [
        (1, "127.0.0.1", 9091),
        (2, "127.0.0.1", 9092),
        (3, "127.0.0.1", 9093),
    ]
    assert [t.name for t in found.topics] == ["__consumer_offsets", "a", "c"]
    a, c = found.topics[1:]
    assert [p.partition_index for p in a.partitions] == [0, 1, 2, 3]
    assert [p.leader_id for p in a.partitions] == [1, 2, -1, 3]
    assert [p.error_code for p in a.partitions] == [0, 0, 5, 0]
    assert [p.leader_id for p in c.partitions] == [-1, -1], (
        "a leader that is named must serve: not in a later incarnation"
    )
    assert a.partitions[2].replica_nodes == [9]
    if version >= 1:
        assert found.controller_id == 2
        assert [b.rack for b in found.brokers] == ["r1", None, None]
        assert [t.is_internal for t in found.topics] == [True, False, False]
    if version >= 2:
        assert found.cluster_id == "cluster-id"
    if version >= 5:
        assert [p.offline_replicas for p in a.partitions] == [[], [], [9], []]
    if version >= 7:
        assert [p.leader_epoch for p in a.partitions] == [5, 6, 5, 5]
    if version >= 8:
        assert a.authorized_operations is None
    if version >= 10:
        assert a.topic_id == A
    assert cast(FixedController, services.controller).asked == []


@pytest.mark.parametrize("version", range(8, 14))
def test_metadata_lists_operations_on_request(services: Services, version: int) -> None:
    fields: dict[str, Any] = {"include_topic_authorized_operations": True}
    if version <= 10:
        fields["include_cluster_authorized_operations"] = True
    found = ask(services, 3, version, metadata_request(version, ["a"], **fields), metadata.handle_metadata)
    assert found.topics[0].authorized_operations == {3, 4, 5, 6, 7, 8, 10, 11}
    if version <= 10:
        assert found.authorized_operations == {5, 7, 8, 9, 10, 11, 12}


@pytest.mark.parametrize("version", versions(3))
def test_metadata_of_missing_topics(services: Services, version: int) -> None:
    controller = cast(FixedController, services.controller)
    controller.created = {"new": ErrorCode.NONE, "wide": ErrorCode.INVALID_REPLICATION_FACTOR}
    request = metadata_request(version, ["new", "a", "no/good", "wide"])
    found = ask(services, 3, version, request, metadata.handle_metadata)
    assert [t.name for t in found.topics] == ["new", "a", "no/good", "wide"]
    assert [t.error_code for t in found.topics] == [
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REPLICATION_FACTOR,
    ]
    assert controller.asked == [["new", "wide"]]
    if version >= 4:
        request = metadata_request(version, ["new"], allow_auto_topic_creation=False)
        found = ask(services, 3, version, request, metadata.handle_metadata)
        assert found.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert len(controller.asked) == 1


def test_kept_rows_follow_the_view(services: Services) -> None:
    def leaders() -> list[int]:
        found = ask(services, 3, 12, metadata_request(12, ["a"]), metadata.handle_metadata)
        return [p.leader_id for p in found.topics[0].partitions]

    view = services.metadata
    assert leaders() == leaders() == [1, 2, -1, 3]
    view.image.apply([StatesChanged("a", A, {0: replace(led(2, 7, 1), partition_epoch=2)})], MetadataDelta())
    assert leaders() == [2, 2, -1, 3]
    view.brokers = {1: view.brokers[1]}
    assert leaders() == [-1, -1, -1, -1]


def test_a_departed_broker_is_named_for_a_while_but_leads_nothing(services: Services) -> None:
    view = services.metadata
    gone = view.brokers[1]
    view.brokers = {broker_id: info for broker_id, info in view.brokers.items() if broker_id != 1}
    view.departed = {1: gone}
    found = ask(services, 3, 12, metadata_request(12, None), metadata.handle_metadata)
    assert [broker.node_id for broker in found.brokers] == [1, *view.brokers]
    states = [part for topic in found.topics for part in topic.partitions]
    assert 1 not in {part.leader_id for part in states}
    assert any(1 in part.offline_replicas for part in states)
    described = ask(services, 60, 0, messages.request_class(60)(version=0), cluster.handle_describe_cluster)
    assert [broker.broker_id for broker in described.brokers] == list(view.brokers)


def test_what_is_kept_is_bounded(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, view = metadata_body.TopicRows(), services.metadata
    size = len(rows.get(view.topics["a"], view, "PLAINTEXT", 12, operations=NOT_ASKED))
    monkeypatch.setattr(metadata_body, "MAX_KEPT_BYTES", size * 3)
    for version in range(14):
        for operations in (NOT_ASKED, 0xDF8):
            rows.get(view.topics["a"], view, "PLAINTEXT", version, operations=operations)
            assert rows._bytes == sum(len(kept.row) for kept in rows._kept.values()) <= size * 3


@pytest.mark.parametrize("version", [12, 13])
def test_metadata_by_id(services: Services, version: int) -> None:
    unknown = uuid.UUID(int=123456)
    found = ask(services, 3, version, metadata_request(version, [A, unknown]), metadata.handle_metadata)
    assert (found.topics[0].name, found.topics[0].error_code, len(found.topics[0].partitions)) == ("a", 0, 4)
    assert (found.topics[1].name, found.topics[1].topic_id) == (None, unknown)
    assert found.topics[1].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_metadata_answers_with_the_clients_listener(services: Services) -> None:
    request = metadata_request(13, ["a"])
    found = ask(services, 3, 13, request, metadata.handle_metadata, listener="OUTSIDE")
    assert [(b.node_id, b.host) for b in found.brokers] == [(1, "b1.example"), (2, "b2.example")]
    assert [p.leader_id for p in found.topics[0].partitions] == [1, 2, -1, -1]
    assert found.topics[0].partitions[3].error_code == ErrorCode.LISTENER_NOT_FOUND


@pytest.mark.parametrize("version", versions(10))
def test_find_coordinator(services: Services, version: int) -> None:
    request = messages.request_class(10)
    if version >= 4:
        asked = request(version=version, key_type=0, coordinator_keys=["g0", "g1", "g0"])
        found = ask(services, 10, version, asked, metadata.handle_find_coordinator)
        assert [c.key for c in found.coordinators] == ["g0", "g1", "g0"]
        assert [c.node_id for c in found.coordinators] == [1, -1, 1]
        assert [c.error_code for c in found.coordinators] == [0, 15, 0]
        asked = request(version=version, key_type=2, coordinator_keys=["x"])
        found = ask(services, 10, version, asked, metadata.handle_find_coordinator)
        assert found.coordinators[0].error_code == ErrorCode.INVALID_REQUEST
        return
    fields = {"key_type": 0} if version >= 1 else {}
    found = ask(services, 10, version, request(version=version, key="g0", **fields), metadata.handle_find_coordinator)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "127.0.0.1", 9091)
    found = ask(services, 10, version, request(version=version, key="g1", **fields), metadata.handle_find_coordinator)
    assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    if version >= 1:
        asked = request(version=version, key="t0", key_type=1)
        found = ask(services, 10, version, asked, metadata.handle_find_coordinator)
        assert (found.error_code, found.error_message) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "too few brokers")
        assert cast(FixedController, services.controller).asked == [["__transaction_state"]]


@pytest.mark.parametrize("version", versions(60))
def test_describe_cluster(services: Services, version: int) -> None:
    request = messages.request_class(60)
    asked = request(version=version, include_cluster_authorized_operations=True)
    found = ask(services, 60, version, asked, cluster.handle_describe_cluster)
    assert (found.cluster_id, found.controller_id) == ("cluster-id", 2)
    assert [b.broker_id for b in found.brokers] == [1, 2, 3]
    assert found.authorized_operations == {5, 7, 8, 9, 10, 11, 12}
    if version >= 1:
        asked = request(version=version, endpoint_type=2)
        found = ask(services, 60, version, asked, cluster.handle_describe_cluster)
        assert found.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


def test_describe_topic_partitions_in_pages(services: Services) -> None:
    request = messages.request_class(75)
    cursor, seen, pages = None, [], 0
    while True:
        asked = request(version=0, topics=[], response_partition_limit=3, cursor=cursor)
        found = ask(services, 75, 0, asked, metadata.handle_describe_topic_partitions)
        pages += 1
        assert sum(len(t.partitions) for t in found.topics) <= 3
        seen += [(t.name, p.partition_index) for t in found.topics for p in t.partitions]
        if found.next_cursor is None:
            break
        cursor = request.Cursor(
            version=0,
            topic_name=found.next_cursor.topic_name,
            partition_index=found.next_cursor.partition_index,
        )
    assert seen == sorted(
        [("__consumer_offsets", 0), ("__consumer_offsets", 1), *(("a", i) for i in range(4)), ("c", 0), ("c", 1)]
    )
    assert pages == 3
    asked = request(version=0, topics=[request.TopicRequest(version=0, name=n) for n in ("nope", "a", "no/")])
    found = ask(services, 75, 0, asked, metadata.handle_describe_topic_partitions)
    assert [(t.name, t.error_code) for t in found.topics] == [("a", 0), ("no/", 17), ("nope", 3)]
    wrong = request(
        version=0, topics=asked.topics, cursor=request.Cursor(version=0, topic_name="a", partition_index=-1)
    )
    refused = ask(services, 75, 0, wrong, metadata.handle_describe_topic_partitions)
    assert {t.error_code for t in refused.topics} == {ErrorCode.INVALID_REQUEST}
    assert [(len(refused.topics), refused.next_cursor)] == [(3, None)]
    assert found.topics[0].topic_id == A
    first = services.metadata.topics["a"].partitions[0]
    known = replace(first, elr=(BrokerId(2),), elr_incarnations=(1,), last_known_leader=3, partition_epoch=9)
    services.metadata.image.apply([StatesChanged("a", A, {0: known})], MetadataDelta())
    found = ask(services, 75, 0, asked, metadata.handle_describe_topic_partitions)
    told = found.topics[0].partitions[:2]
    assert [(p.eligible_leader_replicas, p.last_known_elr) for p in told] == [([2], [3]), ([], [])]


@pytest.mark.parametrize("version", versions(19))
def test_create_topics(services: Services, version: int) -> None:
    controller = cast(FixedController, services.controller)
    info = services.metadata.topics["c"]
    controller.outcomes = [
        TopicOutcome("c", ErrorCode.NONE, None, info, C),
        TopicOutcome("bad", ErrorCode.INVALID_CONFIG, "Unknown."),
    ]
    request = messages.request_class(19)
    topic = request.CreatableTopic
    rows = [
        topic(version=version, name="c", num_partitions=-1, replication_factor=-1, assignments=[], configs=[]),
        topic(
            version=version,
            name="bad",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[topic.CreatableReplicaAssignment(version=version, partition_index=0, broker_ids=[1, 2])],
            configs=[topic.CreatableTopicConfig(version=version, name="x", value=None)],
        ),
    ]
    asked = request(version=version, topics=rows, timeout_ms=1000, validate_only=False)
    found = ask(services, 19, version, asked, topics.handle_create_topics)
    assert [(t.name, t.error_code, t.error_message) for t in found.topics] == [("c", 0, None), ("bad", 40, "Unknown.")]
    (new,) = controller.asked
    assert (new[0].partitions, new[0].replication_factor) == (-1, -1)
    assert (new[1].assignments, new[1].configs) == ({0: (1, 2)}, {"x": None})
    if version >= 5:
        good, bad = found.topics
        assert (good.num_partitions, good.replication_factor) == (2, 1)
        told = {c.name: (c.value, c.config_source) for c in good.configs}
        assert told.keys() == LISTED_OF_TOPICS
        assert told["retention.ms"] == ("-1", 1)
        assert told["max.message.bytes"] == ("2000", 3)
        assert bad.num_partitions == -1
    if version >= 7:
        assert found.topics[0].topic_id == C


def test_an_assignment_that_names_a_partition_twice_reaches_the_controller_as_such(services: Services) -> None:
    controller = cast(FixedController, services.controller)
    controller.outcomes = []
    request = messages.request_class(19)
    topic = request.CreatableTopic
    part = topic.CreatableReplicaAssignment
    rows = [
        topic(version=5, name=name, num_partitions=-1, replication_factor=-1, configs=[],
              assignments=[part(version=5, partition_index=index, broker_ids=[1]) for index in indexes])
        for name, indexes in (("once", (0, 1)), ("twice", (0, 1, 1)))
    ]  # fmt: skip
    asked = request(version=5, topics=rows, timeout_ms=1000, validate_only=False)
    ask(services, 19, 5, asked, topics.handle_create_topics)
    (new,) = controller.asked
    assert [one.assigned_twice for one in new] == [None, 1]


@pytest.mark.parametrize("version", versions(20))
def test_delete_topics(services: Services, version: int) -> None:
    controller = cast(FixedController, services.controller)
    request = messages.request_class(20)
    unknown = uuid.UUID(int=99)
    if version >= 6:
        state = request.DeleteTopicState
        asked = request(
            version=version,
            timeout_ms=1000,
            topics=[
                state(version=version, name="a", topic_id=None),
                state(version=version, name="twice", topic_id=None),
                state(version=version, name=None, topic_id=unknown),
                state(version=version, name="twice", topic_id=None),
                state(version=version, name="a", topic_id=A),
                state(version=version, name="__consumer_offsets", topic_id=None),
            ],
        )
        controller.outcomes = [
            TopicOutcome("a", ErrorCode.NONE, None, None, A),
            TopicOutcome("", ErrorCode.UNKNOWN_TOPIC_ID, "None.", None, unknown),
        ]
        found = ask(services, 20, version, asked, topics.handle_delete_topics)
        assert controller.asked == [["a", unknown]]
        assert [(r.name, r.topic_id, r.error_code) for r in found.responses] == [
            ("a", A, 0),
            ("twice", None, 42),
            (None, unknown, 100),
            ("twice", None, 42),
            ("a", A, 42),
            ("__consumer_offsets", None, 44),
        ]
        assert "internal.topics.alter.enable" in found.responses[-1].error_message
        return
    asked = request(version=version, timeout_ms=1000, topic_names=["a", "b", "__transaction_state"])
    controller.outcomes = [
        TopicOutcome("a", ErrorCode.NONE, None, None, A),
        TopicOutcome("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "None."),
    ]
    found = ask(services, 20, version, asked, topics.handle_delete_topics)
    assert [(r.name, r.error_code) for r in found.responses] == [("a", 0), ("b", 3), ("__transaction_state", 44)]


def test_internal_topics_are_deleted_where_the_brokers_permit_it(services: Services) -> None:
    controller = cast(FixedController, services.controller)
    services.config = replace(services.config, internal_topics_alter_enable=True)
    controller.outcomes = [TopicOutcome("__consumer_offsets", ErrorCode.NONE, None, None, A)]
    asked = messages.request_class(20)(version=5, timeout_ms=1000, topic_names=["__consumer_offsets"])
    (row,) = ask(services, 20, 5, asked, topics.handle_delete_topics).responses
    assert (row.error_code, controller.asked) == (0, [["__consumer_offsets"]])


def test_topics_with_too_many_partitions_are_counted_first_and_refused_once(services: Services) -> None:
    request = messages.request_class(19)
    topic = request.CreatableTopic
    rows = [
        topic(version=7, name=f"t{n}", num_partitions=6_000, replication_factor=1, assignments=[], configs=[])
        for n in range(3)
    ]
    asked = request(version=7, topics=rows, timeout_ms=1000, validate_only=False)
    found = ask(services, 19, 7, asked, topics.handle_create_topics)
    assert [(t.name, t.error_code) for t in found.topics] == [(f"t{n}", ErrorCode.POLICY_VIOLATION) for n in range(3)]
    first, *others = [t.error_message for t in found.topics]
    assert "18000, at most 10000" in first
    assert set(others) == {"Excessively large number of partitions per request."}
    controller = cast(FixedController, services.controller)
    assert controller.asked == []
    controller.is_active = False
    ask(services, 19, 7, asked, topics.handle_create_topics)
    assert len(controller.asked) == 1, "another broker's controller is asked, which says that it is none"


@pytest.mark.parametrize("version", versions(37))
def test_create_partitions(services: Services, version: int) -> None:
    controller = cast(FixedController, services.controller)
    controller.outcomes = [TopicOutcome("a", ErrorCode.NONE), TopicOutcome("b", ErrorCode.INVALID_PARTITIONS, "No.")]
    request = messages.request_class(37)
    row = request.CreatePartitionsTopic
    part = row.CreatePartitionsAssignment
    rows = [
        row(version=version, name="a", count=6, assignments=[part(version=version, broker_ids=[1])] * 2),
        row(version=version, name="b", count=1, assignments=None),
    ]
    asked = request(version=version, topics=rows, timeout_ms=1000, validate_only=True)
    found = ask(services, 37, version, asked, topics.handle_create_partitions)
    assert [(r.name, r.error_code, r.error_message) for r in found.results] == [("a", 0, None), ("b", 37, "No.")]
    (new,) = controller.asked
    assert (new[0].assignments, new[1].assignments) == (((1,), (1,)), None)


A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def reassign(
    services: Services, version: int, wanted: list[tuple[TopicPartition, list[int] | None]], **fields: Any
) -> Any:
    request = messages.request_class(45)
    topic = request.ReassignableTopic
    rows = [
        topic(
            version=version,
            name=tp.topic,
            partitions=[topic.ReassignablePartition(version=version, partition_index=tp.partition, replicas=replicas)],
        )
        for tp, replicas in wanted
    ]
    asked = request(version=version, timeout_ms=1000, topics=rows, **fields)
    return ask(services, 45, version, asked, reassignments.handle_alter_partition_reassignments)


@pytest.mark.parametrize("version", versions(45))
def test_alter_partition_reassignments(services: Services, version: int) -> None:
    controller = cast(FixedController, services.controller)
    unknown = TopicPartition("nope", 0)
    controller.results = {
        A1: (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "None."),
        unknown: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No."),
    }
    found = reassign(services, version, [(unknown, [1]), (A1, None), (A0, [2, 3])])
    assert controller.asked == [{unknown: [1], A1: None, A0: [2, 3]}]
    assert (found.error_code, found.error_message) == (0, None)
    assert [
        (t.name, [(p.partition_index, p.error_code, p.error_message) for p in t.partitions]) for t in found.responses
    ] == [("a", [(0, 0, None), (1, 85, "None.")]), ("nope", [(0, 3, "No.")])]
    twice = reassign(services, version, [(A0, [2]), (A0, [3])])
    assert [p.error_code for p in twice.responses[0].partitions] == [ErrorCode.INVALID_REQUEST]
    assert controller.asked[1] == {}


def test_thousands_of_reassignments_let_the_loop_turn(services: Services) -> None:
    """A turn of the loop for every few partitions: in the request, in what is refused, and in the answer."""
    request = messages.request_class(45)
    topic = request.ReassignableTopic
    rows = [topic.ReassignablePartition(version=1, partition_index=n, replicas=[2]) for n in range(1_600)]
    asked = request(version=1, timeout_ms=1000, topics=[topic(version=1, name="a", partitions=rows)])
    context = Context(services, ClientConnection(1, "PLAINTEXT", "127.0.0.1"), 45, 1, 1, "test")
    work = reassignments.handle_alter_partition_reassignments(asked, context).coroutine
    turns = 0
    try:
        while True:
            work.send(None)
            turns += 1
    except StopIteration as ended:
        done = ended.value
    assert turns >= 2 * 1_600 // ROWS_PER_YIELD
    assert sum(1 for _ in done.response.work) >= 1_600


def test_a_reassignment_may_keep_the_factor_only(services: Services) -> None:
    state = PartitionState((BrokerId(1), BrokerId(2)), 1, 5, (BrokerId(1),), 2, 1, 4, (4,), adding=(BrokerId(2),))
    services.metadata.image.topics["a"] = replace(
        services.metadata.topics["a"], partitions=(state, *services.metadata.topics["a"].partitions[1:])
    )
    found = reassign(services, 1, [(A0, [2, 3]), (A1, [3])], allow_replication_factor_change=False)
    first, second = found.responses[0].partitions
    assert (first.error_code, second.error_code) == (ErrorCode.INVALID_REPLICATION_FACTOR, 0)
    assert "from 1 to 2" in first.error_message
    assert found.allow_replication_factor_change is False
    assert cast(FixedController, services.controller).asked == [{A1: [3]}]


@pytest.mark.parametrize("version", versions(45))
def test_reassignments_go_to_the_controller(services: Services, version: int) -> None:
    controller = cast(FixedController, services.controller)
    controller.is_active = False
    controller.results = {A0: (ErrorCode.NOT_CONTROLLER, "Elsewhere.")}
    for wanted in ([(A0, [2])], []):
        found = reassign(services, version, cast(Any, wanted))
        assert (found.error_code, found.responses) == (ErrorCode.NOT_CONTROLLER, [])


def test_list_partition_reassignments(services: Services) -> None:
    request = messages.request_class(46)

    def listed(topics: Any) -> list[Any]:
        asked = request(version=0, timeout_ms=1, topics=topics)
        found = ask(services, 46, 0, asked, reassignments.handle_list_partition_reassignments)
        assert found.error_code == 0
        return [
            (t.name, p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
            for t in found.topics
            for p in t.partitions
        ]

    assert listed(None) == []
    moving = TopicZnode(C, ((BrokerId(2), BrokerId(3)), (BrokerId(1),)), {0: (BrokerId(3),)}, {0: (BrokerId(2),)})
    services.metadata.image.apply([TopicChanged("c", moving, 1)], MetadataDelta())
    assert listed(None) == [("c", 0, [2, 3], [3], [2])]
    row = request.ListPartitionReassignmentsTopics
    named = [row(version=0, name="c", partition_indexes=[1, 0, 0, 7]), row(version=0, name="x", partition_indexes=[0])]
    assert listed(named) == [("c", 0, [2, 3], [3], [2])]
    assert listed([row(version=0, name="c", partition_indexes=[1])]) == []
    assert listed([]) == []


@pytest.mark.parametrize("version", versions(43))
def test_elect_leaders(services: Services, version: int) -> None:
    controller = cast(FixedController, services.controller)
    request = messages.request_class(43)
    row = request.TopicPartitions
    kind = {"election_type": 1} if version >= 1 else {}
    controller.results = {A1: (ErrorCode.ELECTION_NOT_NEEDED, "Fine."), A0: (ErrorCode.NONE, None)}

    def elect(topics: Any, **fields: Any) -> Any:
        asked = request(version=version, topic_partitions=topics, timeout_ms=1000, **fields)
        found = ask(services, 43, version, asked, elections.handle_elect_leaders)
        rows = [
            (t.topic, p.partition_id, p.error_code, p.error_message)
            for t in found.replica_election_results
            for p in t.partition_result
        ]
        return (found.error_code if version >= 1 else None), rows

    named = [row(version=version, topic="a", partitions=[1, 0, 1])]
    top, rows = elect(named, **kind)
    assert controller.asked == [([A1, A0], version >= 1)]
    assert (top or 0, rows) == (0, [("a", 0, 0, None), ("a", 1, 84, "Fine.")])
    top, rows = elect(None)
    assert controller.asked[1] == (None, False)
    assert rows == [("a", 0, 0, None)], "where nothing was to be done is not told, unless asked by name"
    if version >= 1:
        assert elect(named, election_type=7)[0] == ErrorCode.INVALID_REQUEST
        assert len(controller.asked) == 2
    controller.is_active = False
    controller.results = {A0: (ErrorCode.NOT_CONTROLLER, None), A1: (ErrorCode.NOT_CONTROLLER, None)}
    top, rows = elect(named)
    assert top in (None, ErrorCode.NOT_CONTROLLER)
    assert [row[2] for row in rows] == [ErrorCode.NOT_CONTROLLER] * 2
    controller.results = {}
    assert elect(None)[0] in (None, ErrorCode.NOT_CONTROLLER)


@pytest.fixture
def logs(services: Services, tmp_path: Path) -> LogStore:
    """Two directories with a log each; the second one's is a follower that heard of more than it has."""
    paths = (f"{tmp_path}/one", f"{tmp_path}/two/")
    store = LogStore(replace(services.config, log_dirs=paths), RealDisk(), ManualClock())
    store.load()
    for tp in (A0, A1):
        store.create(tp, A, services.config.topic_defaults())
    append(cast(Any, store.get(A0)), batch(3))
    services.replicas = cast(Any, SimpleNamespace(logs=store, faults=list))
    return store


@pytest.mark.parametrize("version", versions(35))
def test_describe_log_dirs(services: Services, logs: LogStore, tmp_path: Path, version: int) -> None:
    request = messages.request_class(35)

    def described(topics: Any) -> Any:
        asked = request(version=version, topics=topics)
        found = ask(services, 35, version, asked, log_dirs.handle_describe_log_dirs)
        assert version < 3 or found.error_code == 0
        return found.results

    one, two = described(None)
    assert (one.log_dir, two.log_dir) == (f"{tmp_path}/one", f"{tmp_path}/two")
    assert (one.error_code, two.error_code) == (0, 0)
    sizes = {(t.name, p.partition_index): p.partition_size for d in (one, two) for t in d.topics for p in t.partitions}
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("*/a-0/*.log"))
    assert sizes == {("a", 0): on_disk, ("a", 1): 0}
    assert on_disk > 0
    (lag,) = [p.offset_lag for d in (one, two) for t in d.topics for p in t.partitions if p.partition_index == 0]
    assert lag == 0
    assert not any(p.is_future_key for d in (one, two) for t in d.topics for p in t.partitions)
    if version >= 4:
        assert one.total_bytes >= one.usable_bytes > 0
    row = request.DescribableLogDirTopic
    found = described(
        [row(version=version, topic="a", partitions=[1, 5]), row(version=version, topic="x", partitions=[0])]
    )
    assert [[(t.name, [p.partition_index for p in t.partitions]) for t in d.topics] for d in found] in (
        [[("a", [1])], []],
        [[], [("a", [1])]],
    )
    assert [d.topics for d in described([])] == [[], []]
    logs.take_offline(logs.directories[0])
    bad, good = described(None)
    assert (bad.error_code, bad.topics, good.error_code) == (ErrorCode.KAFKA_STORAGE_ERROR, [], 0)
    assert len(good.topics) == 1
    if version >= 4:
        assert (bad.total_bytes, bad.usable_bytes) == (-1, -1)
    if version >= 5:
        assert (bad.is_cordoned, good.is_cordoned) == (False, False)


@pytest.mark.parametrize("version", versions(35))
def test_what_the_process_lacks_stands_in_a_tagged_field(services: Services, logs: LogStore, version: int) -> None:
    asked = messages.request_class(35)(version=version, topics=[])
    well = ask(services, 35, version, asked, log_dirs.handle_describe_log_dirs)
    assert not well.troubles
    assert not well.tags, "nothing is on the wire while all is well"
    services.process_troubles = lambda: ["9 of 10 file descriptors are in use"]
    found = ask(services, 35, version, asked, log_dirs.handle_describe_log_dirs)
    assert list(found.troubles or ()) == (["9 of 10 file descriptors are in use"] if version >= 2 else [])
    services.replicas = cast(Any, SimpleNamespace(logs=logs, faults=lambda: ["t-0: does not follow broker 2"]))
    found = ask(services, 35, version, asked, log_dirs.handle_describe_log_dirs)
    assert list(found.troubles or ())[1:] == (["t-0: does not follow broker 2"] if version >= 2 else [])
    logs.directories[0].strays = {f"/d/u-{n}.{n:032x}-stray": 10 for n in range(7)}
    found = ask(services, 35, version, asked, log_dirs.handle_describe_log_dirs)
    text = f"7 log(s), 70 bytes, lie aside in {logs.directories[0].path}: u-0, u-1, u-2, u-3, u-4 and 2 more"
    assert list(found.troubles or ())[2:] == ([text] if version >= 2 else [])


@pytest.mark.parametrize("version", versions(34))
def test_alter_replica_log_dirs(services: Services, logs: LogStore, tmp_path: Path, version: int) -> None:
    request = messages.request_class(34)

    def altered(path: Path | str, *partitions: int) -> list[tuple[str, int, int]]:
        topic = request.AlterReplicaLogDir.AlterReplicaLogDirTopic(version=version, name="a", partitions=partitions)
        one = request.AlterReplicaLogDir(version=version, path=str(path), topics=[topic])
        asked = request(version=version, dirs=[one])
        found = ask(services, 34, version, asked, log_dirs.handle_alter_replica_log_dirs)
        return [(t.topic_name, p.partition_index, p.error_code) for t in found.results for p in t.partitions]

    home, other = (tmp_path / "one", tmp_path / "two")
    if not (home / "a-0").exists():
        home, other = other, home
    assert altered(f"{home}/", 0) == [("a", 0, 0)]
    assert altered(other, 0, 9) == [
        ("a", 0, ErrorCode.UNSUPPORTED_VERSION),
        ("a", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert altered("/nowhere", 0) == [("a", 0, ErrorCode.LOG_DIR_NOT_FOUND)]
    logs.take_offline(next(d for d in logs.directories if d.path == str(other)))
    assert altered(other, 0) == [("a", 0, ErrorCode.KAFKA_STORAGE_ERROR)]


LISTED_OF_TOPICS = {row.name for row in TOPIC_SETTINGS.values() if not row.retired}
LISTED_OF_BROKERS = {row.name for row in BROKER_SETTINGS.values() if not row.retired}


def describe(services: Services, version: int, resources: list[tuple[int, str, list[str] | None]], **more: Any) -> Any:
    request = messages.request_class(32)
    rows = [
        request.DescribeConfigsResource(version=version, resource_type=k, resource_name=n, configuration_keys=keys)
        for k, n, keys in resources
    ]
    asked = request(version=version, resources=rows, **more)
    return ask(services, 32, version, asked, configs.handle_describe_configs)


@pytest.mark.parametrize("version", versions(32))
def test_describe_configs(services: Services, version: int) -> None:
    more: dict[str, Any] = {"include_synonyms": True}
    if version >= 3:
        more["include_documentation"] = True
    wanted = [(2, "c", None), (4, "1", None), (4, "", None), (2, "c", ["retention.ms"]), (32, "g", None)]
    wanted += [(2, "nope", None), (2, "no/good", None), (4, "2", None), (8, "1", None), (99, "x", None)]
    found = describe(services, version, cast(Any, wanted), **more).results
    assert [(r.resource_type, r.resource_name) for r in found] == [(k, n) for k, n, _ in wanted]
    assert [r.error_code for r in found] == [0, 0, 0, 0, 0, 3, 17, 42, 0, 42]
    assert [c.name for c in found[0].configs] == sorted(LISTED_OF_TOPICS)
    assert [c.name for c in found[1].configs] == sorted(LISTED_OF_BROKERS)
    if version == 0:
        assert {c.name: (c.value, c.is_default) for c in found[0].configs}["retention.ms"] == ("-1", False)
        assert {c.name: c.is_default for c in found[1].configs}["num.io.threads"]
        return
    assert [(c.name, c.value, c.config_source) for c in found[2].configs] == [
        ("log.retention.ms", "1000", 3),
        ("message.max.bytes", "2000", 3),
    ]
    assert [c.name for c in found[3].configs] == ["retention.ms"]
    retention = found[3].configs[0]
    assert (retention.value, retention.config_source, retention.read_only) == ("-1", 1, False)
    assert [(s.name, s.value, s.source) for s in retention.synonyms] == [
        ("retention.ms", "-1", 1),
        ("log.retention.ms", "2000", 2),
        ("log.retention.ms", "1000", 3),
        ("log.retention.hours", "168", 5),
    ]
    told = {c.name: c for c in found[1].configs}
    assert (told["broker.rack"].value, told["broker.rack"].config_source) == ("r1", 4)
    assert (told["num.partitions"].value, told["num.partitions"].read_only) == ("2", True)
    assert (told["connections.max.reauth.ms"].value, told["connections.max.reauth.ms"].config_source) == ("0", 5)
    of_group = {c.name: c for c in found[4].configs}
    assert of_group["consumer.session.timeout.ms"].value == "50000"
    assert [(s.name, s.value, s.source) for s in of_group["consumer.heartbeat.interval.ms"].synonyms] == [
        ("group.consumer.heartbeat.interval.ms", "5000", 5)
    ]
    if version >= 3:
        assert retention.config_type == 5
        assert retention.documentation


def test_what_is_unset_is_described_as_kafka_describes_it(services: Services) -> None:
    """Kafka 4.1.1's own answers: null without synonyms, and the settings behind one in milliseconds."""
    static = replace(services.config, given=(("log.retention.hours", "100"), ("queued.max.requests", "7")))
    static = replace(static, log_retention_hours=100)
    view = services.metadata
    view.static = static
    own = {"my.plugin": "x"}
    view.image.apply(
        [ConfigChanged("brokers", "<default>", 9, {}), ConfigChanged("brokers", "1", 9, own)], MetadataDelta()
    )
    view._apply_dynamic_configs(MetadataChange(reloaded=True))
    found = describe(services, 4, [(4, "1", None), (2, "a", None)], include_synonyms=True, include_documentation=False)
    broker, topic = ({c.name: c for c in one.configs} for one in found.results)

    def told(one: Any) -> tuple[Any, ...]:
        return (one.value, one.config_source, [(s.name, s.value, s.source) for s in one.synonyms])

    hours = [("log.retention.hours", "100", 4), ("log.retention.hours", "168", 5)]
    assert told(broker["log.retention.ms"]) == (None, 5, [])
    assert told(broker["log.retention.minutes"]) == (None, 5, [])
    assert told(broker["log.retention.hours"]) == ("100", 4, hours)
    assert told(topic["retention.ms"]) == ("360000000", 5, [])
    assert told(topic["segment.ms"]) == (str(7 * 24 * 3600 * 1000), 5, [])
    assert told(topic["flush.ms"]) == (str(2**63 - 1), 5, [])
    assert told(topic["local.retention.ms"]) == ("-2", 5, [("log.local.retention.ms", "-2", 5)])
    assert told(topic["remote.storage.enable"]) == ("false", 5, [])
    assert told(broker["queued.max.requests"]) == (
        "7", 4, [("queued.max.requests", "7", 4), ("queued.max.requests", "500", 5)],
    )  # fmt: skip
    assert told(broker["node.id"])[0] == "1"
    assert told(broker["replica.selector.class"]) == (None, 5, [])
    assert told(broker["log.cleaner.io.max.bytes.per.second"])[0] == "1.7976931348623157E308"
    assert (broker["listeners"].config_type, broker["listeners"].read_only) == (7, True)
    assert broker["ssl.keystore.password"].is_sensitive
    foreign = broker["my.plugin"]
    assert (foreign.value, foreign.is_sensitive, foreign.config_type, foreign.config_source) == (None, True, 0, 2)


def test_list_config_resources(services: Services) -> None:
    request = messages.request_class(74)
    found = ask(services, 74, 0, request(version=0), configs.handle_list_config_resources)
    assert (found.error_code, found.config_resources) == (0, [])
    found = ask(services, 74, 1, request(version=1, resource_types=[]), configs.handle_list_config_resources)
    listed = [(r.resource_type, r.resource_name) for r in found.config_resources]
    assert (2, "a") in listed
    assert (4, "3") in listed
    assert (8, "3") in listed
    assert (32, "g") in listed
    found = ask(services, 74, 1, request(version=1, resource_types=[32]), configs.handle_list_config_resources)
    assert [r.resource_name for r in found.config_resources] == ["g"]
    found = ask(services, 74, 1, request(version=1, resource_types=[32, 77]), configs.handle_list_config_resources)
    assert found.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_connection_makes_so_many_topics_a_second_by_naming_them(services: Services) -> None:
    services.config = BrokerConfig(broker_id=1, zookeeper_connect="unused", auto_create_topics_max_per_second=3)
    asked = metadata_request(12, [f"new-{i}" for i in range(5)])
    found = ask(services, 3, 12, asked, metadata.handle_metadata)
    controller = cast(FixedController, services.controller)
    assert controller.asked == [["new-0", "new-1", "new-2"]]
    assert [topic.error_code for topic in found.topics] == [ErrorCode.LEADER_NOT_AVAILABLE] * 5, "it asks again"
    ask(services, 3, 12, asked, metadata.handle_metadata)
    assert controller.asked[1:] == [[]], "not in the same second"
    cast(Any, services.clock).mono_ms = lambda: 1_000
    ask(services, 3, 12, asked, metadata.handle_metadata)
    assert controller.asked[2:] == [["new-0", "new-1", "new-2"]]


def test_a_topic_named_twice_is_answered_once(services: Services) -> None:
    found = ask(services, 3, 12, metadata_request(12, ["a", "a", "b", "a"]), metadata.handle_metadata)
    assert [topic.name for topic in found.topics] == ["a", "b"]
