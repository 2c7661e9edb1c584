"""What is noted of a connection and seldom asked: the software of its client, since when it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetlog.wire.apis import APIS

if TYPE_CHECKING:
    from fleetlog.brokers.metrics import Histogram, Labelled
    from fleetlog.brokers.model import Clock


class ConnectionMarks:
    """See the module. They are by themselves because a look at a connection's attributes becomes dearer when it has
    more than 30 of them.

    ``queued_ms``: since when a request that is here is not executed; ``unsent_ms``: since when an answer has not left,
    the newest one of ``unsent_key`` then. ``answered_key``: the API of the newest answer.
    """

    __slots__ = ("answered_key", "client_id", "queued_ms", "since_ms", "software", "unsent_key", "unsent_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.software = ("unknown", "unknown")
        self.client_id = ""
        self.queued_ms: int | None = None
        self.unsent_ms: int | None = None
        self.unsent_key = self.answered_key = -1


def count_wait(waits: Labelled[Histogram], key: int, since_ms: int, clock: Clock) -> None:
    """Count a wait that is over, by the API with that key."""
    api = APIS.get(key)
    waits.labels("unknown" if api is None else api.name).observe((clock.mono_ms() - since_ms) / 1000)
