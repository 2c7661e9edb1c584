"""Compaction that is asked for: what it covers, and when it is over."""

from __future__ import annotations

import dataclasses

from fleetlog.brokers.log.compaction.cleaner import CleaningState
from tests.log.compaction.compacted import USERS, QuickDisk, clean, cleaner_of, fill, users_log, write
from tests.support.logs import NOW, append_txn, end_txn, records


def _asked(cleaner, log, now_ms=NOW):
    return cleaner.report(log, now_ms).state is CleaningState.ASKED


def test_young_records_stay_unless_they_are_meant(tmp_path):
    log = users_log(tmp_path, min_compaction_lag_ms=1000, segment_bytes=1 << 20, min_cleanable_dirty_ratio=1.0)
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log)
    cleaner.ask_for(USERS)
    clean(cleaner)
    assert len(log.segments) == 1, "a segment that no pass could cover is not closed"
    assert len(records(log)) == 50
    cleaner.ask_for(USERS, young=True)
    clean(cleaner)
    assert len(records(log)) == 5
    fill(log)
    clean(cleaner, NOW + 5000)
    assert len(records(log)) == 55, "once"
    cleaner.ask_for(USERS)
    clean(cleaner, NOW + 5000)
    assert len(records(log)) == 5


def test_a_map_that_is_too_small_takes_several_passes(tmp_path):
    log = users_log(tmp_path, segment_bytes=1 << 20, min_cleanable_dirty_ratio=1.0)
    for number in range(60):
        write(log, (f"k{number % 30}", f"{number}"))
    cleaner = cleaner_of(QuickDisk(), log, dedupe_buffer_bytes=24 * 8)
    cleaner.ask_for(USERS)
    clean(cleaner)
    assert cleaner.figures.passes > 5
    assert len(records(log)) == 30
    assert cleaner.report(log, NOW)[:3] == (CleaningState.IDLE, 60, 60)


def test_a_pass_that_was_under_way_does_not_count(tmp_path):
    log = users_log(tmp_path, min_cleanable_dirty_ratio=0.1)
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log)
    cleaner.step(NOW, 1)
    assert cleaner.report(log, NOW).state is CleaningState.CLEANING
    cleaner.ask_for(USERS)
    clean(cleaner)
    assert log.segments.active.size == 0
    assert len(records(log)) == 5
    assert not _asked(cleaner, log)


def test_an_open_transaction_is_not_waited_for_without_end(tmp_path):
    log = users_log(tmp_path)
    append_txn(log, 7, 0, 0, key=b"k0", value=b"open")
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log, backoff_ms=15_000)
    cleaner.ask_for(USERS)
    tried = 0
    while _asked(cleaner, log):
        assert not cleaner.step(NOW + 1000 * tried), "nothing can be done"
        tried += 1
    assert tried == 4, "each second, not after each backoff"
    assert cleaner.report(log, NOW).clean_offset == 0
    end_txn(log, 7, 0, commit=False)
    cleaner.ask_for(USERS)
    clean(cleaner, NOW + 60_000)
    assert len(records(log)) == 5


def test_what_is_clean_is_not_waited_for(tmp_path):
    log = users_log(tmp_path)
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log, backoff_ms=15_000)
    for _ in range(2):
        cleaner.ask_for(USERS)
        clean(cleaner)
        assert cleaner.report(log, NOW).clean_offset == 50
    cleaner.ask_for(USERS)
    assert not cleaner.step(NOW)
    assert not _asked(cleaner, log)


def test_a_log_that_is_left_alone_is_not_waited_for(tmp_path):
    log = users_log(tmp_path)
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log, backoff_ms=15_000)
    compacted = log.config
    log.config = dataclasses.replace(compacted, cleanup_policy=frozenset({"delete"}))
    cleaner.ask_for(USERS)
    assert not cleaner.step(NOW)
    log.config = compacted
    assert not _asked(cleaner, log)
