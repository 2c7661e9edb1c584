"""Produce (key 0): append batches to the partitions this broker leads, and answer as the producer's acks ask.

A request is a run of one: :func:`execute_produce` takes the requests of one or several connections, appends what they
have for a partition in one call, and answers each connection (``brokers.api.produce_work``). Figures: ADR 0012, 0014
and 0015.
"""

from __future__ import annotations

from collections.abc import Coroutine
from operator import attrgetter
from typing import Any

from brokers.api.base import Batching, Context, Outcome
from brokers.api.long_produce import produce_in_slices
from brokers.api.produce_work import Worked, execute_produce, run_of
from wire.hot import ProduceRequest, decode_produce_run

LONG_PARTS = 256
"""A Produce to more partitions is executed in slices (``brokers.api.long_produce``): some milliseconds of work."""


def handle_produce(request: ProduceRequest, context: Context) -> Outcome | Coroutine[Any, Any, Any] | Worked:
    """Append what can be appended; delayed while acks=all waits for the in-sync replicas."""
    if len(request.parts) > LONG_PARTS:
        return produce_in_slices(request, context)
    (outcome,) = execute_produce([run_of(request, context)], [context])
    return outcome


BATCHING = Batching(decode_produce_run, execute_produce, attrgetter("transactional_id"))
"""How the server executes Produce requests that come together."""
