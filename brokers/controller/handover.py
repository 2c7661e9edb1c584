"""Controlled shutdown: a stopping broker hands its leaderships over, so that clients need only a metadata refresh.

The broker waives its leases first. The controller moves the leaderships that it can and returns the others. After a few
attempts the broker stops anyway, and the remaining partitions fail over as after a crash.

Source: Kafka's controlled shutdown (KIP-380 for the broker epoch).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.replication import ends
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.controller.controller import Controller
    from fleetlog.brokers.metadata.cache import MetadataCache
    from fleetlog.brokers.replication.replicas import ReplicaManager

logger = logging.getLogger(__name__)

CONTROLLED_SHUTDOWN, VERSION = 7, 3
CALL_MS = 10_000
FIRST_PAUSE_S = 0.05
METADATA_WAIT_MS = 2_000
LAST_ATTEMPT_S = 15.0
"""No attempt begins later: with ZooKeeper away each takes CALL_MS in vain, and 30 seconds are what a stop is often
given before SIGKILL makes it an unclean one."""


async def hand_over(
    config: BrokerConfig,
    broker_epoch: int,
    *,
    metadata: MetadataCache,
    replicas: ReplicaManager,
    controller: Controller,
    peers: PeersPort,
) -> None:
    """Ask the controller to move every leadership that another replica can take; returns when done or out of tries."""
    if not config.controlled_shutdown_enable or not _another_could_lead(config.broker_id, metadata, replicas):
        return
    # Until this broker knows of a move it must not answer from memory, nor acknowledge a record that only it has.
    await ends.drained(replicas.waive_leases())
    last_attempt = asyncio.get_running_loop().time() + LAST_ATTEMPT_S
    for attempt in range(config.controlled_shutdown_max_retries + 1):
        if attempt:
            if asyncio.get_running_loop().time() > last_attempt:
                break
            await asyncio.sleep(min(FIRST_PAUSE_S * 4**attempt, config.controlled_shutdown_retry_backoff_ms / 1000))
        error, remaining = await _ask(config.broker_id, broker_epoch, metadata, controller, peers)
        if error is ErrorCode.NONE and not remaining:
            await metadata.wait_until(
                lambda: not _another_could_lead(config.broker_id, metadata, replicas), METADATA_WAIT_MS
            )
            return
        logger.info("controlled shutdown: %s, %d partitions still led here", error.name, remaining)
    logger.warning(
        "controlled shutdown gave up after its last attempt: the remaining partitions fail over after the stop"
    )


def _another_could_lead(broker_id: int, metadata: MetadataCache, replicas: ReplicaManager) -> bool:
    """Whether this broker leads a partition that another live in-sync replica could lead."""
    return any(
        partition.is_leader and any(b != broker_id and b in metadata.brokers for b in partition.state.isr)
        for partition in replicas.all()
    )


async def _ask(
    broker_id: int, broker_epoch: int, metadata: MetadataCache, controller: Controller, peers: PeersPort
) -> tuple[ErrorCode, int]:
    if controller.is_active:
        error, remaining = await controller.controlled_shutdown(broker_id, broker_epoch, timeout_ms=CALL_MS)
        return error, len(remaining)
    if metadata.controller_id < 0 or metadata.controller_id == broker_id:
        return ErrorCode.NOT_CONTROLLER, 0
    request = messages.request_class(CONTROLLED_SHUTDOWN)(
        version=VERSION, broker_id=broker_id, broker_epoch=broker_epoch
    )
    try:
        response = await peers.call(metadata.controller_id, CONTROLLED_SHUTDOWN, VERSION, request, CALL_MS)
    except PeerUnavailable as problem:
        logger.info("controlled shutdown: %s", problem)
        return ErrorCode.BROKER_NOT_AVAILABLE, 0
    return ErrorCode(response.error_code), len(response.remaining_partitions)
