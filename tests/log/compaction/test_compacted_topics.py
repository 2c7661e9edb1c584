"""Compacted topics of users: the settings of a topic, restarts, replicas and failures."""

from __future__ import annotations

import gc
import weakref

import pytest

from fleetlog.brokers.log import DiskFull
from fleetlog.brokers.log.compaction.cleaner import Cleaner, CleanerSettings, map_size, watch_cleaner
from fleetlog.brokers.log.compaction.passes import MapSize
from fleetlog.brokers.log.store import delete_old_segments
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.log.compaction.compacted import (
    COMPACT,
    QuickDisk,
    clean,
    cleaner_of,
    compacting,
    fill,
    last_values,
    store_of,
    tick,
    users_log,
    write,
)
from tests.log.compaction.compacted import USERS as TP
from tests.support.faulty import Fault, FaultyDisk
from tests.support.logs import (
    NOW,
    aborted_entries,
    append,
    append_txn,
    batch,
    config,
    content,
    end_txn,
    open_log,
    patched,
    records,
)


def test_a_users_topic_is_compacted(tmp_path):
    log = users_log(tmp_path)
    fill(log)
    before = last_values(log)
    clean(cleaner_of(QuickDisk(), log))
    assert last_values(log) == before
    closed = [r for r in records(log) if r.offset < log.segments.active.base_offset]
    assert len(closed) <= 5


def test_only_while_its_policy_says_so(tmp_path):
    log = users_log(tmp_path, cleanup_policy=("delete",), retention_ms=-1)
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log)
    assert not cleaner.step(NOW)
    assert cleaner.progress() == {}
    compacting = config(**{**COMPACT, "segment_bytes": 700, "min_cleanable_dirty_ratio": 0.0})
    log.config = compacting
    clean(cleaner)
    kept = len(records(log))
    assert kept < 20
    log.config = config(segment_bytes=700, retention_ms=-1)
    fill(log, start=50)
    assert not cleaner.step(NOW)
    assert len(records(log)) == kept + 50
    assert cleaner.progress()[TP] > 0, "as in Kafka, what is known of a pass outlives the policy"
    log.config = compacting
    clean(cleaner)
    assert len(records(log)) < kept + 10
    assert last_values(log) == {f"k{n % 5}".encode(): b"%d" % n for n in range(95, 100)}


def test_a_pass_ends_with_the_policy(tmp_path):
    log = users_log(tmp_path)
    fill(log)
    before = content(log)
    cleaner = cleaner_of(QuickDisk(), log)
    assert cleaner.step(NOW, budget_bytes=1)
    log.config = config(segment_bytes=700)
    assert cleaner.step(NOW, budget_bytes=1)
    assert not cleaner.is_cleaning(TP)
    assert content(log) == before
    assert not list((tmp_path / str(TP)).glob("*.cleaned"))


def test_compacted_and_deleted(tmp_path):
    log = users_log(tmp_path, cleanup_policy=("compact", "delete"), retention_ms=5000)
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log)
    clean(cleaner)
    assert delete_old_segments(log, NOW) == 0
    assert delete_old_segments(log, NOW + 5001) > 0
    assert log.log_start_offset == 50
    fill(log, start=50)
    clean(cleaner)
    assert last_values(log) == {f"k{n % 5}".encode(): b"%d" % n for n in range(95, 100)}


def test_records_without_a_key_go_when_a_topic_becomes_compacted(tmp_path):
    log = users_log(tmp_path, cleanup_policy=("delete",))
    for _ in range(20):
        append(log, batch(1, key=None))
    write(log, ("k", "v"))
    log.appender.roll(NOW)
    log.config = config(**{**COMPACT, "min_cleanable_dirty_ratio": 0.0})
    clean(cleaner_of(QuickDisk(), log))
    assert [r.key for r in records(log)] == [b"k"]
    assert append(log, batch(1, key=None)).error == ErrorCode.INVALID_RECORD


def test_young_records_stay(tmp_path):
    log = users_log(tmp_path, min_compaction_lag_ms=1000)
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log)
    assert not cleaner.step(NOW + 999)
    assert cleaner.step(NOW + 1000)


def test_records_that_wait_for_too_long_are_compacted_whatever_the_ratio(tmp_path):
    log = users_log(tmp_path, min_cleanable_dirty_ratio=1.0, segment_bytes=1 << 20, max_compaction_lag_ms=1000)
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log)
    assert not cleaner.step(NOW + 1000)
    assert len(log.segments) == 1
    clean(cleaner, NOW + 1001)
    assert len(records(log)) == 5, "the active segment was closed for it"


def test_a_segment_is_not_appended_to_for_longer_than_the_lag(tmp_path):
    log = users_log(tmp_path, segment_bytes=1 << 20, max_compaction_lag_ms=1000)
    for now_ms in (NOW, NOW + 1000, NOW + 1001):
        write(log, ("k", "v"), now_ms=now_ms)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    log.config = config(segment_bytes=1 << 20, max_compaction_lag_ms=1000)
    write(log, ("k", "v"), now_ms=NOW + 5000)
    assert len(log.segments) == 2, "where nothing is compacted the lag means nothing"


def test_a_pass_that_was_asked_for(tmp_path):
    log = users_log(tmp_path, min_cleanable_dirty_ratio=1.0, segment_bytes=1 << 20)
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log, backoff_ms=10_000)
    assert not cleaner.step(NOW)
    cleaner.ask_for(TP)
    while cleaner.step(NOW):
        pass
    assert len(records(log)) == 5
    fill(log)
    assert not cleaner.step(NOW + 10_000), "once"


def test_a_map_that_is_too_small_takes_several_passes(tmp_path):
    log = users_log(tmp_path)
    for number in range(200):
        write(log, (f"key {number % 40}", f"{number}"))
    before = last_values(log)
    cleaner = cleaner_of(QuickDisk(), log, dedupe_buffer_bytes=24 * 12)
    clean(cleaner)
    assert last_values(log) == before
    assert cleaner.progress()[TP] == log.segments.active.base_offset
    closed = [r.key for r in records(log) if r.offset < log.segments.active.base_offset]
    assert len(closed) == len(set(closed))


@pytest.mark.parametrize("how", ["deleted", "cut", "stopped"])
def test_a_pass_that_stops_removes_what_it_began_before_the_next_one_begins(tmp_path, how):
    """By its name, which may be that of a file of a new topic's pass."""
    log = users_log(tmp_path)
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log)
    begun = tmp_path / str(TP) / f"{0:020d}.log.cleaned"
    while not begun.exists():
        assert cleaner.step(NOW, 1)
    job = cleaner.job
    if how == "deleted":
        cleaner.forget(TP)
    elif how == "cut":
        log.truncation.truncate_to(49, now_ms=NOW)
        cleaner.step(NOW, 1)
    else:
        cleaner.close()
    assert not cleaner.is_cleaning(TP)
    assert not begun.exists()
    begun.write_bytes(b"of another pass")
    del job
    gc.collect()
    assert begun.exists()


@pytest.mark.parametrize("how", ["ends", "is stopped"])
def test_the_map_goes_with_the_pass(tmp_path, how):
    """However long a pass is referred to by what failed, or by a frame."""
    log = users_log(tmp_path)
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log)
    cleaner.step(NOW, 1)
    compaction = cleaner.job.compaction
    assert hasattr(compaction, "_keys")
    gone = weakref.ref(compaction)
    gc.disable()
    try:
        if how == "ends":
            clean(cleaner)
        else:
            cleaner.forget(TP)
        assert not hasattr(compaction, "_keys")
        del compaction
        assert gone() is None
    finally:
        gc.enable()


def test_the_map_is_no_larger_than_its_offsets():
    small, large = cleaner_settings(1 << 25)
    assert small.slots < 200
    assert large.slots == (1 << 25) // 24
    assert large.limit == int(large.slots * 0.9)
    assert small.secret != large.secret


def cleaner_settings(size):
    from fleetlog.brokers.log.compaction.cleaner import CleanerSettings

    return map_size(CleanerSettings(size), 100), map_size(CleanerSettings(size), 10**9)


@pytest.mark.parametrize("where", ["records", "checksum", "length"])
def test_a_damaged_batch_stops_passes_over_that_log_alone(tmp_path, where):
    log = users_log(tmp_path)
    other = open_log(tmp_path / "other-0", QuickDisk(), TopicPartition("other", 0), config=log.config)
    fill(log)
    fill(other)
    path = tmp_path / str(TP) / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    if where == "records":
        size = len(batch(1, key=b"k0", value=b"0"))
        data[:size] = patched(bytes(data[:size]), b"\xff" * (size - 61))
    elif where == "checksum":
        data[70] ^= 1
    else:
        del data[-3:]
    path.write_bytes(data)
    before = sorted(name.name for name in path.parent.iterdir())
    cleaner = cleaner_of(QuickDisk(), log, other)
    clean(cleaner)
    assert list(cleaner.uncleanable) == [TP]
    assert sorted(name.name for name in path.parent.iterdir()) == before
    assert len(records(other)) < 20
    assert not log.offline
    metrics = Metrics()
    watch_cleaner(metrics.watch, cleaner)
    lines = metrics.render().decode().splitlines()
    assert "fleetlog_cleaner_uncleanable_partitions 1.0" in lines
    assert "fleetlog_cleaner_passes 1.0" in lines
    assert "fleetlog_cleaner_last_pass_keys 5.0" in lines
    assert f"fleetlog_cleaner_uncleanable_bytes {float(log.size_bytes)}" in lines
    assert "fleetlog_cleaner_time_since_last_run_seconds 0.0" in lines
    (used,) = [line.split()[1] for line in lines if line.startswith("fleetlog_cleaner_max_buffer_utilization_percent")]
    assert float(used) == 100 * 5 * 24 / (32 << 20)


def test_tombstones_that_stay_for_ever(tmp_path):
    """delete.retention.ms may be as large as a number of 64 bits."""
    log = users_log(tmp_path, delete_retention_ms=2**63 - 1)
    write(log, ("gone", None))
    end_txn(log, 7, 0, commit=True)
    for now_ms in (NOW, NOW + 1):
        fill(log)
        cleaner = cleaner_of(QuickDisk(), log)
        clean(cleaner, now_ms)
        assert not cleaner.uncleanable
        assert cleaner.figures.passes == 1
    assert [(r.value, r.timestamp) for r in records(log) if r.key == b"gone"] == [(None, NOW)]


def test_a_fault_of_a_pass_is_its_partitions_alone(tmp_path, monkeypatch, caplog):
    log = users_log(tmp_path)
    other = open_log(tmp_path / "other-0", QuickDisk(), TopicPartition("other", 0), config=log.config)
    fill(log)
    fill(other)
    cleaner = cleaner_of(QuickDisk(), log, other)
    plan = cleaner._plan

    def wrong_plan(log, part, now_ms):
        found = plan(log, part, now_ms)
        return found._replace(end=2**63) if log.topic_partition == TP else found

    monkeypatch.setattr(cleaner, "_plan", wrong_plan)
    clean(cleaner)
    assert list(cleaner.uncleanable) == [TP]
    assert "OverflowError" in caplog.text
    assert len(records(other)) < 20


def test_a_pass_without_memory_for_its_map_is_tried_again_later(tmp_path, monkeypatch, caplog):
    log = users_log(tmp_path)
    fill(log)
    before = content(log)
    cleaner = cleaner_of(QuickDisk(), log, backoff_ms=1000)
    plan = cleaner._plan

    def large_plan(log, part, now_ms):
        return plan(log, part, now_ms)._replace(keys=MapSize(2**58, 2**57, bytes(16)))

    with monkeypatch.context() as patch:
        patch.setattr(cleaner, "_plan", large_plan)
        assert cleaner.step(NOW)
        while cleaner.goes_on:
            cleaner.resume(NOW)
        assert not cleaner.step(NOW + 999)
    assert content(log) == before
    assert not cleaner.uncleanable
    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "no memory" in line
    assert "log.cleaner.dedupe.buffer.size" in line
    clean(cleaner, NOW + 1000)
    assert len(records(log)) < 20


def test_transaction_indexes_are_read_by_the_disks_thread(tmp_path):
    """From their files where they are not in memory, also those of segments that end behind the pass."""
    seen = []

    class WatchedDisk(QuickDisk):
        def read(self, path):
            seen.append(path.rpartition(".")[2])
            return super().read(path)

        def for_work(self):
            return QuickDisk()

    log = users_log(tmp_path, WatchedDisk(), segment_bytes=400)
    for number in range(20):
        append_txn(log, 7, 0, number, key=b"k", value=b"aborted")
        end_txn(log, 7, 0, commit=False)
    write(log, ("k", "kept"))
    log.appender.roll(NOW)
    assert len(aborted_entries(log)) == 20
    for segment in log.segments:
        segment.txn_index.unload()
    seen.clear()
    cleaner = cleaner_of(log.disk, log)
    cleaner.step(NOW, 1)
    assert cleaner.is_cleaning(TP)
    assert "txnindex" not in seen
    clean(cleaner)
    assert b"aborted" not in [record.value for record in records(log)]
    assert last_values(log)[b"k"] == b"kept"


def test_a_disk_without_room_postpones_a_pass(tmp_path):
    disk = FaultyDisk()
    log = users_log(tmp_path, disk)
    fill(log)
    before = content(log)
    cleaner = cleaner_of(disk, log, backoff_ms=1000)
    disk.faults.append(Fault("write", ".cleaned", times=1))
    with pytest.raises(OSError, match="space"):
        clean(cleaner)
    assert content(log) == before
    assert not cleaner.step(NOW + 999), "it looks again later"
    clean(cleaner, NOW + 1000)
    assert len(records(log)) < 20


@pytest.mark.parametrize("what", ["the pass", "its note"])
def test_a_directory_without_room_does_not_hold_up_the_others(tmp_path, what):
    """Its log is the dirtiest, and would be the first again after each pause."""
    disk = FaultyDisk()
    full = open_log(tmp_path / "full" / str(TP), disk, TP, config=users_log(tmp_path / "any").config)
    other = open_log(tmp_path / "other" / "b-0", disk, TopicPartition("b", 0), config=full.config)
    fill(full)
    fill(other)
    cleaner = Cleaner(
        disk, {log.topic_partition: log for log in (full, other)}, lambda: CleanerSettings(backoff_ms=1000),
        lambda tp: disk.check("replace", f"{tp}-note"),
    )  # fmt: skip
    if what == "the pass":
        disk.faults.append(Fault("write", "full/"))
    else:
        disk.faults.append(Fault("replace", f"{TP}-note"))
    refused = 0
    for now_ms in range(NOW, NOW + 900, 10):
        try:
            cleaner.step(now_ms)
        except DiskFull:
            refused += 1
    assert refused == 1, "it is not tried before the pause is over"
    assert len(records(other)) < 20
    assert len(records(full)) == 50
    disk.faults.clear()
    clean(cleaner, NOW + 2000)
    assert len(records(full)) < 20


def test_a_clients_batch_has_no_delete_horizon(tmp_path):
    log = users_log(tmp_path)
    rejected = append(log, batch(1, attributes=0x40))
    assert rejected.error == ErrorCode.INVALID_RECORD
    assert "delete horizon" in rejected.error_message


def test_what_a_slice_points_into_stays(tmp_path):
    log = users_log(tmp_path)
    fill(log)
    result = log.reader.read(0, 1 << 20, end_offset=50)
    before = b"".join(part.read() for part in result.slices)
    clean(cleaner_of(QuickDisk(), log))
    assert b"".join(part.read() for part in result.slices) == before
    result.release()


def test_a_cut_makes_dirty_what_comes_after_it(tmp_path):
    log = users_log(tmp_path)
    fill(log)
    cleaner = cleaner_of(QuickDisk(), log)
    log.calls.on_cut = lambda log, offset: cleaner.was_cut(log.topic_partition, offset)
    clean(cleaner)
    end = cleaner.progress()[TP]
    cut = log.truncation.truncate_to(end - 7, now_ms=NOW)
    assert cleaner.progress()[TP] == cut < end
    fill(log, start=50)
    clean(cleaner)
    closed = [r.key for r in records(log) if r.offset < log.segments.active.base_offset]
    assert len(closed) == len(set(closed))


# ---- stores


def test_holes_are_no_damage_after_a_crash_although_the_settings_are_not_known_yet(tmp_path):
    """A store is loaded before the topics' settings are."""
    store = store_of(tmp_path)
    log = compacting(store)
    fill(log)
    tick(store)
    assert len(records(log)) < 20
    kept, end = content(log), log.log_end_offset
    log.abandon()
    store.close(clean=False)
    for again in range(2):
        store = store_of(tmp_path)
        log = store.get(TP)
        log.appender.set_high_watermark(1 << 40)
        assert "compact" not in log.config.cleanup_policy
        assert (content(log), log.log_end_offset) == (kept, end), again
        store.close(clean=False)


def test_a_follower_gets_holes_from_its_leader(tmp_path):
    store = store_of(tmp_path / "leader")
    leader = compacting(store)
    fill(leader)
    tick(store)
    data = content(leader)
    store.close()
    store = store_of(tmp_path / "follower")
    follower = compacting(store)
    assert follower.appender.append_as_follower(memoryview(data), now_ms=NOW).error == ErrorCode.NONE
    follower.appender.set_high_watermark(1 << 40)
    assert follower.log_end_offset == 50, "the leader's end, though what was last in a segment may be gone"
    store.close(clean=False)
    store = store_of(tmp_path / "follower")
    again = store.get(TP)
    again.appender.set_high_watermark(1 << 40)
    assert content(again) == data
    store.close()


def test_old_segments_are_not_deleted_under_a_pass(tmp_path):
    store = store_of(tmp_path, log_retention_check_interval_ms=1)
    log = store.create(
        TP, None,
        config(cleanup_policy=("compact", "delete"), segment_bytes=700, retention_ms=10, min_cleanable_dirty_ratio=0.0),
    )  # fmt: skip
    fill(log)
    store.tick(NOW)
    now_ms = NOW + 11
    store.tick(now_ms)
    seen = 0
    while store.cleaner.is_cleaning(TP):
        assert log.log_start_offset == 0
        now_ms += 2
        store.tick(now_ms)
        seen += 1
    assert seen
    tick(store, 5, now_ms + 100)
    assert log.log_start_offset == 50
    store.close()
