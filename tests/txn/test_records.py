"""The records of __transaction_state against bytes from Kafka's own classes, and against damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.txn.records import (
    RecordError,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
)
from fleetlog.txn.states import TransactionState
from fleetlog.txn.transaction import Transaction
from fleetlog.wire.types import TopicPartition

LINES = [
    line.split(" ")
    for line in (Path(__file__).parent / "golden" / "transaction_state_4.1.1.txt").read_text().splitlines()
    if not line.startswith("#")
]
KEYS = {name: bytes.fromhex(data) for kind, name, data in (line for line in LINES if line[0] == "key")}
VALUES = {
    (line[0], int(line[1][1:])): bytes.fromhex(line[2]) for line in LINES if len(line) == 3 and line[1].startswith("v")
}

PARTITIONS = frozenset(
    {
        TopicPartition("__consumer_offsets", 17),
        TopicPartition("flights", 0),
        TopicPartition("flights", 3),
        TopicPartition("flights", 5),
    }
)
S = TransactionState
EXPECTED = {
    ("empty", 0): Transaction(4000, 0, 60_000, S.EMPTY, last_update_ms=1_700_000_000_123),
    ("empty", 1): Transaction(4000, 0, 60_000, S.EMPTY, last_update_ms=1_700_000_000_123),
    ("ongoing", 0): Transaction(4000, 7, 60_000, S.ONGOING, PARTITIONS, 1_700_000_000_400, 1_700_000_000_456),
    ("ongoing", 1): Transaction(4000, 7, 60_000, S.ONGOING, PARTITIONS, 1_700_000_000_400, 1_700_000_000_456),
    ("rotating", 1): Transaction(
        4000, 32767, 900_000, S.PREPARE_COMMIT, PARTITIONS, 1_700_000_000_400, 1_700_000_000_789, 4000, 1 << 40, 2
    ),
    ("complete", 1): Transaction(
        1 << 40,
        0,
        900_000,
        S.COMPLETE_COMMIT,
        frozenset(),
        1_700_000_000_400,
        1_700_000_000_999,
        4000,
        client_version=2,
    ),
    ("big", 1): Transaction(
        1, 1, 1, S.PREPARE_ABORT, frozenset(TopicPartition("t" * 249, i) for i in range(300)), 0, 0
    ),
}


def test_keys_are_kafkas() -> None:
    for name, text in (("my-app", "my-app"), ("umlaut", "ä€😀")):
        assert encode_transaction_key(text) == KEYS[name]
        assert decode_transaction_key(KEYS[name]) == text


def test_the_table_covers_all_golden_values() -> None:
    assert EXPECTED.keys() == VALUES.keys()


@pytest.mark.parametrize("which", sorted(EXPECTED), ids=lambda which: f"{which[0]}-v{which[1]}")
def test_values_are_kafkas(which: tuple[str, int]) -> None:
    assert encode_transaction(EXPECTED[which], which[1]) == VALUES[which]
    assert decode_transaction(VALUES[which]) == EXPECTED[which]


def test_what_the_timeout_did_stands_in_a_tagged_field() -> None:
    aborted = Transaction(4000, 8, 60_000, S.PREPARE_ABORT, PARTITIONS, 1_700_000_000_400, 1_700_000_000_456)
    timed_out = replace(aborted, timed_out=True)
    assert decode_transaction(encode_transaction(timed_out)) == timed_out
    assert encode_transaction(timed_out) == encode_transaction(aborted)[:-1] + b"\x01" + b"\x65\x00"
    assert decode_transaction(encode_transaction(timed_out, 0)) == aborted, "version 0 has no room for it"


def test_newer_versions_are_skipped_not_guessed() -> None:
    assert decode_transaction_key(b"\0\1" + KEYS["my-app"][2:]) is None
    assert decode_transaction(b"\0\2" + VALUES["empty", 1][2:]) is None


def test_unknown_tags_are_skipped() -> None:
    plain = VALUES["ongoing", 1]
    assert plain[-1] == 0
    assert decode_transaction(plain[:-1] + b"\x01\x63\x03abc") == EXPECTED["ongoing", 1]


transactions = st.builds(
    Transaction,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from([s for s in S if s is not S.EMPTY]),
    partitions=st.frozensets(
        st.builds(TopicPartition, st.text(min_size=1, max_size=20), st.integers(0, 2**31 - 1)), max_size=20
    ),
    start_ms=st.integers(-1, 2**62),
    last_update_ms=st.integers(-1, 2**62),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    client_version=st.integers(0, 2),
    timed_out=st.booleans(),
    epoch_before=st.integers(-1, 2**15 - 1),
)


@given(transactions)
def test_round_trip(transaction: Transaction) -> None:
    assert decode_transaction(encode_transaction(transaction)) == transaction


@given(st.sampled_from(sorted(VALUES)), st.data())
def test_damage_is_a_record_error_or_another_value(which: tuple[str, int], data: st.DataObject) -> None:
    value = bytearray(VALUES[which])
    cut = data.draw(st.integers(0, len(value)))
    place = data.draw(st.integers(2, len(value) - 1))
    value[place] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(value), bytes(value[:cut])):
        try:
            decode_transaction(damaged)
        except RecordError:
            pass


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_value_or_a_record_error(data: bytes) -> None:
    for decode in (decode_transaction, decode_transaction_key):
        try:
            decode(data)
        except RecordError:
            pass
