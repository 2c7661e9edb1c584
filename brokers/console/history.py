"""Figures over time, on disk: 10-second steps for an hour, of a minute for six hours, of ten minutes for three days.

A directory holds them. ``slots`` says which column of a row is whose, a line of JSON each. Each step is one row of
floats with a checksum, appended to the newest file of its tier; a tier has two files, and its oldest goes when the
newest is full. So a write is one append, nothing is rewritten, and what a crash tears off is the last row. Rows stay on
disk: a chart reads those columns that it shows.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import struct
import threading
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

STEP_S: Final = 10
MEAN, MOST, SUM = "mean", "most", "sum"
"""How the steps of a coarser tier are made of finer ones."""


class Figure(NamedTuple):
    """One figure: its name, and what becomes of several steps of it."""

    name: str
    fold: str = MEAN


KINDS: Final[Mapping[str, tuple[Figure, ...]]] = {
    "fleet": (
        Figure("bytes_in"), Figure("bytes_out"), Figure("records_in"), Figure("records_out"),
        Figure("produce_p99_s", MOST), Figure("fetch_p99_s", MOST), Figure("under_replicated", MOST),
        Figure("disk_used"), Figure("disk_total"), Figure("connections"), Figure("open_transactions", MOST),
        Figure("oldest_transaction_s", MOST),
    ),
    "broker": (
        Figure("bytes_in"), Figure("bytes_out"), Figure("produce_p99_s", MOST), Figure("fetch_p99_s", MOST),
        Figure("loop_p99_s", MOST), Figure("cpu"), Figure("disk_used"), Figure("disk_total"), Figure("connections"),
        Figure("under_replicated", MOST), Figure("produces"), Figure("fetches"), Figure("offset_requests"),
        Figure("group_requests"), Figure("other_requests"),
    ),
    "topic": (Figure("bytes_in"), Figure("bytes_out"), Figure("records_in"), Figure("size")),
    "partition": (Figure("records_in"),),
    "group": (
        Figure("lag", MOST), Figure("lag_s", MOST), Figure("members", MOST), Figure("commits"),
        Figure("rebalances", SUM),
    ),
}  # fmt: skip
"""What is kept of the fleet and of each broker, topic, partition and group. Rates are per second. Whoever changes a
column changes ``FORMAT``: then the figures begin anew."""
MOST_KEPT: Final = {"fleet": 1, "broker": 500, "topic": 5_000, "partition": 500, "group": 5_000}
FORMAT: Final = 1
SLOTS_MAX: Final = 1_000_000
KEPT_S: Final = 3 * 86_400
_HEAD: Final = struct.Struct("<IIq")  # checksum of the rest, number of floats, time in s
_HEAD_REST: Final = struct.Struct("<Iq")
NAN: Final = math.nan


def folded(figures: Iterable[float], fold: str) -> float:
    """What several figures become; nan where none is known."""
    known = [one for one in figures if not math.isnan(one)]
    if not known:
        return NAN
    if fold == MEAN:
        return sum(known) / len(known)
    return max(known) if fold == MOST else sum(known)


Points = list[tuple[int, float]]
"""Times in seconds since the epoch and figures; nan where there is none."""


class HistoryError(Exception):
    """The directory cannot be used; the text says why."""


class _Damaged(Exception):
    """A file is not what was written."""


class _File:
    """One file of rows: where each begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.rows: list[tuple[int, int, int]] = []  # time, offset of the floats, number of them
        self.end = 0

    def load(self) -> None:
        """Find the rows. A last one that is not whole is cut off; raises _Damaged for anything else.

        A count that is wrong looks like a last row; a whole row behind it tells.
        """
        data = self.path.read_bytes()
        while self.end + _HEAD.size <= len(data):
            checksum, count, at = _HEAD.unpack_from(data, self.end)
            following = self.end + _HEAD.size + 4 * count
            if following > len(data):
                if self._whole_row_in(data):
                    raise _Damaged
                break
            if zlib.crc32(data[self.end + 4 : following]) != checksum or (self.rows and at <= self.rows[-1][0]):
                raise _Damaged
            self.rows.append((at, self.end + _HEAD.size, count))
            self.end = following
        if self.end < len(data):
            os.ftruncate(self.number, self.end)

    def _whole_row_in(self, data: bytes) -> bool:
        """Whether one begins behind the head at the end."""
        for place in range(self.end + _HEAD.size, len(data) - _HEAD.size + 1, 4):
            checksum, count, at = _HEAD.unpack_from(data, place)
            end = place + _HEAD.size + 4 * count
            soon = not self.rows or 0 < at - self.rows[-1][0] <= 10 * KEPT_S
            if soon and end <= len(data) and zlib.crc32(data[place + 4 : end]) == checksum:
                return True
        return False

    def append(self, at: int, row: array[float]) -> None:
        floats = row.tobytes()
        rest = _HEAD_REST.pack(len(row), at) + floats
        data = struct.pack("<I", zlib.crc32(rest)) + rest
        if os.pwrite(self.number, data, self.end) != len(data):
            raise OSError(28, "the disk is full")  # what was written of it is written over, or cut off
        self.rows.append((at, self.end + _HEAD.size, len(row)))
        self.end += len(data)


class Tier:
    """The steps of one length."""

    def __init__(self, directory: Path, step_s: int, kept: int) -> None:
        self.step_s, self.kept = step_s, kept
        self._directory = directory
        self._files: deque[_File] = deque()
        names = sorted(directory.glob(f"{step_s}-*.rows"), key=lambda path: int(path.stem.split("-")[1]))
        for path in names:
            file = _File(path)
            self._files.append(file)
            file.load()

    @property
    def newest(self) -> int:
        """The time of the last row, in s; 0: there is none."""
        return next((file.rows[-1][0] for file in reversed(self._files) if file.rows), 0)

    @property
    def width(self) -> int:
        """Floats of the longest row."""
        return max((count for file in self._files for _, _, count in file.rows), default=0)

    def append(self, at: int, row: array[float]) -> None:
        """Raises OSError."""
        if not self._files or len(self._files[-1].rows) >= self.kept:
            self._files.append(_File(self._directory / f"{self.step_s}-{at}.rows"))
            while len(self._files) > 2:
                oldest = self._files.popleft()
                os.close(oldest.number)
                oldest.path.unlink(missing_ok=True)
        self._files[-1].append(at, row)

    def read(self, since: int, until: int, first: int = 0, count: int = 1 << 30) -> Iterator[tuple[int, array[float]]]:
        """Rows with ``since < time <= until``: of each the floats from ``first`` on. Raises OSError."""
        for file in list(self._files):
            for at, offset, length in list(file.rows):
                if since < at <= until:
                    wanted = max(0, min(count, length - first))
                    floats: array[float] = array("f")
                    floats.frombytes(os.pread(file.number, 4 * wanted, offset + 4 * first))
                    yield at, floats

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            os.close(file.number)
        self._files.clear()


class History:
    """All tiers, and whose each column is. Rows are added by one thread, and read by any."""

    def __init__(self, directory: Path) -> None:
        """Open what is in the directory. Raises HistoryError where it cannot be used, or another process uses it."""
        self.directory = directory
        self.begun_anew: str | None = None
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, str], int] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._counts = dict.fromkeys(KINDS, 0)
        self._folds: list[str] = []
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._guard = (directory / "lock").open("w")
            try:
                fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._guard.close()
                raise HistoryError(f"another console keeps its figures in {directory}") from None
            self._open()
        except OSError as error:
            raise HistoryError(f"{directory}: {error.strerror or error}") from None

    def _open(self) -> None:
        try:
            self._load()
        except (_Damaged, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            self._begin_anew(f"was damaged ({type(error).__name__})")

    def _begin_anew(self, why: str) -> None:
        self.begun_anew = f"what was in {self.directory} {why}; the figures begin anew"
        logger.warning("%s", self.begun_anew)
        for path in (*self.directory.glob("*.rows"), self.directory / "slots"):
            path.unlink(missing_ok=True)
        self._slots.clear()
        self._seen.clear()
        self._counts = dict.fromkeys(KINDS, 0)
        self._folds.clear()
        self._load()

    def _load(self) -> None:
        path = self.directory / "slots"
        if not path.exists():
            for rows in self.directory.glob("*.rows"):
                rows.unlink()  # nobody knows whose they were
            fresh = self.directory / "slots.new"
            fresh.write_text(json.dumps(["format", FORMAT]) + "\n", "utf-8")
            fresh.replace(path)
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if not lines or json.loads(lines[0]) != ["format", FORMAT]:
            raise _Damaged
        for line in lines[1:]:
            kind, name, slot = json.loads(line)
            self._place(kind, name, int(slot))
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        self.tiers = (
            Tier(self.directory, STEP_S, 360), Tier(self.directory, 60, 360), Tier(self.directory, 600, 432),
        )  # fmt: skip
        missing = max(tier.width for tier in self.tiers) - len(self._folds)
        self._folds += [MEAN] * max(0, missing)  # names that were lost with the system: their columns stay unused
        newest = max(tier.newest for tier in self.tiers)
        self._seen = dict.fromkeys(self._slots, newest)

    def _place(self, kind: str, name: str, slot: int) -> None:
        columns = KINDS[kind]
        end = slot + len(columns)
        if not 0 <= slot <= SLOTS_MAX:
            raise _Damaged
        self._folds += [MEAN] * (end - len(self._folds))
        self._folds[slot:end] = [column.fold for column in columns]
        for key in [key for key, taken in self._slots.items() if taken == slot and key != (kind, name)]:
            del self._slots[key]
            self._counts[kind] -= 1
        if (kind, name) not in self._slots:
            self._counts[kind] += 1
        self._slots[kind, name] = slot

    def _slot(self, kind: str, name: str, at: int) -> int | None:
        """Its first column, a new one if it has none; None where too many have one."""
        key = (kind, name)
        slot = self._slots.get(key)
        if slot is None:
            slot = len(self._folds)
            if self._counts[kind] >= MOST_KEPT[kind]:
                longest = min((one for one in self._slots if one[0] == kind), key=lambda one: self._seen.get(one, 0))
                if self._seen.get(longest, 0) > at - KEPT_S:
                    return None
                slot = self._slots[longest]  # all that is shown of it is too old by now
                self._seen.pop(longest, None)
            self._write_slot(kind, name, slot)
            self._place(kind, name, slot)
        self._seen[key] = at
        return slot

    def _write_slot(self, kind: str, name: str, slot: int) -> None:
        path = self.directory / "slots"
        before = path.stat().st_size
        try:
            with path.open("ab") as file:
                file.write(json.dumps([kind, name, slot]).encode() + b"\n")
        except OSError:  # a full disk: what was written of the line is taken back
            os.truncate(path, before)
            raise

    def add(self, at: int, figures: Mapping[tuple[str, str], Sequence[float]]) -> None:
        """The step that ends at that time (s since the epoch): figures by kind and name. Raises OSError.

        A step that is not newer than the last one is left out: the clock was set back. If the last one is further ahead
        than steps are kept, the clock was wrong then, and the figures begin anew.
        """
        with self._lock:
            if self.newest > at + KEPT_S:
                for tier in self.tiers:
                    tier.close()
                self._begin_anew("was of a time to come")
            finest = self.tiers[0]
            if at <= finest.newest:
                return
            places = [(slot, row) for key, row in figures.items() if (slot := self._slot(*key, at)) is not None]
            row = array("f", [NAN]) * len(self._folds)
            for slot, floats in places:
                row[slot : slot + len(floats)] = array("f", floats)
            finest.append(at, row)
            for finer, coarser in zip(self.tiers, self.tiers[1:], strict=False):
                end = at - at % coarser.step_s
                if end > coarser.newest:
                    rows = [one for _, one in finer.read(end - coarser.step_s, end)]
                    if rows:
                        coarser.append(end, self._folded(rows))

    def _folded(self, rows: list[array[float]]) -> array[float]:
        width = max(map(len, rows))
        for row in rows:
            row.extend([NAN] * (width - len(row)))
        return array("f", (folded(figures, fold) for fold, *figures in zip(self._folds, *rows, strict=False)))

    @property
    def newest(self) -> int:
        """When the last step ended, in s; 0: there is none."""
        return self.tiers[0].newest

    def read(self, kind: str, name: str, since: int, until: int, step_s: int) -> dict[str, Points]:
        """Each column of the steps that end in that time, in the tier of that step. Raises OSError."""
        columns, slot = KINDS[kind], self._slots.get((kind, name))
        if slot is None:
            return {column.name: [] for column in columns}
        tier = next(tier for tier in self.tiers if tier.step_s == step_s)
        with self._lock:
            rows = list(tier.read(since, until, slot, len(columns)))
        return {
            column.name: [(at, floats[number] if number < len(floats) else NAN) for at, floats in rows]
            for number, column in enumerate(columns)
        }

    def close(self) -> None:
        """Close the files, and let others use the directory."""
        with self._lock:
            for tier in self.tiers:
                tier.close()
            self._guard.close()
