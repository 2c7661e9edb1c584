"""The state of one classic group, and the table of its states.

``durable`` is the logged state (changed by ``adopt`` only); the rest describes the rebalance in progress and is lost
with the broker: members then rejoin.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from fleetlog.brokers.groups.records import CommittedOffset, GroupRecord, MemberRecord
from fleetlog.brokers.groups.requests import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    DescribedMember,
    Description,
    JoinedMember,
    JoinRequest,
    Protocol,
)
from fleetlog.txn.commands import Answer, Cancel, CoordinatorRecord, Effect, Now, Result, Schedule, Ticket
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupState(Enum):
    """Kafka's states of a classic group, in Kafka's spelling."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Rules(NamedTuple):
    """A state's rules: its predecessors, and the errors of a valid member's requests."""

    enters_from: frozenset[GroupState]
    heartbeat: ErrorCode
    sync: ErrorCode  # NONE: served
    commit: ErrorCode  # by a member of the present generation


_E = ErrorCode
TABLE: dict[GroupState, Rules] = {
    GroupState.EMPTY: Rules(frozenset({GroupState.PREPARING}), _E.UNKNOWN_MEMBER_ID, _E.UNKNOWN_MEMBER_ID, _E.NONE),
    GroupState.PREPARING: Rules(
        frozenset({GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING}),
        _E.REBALANCE_IN_PROGRESS,
        _E.REBALANCE_IN_PROGRESS,
        _E.NONE,
    ),
    GroupState.COMPLETING: Rules(frozenset({GroupState.PREPARING}), _E.NONE, _E.NONE, _E.REBALANCE_IN_PROGRESS),
    GroupState.STABLE: Rules(frozenset({GroupState.COMPLETING}), _E.NONE, _E.NONE, _E.NONE),
    GroupState.DEAD: Rules(
        frozenset({GroupState.EMPTY, GroupState.PREPARING}),
        _E.COORDINATOR_NOT_AVAILABLE,
        _E.COORDINATOR_NOT_AVAILABLE,
        _E.COORDINATOR_NOT_AVAILABLE,
    ),
}


@dataclass(slots=True)
class GroupMember:
    """One member. ``new``: its JoinGroup is not answered yet, so it cannot send heartbeats."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignment: bytes = b""
    new: bool = False
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    deadline_ms: int = 0
    timer_at_ms: int | None = None
    settled: bool = False
    """Whether it was ever in a logged generation: it had its assignment, or can fetch it."""
    gone: bool = False
    """Whether its connection closed before it was settled, without a request since."""
    size: int = 0
    heard: bool = True
    """Whether its protocols and times are those of its JoinGroup; else they are those of the log."""

    @classmethod
    def joining(cls, member_id: str, request: JoinRequest) -> GroupMember:
        """A new member from its JoinGroup."""
        return cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.protocols,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            size=held_by(request),
        )

    @classmethod
    def restored(cls, record: MemberRecord) -> GroupMember:
        """A member from the log, which :meth:`follow` completes."""
        return cls(record.member_id, record.instance_id, "", "", (), 0, 0, heard=False)

    def follow(self, record: MemberRecord, protocol: str | None) -> None:
        """Be as the log says, which has only the selected one of its protocols."""
        self.protocols = (Protocol(protocol, record.subscription),) if protocol is not None else ()
        self.client_id, self.client_host = record.client_id, record.client_host
        self.session_timeout_ms, self.rebalance_timeout_ms = record.session_timeout_ms, record.rebalance_timeout_ms
        self.size = len(record.subscription)

    def metadata(self, protocol: str | None) -> bytes:
        """The subscription for that protocol."""
        return next((p.metadata for p in self.protocols if p.name == protocol), b"")


MEMBER_BYTES = 500
"""The approximate size of a member without its names and subscriptions, in bytes."""


def held_by(request: JoinRequest) -> int:
    """The bytes that a member with this request uses in memory."""
    names = (request.member_id, request.instance_id, request.client_id, request.client_id, request.protocol_type)
    offers = sum(len(protocol.name) + len(protocol.metadata) + PROTOCOL_BYTES for protocol in request.protocols)
    return MEMBER_BYTES + sum(len(name) for name in names if name) + offers


PROTOCOL_BYTES = 150


class PendingMember(NamedTuple):
    """A member that got its id but has not rejoined with it (KIP-394)."""

    deadline_ms: int


@dataclass(slots=True)
class Group:
    """One group: membership, committed offsets, and offsets of open transactions (``pending_offsets``)."""

    id: str
    state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, GroupMember] = field(default_factory=dict)
    staged: dict[str, GroupMember] = field(default_factory=dict)
    pending_members: dict[str, PendingMember] = field(default_factory=dict)
    awaiting_sync: dict[str, None] = field(default_factory=dict)
    initial: bool = False
    initial_remaining_ms: int = 0
    new_member_added: bool = False
    subscribed: frozenset[str] | None = None
    durable: GroupRecord | None = None
    offsets: dict[TopicPartition, tuple[int, CommittedOffset]] = field(default_factory=dict)
    pending_offsets: dict[int, dict[TopicPartition, tuple[int, CommittedOffset]]] = field(default_factory=dict)
    commits: int = 0
    """Offsets committed since the coordinator loaded the group, and those that it found in the log."""
    rebalances: int = 0
    """Those that began since the coordinator loaded the group."""
    rebalancing_since_ms: int | None = None
    """Monotonic time at which the rebalance under way began."""
    was_consumer: bool = False
    """Whether its members have yet to rebalance since it was a group of the consumer protocol."""

    def enter(self, state: GroupState, now: Now) -> None:
        """Change the state; the transition must be in the table."""
        assert self.state in TABLE[state].enters_from, f"{self.id}: {self.state.value} -> {state.value}"
        self.state = state
        self.state_timestamp_ms = now.wall_ms
        if state is GroupState.PREPARING and self.rebalancing_since_ms is None:
            self.rebalances += 1
            self.rebalancing_since_ms = now.mono_ms

    def static_member(self, instance_id: str | None) -> GroupMember | None:
        """The member with that instance id."""
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Check the ids of a request: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (KIP-345) or NONE."""
        known = self.members.get(member_id)
        if instance_id is not None and (known is None or known.instance_id != instance_id):
            static = self.static_member(instance_id)
            if static is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if known is not None else ErrorCode.UNKNOWN_MEMBER_ID

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of the members' rebalance timeouts."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        """Whether all members have joined."""
        return not self.pending_members and all(m.join_ticket is not None for m in self.members.values())

    @property
    def disposable(self) -> bool:
        """Whether the group has no state left, in memory or in the log."""
        return not (
            self.members or self.pending_members or self.offsets or self.pending_offsets or self.durable is not None
        )

    def supports(self, protocol_type: str, protocols: Iterable[Protocol], member_id: str = "") -> bool:
        """Whether a member with these protocols fits in (INCONSISTENT_GROUP_PROTOCOL otherwise)."""
        names = {p.name for p in protocols}
        if not protocol_type or not names:
            return False
        if self.state is GroupState.EMPTY or not self.members:
            return True
        if protocol_type != self.protocol_type:
            return False
        known = self.members.get(member_id)
        if known is not None and names == {p.name for p in known.protocols}:
            return True  # unchanged, and the members always have a protocol in common
        return bool(names & self._common(self.members.values()))

    @staticmethod
    def _common(members: Iterable[GroupMember]) -> set[str]:
        offers = [{p.name for p in m.protocols} for m in members]
        return set.intersection(*offers) if offers else set()

    def select_protocol(self, members: Iterable[GroupMember] | None = None) -> str | None:
        """Each member votes for its first protocol that all members support; a tie goes to the first voter's."""
        electors = list(self.members.values() if members is None else members)
        common = self._common(electors)
        votes: dict[str, int] = {}
        for member in electors:
            choice = next((p.name for p in member.protocols if p.name in common), None)
            if choice is not None:
                votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name], default=None)

    def joined_members(self, members: Iterable[GroupMember] | None = None) -> tuple[JoinedMember, ...]:
        """The members for the leader's JoinGroup response."""
        return tuple(
            JoinedMember(m.id, m.instance_id, m.metadata(self.protocol))
            for m in (self.members.values() if members is None else members)
        )

    def record(
        self, now: Now, assignments: dict[str, bytes], members: Iterable[GroupMember] | None = None
    ) -> GroupRecord:
        """The group's record for the log."""
        return GroupRecord(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader,
            now.wall_ms,
            tuple(
                MemberRecord(
                    m.id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    m.rebalance_timeout_ms,
                    m.session_timeout_ms,
                    m.metadata(self.protocol),
                    assignments.get(m.id, b""),
                )
                for m in (self.members.values() if members is None else members)
            ),
        )

    def adopt(self, record: GroupRecord) -> None:
        """Make the logged state the present one; waiting tickets and protocols of known members stay."""
        self.durable = record
        self.was_consumer = False
        self.protocol_type = record.protocol_type or None
        self.generation = record.generation
        self.protocol = record.protocol
        self.leader = record.leader
        members: dict[str, GroupMember] = {}
        for logged in record.members:
            member = self.members.get(logged.member_id) or self.staged.get(logged.member_id)
            member = member or GroupMember.restored(logged)
            if not member.heard:
                member.follow(logged, record.protocol)
            member.assignment = logged.assignment
            member.settled = True
            members[member.id] = member
        self.members = members
        self.staged.clear()
        # Without the table: a load sets the last logged state directly.
        self.state = GroupState.STABLE if members else GroupState.EMPTY
        self.state_timestamp_ms = record.state_timestamp_ms
        self.note_subscriptions()

    def end(self) -> None:
        """What the tombstone of its record leaves: the offsets. Its members may be those of another protocol now."""
        self.durable = self.protocol_type = self.protocol = self.leader = self.subscribed = None
        self.rebalancing_since_ms = None
        self.state = GroupState.EMPTY
        self.generation = 0
        self.initial = self.was_consumer = False
        for part in (self.members, self.staged, self.pending_members, self.awaiting_sync):
            part.clear()

    def note_subscriptions(self) -> None:
        """Store the topics that the members subscribe to; None if unknown (another protocol type)."""
        self.subscribed = None
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return
        topics: set[str] = set()
        for member in self.members.values():
            subscription = subscribed_topics(member.metadata(self.protocol))
            if subscription is None:
                return
            topics |= subscription
        self.subscribed = frozenset(topics)

    def subscribes_to(self, topic: str) -> bool:
        """Whether members subscribe to the topic; unknown subscriptions count as all topics."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or not self.members:
            return False
        return self.subscribed is None or topic in self.subscribed

    def describe(self) -> Description:
        """The group for DescribeGroups: subscriptions only in a stable group, the last assignments always."""
        stable = self.state is GroupState.STABLE
        return Description(
            ErrorCode.NONE,
            self.id,
            self.state.value,
            self.protocol_type or "",
            (self.protocol or "") if stable else "",
            tuple(
                DescribedMember(
                    m.id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    m.metadata(self.protocol) if stable else b"",
                    m.assignment,
                )
                for m in self.members.values()
            ),
        )


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """Topics named in a consumer's subscription (ConsumerProtocolSubscription v0 to 3), or None if it is not one."""
    try:
        _version, count = struct.unpack_from(">hi", metadata)
        position, topics = 6, set()
        if not 0 <= count <= len(metadata):
            return None
        for _ in range(count):
            (size,) = struct.unpack_from(">h", metadata, position)
            position += 2
            if size < 0 or position + size > len(metadata):
                return None
            topics.add(metadata[position : position + size].decode())
            position += size
    except (struct.error, UnicodeDecodeError):
        return None
    return topics


class Turn:
    """The decisions of one command so far: records, effects, the answer to its own ticket."""

    __slots__ = ("effects", "now", "records", "response", "ticket")

    def __init__(self, now: Now, ticket: Ticket | None = None) -> None:
        self.now = now
        self.ticket = ticket
        self.records: list[CoordinatorRecord] = []
        self.effects: list[Effect] = []
        self.response: object = None

    def answer(self, ticket: Ticket | None, response: object) -> None:
        """Answer a waiting ticket, possibly this turn's own."""
        if ticket is None:
            return
        if ticket == self.ticket:
            self.response = response
        else:
            self.effects.append(Answer(ticket, response))

    def schedule(self, kind: str, group_id: str, delay_ms: int, member_id: str = "") -> None:
        """Set or replace a timer."""
        self.effects.append(Schedule(timer_name(kind, group_id, member_id), max(delay_ms, 0)))

    def cancel(self, kind: str, group_id: str, member_id: str = "") -> None:
        """Cancel a timer."""
        self.effects.append(Cancel(timer_name(kind, group_id, member_id)))

    def keep_alive(self, group: Group, member: GroupMember) -> None:
        """Restart the member's session. The timer is moved only if it would fire too late.

        A member that is ``gone`` is kept only by its own requests.
        """
        if member.gone:
            return
        timeout_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.new else member.session_timeout_ms
        member.deadline_ms = self.now.mono_ms + timeout_ms
        if member.timer_at_ms is None or member.timer_at_ms > member.deadline_ms:
            member.timer_at_ms = member.deadline_ms
            self.schedule("session", group.id, timeout_ms, member.id)

    def result(self, response: object = None) -> Result:
        """The command's Result; ``response`` unless the turn answered its own ticket."""
        return Result(
            response=self.response if self.response is not None else response,
            records=tuple(self.records),
            effects=tuple(self.effects),
        )


def timer_name(kind: str, group_id: str, member_id: str = "") -> str:
    """The name of a timer; it contains the length of the group id, because ids may contain any character."""
    return f"{kind}:{len(group_id)}:{group_id}{member_id}"


def parse_timer(name: str) -> tuple[str, str, str]:
    """Kind, group id and member id of a timer's name."""
    kind, size, rest = name.split(":", 2)
    return kind, rest[: int(size)], rest[int(size) :]


def coordinator_error(error: ErrorCode, too_large: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR) -> ErrorCode:
    """The client's error for a record that could not be appended; ``too_large`` for one above the size limit."""
    if error in {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR}:
        return ErrorCode.NOT_COORDINATOR
    if error in {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE}:
        return too_large
    return error
