"""What is done to the states of a share group from outside: looked at, begun elsewhere, forgotten (KIP-932, KIP-1226).

A change is noted at the group's coordinator first: from then on nobody joins the group, which has no members, and the
group knows of every state that it may get. So no state is left without its group, and no member has one that goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetlog.brokers.coordinators.asking import Coordinators
from fleetlog.brokers.coordinators.pending import answer_of
from fleetlog.brokers.coordinators.share_states import ShareStates
from fleetlog.brokers.groups.share import StateTopic
from fleetlog.brokers.model import TopicPartition
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.replication.positions import NO_OFFSET, ask_positions, own_position
from fleetlog.brokers.shares.coordinator import StateAnswer
from fleetlog.brokers.shares.state import ShareKey, ShareState
from fleetlog.txn.commands import CommandFailed
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
    from fleetlog.brokers.groups.lag import LogPosition
    from fleetlog.brokers.groups.shard import GroupShard
    from fleetlog.brokers.metadata.cache import MetadataCache
    from fleetlog.brokers.replication.replicas import ReplicaManager

TOGETHER = 50
"""States of a group that are asked for at a time."""
ASK_MS = 5_000
"""How long a group's coordinator has to say whether the group has a topic."""
WHOLE_S = 25.0
"""How long all states of a request have; those that were not asked for by then have timed out."""


class ShareProgress(NamedTuple):
    """How far a group is in a partition: ``start`` and ``lag`` are -1 where they are not known."""

    error: ErrorCode
    start: int = NO_OFFSET
    leader_epoch: int = 0
    lag: int = -1


class ShareOffsets:
    """See the module."""

    def __init__(
        self,
        broker_id: int,
        groups: CoordinatorRuntime[GroupShard],
        states: ShareStates,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        peers: PeersPort,
    ) -> None:
        self._broker_id = broker_id
        self._groups = groups
        self._states = states
        self._metadata = metadata
        self._replicas = replicas
        self._peers = peers
        self._coordinators = Coordinators(broker_id, metadata, peers)
        self.changed: set[str] = set()
        """Groups whose states were changed, for who looks at them now and then, and takes out what it looks at."""

    # --- looking ------------------------------------------------------------------------------------------------

    async def described(self, wanted: Mapping[ShareKey, TopicPartition]) -> dict[ShareKey, ShareProgress]:
        """Start and lag of each: what is not finished of the log, also what was delivered and not acknowledged."""
        answers = await self.summaries(wanted)
        begun = {key: answer.state for key, answer in answers.items() if answer.state.start != NO_OFFSET}
        ends = await self._ends({wanted[key] for key in begun})
        told = {}
        for key, answer in answers.items():
            state = answer.state
            lag = unfinished(state, ends.get(wanted[key])) if key in begun else -1
            told[key] = ShareProgress(answer.error, state.start, max(state.leader_epoch, 0), lag)
        return told

    async def subscribed(self, group_id: str, topic: str) -> bool:
        """Whether the group has the topic, as its coordinator knows it, so that its states go with the group."""
        info = self._metadata.topics.get(topic)
        if info is None:
            return False

        async def here() -> bool:
            _, shard = self._groups.shard_for(group_id)
            group = shard.shares.get(group_id) if shard is not None else None
            return group is not None and info.id.bytes in group.states

        request = messages.ShareGroupDescribeRequest(
            version=1, group_ids=[group_id], include_authorized_operations=False
        )
        try:
            answer = await self._coordinators.ask(self._groups, group_id, here, lambda: request, 1, ASK_MS)
        except PeerUnavailable:
            return False
        if isinstance(answer, bool | CommandFailed):
            return answer is True
        (told,) = answer.groups
        if told.error_code in (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
            return True  # brokers need no right to describe groups
        return any(topic in member.subscribed_topic_names for member in told.members)

    async def summaries(self, keys: Iterable[ShareKey]) -> dict[ShareKey, StateAnswer]:
        """What the share coordinators have of them."""
        return await _each(keys, self._states.summary)

    async def _ends(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, LogPosition]:
        by_leader: dict[int, list[tuple[TopicPartition, int]]] = {}
        for tp in wanted:
            state = self._metadata.partition(tp)
            if state is not None and state.leader >= 0:
                by_leader.setdefault(state.leader, []).append((tp, NO_OFFSET))
        answers = await asyncio.gather(*(self._asked(leader, asked) for leader, asked in by_leader.items()))
        return {tp: position for answer in answers for (tp, _), position in answer.items()}

    async def _asked(self, leader: int, asked: list[tuple[TopicPartition, int]]) -> dict[Any, LogPosition]:
        if leader == self._broker_id:
            own = {pair: own_position(*pair, self._replicas) for pair in asked}
            return {pair: position for pair, position in own.items() if not isinstance(position, ErrorCode)}
        try:
            return await ask_positions(self._peers, leader, asked)
        except PeerUnavailable:
            return {}

    # --- changing -----------------------------------------------------------------------------------------------

    async def alter(
        self, group_id: str, topics: Mapping[bytes, StateTopic], starts: Mapping[ShareKey, int]
    ) -> ErrorCode | dict[ShareKey, StateAnswer]:
        """Begin anew at these offsets, of a group without members. An error for all, or what came of each."""
        error = await self._begin(group_id, topics)
        if error is not ErrorCode.NONE:
            return error
        try:
            return await _each(starts, lambda key: self._begun(key, starts[key]))
        finally:
            await self._end(group_id, ())

    async def _begun(self, key: ShareKey, start: int) -> StateAnswer:
        known = await self._states.summary(key)
        if known.error is not ErrorCode.NONE:
            return known
        return await self._states.initialize(key, known.state.state_epoch + 1, start)

    async def forget(
        self, group_id: str, topics: Mapping[bytes, StateTopic]
    ) -> ErrorCode | dict[ShareKey, StateAnswer]:
        """Forget what is persisted of topics. An error for all, or what came of each share partition."""
        error = await self._begin(group_id, {})
        if error is not ErrorCode.NONE:
            return error
        gone: set[bytes] = set()
        try:
            answers = await _each(_keys(group_id, topics), self._states.delete)
            gone = set(topics) - {key.topic_id for key, one in answers.items() if one.error is not ErrorCode.NONE}
            return answers
        finally:
            await self._end(group_id, gone)

    async def delete(self, group_id: str, topics: Mapping[bytes, StateTopic]) -> ErrorCode:
        """Delete the group, its states first: a later group of the name begins anew."""
        error = await self._begin(group_id, {})
        if error is not ErrorCode.NONE:
            return error
        try:
            answers = await _each(_keys(group_id, topics), self._states.delete)
            failed = [one.error for one in answers.values() if one.error is not ErrorCode.NONE]
            if failed:
                return failed[0]
            return await self._told(
                self._groups.submit(group_id, lambda shard, now, ticket: shard.delete_group(group_id, now, ticket))
            )
        finally:
            await self._end(group_id, ())

    async def _begin(self, group_id: str, topics: Mapping[bytes, StateTopic]) -> ErrorCode:
        return await self._told(
            self._groups.submit(
                group_id, lambda shard, now, ticket: shard.begin_share_change(group_id, topics, now, ticket)
            )
        )

    def _end(self, group_id: str, gone: Collection[bytes]) -> Awaitable[Any]:
        """It is submitted at once, so also for a task that is cancelled while it waits for the answer."""
        self.changed.add(group_id)
        return answer_of(
            self._groups.submit(
                group_id, lambda shard, now, ticket: shard.end_share_change(group_id, gone, now, ticket)
            )
        )

    async def _told(self, pending: Any) -> ErrorCode:
        answer = await answer_of(pending)
        return answer.error if isinstance(answer, CommandFailed) else ErrorCode(answer)


def _keys(group_id: str, topics: Mapping[bytes, StateTopic]) -> list[ShareKey]:
    return [ShareKey(group_id, topic_id, index) for topic_id, one in topics.items() for index in range(one.partitions)]


def unfinished(state: ShareState, position: LogPosition | None) -> int:
    """Records from the start to the log's end that have not reached their end; -1 if that is not known.

    At most what the log still has: which of the finished ones it has no more is not told.
    """
    if position is None or state.start == NO_OFFSET or state.complete < 0:
        return -1
    return max(0, min(position.end - state.start - state.complete, position.end - position.start))


async def _each(
    keys: Iterable[ShareKey], ask: Callable[[ShareKey], Awaitable[StateAnswer]]
) -> dict[ShareKey, StateAnswer]:
    """The answers, asked for some at a time, as long as there is time."""
    loop, every = asyncio.get_running_loop(), list(keys)
    answers = dict.fromkeys(every, StateAnswer(ErrorCode.REQUEST_TIMED_OUT))
    until = loop.time() + WHOLE_S
    for first in range(0, len(every), TOGETHER):
        if loop.time() >= until:
            break
        some = every[first : first + TOGETHER]
        answers.update(zip(some, await asyncio.gather(*map(ask, some)), strict=True))
    return answers
