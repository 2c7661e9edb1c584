"""Power cuts in the midst of passes and of the checkpoints between them.

FLEETLOG_CRASH_IMAGES is how many each seed looks at; 0: one of each write, rename, removal and fsync of its passes.
"""

from __future__ import annotations

import os
import random
import shutil
from itertools import pairwise

import pytest

from fleetlog.brokers.log import Origin
from fleetlog.brokers.log.compaction.cleaner import Cleaner
from tests.log.compaction.compacted import COMPACT, compacting, store_of, tick, write
from tests.log.compaction.compacted import USERS as TP
from tests.support.crashes import RecordingDisk, image
from tests.support.logs import NOW, aborted_entries, append, append_txn, batch, config, end_txn, records

IMAGES = int(os.environ.get("FLEETLOG_CRASH_IMAGES", "12"))


def _history(store, rng):
    """Writes, transactions, passes and checkpoints; yields after each with the table that must be there."""
    log, now_ms, sequence = compacting(store), NOW, 0
    log.config = config(
        **{**COMPACT, "segment_bytes": 700, "min_cleanable_dirty_ratio": 0.0, "delete_retention_ms": 1000}
    )
    for number in range(110):
        write(log, (f"k{rng.randrange(6)}", None if rng.random() < 0.3 else f"{number}"), now_ms=now_ms)
        if number % 5 == 0:
            append_txn(log, 7, 0, sequence, key=b"t", value=b"%d" % number)
            sequence += 1
            end_txn(log, 7, 0, commit=number % 2 == 0)
        if number % 10 == 9:
            now_ms += rng.choice((100, 1500))
            log.flusher.flush()
            yield log
            tick(store, 2, now_ms)
            store.checkpoint()  # in the midst of a pass
            tick(store, 30, now_ms)
            if number % 20 == 9:
                store.checkpoint()
            yield log


def _committed(log):
    """The table, and the tombstones and last records that are there."""
    aborted = [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in aborted_entries(log)]
    table = {}
    for record in records(log):
        if record.key == b"t" and any(first <= record.offset <= last for _, first, last in aborted):
            continue
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


@pytest.mark.parametrize("seed", range(3))
def test_power_loss_at_any_write_of_a_pass(tmp_path, seed):
    """What was flushed is there with the same last values, whatever part of passes and checkpoints was lost."""
    rng = random.Random(seed)
    disk = RecordingDisk()
    root = tmp_path / "store"
    root.mkdir()
    store = store_of(root, disk)
    moments = [(len(disk.ops), log.log_end_offset, _committed(log)) for log in _history(store, rng)]
    assert any(op.kind == "rename" and op.to.endswith(".swap") for op in disk.ops)
    pairs = [(before, after) for before, after in pairwise(moments) if before[1] == after[1]]
    assert len(pairs) > 5, "between these are passes, and no appends"
    assert all(before[2] == after[2] for before, after in pairs), "a pass changes no last value"
    crashes = [(crash, *before[1:]) for before, after in pairs for crash in range(before[0], after[0] + 1)]
    for number, (crash, end, table) in enumerate(rng.choices(crashes, k=IMAGES) if IMAGES else crashes):
        target = tmp_path / "image"
        image(disk.ops, crash, rng, str(root), target)
        again = store_of(target)
        log = again.get(TP)
        log.appender.set_high_watermark(1 << 40)
        assert log.log_end_offset == end, (number, crash)
        assert _committed(log) == table, (number, crash)
        bases = [segment.base_offset for segment in log.segments]
        ends = [max([h.last_offset for _, h in segment.headers()], default=-1) for segment in log.segments]
        assert all(last < base for last, base in zip(ends, bases[1:], strict=False)), "two files for one range"
        assert not list((target / str(TP)).glob("*.swap"))
        log.config = store.get(TP).config
        for later in (10_000, 20_000, 30_000):
            write(log, ("later", f"{later}"), now_ms=NOW + later)
            log.appender.roll(NOW + later)
            tick(again, 12, NOW + later)
            found = _committed(log)
            assert found.pop(b"later") == b"%d" % later
            assert found == table, (number, crash, "what was deleted is there again")
        end = log.log_end_offset
        assert append(log, batch(1), origin=Origin.COORDINATOR).first_offset == end
        again.close(clean=False)
        shutil.rmtree(target)
    store.close(clean=False)


def test_the_images_show_a_swap_that_is_not_durable(tmp_path, monkeypatch):
    """A rewritten segment without fsync must be caught."""
    monkeypatch.setattr("fleetlog.brokers.log.segment.Segment.sync", lambda self: self.flush_indexes())
    monkeypatch.setattr("tests.log.compaction.test_compaction_images.IMAGES", 40)
    with pytest.raises((AssertionError, KeyError)):
        test_power_loss_at_any_write_of_a_pass(tmp_path, 0)


def test_the_images_show_a_checkpoint_that_is_ahead_of_its_swap(tmp_path, monkeypatch):
    """A deletion among what only seems to be clean goes in the end, and what it deleted does not."""

    def ahead(self, log, part, now_ms):
        self._cleaned[log.topic_partition] = part.end
        return planned(self, log, part, now_ms)

    planned = Cleaner._plan
    monkeypatch.setattr(Cleaner, "_plan", ahead)
    monkeypatch.setattr("tests.log.compaction.test_compaction_images.IMAGES", 60)
    with pytest.raises(AssertionError, match="there again"):
        test_power_loss_at_any_write_of_a_pass(tmp_path, 0)
