"""Which log is cleaned next, how far, and what becomes of a batch: decisions over values."""

from __future__ import annotations

import pytest

from fleetlog._native.batch import BatchHeader, parse_header
from fleetlog.brokers.log.compaction.cleaner import (
    Cleanable,
    CleaningTerms,
    SegmentFigures,
    cleanable_part,
    dirtiest_first,
    first_dirty_offset,
    is_due,
    roll_due,
)
from fleetlog.brokers.log.compaction.passes import (
    KnownProducers,
    MetTransactions,
    verdict_on_data,
    verdict_on_marker,
)
from fleetlog.brokers.log.indexes import AbortedTxn
from fleetlog.brokers.log.producers.entries import BatchMeta, ProducerEntry
from fleetlog.brokers.log.producers.markers import Marker
from fleetlog.brokers.log.validation import DELETE_HORIZON_BIT
from tests.support.logs import NOW, batch, marker, produced

FOUR = [SegmentFigures(n * 10, n * 10 + 10, 100, NOW + n, NOW + n) for n in range(4)]
ABORT, COMMIT = Marker(False, 0), Marker(True, 0)

NONE_KNOWN = KnownProducers({}, 0)


def part(closed=FOUR, first_dirty=0, stable=1000, now_ms=NOW + 100, **terms) -> Cleanable:
    return cleanable_part(closed, first_dirty, stable, CleaningTerms(**terms), now_ms)


@pytest.mark.parametrize(
    ("checkpoint", "first"), [(None, 5), (4, 5), (5, 5), (7, 7), (20, 20), (21, 5)], ids=lambda value: str(value)
)
def test_a_checkpoint_outside_of_the_log_counts_for_nothing(checkpoint, first):
    assert first_dirty_offset(checkpoint, 5, 20) == first


@pytest.mark.parametrize(
    ("first_dirty", "stable", "wanted"),
    [
        (0, 1000, (0, 40, 0, 400)),
        (20, 1000, (20, 40, 200, 200)),
        (25, 1000, (25, 40, 200, 200)),
        (40, 1000, (40, 40, 400, 0)),
        (99, 1000, (40, 40, 400, 0)),
        (0, 39, (0, 30, 0, 300)),
        (20, 30, (20, 30, 200, 100)),
        (20, 5, (0, 0, 0, 0)),
    ],
)
def test_a_pass_reaches_whole_closed_stable_segments(first_dirty, stable, wanted):
    assert part(first_dirty=first_dirty, stable=stable)[:4] == wanted


def test_nothing_closed_is_nothing_to_do():
    assert part([], first_dirty=7) == Cleanable(7, 7, 0, 0, 0)


def test_young_records_wait():
    assert part(min_lag_ms=98).end == 30, "the newest of the last segment is 97 ms old"
    assert part(min_lag_ms=97).end == 40
    assert part(min_lag_ms=1000).dirty_bytes == 0
    assert part(first_dirty=20, min_lag_ms=1000)[:4] == (20, 20, 200, 0), "what is clean may be as young as it likes"


def test_records_that_wait_for_too_long_force_a_pass():
    few = part(first_dirty=30, max_lag_ms=90)
    assert (few.ratio, few.overdue_ms) == (0.25, 7)
    assert is_due(few, CleaningTerms())
    assert part(first_dirty=30, max_lag_ms=97).overdue_ms == 0
    assert not is_due(part(first_dirty=30, max_lag_ms=97), CleaningTerms())
    assert part([SegmentFigures(0, 5, 10, -1, -1)], max_lag_ms=1).overdue_ms == 0, "without a time nothing is late"
    assert part(first_dirty=30, max_lag_ms=90, stable=35).overdue_ms == 7, "it waits, though nothing can be cleaned yet"


def test_what_is_due():
    half = Cleanable(0, 10, 50, 50, 0)
    assert not is_due(half, CleaningTerms(0.5)), "Kafka asks for more than the ratio"
    assert is_due(half, CleaningTerms(0.49))
    assert is_due(half, CleaningTerms(1.0), forced=True)
    assert not is_due(Cleanable(10, 10, 50, 0, 0), CleaningTerms(0.0), forced=True)


def test_the_dirtiest_log_is_next():
    logs = [("a", Cleanable(0, 1, 10, 90, 0)), ("b", Cleanable(0, 1, 5, 95, 0)), ("c", Cleanable(0, 1, 0, 1, 0))]
    assert dirtiest_first(logs)[0] == logs[2]
    assert dirtiest_first(logs[:2])[0] == logs[1]
    assert dirtiest_first([]) == []


def test_when_an_active_segment_is_closed_for_a_pass():
    assert roll_due(NOW, NOW + 11, 10)
    assert not roll_due(NOW, NOW + 10, 10)
    assert not roll_due(-1, NOW, 10)


def test_records_that_an_open_transaction_holds_back_are_overdue_but_no_reason_for_a_pass():
    found = part(stable=0, max_lag_ms=50)
    assert (found.dirty_bytes, found.overdue_ms) == (0, 50)
    assert not is_due(found, CleaningTerms(max_lag_ms=50))
    assert part(stable=10, max_lag_ms=50).overdue_ms == 50


# ---- batches and markers


def data(pid: int, first: int, last: int, *, txn: bool = True, epoch: int = 0) -> BatchHeader:
    header = parse_header(produced(pid, epoch, 0, last - first + 1, txn=txn))
    return header._replace(base_offset=first, last_offset_delta=last - first)


def control(pid: int, at: int, *, horizon: int | None = None, epoch: int = 0, records: int = 1) -> BatchHeader:
    header = parse_header(marker(pid, epoch, commit=True))._replace(base_offset=at, record_count=records)
    if horizon is None:
        return header
    return header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon)


def on_marker(header, kind, met, producers=None, end=1000, now_ms=NOW):
    return verdict_on_marker(header, kind, met, producers or NONE_KNOWN, end, now_ms)


def test_aborted_batches_go_and_their_marker_stays_until_they_are_gone():
    entry = AbortedTxn(7, 10, 20, 21)
    met = MetTransactions([entry])
    assert not verdict_on_data(data(7, 0, 4), met, NONE_KNOWN, 1000).drop, "of an earlier transaction, that committed"
    on_marker(control(7, 5), COMMIT, met)
    assert verdict_on_data(data(7, 10, 12), met, NONE_KNOWN, 1000).drop
    assert not verdict_on_data(data(8, 13, 13), met, NONE_KNOWN, 1000).drop
    assert not verdict_on_data(data(7, 14, 14, txn=False), met, NONE_KNOWN, 1000).drop
    kept = on_marker(control(7, 20, horizon=NOW - 1), ABORT, met)
    assert (kept.drop, kept.needs_horizon, kept.aborted) == (False, False, entry)
    assert not verdict_on_data(data(7, 21, 22), met, NONE_KNOWN, 1000).drop, "of the next transaction"
    again = MetTransactions([entry])
    found = on_marker(control(7, 20), ABORT, again)
    assert (found.drop, found.needs_horizon, found.aborted) == (False, True, None)
    assert not on_marker(control(7, 20, horizon=NOW + 1), ABORT, MetTransactions([entry])).drop
    assert on_marker(control(7, 20, horizon=NOW), ABORT, MetTransactions([entry])).drop


def test_aborted_transactions_are_known_without_their_markers():
    met = MetTransactions([AbortedTxn(7, 0, 5, 6), AbortedTxn(7, 10, 15, 16)])
    found = [(first, met.is_aborted(data(7, first, first))) for first in (0, 4, 6, 9, 10, 14, 16)]
    assert found == [(0, True), (4, True), (6, False), (9, False), (10, True), (14, True), (16, False)]


def test_a_commit_marker_outlives_the_last_batch_of_its_transaction():
    met = MetTransactions([])
    verdict_on_data(data(7, 0, 4), met, NONE_KNOWN, 1000)
    assert on_marker(control(7, 5, horizon=0), COMMIT, met) == (False, False, False, False, None), "met in this pass"
    assert on_marker(control(7, 9), COMMIT, met).needs_horizon, "of a transaction with nothing left"
    assert on_marker(control(7, 9, horizon=NOW), COMMIT, met).drop


def test_an_abort_marker_whose_index_entry_is_lost_ends_what_is_there():
    met = MetTransactions([])
    verdict_on_data(data(7, 0, 4), met, NONE_KNOWN, 1000)
    assert on_marker(control(7, 5, horizon=0), ABORT, met) == (False, False, False, False, None)


def test_the_last_of_a_producer_stays():
    entries = {7: ProducerEntry(7, 0, batches=(BatchMeta(4, 4, 0, NOW),)), 8: ProducerEntry(8, 3)}
    producers = KnownProducers(entries, 1000)
    assert verdict_on_data(data(7, 0, 4), MetTransactions([]), producers, 1000).keep_empty
    assert not verdict_on_data(data(7, 0, 3), MetTransactions([]), producers, 1000).keep_empty
    aborted = verdict_on_data(data(7, 0, 4), MetTransactions([AbortedTxn(7, 0, 5, 6)]), producers, 1000)
    assert (aborted.drop, aborted.empty, aborted.keep_empty) == (False, True, True)
    unnamed = KnownProducers({-1: ProducerEntry(-1, -1, batches=(BatchMeta(0, 0, 0, NOW),))}, 1000)
    assert not verdict_on_data(parse_header(batch(1)), MetTransactions([]), unnamed, 1000).keep_empty
    for epoch, stays in ((3, True), (2, False)):
        found = on_marker(control(8, 9, horizon=0, epoch=epoch), COMMIT, MetTransactions([]), producers)
        assert found.drop is not stays
    assert on_marker(control(7, 9, horizon=0), COMMIT, MetTransactions([]), producers).drop, "its data says the epoch"
    assert on_marker(control(8, 9, epoch=3), COMMIT, MetTransactions([]), producers).needs_horizon


def test_the_last_committed_batch_of_a_producer_stays_while_its_last_one_may_be_lost():
    def stays(last_offset: int, *remembered: int) -> bool:
        batches = tuple(BatchMeta(offset, offset, 0, NOW) for offset in remembered)
        known = KnownProducers({7: ProducerEntry(7, 0, batches=batches)}, high_watermark=20)
        return verdict_on_data(data(7, last_offset, last_offset), MetTransactions([]), known, 1000).keep_empty

    assert [stays(offset, 3, 9, 20) for offset in (3, 9)] == [False, True]
    assert [stays(offset, 3, 9, 19) for offset in (3, 9)] == [False, False], "all of them are committed"
    assert [stays(offset, 20, 21) for offset in (3, 9)] == [True, True], "which was the last is not known"


def test_the_last_batch_of_a_pass_stays():
    assert verdict_on_data(data(7, 0, 4), MetTransactions([]), NONE_KNOWN, 5).keep_empty
    assert not verdict_on_data(data(7, 0, 4), MetTransactions([]), NONE_KNOWN, 6).keep_empty
    assert not on_marker(control(7, 5, horizon=0), COMMIT, MetTransactions([]), end=6).drop
    assert verdict_on_data(data(7, 0, 4), MetTransactions([AbortedTxn(7, 0, 5, 6)]), NONE_KNOWN, 5).keep_empty


def test_other_control_batches():
    assert not on_marker(control(7, 5), None, MetTransactions([])).drop, "of a kind that is no end"
    assert on_marker(control(7, 5, records=0), None, MetTransactions([])).drop, "emptied by Kafka"
