"""Figures over time, on disk: 10-second steps for an hour, of a minute for six hours, of ten minutes for three days.

A directory holds them. ``slots`` says which column of a row is whose, a line of JSON each. Each step is one row of
floats, appended to the newest file of its tier; a tier has two files, and its oldest goes when the newest is full. So a
write is one append, nothing is rewritten, and what a crash tears off is the last row. Lines and rows have checksums:
what is damaged is left out, and the rows behind it are found. Rows stay on disk: a chart reads those columns that it
shows.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import re
import struct
import threading
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from fleetlog.brokers.cli.output import count_text, iso

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
FORMAT: Final = 2
PATIENCE: Final = 60
"""So many steps that are older than what is kept, and the clock is believed."""
LOST_TOLD: Final = 5
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


def line_of(*parts: str | int) -> bytes:
    """A line of ``slots``: its parts and their checksum."""
    text = json.dumps(parts)
    return f"[{zlib.crc32(text.encode())}, {text}]\n".encode()


def _checked(line: bytes) -> list[Any] | None:
    """The parts of a line; None where it is not as it was written."""
    match = re.fullmatch(rb"\[([0-9]{1,10}), (\[.*\])\]\n", line)
    return json.loads(match[2]) if match is not None and int(match[1]) == zlib.crc32(match[2]) else None


Points = list[tuple[int, float]]
"""Times in seconds since the epoch and figures; nan where there is none."""


class HistoryError(Exception):
    """The directory cannot be used; the text says why."""


def trouble_text(error: OSError, where: Path) -> str:
    """What is wrong with which file."""
    return f"{error.filename or where}: {error.strerror or error}"


class _File:
    """One file of rows: where each begins. ``lost`` says what of it was damaged; empty: nothing."""

    def __init__(self, path: Path, step_s: int) -> None:
        self.path, self._step_s = path, step_s
        self.number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.rows: list[tuple[int, int, int]] = []  # time, offset of the floats, number of them
        self.end = 0
        self.lost = ""

    @property
    def newest(self) -> int:
        """The time of its last row, in s; 0: there is none."""
        return self.rows[-1][0] if self.rows else 0

    def load(self) -> None:
        """Find the rows. What is damaged between two of them stays where it is; behind the last one it is cut off."""
        size = os.fstat(self.number).st_size
        damaged = 0
        while self.end < size:
            place = self.end if self._whole(self.end, size) else self._following(self.end + 4, size)
            damaged += place - self.end
            self.end = place
            if place < size:
                _, count, at = _HEAD.unpack(os.pread(self.number, _HEAD.size, place))
                self.rows.append((at, place + _HEAD.size, count))
                self.end += _HEAD.size + 4 * count
        if damaged:
            self.lost = f"{damaged} bytes of {self.path}"
            self._cut(self.rows)

    def _whole(self, place: int, size: int) -> bool:
        """Whether a row that is later than those before it begins there."""
        if place + _HEAD.size > size:
            return False
        checksum, count, at = _HEAD.unpack(os.pread(self.number, _HEAD.size, place))
        length = _HEAD.size - 4 + 4 * count
        if place + 4 + length > size or at <= self.newest or at % self._step_s:
            return False
        return bool(zlib.crc32(os.pread(self.number, length, place + 4)) == checksum)

    def _following(self, begin: int, size: int) -> int:
        """Where the next whole row begins, whatever stands before it; the file's end if there is none."""
        data = os.pread(self.number, max(0, size - begin), begin)
        words = memoryview(data)[: len(data) // 4 * 4].cast("I")
        for index in range(len(words) - 3):  # the upper half of a time is zero
            later = not words[index + 3] and words[index + 2] > self.newest and not words[index + 2] % self._step_s
            if later and self._whole(begin + 4 * index, size):
                return begin + 4 * index
        return size

    def cut(self, at: int) -> None:
        """Remove the rows that are later. Raises OSError."""
        self._cut([row for row in self.rows if row[0] <= at])

    def _cut(self, rows: list[tuple[int, int, int]]) -> None:
        self.end = rows[-1][1] + 4 * rows[-1][2] if rows else 0
        self.rows = rows
        os.ftruncate(self.number, self.end)

    def append(self, at: int, row: array[float]) -> None:
        """Raises OSError."""
        floats = row.tobytes()
        rest = _HEAD_REST.pack(len(row), at) + floats
        data = struct.pack("<I", zlib.crc32(rest)) + rest
        if os.pwrite(self.number, data, self.end) != len(data):  # what was written is written over, or cut off
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self.rows.append((at, self.end + _HEAD.size, len(row)))
        self.end += len(data)


class Tier:
    """The steps of one length."""

    def __init__(self, directory: Path, step_s: int, kept: int) -> None:
        self.step_s, self.kept = step_s, kept
        self._directory = directory
        self._files: deque[_File] = deque()
        numbered = re.compile(rf"{step_s}-([0-9]+)\.rows")
        named = {int(match[1]): path for path in directory.iterdir() if (match := numbered.fullmatch(path.name))}
        for _, path in sorted(named.items()):
            self._files.append(_File(path, step_s))

    def load(self) -> None:
        """Find the rows. Raises OSError."""
        for file in self._files:
            file.load()

    @property
    def lost(self) -> list[str]:
        """What was damaged when it was opened."""
        return [file.lost for file in self._files if file.lost]

    @property
    def newest(self) -> int:
        """The time of the last row, in s; 0: there is none."""
        return max((file.newest for file in self._files), default=0)

    @property
    def width(self) -> int:
        """Floats of the longest row."""
        return max((count for file in self._files for _, _, count in file.rows), default=0)

    def append(self, at: int, row: array[float]) -> None:
        """Raises OSError."""
        if not self._files or len(self._files[-1].rows) >= self.kept:
            self._files.append(_File(self._directory / f"{self.step_s}-{at}.rows", self.step_s))
            while len(self._files) > 2:
                self._remove(self._files.popleft())
        self._files[-1].append(at, row)

    def cut(self, at: int) -> None:
        """Remove the rows that are later. Raises OSError."""
        for file in list(self._files):
            file.cut(at)
            if not file.rows:
                self._files.remove(file)
                self._remove(file)

    @staticmethod
    def _remove(file: _File) -> None:
        os.close(file.number)
        file.path.unlink(missing_ok=True)

    def ends(self, since: int, until: int, step_s: int) -> list[int]:
        """The ends of those longer steps, between these times, in which there are rows; in order."""
        times = {at + -at % step_s for file in self._files for at, _, _ in file.rows if since < at <= until}
        return sorted(end for end in times if end <= until)

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
        self.lost: list[str] = []
        """What was damaged, or of a time to come, and is left out: in words."""
        self._lock = threading.Lock()
        self._set_back = 0
        self._slots: dict[tuple[str, str], int] = {}
        self._counts = dict.fromkeys(KINDS, 0)
        self._folds: list[str] = []
        self.tiers: list[Tier] = []
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._guard = (directory / "lock").open("w")
            try:
                fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._load()
            except OSError:
                self.close()
                raise
        except BlockingIOError:
            raise HistoryError(f"another console keeps its figures in {directory}") from None
        except OSError as error:
            raise HistoryError(trouble_text(error, directory)) from None

    def _lose(self, what: str) -> None:
        logger.warning("figures of the console: %s", what)
        self.lost = [*self.lost, what][-LOST_TOLD:]

    def _load(self) -> None:
        path = self.directory / "slots"
        known = path.read_bytes() if path.exists() else b""
        lines, damaged = known.splitlines(keepends=True), 0
        for line in lines:
            if (head := _checked(line)) is None:
                damaged += 1
            elif head[0] == "format" and head[1:] != [FORMAT]:
                self._lose(f"what is in {self.directory} is of another release, and begins anew")
                lines = []
                break
            elif head[0] in KINDS:
                self._place(*head)
        if damaged:
            self._lose(f"{count_text(damaged, 'line')} of {path} cannot be read: those names begin anew")
        if not self._slots:
            for rows in self.directory.glob("*.rows"):
                rows.unlink()  # nobody knows whose they were
        if damaged or not lines:
            names = [line_of("format", FORMAT), *(line_of(*key, slot) for key, slot in self._slots.items())]
            fresh = self.directory / "slots.new"
            fresh.write_bytes(b"".join(names))
            fresh.replace(path)
        for step_s, kept in ((STEP_S, 360), (60, 360), (600, 432)):
            self.tiers.append(Tier(self.directory, step_s, kept))
            self.tiers[-1].load()
        for one in (one for tier in self.tiers for one in tier.lost):
            self._lose(f"{one} cannot be read, and the steps in them are missing")
        missing = max(tier.width for tier in self.tiers) - len(self._folds)
        self._folds += [MEAN] * max(0, missing)  # names that were lost: their columns stay unused
        newest = max(tier.newest for tier in self.tiers)
        self._seen = dict.fromkeys(self._slots, newest)

    def _place(self, kind: str, name: str, slot: int) -> None:
        columns = KINDS[kind]
        end = slot + len(columns)
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
                file.write(line_of(kind, name, slot))
        except OSError:  # a full disk: what was written of the line is taken back
            os.truncate(path, before)
            raise

    def add(self, at: int, figures: Mapping[tuple[str, str], Sequence[float]]) -> None:
        """The step that ends at that time (s since the epoch): figures by kind and name. Raises OSError.

        A step that is not newer than the last one is left out: the clock was set back. After ``PATIENCE`` of them the
        clock is believed, and what is of a time to come goes.
        """
        with self._lock:
            finest = self.tiers[0]
            newest = max(tier.newest for tier in self.tiers)
            self._set_back = self._set_back + 1 if at < newest - self.tiers[-1].step_s else 0
            if self._set_back > PATIENCE:
                self._lose(
                    f"steps in {self.directory} until {iso(newest * 1000)} were of a time to come, and are removed"
                )
                for tier in self.tiers:
                    tier.cut(at - at % self.tiers[-1].step_s)
                self._seen = {key: min(seen, at) for key, seen in self._seen.items()}
                self._set_back = 0
            if at <= finest.newest:
                return
            places = [(slot, row) for key, row in figures.items() if (slot := self._slot(*key, at)) is not None]
            row = array("f", [NAN]) * len(self._folds)
            for slot, floats in places:
                row[slot : slot + len(floats)] = array("f", floats)
            finest.append(at, row)
            for finer, coarser in zip(self.tiers, self.tiers[1:], strict=False):
                step_s = coarser.step_s
                for end in finer.ends(coarser.newest, at - at % step_s, step_s):  # several after a pause
                    coarser.append(end, self._folded([one for _, one in finer.read(end - step_s, end)]))

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
