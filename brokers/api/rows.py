"""What a broker knows of each API beside its schema: a row above its handler, found by looking through the room.

Key, versions and name stand in ``wire.apis``. From the rows in the modules of ``brokers.api`` come dispatch, the door's
needs, what the audit records, and the tests' lists.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from fleetlog.brokers import api
from fleetlog.brokers.acls.access import Need
from fleetlog.brokers.api.base import Batching, Context, Outcome
from fleetlog.brokers.audit.events import Changes, EventType
from fleetlog.wire.apis import APIS

Handler = Callable[[Any, Context], Outcome]
H = TypeVar("H", bound=Handler)


class Cost(Enum):
    """What admission reserves before the body is decoded."""

    CHEAP = "cheap"
    DATA = "data"  # the body is kept while the request is in flight
    ADMIN = "admin"  # decodes into many small objects: counts several times its size


class Recorded(NamedTuple):
    """A management request, which the audit records by what it changed.

    ``changes(request, response)`` reads it from both; ``lists`` are the request's lists that name the resources, none
    for one resource.
    """

    changes: Callable[[Any, Any], Changes]
    lists: tuple[str, ...] = ()

    def count(self, request: object) -> int:
        """About how many changes the request asks for."""
        return max(1, sum(len(getattr(request, name, None) or ()) for name in self.lists))


def _no_handler(request: Any, context: Context) -> Outcome:
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Row:
    """One API, said of its handler, above which it stands as ``@Row(...)``.

    ``needs``: what the door is asked; ``audit``: how it is recorded; ``batching``: how runs are executed.
    ``brokers_from``: from that version on only brokers ask it, and it is no client's time or bytes. ``brokers_too``:
    they ask it on their own account as well. ``unserved``: the frame that answers a version that is not served, by the
    request's correlation id; without it the connection is closed. ``feature``: it is advertised once a level of that is
    finalized.
    """

    key: int
    needs: tuple[Need, ...] = ()
    audit: EventType | Recorded = EventType.DESCRIBE
    cost: Cost = Cost.ADMIN
    batching: Batching | None = None
    brokers_from: int | None = None
    brokers_too: bool = False
    unserved: Callable[[int], list[Any]] | None = None
    feature: str | None = None
    handler: Handler = _no_handler

    def __call__(self, handler: H) -> H:
        """The handler, which serves this API from now on."""
        _ROWS.append(replace(self, handler=handler))
        return handler

    @property
    def kind(self) -> EventType:
        """The type of its events."""
        return EventType.MANAGEMENT if isinstance(self.audit, Recorded) else self.audit

    @property
    def asked_by_brokers(self) -> bool:
        """Whether brokers ask it on their own account, in every version."""
        return self.brokers_too or self.brokers_from == 0


_ROWS: list[Row] = []
"""Those of the modules that were imported."""


@cache
def api_table() -> dict[int, Row]:
    """The rows of all modules by API key, in the order of ``wire.apis``. Raises LookupError where these two differ."""
    for module in pkgutil.iter_modules(api.__path__):
        import_module(f"{api.__name__}.{module.name}")
    by_key = {row.key: row for row in _ROWS}
    if len(by_key) != len(_ROWS) or by_key.keys() != APIS.keys():
        twice = {row.key for row in _ROWS if _ROWS.count(row) > 1 or by_key[row.key] is not row}
        raise LookupError(f"APIs with a schema or a row alone {by_key.keys() ^ APIS.keys()}, with two rows {twice}")
    return {key: by_key[key] for key in APIS}
