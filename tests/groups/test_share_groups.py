"""Share groups at their coordinator: who has what, epochs, the assignor, records, and what a load keeps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.groups import share
from fleetlog.brokers.groups.consumer.group import LEAVES, Beat, BeatAnswer, Picture
from fleetlog.brokers.groups.records import (
    CommittedOffset,
    ConsumerKey,
    ShareKind,
    consumer_key,
    decode_group_key,
    offset_record,
)
from fleetlog.brokers.groups.requests import (
    FetchRequest,
    GroupSettings,
    JoinRequest,
    OffsetCommitRequest,
    Protocol,
    ShareSettings,
)
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.brokers.groups.share import ShareCurrent, ShareMemberValue, StateTopic, simple
from fleetlog.txn.commands import CommandFailed, Now, Result, Ticket
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.groups.consumer_world import topic

NOW, TICKET = Now(1_000, 1_000), Ticket(0)
T, U = topic("t", 3), topic("u", 2)
PICTURE = Picture({"t": T, "u": U}, 1)


class Group:
    """A shard with what it wrote."""

    def __init__(self) -> None:
        self.shard = GroupShard(0, GroupSettings())
        self.log: list[Any] = []
        self.picture = PICTURE

    def do(self, result: Result) -> Any:
        for record in result.records:
            self.log.append(record)
            self.shard.apply(record, None, NOW)
        return result.response

    def beat(self, member: str, epoch: int = 0, *topics: str, group: str = "g", size: int = 200) -> BeatAnswer:
        beat = Beat(group, member, epoch, topics=topics or None, client_id="c", client_host="/h")
        answer = self.do(self.shard.share_heartbeat(beat, self.picture, ShareSettings(max_size=size), NOW, TICKET))
        assert isinstance(answer, BeatAnswer)
        return answer

    def settle(self, epochs: dict[str, int]) -> dict[str, tuple[Any, ...]]:
        """Every member sends heartbeats until all have their targets; what each has."""
        for _ in range(3):
            for name, epoch in epochs.items():
                epochs[name] = self.beat(name, epoch).epoch
        return {name: self.shard.shares["g"].members[name].at.assigned for name in epochs}


def test_a_member_gets_its_target_at_once() -> None:
    group = Group()
    first = group.beat("a", 0, "t")
    assert (first.error, first.epoch) == (ErrorCode.NONE, 1)
    assert first.assignment == tuple((T.id.bytes, index) for index in range(3))
    second = group.beat("b", 0, "t")
    assert second.epoch == 2
    assert second.assignment
    moved = group.beat("a", 1)
    assert moved.epoch == 2
    assert moved.assignment is not None
    assert len(moved.assignment) + len(second.assignment) == 3
    assert group.beat("a", 2).assignment is None, "as it knows it"
    assert group.beat("a", 1).assignment == moved.assignment, "its last answer was lost"


def test_epochs_and_limits() -> None:
    group = Group()
    assert group.beat("a", 3).error is ErrorCode.GROUP_ID_NOT_FOUND
    group.beat("a", 0, "t")
    assert group.beat("b", 3).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.beat("a", 7).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert group.beat("b", 0, "t", size=1).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert group.beat("a", 0, "t").epoch == 1, "it joins again, as what it was"


def test_leaving_and_dying_free_what_a_member_has() -> None:
    group = Group()
    group.beat("a", 0, "t")
    group.beat("b", 0, "t")
    assert group.beat("b", LEAVES).epoch == LEAVES
    assert len(group.settle({"a": 1})["a"]) == 3
    timers = [e for e in group.shard.loaded(NOW).effects if getattr(e, "name", "").startswith("share")]
    assert len(timers) == 1, "a load gives each member a whole session"
    group.do(group.shard.on_timer(timers[0].name, NOW))
    assert group.shard.shares["g"].state == "Empty"


def test_topics_that_grow_or_appear_are_assigned() -> None:
    group = Group()
    assert group.beat("a", 0, "t", "later").epoch == 1
    group.picture = Picture({**PICTURE.topics, "later": topic("later", 4)}, 2)
    answer = group.beat("a", 1)
    assert (answer.epoch, len(answer.assignment or ())) == (2, 7)
    assert {t.name for t in group.shard.shares["g"].states.values()} == {"t", "later"}


def test_a_load_finds_the_same_group() -> None:
    group = Group()
    group.beat("a", 0, "t")
    group.beat("b", 0, "t", "u")
    epochs = {"a": 1, "b": 2}
    group.settle(epochs)
    again = GroupShard(0, GroupSettings())
    for record in group.log:
        again.apply(record, None, NOW)
    again.loaded(NOW)
    before, after = group.shard.shares["g"], again.shares["g"]
    assert (after.members, after.epoch, after.assignment_epoch, after.states) == (
        before.members, before.epoch, before.assignment_epoch, before.states,
    )  # fmt: skip
    assert not again.skipped


def test_other_protocols_and_share_groups_keep_apart() -> None:
    group = Group()
    group.beat("a", 0, "t")
    shard = group.shard
    join = JoinRequest("g", "", None, "c", "/h", "consumer", (Protocol("range", b""),), 10_000, 10_000, "new")
    assert shard.join(join, NOW, TICKET, PICTURE).response.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    tp = TopicPartition("t", 0)
    commit = OffsetCommitRequest("g", -1, "", None, ((tp, CommittedOffset(1)),))
    assert shard.commit(commit, NOW, TICKET).response == {tp: ErrorCode.GROUP_ID_NOT_FOUND}
    assert shard.commit_transactional(commit, (1, 0), NOW, TICKET).response == {tp: ErrorCode.GROUP_ID_NOT_FOUND}
    assert shard.fetch(FetchRequest("g", None)) == ()
    assert shard.describe("g").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert [(one.group_type, one.state) for one in shard.listing()] == [("share", "Stable")]
    shard.apply(offset_record("classic", tp, CommittedOffset(1)), None, NOW)
    assert group.beat("a", 0, "t", group="classic").error is ErrorCode.GROUP_ID_NOT_FOUND


def test_deleting() -> None:
    group = Group()
    group.beat("a", 0, "t")
    assert group.do(group.shard.delete_group("g", NOW, TICKET)) is ErrorCode.NON_EMPTY_GROUP
    group.beat("a", LEAVES)
    assert group.do(group.shard.delete_group("g", NOW, TICKET)) is ErrorCode.NONE
    assert not group.shard.shares
    assert group.do(group.shard.delete_group("g", NOW, TICKET)) is ErrorCode.GROUP_ID_NOT_FOUND


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.sets(st.sampled_from((b"t", b"u", b"v")), min_size=1), min_size=1),
    st.dictionaries(st.sampled_from((b"t", b"u", b"v")), st.integers(0, 5)),
    st.sets(st.sampled_from("abcdefgh")),
)
def test_the_assignor_leaves_nobody_and_nothing_out(
    wanted: dict[str, set[bytes]], topics: dict[bytes, int], gone: set[str]
) -> None:
    before = simple({name: (frozenset(some), ()) for name, some in wanted.items()}, topics)
    left = {name: some for name, some in wanted.items() if name not in gone} or wanted
    members = {name: (frozenset(some), before[name]) for name, some in left.items()}
    result = simple(members, topics)
    assert result == simple({name: (members[name][0], own) for name, own in result.items()}, topics), "it stays so"
    counts = Counter(partition for own in result.values() for partition in own)
    for name, own in result.items():
        assert len(own) == len(set(own))
        assert all(topic in left[name] and index < topics.get(topic, 0) for topic, index in own)
        assert bool(own) == any(topics.get(topic, 0) for topic in left[name])
    for topic_id, count in topics.items():
        if any(topic_id in some for some in left.values()):
            assert all(counts[topic_id, index] for index in range(count))
    if len({frozenset(some) for some in left.values()}) == 1 and counts:
        sizes = [len(own) for own in result.values()]
        assert max(sizes) - min(sizes) <= 1
        assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize(
    ("value", "encode", "decode", "raw"),
    [
        ((7, -3), lambda v: share.share_group_value(*v), share.decode_group_value, "0000 00000007 fffffffffffffffd 00"),
        (
            ShareMemberValue(None, "c", "/h", ("a",)), share.share_member_value, share.decode_member_value,
            "0000 00 0263 032f68 02 0261 00",
        ),
        (
            ShareCurrent(3, 2, ((bytes(16), 1),)), share.share_current_value, share.decode_current_value,
            "0000 00000003 00000002 00 02" + "00" * 16 + "02 00000001 00 00",
        ),
        (
            {bytes(16): StateTopic("t", 1)}, lambda v: share.states_value(v, 5), share.decode_states_value,
            "0000 01 02" + "00" * 16 + "0274 02 00000000 0000000000000005 00 01 00",
        ),
    ],
)  # fmt: skip
def test_records(value: Any, encode: Any, decode: Any, raw: str) -> None:
    assert encode(value) == bytes.fromhex(raw)
    assert decode(bytes.fromhex(raw)) == value
    assert decode(b"\0\1") is None, "a newer version"


def test_keys() -> None:
    for kind in ShareKind:
        named = kind in (ShareKind.MEMBER, ShareKind.MEMBER_TARGET, ShareKind.CURRENT)
        key = ConsumerKey(kind, "g", "m" if named else "")
        assert decode_group_key(consumer_key(key)) == key


def test_a_record_that_cannot_be_written_is_an_error() -> None:
    result = Group().shard.share_heartbeat(Beat("g", "a", 0, topics=("t",)), PICTURE, ShareSettings(), NOW, TICKET)
    assert result.failed is not None
    failed = result.failed(ErrorCode.NOT_COORDINATOR, NOW).response
    assert not isinstance(failed, CommandFailed)
    assert failed.error is ErrorCode.NOT_COORDINATOR
