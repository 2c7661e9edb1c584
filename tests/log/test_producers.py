"""Idempotence and transactions: the rules of KIP-98, KIP-360 and KIP-890 as a partition keeps them."""

from __future__ import annotations

import pytest

from brokers.log import Origin
from brokers.log.producers import (
    DamagedSnapshot,
    ProducerState,
    decode_snapshot,
    encode_snapshot,
)
from tests.log.support import NOW, append, append_txn, batch, end_txn, headers, marker, open_log, produced
from wire.errors import ErrorCode


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path / "events-0")


def test_the_last_five_batches_are_known_as_duplicates(log):
    for i in range(7):
        assert append(log, produced(1, 0, i * 2, 2)).first_offset == i * 2
    for i in range(2, 7):
        again = append(log, produced(1, 0, i * 2, 2))
        assert (again.error, again.duplicate) == (ErrorCode.NONE, True)
        assert (again.first_offset, again.last_offset) == (i * 2, i * 2 + 1)
    for i in range(2):
        assert append(log, produced(1, 0, i * 2, 2)).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 14
    assert len(headers(log)) == 7


def test_a_batch_that_only_overlaps_is_no_duplicate(log):
    append(log, produced(1, 0, 0, 4))
    assert append(log, produced(1, 0, 0, 3)).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, produced(1, 0, 2, 2)).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_refused_and_changes_nothing(log):
    append(log, produced(1, 0, 0))
    info = append(log, produced(1, 0, 2))
    assert info.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 1
    assert append(log, produced(1, 0, 1)).error == ErrorCode.NONE


def test_an_unknown_producer_may_start_anywhere(log):
    assert append(log, produced(1, 3, 41)).error == ErrorCode.NONE
    assert append(log, produced(1, 3, 42)).error == ErrorCode.NONE


def test_epochs(log):
    append(log, produced(1, 5, 0))
    assert append(log, produced(1, 4, 1)).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert append(log, produced(1, 6, 1)).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, produced(1, 6, 0)).error == ErrorCode.NONE
    assert append(log, produced(1, 5, 1)).error == ErrorCode.INVALID_PRODUCER_EPOCH


def test_the_same_sequences_in_a_new_epoch_are_no_duplicate(log):
    append(log, produced(1, 0, 0, 2))
    info = append(log, produced(1, 1, 0, 2))
    assert not info.duplicate
    assert info.first_offset == 2


def test_sequences_wrap(log):
    last = 2**31 - 1
    append(log, produced(1, 0, last - 2, 2))
    wrapping = append(log, produced(1, 0, last, 3))  # last, 0, 1
    assert wrapping.error == ErrorCode.NONE
    assert append(log, produced(1, 0, last, 3)).duplicate
    assert append(log, produced(1, 0, 2)).error == ErrorCode.NONE


def test_producers_do_not_disturb_each_other(log):
    append(log, produced(1, 0, 0))
    append(log, produced(2, 0, 0))
    append(log, batch(1))
    assert append(log, produced(1, 0, 1)).error == ErrorCode.NONE
    assert append(log, produced(2, 0, 1)).error == ErrorCode.NONE


def test_duplicates_after_a_restart(tmp_path):
    log = open_log(tmp_path / "e-0")
    for i in range(3):
        append(log, produced(1, 0, i))
    log.close()
    log = open_log(tmp_path / "e-0", clean=True)
    assert append(log, produced(1, 0, 2)).duplicate
    assert append(log, produced(1, 0, 3)).error == ErrorCode.NONE


# ---- transactions


def test_open_transaction_holds_the_stable_offset(log):
    append(log, batch(2))
    append_txn(log, 1, 0, 0)
    append(log, batch(1))
    assert (log.last_stable_offset, log.high_watermark) == (2, 4)
    assert log.producers.has_open_transaction(1)
    end_txn(log, 1, 0, commit=True)
    assert log.last_stable_offset == 5
    assert not log.producers.has_open_transaction(1)
    assert log.aborted_transactions(0, 5) == []


def test_a_marker_counts_only_below_the_high_watermark(log):
    append_txn(log, 1, 0, 0)
    append(log, marker(1, 0, commit=True), origin=Origin.COORDINATOR, commit_hw=False)
    assert log.last_stable_offset == 0
    log.set_high_watermark(2)
    assert log.last_stable_offset == 2


def test_interleaved_transactions(log):
    append_txn(log, 1, 0, 0)  # 0
    append_txn(log, 2, 0, 0)  # 1
    append_txn(log, 1, 0, 1)  # 2
    end_txn(log, 2, 0, commit=False)  # 3
    assert log.last_stable_offset == 0
    append_txn(log, 3, 0, 0)  # 4
    end_txn(log, 1, 0, commit=True)  # 5
    assert log.last_stable_offset == 4
    assert [tuple(entry) for entry in log.aborted_transactions(0, 6)] == [(2, 1)]
    (entry,) = log.aborted_entries()
    assert entry == (2, 1, 3, 0)
    end_txn(log, 3, 0, commit=False)  # 6
    assert log.last_stable_offset == 7
    assert [tuple(entry) for entry in log.aborted_transactions(0, 7)] == [(2, 1), (3, 4)]
    assert [tuple(entry) for entry in log.aborted_transactions(4, 7)] == [(3, 4)]
    assert [tuple(entry) for entry in log.aborted_transactions(0, 1)] == []


def test_markers_check_epochs(log):
    append_txn(log, 1, 5, 0)
    assert end_txn(log, 1, 4, commit=True).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.producers.has_open_transaction(1)
    assert end_txn(log, 1, 5, commit=True, coordinator_epoch=7).error == ErrorCode.NONE
    append_txn(log, 1, 5, 1)
    stale = end_txn(log, 1, 5, commit=True, coordinator_epoch=6)
    assert stale.error == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.producers.has_open_transaction(1)


def test_markers_of_protocol_two_are_bumped(log):
    append_txn(log, 1, 5, 0)
    assert end_txn(log, 1, 5, commit=True, transaction_version=2).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end_txn(log, 1, 6, commit=True, transaction_version=2).error == ErrorCode.NONE
    # the same marker again (the coordinator didn't see the answer) is harmless
    assert end_txn(log, 1, 6, commit=True, transaction_version=2).error == ErrorCode.NONE
    assert log.last_stable_offset == log.high_watermark
    # the new epoch starts at sequence 0
    assert append_txn(log, 1, 6, 3).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append_txn(log, 1, 6, 0).error == ErrorCode.NONE


def test_old_epoch_after_a_bumped_marker_is_refused(log):
    append_txn(log, 1, 5, 0)
    end_txn(log, 1, 6, commit=False, transaction_version=2)
    assert append_txn(log, 1, 5, 1).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.last_stable_offset == log.high_watermark


def test_a_marker_for_a_producer_without_data(log):
    assert end_txn(log, 9, 0, commit=False).error == ErrorCode.NONE
    assert log.aborted_entries() == []
    assert log.last_stable_offset == 1


def test_plain_write_inside_a_transaction(log):
    append_txn(log, 1, 0, 0)
    assert append(log, produced(1, 0, 1)).error == ErrorCode.INVALID_TXN_STATE


def test_a_run_of_markers_in_one_append(log):
    for pid in (1, 2, 3):
        append_txn(log, pid, 0, 0)
    run = b"".join(marker(pid, 0, commit=pid != 2) for pid in (1, 2, 3))
    info = append(log, run, origin=Origin.COORDINATOR)
    assert (info.first_offset, info.last_offset) == (3, 5)
    assert log.last_stable_offset == 6
    assert [tuple(entry) for entry in log.aborted_transactions(0, 6)] == [(2, 1)]


def test_one_bad_marker_in_a_run_refuses_it_whole(log):
    append_txn(log, 1, 0, 0)
    append_txn(log, 2, 3, 0)
    run = marker(1, 0, commit=True) + marker(2, 2, commit=True)
    assert append(log, run, origin=Origin.COORDINATOR).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.producers.has_open_transaction(1)
    assert log.log_end_offset == 2


# ---- verification (KIP-890)


def test_no_guard_no_transaction(log):
    assert append(log, produced(1, 0, 0, txn=True)).error == ErrorCode.INVALID_TXN_STATE
    assert log.log_end_offset == 0


def test_the_guard_is_needed_once(log):
    guard = log.verification_guard(1, 0, 0)
    assert guard is not None
    assert append(log, produced(1, 0, 0, txn=True), verification_guard=guard).error == ErrorCode.NONE
    assert log.verification_guard(1, 0, 1) is None
    assert append(log, produced(1, 0, 1, txn=True)).error == ErrorCode.NONE


def test_a_guard_does_not_survive_a_marker(log):
    """Verified, then aborted before the append: the late batch must not open the next transaction."""
    guard = log.verification_guard(1, 0, 0)
    end_txn(log, 1, 0, commit=False)
    late = append(log, produced(1, 0, 0, txn=True), verification_guard=guard)
    assert late.error == ErrorCode.INVALID_TXN_STATE
    fresh = log.verification_guard(1, 0, 0)
    assert fresh is not guard
    assert append(log, produced(1, 0, 0, txn=True), verification_guard=guard).error == ErrorCode.INVALID_TXN_STATE
    assert append(log, produced(1, 0, 0, txn=True), verification_guard=fresh).error == ErrorCode.NONE


def test_a_guard_of_somebody_else_does_not_count(log):
    other = log.verification_guard(2, 0, 0)
    log.verification_guard(1, 0, 0)
    refused = append(log, produced(1, 0, 0, txn=True), verification_guard=other)
    assert refused.error == ErrorCode.INVALID_TXN_STATE
    assert append(log, produced(1, 0, 0, txn=True), verification_guard=object()).error == ErrorCode.INVALID_TXN_STATE


def test_a_failed_append_leaves_the_guard_valid(log):
    append(log, produced(1, 0, 0))
    guard = log.verification_guard(1, 0, 1)
    gap = append(log, produced(1, 0, 5, txn=True), verification_guard=guard)
    assert gap.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, produced(1, 0, 1, txn=True), verification_guard=guard).error == ErrorCode.NONE


def test_the_lowest_sequence_under_verification_goes_first(log):
    guard = log.verification_guard(1, 0, 0)
    assert log.verification_guard(1, 0, 5) is guard
    early = append(log, produced(1, 0, 5, txn=True), verification_guard=guard)
    assert early.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, produced(1, 0, 0, 5, txn=True), verification_guard=guard).error == ErrorCode.NONE
    assert append(log, produced(1, 0, 5, txn=True), verification_guard=guard).error == ErrorCode.NONE


def test_a_coordinator_needs_no_guard(log):
    data = batch(1, producer_id=4, producer_epoch=0, base_sequence=-1, attributes=0x10)
    assert append(log, data, origin=Origin.COORDINATOR).error == ErrorCode.NONE
    assert log.last_stable_offset == 0


# ---- bounds and expiry


def test_idle_producers_expire_but_never_with_an_open_transaction(log):
    append(log, produced(1, 0, 0))
    append_txn(log, 2, 0, 0)
    append(log, produced(3, 0, 0), now_ms=NOW + 50_000_000)
    assert log.producers.expire(NOW + 86_400_000) == 1
    assert set(log.producers.entries) == {2, 3}


def test_old_timestamps_do_not_expire_a_busy_producer(log):
    append(log, produced(1, 0, 0, timestamp=1_357_000_000_000))
    assert log.producers.expire(NOW + 1000) == 0
    assert append(log, produced(1, 0, 0, timestamp=1_357_000_000_000)).duplicate


def test_the_number_of_producers_is_bounded(tmp_path):
    from brokers.log import LogSettings

    log = open_log(tmp_path / "e-0", settings=LogSettings(max_producers=10))
    append_txn(log, 0, 0, 0)
    for pid in range(1, 100):
        append(log, produced(pid, 0, 0))
        append(log, produced(1, 0, pid)) if pid > 1 else None
    assert len(log.producers.entries) == 10
    assert log.producers.has_open_transaction(0)
    assert 1 in log.producers.entries, "the busiest stays"
    assert set(range(92, 100)) <= set(log.producers.entries)


def test_verifications_are_bounded():
    state = ProducerState(expiration_ms=1, max_producers=10)
    first = state.verification_guard(0, 0, 0)
    for pid in range(1, 10_001):
        state.verification_guard(pid, 0, 0)
    assert len(state._verifications) == 10_000
    assert state.verification_guard(0, 0, 0) is not first


# ---- snapshots


def test_snapshot_bytes():
    """Golden: one idempotent producer with a batch, one with only a marker; written out by hand from the format."""
    state = ProducerState(expiration_ms=1, max_producers=10)
    from brokers.log.producers import BatchMeta, ProducerEntry

    entries = [
        ProducerEntry(7, 2, -1, 1000, (BatchMeta(9, 109, 4, 1000),), 105),
        ProducerEntry(8, 1, 3, 2000),
    ]
    data = encode_snapshot(entries)
    assert data[:2] == b"\0\1"
    assert len(data) == 10 + 2 * 46
    assert data[6:10] == b"\0\0\0\2"
    assert data[10:56] == bytes.fromhex(
        "0000000000000007 0002 00000009 000000000000006d 00000004 00000000000003e8 ffffffff 0000000000000069".replace(
            " ", ""
        )
    )
    state.load_snapshot(decode_snapshot(data), NOW)
    assert state.to_snapshot() == data
    assert state.first_unstable_offset == 105


@pytest.mark.parametrize("cut", [0, 5, 9, 20, 55])
def test_damaged_snapshots(cut):
    state = ProducerState(expiration_ms=1, max_producers=10)
    data = state.to_snapshot()
    assert decode_snapshot(data) == []
    from brokers.log.producers import ProducerEntry

    whole = encode_snapshot([ProducerEntry(1)])
    with pytest.raises(DamagedSnapshot):
        decode_snapshot(whole[:cut])
    with pytest.raises(DamagedSnapshot):
        decode_snapshot(whole[:cut] + bytes([whole[cut] ^ 1]) + whole[cut + 1 :])
