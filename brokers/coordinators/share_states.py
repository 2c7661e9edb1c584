"""The share coordinators, this broker's own included, as the leaders of share partitions ask them (KIP-932)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetlog.brokers.coordinators.asking import Coordinators
from fleetlog.brokers.coordinators.pending import answer_of
from fleetlog.brokers.coordinators.transactions.verification import Errors, admit
from fleetlog.brokers.model import SHARE_STATE_TOPIC, Clock
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.shares.coordinator import ShareShard, ShareWrite, StateAnswer, coordinator_key
from fleetlog.brokers.shares.state import RecordState, ShareKey, ShareState, StateBatch
from fleetlog.txn.commands import CommandFailed, Now, Result, Ticket
from fleetlog.txn.verification import Question
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
    from fleetlog.brokers.metadata.cache import MetadataCache

logger = logging.getLogger(__name__)

CALL_MS = 10_000
"""How long the share coordinator has for an answer."""
ATTEMPTS = 10
RETRY_S = 0.2
"""Between two attempts to persist: after all of them the acknowledgements have failed."""


class Within(NamedTuple):
    """The transaction that a write is part of."""

    transactional_id: str
    producer: tuple[int, int]
    """Producer id and epoch."""


class ShareStates:
    """The share coordinators, this broker's own included, as their clients see them."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        peers: PeersPort,
        runtime: CoordinatorRuntime[ShareShard],
        create: Callable[[Sequence[str]], Awaitable[object]],
        ask: Callable[[Question], Awaitable[Errors]],
        clock: Clock,
    ) -> None:
        """``ask`` is that of the transactions' verifier."""
        self._coordinators = Coordinators(broker_id, metadata, peers, create)
        self._runtime = runtime
        self._ask_transaction = ask
        self._clock = clock

    async def read(self, key: ShareKey, leader_epoch: int) -> StateAnswer:
        """The state of a share partition, for the leader of that epoch."""
        row = messages.ReadShareGroupStateRequest.ReadStateData.PartitionData(
            partition=key.partition, leader_epoch=leader_epoch
        )
        return await self._ask(
            key,
            lambda shard, now, ticket: shard.read(key, leader_epoch, now, ticket),
            0,
            partial(_request, messages.ReadShareGroupStateRequest, "ReadStateData", key, row, 0),
        )

    async def write(self, write: ShareWrite, within: Within | None = None) -> StateAnswer:
        """Persist what has changed of a share partition, once the transaction is committed if it is part of one."""
        kind = messages.WriteShareGroupStateRequest.WriteStateData.PartitionData
        row = kind(
            partition=write.key.partition,
            state_epoch=write.state_epoch,
            leader_epoch=write.leader_epoch,
            start_offset=write.start,
            delivery_complete_count=write.complete,
            state_batches=[
                kind.StateBatch(first_offset=first, last_offset=last, delivery_state=int(state), delivery_count=count)
                for first, last, state, count in write.batches
            ],
        )
        return await self._ask(
            write.key,
            lambda shard, now, ticket: shard.write(write, now, ticket),
            1,
            partial(_write_request, write.key, row, within),
            None if within is None else partial(self.write_here, write, within),
        )

    async def write_here(self, write: ShareWrite, within: Within) -> StateAnswer:
        """The same by this broker, as the share coordinator: its partition joins the transaction first."""
        name = coordinator_key(write.key)
        error, host = self._runtime.host_for(name)
        if host is None:
            return StateAnswer(error)
        place = TopicPartition(SHARE_STATE_TOPIC, self._runtime.partition_for(name))
        places = {place: (host.partition.log.producers, -1)}
        admitted = await admit(
            self._ask_transaction, self._clock, within.transactional_id, within.producer, places, add=True
        )
        error, guard = admitted[place]
        if error is not ErrorCode.NONE:
            return StateAnswer(error)

        def command(shard: ShareShard, now: Now, ticket: Ticket) -> Result:
            return shard.write(write, now, ticket, within.producer)

        answer = await answer_of(self._runtime.submit(name, command, deadline_ms=CALL_MS, guard=guard))
        return StateAnswer(answer.error) if isinstance(answer, CommandFailed) else answer

    async def initialize(self, key: ShareKey, state_epoch: int, start: int) -> StateAnswer:
        """A new state epoch: the share partition begins at this offset, and leaders of the epoch before are fenced."""
        row = messages.InitializeShareGroupStateRequest.InitializeStateData.PartitionData(
            partition=key.partition, state_epoch=state_epoch, start_offset=start
        )
        return await self._ask(
            key,
            lambda shard, now, ticket: shard.initialize(key, state_epoch, start, now, ticket),
            0,
            partial(_request, messages.InitializeShareGroupStateRequest, "InitializeStateData", key, row, 0),
        )

    async def summary(self, key: ShareKey) -> StateAnswer:
        """How far it is, without its batches."""
        row = messages.ReadShareGroupStateSummaryRequest.ReadStateSummaryData.PartitionData(partition=key.partition)
        return await self._ask(
            key,
            lambda shard, now, ticket: Result(StateAnswer(ErrorCode.NONE, shard.summary(key))),
            1,
            partial(_request, messages.ReadShareGroupStateSummaryRequest, "ReadStateSummaryData", key, row, 1),
        )

    async def delete(self, key: ShareKey) -> StateAnswer:
        """Forget a share partition."""
        row = messages.DeleteShareGroupStateRequest.DeleteStateData.PartitionData(partition=key.partition)
        return await self._ask(
            key,
            lambda shard, now, ticket: shard.delete(key, now, ticket),
            0,
            partial(_request, messages.DeleteShareGroupStateRequest, "DeleteStateData", key, row, 0),
        )

    async def _ask(
        self, key: ShareKey, command: Callable[[ShareShard, Now, Ticket], Result], version: int,
        request: Callable[[], Any], here: Callable[[], Awaitable[StateAnswer]] | None = None,
    ) -> StateAnswer:  # fmt: skip
        name = coordinator_key(key)

        async def submit() -> StateAnswer | CommandFailed:
            answer: StateAnswer | CommandFailed = await answer_of(
                self._runtime.submit(name, command, deadline_ms=CALL_MS)
            )
            return answer

        try:
            answer = await self._coordinators.ask(self._runtime, name, here or submit, request, version, CALL_MS)
        except PeerUnavailable as error:
            logger.info("the share coordinator of %s does not answer: %s", name[:200], error)
            return StateAnswer(ErrorCode.NETWORK_EXCEPTION)
        if isinstance(answer, CommandFailed):
            return StateAnswer(answer.error)
        return answer if isinstance(answer, StateAnswer) else _told(answer, key)


def _request(kind: Any, topic: str, key: ShareKey, row: Any, version: int) -> Any:
    rows = [getattr(kind, topic)(topic_id=uuid.UUID(bytes=key.topic_id), partitions=[row])]
    return kind(version=version, group_id=key.group_id, topics=rows)


def _write_request(key: ShareKey, row: Any, within: Within | None) -> Any:
    request = _request(messages.WriteShareGroupStateRequest, "WriteStateData", key, row, 1)
    if within is not None:
        request.transactional_id, (request.producer_id, request.producer_epoch) = within
    return request


def _told(response: Any, key: ShareKey) -> StateAnswer:
    """What a coordinator said of the only share partition that it was asked about."""
    for topic in response.results:
        for row in topic.partitions:
            if topic.topic_id is None or (topic.topic_id.bytes, row.partition) != key[1:]:
                continue
            error = ErrorCode(row.error_code)
            if error is not ErrorCode.NONE or not hasattr(row, "state_epoch"):
                return StateAnswer(error, message=row.error_message)
            batches = tuple(
                StateBatch(b.first_offset, b.last_offset, RecordState(b.delivery_state), b.delivery_count)
                for b in getattr(row, "state_batches", ())
            )
            complete, leader_epoch = getattr(row, "delivery_complete_count", -1), getattr(row, "leader_epoch", -1)
            return StateAnswer(error, ShareState(0, row.state_epoch, leader_epoch, row.start_offset, complete, batches))
    return StateAnswer(ErrorCode.UNKNOWN_SERVER_ERROR)
