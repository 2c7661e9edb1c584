"""Produce, Fetch and Metadata on the wire. ``wire_py`` documents each function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetlog._native import names_of
from fleetlog._native.wire_py import *

if not TYPE_CHECKING:
    globals().update(names_of("wire"))
