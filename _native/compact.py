"""Log compaction: the map of keys, and the records of a batch that stay. ``compact_py`` documents each function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetlog._native import names_of
from fleetlog._native.compact_py import *

if not TYPE_CHECKING:
    globals().update(names_of("compact"))
