"""Random histories against the model: transactions, aborts, tombstones, forgotten producers, several passes, restarts.

``COMPACTION_HISTORIES=10000`` runs so many.
"""

from __future__ import annotations

import os
import random
from types import ModuleType

import pytest

from fleetlog._native import compact_cy, compact_py
from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.log import Origin
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.log.compaction.compacted import COMPACT, TP, QuickDisk, cleaner_of
from tests.log.compaction.compaction_model import batches_of, cleaned, fates_of, table_of
from tests.support.logs import NOW, aborted_entries, append, config, end_txn, open_log

HISTORIES = int(os.environ.get("COMPACTION_HISTORIES", "60"))
RETENTION_MS = 1000


class History:
    """Appends to a log at random, cleans it, and compares."""

    def __init__(self, path, seed: int, tp: TopicPartition = TP) -> None:
        self.rng = random.Random(seed)
        self.path, self.tp = path, tp
        self.disk = QuickDisk()
        self.now_ms = NOW
        self.origin = Origin.CLIENT if seed % 2 else Origin.COORDINATOR
        """Clients' batches are looked at record by record, a coordinator's go in as the kernel admits them."""
        settings = {**COMPACT, "segment_bytes": self.rng.choice((700, 1500, 5000)), "delete_retention_ms": RETENTION_MS}
        self.config = config(**settings, min_cleanable_dirty_ratio=self.rng.choice((0.0, 0.3)))
        self.log = open_log(path, self.disk, tp, config=self.config)
        self.settings = {"dedupe_buffer_bytes": self.rng.choice((48, 24 * 4, 24 * 9, 24 * 50, 1 << 20))}
        self.cleaner = cleaner_of(self.disk, self.log, **self.settings)
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.open: set[int] = set()
        self.passes = 0

    def rows(self) -> list[Record]:
        rng = self.rng
        keys = rng.choice((2, 5, 20))
        values = (None, b"", b"%d" % rng.randrange(10**6), b"long " * rng.randrange(20))
        return [
            Record(-1, self.now_ms + rng.randrange(-5, 5), b"k%d" % rng.randrange(keys), rng.choice(values), ())
            for _ in range(rng.choice((1, 1, 2, 6)))
        ]

    def write(self) -> None:
        rng, rows = self.rng, self.rows()
        codec = rng.choice((0, 0, 1, 2, 3, 4))
        compress = (lambda payload: compression.compress(codec & 7, payload)) if codec else None
        kind, fields, guard = rng.random(), {}, None
        pid = rng.randrange(1, 6)
        if kind < 0.6:
            transactional = pid in self.open or kind < 0.3
            epoch = self.epochs.setdefault(pid, 0)
            sequence = self.sequences.get(pid, 0)
            fields = {"producer_id": pid, "producer_epoch": epoch, "base_sequence": sequence}
            codec |= 0x10 if transactional else 0
            if transactional:
                guard = self.log.producers.verification_guard(pid, epoch, sequence)
                self.open.add(pid)
            self.sequences[pid] = sequence + len(rows)
        data = encode_batch(rows, attributes=codec, compress=compress, **fields)
        info = append(self.log, data, origin=self.origin, now_ms=self.now_ms, verification_guard=guard)
        assert info.error == ErrorCode.NONE, info

    def end(self) -> None:
        pid = self.rng.randrange(1, 6)
        if pid not in self.open and self.rng.random() < 0.8:
            return
        if self.rng.random() < 0.5:
            self.epochs[pid] = self.epochs.get(pid, 0) + 1
            self.sequences[pid] = 0
        info = end_txn(self.log, pid, self.epochs.setdefault(pid, 0), commit=self.rng.random() < 0.6)
        assert info.error == ErrorCode.NONE, info
        self.open.discard(pid)

    def expire(self) -> None:
        for pid in self.rng.sample(sorted(self.log.producers.entries), len(self.log.producers.entries) // 2):
            if pid not in self.open:
                del self.log.producers.entries[pid]
                self.sequences[pid] = 0
                self.epochs[pid] = self.epochs.get(pid, 0) + 1

    def clean(self) -> None:
        """One pass, compared with the model's."""
        log, cleaner = self.log, self.cleaner
        log.appender.roll(self.now_ms)
        before, known = batches_of(log), dict(log.producers.entries)
        epochs = {pid: (entry.epoch, entry.last_offset) for pid, entry in known.items()}
        table, size, stable = table_of(before), log.log_end_offset, log.last_stable_offset
        if not cleaner.step(self.now_ms, 1 << 30):
            return
        while cleaner.is_cleaning(self.tp):
            cleaner.step(self.now_ms, 1 << 30)
        assert not cleaner.uncleanable
        self.passes += 1
        after, end = batches_of(log), cleaner.progress()[self.tp]
        assert end <= stable
        ends = {segment.base_offset for segment in log.segments}
        rewritten = max((base for base in ends if base < end), default=0)
        reach = min((base for base in ends if base > rewritten), default=end)
        assert after == cleaned(before, end, reach, ends, epochs, self.now_ms, RETENTION_MS)
        assert (table_of(after), log.log_end_offset, log.last_stable_offset) == (table, size, stable)
        for first, second in zip(list(log.segments), list(log.segments)[1:], strict=False):
            last = [header.last_offset for _, header in first.headers()]
            assert last, "no segment is left without a batch"
            assert last[-1] + 1 == second.base_offset, "no hole between segments"
        self.check_index()

    def check_index(self) -> None:
        """Each aborted batch with records is in an entry of the transaction index, and no other."""
        entries = aborted_entries(self.log)
        batches = batches_of(self.log)
        fates = fates_of(batches)
        for batch in batches:
            if batch.records and not batch.end:
                named = any(
                    entry.producer_id == batch.producer[0] and entry.first_offset <= batch.first <= entry.last_offset
                    for entry in entries
                )
                assert named is (fates.get(batch.first) == "abort"), batch

    def restart(self) -> None:
        """What is left says as much of the producers that are known as before."""
        log, kept = self.log, batches_of(self.log)
        producers = {pid: (e.epoch, e.last_sequence, e.txn_first_offset) for pid, e in log.producers.entries.items()}
        end, stable = log.log_end_offset, log.last_stable_offset
        log.abandon()
        for name in self.path.glob("*.snapshot"):
            name.unlink()
        self.log = open_log(self.path, self.disk, self.tp, config=self.config, high_watermark=1 << 40)
        assert not self.log.recovery_report.truncated_bytes
        assert batches_of(self.log) == kept
        assert (self.log.log_end_offset, self.log.last_stable_offset) == (end, stable)
        found = self.log.producers.entries
        for pid, known in producers.items():
            if pid in found:
                entry = found[pid]
                assert (entry.epoch, entry.last_sequence, entry.txn_first_offset) == known
            else:
                assert known[1:] == (-1, -1), "nothing but an epoch can be lost"
        self.log.producers.entries.update({p: e for p, e in log.producers.entries.items() if p not in found})
        for pid in found.keys() - producers.keys():
            del found[pid]
        progress = self.cleaner.progress()
        self.cleaner = cleaner_of(self.disk, self.log, **self.settings)
        self.cleaner.restore(progress)

    def run(self) -> None:
        for _ in range(self.rng.choice((40, 120))):
            step = self.rng.choices(
                (self.write, self.end, self.clean, self.expire, self.restart, self.pass_time), (50, 15, 6, 2, 2, 4)
            )[0]
            step()
        self.clean()

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice((1, RETENTION_MS // 2, RETENTION_MS, 10 * RETENTION_MS))


@pytest.fixture(params=[compact_py, compact_cy], ids=["pure", "cython"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("KeyMap", "collect_keys", "keep_records"):
        monkeypatch.setattr(f"fleetlog.brokers.log.compaction.passes.{name}", getattr(request.param, name))
    return request.param


@pytest.mark.parametrize("part", range(4))
def test_passes_leave_what_the_model_leaves(tmp_path, twin, part):
    passes = 0
    for seed in range(part * HISTORIES // 4, (part + 1) * HISTORIES // 4):
        history = History(tmp_path / f"{seed}-0", seed)
        try:
            history.run()
        except BaseException:
            print("seed", seed)
            raise
        passes += history.passes
        history.log.abandon()
    assert passes > HISTORIES // 4, "most histories have several"


def test_the_model_is_asked_for_something(tmp_path, monkeypatch):
    """A map that reaches beyond the last stable offset, a tombstone that goes a pass early, and a marker that goes
    before its data: each is found.
    """
    for name, plant in PLANTED.items():
        with monkeypatch.context() as patched:
            plant(patched)
            with pytest.raises((AssertionError, KeyError)):
                _run_all(tmp_path / name)


def _run_all(path) -> None:
    for seed in range(40):
        History(path / f"{seed}-0", seed).run()


def _beyond_the_stable_offset(patched) -> None:
    patched.setattr("fleetlog.brokers.log.state.LogState.last_stable_offset", property(lambda log: log.high_watermark))


def _early_tombstones(patched) -> None:
    patched.setattr("fleetlog.brokers.log.compaction.passes.delete_horizon", lambda header: 0)


def _early_markers(patched) -> None:
    patched.setattr(
        "fleetlog.brokers.log.compaction.passes.MetTransactions.ended", lambda self, header, marker: (True, None)
    )


PLANTED = {"stable": _beyond_the_stable_offset, "tombstone": _early_tombstones, "marker": _early_markers}
