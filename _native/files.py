"""Descriptors and slices of files. ``files_py`` documents each class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetlog._native import names_of
from fleetlog._native.files_py import *

if not TYPE_CHECKING:
    globals().update(names_of("files"))
