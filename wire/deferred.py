"""Packages whose ``__init__`` imports far more than brokers need.

``kafka`` imports its producer, consumer and admin client, ``prometheus_client`` a web server. A broker needs neither.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any


def defer(name: str) -> None:
    """Let the package's modules be imported without its ``__init__``, which runs at the first access to a name that it
    defines.

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
    sys.modules[name] = package
