"""Which mode a sink writes in.

*Executor* mode: tasks write, under one batch transaction (docs/protocol.md); needs fleetlog's brokers. *Driver* mode:
rows pass through the driver in an ordinary transaction; works on Apache Kafka, too. Each mode keeps its own fence and
does not see the other's: a sink belongs to one mode, until ``move_sink`` carries its fence over.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.failures import FenceConflict, FenceError
from fleetlog.spark.client.settings import kafka_python_settings
from fleetlog.spark.sink.batch_transactions import UNSUPPORTED, BatchTransactions
from fleetlog.spark.sink.fence import Fence
from fleetlog.spark.sink.fence_reader import read_driver_fence
from fleetlog.spark.sink.options import AUTO, DRIVER, EXECUTOR

logger = logging.getLogger(__name__)


def driver_fence(settings: Mapping[str, str], sink_id: str) -> Fence | None:
    """The fence of driver mode; None before the first batch, and after a reset."""
    fence = read_driver_fence(settings, sink_id)
    return fence if fence is not None and fence.query_id is not None else None


def executor_fence(settings: Mapping[str, str], sink_id: str) -> Fence | None:
    """The fence of executor mode; None before the first batch, after a reset, and on brokers without that mode."""
    client = Client(kafka_python_settings(settings))
    try:
        transactions = BatchTransactions(client, sink_id)
        return transactions.fence() if transactions.supported() else None
    finally:
        client.close()


def choose_mode(settings: Mapping[str, str], sink_id: str, wanted: str, *, fenced: bool = True) -> tuple[str, str]:
    """EXECUTOR or DRIVER, and the id of the cluster.

    AUTO keeps the sink's mode; a new sink writes from executors where the brokers support it.

    Raises FenceError for EXECUTOR on brokers without it, FenceConflict for a sink of the other mode, ClientError.
    """
    client = Client(kafka_python_settings(settings))
    try:
        supported, cluster_id = BatchTransactions(client, sink_id).supported(), client.cluster_id()
    finally:
        client.close()
    if wanted == EXECUTOR and not supported:
        raise FenceError(f"{UNSUPPORTED}: use sink.mode=driver")
    if wanted == AUTO:
        at_driver = not supported or not fenced or driver_fence(settings, sink_id) is not None
        chosen = DRIVER if at_driver else EXECUTOR
    else:
        chosen = wanted
    if chosen == EXECUTOR:
        refuse_driver_fence(settings, sink_id)
    elif supported:
        _refuse(sink_id, EXECUTOR, DRIVER, executor_fence(settings, sink_id))
    logger.info("sink %s: mode %s (wanted: %s; batch transactions: %s)", sink_id, chosen, wanted, supported)
    return chosen, cluster_id


def refuse_driver_fence(settings: Mapping[str, str], sink_id: str) -> None:
    """Raises FenceConflict for a sink that has been written in driver mode."""
    _refuse(sink_id, DRIVER, EXECUTOR, driver_fence(settings, sink_id))


def _refuse(sink_id: str, present: str, chosen: str, found: Fence | None) -> None:
    if found is not None:
        raise FenceConflict(
            f"sink {sink_id} belongs to {present} mode: its fence is at batch {found.batch_id} of query "
            f"{found.query_id}. Stop the query and call fleetlog.spark.move_sink(bootstrap_servers, {sink_id!r}, "
            f"to={chosen!r}, expected_query_id={found.query_id!r}), or set sink.mode={present}"
        )
