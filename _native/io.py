"""Sending without waiting, and a thread that waits for the disk. See ``io_py`` for what each function means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _native import choose
from _native.io_py import SEND_LIMIT, SMALL, FilePart, Op, Sent, Stop

if TYPE_CHECKING:
    from _native.io_py import DiskWorker, send_slices
else:
    _twin = choose("io")
    DiskWorker = _twin.DiskWorker
    send_slices = _twin.send_slices

__all__ = ["SEND_LIMIT", "SMALL", "DiskWorker", "FilePart", "Op", "Sent", "Stop", "send_slices"]
