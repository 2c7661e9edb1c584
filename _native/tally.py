"""Counting batches. ``tally_py`` documents it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetlog._native import names_of
from fleetlog._native.tally_py import *

if not TYPE_CHECKING:
    globals().update(names_of("tally"))
