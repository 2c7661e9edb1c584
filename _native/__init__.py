"""The kernels. Each is three files: ``x`` chooses, ``x_py`` is the specification, ``x_cy`` the speed.

``FLEETLOG_NATIVE=auto|cython|pure`` forces one of them; a forced choice that is not available fails at import and
never falls back silently.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

if __name__ != "fleetlog._native":
    raise ImportError("_native is imported as fleetlog._native")

CHOICE = os.environ.get("FLEETLOG_NATIVE", "auto")
if CHOICE not in ("auto", "cython", "pure"):
    raise ImportError(f"FLEETLOG_NATIVE={CHOICE!r}: must be auto, cython or pure")

REASONS: dict[str, str] = {}
"""The reason for the choice of each loaded kernel's twin."""


def choose(kernel: str) -> ModuleType:
    """The twin of ``kernel`` that FLEETLOG_NATIVE selects; raises ImportError with the reason if there is none."""
    REASONS[kernel] = "pure: FLEETLOG_NATIVE=pure"
    if CHOICE != "pure":
        try:
            module = importlib.import_module(f"fleetlog._native.{kernel}_cy")
            _refuse_stale(kernel, module)
            REASONS[kernel] = f"cython: {module.__file__}"
            return module
        except ImportError as error:
            REASONS[kernel] = f"pure: {error}"
            if CHOICE == "cython":
                raise ImportError(
                    f"FLEETLOG_NATIVE=cython, but the compiled kernel {kernel} cannot be loaded: {error}; "
                    "install fleetlog with a C compiler present, or choose auto or pure"
                ) from error
    return importlib.import_module(f"fleetlog._native.{kernel}_py")


def names_of(kernel: str) -> dict[str, object]:
    """What the kernel exports, by name: ``__all__`` of the pure twin lists it, once, and the chosen twin has it.

    Types that a compiled twin doesn't define are the pure one's.
    """
    pure, chosen = importlib.import_module(f"fleetlog._native.{kernel}_py"), choose(kernel)
    return {name: getattr(chosen, name, getattr(pure, name)) for name in pure.__all__}


class StaleKernelError(Exception):
    """A compiled kernel is older than the sources beside it: it lacks a name."""


def _refuse_stale(kernel: str, compiled: ModuleType) -> None:
    """Raise if a newer checkout finds older compiled kernels: names are missing then."""
    pure = importlib.import_module(f"fleetlog._native.{kernel}_py")
    own = {name: value for name, value in vars(pure).items() if getattr(value, "__module__", "") == pure.__name__}
    missing = [
        name
        for name, value in own.items()
        if name[0] != "_" and not hasattr(compiled, name) and not (isinstance(value, type) and issubclass(value, tuple))
    ]  # fmt: skip
    if missing:
        raise StaleKernelError(
            f"{compiled.__file__} is older than its source, it has no {', '.join(missing)}: "
            "compile the kernels again (make, or python setup.py build_ext --inplace)"
        )


def __getattr__(name: str) -> str:
    """``IMPLEMENTATION``: cython or pure, as the kernel of batches is; it is loaded when this is first asked."""
    if name != "IMPLEMENTATION":
        raise AttributeError(f"fleetlog._native has no {name}")
    return "cython" if choose("batch").__name__.endswith("_cy") else "pure"
