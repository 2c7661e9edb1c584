"""After a power cut: what was flushed is there, nothing appears that was never written, recovery is stable."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from fleetlog._native.batch import scan
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.log import DiskFull, LogStore, Origin, RealDisk
from fleetlog.brokers.log.disk.checkpoints import RECOVERY_POINT_CHECKPOINT, decode_offsets
from fleetlog.brokers.model import GROUP_METADATA_TOPIC
from fleetlog.wire.types import TopicPartition
from tests.log.compaction.compacted import clean, cleaner_of, internal_log, last_values, put
from tests.support.clocks import ManualClock
from tests.support.crashes import RecordingDisk, image
from tests.support.logs import (
    NOW,
    aborted_entries,
    append,
    append_txn,
    assert_every_time_is_found,
    batch,
    config,
    content,
    end_txn,
    open_log,
    produced,
)

TP = TopicPartition("events", 0)
SMALL = config(segment_bytes=1500, index_interval_bytes=100)
IMAGES = int(os.environ.get("FLEETLOG_CRASH_IMAGES", "40"))


def _config(path) -> BrokerConfig:
    return BrokerConfig(
        broker_id=1,
        zookeeper_connect="z:1",
        log_dirs=(str(path),),
        log_segment_bytes=1500,
        log_index_interval_bytes=100,
    )


def _store(path, disk) -> LogStore:
    store = LogStore(_config(path), disk, ManualClock(), cluster_id="c")
    store.load()
    return store


class History:
    """Every batch that was ever at an offset."""

    def __init__(self) -> None:
        self.batches: dict[int, set[bytes]] = {}
        self.deleted = False

    def note(self, log) -> None:
        data = content(log)
        for at, header in scan(data):
            self.batches.setdefault(header.base_offset, set()).add(data[at : at + header.size])

    def check(self, log) -> None:
        data = content(log)
        expected, newest = None, -1
        for at, header in scan(data):
            assert data[at : at + header.size] in self.batches[header.base_offset], header
            assert expected is None or header.base_offset == expected, "a hole"
            expected = header.last_offset + 1
            assert header.partition_leader_epoch >= newest, "what was cut off is back behind what replaced it"
            newest = header.partition_leader_epoch
            assert log.epochs.epoch_at(header.base_offset) == newest, "the leader epochs"
        assert expected in (None, log.log_end_offset)


def _appends(store, disk, rng, history) -> None:
    log = store.create(TP, None, SMALL)
    sequence = 0
    for i in range(40):
        kind = rng.randrange(8)
        if kind <= 2:
            append(log, batch(rng.randint(1, 4), value=b"x" * rng.randint(1, 90)), epoch=i // 15)
        elif kind == 3:
            append(log, produced(1, 0, sequence, 2), epoch=i // 15)
            sequence += 2
        elif kind == 4:
            append_txn(log, 10 + i, 0, 0, 2)
            end_txn(log, 10 + i, 0, commit=bool(i % 2))
        elif kind == 5:
            log.flusher.flush()
            store.checkpoint()
        elif kind == 6:
            store.tick(NOW)
        else:
            log.assign_epoch(i // 15)
        history.note(log)
    log.flusher.flush()
    store.checkpoint()
    append(log, batch(3), epoch=9)
    history.note(log)


def _truncations(store, disk, rng, history) -> None:
    log = store.create(TP, None, SMALL)
    for i in range(12):
        for _ in range(rng.randint(3, 12)):
            value, timestamp = b"%d" % i * rng.randint(1, 40), NOW + rng.randrange(1_000)
            append(log, batch(rng.randint(1, 3), value=value, timestamp=timestamp), epoch=i)
            history.note(log)
        if rng.random() < 0.7:
            log.flusher.flush()
            store.checkpoint()
        log.truncation.truncate_to(rng.randint(log.log_end_offset // 2, log.log_end_offset), now_ms=NOW)
        history.note(log)


def _cuts_back_to_older_epochs(store, disk, rng, history) -> None:
    """A follower that is cut goes on with batches of epochs that its checkpoint has behind it."""
    log = store.create(TP, None, SMALL)
    for _ in range(25):
        epoch = max(log.epochs.latest, 0)
        for _ in range(rng.randint(2, 8)):
            epoch += rng.choice((0, 0, 1, 3))
            append(log, batch(rng.randint(1, 3), value=b"%d" % epoch * rng.randint(1, 40)), epoch=epoch)
            history.note(log)
        if rng.random() < 0.5:
            log.flusher.flush()
            store.checkpoint()
        log.truncation.truncate_to(rng.randint(log.log_end_offset // 2, log.log_end_offset), now_ms=NOW)


def _cuts_between_batches_of_one_size(store, disk, rng, history) -> None:
    """What was cut off and comes back follows on the batches that replaced it as if it belonged there."""
    log = store.create(TP, None, SMALL)
    for epoch in range(0, 80, 2):
        for count, newest in ((5, epoch), (rng.randint(1, 2), epoch + 1)):
            for _ in range(count):
                append(log, batch(2, value=b"%02d" % newest * 10), epoch=newest)
                history.note(log)
            if newest == epoch:
                log.truncation.truncate_to(max(0, log.log_end_offset - 6), now_ms=NOW)
        if rng.random() < 0.2:
            log.flusher.flush()
            store.checkpoint()


def _cuts_of_transactions(store, disk, rng, history) -> None:
    """What one history aborted, another commits at the same offsets; times fall, so index entries are not all alike."""
    log = store.create(TP, None, SMALL)
    for i in range(12):
        log.assign_epoch(i)
        for _ in range(rng.randint(2, 6)):
            producer, sequence = rng.randint(1, 4), 0
            known = log.producers.entries.get(producer)
            if known is not None and known.last_sequence >= 0:
                sequence = known.last_sequence + 1
            options = {"timestamp": NOW + 1_000 - 10 * i + rng.randint(0, 30), "value": b"%d" % i * rng.randint(1, 40)}
            if rng.random() < 0.3:
                append(log, produced(10 + producer, i, 0, **options))
            else:
                append_txn(log, producer, 0, sequence, rng.randint(1, 3), **options)
                history.note(log)
                end_txn(log, producer, 0, commit=rng.random() < 0.5)
            history.note(log)
        if rng.random() < 0.7:
            log.flusher.flush()
            store.checkpoint()
        if rng.random() < 0.2:
            store.close()
            store = _store(store.directories[0].path, disk)
            log = store.get(TP)
            log.config = SMALL
            log.appender.set_high_watermark(log.log_end_offset)
        if rng.random() < 0.6:
            log.truncation.truncate_to(rng.randint(log.log_end_offset // 2, log.log_end_offset), now_ms=NOW)


def _cuts_before_a_roll(store, disk, rng, history) -> None:
    """The segment that was cut is closed at the cut: nothing that is appended is in it, and still it has changed."""
    log = store.create(TP, None, SMALL)
    for i in range(12):
        for _ in range(rng.randint(4, 12)):
            append(log, batch(rng.randint(1, 3), value=b"%d" % i * rng.randint(1, 40)), epoch=2 * i)
            history.note(log)
        log.flusher.flush()
        store.checkpoint()
        last = log.segments.active.base_offset
        log.truncation.truncate_to(rng.randint((last + log.log_end_offset) // 2, log.log_end_offset), now_ms=NOW)
        append(log, batch(1, value=b"y" * 1400), epoch=2 * i + 1)
        history.note(log)
        if rng.random() < 0.7:
            log.flusher.flush()
            store.checkpoint()


def _clean_stops(store, disk, rng, history) -> None:
    path = store.directories[0].path
    for i in range(4):
        log = store.create(TP, None, SMALL)
        log.config = SMALL
        for _ in range(6):
            append(log, batch(2, value=b"x" * rng.randint(1, 90)), epoch=i)
        append(log, produced(1, 0, i), epoch=i)
        history.note(log)
        store.close()
        store = _store(path, disk)


def _checkpoints_in_the_background(store, disk, rng, history) -> None:
    """Ticks write the checkpoints, in three steps; cuts and deletions come between them."""
    minute_ms = 60_000
    for i in range(60):
        log = store.create(TP, None, SMALL)
        log.config = SMALL
        for _ in range(rng.randint(0, 6)):
            append(log, batch(rng.randint(1, 3), value=b"%d" % i * rng.randint(1, 90)), epoch=i)
            history.note(log)
        if rng.random() < 0.5:
            log.flusher.flush()
        store.tick(NOW + i * minute_ms)
        if rng.random() < 0.3:
            log.truncation.truncate_to(rng.randint(log.log_end_offset // 2, log.log_end_offset), now_ms=NOW)
            history.note(log)
        elif rng.random() < 0.1:
            store.delete(TP)
            history.deleted = True


SCENARIOS = {
    "checkpoints": _checkpoints_in_the_background,
    "appends": _appends,
    "truncations": _truncations,
    "cuts of transactions": _cuts_of_transactions,
    "cuts before a roll": _cuts_before_a_roll,
    "cuts back to older epochs": _cuts_back_to_older_epochs,
    "cuts between batches of one size": _cuts_between_batches_of_one_size,
    "clean stops": _clean_stops,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_power_loss(tmp_path, name):
    rng = random.Random(name)
    disk = RecordingDisk()
    root = tmp_path / "store"
    history = History()
    SCENARIOS[name](_store(root, disk), disk, rng, history)
    for number in range(IMAGES):
        crash = rng.randint(1, len(disk.ops)) if number else len(disk.ops)
        target = tmp_path / "image"
        image(disk.ops, crash, rng, str(root), target)
        if not (target / "meta.properties").exists():
            shutil.rmtree(target, ignore_errors=True)
            continue
        _check(target, history, (name, number, crash))
        shutil.rmtree(target)


class _FullDisk(RecordingDisk):
    """No index finds room for a second file beside its own."""

    def replace(self, path, data, *, durable=True):
        if path.endswith("index") and os.path.exists(path):
            raise DiskFull(path, "no room")
        super().replace(path, data, durable=durable)


@pytest.mark.parametrize("part", range(4))
def test_the_power_fails_twice(tmp_path, part):
    """What a start mends must be as durable as what it takes for granted, though no flush looks below the point."""
    rng = random.Random(part)
    root, first, target = tmp_path / "store", tmp_path / "first", tmp_path / "image"
    for number in range(IMAGES // 2):
        disk, history = RecordingDisk(), History()
        _cuts_of_transactions(_store(root, disk), disk, rng, history)
        image(disk.ops, rng.randint(len(disk.ops) * 3 // 4, len(disk.ops)), rng, str(root), first)
        disk = _FullDisk() if part % 2 else RecordingDisk()
        disk.found(str(first))
        store = _store(first, disk)
        log = store.get(TP)
        begun = len(disk.ops)
        if log is not None:
            log.config = SMALL
            history.note(log)
            log.appender.set_high_watermark(log.log_end_offset)
            for i in range(rng.randint(0, 6)):
                append(log, batch(2, timestamp=NOW + i), epoch=99)
                history.note(log)
                if rng.random() < 0.3:
                    log.flusher.flush()
                    store.checkpoint()
            image(disk.ops, rng.randint(begun, len(disk.ops)), rng, str(first), target)
            _check(target, history, (part, number))
            store.close(clean=False)
        for directory in (root, first, target):
            shutil.rmtree(directory, ignore_errors=True)


def _check(target, history, where) -> None:
    checkpoint = target / RECOVERY_POINT_CHECKPOINT
    flushed = decode_offsets(checkpoint.read_bytes(), "").get(TP, 0) if checkpoint.exists() else 0
    store = _store(target, RealDisk())
    log = store.get(TP)
    if log is None:
        assert not flushed or history.deleted, where
        store.close(clean=False)
        return
    log.config = SMALL
    log.appender.set_high_watermark(log.log_end_offset)
    assert log.log_end_offset >= flushed, where
    history.check(log)
    state = _state(log)
    store.close(clean=False)
    store = _store(target, RealDisk())
    again = store.get(TP)
    again.appender.set_high_watermark(again.log_end_offset)
    assert _state(again) == state, where
    assert_every_time_is_found(again)
    assert again.recovery_report.truncated_bytes == 0, where
    scratch = target / "scratch"
    scratch.mkdir()
    for file in (target / str(TP)).glob("*.log"):
        shutil.copy(file, scratch)
    rebuilt = open_log(scratch, config=SMALL, high_watermark=1 << 40)
    assert _state(rebuilt) == state, where
    rebuilt.abandon()
    end = again.log_end_offset
    assert append(again, batch(1), epoch=99).first_offset == end
    store.close()


def _state(log):
    return (
        log.log_end_offset,
        content(log),
        {p: (e.epoch, e.last_sequence, e.txn_first_offset) for p, e in log.producers.entries.items()},
        aborted_entries(log),
        log.last_stable_offset,
    )


def test_power_loss_during_compaction(tmp_path):
    """The table of last values is the same whatever part of the swap was lost."""
    rng = random.Random(5)
    disk = RecordingDisk()
    (tmp_path / "store").mkdir()
    log = internal_log(tmp_path / "store", disk, segment_bytes=900)
    for i in range(80):
        put(log, (f"k{i % 5}", f"{i}"))
    log.flusher.flush()
    want, end, begin = last_values(log), log.log_end_offset, len(disk.ops)
    tp = TopicPartition(GROUP_METADATA_TOPIC, 0)
    clean(cleaner_of(disk, log))
    assert len(disk.ops) > begin + 10
    for number in range(IMAGES):
        crash = rng.randint(begin, len(disk.ops)) if number else len(disk.ops)
        target = tmp_path / "image"
        image(disk.ops, crash, rng, str(tmp_path / "store"), target)
        again = open_log(target / "c-0", None, tp, config=log.config, high_watermark=1 << 40, recovery_point=end)
        assert last_values(again) == want, (number, crash)
        assert again.log_end_offset == end
        info = append(again, batch(1), origin=Origin.COORDINATOR)
        assert info.first_offset == end
        again.abandon()
        shutil.rmtree(target)


def test_the_checker_sees_a_missing_fsync(tmp_path, monkeypatch):
    """A flush that raises the recovery point without fsync must be caught."""
    monkeypatch.setattr("fleetlog.brokers.log.segment.Segment.sync", lambda self: self.flush_indexes())
    with pytest.raises((AssertionError, KeyError)):
        test_power_loss(tmp_path, "appends")


def test_the_checker_sees_a_truncation_that_keeps_the_recovery_point(tmp_path, monkeypatch):
    """On the disk: in memory it is lowered."""

    def forget_the_disk(self, offset):
        log = self._log
        log.recovery_point, log.high_watermark = min(log.recovery_point, offset), min(log.high_watermark, offset)

    monkeypatch.setattr("fleetlog.brokers.log.log.Truncation._lower_points", forget_the_disk)
    monkeypatch.setattr("tests.log.test_power_loss.IMAGES", 600, raising=False)
    with pytest.raises((AssertionError, KeyError)):
        test_power_loss(tmp_path, "truncations")
