"""Packages whose ``__init__`` imports far more than brokers and commands need.

``kafka`` imports its producer, consumer and admin client, ``prometheus_client`` a web server. A broker needs neither.
The packages of ``kafka.protocol`` make some 160 classes out of JSON files, of which a command or a Spark worker needs a
few.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any


class Later:
    """A class of a package, which is made when it is first used."""

    def __init__(self, module: str, name: str) -> None:
        self._where = (module, name)

    def made(self) -> Any:
        """The class."""
        module, name = self._where
        return getattr(importlib.import_module(module), name)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.made(), attribute)

    def __getitem__(self, version: Any) -> Any:
        return self.made()[version]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.made()(*arguments, **named)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self.made())


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
                    setattr(package, class_name, Later(f"{name}.{file.stem}", class_name))
    sys.modules[name] = package
