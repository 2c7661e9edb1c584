"""The record formats of __consumer_offsets, byte for byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.groups import records as r
from fleetlog.brokers.groups.requests import GroupSettings
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.txn.commands import CoordinatorRecord, Now
from fleetlog.wire.types import TopicPartition
from tests.support.gauges import added_up

# Written out by hand from Kafka's schemas (OffsetCommitKey 1, OffsetCommitValue 3 and 1, GroupMetadataKey 2,
# GroupMetadataValue 3).
OFFSET_KEY = bytes.fromhex("00010003" + b"grp".hex() + "0005" + b"topic".hex() + "00000007")
OFFSET_VALUE_3 = bytes.fromhex("0003000000000000002a000000050002" + b"hi".hex() + "0000018bcfe56800")
OFFSET_VALUE_1 = bytes.fromhex("0001000000000000002a0002" + b"hi".hex() + "0000018bcfe568000000018bcfe56801")
GROUP_KEY = bytes.fromhex("00020003" + b"grp".hex())
GROUP_VALUE_3 = bytes.fromhex(
    "0003"
    "0008" + b"consumer".hex() + "00000004"
    "0005" + b"range".hex() + "0002" + b"m1".hex() + "0000018bcfe56800"
    "00000001"
    "0002" + b"m1".hex() + "ffff"
    "0001" + b"c".hex() + "0002" + b"/h".hex() + "0000ea60" "00002710"
    "00000003" "010203" "00000002" "0405"
)  # fmt: skip
TIME_MS = 0x018BCFE56800

GROUP = r.GroupRecord(
    "consumer", 4, "range", "m1", TIME_MS, (r.MemberRecord("m1", None, "c", "/h", 60_000, 10_000, b"\1\2\3", b"\4\5"),)
)


def test_offsets_byte_for_byte() -> None:
    partition = TopicPartition("topic", 7)
    assert r.offset_key("grp", partition) == OFFSET_KEY
    assert r.decode_group_key(OFFSET_KEY) == r.OffsetKey("grp", partition)
    plain = r.CommittedOffset(42, 5, "hi", TIME_MS)
    assert r.offset_value(plain) == OFFSET_VALUE_3
    assert r.decode_offset(OFFSET_VALUE_3) == plain
    topic_id = bytes(range(16))
    assert r.offset_value(plain._replace(topic_id=topic_id)) == OFFSET_VALUE_3 + topic_id, "behind what Kafka reads"
    assert r.decode_offset(OFFSET_VALUE_3 + topic_id) == plain._replace(topic_id=topic_id)
    expiring = r.CommittedOffset(42, -1, "hi", TIME_MS, TIME_MS + 1)
    assert r.offset_value(expiring) == OFFSET_VALUE_1
    assert r.decode_offset(OFFSET_VALUE_1) == expiring


def test_groups_byte_for_byte() -> None:
    assert r.group_key("grp") == GROUP_KEY
    assert r.decode_group_key(GROUP_KEY) == r.GroupKey("grp")
    assert r.group_value(GROUP) == GROUP_VALUE_3
    assert r.decode_group(GROUP_VALUE_3) == GROUP


# --- Kafka's own bytes ------------------------------------------------------------------------------------------

NOTE_TIME_MS = 1_700_000_000_123
GOLDEN = {
    (name, int(version[1:])): bytes.fromhex(text)
    for name, version, text in (
        line.split()
        for line in (Path(__file__).parent / "golden" / "group_records_4.1.1.txt").read_text().splitlines()
        if not line.startswith("#")
    )
}


def golden_member(version: int, number: int) -> r.MemberRecord:
    instance = "i-2" if version >= 3 and number == 2 else None
    rebalance_ms = 60_000 if version >= 1 else 10_000
    return r.MemberRecord(f"m-{number}", instance, "client", "/127.0.0.1", rebalance_ms, 10_000, b"\0\1\2", b"\3\4")


def golden_group(name: str, version: int) -> r.GroupRecord:
    timestamp = NOTE_TIME_MS if version >= 2 else -1
    if name == "empty":
        return r.GroupRecord("consumer", 4, None, None, timestamp, ())
    members = (golden_member(version, 1), golden_member(version, 2))
    return r.GroupRecord("consumer", 4, "range", "m-1", timestamp, members)


@pytest.mark.parametrize("name", ["stable", "empty"])
@pytest.mark.parametrize("version", range(5))
def test_groups_written_by_kafka(name: str, version: int) -> None:
    assert r.decode_group(GOLDEN[name, version]) == golden_group(name, version)
    if version == 3:
        assert r.group_value(golden_group(name, version)) == GOLDEN[name, version]


@pytest.mark.parametrize("version", range(5))
def test_offsets_written_by_kafka(version: int) -> None:
    leader_epoch = 5 if version >= 3 else -1
    expiry = NOTE_TIME_MS + 60_000 if version == 1 else -1
    committed = r.CommittedOffset(42, leader_epoch, "not\u00e9", NOTE_TIME_MS, expiry)
    assert r.decode_offset(GOLDEN["offset", version]) == committed
    if version in {1, 3}:
        assert r.offset_value(committed) == GOLDEN["offset", version]


def test_other_records_written_by_kafka() -> None:
    flights = r.OffsetKey("my-group", TopicPartition("flights", 7))
    assert r.decode_group_key(GOLDEN["offset-key", 0]) == r.decode_group_key(GOLDEN["offset-key", 1]) == flights
    assert r.offset_key(*flights) == GOLDEN["offset-key", 1]
    assert r.offset_key("gr\u00f6\u00dfe", TopicPartition("t", 2**31 - 1)) == GOLDEN["umlaut-key", 1]
    assert r.group_key("my-group") == GOLDEN["group-key", 2]
    with_id = r.decode_offset(GOLDEN["offset-with-topic-id", 4])
    assert with_id == r.CommittedOffset(42, 5, "", NOTE_TIME_MS, -1, bytes(range(16)))


def test_a_tombstone_is_a_key_without_a_value() -> None:
    assert r.group_tombstone("grp") == CoordinatorRecord(GROUP_KEY, None)
    assert r.offset_tombstone("grp", TopicPartition("topic", 7)) == CoordinatorRecord(OFFSET_KEY, None)


def test_older_and_newer_offset_values() -> None:
    assert r.decode_group_key(b"\0\0" + OFFSET_KEY[2:]) == r.OffsetKey("grp", TopicPartition("topic", 7))
    body = struct.pack(">q", 42)
    assert r.decode_offset(b"\0\0" + body + b"\0\2hi" + struct.pack(">q", 9)) == r.CommittedOffset(42, -1, "hi", 9)
    assert r.decode_offset(b"\0\2" + body + b"\0\2hi" + struct.pack(">q", 9)) == r.CommittedOffset(42, -1, "hi", 9)
    flexible = b"\0\4" + body + struct.pack(">i", 5) + b"\3hi" + struct.pack(">q", 9)
    assert r.decode_offset(flexible + b"\0") == r.CommittedOffset(42, 5, "hi", 9)
    topic_id = bytes(range(16))
    assert r.decode_offset(flexible + b"\1\0\x10" + topic_id) == r.CommittedOffset(42, 5, "hi", 9, -1, topic_id)
    assert r.decode_offset(b"\0\5" + body) is None


def test_older_and_newer_group_values() -> None:
    def group(version: int) -> bytes:
        parts = [struct.pack(">h", version), b"\0\1c", struct.pack(">i", 4), b"\0\1r", b"\0\1m"]
        parts.append(struct.pack(">q", 99) if version >= 2 else b"")
        parts += [struct.pack(">i", 1), b"\0\1m", b"\0\1i" if version >= 3 else b"", b"\0\1c", b"\0\1h"]
        parts += [struct.pack(">i", 60) if version >= 1 else b"", struct.pack(">i", 10)]
        return b"".join([*parts, struct.pack(">i", 1), b"s", struct.pack(">i", 1), b"a"])

    for version in range(4):
        decoded = r.decode_group(group(version))
        assert decoded is not None
        assert decoded.state_timestamp_ms == (99 if version >= 2 else -1)
        (member,) = decoded.members
        assert member.instance_id == ("i" if version >= 3 else None)
        assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (60 if version >= 1 else 10, 10)
        assert (member.subscription, member.assignment) == (b"s", b"a")
    flexible = b"\0\4\2c" + struct.pack(">i", 4) + b"\0\0" + struct.pack(">q", 99) + b"\1\0"
    assert r.decode_group(flexible) == r.GroupRecord("c", 4, None, None, 99, ())
    assert r.decode_group(b"\0\5" + flexible[2:]) is None


def test_records_of_other_kinds_are_counted_and_skipped() -> None:
    shard = GroupShard(0, GroupSettings())
    now = Now(0, 0)
    for version in (4, 17, 18, 19):
        shard.apply(CoordinatorRecord(struct.pack(">h", version) + b"whatever", b"x"), None, now)
    shard.apply(CoordinatorRecord(OFFSET_KEY, b"\0\x09"), None, now)
    shard.apply(CoordinatorRecord(GROUP_KEY, b"\0\x09"), None, now)
    shard.apply(CoordinatorRecord(GROUP_KEY, GROUP_VALUE_3[:-1]), None, now)
    shard.apply(CoordinatorRecord(b"\0", b""), None, now)
    assert sum(shard.skipped.values()) == 8
    assert shard.skipped["damaged"] == 2
    assert shard.groups == {}
    assert added_up(shard.metric_parts())["skipped_records"] == 8.0


names = st.text(max_size=20)
members = st.builds(
    r.MemberRecord,
    names,
    st.none() | names,
    names,
    names,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=30),
    st.binary(max_size=30),
)


@given(
    st.builds(
        r.GroupRecord,
        names,
        st.integers(-1, 2**31 - 1),
        st.none() | names,
        st.none() | names,
        st.integers(-1, 2**62),
        st.lists(members, max_size=4).map(tuple),
    )
)
def test_groups_round_trip(group: r.GroupRecord) -> None:
    assert r.decode_group(r.group_value(group)) == group


@given(
    names, names, st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.integers(-1, 2**31 - 1), names,
    st.none() | st.binary(min_size=16, max_size=16),
)  # fmt: skip
def test_offsets_round_trip(
    group: str, topic: str, partition: int, offset: int, epoch: int, metadata: str, topic_id: bytes | None
) -> None:
    key = r.offset_key(group, TopicPartition(topic, partition))
    assert r.decode_group_key(key) == r.OffsetKey(group, TopicPartition(topic, partition))
    committed = r.CommittedOffset(offset, epoch, metadata, 17, topic_id=topic_id)
    assert r.decode_offset(r.offset_value(committed)) == committed


@pytest.mark.parametrize("decode", [r.decode_group_key, r.decode_offset, r.decode_group])
@given(raw=st.binary(max_size=80), head=st.integers(0, 5))
def test_any_bytes_decode_or_are_refused(decode: object, raw: bytes, head: int) -> None:
    try:
        decode(struct.pack(">h", head) + raw)  # type: ignore[operator]
    except r.BadRecord:
        pass
