"""Sending without waiting, and a thread that waits for the disk. See ``io_py`` for what each function means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _native import choose
from _native.io_py import MAPPING_MAX, SEND_LIMIT, SMALL, FilePart, Op, Sent, Stop

if TYPE_CHECKING:
    from _native.io_py import DiskWorker, Mapping, send_slices
else:
    _twin = choose("io")
    DiskWorker = _twin.DiskWorker
    Mapping = _twin.Mapping
    send_slices = _twin.send_slices

__all__ = [
    "MAPPING_MAX",
    "SEND_LIMIT",
    "SMALL",
    "DiskWorker",
    "FilePart",
    "Mapping",
    "Op",
    "Sent",
    "Stop",
    "send_slices",
]
