"""The APIs of the consumer protocol's groups, in every version, over the real shard and through the real codecs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import DESCRIBE, TOPIC, Access
from fleetlog.brokers.acls.image import AclOperation, ResourceType
from fleetlog.brokers.api.base import Context, Done, InSlices, through
from fleetlog.brokers.api.rows import api_table
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.groups.consumer.embedded import decode_assignment
from fleetlog.brokers.groups.requests import ConsumerSettings
from fleetlog.brokers.model import TopicInfo
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.groups.consumer_world import topic
from tests.support.group_api import Api

HEARTBEAT, DESCRIBED = 68, 69
VERSIONS = range(APIS[HEARTBEAT].min_version, APIS[HEARTBEAT].max_version + 1)


class Topics:
    """The metadata of a broker whose fleet serves these groups."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicInfo] = {name: topic(name, 2) for name in ("t", "tea", "x")}
        self.sequence = 1
        self.features = {"group.version": 1}
        self.effective = BrokerConfig()
        self.own: dict[str, str] = {}

    @property
    def topic_names(self) -> dict[uuid.UUID, str]:
        return {info.id: name for name, info in self.topics.items()}

    def group_settings(self, of: Callable[[BrokerConfig, Mapping[str, str]], Any], group_id: str) -> Any:
        return of(self.effective, self.own if group_id == "g" else {})

    def partition(self, tp: TopicPartition) -> object | None:
        info = self.topics.get(tp.topic)
        return info if info is not None and tp.partition < len(info.partitions) else None


class Rules:
    """Allows everything about groups, and to describe some topics."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics
        self.verdicts: dict[Any, bool] = {}

    def allows(self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        return kind is not TOPIC or (operation is not DESCRIBE or name in self.topics)


class ConsumerApi(Api):
    def __init__(self) -> None:
        super().__init__()
        self.metadata = self.services.metadata = Topics()
        self.clock = self.services.clock = SimpleNamespace(wall_ms=lambda: self.driver.now.wall_ms)

    def may_describe(self, *topics: str) -> None:
        self.services.access = Access(Rules(*topics))  # type: ignore[arg-type]

    def beat(self, member_id: str = "m", epoch: int = 0, version: int = 1, **said: Any) -> Any:
        if epoch == 0:
            said = {"rebalance_timeout_ms": 60_000, "topic_partitions": [], "subscribed_topic_names": ["t"], **said}
        if "owned" in said:
            kind = m.ConsumerGroupHeartbeatRequest.TopicPartitions
            said["topic_partitions"] = [
                kind(version=version, topic_id=self.metadata.topics[name].id, partitions=indexes)
                for name, indexes in said.pop("owned").items()
            ]
        request = m.ConsumerGroupHeartbeatRequest(
            version=version, group_id="g", member_id=member_id, member_epoch=epoch, **said
        )
        return self.call(HEARTBEAT, version, request)

    def frame(self, member_id: str, epoch: int, version: int, **said: Any) -> bytes:
        request = m.ConsumerGroupHeartbeatRequest(
            version=version, group_id="g", member_id=member_id, member_epoch=epoch, **said
        )
        return m.encode_request(HEARTBEAT, version, 7, "client", request)

    def keeps_alive(self, frame: bytes) -> tuple[Any, bool]:
        """The answer to a frame that is executed where it was received, and whether it was made there."""
        batching = api_table()[HEARTBEAT].batching
        assert batching is not None
        run = batching.decode(memoryview(b"before" + frame + b"behind"), 6, 6 + len(frame), 0, 1, 1)
        assert run is not None
        assert (run.correlation_ids, run.ends) == ([7], [6 + len(frame)])
        context = Context(self.services, self.connection, HEARTBEAT, run.version, 7, "")
        (outcome,) = batching.execute([run], [context])
        assert context.client_id == "client"
        if not (isinstance(outcome, Done) and isinstance(outcome.response, list)):
            outcome = through(outcome.work) if isinstance(outcome, InSlices) else outcome
            return self.wire(HEARTBEAT, run.version, outcome), False
        (chunk,) = outcome.response
        assert int.from_bytes(chunk[:4], "big") == len(chunk) - 4
        correlation_id, body = m.split_response(HEARTBEAT, run.version, chunk[4:])
        assert correlation_id == 7
        answer = m.decode_response(HEARTBEAT, run.version, body)
        assert m.encode_response(answer, HEARTBEAT, run.version) == bytes(body)
        return answer, True

    def told(self, answer: Any) -> dict[str, list[int]] | None:
        if answer.assignment is None:
            return None
        return {self.metadata.topic_names[row.topic_id]: row.partitions for row in answer.assignment.topic_partitions}

    def describe(self, version: int = 1, group_id: str = "g", operations: bool = False) -> Any:
        request = m.ConsumerGroupDescribeRequest(
            version=version, group_ids=[group_id, group_id], include_authorized_operations=operations
        )
        (group,) = self.call(DESCRIBED, version, request).groups
        return group


@pytest.fixture
def api() -> ConsumerApi:
    return ConsumerApi()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_member_joins_and_is_described(api: ConsumerApi, version: int) -> None:
    answer = api.beat("" if version == 0 else "m", version=version, instance_id="i", rack_id="r")
    assert (answer.error_code, answer.member_epoch) == (0, 1)
    assert 2_500 <= answer.heartbeat_interval_ms <= 5_000
    assert answer.member_id
    assert api.told(answer) == {"t": [0, 1]}
    assert api.told(api.beat(answer.member_id, 1, version)) is None
    group = api.describe(version, operations=True)
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (0, "Stable", 1, 1)
    assert group.assignor_name == "uniform"
    assert group.authorized_operations > 0
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.rack_id) == (answer.member_id, "i", "r")
    assert (member.client_id, member.client_host, member.subscribed_topic_names) == ("client", "/127.0.0.1", ["t"])
    for assignment in (member.assignment, member.target_assignment):
        assert [(row.topic_name, row.partitions) for row in assignment.topic_partitions] == [("t", [0, 1])]
    assert version == 0 or member.member_type == 1
    assert api.describe(version, "none").error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("instance_id", [None, "i"])
def test_a_member_at_rest_is_answered_where_its_request_was_received(
    api: ConsumerApi, version: int, instance_id: str | None
) -> None:
    api.beat("mémber", instance_id=instance_id)
    frame = api.frame("mémber", 1, version, instance_id=instance_id)
    api.driver.advance(40_000)
    assert not api.keeps_alive(frame)[1], "the first heartbeat notes that its topics are as they were"
    answer, at_once = api.keeps_alive(frame)
    assert at_once
    assert answer == api.beat("mémber", 1, version, instance_id=instance_id), "as it is answered otherwise"
    written = len(api.driver.log)
    api.driver.advance(44_000)
    assert api.keeps_alive(frame)[1], "its session began anew"
    assert len(api.driver.log) == written
    stale, at_once = api.keeps_alive(api.frame("mémber", 2, version, instance_id=instance_id))
    assert (stale.error_code, at_once) == (ErrorCode.FENCED_MEMBER_EPOCH, False)
    api.beat("other")
    moved, at_once = api.keeps_alive(frame)
    assert not at_once
    assert (moved.member_epoch, api.told(moved)) == (1, {"t": [0]}), "it has to give something up"
    api.driver.advance(60_000)
    gone, at_once = api.keeps_alive(frame)
    assert (gone.error_code, at_once) == (ErrorCode.UNKNOWN_MEMBER_ID, False)


def test_a_member_at_rest_is_looked_at_when_anything_has_changed(api: ConsumerApi) -> None:
    api.beat("m")
    api.beat("r", subscribed_topic_names=None, subscribed_topic_regex="none.*")
    frame, by_pattern = api.frame("m", 1, 1), api.frame("r", 2, 1)
    for _ in range(3):
        api.driver.advance(5_000)
        epoch = api.keeps_alive(frame)[0].member_epoch
        frame = api.frame("m", epoch, 1)
        answer, at_once = api.keeps_alive(by_pattern)
    assert api.keeps_alive(frame)[1]
    assert (answer.error_code, at_once) == (0, True)
    api.metadata.topics["none-1"] = topic("none-1", 1)
    api.metadata.sequence += 1
    api.driver.advance(11_000)
    assert not api.keeps_alive(by_pattern)[1], "its pattern is looked up"
    answer, at_once = api.keeps_alive(frame)
    assert (answer.error_code, at_once) == (0, False)
    api.metadata.features = {}
    assert api.keeps_alive(frame)[0].error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_member_at_rest_may_lose_its_right(api: ConsumerApi) -> None:
    class Nothing(Rules):
        def allows(self, *asked: Any) -> bool:
            return False

    api.beat("m")
    frame = api.frame("m", 1, 1)
    assert [api.keeps_alive(frame)[1] for _ in range(2)] == [False, True]
    api.services.access = Access(Nothing())  # type: ignore[arg-type]
    assert api.keeps_alive(frame)[0].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", VERSIONS)
def test_only_what_says_nothing_is_executed_where_it_was_received(api: ConsumerApi, version: int) -> None:
    batching = api_table()[HEARTBEAT].batching
    assert batching is not None

    def taken(frame: bytes, lowest: int = 0) -> Any:
        return batching.decode(memoryview(frame), 0, len(frame), lowest, 1, 1)

    frame = api.frame("m", 5, version, instance_id="i")
    assert taken(frame)[3:] == ("client", "g", "m", 5, "i")
    assert taken(frame, version + 1) is None
    assert all(taken(frame[:size]) is None for size in range(len(frame)))
    for size in range(len(frame) - 4):  # whole, but too short for what it is to have
        assert taken(size.to_bytes(4, "big") + frame[4:]) is None
    saying: list[dict[str, Any]] = [
        {"rack_id": "r"}, {"rebalance_timeout_ms": 1}, {"subscribed_topic_names": []}, {"server_assignor": "range"},
        {"topic_partitions": []}, {"instance_id": "x" * 127}, {"member_id": "x" * 127}, {"member_id": ""},
    ]  # fmt: skip
    for said in saying + [{"subscribed_topic_regex": ""}] * version:
        assert taken(api.frame(**{"member_id": "m", "epoch": 5, "version": version, **said})) is None, said
    for at in range(4, len(frame)):  # whatever stands there, it is decoded as it would be otherwise, or not here
        for value in range(256):
            changed = frame[:at] + bytes([value]) + frame[at + 1 :]
            run = taken(changed)
            if run is not None and changed[4:6] == frame[4:6]:
                header = m.parse_request_header(memoryview(changed)[4:])
                said_so = m.decode_request(HEARTBEAT, header.api_version, memoryview(changed)[4 + header.body :])
                assert run[3:] == (
                    header.client_id, said_so.group_id, said_so.member_id, said_so.member_epoch, said_so.instance_id
                )  # fmt: skip


def test_before_the_feature_is_finalized_it_is_refused(api: ConsumerApi) -> None:
    api.metadata.features = {}
    answer = api.beat()
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "group.version" in answer.error_message
    assert not api.driver.log
    for group_id in ("g", "none"):
        described = api.describe(group_id=group_id)
        assert (described.error_code, described.group_state, described.members) == (
            ErrorCode.UNSUPPORTED_VERSION, "", [],
        )  # fmt: skip
        assert "group.version" in described.error_message


@pytest.mark.parametrize(
    "said",
    [
        {"member_id": ""}, {"epoch": -3}, {"epoch": -2}, {"rebalance_timeout_ms": -1}, {"topic_partitions": None},
        {"subscribed_topic_names": None}, {"owned": {"t": [0]}}, {"instance_id": " "}, {"rack_id": ""},
        {"instance_id": "x" * 31_000},
    ],
)  # fmt: skip
def test_what_is_not_a_heartbeat_is_refused(api: ConsumerApi, said: dict[str, Any]) -> None:
    answer = api.beat(**said)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message
    assert not api.driver.log


def test_a_topic_without_an_id_is_nobodys(api: ConsumerApi) -> None:
    api.beat()
    kind = m.ConsumerGroupHeartbeatRequest.TopicPartitions
    nameless = [kind(version=1, topic_id=uuid.UUID(int=0), partitions=[0])]
    assert api.beat("m", 1, topic_partitions=nameless).error_code == 0


def test_a_pattern_matches_whole_names(api: ConsumerApi) -> None:
    answer = api.beat(subscribed_topic_names=None, subscribed_topic_regex="t|te.")
    assert api.told(answer) == {"t": [0, 1], "tea": [0, 1]}
    assert api.driver.shard.consumers["g"].regexes["t|te."].topics == ("t", "tea")
    assert api.describe().members[0].subscribed_topic_regex == "t|te."
    api.beat("m", 1, owned={"t": [0, 1], "tea": [0, 1]})
    api.metadata.topics["ten"] = topic("ten", 1)
    api.metadata.sequence += 1
    assert api.told(api.beat("m", 1)) is None, "looked up a moment ago"
    api.driver.advance(10_000)
    assert api.told(api.beat("m", 1)) == {"t": [0, 1], "tea": [0, 1], "ten": [0]}


@pytest.mark.parametrize(
    ("topics", "pattern", "rests_ms"),
    [(1, "t.*", (40, 50)), (9_000, "t.*", (60, 200)), (9_000, r"\pL*", (1_500, 8_000))],
)
def test_who_has_patterns_looked_up_rests_for_longer_than_that_took(
    api: ConsumerApi, topics: int, pattern: str, rests_ms: tuple[int, int]
) -> None:
    """Each heartbeat may bring another pattern: a connection has its fair part of the loop, whatever it sends."""
    api.metadata.topics = {f"topic-{number}": topic(f"topic-{number}", 1) for number in range(topics)}
    rests: list[int] = []
    api.source = SimpleNamespace(mute=rests.append)
    api.beat(subscribed_topic_names=None, subscribed_topic_regex=pattern)
    assert rests_ms[0] <= rests[0] <= rests_ms[1]
    for _ in range(3):
        api.beat("m", 1)
    assert len(rests) == 2, "it is looked up again once, as long as no topic comes"
    api.beat("m", 1, subscribed_topic_regex=f"{pattern}x")
    assert len(rests) == 3
    api.beat("m", 1, subscribed_topic_regex="(")
    assert len(rests) == 4, "one that is none was compiled, too"


@pytest.mark.parametrize("pattern", ["(", "a{1001}", "x" * 2_000])
def test_a_pattern_that_is_none(api: ConsumerApi, pattern: str) -> None:
    answer = api.beat(subscribed_topic_regex=pattern)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "RE2" in answer.error_message
    assert not api.driver.log


def test_nobody_gets_a_topic_that_it_may_not_describe(api: ConsumerApi) -> None:
    api.may_describe("t")
    assert api.beat(subscribed_topic_names=["t", "x"]).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not api.driver.log
    assert api.told(api.beat(subscribed_topic_names=None, subscribed_topic_regex="t.*")) == {"t": [0, 1]}
    assert api.beat("m", -1).error_code == 0
    api.may_describe("t", "tea")
    assert api.told(api.beat("m", 0, subscribed_topic_names=None, subscribed_topic_regex="te.*")) == {"tea": [0, 1]}
    api.driver.shard.consumers["g"].looked_up["te.*"] = api.driver.shard.consumers["g"].regexes["te.*"]
    api.may_describe("t")
    other = api.beat("n", 0, subscribed_topic_names=None, subscribed_topic_regex="te.*", owned={})
    assert api.told(other) in ({}, None), "all of it is with the first"
    assert api.beat("m", 0, subscribed_topic_names=None, subscribed_topic_regex="te.*").error_code == (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED
    ), "the first may not describe it any more"
    assert api.describe().error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_groups_own_settings(api: ConsumerApi) -> None:
    assert ConsumerSettings.of(BrokerConfig()) == ConsumerSettings(), "Kafka's defaults"
    api.metadata.own = {"consumer.heartbeat.interval.ms": "7000", "consumer.session.timeout.ms": "50000"}
    assert 3_500 <= api.beat().heartbeat_interval_ms <= 7_000
    assert api.beat("m", 1).heartbeat_interval_ms == 7_000
    api.driver.advance(49_000)
    assert api.driver.shard.consumers["g"].members
    api.driver.advance(1_000)
    assert not api.driver.shard.consumers["g"].members
    api.metadata.own = {"consumer.heartbeat.interval.ms": "1", "consumer.session.timeout.ms": "99999"}
    times = ConsumerSettings.of(BrokerConfig(), api.metadata.own)
    assert times[:3] == (60_000, 5_000, 1_000), "what the brokers' bounds have left out since counts as the nearest"


def test_offsets_are_committed_and_fetched_by_epoch(api: ConsumerApi) -> None:
    api.beat()

    def error(version: int, epoch: int, member_id: str = "m") -> int:
        (row,) = api.commit(version, epoch, member_id).topics
        return int(row.partitions[0].error_code)

    assert error(9, 1) == error(10, 1) == 0
    assert error(8, 1) == ErrorCode.UNSUPPORTED_VERSION
    assert error(9, 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert error(9, 1, "other") == ErrorCode.UNKNOWN_MEMBER_ID

    def fetched(version: int, member_id: str | None, epoch: int) -> int:
        kind = m.OffsetFetchRequest.OffsetFetchRequestGroup
        said = {"member_id": member_id, "member_epoch": epoch} if version >= 9 else {}
        group = kind(version=version, group_id="g", topics=None, **said)
        request = m.OffsetFetchRequest(version=version, groups=[group], require_stable=False)
        (answer,) = api.call(9, version, request).groups
        assert answer.error_code or len(answer.topics) == 1
        return int(answer.error_code)

    for version in (8, 9, 10):
        assert fetched(version, None, -1) == 0
    assert fetched(9, "m", 1) == 0
    assert fetched(9, "m", 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetched(9, "other", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_it_is_listed_with_its_type(api: ConsumerApi) -> None:
    api.beat()
    api.services.groups.loading = False
    for types, states, count in (([], [], 1), (["Consumer"], ["stable"], 1), (["classic"], [], 0), ([], ["empty"], 0)):
        request = m.ListGroupsRequest(version=5, states_filter=states, types_filter=types)
        groups = api.call(16, 5, request).groups
        assert len(groups) == count
        if count:
            assert (groups[0].group_type, groups[0].protocol_type, groups[0].group_state) == (
                "consumer", "consumer", "Stable",
            )  # fmt: skip


@pytest.mark.parametrize("version", [0, 4, 9])
def test_a_classic_member_of_such_a_group(api: ConsumerApi, version: int) -> None:
    api.beat("m")
    subscription = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0"
    timeout = {"rebalance_timeout_ms": 60_000} if version >= 1 else {}
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(version=version, name="range", metadata=subscription)
    asked = {"version": version, "group_id": "g", "session_timeout_ms": 10_000, "protocol_type": "consumer", **timeout}
    joined = api.call(11, version, m.JoinGroupRequest(member_id="", protocols=[protocol], **asked))
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        again = m.JoinGroupRequest(member_id=joined.member_id, protocols=[protocol], **asked)
        joined = api.call(11, version, again)
    assert (joined.error_code, joined.protocol_name, joined.leader, joined.members) == (0, "range", "", [])
    kinds = {member.member_id: member.member_type for member in api.describe().members}
    assert kinds == {"m": 1, joined.member_id: 0}
    version = min(version, 4)
    beat = m.HeartbeatRequest(
        version=version, group_id="g", generation_id=joined.generation_id, member_id=joined.member_id
    )
    assert api.call(12, version, beat).error_code in (0, ErrorCode.REBALANCE_IN_PROGRESS)
    sync = m.SyncGroupRequest(
        version=version, group_id="g", generation_id=joined.generation_id, member_id=joined.member_id, assignments=[]
    )
    assert api.call(14, version, sync).error_code == 0
    member = m.LeaveGroupRequest.MemberIdentity
    if version >= 3:
        left = m.LeaveGroupRequest(
            version=version, group_id="g", members=[member(version=version, member_id=joined.member_id)]
        )
    else:
        left = m.LeaveGroupRequest(version=version, group_id="g", member_id=joined.member_id)
    assert api.call(13, version, left).error_code == 0
    assert [one.member_id for one in api.describe().members] == ["m"]


def test_a_classic_member_gets_no_topic_either_that_it_may_not_describe(api: ConsumerApi) -> None:
    api.beat("m", subscribed_topic_names=["x"])
    subscription = b"\0\1\0\0\0\2\0\1t\0\3tea\xff\xff\xff\xff\0\0\0\0"
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(version=3, name="range", metadata=subscription)
    join = m.JoinGroupRequest(
        version=3, group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=60_000, protocol_type="consumer",
        member_id="", protocols=[protocol],
    )  # fmt: skip
    joined = api.call(11, 3, join)

    def sync() -> Any:
        said = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id}
        return api.call(14, 3, m.SyncGroupRequest(version=3, assignments=[], **said))

    api.may_describe("t")
    refused = sync()
    assert (refused.error_code, refused.assignment) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")
    api.may_describe("t", "tea")
    assert decode_assignment(sync().assignment).partitions == (("t", 0), ("t", 1), ("tea", 0), ("tea", 1))
