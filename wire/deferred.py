"""Packages whose ``__init__`` imports far more than brokers and commands need.

``kafka`` imports its producer, consumer and admin client, ``prometheus_client`` a web server. A broker needs neither.
``kafka.protocol.admin`` makes a hundred classes out of JSON files, of which a command needs a few.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any


class _Later:
    """A class of a package, which is made when it is first used."""

    def __init__(self, module: str, name: str) -> None:
        self._where = (module, name)

    def _made(self) -> Any:
        module, name = self._where
        return getattr(importlib.import_module(module), name)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._made(), attribute)

    def __getitem__(self, version: Any) -> Any:
        return self._made()[version]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._made()(*arguments, **named)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._made())


def defer(name: str, *, classes: bool = False) -> None:
    """Let the package's modules be imported without its ``__init__``, which runs at the first access to a name that it
    defines; ``classes`` of its modules can be imported from it before, and each is made when it is first used.

    Does nothing if the package is imported already, or is not installed.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    package = importlib.util.module_from_spec(spec)
    loader = spec.loader

    def missing(attribute: str) -> Any:
        if importlib.util.find_spec(f"{name}.{attribute}") is not None:
            return importlib.import_module(f"{name}.{attribute}")
        if vars(package).pop("__getattr__", None) is not None:
            loader.exec_module(package)
        return getattr(package, attribute)

    vars(package)["__getattr__"] = missing
    if classes:
        for folder in spec.submodule_search_locations or ():
            for file in Path(folder).glob("[a-z]*.py"):
                for class_name in re.findall(r"^class (\w+)", file.read_text(), re.MULTILINE):
                    setattr(package, class_name, _Later(f"{name}.{file.stem}", class_name))
    sys.modules[name] = package
