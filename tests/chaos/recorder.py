"""What a client needs to write its part of the history: one line per event, in the kernel's hands before it goes on."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.history import Records

_FILL_MAX = 300
NAME_HEADER = "name"
"""Of a record without a value: its name."""


def pack(value: str) -> bytes:
    """The bytes of a record: its name and a filling that follows from the name, so that damage shows."""
    digest = hashlib.md5(value.encode()).hexdigest()
    return f"{value} {(digest * 10)[: int(digest[:4], 16) % _FILL_MAX]}".encode()


def unpack(payload: bytes | None, headers: Sequence[tuple[str, Any]] | None = None) -> str:
    """The name in a record's bytes, or that of a deletion; a damaged record gets a name that no client wrote."""
    if payload is None:
        name = dict(headers or ()).get(NAME_HEADER)
        return "damaged: null" if name is None else bytes(name).decode(errors="replace")
    value = payload.split(b" ", 1)[0].decode(errors="replace")
    return value if pack(value) == payload else f"damaged: {payload[:60]!r}"


class Recorder:
    """Writes events of one process. A line is one write, so that SIGKILL tears the last one at most."""

    def __init__(self, directory: Path, proc: str, **start: Any) -> None:
        self.proc = proc
        self._file = os.open(directory / f"{proc}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._number = 0
        self.write(e="start", t=self.now(), **start)

    @property
    def next(self) -> int:
        """The number of the next operation."""
        return self._number + 1

    @staticmethod
    def now() -> int:
        """The time of the history."""
        return time.monotonic_ns()

    def write(self, **event: Any) -> None:
        """One line."""
        os.write(self._file, json.dumps({"p": self.proc, **event}, separators=(",", ":")).encode() + b"\n")

    def begin(self, kind: str, **what: Any) -> dict[str, Any]:
        """An operation begins; what is returned names it in its further events."""
        self._number += 1
        name = {"f": kind, "n": self._number}
        self.write(e="invoke", t=self.now(), **name, **what)
        return name

    def then(self, name: Mapping[str, Any], e: str, **what: Any) -> None:
        """Something happens to an operation."""
        self.write(e=e, t=self.now(), **name, **what)

    def single(self, kind: str, t0: int, *, e: str = "ok", **what: Any) -> None:
        """Something that began at ``t0`` is over."""
        self.write(e=e, f=kind, t0=t0, t=self.now(), **what)

    def given(self, t0: int, records: Mapping[str, Records]) -> dict[str, Any]:
        """A share consumer that asked after ``t0`` got records; what is said of them has the name that is returned."""
        self._number += 1
        self.single("given", t0, n=self._number, r=records)
        return {"f": "say", "n": self._number}

    def polled(self, t0: int, records: Mapping[str, Records]) -> None:
        """A poll came back with something."""
        if records:
            self.single("poll", t0, r=records)


class RoleControl:
    """Whether this process goes on: SIGTERM asks it to finish what it does and end. ``rng`` has its seed."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self._ended = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self._ended = True

    @property
    def on(self) -> bool:
        """Whether it was not asked to end."""
        return not self._ended

    def pause(self, seconds: float) -> None:
        """Wait a little, not longer than the process has left."""
        until = time.monotonic() + seconds
        while self.on and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
