"""The classic rebalance protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and their timers.

Sources: the consumer group protocol of Kafka (KIP-62 rebalance timeout, KIP-134 initial delay, KIP-345 static members,
KIP-394 known member ids, KIP-814 skipped assignment). A generation is logged when the leader's assignment arrives, and
when a group becomes empty; a rebalance in progress is in memory only.
"""

from __future__ import annotations

from dataclasses import replace

from fleetlog.brokers.groups import records
from fleetlog.brokers.groups.members import (
    TABLE,
    Group,
    GroupMember,
    GroupState,
    PendingMember,
    Turn,
    coordinator_error,
    held_by,
)
from fleetlog.brokers.groups.requests import (
    GroupSettings,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    Leaver,
    SyncAnswer,
    SyncRequest,
)
from fleetlog.txn.commands import DEFERRED, Now, Result, Ticket
from fleetlog.wire.errors import ErrorCode

GONE_MS = 10_000
"""How long a member that was never in a generation is kept after its connection has closed."""
MAX_PROTOCOLS = 100
MAX_PENDING_MEMBERS = 10_000
"""The most ids of one group assigned to members that have not rejoined with them."""

# --- JoinGroup --------------------------------------------------------------------------------------------------


def join(group: Group, request: JoinRequest, turn: Turn, settings: GroupSettings) -> Result:
    """Handle a JoinGroup; the answer usually comes when the join phase completes."""
    error = _refusal(group, request, settings)
    if error is not ErrorCode.NONE:
        member_id = "" if error is ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id
        return turn.result(JoinAnswer(error, member_id))
    if request.member_id:
        result = _join_known(group, request, turn, settings)
    elif request.instance_id is not None:
        result = _join_static(group, request, turn, settings)
    else:
        result = _join_dynamic(group, request, turn, settings)
    return result


def _refusal(group: Group, request: JoinRequest, settings: GroupSettings) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if not _has_room(group, request, settings):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not group.supports(request.protocol_type, request.protocols, request.member_id):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.member_id and request.member_id not in group.pending_members:
        return group.check_member(request.member_id, request.instance_id)
    return ErrorCode.NONE


def _has_room(group: Group, request: JoinRequest, settings: GroupSettings) -> bool:
    """In the join phase the first members stay: a group above a lowered limit shrinks at its next rebalance."""
    if len(group.members) < settings.max_size:
        return True
    known = group.members.get(request.member_id) or group.static_member(request.instance_id)
    if group.state is GroupState.PREPARING:
        joined = sum(1 for m in group.members.values() if m.join_ticket is not None)
        return (known is not None and known.join_ticket is not None) or joined < settings.max_size
    return group.state is GroupState.EMPTY or known is not None


def _join_dynamic(group: Group, request: JoinRequest, turn: Turn, settings: GroupSettings) -> Result:
    member_id = f"{request.client_id}-{request.fresh_id}"
    if request.requires_known_member_id:
        if len(group.pending_members) >= MAX_PENDING_MEMBERS:
            return turn.result(JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
        group.pending_members[member_id] = PendingMember(turn.now.mono_ms + request.session_timeout_ms)
        turn.schedule("session", group.id, request.session_timeout_ms, member_id)
        return turn.result(JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    return _add_member(group, member_id, request, turn, settings)


def _join_known(group: Group, request: JoinRequest, turn: Turn, settings: GroupSettings) -> Result:
    if request.member_id in group.pending_members:
        del group.pending_members[request.member_id]
        turn.cancel("session", group.id, request.member_id)
        return _add_member(group, request.member_id, request, turn, settings)
    member = group.members[request.member_id]
    member.gone = False
    unchanged = member.protocols == request.protocols
    if group.state is GroupState.COMPLETING and unchanged:
        # The response to its first JoinGroup may have been lost: send the generation again.
        return turn.result(_joined(group, member))
    if group.state is GroupState.STABLE and unchanged and group.leader != member.id:
        return turn.result(_joined(group, member, listed=False))
    _update(member, request)
    _await_join(group, member, turn)
    prepare_rebalance(group, turn, settings)
    return turn.result(DEFERRED)


def _join_static(group: Group, request: JoinRequest, turn: Turn, settings: GroupSettings) -> Result:
    member_id = f"{request.instance_id}-{request.fresh_id}"
    old = group.static_member(request.instance_id)
    if old is None:
        return _add_member(group, member_id, request, turn, settings)
    new = replace(old, id=member_id, join_ticket=None, sync_ticket=None, timer_at_ms=None)
    _update(new, request)
    members = [new if m is old else m for m in group.members.values()]
    if group.state is GroupState.STABLE and group.select_protocol(members) == group.protocol:
        return _replace_quietly(group, old, new, request, turn)
    turn.answer(old.join_ticket, JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, old.id))
    turn.answer(old.sync_ticket, SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))
    _swap(group, old, new, members, turn)
    _await_join(group, new, turn)
    prepare_rebalance(group, turn, settings)
    return turn.result(DEFERRED)


def _swap(group: Group, old: GroupMember, new: GroupMember, members: list[GroupMember], turn: Turn) -> None:
    group.members = {m.id: m for m in members}
    group.awaiting_sync.pop(old.id, None)
    if group.leader == old.id:
        group.leader = new.id
    turn.cancel("session", group.id, old.id)
    turn.keep_alive(group, new)


def _replace_quietly(group: Group, old: GroupMember, new: GroupMember, request: JoinRequest, turn: Turn) -> Result:
    """A restarted static member keeps its assignment; only its new id is logged (KIP-345)."""
    members = [new if m is old else m for m in group.members.values()]
    record = group.record(turn.now, {m.id: m.assignment for m in members}, members)
    previous_leader = group.leader
    if previous_leader == old.id:
        record = record._replace(leader=new.id)
    group.staged[new.id] = new
    turn.records.append(records.group_record(group.id, record))
    turn.cancel("session", group.id, old.id)
    turn.keep_alive(group, new)
    leads = record.leader == new.id
    answer = JoinAnswer(ErrorCode.NONE, new.id, group.generation, group.protocol_type, group.protocol)
    if request.supports_skipping_assignment:
        listed = group.joined_members(members) if leads else ()
        answer = answer._replace(leader=record.leader or "", skip_assignment=leads, members=listed)
    else:
        # An older client must not become leader: it would compute an assignment that no member waits for.
        answer = answer._replace(leader=previous_leader or "")

    def failed(error: ErrorCode, now: Now) -> Result:
        group.staged.clear()
        return Result(response=JoinAnswer(coordinator_error(error)))

    result = turn.result(answer)
    result.failed = failed
    return result


def _add_member(group: Group, member_id: str, request: JoinRequest, turn: Turn, settings: GroupSettings) -> Result:
    member = GroupMember.joining(member_id, request)
    member.new = True
    if not group.members:
        group.protocol_type = request.protocol_type
    if group.state is GroupState.PREPARING and group.initial:
        group.new_member_added = True
    group.members[member.id] = member
    _await_join(group, member, turn)
    prepare_rebalance(group, turn, settings)
    return turn.result(DEFERRED)


def _update(member: GroupMember, request: JoinRequest) -> None:
    member.heard = True
    member.protocols = request.protocols
    member.size = held_by(request)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.client_id = request.client_id
    member.client_host = request.client_host


def _await_join(group: Group, member: GroupMember, turn: Turn) -> None:
    if group.leader is None:
        group.leader = member.id
    if member.join_ticket != turn.ticket:
        turn.answer(member.join_ticket, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.id))
    member.join_ticket = turn.ticket
    member.gone = False
    turn.keep_alive(group, member)


def _joined(group: Group, member: GroupMember, listed: bool = True) -> JoinAnswer:
    return JoinAnswer(
        ErrorCode.NONE,
        member.id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        members=group.joined_members() if listed and group.leader == member.id else (),
    )


# --- the rebalance ----------------------------------------------------------------------------------------------


def prepare_rebalance(group: Group, turn: Turn, settings: GroupSettings) -> None:
    """Start a rebalance if none is in progress; complete its join phase if all members have joined."""
    if group.state is GroupState.PREPARING:
        if group.all_joined and not group.initial:
            complete_join(group, turn)
        return
    if group.state is GroupState.COMPLETING:
        _drop_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, turn)
    group.awaiting_sync.clear()
    turn.cancel("sync", group.id)
    group.initial = group.state is GroupState.EMPTY
    group.new_member_added = False
    group.enter(GroupState.PREPARING, turn.now)
    if group.initial:
        delay_ms = settings.initial_rebalance_delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        if delay_ms <= 0:
            complete_join(group, turn)
        else:
            turn.schedule("join", group.id, delay_ms)
    elif group.all_joined:
        complete_join(group, turn)
    else:
        turn.schedule("join", group.id, group.rebalance_timeout_ms)


def _drop_syncs(group: Group, error: ErrorCode, turn: Turn) -> None:
    for member in group.members.values():
        member.assignment = b""
        turn.answer(member.sync_ticket, SyncAnswer(error))
        member.sync_ticket = None
        turn.keep_alive(group, member)


def on_join_timer(group: Group, turn: Turn, settings: GroupSettings) -> None:
    """End the join phase at its timeout; a group's first one is extended while new members arrive."""
    if group.state is not GroupState.PREPARING:
        return
    if group.initial and group.new_member_added and group.initial_remaining_ms > 0:
        group.new_member_added = False
        delay_ms = min(settings.initial_rebalance_delay_ms, group.initial_remaining_ms)
        group.initial_remaining_ms -= delay_ms
        turn.schedule("join", group.id, delay_ms)
        return
    complete_join(group, turn)


def complete_join(group: Group, turn: Turn) -> None:
    """Start the next generation with the joined members; static members may be missing until their session ends."""
    turn.cancel("join", group.id)
    for member in list(group.members.values()):
        if member.join_ticket is None and member.instance_id is None:
            _forget(group, member, turn)
    if group.members and not _elect_leader(group):
        turn.schedule("join", group.id, group.rebalance_timeout_ms)
        return
    group.initial = False
    group.generation += 1
    if not group.members:
        group.protocol = group.leader = None
        group.enter(GroupState.EMPTY, turn.now)
        group.note_subscriptions()
        turn.records.append(records.group_record(group.id, group.record(turn.now, {})))
        return
    group.protocol = group.select_protocol()
    group.enter(GroupState.COMPLETING, turn.now)
    group.note_subscriptions()
    for member in group.members.values():
        member.new = False
        turn.answer(member.join_ticket, _joined(group, member))
        member.join_ticket = None
        turn.keep_alive(group, member)
    group.awaiting_sync = dict.fromkeys(group.members)
    turn.schedule("sync", group.id, group.rebalance_timeout_ms)


def _elect_leader(group: Group) -> bool:
    leader = group.members.get(group.leader or "")
    if leader is None or leader.join_ticket is None:
        leader = next((m for m in group.members.values() if m.join_ticket is not None), None)
    if leader is None:
        return False
    group.leader = leader.id
    return True


def _forget(group: Group, member: GroupMember, turn: Turn) -> None:
    turn.answer(member.join_ticket, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, member.id))
    turn.answer(member.sync_ticket, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
    del group.members[member.id]
    group.awaiting_sync.pop(member.id, None)
    turn.cancel("session", group.id, member.id)
    if group.leader == member.id:
        group.leader = next(iter(group.members), None)


# --- SyncGroup --------------------------------------------------------------------------------------------------


def sync(group: Group, request: SyncRequest, turn: Turn, settings: GroupSettings) -> Result:
    """Handle a SyncGroup: the leader's request has the assignments, the other members' requests wait for it."""
    error = _sync_error(group, request)
    if error is not ErrorCode.NONE:
        return turn.result(SyncAnswer(error))
    member = group.members[request.member_id]
    member.gone = False
    group.awaiting_sync.pop(member.id, None)
    if not group.awaiting_sync:
        turn.cancel("sync", group.id)
    if group.state is GroupState.STABLE:
        turn.keep_alive(group, member)
        return turn.result(SyncAnswer(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment))
    if member.sync_ticket != turn.ticket:
        turn.answer(member.sync_ticket, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
    member.sync_ticket = turn.ticket
    if group.leader != member.id:
        return turn.result(DEFERRED)
    return _assign(group, dict(request.assignments), turn, settings)


def _sync_error(group: Group, request: SyncRequest) -> ErrorCode:
    error = group.check_member(request.member_id, request.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for said, ours in ((request.protocol_type, group.protocol_type), (request.protocol, group.protocol)):
        if said is not None and said != ours:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return TABLE[group.state].sync


def _assign(group: Group, assignments: dict[str, bytes], turn: Turn, settings: GroupSettings) -> Result:
    """Log the generation; once committed, ``Group.adopt`` makes the group stable and all members are answered."""
    turn.records.append(records.group_record(group.id, group.record(turn.now, assignments)))
    waiting = [(m.sync_ticket, m.id) for m in group.members.values() if m.sync_ticket is not None]
    for member in group.members.values():
        if member.sync_ticket is not None:
            member.sync_ticket = None
            turn.keep_alive(group, member)
    for ticket, member_id in waiting:
        assignment = assignments.get(member_id, b"")
        turn.answer(ticket, SyncAnswer(ErrorCode.NONE, group.protocol_type, group.protocol, assignment))

    def failed(error: ErrorCode, now: Now) -> Result:
        retry = Turn(now, turn.ticket)
        for ticket, _member_id in waiting:
            retry.answer(ticket, SyncAnswer(coordinator_error(error)))
        for member in group.members.values():
            member.timer_at_ms = None  # this turn's timers were dropped with its effects
        prepare_rebalance(group, retry, settings)
        return retry.result()

    result = turn.result()
    result.failed = failed
    return result


def on_sync_timer(group: Group, turn: Turn, settings: GroupSettings) -> None:
    """Remove members that joined but sent no SyncGroup within the rebalance timeout."""
    if group.state not in {GroupState.COMPLETING, GroupState.STABLE} or not group.awaiting_sync:
        return
    for member_id in list(group.awaiting_sync):
        if member_id in group.members:
            _forget(group, group.members[member_id], turn)
    prepare_rebalance(group, turn, settings)


# --- Heartbeat, LeaveGroup, sessions ----------------------------------------------------------------------------


def heartbeat(group: Group, request: HeartbeatRequest, turn: Turn) -> Result:
    """Extend the member's session; the answer reports a rebalance."""
    error = group.check_member(request.member_id, request.instance_id)
    if error is ErrorCode.NONE and request.generation != group.generation:
        error = ErrorCode.ILLEGAL_GENERATION
    if error is not ErrorCode.NONE:
        return turn.result(error)
    group.members[request.member_id].gone = False
    turn.keep_alive(group, group.members[request.member_id])
    return turn.result(TABLE[group.state].heartbeat)


def disconnected(group: Group, member_id: str, turn: Turn) -> Result:
    """The member's connection has closed: it is removed unless it returns within GONE_MS.

    A member that was in a generation keeps its session timeout, as in Kafka. Others, and ids without a member, would
    hold memory for as long as the timeout that the client chose. One whose JoinGroup waits has come back by another
    connection, whose end :func:`abandoned` tells.
    """
    member = group.members.get(member_id)
    if member is not None and member.join_ticket is not None:
        return turn.result(ErrorCode.NONE)
    return _gone(group, member_id, turn)


def _gone(group: Group, member_id: str, turn: Turn) -> Result:
    pending = group.pending_members.get(member_id)
    member = group.members.get(member_id)
    now_ms = turn.now.mono_ms
    if pending is not None and pending.deadline_ms > now_ms + GONE_MS:
        group.pending_members[member_id] = PendingMember(now_ms + GONE_MS)
        turn.schedule("session", group.id, GONE_MS, member_id)
    elif member is not None and not member.settled and not member.gone:
        member.gone = True
        if member.deadline_ms > now_ms + GONE_MS:
            member.deadline_ms = member.timer_at_ms = now_ms + GONE_MS
            turn.schedule("session", group.id, GONE_MS, member_id)
    return turn.result(ErrorCode.NONE)


def abandoned(group: Group, ticket: Ticket, turn: Turn) -> Result:
    """As :func:`disconnected`, for a connection that closed while the member's JoinGroup waited."""
    member = next((m for m in group.members.values() if m.join_ticket == ticket), None)
    return turn.result(ErrorCode.NONE) if member is None else _gone(group, member.id, turn)


def leave(group: Group, leavers: tuple[Leaver, ...], turn: Turn, settings: GroupSettings) -> Result:
    """Remove members; an operator may name a static one by its instance id only."""
    before = len(group.members)
    results = tuple((leaver, _leave_one(group, leaver, turn)) for leaver in leavers)
    # A pending member that leaves can only complete a join phase, not start one.
    if len(group.members) < before or group.state is GroupState.PREPARING:
        prepare_rebalance(group, turn, settings)
    result = turn.result(LeaveAnswer(ErrorCode.NONE, results))
    result.failed = lambda error, now: Result(response=LeaveAnswer(coordinator_error(error)))
    return result


def _leave_one(group: Group, leaver: Leaver, turn: Turn) -> ErrorCode:
    if not leaver.member_id:
        member = group.static_member(leaver.instance_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        _forget(group, member, turn)
        return ErrorCode.NONE
    if leaver.member_id in group.pending_members:
        del group.pending_members[leaver.member_id]
        turn.cancel("session", group.id, leaver.member_id)
        return ErrorCode.NONE
    error = group.check_member(leaver.member_id, leaver.instance_id)
    if error is ErrorCode.NONE:
        _forget(group, group.members[leaver.member_id], turn)
    return error


def on_session_timer(group: Group, member_id: str, turn: Turn, settings: GroupSettings) -> None:
    """Remove a member whose session has expired; a member that waits for a response is kept."""
    if group.pending_members.pop(member_id, None) is not None:
        if group.state is GroupState.PREPARING:
            prepare_rebalance(group, turn, settings)
        return
    member = group.members.get(member_id)
    if member is None:
        return
    member.timer_at_ms = None
    waiting = not member.new and not member.gone and (member.join_ticket is not None or member.sync_ticket is not None)
    if waiting:
        turn.keep_alive(group, member)
    elif turn.now.mono_ms < member.deadline_ms:
        member.timer_at_ms = member.deadline_ms
        turn.schedule("session", group.id, member.deadline_ms - turn.now.mono_ms, member.id)
    else:
        _forget(group, member, turn)
        prepare_rebalance(group, turn, settings)
