"""Which way a sink writes, and how it changes over.

*Executor* mode: tasks write, under one batch transaction (docs/protocol.md); needs our brokers. *Driver* mode: rows
pass through the driver in an ordinary transaction; works on Apache Kafka, too. Each keeps a fence of its own, and
neither sees the other's: a sink belongs to one mode, until :func:`move_sink` carries its fence over.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Producer

from spark_udfs import batches
from spark_udfs import fence as fences
from spark_udfs.batches import Sink
from spark_udfs.client import Client
from spark_udfs.failures import FenceConflict, FenceError
from spark_udfs.fence import Fence
from spark_udfs.settings import OptionError, client_settings, librdkafka_settings, reader_settings

AUTO, EXECUTOR, DRIVER = "auto", "executor", "driver"
MODES = (AUTO, EXECUTOR, DRIVER)
_TIMEOUT_MS = 60_000

log = logging.getLogger(__name__)


def driver_fence(settings: Mapping[str, str], sink_id: str) -> Fence | None:
    """The fence of driver mode; None before the first batch, and after a reset."""
    consumer = fences.fence_consumer(client_settings(settings), fences.sink_name(sink_id))
    try:
        found = fences.committed_fence(consumer)
    finally:
        consumer.close()
    return found if found is not None and found.query_id is not None else None


def executor_fence(settings: Mapping[str, str], sink_id: str) -> Fence | None:
    """The fence of executor mode; None before the first batch, after a reset, and on brokers without that mode."""
    client = Client(reader_settings(settings))
    try:
        sink = Sink(client, sink_id)
        found = sink.fence() if sink.supported() else None
    finally:
        client.close()
    return None if found is None else Fence(found.query_id, found.batch_id)


def reset_executor_fence(settings: Mapping[str, str], sink_id: str, expected_query_id: str) -> None:
    """Take the fence away, and cut off a driver that still runs. Raises FenceConflict for another query's fence."""
    client = Client(reader_settings(settings))
    try:
        sink = Sink(client, sink_id)
        found = sink.fence()
        if found is None or found.query_id != expected_query_id:
            raise FenceConflict(f"the fence is {found}, not of query {expected_query_id}: left as it was")
        sink.begin(_TIMEOUT_MS)
        sink.reset(expected_query_id, None)
    finally:
        client.close()


def choose_mode(settings: Mapping[str, str], sink_id: str, wanted: str, *, fenced: bool = True) -> str:
    """EXECUTOR or DRIVER. AUTO stays with the sink's mode; a new sink writes from executors where the brokers can.

    Raises FenceError for executors on brokers that can't, FenceConflict for a sink of the other mode.
    """
    client = Client(reader_settings(settings))
    try:
        supported = Sink(client, sink_id).supported()
    finally:
        client.close()
    if wanted == EXECUTOR and not supported:
        raise FenceError("these brokers know no batch transactions (a stock Kafka does not): use sink.mode=driver")
    if wanted == AUTO:
        at_driver = not supported or not fenced or driver_fence(settings, sink_id) is not None
        chosen = DRIVER if at_driver else EXECUTOR
    else:
        chosen = wanted
    if chosen == EXECUTOR:
        refuse_driver_fence(settings, sink_id)
    elif supported:
        _refuse(sink_id, EXECUTOR, DRIVER, executor_fence(settings, sink_id))
    log.info("sink %s: mode %s (asked for %s; batch transactions: %s)", sink_id, chosen, wanted, supported)
    return chosen


def refuse_driver_fence(settings: Mapping[str, str], sink_id: str) -> None:
    """Raises FenceConflict for a sink that has been written in driver mode."""
    _refuse(sink_id, DRIVER, EXECUTOR, driver_fence(settings, sink_id))


def _refuse(sink_id: str, present: str, chosen: str, found: Fence | None) -> None:
    if found is not None:
        raise FenceConflict(
            f"sink {sink_id} belongs to {present} mode: its fence is at batch {found.batch_id} of query "
            f"{found.query_id}. Stop the query and call spark_udfs.move_sink(bootstrap_servers, {sink_id!r}, "
            f"to={chosen!r}, expected_query_id={found.query_id!r}), or set sink.mode={present}"
        )


def move_sink(bootstrap_servers: str, sink_id: str, *, to: str, expected_query_id: str, **kafka: Any) -> Fence:
    """Carry a sink's fence over to another mode; the fence. The query goes on with the checkpoint it has.

    The old mode's driver is locked out first, and its fence goes last: an interrupted move leaves both, which stops
    either mode, and is repeated. Raises FenceConflict, and changes nothing, when the fence is of another query.
    """
    if to not in (EXECUTOR, DRIVER):
        raise OptionError(f"a sink moves to {EXECUTOR} or {DRIVER}, not to {to!r}")
    settings = fences.settings_of(bootstrap_servers, kafka)
    client = Client(reader_settings(settings))
    name = fences.sink_name(sink_id)
    fences.create_fence_topic(settings)
    consumer = fences.fence_consumer(client_settings(settings), name)
    producer = Producer({**librdkafka_settings(settings), "transactional.id": name})
    try:
        sink = Sink(client, sink_id)
        if not sink.supported():
            raise FenceError("these brokers know no batch transactions: a sink's only mode here is driver")
        fences.retrying(producer.init_transactions)
        begun = sink.begin(_TIMEOUT_MS).fence
        at_executors = None if begun is None else Fence(begun.query_id, begun.batch_id)
        fences.begin_with_fence(producer, consumer, at_executors if to == DRIVER and at_executors else Fence(None, -1))
        at_driver = fences.committed_fence(consumer)
        at_driver = at_driver if at_driver is not None and at_driver.query_id is not None else None
        old, new = (at_driver, at_executors) if to == EXECUTOR else (at_executors, at_driver)
        moved = old or new  # without an old one the move was done before
        if moved is None or moved.query_id != expected_query_id or new not in (None, moved):
            fences.retrying(producer.abort_transaction)
            raise FenceConflict(
                f"sink {sink_id}: the fence is {old}, in {to} mode {new}; not of query {expected_query_id}: left as is"
            )
        if to == EXECUTOR and new is None:
            sink.reset("", batches.Fence(expected_query_id, moved.batch_id, ""))
        if old is None:
            fences.retrying(producer.abort_transaction)
            return moved
        fences.retrying(producer.commit_transaction)
        if to == DRIVER:
            sink.reset(expected_query_id, None)
        return moved
    finally:
        consumer.close()
        client.close()
