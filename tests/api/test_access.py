"""Every API against the door: it asks what its row lists, and without the right nothing is told or changed."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    IDEMPOTENT_WRITE,
    OPERATIONS_OF,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Access,
    Need,
)
from fleetlog.brokers.acls.decisions import Question
from fleetlog.brokers.acls.image import AclOperation, ResourceType
from fleetlog.brokers.api.base import Context, InSlices, InTask, NewTopics
from fleetlog.brokers.api.rows import api_table
from fleetlog.brokers.controller.requests import TopicOutcome
from fleetlog.brokers.groups.records import CommittedOffset
from fleetlog.brokers.groups.requests import OffsetCommitRequest
from fleetlog.brokers.model import SCHEMAS_TOPIC, TopicInfo, TopicPartition
from fleetlog.wire import hot
from fleetlog.wire.api_keys import DESCRIBE_CONNECTIONS
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from tests.server import work
from tests.support.bytecodes import Bytecodes
from tests.support.coordinator_broker import TRANSACTIONAL, Broker, play
from tests.support.filled import SECRET, codes, filled
from tests.support.one_znode import OneZnode

SECRET_SINK = "secret sink"
DELEGATION_TOKENS = {38, 39, 40, 41}
"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken."""
NEEDS = {key: row.needs for key, row in api_table().items()}
OPEN_TO_ALL = {17, 18, 36} | DELEGATION_TOKENS
LISTS = {16, 66}
"""Answers that leave out what the client may not see."""
ERRORS = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
EVERY_VERSION = [(key, version) for key, row in APIS.items() for version in range(row.lowest, row.max_version + 1)]


class Rules:
    """Allows what it was given, and keeps what it was asked."""

    def __init__(self, *allowed: Need | tuple[AclOperation, ResourceType]) -> None:
        self.allowed = set(allowed)
        self.asked: set[Need] = set()
        self.questions = 0
        self.verdicts: dict[Question, bool] = {}

    def allows(self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        assert principal == "User:ANONYMOUS"
        assert (name == "kafka-cluster") is (kind is CLUSTER)
        return self.allows_any(principal, host, operation, kind)

    def allows_any(self, principal: str, host: str, operation: AclOperation, kind: ResourceType) -> bool:
        self.asked.add(Need(operation, kind))
        self.questions += 1
        return (operation, kind) in self.allowed


class Controller:
    """Keeps what it was asked to do."""

    is_active = True

    def __init__(self, created: TopicInfo) -> None:
        self.created = created
        self.done: list[tuple[str, Any]] = []

    async def create_topics(self, new: Any, **_: Any) -> list[TopicOutcome]:
        self.done += [("create", topic.name) for topic in new]
        return [TopicOutcome(topic.name, ErrorCode.NONE, None, self.created) for topic in new]

    async def create_partitions(self, new: Any, **_: Any) -> list[TopicOutcome]:
        self.done += [("extend", topic.name) for topic in new]
        return []

    async def delete_topics(self, wanted: Any, **_: Any) -> list[TopicOutcome]:
        self.done += [("delete", topic) for topic in wanted]
        return []

    async def auto_create(self, names: Any, timeout_ms: int = 0) -> dict[str, ErrorCode]:
        self.done += [("auto-create", name) for name in names]
        return dict.fromkeys(names, ErrorCode.REQUEST_TIMED_OUT)

    async def alter_reassignments(self, wanted: Any, **_: Any) -> dict[TopicPartition, Any]:
        self.done += [("move", tp) for tp in wanted]
        return {}

    async def elect_leaders(self, partitions: Any, **_: Any) -> dict[TopicPartition, Any]:
        self.done.append(("elect", partitions))
        return {}

    async def controlled_shutdown(self, *asked: Any, **_: Any) -> tuple[ErrorCode, list[Any]]:
        self.done.append(("stop", asked))
        return ErrorCode.NONE, []


class Guarded(Broker):
    """A broker with a topic that has records, a group that has offsets, and a door."""

    def __init__(self, directory: Path, **settings: str) -> None:
        super().__init__(directory, OneZnode(), **settings)
        self.controller = Controller(self.topic(SECRET, topic_id=TOPIC_ID))
        self.services.controller = self.controller
        self.services.new_topics = NewTopics()
        self.services.process_troubles = list
        self.services.connections = lambda after_id: (0, [])
        self.services.store = None
        self.services.metadata.features = {"group.version": 1, "share.version": 1}
        self.rules = Rules()
        self.append(SECRET, 5)

    async def furnished(self) -> Guarded:
        await self.ready()
        offset = ((TopicPartition(SECRET, 0), CommittedOffset(3)),)
        commit = OffsetCommitRequest(SECRET, -1, "", None, offset)
        done = asyncio.Event()
        pending = self.services.groups.submit(SECRET, lambda shard, now, ticket: shard.commit(commit, now, ticket))
        pending.on_done(lambda _: done.set())
        await done.wait()
        given = await self.init(SECRET)
        assert await self.add(given.producer_id, given.producer_epoch, 0, name=SECRET, topic=SECRET) == 0
        begun = await self.call(12001, 0, m.BeginBatchRequest(version=0, sink_id=SECRET_SINK, timeout_ms=60_000))
        assert begun.error_code == 0
        self.batch_producer = begun.producer_id, begun.producer_epoch
        self.services.access = Access(self.rules)
        return self

    def transactional_batch(self) -> bytes:
        return self.batch(attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0)

    def state(self) -> Any:
        """What a request could change."""
        logs = {tp: log.log_end_offset for tp, log in self.logs.all().items()}
        start = self.partition(SECRET).log.log_start_offset
        return logs, start, list(self.controller.done)


TOPIC_ID, SCHEMAS_ID = uuid.UUID(int=4711), uuid.UUID(int=4712)


async def answer(broker: Guarded, key: int, version: int, request: Any) -> Any:
    """The decoded answer of the API."""
    frame = memoryview(bytearray(m.encode_request(key, version, 1, "test", request)))[4:]
    header = m.parse_request_header(frame)
    decode = hot.DECODERS.get(key)
    body = frame[header.body :]
    decoded = m.decode_request(key, version, body) if decode is None else decode(version, body)
    found = await broker.outcome(key, version, decoded)
    if isinstance(found, hot.Encoded):
        chunks = [chunk if isinstance(chunk, bytes) else chunk.read() for chunk in found.chunks]
        found.release()
        found = b"".join(chunks)
    elif not isinstance(found, bytes):
        found = m.encode_response(found, key, version)
    return m.decode_response(key, version, found)


def request_of(broker: Guarded, key: int, version: int, **others: Any) -> Any:
    if key in (0, 1, 8, 9, 28, 78):
        others = {"topic_id": TOPIC_ID, "records": broker.batch()} | others
    return filled(key, version, **others)


def test_every_api_says_what_it_needs() -> None:
    assert {key for key, needs in NEEDS.items() if not needs} == OPEN_TO_ALL
    for needs in NEEDS.values():
        assert all(need.operation in OPERATIONS_OF[need.resource] for need in needs)


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION, ids=lambda number: str(number))
def test_a_client_without_rights_is_refused(tmp_path: Path, key: int, version: int) -> None:
    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        before = broker.state()
        found = await answer(broker, key, version, request_of(broker, key, version))
        assert broker.state() == before, "nothing is changed"
        assert broker.rules.asked <= set(NEEDS[key]) | operations_told(key), "asked what the table does not list"
        expected = {ERRORS[need.resource] for need in NEEDS[key]}
        shown = set(codes(found))
        if key in OPEN_TO_ALL:
            assert not broker.rules.asked
            if key in DELEGATION_TOKENS:
                assert shown == {ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED}
        elif key in LISTS | {60} or (key == 35 and version < 3):
            assert broker.rules.asked
            assert shown <= expected
            assert not any(rows_of(found))
        else:
            assert shown
            assert shown <= expected
        await broker.stop()

    play(scenario)


def rows_of(found: Any) -> list[Any]:
    """The arrays of an answer."""
    return [value for name, value in found.to_dict().items() if isinstance(value, list) and name != "brokers"]


def operations_told(key: int) -> set[Need]:
    """What is asked only to tell the client its operations."""
    kinds = {3: (TOPIC, CLUSTER), 15: (GROUP,), 60: (CLUSTER,), 75: (TOPIC,)}.get(key, ())
    return {Need(operation, kind) for kind in kinds for operation in OPERATIONS_OF[kind]}


@pytest.mark.parametrize("key", [*sorted(LISTS), 12006])
def test_a_list_has_what_the_client_may_describe(tmp_path: Path, key: int) -> None:
    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        version = APIS[key].max_version
        broker.rules.allowed = {Need(DESCRIBE, GROUP), Need(DESCRIBE, TRANSACTIONAL_ID)}
        found = await answer(broker, key, version, request_of(broker, key, version, sink_ids=None))
        assert any(rows_of(found))
        broker.rules.allowed = set()
        found = await answer(broker, key, version, request_of(broker, key, version, sink_ids=None))
        assert not any(rows_of(found))
        await broker.stop()

    play(scenario)


NAMES, AT_ONCE = 300, 40
ON_NOTHING = Need(AclOperation.DELETE, TOPIC)
"""What would go on to a controller that is none."""


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("key", NEEDS)
def test_rights_on_many_names_are_asked_in_slices(tmp_path: Path, key: int, some: bool) -> None:
    """A question takes some microseconds, and a request may have twenty thousand names."""
    version = APIS[key].max_version
    body = memoryview(work._body(key, version, work.Shape(False, "unknown"), NAMES))
    decode = hot.DECODERS.get(key)
    request = decode(version, body) if decode else m.decode_request(key, version, body)

    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        rules = broker.rules
        rules.allowed = {need for need in NEEDS[key] if some and need.resource is not CLUSTER and need != ON_NOTHING}
        most = 0

        async def turn() -> None:
            nonlocal most
            most = max(most, rules.questions)
            rules.questions = 0
            await asyncio.sleep(0)

        async def turns() -> None:
            while True:
                await turn()

        rules.questions = 0
        ticking = asyncio.create_task(turns())
        outcome = api_table()[key].handler(request, broker.context(key, version))
        while isinstance(outcome, InSlices | InTask):
            if isinstance(outcome, InTask):
                outcome = await outcome.coroutine
                continue
            try:
                next(outcome.work)
            except StopIteration as ended:
                outcome = ended.value
            await turn()
        await turn()
        ticking.cancel()
        assert most <= AT_ONCE, f"{most} questions in a turn"
        await broker.stop()

    play(scenario)


def test_patterns_are_matched_with_ids_that_the_client_may_describe(tmp_path: Path) -> None:
    """What is matched takes time, and some pattern takes too long with some id: neither tells of hidden ids."""

    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        broker.rules.allowed = {Need(WRITE, TRANSACTIONAL_ID)}
        assert (await broker.init("a" * 30_000)).error_code == 0
        request = m.ListTransactionsRequest(
            version=2, state_filters=[], producer_id_filters=[], transactional_id_pattern="(?:a|b){300}.*"
        )
        for allowed, error in (set(), 0), ({Need(DESCRIBE, TRANSACTIONAL_ID)}, ErrorCode.INVALID_REGULAR_EXPRESSION):
            broker.rules.allowed = allowed
            found = await answer(broker, 66, 2, request)
            assert (found.error_code, found.transaction_states) == (error, [])
        await broker.stop()

    play(scenario)


ALTERNATIVES = (
    {Need(CREATE, CLUSTER), Need(CREATE, TOPIC)},
    {Need(IDEMPOTENT_WRITE, CLUSTER), Need(WRITE, TOPIC)},
    {Need(ALTER, CLUSTER), Need(CLUSTER_ACTION, CLUSTER)},
    {Need(CLUSTER_ACTION, CLUSTER), Need(DESCRIBE, TOPIC)},
    {Need(DESCRIBE, CLUSTER), Need(DESCRIBE, GROUP)},
    {Need(CREATE, CLUSTER), Need(CREATE, TOPIC), Need(CLUSTER_ACTION, CLUSTER)},
    {Need(DESCRIBE, CLUSTER), Need(CLUSTER_ACTION, CLUSTER)},
)
"""Where an API needs one of several, all are taken away."""
BY_REQUEST: dict[tuple[int, Need], tuple[int, dict[str, Any]]] = {
    (0, Need(WRITE, TRANSACTIONAL_ID)): (12, {"transactional": True}),
    (1, Need(CLUSTER_ACTION, CLUSTER)): (14, {"replica_id": 2}),
    (3, Need(CREATE, CLUSTER)): (9, {"name": "new"}),
    (3, Need(CREATE, TOPIC)): (9, {"name": "new"}),
    (10, Need(DESCRIBE, TRANSACTIONAL_ID)): (6, {"key_type": 1}),
    (22, Need(IDEMPOTENT_WRITE, CLUSTER)): (5, {"transactional_id": None}),
    (22, Need(WRITE, TOPIC)): (5, {"transactional_id": None}),
    (24, Need(WRITE, TRANSACTIONAL_ID)): (3, {}),
    (24, Need(WRITE, TOPIC)): (3, {}),
    (DESCRIBE_CONNECTIONS, Need(DESCRIBE, TOPIC)): (0, {"topic": "t"}),
    (78, Need(READ, TOPIC)): (
        2,
        {
            "share_session_epoch": 0,
            "forgotten_topics_data": [],
            "acknowledgement_batches": [],
            "is_renew_ack": False,
            "max_bytes": 9,
            "max_records": 9,
            "max_wait_ms": 0,
        },
    ),
    **{
        (key, Need(operation, resource)): (APIS[key].max_version, {"resource_type": kind})
        for key, operation in ((32, DESCRIBE_CONFIGS), (33, ALTER_CONFIGS), (44, ALTER_CONFIGS))
        for resource, kind in ((GROUP, 32), (CLUSTER, 4))
    },
}
"""Which version and which values make an API ask, where the usual request does not."""
TOLD_OTHERWISE = {
    (3, Need(DESCRIBE, CLUSTER)),  # operations of the answer
    (60, Need(DESCRIBE, CLUSTER)),
    (16, Need(DESCRIBE, CLUSTER)),  # lists are filtered
    (16, Need(DESCRIBE, GROUP)),
    (66, Need(DESCRIBE, TRANSACTIONAL_ID)),
    (14, Need(DESCRIBE, TOPIC)),  # only of what a consumer group has assigned
    (65, Need(DESCRIBE, TOPIC)),  # topics of a transaction are left out
    (12006, Need(DESCRIBE, TOPIC)),
    (20, Need(DESCRIBE, TOPIC)),  # the name of an id is left out
    (19, Need(DESCRIBE_CONFIGS, TOPIC)),  # an error of its own, in a tagged field
    (79, Need(READ, TOPIC)),  # needs a session: tests/api/test_share_handlers.py
    (90, Need(DESCRIBE, TOPIC)),  # need a share group: tests/api/test_share_offsets.py
    (91, Need(READ, TOPIC)),
    (92, Need(READ, TOPIC)),
    (12020, Need(DESCRIBE, TOPIC)),  # of what is given out: tests/api/test_share_handlers.py
}
EVERY_NEED = [(key, need) for key, needs in NEEDS.items() for need in needs if (key, need) not in TOLD_OTHERWISE]


@pytest.mark.parametrize(
    ("key", "need"),
    EVERY_NEED,
    ids=[f"{APIS[key].name}-{need.operation.name}-{need.resource.name}" for key, need in EVERY_NEED],
)
def test_each_right_is_needed_by_itself(tmp_path: Path, key: int, need: Need) -> None:
    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        version, values = BY_REQUEST.get((key, need), (APIS[key].max_version, {}))
        if values.get("transactional"):
            values = {
                "records": broker.batch(attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0)
            }
        lacking = alternatives(key, need)
        broker.rules.allowed = set(NEEDS[key]) - lacking
        before = broker.state()
        found = await answer(broker, key, version, request_of(broker, key, version, **values))
        assert broker.state() == before
        assert need in broker.rules.asked
        shown = set(codes(found))
        # a replica's fetch is refused as a consumer's, as in Kafka
        expected = {ERRORS[TOPIC if key == 1 else one.resource] for one in lacking}
        assert shown & expected
        await broker.stop()

    play(scenario)


def alternatives(key: int, need: Need) -> set[Need]:
    """The rights of which that API needs one, if ``need`` is among them; ``need`` itself in any case."""
    return {need}.union(*(those for those in ALTERNATIVES if need in those and those <= set(NEEDS[key])))


@pytest.mark.parametrize(
    ("key", "need"),
    [(key, need) for key, needs in NEEDS.items() for need in needs if len(alternatives(key, need)) > 1],
)
def test_one_of_several_rights_is_enough(tmp_path: Path, key: int, need: Need) -> None:
    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        broker.rules.allowed = set(NEEDS[key]) - alternatives(key, need) | {need}
        version, values = BY_REQUEST.get((key, need), (APIS[key].max_version, {}))
        found = await answer(broker, key, version, request_of(broker, key, version, **values))
        assert not set(codes(found)) & set(ERRORS.values())
        await broker.stop()

    play(scenario)


def test_what_only_tells_more_is_left_out(tmp_path: Path) -> None:
    """Operations, topics of a transaction, names of ids and configurations of a new topic."""

    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        rules = broker.rules

        rules.allowed = {Need(DESCRIBE, TRANSACTIONAL_ID)}
        found = await answer(broker, 65, 0, filled(65, 0))
        assert [one.topics for one in found.transaction_states] == [[]]
        rules.allowed |= {Need(DESCRIBE, TOPIC)}
        found = await answer(broker, 65, 0, filled(65, 0))
        assert [[topic.topic for topic in one.topics] for one in found.transaction_states] == [[SECRET]]

        rules.allowed = set(NEEDS[12002]) | set(NEEDS[24])
        producer_id, epoch = broker.batch_producer
        members = m.EnlistProducerRequest(
            version=0, sink_id=SECRET_SINK, producer_id=producer_id, producer_epoch=epoch, count=1
        )
        (member,) = (await broker.call(12002, 0, members)).members
        assert await broker.add(member.producer_id, member.producer_epoch, 0, name=SECRET_SINK, topic=SECRET) == 0
        for asked in [SECRET_SINK], None:
            for allowed, topics in (set(), []), ({Need(DESCRIBE, TOPIC)}, [SECRET]):
                rules.allowed = {Need(DESCRIBE, TRANSACTIONAL_ID)} | allowed
                found = await answer(broker, 12006, 0, m.DescribeSinksRequest(version=0, sink_ids=asked))
                assert [[topic.name for topic in sink.topics] for sink in found.sinks] == [topics]

        state = m.request_class(20).DeleteTopicState(version=6, name=None, topic_id=TOPIC_ID)
        for allowed, name in ((set(), None), ({Need(DESCRIBE, TOPIC)}, SECRET)):
            rules.allowed = allowed
            found = await answer(broker, 20, 6, filled(20, 6, topics=[state]))
            assert [(one.name, one.error_code) for one in found.responses] == [(name, 29)]
        assert not broker.controller.done

        asked = m.request_class(3).MetadataRequestTopic(version=12, name=None, topic_id=TOPIC_ID)
        rules.allowed = set()
        found = await answer(broker, 3, 12, filled(3, 12, topics=[asked]))
        assert [(one.name, one.error_code, one.partitions) for one in found.topics] == [(None, 29, [])]
        found = await answer(broker, 3, 12, filled(3, 12, topics=None))
        assert not found.topics
        found = await answer(broker, 3, 10, filled(3, 10, topics=None))
        assert not found.authorized_operations
        found = await answer(broker, 60, 0, filled(60, 0))
        assert not found.authorized_operations
        rules.allowed = {Need(DESCRIBE, CLUSTER), Need(DESCRIBE, TOPIC)}
        found = await answer(broker, 60, 0, filled(60, 0))
        assert found.authorized_operations == {8}
        found = await answer(broker, 3, 12, filled(3, 12, name=SECRET, topic_id=None))
        assert [one.authorized_operations for one in found.topics] == [{8}]
        found = await answer(broker, 75, 0, filled(75, 0, topics=[]))
        assert SECRET in [one.name for one in found.topics]
        rules.allowed = set()
        assert not (await answer(broker, 75, 0, filled(75, 0, topics=[]))).topics

        rules.allowed = {Need(CREATE, TOPIC)}
        created = await answer(broker, 19, 7, filled(19, 7, validate_only=True))
        assert [(one.error_code, one.topic_config_error_code, one.configs) for one in created.topics] == [(0, 29, None)]
        await broker.stop()

    play(scenario)


def test_a_transactional_batch_needs_an_id_in_the_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        broker.rules.allowed = set(NEEDS[0])
        values = {"transactional_id": None, "records": broker.transactional_batch()}
        found = await answer(broker, 0, 12, request_of(broker, 0, 12, **values))
        assert set(codes(found)) == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
        await broker.stop()

    play(scenario)


@pytest.mark.parametrize("version", [version for key, version in EVERY_VERSION if key == 1])
def test_a_replicas_fetch_needs_its_own_right_at_every_version(tmp_path: Path, version: int) -> None:
    """CVE-2018-1288: from version 15 on the replica's id is a tagged field. A consumer's right is not enough."""

    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        broker.rules.allowed = {Need(READ, TOPIC)}
        request = request_of(broker, 1, version, replica_id=2)
        if version >= 15:
            state = m.request_class(1)._struct.fields["replica_state"].data_class
            request.replica_state = state(version=version, replica_id=2, replica_epoch=1)
        found = await answer(broker, 1, version, request)
        assert Need(CLUSTER_ACTION, CLUSTER) in broker.rules.asked
        assert set(codes(found)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        await broker.stop()

    play(scenario)


@pytest.mark.parametrize("key", [1, 19, 23, 35])
def test_only_what_is_asked_as_a_broker_is_exempt_from_quotas(tmp_path: Path, key: int) -> None:
    """Neither a replica's id alone is, nor what every client may do where there is no authorizer."""

    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        contexts: list[Context] = []
        of_stage = broker.context
        broker.context = lambda *asked: contexts.append(of_stage(*asked)) or contexts[-1]  # type: ignore[method-assign]
        by_id = {1: {"replica_id": 2}, 23: {"replica_id": 2}}.get(key, {})
        version = 12 if key == 1 else APIS[key].max_version

        async def exempted(access: Access, **fields: int) -> bool:
            broker.services.access = access
            await answer(broker, key, version, request_of(broker, key, version, **by_id | fields))
            return contexts[-1].exempted

        assert not await exempted(Access(Rules((READ, TOPIC), (DESCRIBE, TOPIC), (CREATE, TOPIC), (DESCRIBE, CLUSTER))))
        assert await exempted(Access(Rules((CLUSTER_ACTION, CLUSTER))))
        assert await exempted(Access()) is bool(by_id), "what only replicas send"
        if by_id:
            rights = Rules((CLUSTER_ACTION, CLUSTER), (READ, TOPIC), (DESCRIBE, TOPIC))
            assert not await exempted(Access(rights), replica_id=-1)
        await broker.stop()

    play(scenario)


def test_brokers_read_the_schemas_as_consumers_do(tmp_path: Path) -> None:
    """With the right by which they replicate, and nothing else that a consumer may read."""

    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        broker.topic(SCHEMAS_TOPIC, topic_id=SCHEMAS_ID)
        broker.append(SCHEMAS_TOPIC)
        broker.rules.allowed = {Need(CLUSTER_ACTION, CLUSTER)}
        epochs = {"current_leader_epoch": broker.partition(SCHEMAS_TOPIC).leader_epoch, "replica_id": -1}
        mine = await answer(broker, 1, 13, request_of(broker, 1, 13, topic_id=SCHEMAS_ID, **epochs))
        assert not set(codes(mine))
        other = await answer(broker, 1, 13, request_of(broker, 1, 13, **epochs))
        assert set(codes(other)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        broker.rules.allowed = set()
        nobody = await answer(broker, 1, 13, request_of(broker, 1, 13, topic_id=SCHEMAS_ID, **epochs))
        assert set(codes(nobody)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        await broker.stop()

    play(scenario)


def test_a_session_heeds_rights_that_change(tmp_path: Path) -> None:
    """A topic stays in a fetch session; each fetch asks anew."""

    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        broker.rules.allowed = {Need(READ, TOPIC)}
        first = await answer(broker, 1, 13, request_of(broker, 1, 13, session_epoch=0))
        assert not set(codes(first))
        session = {"session_id": first.session_id, "topics": [], "forgotten_topics_data": []}
        broker.append(SECRET)
        broker.rules.allowed = set()
        found = await answer(broker, 1, 13, request_of(broker, 1, 13, session_epoch=1, **session))
        assert set(codes(found)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        broker.rules.allowed = {Need(READ, TOPIC)}
        found = await answer(broker, 1, 13, request_of(broker, 1, 13, session_epoch=2, **session))
        assert not set(codes(found))
        assert found.responses
        await broker.stop()

    play(scenario)


BUDGET = {
    ("ListOffsets", False): 1_120, ("ListOffsets", True): 1_300,
    ("Metadata", False): 750, ("Metadata", True): 790,
    ("OffsetCommit", False): 1_020, ("OffsetCommit", True): 1_210,
    ("OffsetFetch", False): 1_280, ("OffsetFetch", True): 2_480,
    ("DescribeGroups", False): 1_390, ("DescribeGroups", True): 1_700,
    ("OffsetForLeaderEpoch", False): 960, ("OffsetForLeaderEpoch", True): 870,
    ("AddPartitionsToTxn", False): 800, ("AddPartitionsToTxn", True): 2_090,
    ("WriteTxnMarkers", False): 1_350, ("WriteTxnMarkers", True): 1_710,
    ("TxnOffsetCommit", False): 950, ("TxnOffsetCommit", True): 1_140,
    ("DeleteGroups", False): 460, ("DeleteGroups", True): 1_160,
}  # fmt: skip
"""Bytecodes for each name, from the request's bytes to the answer's, by API and by whether the client has rights, as
counted with Python 3.11. What holds the loop is measured by ``tests/server/test_work.py``.
"""
OTHER_PYTHONS = 1.3


@pytest.mark.parametrize(("name", "allowed"), BUDGET)
def test_a_name_costs_no_more_than_its_budget(tmp_path: Path, name: str, allowed: bool) -> None:
    (key,) = (row.key for row in APIS.values() if row.name == name)
    version = APIS[key].max_version

    async def scenario() -> None:
        broker = await Guarded(tmp_path).furnished()
        broker.rules.allowed = set(NEEDS[key]) if allowed else set()
        body = memoryview(work._body(key, version, work.Shape(False, "unknown"), NAMES))
        counter = Bytecodes()
        request = counter.of(lambda: m.decode_request(key, version, body))

        def made(paced: Any) -> Any:
            while isinstance(paced, InSlices):
                try:
                    counter.of(partial(next, paced.work))
                except StopIteration as ended:
                    paced = ended.value
            return paced

        made(made(api_table()[key].handler(request, broker.context(key, version))).response)
        each = sum(counter.counted) / NAMES
        assert 0.6 < each / BUDGET[name, allowed] < OTHER_PYTHONS, f"{each:.0f} bytecodes for each name"
        await broker.stop()

    play(scenario)
