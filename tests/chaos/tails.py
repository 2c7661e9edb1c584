"""What a power loss does to a log: the last bytes that no fsync covered are missing, torn or wrong.

Only active segments are touched, and only batches at or above the recovery point: those below it were synced, and no
power loss changes them. Of closed segments the files beside the batches are damaged: they can be made anew from the
batches. The broker must be dead.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEADER = 61
"""Bytes of a record batch before its first record."""


class Batch(NamedTuple):
    """Where a batch lies in its file."""

    base_offset: int
    position: int
    size: int


def batches(segment: Path) -> Iterator[Batch]:
    """The whole batches of a segment file."""
    raw = segment.read_bytes()
    position = 0
    while position + HEADER <= len(raw):
        size = 12 + int.from_bytes(raw[position + 8 : position + 12], "big")
        if size < HEADER or position + size > len(raw):
            return
        yield Batch(int.from_bytes(raw[position : position + 8], "big"), position, size)
        position += size


def recovery_points(data: Path) -> dict[str, int]:
    """Offsets below which everything was synced, by partition directory; Kafka's checkpoint format."""
    file = data / "recovery-point-offset-checkpoint"
    if not file.exists():
        return {}
    found = {}
    for line in file.read_text().splitlines()[2:]:
        topic, partition, offset = line.rsplit(" ", 2)
        found[f"{topic}-{partition}"] = int(offset)
    return found


def damage(data: Path, rng: random.Random, share: float = 0.7) -> list[str]:
    """Damage the tails of some of the partitions in a log directory; returns what was done, in words."""
    points = recovery_points(data)
    done = []
    for directory in sorted(path for path in data.iterdir() if path.is_dir()):
        segments = sorted(directory.glob("*.log"))
        if not segments or rng.random() > share:
            continue
        loose = [batch for batch in batches(segments[-1]) if batch.base_offset >= points.get(directory.name, 0)]
        if not loose:
            continue
        first = loose[-rng.randint(1, min(len(loose), 6))]
        done.append(f"{directory.name}: {_damage(segments[-1], first, rng)}")
    return done


def _damage(segment: Path, first: Batch, rng: random.Random) -> str:
    size = segment.stat().st_size
    where = first.position + rng.randrange(first.size)
    how = rng.choice(("cut", "flip", "zeros"))
    with segment.open("r+b") as file:
        if how == "cut":
            file.truncate(where)
            return f"cut at {where} of {size}, in the batch of offset {first.base_offset}"
        if how == "zeros":
            file.seek(where)
            file.write(bytes(size - where))
            return f"zeros from {where} to {size}, from the batch of offset {first.base_offset} on"
        where = first.position + rng.randrange(HEADER, first.size) if first.size > HEADER else where
        file.seek(where)
        (old,) = file.read(1)
        file.seek(where)
        file.write(bytes([old ^ (1 << rng.randrange(8))]))
        return f"a bit flipped at {where} of {size}, in the batch of offset {first.base_offset}"


BESIDE = (".index", ".timeindex", ".snapshot")
"""What lies beside the batches of a closed segment. Not the transaction index: nothing tells a segment that lost it
from one without aborted transactions, so readers are shown what was aborted (docs/reliability.md, "known").
"""


def damage_beside(data: Path, rng: random.Random, share: float = 0.7) -> list[str]:
    """Damage files beside closed segments in some partitions of a log directory; returns what was done, in words."""
    done = []
    for directory in sorted(path for path in data.iterdir() if path.is_dir()):
        closed = sorted(directory.glob("*.log"))[:-1]
        if not closed or rng.random() > share:
            continue
        stem = rng.choice(closed).stem
        files = [path for path in (directory / f"{stem}{suffix}" for suffix in BESIDE) if path.exists()]
        files = [path for path in files if path.stat().st_size]
        if files:
            chosen = rng.choice(files)
            done.append(f"{directory.name}/{chosen.name}: {_spoil(chosen, rng)}")
    return done


def _spoil(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    how = rng.choice(("removed", "cut", "a bit flipped", "zeros"))
    where = rng.randrange(len(content))
    if how == "removed":
        path.unlink()
        return how
    if how == "cut":
        del content[where:]
    elif how == "zeros":
        content[where:] = bytes(len(content) - where)
    else:
        content[where] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"{how} at {where} of {len(content)}"
