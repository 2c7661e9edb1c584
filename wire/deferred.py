"""Packages whose ``__init__`` imports far more than brokers and commands need.

``kafka`` imports its producer, consumer and admin client, ``prometheus_client`` a web server, ``crc32c`` its command
line and the library of e-mail. A broker needs none of them.
The packages of ``kafka.protocol`` make some 160 classes out of JSON files, of which a command or a Spark worker needs a
few: a pair of request and response is made when one of them is asked for.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import re
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
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


def defer(name: str, names_of: str = "") -> None:
    """Let the package's modules be imported without its ``__init__``, which runs at the first access to a name that it
    defines and its module ``names_of`` has not.

    Does nothing if the package is imported already, or is not installed.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    package = importlib.util.module_from_spec(spec)
    _without_init(package, spec.loader, names_of)
    sys.modules[name] = package


def defer_classes(*names: str) -> None:
    """The same for packages that nothing has imported yet, when they are; classes of their modules can be imported from
    them before ``__init__`` runs, and each is made when it is first used.
    """
    sys.meta_path.insert(0, _OfClasses(names))


def _without_init(package: ModuleType, loader: Loader, names_of: str = "") -> None:
    def missing(attribute: str) -> Any:
        if attribute == "__module__":  # which no module has, and which is asked of everything
            raise AttributeError(attribute)
        if names_of:
            module = importlib.import_module(f"{package.__name__}.{names_of}")
            if hasattr(module, attribute):
                return vars(package).setdefault(attribute, getattr(module, attribute))
        if importlib.util.find_spec(f"{package.__name__}.{attribute}") is not None:
            return importlib.import_module(f"{package.__name__}.{attribute}")
        if vars(package).pop("__getattr__", None) is not None:
            loader.exec_module(package)
        return getattr(package, attribute)

    vars(package)["__getattr__"] = missing


class _OfClasses:
    """Finds packages, for Python's imports."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Sequence[str] | None = None, _: ModuleType | None = None) -> ModuleSpec | None:
        """By Python, for each import."""
        loader = _LaterClasses if name in self._names else _LaterMessages
        if loader is _LaterMessages and name.rpartition(".")[0] not in self._names:
            return None
        found = PathFinder.find_spec(name, path)
        if found is not None and found.loader is not None:
            found.loader = loader(found.loader)
        return found


class _LaterClasses(Loader):
    """Makes a package with a `Later` for each class."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        """By Python."""
        _without_init(module, self._loader)
        for folder in module.__path__:
            for file in Path(folder).glob("[a-z]*.py"):
                for class_name in re.findall(r"^class (\w+)", file.read_text(), re.MULTILINE):
                    setattr(module, class_name, Later(f"{module.__name__}.{file.stem}", class_name))


_OF_PLAIN = frozenset({"__name__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__"})
_making = threading.RLock()


class _LaterMessages(Loader):
    """Makes a module without its messages that have nothing but a name; each pair of request and response is made when
    one of them is first asked for.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        """By Python."""
        names, later = vars(module), dict[str, Callable[[], type]]()

        def build_class(body: Any, name: str, *bases: Any, **named: Any) -> Any:
            if [base.__name__ for base in bases] == ["ApiMessage"] and _OF_PLAIN.issuperset(body.__code__.co_names):
                later[name] = partial(builtins.__build_class__, body, name, *bases)
                return None
            return builtins.__build_class__(body, name, *bases, **named)

        names["__builtins__"] = {**vars(builtins), "__build_class__": build_class}
        try:
            self._loader.exec_module(module)
        finally:
            names["__builtins__"] = builtins

        def missing(attribute: str) -> Any:
            with _making:
                for name in (attribute, _partner(attribute)) if attribute in later else ():
                    names[name] = later.pop(name)()
                if attribute in names:
                    return names[attribute]
            raise AttributeError(f"module {module.__name__!r} has no attribute {attribute!r}")

        for name in list(later):
            if _partner(name) in later:
                del names[name]
            else:
                names[name] = later.pop(name)()
        names["__getattr__"] = missing


def _partner(name: str) -> str:
    """A request's response, and the other way round."""
    kind = "Response" if name.endswith("Request") else "Request"
    return re.sub(r"(Request|Response)$", kind, name)
