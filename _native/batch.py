"""Record batches (format v2): checksum, headers, stamping, records. ``batch_py`` documents each function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetlog._native import names_of
from fleetlog._native.batch_py import *

if not TYPE_CHECKING:
    globals().update(names_of("batch"))
