"""Idempotence and transactions: the rules of KIP-98, KIP-360 and KIP-890 as a partition keeps them."""

from __future__ import annotations

import random

import pytest

from fleetlog._native.batch import crc32c
from fleetlog.brokers.log import Origin
from fleetlog.brokers.log.producers.entries import BatchMeta, ProducerEntry
from fleetlog.brokers.log.producers.markers import encode_marker_run
from fleetlog.brokers.log.producers.snapshots import DamagedSnapshot, decode_snapshot, encode_snapshot, encode_tail
from fleetlog.brokers.log.producers.state import ProducerState
from fleetlog.brokers.log.state import LogSettings
from fleetlog.wire.errors import ErrorCode
from tests.support.bytecodes import Bytecodes
from tests.support.logs import (
    NOW,
    aborted_entries,
    append,
    append_together,
    append_txn,
    batch,
    config,
    end_txn,
    headers,
    marker,
    open_log,
    produced,
)


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


def test_an_older_epoch_is_refused_and_a_newer_one_begins_at_sequence_0(log):
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
    assert log.reader.aborted_transactions(0, 5) == []


def test_a_marker_counts_only_below_the_high_watermark(log):
    append_txn(log, 1, 0, 0)
    append(log, marker(1, 0, commit=True), origin=Origin.COORDINATOR, commit_hw=False)
    assert log.last_stable_offset == 0
    log.appender.set_high_watermark(2)
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
    assert [tuple(entry) for entry in log.reader.aborted_transactions(0, 6)] == [(2, 1)]
    (entry,) = aborted_entries(log)
    assert entry == (2, 1, 3, 0)
    end_txn(log, 3, 0, commit=False)  # 6
    assert log.last_stable_offset == 7
    assert [tuple(entry) for entry in log.reader.aborted_transactions(0, 7)] == [(2, 1), (3, 4)]
    assert [tuple(entry) for entry in log.reader.aborted_transactions(4, 7)] == [(3, 4)]
    assert [tuple(entry) for entry in log.reader.aborted_transactions(0, 1)] == []


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
    assert aborted_entries(log) == []
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
    assert [tuple(entry) for entry in log.reader.aborted_transactions(0, 6)] == [(2, 1)]


def test_one_bad_marker_in_a_run_refuses_it_whole(log):
    append_txn(log, 1, 0, 0)
    append_txn(log, 2, 3, 0)
    run = marker(1, 0, commit=True) + marker(2, 2, commit=True)
    assert append(log, run, origin=Origin.COORDINATOR).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.producers.has_open_transaction(1)
    assert log.log_end_offset == 2


@pytest.mark.parametrize("commit", [False, True])
def test_a_batch_of_an_ended_transaction_answers_for_no_other(log, commit):
    """Protocol 1 keeps the epoch, and librdkafka uses a sequence again whose answer it did not see before the abort."""
    append_txn(log, 1, 0, 0)
    append_txn(log, 1, 0, 1, 2)
    assert append(log, produced(1, 0, 1, 2, txn=True)).duplicate, "a retry in the open transaction"
    end_txn(log, 1, 0, commit=commit)
    end = log.log_end_offset
    for sequence, count in ((2, 4), (1, 2), (1, 1), (0, 1)):
        again = append_txn(log, 1, 0, sequence, count)
        assert (again.error, again.duplicate) == (ErrorCode.UNKNOWN_PRODUCER_ID, False)
    behind = append_txn(log, 1, 0, 3)
    assert behind.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "0 came first, and is refused"
    assert log.log_end_offset == end
    assert not log.producers.has_open_transaction(1)
    assert append_txn(log, 1, 1, 0, 2).error == ErrorCode.NONE, "the producer goes on in its next epoch"


def test_the_next_transaction_of_an_epoch_continues_where_the_one_before_ended(log):
    append_txn(log, 1, 0, 0, 2)
    end_txn(log, 1, 0, commit=False)
    assert append_txn(log, 1, 0, 2).error == ErrorCode.NONE
    assert append(log, produced(1, 0, 2, txn=True)).duplicate
    late = append(log, produced(1, 0, 0, 2, txn=True))
    assert late.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a copy that was held up on its way"
    assert append(log, produced(1, 0, 3, txn=True)).error == ErrorCode.NONE


@pytest.mark.parametrize("clean", [True, False])
def test_which_transaction_a_batch_was_of_is_known_after_a_restart(tmp_path, clean):
    log = open_log(tmp_path / "e-0")
    append_txn(log, 1, 0, 0)
    end_txn(log, 1, 0, commit=False)
    append_txn(log, 2, 0, 0)
    log.close()
    log = open_log(tmp_path / "e-0", clean=clean)
    assert append_txn(log, 1, 0, 0).error == ErrorCode.UNKNOWN_PRODUCER_ID
    assert append(log, produced(2, 0, 0, txn=True)).duplicate


def test_sequences_that_wrap_are_known_as_used(log):
    last = 2**31 - 1
    append_txn(log, 1, 0, last - 1, 4)  # last - 1, last, 0, 1
    end_txn(log, 1, 0, commit=False)
    assert append_txn(log, 1, 0, last).error == ErrorCode.UNKNOWN_PRODUCER_ID
    assert append_txn(log, 1, 0, 3).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# ---- verification (KIP-890)


def test_no_guard_no_transaction(log):
    assert append(log, produced(1, 0, 0, txn=True)).error == ErrorCode.INVALID_TXN_STATE
    assert log.log_end_offset == 0


def test_the_guard_is_needed_once(log):
    guard = log.producers.verification_guard(1, 0, 0)
    assert guard is not None
    assert append(log, produced(1, 0, 0, txn=True), verification_guard=guard).error == ErrorCode.NONE
    assert log.producers.verification_guard(1, 0, 1) is None
    assert append(log, produced(1, 0, 1, txn=True)).error == ErrorCode.NONE


def test_a_guard_does_not_survive_a_marker(log):
    """Verified, then aborted before the append: the late batch must not open the next transaction."""
    guard = log.producers.verification_guard(1, 0, 0)
    end_txn(log, 1, 0, commit=False)
    late = append(log, produced(1, 0, 0, txn=True), verification_guard=guard)
    assert late.error == ErrorCode.INVALID_TXN_STATE
    fresh = log.producers.verification_guard(1, 0, 0)
    assert fresh is not guard
    assert append(log, produced(1, 0, 0, txn=True), verification_guard=guard).error == ErrorCode.INVALID_TXN_STATE
    assert append(log, produced(1, 0, 0, txn=True), verification_guard=fresh).error == ErrorCode.NONE


def test_a_guard_of_another_verification_does_not_count(log):
    other = log.producers.verification_guard(2, 0, 0)
    log.producers.verification_guard(1, 0, 0)
    refused = append(log, produced(1, 0, 0, txn=True), verification_guard=other)
    assert refused.error == ErrorCode.INVALID_TXN_STATE
    assert append(log, produced(1, 0, 0, txn=True), verification_guard=object()).error == ErrorCode.INVALID_TXN_STATE


def test_a_failed_append_leaves_the_guard_valid(log):
    append(log, produced(1, 0, 0))
    guard = log.producers.verification_guard(1, 0, 1)
    gap = append(log, produced(1, 0, 5, txn=True), verification_guard=guard)
    assert gap.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, produced(1, 0, 1, txn=True), verification_guard=guard).error == ErrorCode.NONE


def test_the_lowest_sequence_under_verification_goes_first(log):
    guard = log.producers.verification_guard(1, 0, 0)
    assert log.producers.verification_guard(1, 0, 5) is guard
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


def test_the_longest_silence_of_an_open_transaction(log):
    producers = log.producers
    assert producers.silent_ms(NOW + 5_000) == 0
    append(log, batch(1))
    append_txn(log, 1, 0, 0, 2)
    append_txn(log, 2, 0, 0, 1)
    assert producers.silent_ms(NOW + 5_000) == 5_000
    end_txn(log, 1, 0, commit=True)
    end_txn(log, 2, 0, commit=False)
    assert producers.silent_ms(NOW + 9_000) == 0


def test_old_timestamps_do_not_expire_a_busy_producer(log):
    append(log, produced(1, 0, 0, timestamp=1_357_000_000_000))
    assert log.producers.expire(NOW + 1000) == 0
    assert append(log, produced(1, 0, 0, timestamp=1_357_000_000_000)).duplicate


def test_the_number_of_producers_is_bounded(tmp_path):
    from fleetlog.brokers.log import LogSettings

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
    assert len(state.verifications) == 10_000
    assert state.verification_guard(0, 0, 0) is not first


# ---- snapshots


def test_snapshot_bytes():
    """Golden: one idempotent producer with a batch, one with only a marker; written out by hand from the format."""
    state = ProducerState(expiration_ms=1, max_producers=10)
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
    state.load_snapshot(data, NOW)
    assert state.to_snapshot() == data
    assert state.first_unstable_offset == 105


def sealed(body: bytes) -> bytes:
    """A snapshot with these bytes behind its checksum, as a writer that we don't know could leave it."""
    return b"\0\1" + crc32c(body).to_bytes(4, "big") + body


FIVE = tuple(BatchMeta(2 * n + 1, 100 + 2 * n, 1, NOW + n) for n in range(5))


def test_a_snapshot_has_all_batches_behind_what_kafka_reads():
    entries = [
        ProducerEntry(7, 2, -1, NOW + 4, FIVE, 105),
        ProducerEntry(8, 1, 3, 2000),
        ProducerEntry(9, 0, 4, NOW, (BatchMeta(3, 9, 1, NOW - 5),)),
        ProducerEntry(10, 0, -1, NOW, FIVE[:1]),
    ]
    data = encode_snapshot(entries)
    one_each = [entry._replace(batches=entry.batches[-1:]) for entry in entries]
    one_each[2] = entries[2]._replace(batches=(BatchMeta(3, 9, 1, NOW),), timestamp=NOW)
    assert data[6 : 10 + 4 * 46] == encode_snapshot(one_each)[6 : 10 + 4 * 46]
    assert decode_snapshot(data)[:3] == entries[:3]
    tail = encode_tail([(7, FIVE), (9, entries[2].batches)])
    assert data[10 + 4 * 46 :] == tail
    assert len(tail) == 8 + 2 * 9 + 6 * 24


def test_a_tail_that_is_not_ours_or_of_another_state_is_recognised():
    entry = ProducerEntry(7, 2, -1, NOW + 4, FIVE, 105)
    body = encode_snapshot([entry])[6:56]
    last = entry._replace(batches=(FIVE[-1],))
    assert decode_snapshot(sealed(body)) == [last]  # Kafka's own
    assert decode_snapshot(sealed(body + b"another file's tail")) == [last]
    assert decode_snapshot(sealed(body + encode_tail([(6, FIVE)]))) == [last]
    whole = encode_tail([(7, FIVE)])
    assert decode_snapshot(sealed(body + whole)) == [entry]
    for wrong in (
        encode_tail([(7, FIVE[:-1])]),  # of the state before the last batch
        encode_tail([(7, ())]),
        *(whole[:cut] for cut in range(8, len(whole))),
        whole + b"x",
    ):
        with pytest.raises(DamagedSnapshot):
            decode_snapshot(sealed(body + wrong))
    for bit in range(8 * len(whole)):
        flipped = bytearray(body + whole)
        flipped[len(body) + bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedSnapshot):
            decode_snapshot(sealed(body + whole)[:6] + flipped)


@pytest.mark.parametrize("how", ["stop", "kill", "roll", "cut", "snapshots lost", "snapshots damaged"])
def test_the_last_five_batches_are_known_after_every_way_to_load_them(tmp_path, how):
    """Five requests in flight, their answers lost: the client sends all of them again, whatever came between."""
    path = tmp_path / "events-0"
    log = open_log(path)
    for i in range(7):
        append(log, produced(1, 0, i, timestamp=NOW + i))
    if how in ("roll", "cut"):
        log.appender.roll(NOW)
    if how == "cut":
        append(log, produced(1, 0, 7))
        log.truncation.truncate_to(7)
    else:
        log.close(clean=how != "kill")
        for snapshot in path.glob("*.snapshot") if how.startswith("snapshots") else ():
            snapshot.write_bytes(b"\0" * 100) if how.endswith("damaged") else snapshot.unlink()
        log = open_log(path, clean=how != "kill", high_watermark=7)
    for i in range(2, 7):
        again = append(log, produced(1, 0, i, timestamp=NOW + i))
        assert (again.error, again.duplicate, again.first_offset) == (ErrorCode.NONE, True, i)
    assert append(log, produced(1, 0, 7)).first_offset == 7
    assert not log.recovery_report.truncated_bytes


@pytest.mark.parametrize("cut", [0, 5, 9, 20, 55])
def test_damaged_snapshots(cut):
    state = ProducerState(expiration_ms=1, max_producers=10)
    data = state.to_snapshot()
    assert decode_snapshot(data) == []
    whole = encode_snapshot([ProducerEntry(1)])
    with pytest.raises(DamagedSnapshot):
        decode_snapshot(whole[:cut])
    with pytest.raises(DamagedSnapshot):
        decode_snapshot(whole[:cut] + bytes([whole[cut] ^ 1]) + whole[cut + 1 :])


def test_a_cut_takes_the_snapshots_of_what_it_cut(log):
    """Else a later cut would go back to what other batches had made of the producers."""
    for sequence in range(5):
        append(log, produced(1, 0, sequence))
    log.appender.roll(NOW)  # with a snapshot at offset 5
    log.truncation.truncate_to(2)
    for sequence in range(6):
        append(log, produced(2, 0, sequence))
    log.truncation.truncate_to(7)
    assert {entry.producer_id: entry.last_sequence for entry in log.producers.active()} == {1: 1, 2: 4}


def test_each_run_of_markers_becomes_final_by_itself(log):
    """One that is final says nothing of a marker of the next, though that one is below the high watermark."""
    for producer_id in (1, 2, 3, 4):
        append_txn(log, producer_id, 0, 0)  # offsets 0 to 3
    for pair in ((1, 2), (3, 4)):  # markers at 4 and 5, at 6 and 7
        run = encode_marker_run([(producer_id, 0, True) for producer_id in pair], 0, NOW)
        append(log, run, origin=Origin.COORDINATOR, commit_hw=False)
    for high_watermark, stable in ((5, 0), (7, 2), (8, 8)):
        log.appender.set_high_watermark(high_watermark)
        assert log.last_stable_offset == stable


def test_the_oldest_open_transaction_holds_the_stable_offset_after_a_restart(tmp_path):
    """A snapshot lists producers by their last use."""
    log = open_log(tmp_path / "e-0")
    append_txn(log, 1, 0, 0)
    append_txn(log, 2, 0, 0)
    append(log, produced(1, 0, 1, txn=True))
    assert list(log.producers.entries) == [2, 1]
    log.close()
    again = open_log(tmp_path / "e-0", clean=True, high_watermark=3)
    assert again.last_stable_offset == 0
    end_txn(again, 1, 0, commit=True)
    assert again.last_stable_offset == 1


@pytest.mark.parametrize("how", ["clean", "killed", "cut"])
def test_producers_that_were_idle_while_the_broker_was_down_are_known_after_its_start(tmp_path, how):
    """When they were seen before is not known: they count as seen at the start, and not as idle since 1970."""
    log = open_log(tmp_path / "events-0")
    for producer in range(5):
        append(log, produced(producer, 0, 0))
    append(log, produced(7, 0, 0))
    log.appender.roll(NOW)
    end = log.log_end_offset
    append(log, produced(8, 0, 0))
    day = 86_400_000
    later = NOW + 10 * day
    if how == "cut":
        log.truncation.truncate_to(end, now_ms=later)
    else:
        (log.close if how == "clean" else log.abandon)()
        log = open_log(tmp_path / "events-0", clean=how == "clean", now_ms=later)
    known = {*log.producers.entries}
    assert known >= {*range(5), 7}
    assert log.producers.expire(later + 1) == 0
    assert append(log, produced(7, 0, 0), now_ms=later + 1).duplicate
    assert log.producers.expire(later + day + 1) == len(known)


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_five_thousand_producers_with_one_open_transaction_over_a_restart(tmp_path, how):
    """The open one is the oldest: it holds the stable offset, and outlives the expiry of all others."""
    few = LogSettings(max_producers=5_000)
    log = open_log(tmp_path / "events-0", settings=few)
    append_txn(log, 9_999, 3, 0)
    append_together(log, [produced(producer, 0, 0) for producer in range(4_999)])
    assert len(log.producers.entries) == 5_000
    log.appender.roll(NOW)
    append(log, produced(0, 0, 1))
    (log.close if how == "clean" else log.abandon)()
    later, work = NOW + 86_400_000, Bytecodes()
    log = work.of(lambda: open_log(tmp_path / "events-0", settings=few, clean=how == "clean", now_ms=later))
    assert work.counted[0] < 1_000 * 5_000, "a start looks at each producer a few times"
    log.appender.set_high_watermark(log.log_end_offset)
    assert len(log.producers.entries) == 5_000
    assert {*log.producers.open} == {9_999}
    assert log.last_stable_offset == 0
    assert append(log, produced(0, 0, 1), now_ms=later).duplicate
    assert append(log, produced(4_998, 0, 1), now_ms=later).error == ErrorCode.NONE
    for producer in range(5_000, 5_100):
        assert append(log, produced(producer, 0, 0), now_ms=later).error == ErrorCode.NONE
    assert len(log.producers.entries) == 5_000
    assert log.producers.expire(later + 86_400_000) == 4_999
    assert {*log.producers.entries} == {9_999}
    assert append(log, produced(9_999, 3, 1, txn=True), now_ms=later).error == ErrorCode.NONE
    assert end_txn(log, 9_999, 3, commit=False).error == ErrorCode.NONE
    assert log.last_stable_offset == log.log_end_offset


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("how", ["clean", "killed"])
def test_older_snapshots_that_are_put_back_are_brought_up_to_date(tmp_path, seed, how):
    """By a backup, or a file system that lost the newest ones: the log behind them says the rest."""
    rng, path = random.Random(seed), tmp_path / "events-0"
    log = open_log(path, config=config(segment_bytes=700))
    kept: dict[str, bytes] = {}
    sequences = dict.fromkeys(range(4), 0)
    for step in range(60):
        producer = rng.choice([*sequences])
        if producer == 3 and 3 in log.producers.open and rng.random() < 0.4:
            end_txn(log, 3, 0, commit=rng.random() < 0.5)
            continue
        if producer == 3:
            info = append_txn(log, 3, 0, sequences[3])
        else:
            info = append(log, produced(producer, 0, sequences[producer]))
        assert info.error == ErrorCode.NONE
        sequences[producer] += 1
        if step % 15 == 14:
            log.close()
            log = open_log(path, config=config(segment_bytes=700), clean=True)
        kept |= {file.name: file.read_bytes() for file in path.glob("*.snapshot")}
    (log.close if how == "clean" else log.abandon)()
    expected = log.producers
    for file in path.glob("*.snapshot"):
        file.unlink()
    for name in rng.sample([*kept], rng.randint(1, len(kept) - 1)):
        (path / name).write_bytes(kept[name])
    again = open_log(path, clean=how == "clean")
    again.appender.set_high_watermark(again.log_end_offset)
    expected.high_watermark_moved(again.log_end_offset)
    assert {**again.producers.entries} == {**expected.entries}
    assert [*again.producers.open.items()] == [*expected.open.items()]
    assert again.producers.first_unstable_offset == expected.first_unstable_offset
