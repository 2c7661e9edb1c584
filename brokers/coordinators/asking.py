"""Questions to the coordinator of a key, which is this broker or another one: the leader of the key's partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from fleetlog.brokers.peers.calls import PeersPort
from fleetlog.txn.commands import CommandFailed
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
    from fleetlog.brokers.metadata.cache import MetadataCache


class Coordinators:
    """All of them, as one of this broker's parts asks them."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        peers: PeersPort,
        create: Callable[[Sequence[str]], Awaitable[object]] | None = None,
    ) -> None:
        """``create`` makes an internal topic that is missing."""
        self._broker_id = broker_id
        self._metadata = metadata
        self._peers = peers
        self._create = create

    async def ask(
        self, runtime: CoordinatorRuntime[Any], key: str, here: Callable[[], Awaitable[Any]],
        request: Callable[[], Any], version: int, timeout_ms: int,
    ) -> Any:  # fmt: skip
        """What ``here`` returns, if this broker is the coordinator; else the other one's response to the request.

        ``CommandFailed`` with COORDINATOR_NOT_AVAILABLE where there is none. Raises PeerUnavailable.
        """
        if self._create is not None and runtime.topic not in self._metadata.topics:
            await self._create([runtime.topic])
        state = self._metadata.partition(TopicPartition(runtime.topic, runtime.partition_for(key)))
        if state is None or state.leader not in self._metadata.brokers:
            return CommandFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if state.leader == self._broker_id:
            return await here()
        message = request()
        return await self._peers.call(state.leader, message.API_KEY, version, message, timeout_ms)
