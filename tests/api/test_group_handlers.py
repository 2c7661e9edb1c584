"""The handlers of the group APIs, in every advertised version, over the real shard and through the real codecs."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api import groups as handlers
from fleetlog.brokers.api.base import ClientConnection, Context, DelayedResponse, Done, InSlices
from fleetlog.brokers.api.group_offsets import of_present_topics, split_partitions
from fleetlog.brokers.api.rows import api_table
from fleetlog.brokers.groups.records import CommittedOffset
from fleetlog.brokers.groups.requests import FetchRequest
from fleetlog.brokers.model import TopicInfo
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.support.group_api import Api
from tests.support.message_defaults import assert_defaults_untouched


@pytest.fixture
def api() -> Api:
    return Api()


def versions(key: int) -> list[int]:
    return list(range(APIS[key].min_version, APIS[key].max_version + 1))


@pytest.mark.parametrize("version", versions(11))
def test_the_first_member_leads_the_first_generation(api: Api, version: int) -> None:
    answer = api.joined(version)
    assert answer.error_code == 0
    assert answer.generation_id == 1
    assert answer.protocol_name == "range"
    assert answer.leader == answer.member_id
    assert answer.member_id.startswith("client-")
    assert [(x.member_id, bytes(x.metadata)) for x in answer.members] == [(answer.member_id, b"sub")]
    if version >= 7:
        assert answer.protocol_type == "consumer"
    member = api.driver.shard.groups["g"].members[answer.member_id]
    assert member.rebalance_timeout_ms == (20_000 if version >= 1 else 10_000)
    assert member.client_host == "/127.0.0.1"


@pytest.mark.parametrize("version", versions(11))
def test_join_refused(api: Api, version: int) -> None:
    answer = api.join(version, "stranger")
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert answer.member_id == "stranger"


def test_join_with_a_name_that_does_not_fit_the_log(api: Api) -> None:
    answer = api.join(9, group_instance_id="x" * 31_000)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    api.driver.shard.groups.clear()
    request = m.HeartbeatRequest(version=4, group_id="é" * 16_000, generation_id=1, member_id="m")
    assert api.call(12, 4, request).error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", versions(11)[5:])
def test_an_instance_id_is_not_empty(api: Api, version: int) -> None:
    """Static members that all leave it empty would fence each other."""
    assert api.join(version, group_instance_id="").error_code == ErrorCode.INVALID_REQUEST
    assert "g" not in api.driver.shard.groups
    assert isinstance(api.join(version, group_instance_id="s"), DelayedResponse), "it waits for others to join"


def test_a_join_without_an_answer_ends_with_its_deadline(api: Api) -> None:
    first = api.join(9)
    delayed = api.join(9, first.member_id)
    assert isinstance(delayed, DelayedResponse)
    assert delayed.deadline_ms is not None
    assert delayed.deadline_ms >= 5 * 60_000
    delayed.expire()
    assert delayed.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    api.driver.advance(6_000)  # the late answer finds no request


def test_a_connection_that_goes_away_while_joining(api: Api) -> None:
    first = api.join(9)
    delayed = api.join(9, first.member_id)
    delayed.cancel()
    api.driver.advance(6_000)
    assert delayed.response is None


@pytest.mark.parametrize("version", versions(14))
def test_sync_heartbeat_leave(api: Api, version: int) -> None:
    joined = api.joined()
    sync = m.SyncGroupRequest(
        version=version,
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            m.SyncGroupRequest.SyncGroupRequestAssignment(
                version=version, member_id=joined.member_id, assignment=b"all"
            )
        ],
    )
    answer = api.call(14, version, sync)
    assert (answer.error_code, bytes(answer.assignment)) == (0, b"all")
    sync.generation_id = 9
    assert api.call(14, version, sync).error_code == ErrorCode.ILLEGAL_GENERATION
    sync.group_id = ""
    assert api.call(14, version, sync).error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", versions(12))
def test_a_heartbeat_of_another_generation_is_refused(api: Api, version: int) -> None:
    joined = api.joined()
    request = m.HeartbeatRequest(version=version, group_id="g", generation_id=1, member_id=joined.member_id)
    assert api.call(12, version, request).error_code == 0
    request.generation_id = 2
    assert api.call(12, version, request).error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", versions(13))
def test_members_leave_and_strangers_cannot(api: Api, version: int) -> None:
    joined = api.joined()
    ids = [joined.member_id, "stranger"]
    if version >= 3:
        identity = m.LeaveGroupRequest.MemberIdentity
        members = [identity(version=version, member_id=i, group_instance_id=None) for i in ids]
        answer = api.call(13, version, m.LeaveGroupRequest(version=version, group_id="g", members=members))
        assert answer.error_code == 0
        assert [(x.member_id, x.error_code) for x in answer.members] == [
            (ids[0], 0),
            ("stranger", ErrorCode.UNKNOWN_MEMBER_ID),
        ]
    else:
        request = m.LeaveGroupRequest(version=version, group_id="g", member_id=ids[0])
        assert api.call(13, version, request).error_code == 0
        assert api.call(13, version, request).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions(8))
def test_offsets_are_committed_for_partitions_that_exist(api: Api, version: int) -> None:
    answer = api.commit(version)
    (topic,) = answer.topics
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [
        (0, 0),
        (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    (unknown,) = api.commit(version, topic="gone").topics
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 10 else ErrorCode.UNKNOWN_TOPIC_ID
    assert {p.error_code for p in unknown.partitions} == {missing}
    if version >= 10:
        assert topic.topic_id == api.services.metadata.topics["t"].id
    (fenced,) = api.commit(version, 3, "stranger").topics
    assert fenced.partitions[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def fetch(api: Api, version: int, partitions: list[int] | None, group: str = "g") -> Any:
    request = m.OffsetFetchRequest
    if version >= 8:
        topic = request.OffsetFetchRequestGroup.OffsetFetchRequestTopics
        named: dict[str, Any] = {"name": "t"} if version < 10 else {"topic_id": api.topic_id("t")}
        wanted = None if partitions is None else [topic(version=version, partition_indexes=partitions, **named)]
        one = request.OffsetFetchRequestGroup(version=version, group_id=group, topics=wanted)
        return request(version=version, groups=[one], require_stable=True)
    topic = request.OffsetFetchRequestTopic
    wanted = None if partitions is None else [topic(version=version, name="t", partition_indexes=partitions)]
    return request(version=version, group_id=group, topics=wanted)


@pytest.mark.parametrize("version", versions(9))
def test_committed_offsets_are_fetched(api: Api, version: int) -> None:
    api.commit(9)
    answer = api.call(9, version, fetch(api, version, [0, 1]))
    body = answer.groups[0] if version >= 8 else answer
    (topic,) = body.topics
    assert [(p.partition_index, p.committed_offset, p.metadata, p.error_code) for p in topic.partitions] == [
        (0, 40, "note", 0),
        (1, -1, "", 0),
    ]
    if version >= 2:
        assert body.error_code == 0
        answer = api.call(9, version, fetch(api, version, None))
        body = answer.groups[0] if version >= 8 else answer
        assert [[p.partition_index for p in t.partitions] for t in body.topics] == [[0]]


@pytest.mark.parametrize("version", versions(9))
def test_offsets_of_a_deleted_topic_are_not_a_later_ones(api: Api, version: int) -> None:
    """Also those that its coordinator could not drop: of commits under way, or before it was elected."""

    def offsets(partitions: list[int] | None) -> list[int]:
        answer = api.call(9, version, fetch(api, version, partitions))
        body = answer.groups[0] if version >= 8 else answer
        return [part.committed_offset for topic in body.topics for part in topic.partitions]

    api.commit(9)
    del api.services.metadata.topics["t"]
    assert offsets([0]) == [-1]
    api.services.metadata.create()
    assert offsets([0]) == [-1]
    if version >= 2:
        assert offsets(None) == []
    api.commit(9)
    assert offsets([0]) == [40]


def test_topics_are_named_by_their_ids_alone(api: Api) -> None:
    """Version 10 (KIP-848): one whose id is unknown is answered beside the others."""
    api.commit(10)
    kind = m.OffsetFetchRequest.OffsetFetchRequestGroup
    here, gone = api.topic_id("t"), uuid.uuid4()
    named = [kind.OffsetFetchRequestTopics(version=10, topic_id=each, partition_indexes=[0]) for each in (gone, here)]
    request = m.OffsetFetchRequest(version=10, groups=[kind(version=10, group_id="g", topics=named)])
    (group,) = api.call(9, 10, request).groups
    assert group.error_code == 0
    answers = {topic.topic_id: topic.partitions[0] for topic in group.topics}
    assert (answers[here].committed_offset, answers[here].error_code) == (40, 0)
    assert (answers[gone].committed_offset, answers[gone].error_code) == (-1, ErrorCode.UNKNOWN_TOPIC_ID)
    (group,) = api.call(9, 10, fetch(api, 10, None)).groups
    assert [topic.topic_id for topic in group.topics] == [here]


@pytest.mark.parametrize("version", versions(9))
def test_fetch_refused(api: Api, version: int) -> None:
    api.services.groups = SimpleNamespace(shard_for=lambda group: (ErrorCode.NOT_COORDINATOR, None))
    answer = api.call(9, version, fetch(api, version, [0]))
    if version >= 8:
        assert answer.groups[0].error_code == ErrorCode.NOT_COORDINATOR
    elif version >= 2:
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
    else:
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", versions(15))
def test_groups_are_described_and_missing_ones_are_dead(api: Api, version: int) -> None:
    joined = api.joined()
    request = m.DescribeGroupsRequest(version=version, groups=["g", "gone"], include_authorized_operations=version >= 3)
    one, gone = api.call(15, version, request).groups
    assert (one.error_code, one.group_state, one.protocol_type) == (0, "CompletingRebalance", "consumer")
    assert [x.member_id for x in one.members] == [joined.member_id]
    assert gone.group_state == "Dead"
    assert gone.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    if version >= 3:
        assert set(one.authorized_operations) == {3, 6, 8, 10, 11}


@pytest.mark.parametrize("version", versions(16))
def test_groups_are_listed_by_state_and_type(api: Api, version: int) -> None:
    api.joined()
    request = m.ListGroupsRequest(version=version, states_filter=[], types_filter=[])
    (one,) = api.call(16, version, request).groups
    assert (one.group_id, one.protocol_type) == ("g", "consumer")
    if version >= 4:
        assert one.group_state == "CompletingRebalance"
        request.states_filter = ["stable"]
        assert api.call(16, version, request).groups == []
        request.states_filter = ["\t completingRebalance \n", "Dead"]
        assert len(api.call(16, version, request).groups) == 1
    if version >= 5:
        assert one.group_type == "classic"
        request.types_filter = ["Share"]
        assert api.call(16, version, request).groups == []
    api.driver.loading = True
    assert api.call(16, version, request).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("version", versions(42))
def test_delete_groups(api: Api, version: int) -> None:
    api.commit(9)
    answer = api.call(42, version, m.DeleteGroupsRequest(version=version, groups_names=["g", "gone"]))
    assert [(x.group_id, x.error_code) for x in answer.results] == [("g", 0), ("gone", ErrorCode.GROUP_ID_NOT_FOUND)]
    assert api.call(42, version, m.DeleteGroupsRequest(version=version, groups_names=[])).results == []


def test_delete_offsets(api: Api) -> None:
    api.commit(9)
    request = m.OffsetDeleteRequest
    topic = request.OffsetDeleteRequestTopic
    part = topic.OffsetDeleteRequestPartition
    message = request(
        version=0,
        group_id="g",
        topics=[topic(version=0, name="t", partitions=[part(version=0, partition_index=i) for i in (0, 9)])],
    )
    answer = api.call(47, 0, message)
    assert answer.error_code == 0
    assert [p.error_code for p in answer.topics[0].partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    message.group_id = "gone"
    assert api.call(47, 0, message).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_deleted_topics_are_dropped_everywhere(api: Api) -> None:
    api.commit(9)
    deleted = [TopicInfo(name, api.services.metadata.topics["t"].id, ()) for name in ("other", "t")]
    handlers.drop_topic_offsets(api.driver, deleted)  # type: ignore[arg-type]
    assert api.driver.shard.fetch(FetchRequest("g", None)) == ()


def test_no_shared_default_was_touched() -> None:
    assert_defaults_untouched()


ROWS = 500


@pytest.mark.parametrize("key", [8, 9, 47])
def test_what_names_many_partitions_may_be_interrupted_between_them(api: Api, key: int) -> None:
    """Before the shard is asked, and while the answer is made."""
    version = APIS[key].max_version if key != 9 else 7
    numbers = range(ROWS)
    request: Any
    if key == 9:
        topic = m.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=list(numbers))
        request = m.OffsetFetchRequest(version=version, group_id="g", topics=[topic], require_stable=False)
    elif key == 8:
        kind = m.OffsetCommitRequest.OffsetCommitRequestTopic
        parts = [
            kind.OffsetCommitRequestPartition(
                partition_index=i, committed_offset=1, committed_leader_epoch=-1, committed_metadata=""
            )
            for i in numbers
        ]
        request = m.OffsetCommitRequest(
            version=version, group_id="g", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            topics=[kind(topic_id=api.topic_id("t"), partitions=parts)],
        )  # fmt: skip
    else:
        kind = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
        parts = [kind.OffsetDeleteRequestPartition(partition_index=i) for i in numbers]
        request = m.OffsetDeleteRequest(version=version, group_id="g", topics=[kind(name="t", partitions=parts)])
    context = Context(api.services, ClientConnection(1, "PLAINTEXT", "127.0.0.1"), key, version, 1, "client")
    places, outcome = 0, api_table()[key].handler(request, context)
    while isinstance(outcome, InSlices):
        places, outcome = places + ROWS, drained(outcome.work, ROWS)
        outcome = outcome.response if isinstance(outcome, Done | DelayedResponse) else outcome
    assert places >= ROWS
    assert key == outcome.API_KEY


def drained(work: Any, least: int) -> Any:
    """What paced work returns that may be interrupted at least so often."""
    places = 0
    try:
        while True:
            next(work)
            places += 1
    except StopIteration as ended:
        assert places >= least
        return ended.value


def test_offsets_with_a_retention_are_not_a_later_topics_either(api: Api) -> None:
    """They are written in Kafka's value of version 1."""
    kind = m.OffsetCommitRequest.OffsetCommitRequestTopic
    part = kind.OffsetCommitRequestPartition(
        version=3, partition_index=0, committed_offset=40, committed_metadata="note"
    )
    request = m.OffsetCommitRequest(
        version=3, group_id="g", generation_id_or_member_epoch=-1, member_id="", retention_time_ms=3_600_000,
        topics=[kind(version=3, name="t", partitions=[part])],
    )  # fmt: skip

    def told() -> tuple[int, str]:
        (topic,) = api.call(9, 7, fetch(api, 7, [0])).topics
        return topic.partitions[0].committed_offset, topic.partitions[0].metadata

    api.call(8, 3, request)
    assert told() == (40, "note")
    del api.services.metadata.topics["t"]
    assert told()[0] == -1
    api.services.metadata.create()
    assert told()[0] == -1
    # A late commit names no id: as in Kafka, it counts for the new topic, which may end before it (N7).
    api.call(8, 3, request)
    assert told() == (40, "note")


def test_a_commit_that_waited_is_refused_if_its_topic_is_gone(api: Api) -> None:
    """Written then, it would stand behind what is committed, and acknowledged, for the next topic of the name."""
    context = Context(api.services, ClientConnection(1, "PLAINTEXT", "127.0.0.1"), 28, 3, 1, "client")
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    then = api.services.metadata.topics["t"].id.bytes
    offsets = ((zero, CommittedOffset(1000, topic_id=then)), (one, CommittedOffset(1000)))
    refused: dict[TopicPartition, ErrorCode] = {}
    assert of_present_topics(offsets, refused, context) == offsets
    assert not refused
    del api.services.metadata.topics["t"]
    api.services.metadata.create()
    assert of_present_topics(offsets, refused, context) == offsets[1:]
    assert refused == {zero: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_topic_that_comes_between_two_slices_has_its_id_in_what_is_committed(api: Api) -> None:
    del api.services.metadata.topics["t"]
    kind = m.OffsetCommitRequest.OffsetCommitRequestTopic
    parts = [kind.OffsetCommitRequestPartition(partition_index=i, committed_offset=4) for i in (9, 0)]
    request = m.OffsetCommitRequest(group_id="g", topics=[kind(name="t", partitions=parts)])
    context = Context(api.services, ClientConnection(1, "PLAINTEXT", "127.0.0.1"), 8, 7, 1, "client")
    slices = split_partitions(request, context)
    next(slices)
    api.services.metadata.create()
    known, refused = drained(slices, 1)
    assert [committed.topic_id for _, committed in known] == [api.services.metadata.topics["t"].id.bytes]
    assert list(refused) == [TopicPartition("t", 9)]
