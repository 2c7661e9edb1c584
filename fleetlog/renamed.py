"""Old names of packages: each is the same modules as the new name, with one warning, for one release."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def rename(old: str, new: str) -> None:
    """Make ``old``, whose module calls this while it is imported, and all below it the modules of ``new``."""
    warnings.warn(f"{old} is now {new}; the old name goes with the next release", FutureWarning, stacklevel=3)
    sys.modules[old] = importlib.import_module(new)
    sys.meta_path.insert(0, _Renamed(f"{old}.", f"{new}."))


class _Renamed(MetaPathFinder, Loader):
    """Finds the modules below an old name: they are those of the new name, and keep their own specs."""

    def __init__(self, old: str, new: str) -> None:
        self._old = old
        self._new = new
        self._own: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.startswith(self._old) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.name.replace(self._old, self._new, 1))
        self._own[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            module.__spec__ = self._own.pop(spec.name)
