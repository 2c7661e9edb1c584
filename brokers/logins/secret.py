"""A secret of the fleet in ``/fleetlog/login_secret``: made once, read by each broker at its start.

Salts of SCRAM users that do not exist are derived from it, so that all brokers answer the same one, also after a
restart: by what changes, a peer could tell which names exist. No API shows it. What can read it in ZooKeeper can
read the credentials there, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fleetlog.brokers.metadata.loading import read_or_none
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.coordination.store import NodeExists, Store, UnknownOutcome

LOGIN_SECRET: Final = "/fleetlog/login_secret"
SECRET_BYTES: Final = 32

_RETRY_S: Final = 0.05


async def login_secret(store: Store, new_secret: Callable[[int], bytes]) -> bytes:
    """The secret; ``new_secret(size)`` makes one where there is none yet. Raises the store's exceptions, BadZnode."""
    while True:
        row = await read_or_none(store, LOGIN_SECRET)
        if row is not None:
            if len(row[0]) != SECRET_BYTES:
                raise BadZnode(LOGIN_SECRET, f"is not {SECRET_BYTES} bytes: delete it, and a broker makes a new one")
            return row[0]
        try:
            await store.create(LOGIN_SECRET, new_secret(SECRET_BYTES), parents=True)
        except NodeExists:
            continue
        except UnknownOutcome:  # the next read decides
            await asyncio.sleep(_RETRY_S)
