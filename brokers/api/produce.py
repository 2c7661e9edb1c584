"""Produce (key 0): append batches to the partitions this broker leads, and answer as the producer's acks ask.

A request is a run of one: :func:`execute_produce` takes the requests of one or several connections, appends what they
have for a partition in one call, and answers each connection (``brokers.api.produce_work``). Figures: ADR 0012, 0014
and 0015.
"""

from __future__ import annotations

from collections.abc import Coroutine
from operator import attrgetter
from typing import Any

from fleetlog.brokers.api.access import WRITE_TOPIC, WRITE_TRANSACTIONAL_ID
from fleetlog.brokers.api.base import Batching, Context, Outcome
from fleetlog.brokers.api.long_produce import LONG_PARTS, produce_in_slices
from fleetlog.brokers.api.produce_work import Worked, execute_produce, run_of
from fleetlog.brokers.api.rows import Cost, Row
from fleetlog.brokers.api.unpacking import ATTRIBUTES_AT, CODEC_MASK, is_compressed
from fleetlog.brokers.security.audit import EventType
from fleetlog.wire import api_keys
from fleetlog.wire.hot import ProduceRequest, ProduceRun, decode_produce_run


def handle_produce(request: ProduceRequest, context: Context) -> Outcome | Coroutine[Any, Any, Any] | Worked:
    """Append what can be appended; delayed while acks=all waits for the in-sync replicas."""
    parts = request.parts
    if len(parts) > LONG_PARTS or (
        (len(parts) > 1 or context.services.unpacking.exhausted) and any(is_compressed(part.records) for part in parts)
    ):
        return produce_in_slices(request, context)
    (outcome,) = execute_produce([run_of(request, context)], [context])
    return outcome


def _is_compressed(run: ProduceRun) -> bool:
    """One with a codec is a run of one request. As :func:`is_compressed`, but asked of every run of several."""
    if len(run[8]) > 1:
        return False
    records = run[5][0][0]
    return len(records) > ATTRIBUTES_AT and records[ATTRIBUTES_AT] & CODEC_MASK != 0


BATCHING = Batching(decode_produce_run, execute_produce, attrgetter("transactional_id"), _is_compressed)
"""How the server executes Produce requests that come together."""


API = (
    # the id only for transactional batches
    Row(
        api_keys.PRODUCE,
        handle_produce,
        (WRITE_TRANSACTIONAL_ID, WRITE_TOPIC),
        EventType.PRODUCE,
        batching=BATCHING,
        cost=Cost.DATA,
    ),
)
