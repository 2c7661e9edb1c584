"""Checks of the schemas of records. ``schemas_py`` documents each function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetlog._native import names_of
from fleetlog._native.schemas_py import *

if not TYPE_CHECKING:
    globals().update(names_of("schemas"))
