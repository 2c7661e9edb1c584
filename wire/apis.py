"""The API table: one row per API, from which ApiVersions, docs/apis.md and the test that each row has a handler and a
test are derived. ``brokers.api.rows`` finds what serves it.

What it says stands in ``wire/schemas``: an API has its schemas there, or a line in ``kafka_python.json`` if the library
has its schemas.
"""

from __future__ import annotations

from typing import NamedTuple

from fleetlog.wire.api_keys import TABLE


class Api(NamedTuple):
    """One API: its key, its versions, as clients and brokers speak of it."""

    key: int
    name: str
    min_version: int
    max_version: int
    lowest: int  # the lowest version that works
    internal: bool  # between brokers only: not advertised
    large: bool  # carries data: bounded by socket.request.max.bytes alone


APIS = {row[0]: Api(*row) for row in TABLE}
LARGE_KEYS = frozenset(key for key, api in APIS.items() if api.large)
