"""Calls for operators: read a sink's fence, reset it, move it to the other mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.failures import FenceConflict, FenceError, OptionError
from fleetlog.spark.client.kafka_names import check_effect
from fleetlog.spark.client.settings import CLIENT_NAMES, kafka_python_settings, kafka_settings
from fleetlog.spark.sink.batch_transactions import UNSUPPORTED, BatchTransactions
from fleetlog.spark.sink.fence import Fence
from fleetlog.spark.sink.fence_reader import read_driver_fence
from fleetlog.spark.sink.modes import executor_fence
from fleetlog.spark.sink.options import DRIVER, EXECUTOR

_TRANSACTION_TIMEOUT_MS = 60_000
_NO_FENCE = Fence(None, -1)


def read_fence(bootstrap_servers: str, sink_id: str, **kafka: Any) -> Fence | None:
    """The last batch a sink has committed, in either mode; None before the first.

    ``kafka``: further settings, ``_`` for ``.``.
    """
    settings = _settings(bootstrap_servers, kafka)
    fence = read_driver_fence(settings, sink_id)
    if fence is not None and fence.query_id is not None:
        return fence
    return executor_fence(settings, sink_id) or fence


def reset_fence(bootstrap_servers: str, sink_id: str, *, expected_query_id: str | None, **kafka: Any) -> None:
    """Free a sink for a new checkpoint: the next query takes it over with its batch 0.

    In driver mode that query may be at any batch; in executor mode a later one needs ``fence.onMissing=adopt``. A
    driver that still runs is fenced. Raises FenceConflict, and changes nothing, when the fence is not of
    ``expected_query_id``.
    """
    settings = _settings(bootstrap_servers, kafka)
    if executor_fence(settings, sink_id) is not None:
        _reset_executor_fence(settings, sink_id, expected_query_id or "")
        return
    from fleetlog.spark.sink.driver_fence import begin_with_fence, committed_fence, fencing_producer, retrying

    with fencing_producer(settings, sink_id) as (producer, consumer):
        begin_with_fence(producer, consumer, _NO_FENCE)
        fence = committed_fence(consumer)
        if (fence.query_id if fence else None) != expected_query_id:
            retrying(producer.abort_transaction)
            raise FenceConflict(f"the fence is {fence}, not of query {expected_query_id}: left as it was")
        retrying(producer.commit_transaction)


def move_sink(bootstrap_servers: str, sink_id: str, *, to: str, expected_query_id: str, **kafka: Any) -> Fence:
    """Carry a sink's fence over to another mode; the fence. The query continues with the checkpoint it has.

    The old mode's driver is fenced first, and its fence goes last: an interrupted move leaves both fences, which stops
    either mode, and is repeated. Raises FenceConflict, and changes nothing, when the fence is of another query.
    """
    if to not in (EXECUTOR, DRIVER):
        raise OptionError(f"a sink moves to {EXECUTOR} or {DRIVER}, not to {to!r}")
    from fleetlog.spark.sink.driver_fence import begin_with_fence, committed_fence, fencing_producer, retrying

    settings = _settings(bootstrap_servers, kafka)
    client = Client(kafka_python_settings(settings))
    try:
        with fencing_producer(settings, sink_id) as (producer, consumer):
            transactions = BatchTransactions(client, sink_id)
            if not transactions.supported():
                raise FenceError(f"{UNSUPPORTED}: a sink's only mode here is driver")
            at_executors = transactions.begin(_TRANSACTION_TIMEOUT_MS).fence
            begin_with_fence(producer, consumer, at_executors if to == DRIVER and at_executors else _NO_FENCE)
            at_driver = committed_fence(consumer)
            at_driver = at_driver if at_driver is not None and at_driver.query_id is not None else None
            old, new = (at_driver, at_executors) if to == EXECUTOR else (at_executors, at_driver)
            moved = old or new  # without an old one the move was done before
            if moved is None or moved.query_id != expected_query_id or new not in (None, moved):
                retrying(producer.abort_transaction)
                raise FenceConflict(
                    f"sink {sink_id}: the fence is {old}, in {to} mode {new}; not of query {expected_query_id}: "
                    "left as is"
                )
            if to == EXECUTOR and new is None:
                transactions.reset("", Fence(expected_query_id, moved.batch_id))
            if old is None:
                retrying(producer.abort_transaction)
                return moved
            retrying(producer.commit_transaction)
            if to == DRIVER:
                transactions.reset(expected_query_id, None)
            return moved
    finally:
        client.close()


def _reset_executor_fence(settings: Mapping[str, str], sink_id: str, expected_query_id: str) -> None:
    client = Client(kafka_python_settings(settings))
    try:
        transactions = BatchTransactions(client, sink_id)
        fence = transactions.fence()
        if fence is None or fence.query_id != expected_query_id:
            raise FenceConflict(f"the fence is {fence}, not of query {expected_query_id}: left as it was")
        transactions.begin(_TRANSACTION_TIMEOUT_MS)  # fences a driver that still runs
        transactions.reset(expected_query_id, None)
    finally:
        client.close()


def _settings(bootstrap_servers: str, kafka: Mapping[str, Any]) -> dict[str, str]:
    """``kafka.*`` settings from keyword arguments with ``_`` for ``.``."""
    options = {f"kafka.{name.replace('_', '.')}": str(value) for name, value in kafka.items()}
    kafka = kafka_settings({**options, "kafka.bootstrap.servers": bootstrap_servers})
    check_effect(kafka, CLIENT_NAMES, "this call")
    return kafka
