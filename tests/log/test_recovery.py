"""Kill at any byte, flip any byte: what stood before the damage survives; recovery equals a rebuild from scratch."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from fleetlog._native.batch import scan
from fleetlog.brokers.log import LogOffline, Origin
from fleetlog.brokers.log.disk.files import RealDisk
from tests.support.logs import (
    NOW,
    aborted_entries,
    append,
    append_txn,
    batch,
    config,
    content,
    end_txn,
    files,
    marker,
    open_log,
    produced,
    records,
)

SMALL = config(segment_bytes=1500, index_interval_bytes=100)


def _write_a_bit_of_everything(log) -> None:
    """Plain, idempotent, transactional (committed, aborted, open), compressed; over several segments and epochs."""
    rng = random.Random(7)
    sequences = {1: 0, 2: 0}
    for i in range(60):
        epoch = i // 20
        if i % 20 == 0:
            log.assign_epoch(epoch)
        kind = rng.randrange(5)
        if kind == 0:
            append(log, batch(rng.randint(1, 5), timestamp=NOW - 1000 + i, codec=rng.randint(0, 4)), epoch=epoch)
        elif kind == 1:
            pid = rng.choice([1, 2])
            assert append(log, produced(pid, 0, sequences[pid], 2), epoch=epoch).error == 0
            sequences[pid] += 2
        elif kind in (2, 3):
            pid = 100 + i
            assert append_txn(log, pid, 0, 0, 3).error == 0
            assert end_txn(log, pid, 0, commit=kind == 2).error == 0
        else:
            append(log, batch(1, value=b"x" * 200), epoch=epoch)
    append_txn(log, 999, 0, 0, 2)
    append(log, batch(4))


def _state(log):
    producers = {
        pid: (e.epoch, e.coordinator_epoch, e.timestamp, e.batches, e.txn_first_offset)
        for pid, e in log.producers.entries.items()
    }
    return {
        "end": log.log_end_offset,
        "producers": producers,
        "open": dict(log.producers.open),
        "aborted": aborted_entries(log),
        "epochs": list(log.epochs.entries),
        "content": content(log),
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "events-0"
    log = open_log(path, config=SMALL)
    _write_a_bit_of_everything(log)
    assert len(log.segments) > 4
    state = _state(log)
    log.close(clean=False)  # nothing more is written, as after a kill
    return path, state


def _batches(path):
    """(file, position, end, last offset) of every batch, in order."""
    found = []
    for file in sorted(path.glob("*.log")):
        data = file.read_bytes()
        found += [(file.name, at, at + header.size, header) for at, header in scan(data)]
    return found


def _recover(path, **options):
    return open_log(path, config=SMALL, high_watermark=1 << 40, **options)


def test_after_a_kill_everything_is_there_again(written, tmp_path):
    path, state = written
    shutil.copytree(path, tmp_path / "events-0")
    log = _recover(tmp_path / "events-0")
    assert _state(log) == state
    assert not log.recovery_report.truncated_bytes


def test_recovering_twice_changes_no_byte(written, tmp_path):
    path, _ = written
    copy = tmp_path / "events-0"
    shutil.copytree(path, copy)
    last = sorted(copy.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes()[:-3])
    log = _recover(copy)
    assert log.recovery_report.truncated_bytes
    log.abandon()
    first = files(copy)
    again = _recover(copy)
    assert not again.recovery_report.truncated_bytes
    again.abandon()
    assert files(copy) == first


def _check_damage(copy, file_name, first_damaged, batches):
    """Recover, then compare with what the damage allows and with a rebuild from the log files alone."""
    index = next(i for i, (name, _, end, _) in enumerate(batches) if name == file_name and end > first_damaged)
    survivors = batches[:index]
    log = _recover(copy)
    expected_end = survivors[-1][3].last_offset + 1 if survivors else 0
    assert log.log_end_offset == expected_end
    kept = [header for _, header in scan(content(log))]
    assert [h.base_offset for h in kept] == [header.base_offset for *_, header in survivors]
    state = _state(log)
    report = log.recovery_report
    assert report.truncated_at == expected_end
    log.abandon()
    scratch = copy.parent / "scratch"
    scratch.mkdir()
    for file in copy.glob("*.log"):
        shutil.copy(file, scratch / file.name)
    rebuilt = _recover(scratch)
    rebuilt_state = _state(rebuilt)
    # Epochs without records are known only to the checkpoint; everything else must be equal.
    assert rebuilt_state == state
    assert append(rebuilt, batch(2), epoch=9).first_offset == expected_end
    rebuilt.abandon()
    # and once more, idempotent
    log = _recover(copy)
    assert _state(log) == state
    assert not log.recovery_report.truncated_bytes
    assert append(log, batch(1), epoch=9).first_offset == expected_end
    log.abandon()


@pytest.mark.parametrize("seed", range(60))
def test_cut_anywhere(written, tmp_path, seed):
    path, _ = written
    rng = random.Random(seed)
    batches = _batches(path)
    copy = tmp_path / "events-0"
    shutil.copytree(path, copy)
    # a kill tears the last segment only; a lost tail of an earlier one takes what follows with it
    logs = sorted(copy.glob("*.log"))
    file = logs[-1] if seed % 2 else rng.choice(logs)
    size = file.stat().st_size
    borders = {end for name, _, end, _ in batches if name == file.name} | {0}
    cut = rng.choice([n for n in range(size) if n not in borders])
    with file.open("r+b") as handle:
        handle.truncate(cut)
    _check_damage(copy, file.name, cut, batches)


@pytest.mark.parametrize("seed", range(60))
def test_flip_anywhere(written, tmp_path, seed):
    path, _ = written
    rng = random.Random(1000 + seed)
    batches = _batches(path)
    copy = tmp_path / "events-0"
    shutil.copytree(path, copy)
    name, start, end, _ = rng.choice(batches)
    # base offset (0..8) and leader epoch (12..16) lie outside the checksum
    position = start + rng.choice([n for n in range(end - start) if not 0 <= n < 8 and not 12 <= n < 16])
    with (copy / name).open("r+b") as handle:
        handle.seek(position)
        byte = handle.read(1)[0]
        handle.seek(position)
        handle.write(bytes([byte ^ (1 << rng.randrange(8))]))
    _check_damage(copy, name, position, batches)


def test_every_byte_of_the_tail(tmp_path):
    """The last batch cut at each of its bytes, and the tail overwritten with zeros as a power cut leaves it."""
    path = tmp_path / "whole"
    log = open_log(path, config=SMALL)
    append_txn(log, 5, 0, 0, 2)
    border = log.segments.active.size
    append(log, batch(2, value=b"last"))
    log.close(clean=False)
    whole = (path / f"{0:020d}.log").read_bytes()
    for cut in range(border, len(whole)):
        for tail in (whole[:cut], whole[:cut] + b"\0" * (len(whole) - cut + 100)):
            target = tmp_path / "t"
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            (target / f"{0:020d}.log").write_bytes(tail)
            log = _recover(target)
            assert log.log_end_offset == (4 if tail.startswith(whole) else 2)
            kept = (target / f"{0:020d}.log").read_bytes()
            assert kept == (whole if tail.startswith(whole) else whole[:border])
            assert log.producers.has_open_transaction(5)
            log.abandon()


def test_recovery_starts_at_the_recovery_point(written, tmp_path):
    path, state = written
    copy = tmp_path / "events-0"
    shutil.copytree(path, copy)
    first = open_log(copy, config=SMALL, high_watermark=1 << 40)
    first.flusher.flush()
    point = first.recovery_point
    first.abandon()
    before = files(copy)
    again = open_log(copy, config=SMALL, recovery_point=point, high_watermark=1 << 40)
    assert again.recovery_report.segments_scanned == 0  # nothing came after it
    assert _state(again) == state
    again.abandon()
    assert files(copy) == before
    again = open_log(copy, config=SMALL, recovery_point=point - 1, high_watermark=1 << 40)
    assert again.recovery_report.segments_scanned == 1
    assert _state(again) == state


def test_a_log_that_ends_at_its_recovery_point_is_scanned_if_it_does_not_look_like_it(tmp_path):
    path = tmp_path / "events-0"
    log = open_log(path, config=SMALL)
    for _ in range(12):
        append(log, batch(1, value=b"x" * 100))
    log.flusher.flush()
    point = log.recovery_point
    log.abandon()
    stem = path / f"{log.segments.active.base_offset:020d}"
    sound = files(path)
    for suffix, extra in (
        (".log", b"\0" * 7),  # written, but not whole
        (".index", (500).to_bytes(4, "big") + (40).to_bytes(4, "big")),  # entries of batches that were lost
        (".timeindex", NOW.to_bytes(8, "big") + (500).to_bytes(4, "big")),
        (".index", b"\0"),
    ):
        file = stem.with_suffix(suffix)
        whole = file.read_bytes()
        file.write_bytes(whole + extra)
        again = open_log(path, config=SMALL, recovery_point=point)
        assert again.recovery_report.segments_scanned == 1, suffix
        assert again.log_end_offset == point
        again.abandon()
        assert files(path) == sound, suffix


def test_recovery_writes_no_index_that_is_right(written, tmp_path):
    path, state = written
    copy = tmp_path / "events-0"
    shutil.copytree(path, copy)
    _recover(copy).abandon()
    touched = {file.name: file.stat().st_mtime_ns for file in copy.glob("*index")}
    again = _recover(copy)
    assert again.recovery_report.segments_scanned > 4
    assert _state(again) == state
    again.abandon()
    assert {file.name: file.stat().st_mtime_ns for file in copy.glob("*index")} == touched


def test_an_epoch_without_records_is_not_written_and_cannot_stand_in_the_way(tmp_path):
    path = tmp_path / "events-0"
    checkpoint = path / "leader-epoch-checkpoint"
    log = open_log(path)
    log.assign_epoch(3)
    append(log, batch(2), epoch=3)
    before = checkpoint.read_bytes()
    log.assign_epoch(5)
    assert log.epochs.latest == 5
    log.abandon()
    assert checkpoint.read_bytes() == before
    checkpoint.write_bytes(before.replace(b"\n1\n", b"\n2\n") + b"5 2\n")  # as an older version wrote it
    again = _recover(path, clean=True)
    assert again.epochs.latest == 3
    append(again, batch(2), epoch=3)
    assert checkpoint.read_bytes() == before
    again.assign_epoch(6)
    append(again, batch(1), epoch=6)
    assert checkpoint.read_bytes().endswith(b"2\n3 0\n6 4\n")


def test_what_was_cut_off_does_not_come_back_behind_what_replaced_it(tmp_path):
    """The power fails after a cut: the file is as long as before, and only the first of the new batches is there."""
    path = tmp_path / "events-0"
    log = open_log(path)
    for _ in range(4):
        append(log, batch(3), epoch=1)
    file = path / f"{0:020}.log"
    before = file.read_bytes()
    log.truncation.truncate_to(6)
    log.assign_epoch(2)
    assert append(log, batch(3), epoch=2).first_offset == 6
    log.abandon()
    after = file.read_bytes()
    assert len(after) == len(before) * 3 // 4
    file.write_bytes(after + before[len(after) :])
    assert [header.partition_leader_epoch for _, header in scan(file.read_bytes())] == [1, 1, 2, 1]
    again = _recover(path)
    assert (again.log_end_offset, again.epochs.latest) == (9, 2)
    assert "leader epoch 1 behind 2" in again.recovery_report.reason
    assert file.read_bytes() == after


def test_a_clean_close_needs_no_scan_and_keeps_everything(tmp_path):
    path = tmp_path / "events-0"
    log = open_log(path, config=SMALL)
    _write_a_bit_of_everything(log)
    state = _state(log)
    log.close()
    again = _recover(path, clean=True)
    assert again.recovery_report.segments_scanned == 0
    assert _state(again) == state
    assert append(again, batch(1), epoch=9).first_offset == state["end"]


def test_a_lying_clean_marker_is_found_out(tmp_path):
    path = tmp_path / "events-0"
    log = open_log(path)
    append(log, batch(3))
    append(log, batch(3))
    log.close()
    file = path / f"{0:020d}.log"
    file.write_bytes(file.read_bytes()[:-5])
    again = open_log(path, clean=True)
    assert again.log_end_offset == 3
    assert again.recovery_report.truncated_bytes


@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex"])
@pytest.mark.parametrize("damage", ["missing", "torn", "wrong"])
def test_damaged_indexes_below_the_recovery_point(written, tmp_path, suffix, damage):
    path, state = written
    copy = tmp_path / "events-0"
    shutil.copytree(path, copy)
    log = _recover(copy)
    log.close(clean=False)
    targets = [file for file in sorted(copy.glob(f"*.{suffix}"))[:-1] if file.stat().st_size]
    assert targets
    for target in targets:
        data = target.read_bytes()
        if damage == "missing":
            target.unlink()
        elif damage == "torn":
            target.write_bytes(data + b"\x01\x02\x03")
        else:
            target.write_bytes(b"\x7f" * len(data))
    again = _recover(copy, recovery_point=state["end"])
    if not (suffix == "txnindex" and damage == "missing"):  # an absent one looks like none was needed
        assert again.recovery_report.indexes_rebuilt == len(targets)
        assert _state(again) == state


def test_a_plausible_but_wrong_offset_index_does_no_harm(tmp_path):
    path = tmp_path / "events-0"
    log = open_log(path, config=config(index_interval_bytes=0))
    for i in range(50):
        append(log, batch(2, value=b"%d" % i))
    log.close()
    file = path / f"{0:020d}.index"
    data = bytearray(file.read_bytes())
    for at in range(4, len(data), 8):
        data[at : at + 4] = (int.from_bytes(data[at : at + 4], "big") // 2 + 1).to_bytes(4, "big")
    file.write_bytes(data)
    again = open_log(path, clean=True, config=config(index_interval_bytes=0))
    assert again.log_end_offset == 100
    for offset in range(100):
        result = again.reader.read(offset, 1, end_offset=100)
        ((_, header),) = scan(result.slices[0].read())
        assert header.base_offset <= offset <= header.last_offset


def test_leftovers_of_deletion_and_compaction_go(written, tmp_path):
    path, state = written
    copy = tmp_path / "events-0"
    shutil.copytree(path, copy)
    (copy / f"{0:020d}.log.cleaned").write_bytes(b"half made")
    (copy / f"{7:020d}.log.deleted").write_bytes(b"half gone")
    (copy / f"{0:020d}.index.swap").write_bytes(b"no log beside it")
    (copy / f"{12345:020d}.index").write_bytes(b"12345678")
    (copy / "leader-epoch-checkpoint.tmp").write_bytes(b"0")
    log = _recover(copy)
    assert _state(log) == state
    assert len(log.recovery_report.files_removed) == 5
    assert not list(copy.glob("*.deleted")) + list(copy.glob("*.cleaned")) + list(copy.glob("*.swap"))


def test_a_swap_is_finished(written, tmp_path):
    path, state = written
    copy = tmp_path / "events-0"
    shutil.copytree(path, copy)
    logs = sorted(copy.glob("*.log"))
    joined = logs[0].read_bytes() + logs[1].read_bytes()
    logs[0].with_suffix(".log.swap").write_bytes(joined)
    log = _recover(copy, recovery_point=state["end"])
    assert log.recovery_report.swaps_completed == 1
    assert _state(log) == state
    assert len(list(copy.glob("*.log"))) == len(logs) - 1


def test_a_damaged_epoch_checkpoint_is_made_anew(written, tmp_path):
    path, state = written
    copy = tmp_path / "events-0"
    shutil.copytree(path, copy)
    (copy / "leader-epoch-checkpoint").write_bytes(b"0\n9\n1 2\n")
    log = _recover(copy)
    assert log.epochs.entries == state["epochs"]


def test_a_damaged_snapshot_is_dropped(tmp_path):
    path = tmp_path / "events-0"
    log = open_log(path)
    append(log, produced(7, 0, 0, 3))
    log.close()
    snapshot = path / f"{3:020d}.snapshot"
    data = bytearray(snapshot.read_bytes())
    data[20] ^= 1
    snapshot.write_bytes(data)
    again = open_log(path, clean=True)
    assert again.producers.entries[7].last_sequence == 2
    assert not snapshot.exists()


@pytest.mark.parametrize("clean", [True, False])
def test_a_snapshot_above_the_end_is_of_what_was_cut_off(tmp_path, clean):
    """A process that died in a cut may have left it: what is appended up to there is another history."""
    path = tmp_path / "events-0"
    log = open_log(path)
    append(log, produced(7, 0, 0, 3))
    log.close()
    later = path / f"{5:020d}.snapshot"
    later.write_bytes((path / f"{3:020d}.snapshot").read_bytes())
    again = open_log(path, clean=clean, recovery_point=3)
    assert not later.exists()
    assert again.producers.entries[7].last_sequence == 2


def test_a_log_shorter_than_its_start_begins_anew(tmp_path):
    path = tmp_path / "events-0"
    log = open_log(path)
    append(log, batch(3))
    log.close()
    again = open_log(path, log_start_offset=10)
    assert (again.log_start_offset, again.log_end_offset) == (10, 10)
    assert again.epochs.entries == [], (
        "of records that are gone: no leader that began an epoch before 10 contradicts it"
    )
    assert append(again, batch(1)).first_offset == 10


def test_marker_of_an_open_transaction_after_recovery(tmp_path):
    path = tmp_path / "events-0"
    log = open_log(path)
    append_txn(log, 5, 0, 0, 2)
    log.close(clean=False)
    again = open_log(path, RealDisk(), high_watermark=2)
    assert again.last_stable_offset == 0
    info = append(again, marker(5, 0, commit=False), origin=Origin.COORDINATOR)
    assert info.error == 0
    assert again.last_stable_offset == 3
    assert [entry.first_offset for entry in again.reader.aborted_transactions(0, 3)] == [0]


def test_decay_below_the_recovery_point_costs_only_itself(written, tmp_path):
    """A flipped bit in an old segment: the log opens, serves what is whole, and a read of the damage fails."""
    path, state = written
    copy = tmp_path / "events-0"
    shutil.copytree(path, copy)
    first = _recover(copy)
    first.close()
    name, start, _, header = _batches(copy)[2]
    with (copy / name).open("r+b") as file:
        file.seek(start + 16)
        file.write(b"\x07")
    for index in copy.glob("*.index"):
        index.unlink()
    for snapshot in copy.glob("*.snapshot"):
        snapshot.unlink()
    for clean in (True, False):
        log = _recover(copy, clean=clean, recovery_point=state["end"])
        assert (log.log_start_offset, log.log_end_offset) == (0, state["end"])
        assert log.reader.read(0, 1, end_offset=state["end"]).size
        with pytest.raises(LogOffline, match="damaged"):
            log.reader.read(header.base_offset, 1, end_offset=state["end"])
        assert log.reader.read(state["end"] - 1, 1, end_offset=state["end"]).size
        assert append(log, batch(1), epoch=9).error == 0
        log.truncation.truncate_to(state["end"])
        log.close()


@pytest.mark.parametrize("left", ["nothing", "a batch"])
def test_what_the_power_took_between_two_segments_is_no_hole_of_compaction(tmp_path, left):
    """The segment behind it reached the disk earlier, and would hide that acknowledged records are gone."""
    settings = config(segment_bytes=300)
    log = open_log(tmp_path, config=settings, may_have_holes=True)
    for _ in range(12):
        append(log, batch(1))
    first, taken, *rest = log.segments
    assert rest
    ((_, size), *more) = [(at, header.size) for at, header in scan(taken.log.read(0, taken.size))]
    assert more
    path, begin = taken.log.path, taken.base_offset
    log.abandon()
    os.truncate(path, size if left == "a batch" else 0)
    log = open_log(tmp_path, config=settings, may_have_holes=True, recovery_point=first.base_offset)
    assert log.log_end_offset == begin + (left == "a batch")
    append(log, batch(3))
    assert len(records(log)) == log.log_end_offset == begin + (left == "a batch") + 3
    log.close()
