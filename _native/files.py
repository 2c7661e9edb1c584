"""Descriptors and slices of files. ``files_py`` documents each class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _native import choose
from _native.files_py import MAPPED_BELOW, MAPPED_FROM, SliceGone

if TYPE_CHECKING:
    from _native.files_py import FileSlice, OpenFile
else:
    _twin = choose("files")
    FileSlice = _twin.FileSlice
    OpenFile = _twin.OpenFile

__all__ = ["MAPPED_BELOW", "MAPPED_FROM", "FileSlice", "OpenFile", "SliceGone"]
