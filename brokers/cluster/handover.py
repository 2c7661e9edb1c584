"""A stopping broker hands its leaderships over, so that clients lose no more than a metadata refresh.

The controller moves what it can and answers with what is left; a few attempts later the broker stops anyway, and what
is left fails over as after a crash. Source: Kafka's controlled shutdown (KIP-380 for the broker epoch).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from brokers.cluster.peers import PeersPort, PeerUnavailable
from wire import messages
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from brokers.cluster.controller import ControllerHandle
    from brokers.cluster.replicas import ReplicaManager
    from brokers.cluster.view import ClusterView
    from brokers.config import BrokerConfig

logger = logging.getLogger(__name__)

CONTROLLED_SHUTDOWN, VERSION = 7, 3
CALL_MS = 10_000
FIRST_PAUSE_S = 0.05
VIEW_WAIT_MS = 2_000


async def hand_over(
    config: BrokerConfig,
    broker_epoch: int,
    *,
    view: ClusterView,
    replicas: ReplicaManager,
    controller: ControllerHandle,
    peers: PeersPort,
) -> None:
    """Ask the controller to move every leadership that another replica can take; returns when done or given up."""
    if not config.controlled_shutdown_enable or not _somebody_could(config.broker_id, view, replicas):
        return
    for attempt in range(config.controlled_shutdown_max_retries + 1):
        if attempt:
            await asyncio.sleep(min(FIRST_PAUSE_S * 4**attempt, config.controlled_shutdown_retry_backoff_ms / 1000))
        error, remaining = await _ask(config.broker_id, broker_epoch, view, controller, peers)
        if error is ErrorCode.NONE and not remaining:
            await view.wait_until(lambda: not _somebody_could(config.broker_id, view, replicas), VIEW_WAIT_MS)
            return
        logger.info("controlled shutdown: %s, %d partitions still led here", error.name, remaining)
    logger.warning("controlled shutdown gave up: other brokers take over when this one is gone")


def _somebody_could(broker_id: int, view: ClusterView, replicas: ReplicaManager) -> bool:
    """Whether a partition is led here that another living in-sync replica could lead."""
    return any(
        partition.is_leader and any(b != broker_id and b in view.brokers for b in partition.state.isr)
        for partition in replicas.all()
    )


async def _ask(
    broker_id: int, broker_epoch: int, view: ClusterView, controller: ControllerHandle, peers: PeersPort
) -> tuple[ErrorCode, int]:
    if controller.is_active:
        error, remaining = await controller.controlled_shutdown(broker_id, broker_epoch, timeout_ms=CALL_MS)
        return error, len(remaining)
    if view.controller_id < 0 or view.controller_id == broker_id:
        return ErrorCode.NOT_CONTROLLER, 0
    request = messages.request_class(CONTROLLED_SHUTDOWN)(
        version=VERSION, broker_id=broker_id, broker_epoch=broker_epoch
    )
    try:
        response = await peers.call(view.controller_id, CONTROLLED_SHUTDOWN, VERSION, request, CALL_MS)
    except PeerUnavailable as problem:
        logger.info("controlled shutdown: %s", problem)
        return ErrorCode.BROKER_NOT_AVAILABLE, 0
    return ErrorCode(response.error_code), len(response.remaining_partitions)
