"""Blocks of producer ids: arithmetic, Kafka's JSON, and that no id is given twice."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.txn.producer_ids import (
    MAX_PRODUCER_ID,
    Block,
    BlockError,
    Exhausted,
    ProducerIds,
    StoredBlock,
    decode_block,
    encode_block,
    next_block,
)


def test_the_znode_is_kafkas_plus_a_stamp() -> None:
    data = encode_block(Block(1000, 1999), 2, "2-5-1")
    assert json.loads(data) == {
        "version": 1, "broker": 2, "block_start": "1000", "block_end": "1999", "stamp": "2-5-1",
    }  # fmt: skip
    assert decode_block(data) == StoredBlock(Block(1000, 1999), 2, "2-5-1")


def test_a_znode_kafka_wrote() -> None:
    data = b'{"version":1,"broker":0,"block_start":"3000","block_end":"3999"}'
    assert decode_block(data) == StoredBlock(Block(3000, 3999), 0, "")
    assert next_block(decode_block(data)) == Block(4000, 4999)


def test_the_first_block() -> None:
    assert next_block(None) == Block(0, 999)


def test_ids_that_brokers_have_given_out_count_though_an_older_zookeeper_does_not_know_them() -> None:
    stored = StoredBlock(Block(0, 999), 0, "")
    assert next_block(stored, 5_123) == Block(5_124, 6_123)
    assert next_block(stored, 12) == Block(1000, 1999)
    assert next_block(None, 7_000).first == 7_001
    with pytest.raises(Exhausted):
        next_block(stored, MAX_PRODUCER_ID - 100)


def test_the_end_of_all_ids() -> None:
    last = StoredBlock(Block(0, MAX_PRODUCER_ID - 1001), 0, "")
    assert next_block(last).last == MAX_PRODUCER_ID - 1
    with pytest.raises(Exhausted):
        next_block(StoredBlock(Block(0, MAX_PRODUCER_ID - 1000), 0, ""))


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b"\xff", b'{"version":1,"broker":0,"block_start":"9","block_end":"3"}',
     b'{"version":1,"broker":0,"block_start":"x","block_end":"3"}',
     b'{"version":0,"broker":0,"block_start":"0","block_end":"3"}',
     b'{"version":1,"broker":0,"block_start":"-5","block_end":"3"}'],
)  # fmt: skip
def test_a_damaged_block_is_refused(data: bytes) -> None:
    with pytest.raises(BlockError):
        decode_block(data)


@given(st.lists(st.sampled_from(["take", "add"]), max_size=60), st.integers(1, 7))
def test_no_id_twice_and_none_from_outside(steps: list[str], size: int) -> None:
    ids = ProducerIds()
    taken: list[int] = []
    first = 0
    total = 0
    for step in steps:
        if step == "add":
            ids.add(Block(first, first + size - 1))
            total += size
            first += size + 3  # another broker took ids in between
        else:
            found = ids.take()
            assert (found is None) == (total == len(taken))
            if found is not None:
                taken.append(found)
        assert ids.left == total - len(taken)
    assert taken == sorted(set(taken))
    assert all(number % (size + 3) < size for number in taken)
