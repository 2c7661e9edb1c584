"""What a reader saw of each record: which one it was, when it was due and when it came; and what that adds up to.

A record's identity is ``2 * number + ordinal``; times are microseconds of the machine's monotonic clock, which all its
processes share.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

KEYS = 1000
SPLIT = 32
"""Of one key in so many the query makes two records."""
VALUE_BYTES = 100
READ_BYTES = VALUE_BYTES + 2
"""With the ordinal that the query adds: ``:0`` or ``:1``."""
NUMBER_DIGITS, TIME_DIGITS = 10, 16
UNIT_US = 100
"""Of a histogram: 0.1 ms."""

Rows = npt.NDArray[np.int64]
"""A row for each record: identity, due, come."""


def key_of(number: int) -> bytes:
    """The key of the record with this number."""
    return b"k%d" % (number % KEYS)


def value_of(number: int, due_us: int) -> bytes:
    """The record's value, always of ``VALUE_BYTES``."""
    return (b"%010d,%016d," % (number, due_us)).ljust(VALUE_BYTES, b"x")


def parse(values: Sequence[bytes], came_us: int) -> Rows:
    """Of the values that the query made of ``value_of``. ValueError where one has another length."""
    text = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), READ_BYTES)
    digits = text.astype(np.int64) - ord("0")
    rows = np.empty((len(values), 3), np.int64)
    rows[:, 0] = digits[:, :NUMBER_DIGITS] @ _powers(NUMBER_DIGITS) * 2 + digits[:, -1]
    rows[:, 1] = digits[:, NUMBER_DIGITS + 1 : NUMBER_DIGITS + 1 + TIME_DIGITS] @ _powers(TIME_DIGITS)
    rows[:, 2] = came_us
    return rows


def _powers(digits: int) -> npt.NDArray[np.int64]:
    return 10 ** np.arange(digits - 1, -1, -1, dtype=np.int64)


def load(path: Path) -> Rows:
    """What a reader left in its file."""
    return np.fromfile(path, np.int64).reshape(-1, 3)


def wanted(sent: int) -> npt.NDArray[np.int64]:
    """How often each identity must be there when so many records were sent."""
    split = np.array([zlib.crc32(key_of(number)) % SPLIT == 0 for number in range(KEYS)])
    found = np.ones((sent, 2), np.int64)
    found[:, 1] = np.resize(split, sent)
    return found.ravel()


class Verdict(NamedTuple):
    duplicates: int
    missing: int
    strange: int
    """Records that the query never had to make."""
    examples: dict[str, list[int]]
    """The first identities of each kind."""

    @property
    def clean(self) -> bool:
        return not (self.duplicates or self.missing or self.strange)


def judge(rows: Rows, sent: int) -> Verdict:
    """Each wanted record once, and no other."""
    must = wanted(sent)
    inside = (rows[:, 0] >= 0) & (rows[:, 0] < len(must))
    found = np.bincount(rows[inside, 0], minlength=len(must))
    doubled, absent, odd = found > np.maximum(must, 1), found < must, (found > 0) & (must == 0)
    examples = {
        name: [int(one) for one in np.flatnonzero(which)[:5]]
        for name, which in (("duplicates", doubled), ("missing", absent), ("strange", odd))
    }
    examples["strange"] += [int(one) for one in rows[~inside, 0][:5]]
    return Verdict(
        duplicates=int((found - 1)[doubled].sum()),
        missing=int(absent.sum()),
        strange=int(odd.sum() + (~inside).sum()),
        examples=examples,
    )


def histogram(rows: Rows, since_us: int, until_us: int) -> dict[int, int]:
    """Records by how long they took, in units of 0.1 ms, of those that were due between the two."""
    chosen = rows[(rows[:, 1] >= since_us) & (rows[:, 1] < until_us)]
    unit, count = np.unique((chosen[:, 2] - chosen[:, 1]) // UNIT_US, return_counts=True)
    return dict(zip(unit.tolist(), count.tolist(), strict=True))


def by_second(rows: Rows, since_us: int, until_us: int, part: float) -> list[float]:
    """The quantile in milliseconds of each whole second between the two, by when records were due."""
    found = []
    for start in range(since_us, until_us - 999_999, 1_000_000):
        counts = histogram(rows, start, start + 1_000_000)
        found.append(quantile_ms(counts, part) if counts else 0.0)
    return found


def quantile_ms(counts: Mapping[int, int], part: float) -> float:
    """At most so many milliseconds this part of the records took. ValueError where there is none."""
    left = part * sum(counts.values())
    for unit, count in sorted(counts.items()):
        left -= count
        if left <= 0:
            return (unit + 1) * UNIT_US / 1000
    raise ValueError("no record")


def shown(counts: Mapping[int, int]) -> str:
    """The quantiles that people ask for."""
    if not counts:
        return "no record"
    marks = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("longest", 1.0))
    text = ", ".join(f"{name} {quantile_ms(counts, part):.1f} ms" for name, part in marks)
    return f"{sum(counts.values())} records: {text}"


def merged(histograms: Sequence[Mapping[Any, int]]) -> dict[int, int]:
    """The sum of them; JSON has made the keys texts."""
    found: dict[int, int] = {}
    for counts in histograms:
        for unit, count in counts.items():
            found[int(unit)] = found.get(int(unit), 0) + count
    return found
