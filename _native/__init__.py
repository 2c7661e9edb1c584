"""The kernels. Each is three files: ``x`` chooses, ``x_py`` is the specification, ``x_cy`` the speed.

``FLEETLOG_NATIVE=auto|cython|pure`` forces one of them; a forced choice that cannot be had fails at import, never
silently falls back.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

CHOICE = os.environ.get("FLEETLOG_NATIVE", "auto")
if CHOICE not in ("auto", "cython", "pure"):
    raise ImportError(f"FLEETLOG_NATIVE={CHOICE!r}: must be auto, cython or pure")

REASONS: dict[str, str] = {}
"""Why each kernel that was asked for is the twin that it is."""


def choose(kernel: str) -> ModuleType:
    """The twin of ``kernel`` that FLEETLOG_NATIVE asks for; raises ImportError with the reason when it is not there."""
    REASONS[kernel] = "pure: FLEETLOG_NATIVE=pure"
    if CHOICE != "pure":
        try:
            found = importlib.import_module(f"_native.{kernel}_cy")
            REASONS[kernel] = f"cython: {found.__file__}"
            return found
        except ImportError as error:
            REASONS[kernel] = f"pure: {error}"
            if CHOICE == "cython":
                raise ImportError(
                    f"FLEETLOG_NATIVE=cython, but the compiled kernel {kernel} cannot be loaded: {error}; "
                    "install fleetlog with a C compiler present, or choose auto or pure"
                ) from error
    return importlib.import_module(f"_native.{kernel}_py")


def _implementation() -> str:
    return "cython" if choose("batch").__name__.endswith("_cy") else "pure"


IMPLEMENTATION = _implementation()
