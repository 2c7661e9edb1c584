"""The specification of the files kernel: a file's descriptor, and runs of its bytes that wait to be sent.

A slice pins the descriptor: it outlives eviction, renaming and deletion of the file it points into.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fleetlog._native.io_py import FilePart

if TYPE_CHECKING:
    from fleetlog._native.io_py import Mapping

__all__ = ["MAPPED_BELOW", "MAPPED_FROM", "FileSlice", "OpenFile", "SliceGone"]

MAPPED_FROM = 32 * 1024
"""Slices below this are copied: that costs no more than looking for their window."""
MAPPED_BELOW = 512 * 1024
"""Slices from here on leave by sendfile: a copy of so much costs more than handing over the pages."""
_part = tuple.__new__
"""A named tuple's own constructor is a Python function."""


class SliceGone(Exception):
    """The bytes a FileSlice named were truncated away after it was made; its reader's connection must be closed."""


class _Pinned(Protocol):
    """A file as its slices know it."""

    path: str

    def fileno(self) -> int:
        """The open descriptor."""

    def window(self, position: int) -> Mapping | None:
        """A mapping that holds ``position``; None if there is none."""

    def read(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``position``; fewer only at the end of the file."""

    def retain(self) -> None:
        """Pin the descriptor."""

    def release(self) -> None:
        """Undo one ``retain``."""


class OpenFile:
    """A file whose descriptor is opened on first use. ``fd`` is -1 while it is closed.

    A subclass has ``opened() -> int``, ``close()``, and ``failure(OSError) -> Exception``. ``close`` is called when the
    last pin goes of a file that was ``removed``.
    """

    __slots__ = ("fd", "pins", "recently_used", "removed")

    def __init__(self) -> None:
        self.fd = -1
        self.pins = 0
        self.removed = False
        self.recently_used = False

    def opened(self) -> int:
        """Open the file."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the descriptor back once nothing pins it."""
        raise NotImplementedError

    def failure(self, wrong: OSError) -> Exception:
        """What a failed read raises."""
        raise NotImplementedError

    @property
    def pinned(self) -> bool:
        """Whether a slice holds the descriptor."""
        return self.pins > 0

    def fileno(self) -> int:
        """The open descriptor."""
        self.recently_used = True
        if self.fd < 0:
            self.fd = self.opened()
        return self.fd

    def read(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``position``; fewer only at the end of the file."""
        fd = self.fileno()
        try:
            data = os.pread(fd, length, position)
            while len(data) < length:
                more = os.pread(fd, length - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as wrong:
            raise self.failure(wrong) from wrong
        return data

    def retain(self) -> None:
        """Pin the descriptor."""
        self.fileno()
        self.pins += 1

    def release(self) -> None:
        """Undo one ``retain``."""
        assert self.pins > 0, "released more often than retained"
        self.pins -= 1
        if self.pins == 0 and self.removed:
            self.close()


class FileSlice:
    """A run of bytes of a segment, with the file pinned. Each holder calls ``release`` once per reference.

    The bytes stay readable when the segment is rolled, compacted or deleted. A truncation below the slice's end takes
    bytes away, and others may stand there soon: from then on all that reads raises SliceGone, and the
    connection must be closed. ``cuts`` is where the segment notes its truncations.
    """

    __slots__ = ("_cuts", "_cuts_before", "_references", "file", "length", "position")

    def __init__(self, file: _Pinned, position: int, length: int, cuts: Sequence[int] = ()) -> None:
        self._references = 0
        self._cuts = cuts
        self._cuts_before = len(cuts)
        self.file: Any = file
        self.position = position
        self.length = length
        file.retain()
        self._references = 1

    def fileno(self) -> int:
        """The descriptor for sendfile or pread, valid until ``release``. Ask again before each use: SliceGone."""
        self._check()
        descriptor: int = self.file.fileno()
        return descriptor

    def part(self, position: int, length: int) -> FilePart:
        """Bytes of the slice as the sending kernel wants them. Ask again before each use: SliceGone."""
        self._check()
        file = self.file
        mapping = file.window(position) if MAPPED_FROM <= length < MAPPED_BELOW else None
        return _part(FilePart, (file.fileno(), position, length, mapping))

    def _check(self) -> None:
        cuts, before = self._cuts, self._cuts_before
        if len(cuts) > before and min(cuts[before:]) < self.position + self.length:
            raise SliceGone(f"{self.file.path}: {self.length} bytes at {self.position} were truncated away")

    def read(self) -> bytes:
        """All bytes of the slice."""
        self._check()
        data: bytes = self.file.read(self.position, self.length)
        if len(data) != self.length:
            raise SliceGone(f"{self.file.path}: {self.length} bytes at {self.position} were truncated away")
        return data

    def retain(self) -> FileSlice:
        """One more holder."""
        self._references += 1
        return self

    def release(self) -> None:
        """One holder less; the last one lets the file go."""
        self._references -= 1
        if self._references == 0:
            self.file.release()

    def __del__(self) -> None:
        # A reader that ends without releasing must not keep a deleted segment's space for ever.
        if self._references > 0:
            self._references = 0
            self.file.release()

    def __repr__(self) -> str:
        return f"FileSlice({self.file.path!r}, {self.position}, {self.length})"
