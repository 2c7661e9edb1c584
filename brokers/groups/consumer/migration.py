"""Groups whose members use both protocols: how a classic group with members becomes one, and its classic members. Pure.

A classic member's generation is its member epoch. By REBALANCE_IN_PROGRESS it is told to join again: its JoinGroup says
what it owns and is answered at once, without a barrier or a leader; the answer to SyncGroup is what it is assigned. The
way back, when the last member of the consumer protocol is gone, is in ``group.remove_members``. Source: KIP-848, and
Kafka 4.4's GroupMetadataManager (``convertToConsumerGroup``, ``classicGroupJoinToConsumerGroup`` and its like).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fleetlog.brokers.groups.consumer import records as r
from fleetlog.brokers.groups.consumer.embedded import assignment_of, decode_assignment, decode_subscription
from fleetlog.brokers.groups.consumer.group import (
    JOINS,
    Beat,
    BeatRefused,
    ConsumerGroup,
    Member,
    Picture,
    remove_members,
    session_ms,
    step,
)
from fleetlog.brokers.groups.consumer.records import Classic, Current, MemberValue, Partition
from fleetlog.brokers.groups.members import CONSUMER_PROTOCOL_TYPE, Group, Turn, coordinator_error
from fleetlog.brokers.groups.records import BadRecord, ConsumerKey, ConsumerKind, group_tombstone
from fleetlog.brokers.groups.requests import (
    ConsumerSettings,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    Leaver,
    SyncAnswer,
    SyncRequest,
)
from fleetlog.txn.commands import Result
from fleetlog.wire.errors import ErrorCode

ECHOES = ("cooperative-sticky",)
"""Assignors whose user's data in an assignment tells nothing: librdkafka repeats there what its member had said."""

# --- a classic group becomes one of the consumer protocol ---------------------------------------------------------


def upgrade(group: Group, picture: Picture, turn: Turn, settings: ConsumerSettings) -> ConsumerGroup:
    """Write a classic group with members as one of the consumer protocol: what that will be when it is in the log.

    Its members have what the last generation in the log gave them, and are asked to join again. Raises BeatRefused.
    """
    if not settings.upgrades:
        raise _cannot(group, "online upgrade is disabled")
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _cannot(group, "the group does not use the consumer embedded protocol")
    if len(group.members) > settings.max_size:
        raise _cannot(group, "the group size exceeds the consumer group maximum size")
    turn.records.append(group_tombstone(group.id))
    for member in group.members.values():
        turn.answer(member.join_ticket, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.id))
        turn.answer(member.sync_ticket, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        turn.cancel("session", group.id, member.id)
        turn.schedule("member", group.id, member.session_timeout_ms, member.id)
    for kind in ("join", "sync"):
        turn.cancel(kind, group.id)
    upgraded = ConsumerGroup(group.id, picture=picture)
    for key, value in _rows(group, picture):
        turn.records.append(r.record(key, value))
        upgraded.apply(key, value)
    return upgraded


def _cannot(group: Group, why: str) -> BeatRefused:
    text = f"Cannot upgrade classic group {group.id} to consumer group because {why}."
    return BeatRefused(ErrorCode.GROUP_ID_NOT_FOUND, text)


def _rows(group: Group, picture: Picture) -> list[tuple[ConsumerKey, bytes]]:
    """The records of the upgraded group in Kafka's order."""
    members, owned = upgraded_members(group, picture)
    epoch = group.generation

    def rows(kind: ConsumerKind, values: Mapping[str, bytes]) -> list[tuple[ConsumerKey, bytes]]:
        return [(ConsumerKey(kind, group.id, name), value) for name, value in values.items()]

    def current(name: str) -> bytes:
        return r.current_value(Current(epoch, epoch, r.STABLE, dict.fromkeys(owned[name], epoch), {}))

    return [
        *rows(ConsumerKind.MEMBER, {name: r.member_value(value) for name, value in members.items()}),
        *rows(ConsumerKind.GROUP, {"": r.epoch_value(epoch, 0)}),
        *rows(ConsumerKind.MEMBER_TARGET, {name: r.member_target_value(owned[name]) for name in members}),
        *rows(ConsumerKind.TARGET, {"": r.epoch_value(epoch, 0)}),
        *rows(ConsumerKind.CURRENT, {name: current(name) for name in members}),
    ]


def upgraded_members(group: Group, picture: Picture) -> tuple[dict[str, MemberValue], dict[str, list[Partition]]]:
    """The members, and what each may have: what the last record gave it, and what it said it owned in its JoinGroup.

    Not what memory says: a rebalance that began has forgotten what a cooperative member has still. And one that did
    not hear its last assignment has none of it, but what it had before. What several have stays with the first.
    """
    logged = group.durable.members if group.durable is not None else ()
    assignments = {member.member_id: member.assignment for member in logged}
    protocol = group.protocol or group.select_protocol()
    members: dict[str, MemberValue] = {}
    owned: dict[str, list[Partition]] = {}
    claims: dict[str, list[Partition]] = {}
    taken: set[Partition] = set()
    for one in group.members.values():
        try:
            said = decode_subscription(one.metadata(protocol))
            assigned = decode_assignment(assignments.get(one.id, b""))
        except BadRecord:
            raise _cannot(group, "the embedded consumer protocol is malformed") from None
        if assigned.user_data and protocol not in ECHOES:
            raise _cannot(
                group,
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                "assignor before re-attempting the upgrade",
            )
        members[one.id] = MemberValue(
            one.instance_id, said.rack_id, one.client_id, one.client_host, tuple(sorted(set(said.topics))), None,
            one.rebalance_timeout_ms, None, Classic(one.session_timeout_ms, one.protocols),
        )  # fmt: skip
        owned[one.id] = [p for p in _by_id(assigned.partitions, picture) if p not in taken]
        claims[one.id] = _by_id(said.owned, picture)
        taken.update(owned[one.id])
    for name, partitions in claims.items():
        owned[name] += [p for p in partitions if p not in taken]
        taken.update(partitions)
    return members, owned


def _by_id(partitions: tuple[tuple[str, int], ...], picture: Picture) -> list[Partition]:
    topics = picture.topics
    return [(topics[name].id.bytes, index) for name, index in partitions if name in topics]


# --- requests of classic members ----------------------------------------------------------------------------------


def classic_joins(
    group: ConsumerGroup, request: JoinRequest, picture: Picture, turn: Turn, settings: ConsumerSettings
) -> Result:
    """Handle a JoinGroup; answers :class:`JoinAnswer`."""
    group.picture = picture
    offered = {one.name for one in request.protocols}
    if len(group.members) >= settings.max_size and request.member_id not in group.members:
        return turn.result(JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not _supports(group, offered):
        return turn.result(JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
    try:
        said = decode_subscription(request.protocols[0].metadata)
    except BadRecord:
        return turn.result(JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
    member_id = request.member_id or request.fresh_id
    if request.requires_known_member_id and not request.member_id and request.instance_id is None:
        return turn.result(JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    holder = group.members.get(group.statics.get(request.instance_id or "", ""))
    member = group.members.get(member_id)
    if request.instance_id is not None and request.member_id and (holder is None or holder is not member):
        error = ErrorCode.UNKNOWN_MEMBER_ID if holder is None else ErrorCode.FENCED_INSTANCE_ID
        return turn.result(JoinAnswer(error, request.member_id))
    owned = frozenset(_by_id(said.owned, picture))
    if owned and request.member_id and member is None:  # as Kafka does in classic groups: it must give up all first
        return turn.result(JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
    beat = Beat(
        group.id, member_id, JOINS, request.instance_id, said.rack_id, request.rebalance_timeout_ms, said.topics, "",
        None, owned, request.client_id, request.client_host,
        classic=Classic(request.session_timeout_ms, request.protocols),
    )  # fmt: skip
    replaced = holder if holder is not member else None
    _, new = step(group, beat, member, replaced, turn, settings)
    if replaced is not None and not replaced.classic:
        turn.schedule("downgrade", group.id, 0)
    answer = JoinAnswer(ErrorCode.NONE, member_id, new.epoch, CONSUMER_PROTOCOL_TYPE, request.protocols[0].name)
    result = turn.result(answer)
    result.failed = lambda error, now: Result(response=JoinAnswer(coordinator_error(error), request.member_id))
    return result


def _supports(group: ConsumerGroup, offered: set[str]) -> bool:
    """Whether all classic members know one of these protocols."""
    classics = [m.value.classic for m in group.members.values() if m.value is not None and m.value.classic is not None]
    known = Counter(name for classic in classics for name in {one.name for one in classic.protocols})
    return any(known[name] == len(classics) for name in offered)


def _checked(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member | ErrorCode:
    """The classic member of a request, or what is wrong with it."""
    member = group.members.get(member_id)
    if instance_id is not None:
        holder = group.statics.get(instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    if member is None or not member.classic:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return member if member.at.epoch == generation else ErrorCode.ILLEGAL_GENERATION


def _ask_to_join(group: ConsumerGroup, member: Member, turn: Turn) -> ErrorCode:
    """The member has its rebalance timeout to join again, from the first time that it is asked."""
    assert member.value is not None
    if not member.asked:
        member.asked = True
        turn.schedule("rejoin", group.id, member.value.rebalance_timeout_ms, member.id)
    return ErrorCode.REBALANCE_IN_PROGRESS


def classic_syncs(
    group: ConsumerGroup, request: SyncRequest, picture: Picture, turn: Turn, settings: ConsumerSettings
) -> Result:
    """Handle a SyncGroup; answers :class:`SyncAnswer` with what the member is assigned."""
    group.picture = picture
    member = _checked(group, request.member_id, request.instance_id, request.generation)
    if isinstance(member, ErrorCode):
        return turn.result(SyncAnswer(member))
    value = member.value
    assert value is not None
    assert value.classic is not None
    ours = (CONSUMER_PROTOCOL_TYPE, value.classic.protocols[0].name)
    if any(said not in (None, one) for said, one in zip((request.protocol_type, request.protocol), ours, strict=True)):
        return turn.result(SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    if group.assignment_epoch > member.at.epoch and member.at.state != r.UNREVOKED:
        return turn.result(SyncAnswer(_ask_to_join(group, member, turn)))
    turn.cancel("resync", group.id, member.id)
    turn.schedule("member", group.id, session_ms(value, settings), member.id)
    assignment = assignment_of(value, member.at.assigned, picture.topics)
    held = {topic_id for topic_id, _ in member.at.assigned}
    topics = tuple(name for name in value.topics if name in picture.topics and picture.topics[name].id.bytes in held)
    return turn.result(SyncAnswer(ErrorCode.NONE, *ours, assignment, topics))


def classic_beats(
    group: ConsumerGroup, request: HeartbeatRequest, picture: Picture, turn: Turn, settings: ConsumerSettings
) -> Result:
    """Extend the member's session; the answer, an error code, says whether it has to join again."""
    group.picture = picture
    member = _checked(group, request.member_id, request.instance_id, request.generation)
    if isinstance(member, ErrorCode):
        return turn.result(member)
    assert member.value is not None
    turn.schedule("member", group.id, session_ms(member.value, settings), member.id)
    state = member.at.state
    behind = member.at.epoch < group.assignment_epoch or state == r.UNREVOKED
    if behind or (state == r.UNRELEASED and not _waits(group, member)):
        return turn.result(_ask_to_join(group, member, turn))
    return turn.result(ErrorCode.NONE)


def _waits(group: ConsumerGroup, member: Member) -> bool:
    """Whether another member has a partition that is to be this one's."""
    return any(group.owners.get(p, member.id) != member.id for p in member.target or ())


def classics_leave(
    group: ConsumerGroup, leavers: tuple[Leaver, ...], picture: Picture, turn: Turn, settings: ConsumerSettings
) -> Result:
    """Remove members of either protocol; an operator may name a static one by its instance id only."""
    group.picture = picture
    gone: dict[str, Member] = {}
    answers = []
    for leaver in leavers:
        name = group.statics.get(leaver.instance_id or "")
        if leaver.instance_id is None:
            name = leaver.member_id
        member = group.members.get(name or "")
        error = ErrorCode.NONE if member is not None else ErrorCode.UNKNOWN_MEMBER_ID
        if member is not None and leaver.instance_id is not None and leaver.member_id not in ("", member.id):
            error = ErrorCode.FENCED_INSTANCE_ID
        elif member is not None:
            gone[member.id] = member
        answers.append((leaver, error))
    remove_members(group, gone.values(), turn, settings)
    result = turn.result(LeaveAnswer(ErrorCode.NONE, tuple(answers)))
    result.failed = lambda error, now: Result(response=LeaveAnswer(coordinator_error(error)))
    return result
