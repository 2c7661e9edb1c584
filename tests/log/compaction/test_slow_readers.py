"""A reader that begins at the start of a compacted log while updates, deletions and passes go on, and pauses for less
than ``delete.retention.ms`` in all, as far as it has got when a pass begins or ends.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fleetlog._native.batch import Record, scan
from fleetlog.brokers.log.validation import batch_records
from tests.log.compaction.compacted import USERS, QuickDisk, cleaner_of, users_log, write
from tests.support.logs import NOW

RETENTION_MS = 10_000
KEYS = 12
SEEDS = 40


class Story:
    """A log with a writer, a cleaner and a reader that take turns at random."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = NOW
        disk = QuickDisk()
        self.log = users_log(path, disk, delete_retention_ms=RETENTION_MS)
        self.cleaner = cleaner_of(disk, self.log)
        self.last: dict[bytes, Record] = {}
        """Of each key the last record that was written."""
        self.seen: dict[bytes, Record] = {}
        """Of each key the last record that the reader saw."""
        self.position = 0

    def write(self) -> None:
        key = f"k{self.rng.randrange(KEYS)}"
        value = None if self.rng.random() < 0.3 else f"{self.log.log_end_offset}" + "." * self.rng.randrange(60)
        offset = write(self.log, (key, value), now_ms=self.now_ms).first_offset
        self.last[key.encode()] = Record(offset, self.now_ms, key.encode(), value and value.encode(), ())

    def clean(self, steps: int) -> None:
        """A part of a pass, or all of one."""
        if not self.cleaner.is_cleaning(USERS) and self.rng.random() < 0.5:
            self.log.appender.roll(self.now_ms)
        for _ in range(steps):
            if not self.cleaner.step(self.now_ms, 1 if steps < 1000 else 1 << 20):
                return

    def read(self) -> None:
        """A few batches; what was planned is sometimes sent later, when its file may have been replaced."""
        log = self.log
        result = log.reader.read(self.position, self.rng.choice((100, 300)), end_offset=log.last_stable_offset)
        if self.rng.random() < 0.3:
            self.clean(1000)
        data = b"".join(part.read() for part in result.slices)
        self.position = result.next_offset
        result.release()
        for at, header in scan(data):
            for record in batch_records(data, at, header, 1 << 20) if header.record_count else ():
                assert record.key is not None
                self.seen[record.key] = record

    def run(self) -> int:
        """Before the reader begins, and until it is at the end; returns how many deletions it had to see."""
        for _ in range(self.rng.choice((60, 200))):
            self.write()
            if self.rng.random() < 0.05:
                self.now_ms += self.rng.choice((10, RETENTION_MS // 2, 2 * RETENTION_MS))
                self.clean(1000)
        begun, until_ms = self.log.log_end_offset, self.now_ms + RETENTION_MS - 1
        while self.cleaner.is_cleaning(USERS):  # what a pass does counts from when it began
            self.clean(1000)
        while self.position < self.log.log_end_offset:
            self.rng.choice((self.write, self.read, self.read, lambda: self.clean(self.rng.choice((1, 3, 1000)))))()
            self.now_ms = min(until_ms, self.now_ms + self.rng.choice((0, 0, 50, 500, RETENTION_MS // 4)))
        return self.check(begun)

    def check(self, begun: int) -> int:
        deletions = 0
        for key, record in self.last.items():
            found = self.seen.get(key)
            if record.value is not None or record.offset >= begun or found is not None:
                assert found is not None, f"{record} is never seen"
                assert (found.offset, found.value) == (record.offset, record.value), "an earlier one is the last seen"
                deletions += record.value is None
        return deletions


def test_it_sees_the_last_value_of_each_key_and_each_deletion(tmp_path: Path) -> None:
    deletions = 0
    for seed in range(SEEDS):
        story = Story(tmp_path / str(seed), seed)
        deletions += story.run()
        assert story.cleaner.figures.passes, "passes went on"
        story.log.abandon()
    assert deletions > 2 * SEEDS


def test_deletions_that_go_early_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetlog.brokers.log.compaction.passes.delete_horizon", lambda header: 0)
    with pytest.raises(AssertionError, match=r"never seen|the last seen"):
        test_it_sees_the_last_value_of_each_key_and_each_deletion(tmp_path)
