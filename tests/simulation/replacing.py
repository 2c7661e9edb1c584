"""Functions replaced by others while a block runs: how a deliberate bug gets into the production code.

A replacement names the function itself, not its text: when the function is renamed, the module with the bugs does not
import any more, nor when its parameters are no longer those of the replacement.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

_HOUSE = ("fleetlog.brokers.", "fleetlog.coordination.", "fleetlog.txn.")


class Replacement(NamedTuple):
    """``owner.name`` becomes what ``remake`` makes of what stands there (as its class has it: a property, ...)."""

    owner: Any
    name: str
    remake: Callable[[Any], Any]


class Mutation(NamedTuple):
    """A named bug. ``kinds`` are the faults that bring it to light soonest; none: any.

    ``seed`` is one that catches it; when it no longer does, because the code has changed, the first ``within`` seeds
    are tried.
    """

    name: str
    changes: tuple[Replacement, ...]
    seed: int
    kinds: tuple[str, ...] = ()
    within: int = 200
    course: Callable[[Any], Any] | None = None
    """What takes the place of the seed's faults in a world, if the bug shows in one course of events only."""


def instead(standing: Any, replacement: Callable[..., Any]) -> Replacement:
    """A function, method or property is replaced. The replacement has the same parameters.

    If its first one is ``original``, it gets the replaced function there. Raises TypeError if the parameters differ.
    """
    function = inspect.unwrap(_bare(standing))
    owner: Any = sys.modules[function.__module__]
    *classes, name = function.__qualname__.split(".")
    for part in classes:
        owner = getattr(owner, part)
    parameters = list(inspect.signature(replacement).parameters.values())
    wraps = bool(parameters) and parameters[0].name == "original"
    given = [(p.name, p.kind) for p in parameters[wraps:]]
    wanted = [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]
    if given != wanted:
        raise TypeError(f"{owner.__name__}.{name} has the parameters {wanted}, its replacement {given}")

    def remake(present: Any) -> Any:
        made = functools.partial(replacement, _bare(present)) if wraps else replacement
        # a partial is no method: a function around it is bound to its instance
        plain = (lambda *args, **named: made(*args, **named)) if wraps else made
        if isinstance(present, property):
            return property(plain)
        return staticmethod(plain) if isinstance(present, staticmethod) else plain

    return Replacement(owner, name, remake)


def _bare(standing: Any) -> Any:
    return standing.fget if isinstance(standing, property) else getattr(standing, "__func__", standing)


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """The house with that bug, as long as the block runs."""
    undo: list[Callable[[], None]] = []
    try:
        for change in mutation.changes:
            _apply(change, undo)
        yield
    finally:
        for step in reversed(undo):
            step()


def _apply(change: Replacement, undo: list[Callable[[], None]]) -> None:
    owner, name = change.owner, change.name
    original = inspect.getattr_static(owner, name)
    fresh = change.remake(original)
    setattr(owner, name, fresh)
    undo.append(lambda: setattr(owner, name, original))
    if inspect.ismodule(owner):  # others may have imported it by name
        for other in [m for n, m in sys.modules.items() if n.startswith(_HOUSE) and m is not owner]:
            for alias, value in list(vars(other).items()):
                if value is original:
                    setattr(other, alias, fresh)
                    undo.append(lambda other=other, alias=alias: setattr(other, alias, original))  # type: ignore[misc]
