"""One partition of ``__consumer_offsets`` as a pure state machine: the groups that hash to it.

Commands return a :class:`~txn.commands.Result`; logged state changes in :meth:`GroupShard.apply` only. Timers:
``session`` per member, ``join`` and ``sync`` per group, ``sweep`` per shard, ``expire`` per group (a sweep only names
candidates, so that a group's expiry queues behind a commit that is being replicated), ``rebalance`` per group that was
one of the consumer protocol, and those of ``groups.consumer``.

A group of the consumer protocol is in :attr:`GroupShard.consumers`, and only its committed offsets in ``groups``. A
share group is in :attr:`GroupShard.shares` alone: it has no committed offsets, and stays until it is deleted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping

from fleetlog.brokers.groups import classic, offsets, records, share
from fleetlog.brokers.groups.consumer import group as consumers
from fleetlog.brokers.groups.consumer import migration
from fleetlog.brokers.groups.consumer.group import Beat, BeatAnswer, BeatRefused, ConsumerGroup, Picture
from fleetlog.brokers.groups.member_memory import MemberRoom
from fleetlog.brokers.groups.members import (
    CONSUMER_PROTOCOL_TYPE,
    MEMBER_BYTES,
    Group,
    GroupState,
    Turn,
    coordinator_error,
    held_by,
    parse_timer,
    timer_name,
)
from fleetlog.brokers.groups.requests import (
    ConsumerSettings,
    Description,
    FetchedOffset,
    FetchRequest,
    GroupSettings,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    Leaver,
    Listing,
    OffsetCommitRequest,
    ShareSettings,
    SyncAnswer,
    SyncRequest,
)
from fleetlog.brokers.groups.share import ShareGroup, StateTopic
from fleetlog.brokers.metrics.registry import Histogram
from fleetlog.txn.commands import METRIC_ROWS, CoordinatorRecord, Now, Result, Schedule, Ticket
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

logger = logging.getLogger(__name__)

RETRY_MS = 500
"""After so long a timer's work is tried again whose records could not be appended."""
MAX_FLEETING_GROUPS = 10_000
"""The most groups of a shard that exist only for a requested member id: clients control their number."""
MAX_SHARE_GROUPS = 10_000
"""The most share groups of a shard: they do not expire."""


class GroupShard:
    """The groups of one partition. Implements :class:`txn.commands.Shard`."""

    def __init__(
        self,
        partition: int,
        settings: GroupSettings,
        room: MemberRoom | None = None,
        rebalances: Histogram | None = None,
    ) -> None:
        self.partition = partition
        self.settings = settings
        self.room = MemberRoom(settings.members_max_bytes) if room is None else room
        self.room.share(self)
        self.rebalances = Histogram() if rebalances is None else rebalances
        """Their seconds: from the first member that has to join again until the new generation is in the log."""
        self.groups: dict[str, Group] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self.shares: dict[str, ShareGroup] = {}
        self.skipped: Counter[str] = Counter()
        """Skipped records by kind: newer key versions, newer value versions, corrupt ones."""
        self._sequence = 0
        self._open: dict[int, dict[str, None]] = {}
        self._fleeting: dict[str, None] = {}
        self._ended: str | None = None
        """The group of the consumer protocol whose end was the last record of one."""

    # --- commands -----------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, now: Now, ticket: Ticket, picture: Picture) -> Result:
        """JoinGroup; answers :class:`JoinAnswer`, mostly deferred."""
        if not (
            self.settings.min_session_timeout_ms <= request.session_timeout_ms <= self.settings.max_session_timeout_ms
        ):
            return Result(response=JoinAnswer(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id))
        if request.group_id in self.shares:
            return Result(response=JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        group = self.groups.get(request.group_id)
        size = held_by(request)
        if size > self.settings.member_max_bytes or len(request.protocols) > classic.MAX_PROTOCOLS:
            logger.warning(
                "group %s: JoinGroup of client %s rejected: %d protocols and %d bytes, above the limits of %d and %d "
                "(group.member.max.bytes)",
                request.group_id[:100], request.client_id[:100], len(request.protocols), size, classic.MAX_PROTOCOLS,
                self.settings.member_max_bytes,
            )  # fmt: skip
            return Result(response=JoinAnswer(ErrorCode.INVALID_REQUEST, request.member_id))
        consumer = self.consumers.get(request.group_id)
        only_an_id = request.requires_known_member_id and not request.member_id and request.instance_id is None
        if consumer is not None and consumer.members:
            fresh = request.member_id not in consumer.members and not only_an_id
            if fresh and not self.room.take(size, now.mono_ms):
                return Result(response=JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id))
            return migration.classic_joins(consumer, request, picture, Turn(now, ticket), self.settings.consumer)
        if consumer is not None and not request.member_id:  # it becomes a classic group; then the member joins
            answer = JoinAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return Result(response=answer, records=tuple(consumers.tombstones(consumer)))
        known = group.members.get(request.member_id) if group is not None else None
        more = MEMBER_BYTES if only_an_id else max(0, size - (known.size if known is not None else 0))
        if not self.room.take(more, now.mono_ms):
            return Result(response=JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id))
        if group is None:
            if request.member_id:
                return Result(response=JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            if len(self._fleeting) >= MAX_FLEETING_GROUPS:
                return Result(response=JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            group = Group(request.group_id)
        result = classic.join(group, request, Turn(now, ticket), self.settings)
        if not group.disposable and group.id not in self.groups:
            self.groups[group.id] = group
            self._fleeting[group.id] = None
        return result

    def disconnected(self, group_id: str, member_id: str, now: Now, ticket: Ticket) -> Result:
        """The connection of a joined member has closed; answers an error code."""
        group = self.groups.get(group_id) or Group(group_id)
        return classic.disconnected(group, member_id, Turn(now, ticket))

    def abandoned(self, group_id: str, join_ticket: Ticket, now: Now, ticket: Ticket) -> Result:
        """The connection of a waiting JoinGroup has closed; answers an error code."""
        group = self.groups.get(group_id) or Group(group_id)
        return classic.abandoned(group, join_ticket, Turn(now, ticket))

    def member_bytes(self) -> int:
        """The memory of the members of these groups and of the assigned ids, in bytes."""
        classic_bytes = sum(
            sum(member.size for member in group.members.values()) + sum(map(len, group.pending_members))
            for group in self.groups.values()
        )
        share_bytes = sum(group.size for group in self.shares.values())
        return classic_bytes + share_bytes + sum(group.size for group in self.consumers.values())

    def consumer_heartbeat(
        self, beat: Beat, picture: Picture, settings: ConsumerSettings, now: Now, ticket: Ticket
    ) -> Result:
        """ConsumerGroupHeartbeat; answers :class:`BeatAnswer`."""
        turn = Turn(now, ticket)
        try:
            group = self._consumer_group(beat, picture, turn, settings)
            self._admit(group, beat, settings, now)
            result = consumers.consumer_heartbeat(group, beat, picture, turn, settings)
        except BeatRefused as refused:
            return Result(response=BeatAnswer(refused.error, str(refused)))
        result.failed = lambda error, now: Result(response=BeatAnswer(coordinator_error(error)))
        return result

    def consumer_rests(
        self, group_id: str, member_id: str, epoch: int, instance_id: str | None, client: tuple[str, str],
        picture: Picture,
    ) -> bool:  # fmt: skip
        """Whether a heartbeat that says no more than this has no effect but to begin the member's session anew."""
        group = self.consumers.get(group_id)
        return group is not None and consumers.rests(group, member_id, epoch, instance_id, client, picture)

    def consumer_moves_alone(self, beat: Beat, picture: Picture, settings: ConsumerSettings) -> bool:
        """Whether the heartbeat changes at most what its own member has, or adds it."""
        group = self.consumers.get(beat.group_id)
        return group is not None and consumers.moves_alone(group, beat, picture, settings)

    def _consumer_group(self, beat: Beat, picture: Picture, turn: Turn, settings: ConsumerSettings) -> ConsumerGroup:
        """The group, or a new one: a classic group becomes it with its members, an empty one gives way to it."""
        group = self.consumers.get(beat.group_id)
        if group is not None:
            return group
        if beat.group_id in self.shares:
            raise BeatRefused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {beat.group_id} is not a consumer group.")
        classic_group = self.groups.get(beat.group_id)
        if beat.epoch != consumers.JOINS:
            raise BeatRefused(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {beat.group_id} not found.")
        if classic_group is not None:
            if classic_group.state is not GroupState.EMPTY:
                return migration.upgrade(classic_group, picture, turn, settings)
            if classic_group.durable is not None or classic_group.pending_members:
                turn.records.append(records.group_tombstone(beat.group_id))
        return ConsumerGroup(beat.group_id)

    def _admit(self, group: ConsumerGroup, beat: Beat, settings: ConsumerSettings, now: Now) -> None:
        """Raises BeatRefused for what the coordinator cannot take."""
        if beat.assignor is not None and beat.assignor not in settings.assignors:
            text = f"The assignor {beat.assignor} is not one of {', '.join(settings.assignors)}."
            raise BeatRefused(ErrorCode.UNSUPPORTED_ASSIGNOR, text)
        if beat.topics is None and beat.regex is None and beat.member_id in group.members:
            return
        self._make_room(beat, now)

    def _make_room(self, beat: Beat, now: Now) -> None:
        """Raises BeatRefused where there is none for what the member says."""
        if beat.held > self.settings.member_max_bytes:
            raise BeatRefused(ErrorCode.INVALID_REQUEST, "The subscription is above group.member.max.bytes.")
        if beat.epoch == consumers.JOINS and not self.room.take(beat.held, now.mono_ms):
            raise BeatRefused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "The members of all groups are at group.members.max.bytes."
            )

    def share_heartbeat(
        self, beat: Beat, picture: Picture, settings: ShareSettings, now: Now, ticket: Ticket
    ) -> Result:
        """ShareGroupHeartbeat; answers :class:`BeatAnswer`."""
        group = self.shares.get(beat.group_id)
        try:
            if group is None:
                if beat.epoch != consumers.JOINS or beat.group_id in self.groups or beat.group_id in self.consumers:
                    raise BeatRefused(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {beat.group_id} not found.")
                if len(self.shares) >= MAX_SHARE_GROUPS:
                    raise BeatRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "There are too many share groups.")
                group = ShareGroup(beat.group_id)
            if beat.topics is not None or beat.member_id not in group.members:
                self._make_room(beat, now)
            result = share.share_heartbeat(group, beat, picture, Turn(now, ticket), settings)
        except BeatRefused as refused:
            return Result(response=BeatAnswer(refused.error, str(refused)))
        result.failed = lambda error, now: Result(response=BeatAnswer(coordinator_error(error)))
        return result

    def begin_share_change(self, group_id: str, added: Mapping[bytes, StateTopic], now: Now, ticket: Ticket) -> Result:
        """A change of the offsets of a share group without members begins; answers an error code."""
        group = self.shares.get(group_id)
        if group is None:
            return Result(response=ErrorCode.GROUP_ID_NOT_FOUND)
        turn = Turn(now, ticket)
        error = share.begin_change(group, added, turn)
        result = turn.result(error)
        if error is ErrorCode.NONE:
            result.failed = lambda code, now: self._change_failed(group, code)
        return result

    def _change_failed(self, group: ShareGroup, code: ErrorCode) -> Result:
        group.changing = False
        return Result(response=coordinator_error(code))

    def end_share_change(self, group_id: str, forgotten: Collection[bytes], now: Now, ticket: Ticket) -> Result:
        """It has ended, and of ``forgotten`` topics there are no states any more; answers an error code."""
        group, turn = self.shares.get(group_id), Turn(now, ticket)
        if group is not None:
            share.end_change(group, forgotten, turn)
        return turn.result(ErrorCode.NONE)

    def sync(self, request: SyncRequest, now: Now, ticket: Ticket, picture: Picture) -> Result:
        """SyncGroup; answers :class:`SyncAnswer`, deferred until the leader's comes."""
        consumer = self.consumers.get(request.group_id)
        if consumer is not None:
            return migration.classic_syncs(consumer, request, picture, Turn(now, ticket), self.settings.consumer)
        group = self.groups.get(request.group_id)
        if group is None:
            return Result(response=SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        return classic.sync(group, request, Turn(now, ticket), self.settings)

    def heartbeat(self, request: HeartbeatRequest, now: Now, ticket: Ticket, picture: Picture) -> Result:
        """Heartbeat; answers an error code."""
        consumer = self.consumers.get(request.group_id)
        if consumer is not None:
            return migration.classic_beats(consumer, request, picture, Turn(now, ticket), self.settings.consumer)
        group = self.groups.get(request.group_id)
        if group is None:
            return Result(response=ErrorCode.UNKNOWN_MEMBER_ID)
        return classic.heartbeat(group, request, Turn(now, ticket))

    def leave(self, group_id: str, leavers: tuple[Leaver, ...], now: Now, ticket: Ticket, picture: Picture) -> Result:
        """LeaveGroup; answers :class:`LeaveAnswer`."""
        consumer = self.consumers.get(group_id)
        if consumer is not None:
            return migration.classics_leave(consumer, leavers, picture, Turn(now, ticket), self.settings.consumer)
        group = self.groups.get(group_id)
        if group is None:
            unknown = tuple((leaver, ErrorCode.UNKNOWN_MEMBER_ID) for leaver in leavers)
            return Result(response=LeaveAnswer(ErrorCode.NONE, unknown))
        result = classic.leave(group, leavers, Turn(now, ticket), self.settings)
        self._dispose(group)
        return result

    def commit(self, request: OffsetCommitRequest, now: Now, ticket: Ticket) -> Result:
        """OffsetCommit; answers a dict of error codes."""
        if request.group_id in self.shares:
            return Result(response=dict.fromkeys((tp for tp, _ in request.offsets), ErrorCode.GROUP_ID_NOT_FOUND))
        consumer = self.consumers.get(request.group_id)
        if consumer is not None:
            return offsets.commit_as_member(consumer, request, None, Turn(now, ticket), self.settings)
        return offsets.commit_offsets(self.groups.get(request.group_id), request, Turn(now, ticket), self.settings)

    def commit_transactional(
        self, request: OffsetCommitRequest, producer: tuple[int, int], now: Now, ticket: Ticket
    ) -> Result:
        """TxnOffsetCommit by (producer id, epoch); answers a dict of error codes."""
        turn = Turn(now, ticket)
        if request.group_id in self.shares:
            return Result(response=dict.fromkeys((tp for tp, _ in request.offsets), ErrorCode.GROUP_ID_NOT_FOUND))
        consumer = self.consumers.get(request.group_id)
        if consumer is not None:
            return offsets.commit_as_member(consumer, request, producer, turn, self.settings)
        return offsets.commit_transactional(self.groups.get(request.group_id), request, producer, turn, self.settings)

    def fetch(self, request: FetchRequest) -> tuple[FetchedOffset, ...]:
        """OffsetFetch for one group: a plain read."""
        return offsets.fetch(self.groups.get(request.group_id), request)

    def delete_offsets(self, group_id: str, partitions: tuple[TopicPartition, ...], now: Now, ticket: Ticket) -> Result:
        """OffsetDelete; answers an error code for the group, or a dict of them."""
        return offsets.delete_offsets(
            self.groups.get(group_id), self.consumers.get(group_id), partitions, Turn(now, ticket)
        )

    def delete_group(self, group_id: str, now: Now, ticket: Ticket) -> Result:
        """DeleteGroups for one group; answers an error code."""
        shares = self.shares.get(group_id)
        if shares is not None:
            if shares.members:
                return Result(response=ErrorCode.NON_EMPTY_GROUP)
            return Result(ErrorCode.NONE, tuple(share.share_tombstones(shares)))
        return offsets.delete_group(self.groups.get(group_id), self.consumers.get(group_id), Turn(now, ticket))

    def forget_topics(self, group_id: str, topics: Mapping[str, Container[bytes]], now: Now, ticket: Ticket) -> Result:
        """Drop the group's offsets of deleted topics, given with their ids; answers an error code."""
        turn = Turn(now, ticket)
        group = self.groups.get(group_id)
        if group is not None:
            offsets.delete_topic_offsets(group, topics, turn)
        return turn.result(ErrorCode.NONE)

    def describe(self, group_id: str) -> Description:
        """DescribeGroups for one group; an unknown one is Dead with GROUP_ID_NOT_FOUND."""
        group, other = self.groups.get(group_id), group_id in self.consumers or group_id in self.shares
        if group is None or other:
            message = f"Group {group_id} is not a classic group." if other else f"Group {group_id} not found."
            return Description(ErrorCode.GROUP_ID_NOT_FOUND, group_id, GroupState.DEAD.value, message=message)
        return group.describe()

    def listing(self) -> list[Listing]:
        """ListGroups."""
        classic_groups = (group for group in self.groups.values() if group.id not in self.consumers)
        return [
            *(Listing(g.id, g.protocol_type or "", g.state.value) for g in classic_groups),
            *(Listing(g.id, CONSUMER_PROTOCOL_TYPE, g.state, "consumer") for g in self.consumers.values()),
            *(Listing(g.id, "share", g.state, "share") for g in self.shares.values()),
        ]

    def groups_with_topics(self, topics: Container[str]) -> list[str]:
        """Groups with committed offsets of these topics (in open transactions too)."""
        return [
            group.id
            for group in self.groups.values()
            if any(p.topic in topics for p in group.offsets)
            or any(p.topic in topics for pending in group.pending_offsets.values() for p in pending)
        ]

    # --- the log ------------------------------------------------------------------------------------------------

    def apply(self, record: CoordinatorRecord, producer: tuple[int, int] | None, now: Now) -> None:
        """Apply one record; newer versions and corrupt records are counted and skipped."""
        try:
            key = records.decode_group_key(record.key)
            if isinstance(key, records.OffsetKey):
                self._apply_offset(key, record.value, producer)
            elif isinstance(key, records.GroupKey):
                self._apply_group(key, record.value, now)
            elif isinstance(key, records.ConsumerKey):
                (self._apply_share if isinstance(key.kind, records.ShareKind) else self._apply_consumer)(
                    key, record.value
                )
            else:
                self.skipped[f"key {key.version}"] += 1
        except records.BadRecord:
            self.skipped["damaged"] += 1

    def _apply_offset(self, key: records.OffsetKey, value: bytes | None, producer: tuple[int, int] | None) -> None:
        if value is None:
            group = self.groups.get(key.group_id)
            if group is not None:
                group.offsets.pop(key.partition, None)
                for producer_id in [p for p, pending in group.pending_offsets.items() if key.partition in pending]:
                    self._drop_pending(group, producer_id, key.partition)
            return  # a group without its last offset stays listed until the next sweep
        committed = records.decode_offset(value)
        if committed is None:
            self.skipped["offset value"] += 1
            return
        group = self.groups.setdefault(key.group_id, Group(key.group_id))
        self._fleeting.pop(group.id, None)
        self._sequence += 1
        group.commits += 1
        if producer is None:
            group.offsets[key.partition] = (self._sequence, committed)
            return
        group.pending_offsets.setdefault(producer[0], {})[key.partition] = (self._sequence, committed)
        self._open.setdefault(producer[0], {})[group.id] = None

    def _drop_pending(self, group: Group, producer_id: int, partition: TopicPartition) -> None:
        pending = group.pending_offsets[producer_id]
        del pending[partition]
        if not pending:
            del group.pending_offsets[producer_id]
            groups = self._open[producer_id]
            del groups[group.id]
            if not groups:
                del self._open[producer_id]

    def _apply_group(self, key: records.GroupKey, value: bytes | None, now: Now) -> None:
        if value is None:
            group = self.groups.get(key.group_id)
            if group is not None:
                group.end()
                self._dispose(group)
            return
        stored = records.decode_group(value)
        if stored is None:
            self.skipped["group value"] += 1
            return
        self._fleeting.pop(key.group_id, None)
        # as in Kafka the later record counts: a coordinator that skips the others has made it a classic group
        self.consumers.pop(key.group_id, None)
        group = self.groups.setdefault(key.group_id, Group(key.group_id))
        group.adopt(stored)
        group.was_consumer = bool(stored.members) and self._ended == group.id
        self._ended = None
        if group.rebalancing_since_ms is not None:
            self.rebalances.observe(max(0, now.mono_ms - group.rebalancing_since_ms) / 1000)
            group.rebalancing_since_ms = None

    def _apply_consumer(self, key: records.ConsumerKey, value: bytes | None) -> None:
        group = self.consumers.get(key.group_id)
        if group is None:
            if value is None:
                return
            group = ConsumerGroup(key.group_id)
        if not group.apply(key, value):
            self.skipped[f"key {int(key.kind)} value"] += 1
        if group.disposable:
            self.consumers.pop(group.id, None)
            self._ended = group.id
            if group.id in self.groups:
                self._dispose(self.groups[group.id])
        else:
            self.consumers[group.id] = group

    def _apply_share(self, key: records.ConsumerKey, value: bytes | None) -> None:
        group = self.shares.get(key.group_id)
        if group is None:
            if value is None:
                return
            group = ShareGroup(key.group_id)
        if not group.apply(key, value):
            self.skipped[f"key {int(key.kind)} value"] += 1
        if group.disposable:
            self.shares.pop(group.id, None)
        else:
            self.shares[group.id] = group

    def apply_marker(self, producer_id: int, producer_epoch: int, commit: bool, now: Now) -> Result | None:
        """End the producer's transaction: commit or drop its offsets.

        An offset committed later in the log, outside the transaction, overrides the transaction's.
        """
        for group_id in self._open.pop(producer_id, {}):
            group = self.groups[group_id]
            for partition, pending in group.pending_offsets.pop(producer_id).items():
                present = group.offsets.get(partition)
                if commit and (present is None or present[0] < pending[0]):
                    group.offsets[partition] = pending
            self._dispose(group)
        return None

    def loaded(self, now: Now) -> Result:
        """Restart all sessions and the sweep; a group above the size limit must rebalance."""
        turn = Turn(now)
        self._dispose_all()
        for group in self.groups.values():
            for member in group.members.values():
                turn.keep_alive(group, member)
            if group.was_consumer or len(group.members) > self.settings.max_size:
                group.was_consumer = False
                classic.prepare_rebalance(group, turn, self.settings)
        for consumer in list(self.consumers.values()):
            consumer.loaded(turn, self.settings.consumer)
            if consumer.disposable:
                del self.consumers[consumer.id]
        for shares in list(self.shares.values()):
            shares.loaded(turn, self.settings.share)
            if shares.disposable:
                del self.shares[shares.id]
        turn.effects.append(self._sweep())
        return turn.result()

    # --- timers -------------------------------------------------------------------------------------------------

    def on_timer(self, name: str, now: Now) -> Result:
        """Handle a due timer."""
        kind, group_id, member_id = parse_timer(name)
        turn = Turn(now)
        if kind == "sweep":
            self._dispose_all()
            names = {group.id: None for group in self.groups.values() if self._may_expire(group)}
            names.update((group.id, None) for group in self.consumers.values() if not group.members)
            turn.effects += [Schedule(timer_name("expire", name), 0) for name in names]
            turn.effects.append(self._sweep())
            return turn.result()
        group, consumer, shares = self.groups.get(group_id), self.consumers.get(group_id), self.shares.get(group_id)
        if kind == share.SHARE_TIMER and shares is not None and member_id in shares.members:
            share.remove_share_members(shares, [shares.members[member_id]], turn)
            result = turn.result()
            result.failed = lambda error, now: Result(effects=(Schedule(name, RETRY_MS),))
            return result
        if kind == "expire" and (group is not None or consumer is not None):
            offsets.expire(group or Group(group_id), consumer, turn, self.settings)
        elif kind in consumers.TIMERS and consumer is not None:
            consumers.on_timer(consumer, kind, member_id, turn, self.settings.consumer)
            result = turn.result()
            result.failed = lambda error, now: Result(effects=(Schedule(name, RETRY_MS),))
            return result
        if group is None:
            return turn.result()
        if kind == "session":
            classic.on_session_timer(group, member_id, turn, self.settings)
        elif kind == "join":
            classic.on_join_timer(group, turn, self.settings)
        elif kind == "sync":
            classic.on_sync_timer(group, turn, self.settings)
        elif kind == "rebalance" and group.was_consumer:
            group.was_consumer = False
            for member in group.members.values():
                turn.keep_alive(group, member)
            classic.prepare_rebalance(group, turn, self.settings)
        self._dispose(group)
        return turn.result()

    def _may_expire(self, group: Group) -> bool:
        return bool(group.offsets) or (group.state is GroupState.EMPTY and group.durable is not None)

    def _sweep(self) -> Schedule:
        return Schedule(timer_name("sweep", ""), self.settings.offsets_retention_check_interval_ms)

    def on_markers_written(self, transactional_id: str, producer_id: int, producer_epoch: int, now: Now) -> Result:
        """Never called on a group shard: only transaction coordinators write markers."""
        raise AssertionError("a group shard has no transactions of its own")

    def timer_key(self, name: str) -> str:
        """The group's id; empty for the sweep, which only reads."""
        return parse_timer(name)[1]

    def metric_parts(self) -> Iterator[Mapping[str, float]]:
        """Groups by state, members, offsets, open transactions, skipped records, to be added up."""
        yield {
            **{f"groups_{state.value}": 0.0 for state in GroupState if state is not GroupState.DEAD},
            **{f"groups_{state}": 0.0 for state in consumers.MOVING},
            "groups": float(len(self.groups.keys() | self.consumers.keys()) + len(self.shares)), "offsets": 0.0,
            "open_transactions": float(len(self._open)),
            "skipped_records": float(sum(self.skipped.values())),
        }  # fmt: skip
        every = list(self.groups.values())
        for begin in range(0, len(every), METRIC_ROWS):
            some = every[begin : begin + METRIC_ROWS]
            counts: Counter[str] = Counter(
                f"groups_{one.state.value}"
                for one in some
                if one.state is not GroupState.DEAD and one.id not in self.consumers
            )
            counts["members"] = sum(len(one.members) for one in some)
            counts["offsets"] = sum(len(one.offsets) for one in some)
            yield counts
        for consumer in list(self.consumers.values()):
            yield {f"groups_{consumer.state}": 1.0, "members": float(len(consumer.members))}
        for shares in list(self.shares.values()):
            yield {f"groups_{shares.state}": 1.0, "members": float(len(shares.members))}

    def longest_rebalances_ms(self, now_ms: int) -> Iterator[int]:
        """Of one part of the groups after the other, how long the oldest rebalance under way has taken; 0: none."""
        every = list(self.groups.values())
        for begin in range(0, len(every), METRIC_ROWS):
            since = (one.rebalancing_since_ms for one in every[begin : begin + METRIC_ROWS])
            yield max((now_ms - begun_ms for begun_ms in since if begun_ms is not None), default=0)

    def _dispose_all(self) -> None:
        for group in list(self.groups.values()):
            self._dispose(group)

    def _dispose(self, group: Group) -> None:
        if group.disposable:
            self.groups.pop(group.id, None)
            self._fleeting.pop(group.id, None)
