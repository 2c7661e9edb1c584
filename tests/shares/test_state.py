"""Merging of state batches, by properties; the records of ``__share_group_state``, byte for byte by Kafka's schemas."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.groups.records import BadRecord
from fleetlog.brokers.shares import state as s
from fleetlog.brokers.shares.coordinator import coordinator_key, parse_coordinator_key
from fleetlog.brokers.shares.state import RecordState, ShareKey, ShareState, ShareUpdate, StateBatch

KEY = ShareKey("größe", bytes(range(16)), 7)
BATCHES = (StateBatch(5, 9, RecordState.ACKNOWLEDGED, 1), StateBatch(10, 10, RecordState.AVAILABLE, 3))
batches = st.lists(
    st.builds(
        lambda first, more, state, count: StateBatch(first, first + more, state, count),
        st.integers(0, 40),
        st.integers(0, 12),
        st.sampled_from(s.PERSISTED),
        st.integers(0, 3),
    ),
    max_size=8,
)


def by_offset(some: list[StateBatch] | tuple[StateBatch, ...]) -> dict[int, tuple[bool, int, int]]:
    """The furthest state of each offset, the slow way."""
    result: dict[int, tuple[bool, int, int]] = {}
    for batch in some:
        for offset in range(batch.first, batch.last + 1):
            result[offset] = max(result.get(offset, (False, -1, -1)), batch.rank)
    return result


@given(batches, batches, st.integers(-1, 60))
def test_merging_keeps_the_furthest_state_of_each_offset(
    older: list[StateBatch], newer: list[StateBatch], start: int
) -> None:
    result = s.merged(older, newer, start)
    wanted = {offset: rank for offset, rank in by_offset([*older, *newer]).items() if offset >= start}
    assert by_offset(result) == wanted
    for before, after in pairwise(result):
        assert before.last < after.first
        joined = (before.last + 1, before.state, before.deliveries) != (after.first, after.state, after.deliveries)
        assert joined, "equal neighbours are one"


@given(batches, batches, batches)
def test_the_order_of_writes_does_not_matter(
    one: list[StateBatch], two: list[StateBatch], three: list[StateBatch]
) -> None:
    assert s.merged(one, two) == s.merged(two, one)
    assert s.merged(s.merged(one, two), three) == s.merged(one, s.merged(two, three))
    assert s.merged(s.merged(one, two), two) == s.merged(one, two), "a write that comes twice"


def test_a_snapshot_as_kafka_writes_it() -> None:
    state = ShareState(1, 2, 3, 5, 4, BATCHES, 1_000, 2_000)
    raw = bytes.fromhex(
        "0000 00000001 00000002 00000003 0000000000000005 00000000000003e8 00000000000007d0 03"
        "0000000000000005 0000000000000009 02 0001 00"
        "000000000000000a 000000000000000a 00 0003 00"
        "01 00 04 00000004"
    )
    assert s.snapshot_value(state) == raw
    assert s.decode_share_snapshot(raw) == state
    plain = state._replace(complete=-1, batches=())
    assert s.snapshot_value(plain).hex()[-4:] == "0100"
    assert s.decode_share_snapshot(s.snapshot_value(plain)) == plain


def test_an_update_as_kafka_writes_it() -> None:
    update = ShareUpdate(1, 3, -1, -1, BATCHES[:1])
    raw = bytes.fromhex("0000 00000001 00000003 ffffffffffffffff 02 0000000000000005 0000000000000009 02 0001 00 00")
    assert s.update_value(update) == raw
    assert s.decode_share_update(raw) == update


def test_keys() -> None:
    raw = bytes.fromhex("0001 0007 6772c3b6c39f65 000102030405060708090a0b0c0d0e0f 00000007")
    assert s.state_key(s.UPDATE_KEY, KEY) == raw
    assert s.decode_state_key(raw) == (s.UPDATE_KEY, KEY)
    assert s.decode_state_key(b"\0\x09") is None, "a kind of later versions"
    named = KEY._replace(group_id="a:b")
    assert coordinator_key(named) == "a:b:AAECAwQFBgcICQoLDA0ODw:7"
    assert parse_coordinator_key(coordinator_key(named)) == named
    for name in ("", "g", "g:x:0", ":AAECAwQFBgcICQoLDA0ODw:7", "g:AAECAwQFBgcICQoLDA0ODw:-1", "g:é:1"):
        assert parse_coordinator_key(name) is None


@pytest.mark.parametrize(
    "batch", ["000000000000000a 0000000000000009 02 0001 00", "0000000000000001 0000000000000009 01 0001 00",
              "0000000000000001 0000000000000009 07 0001 00", "0000000000000001 0000000000000009 02 ffff 00"]
)  # fmt: skip
def test_what_cannot_be_is_refused(batch: str) -> None:
    raw = bytes.fromhex(f"0000 00000001 00000003 ffffffffffffffff 02 {batch} 00")
    with pytest.raises(BadRecord):
        s.decode_share_update(raw)
    with pytest.raises(BadRecord):
        s.decode_share_update(raw[:-9])


@given(st.binary(max_size=80))
def test_any_bytes(raw: bytes) -> None:
    for decode in (s.decode_share_update, s.decode_share_snapshot, s.decode_state_key):
        try:
            decode(raw)
        except BadRecord:
            continue
