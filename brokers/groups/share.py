"""A share group (KIP-932): its members, their targets, the heartbeat, and its records. Pure.

As in groups of the consumer protocol there are epochs of the group, of its target assignment, and of each member; but a
partition may have several members, so a member gets its target at once, and nobody waits for what others give up.
State in the log changes in :meth:`ShareGroup.apply` alone. Timer: ``share`` (a member's session).

Records are by the ShareGroup*Value schemas of Kafka's group coordinator, version 0. The one of the group's state
partitions (key 15) tells which share partitions have a state that goes with the group.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fleetlog._native.byte_reader import varint_bytes
from fleetlog.brokers.groups.consumer import records as r
from fleetlog.brokers.groups.consumer.assignors import spread
from fleetlog.brokers.groups.consumer.group import (
    JOINS,
    LEAVES,
    NO_PICTURE,
    PARTITION_BYTES,
    Beat,
    BeatAnswer,
    BeatRefused,
    Picture,
)
from fleetlog.brokers.groups.consumer.records import Partition
from fleetlog.brokers.groups.members import MEMBER_BYTES, Turn
from fleetlog.brokers.groups.records import ConsumerKey, RecordReader, ShareKind
from fleetlog.brokers.groups.requests import ShareSettings
from fleetlog.txn.commands import CoordinatorRecord, Result
from fleetlog.wire.errors import ErrorCode

SHARE_TIMER = "share"
_CURRENT = struct.Struct(">hiib")
_I16 = struct.Struct(">h")
_GROUP = struct.Struct(">hiqx")
_I64 = struct.Struct(">q")


class ShareMemberValue(NamedTuple):
    """What a member has said of itself."""

    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]


class ShareCurrent(NamedTuple):
    """What a member has."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: tuple[Partition, ...] = ()


class StateTopic(NamedTuple):
    """A topic of which a group has, or may have, states: its name and how many partitions of it."""

    name: str
    partitions: int


@dataclass(slots=True)
class ShareMember:
    """One member; parts of it that are not in the log are None."""

    id: str
    value: ShareMemberValue | None = None
    current: ShareCurrent | None = None
    target: tuple[Partition, ...] | None = None

    @property
    def at(self) -> ShareCurrent:
        """What it has; nothing for a member that the log does not tell of."""
        return self.current if self.current is not None else ShareCurrent()


@dataclass(slots=True)
class ShareGroup:
    """One group. What its records are delivered to is at the partitions' leaders."""

    id: str
    epoch: int = 0
    hash: int = 0
    assignment_epoch: int = 0
    exists: bool = False
    """Whether the log has its metadata."""
    members: dict[str, ShareMember] = field(default_factory=dict)
    states: dict[bytes, StateTopic] = field(default_factory=dict)
    """By topic id, of which partitions leaders may have had a state persisted."""
    picture: Picture = NO_PICTURE
    """The topics that the group's coordinator looked at last."""
    hashed_version: int | None = None
    """The version of the picture that ``hash`` is known to be right for."""
    changing: bool = False
    """Whether its offsets are being changed, or it is being deleted: nobody joins until that has ended."""

    @property
    def state(self) -> str:
        """Kafka's name of the group's state."""
        return "Stable" if self.members else "Empty"

    @property
    def disposable(self) -> bool:
        """Whether nothing of it is left in the log."""
        return not (self.exists or self.members or self.states or self.assignment_epoch)

    @property
    def size(self) -> int:
        """The approximate memory of its members, in bytes."""
        names = sum(60 + len(t) for m in self.members.values() if m.value is not None for t in m.value.topics)
        partitions = sum(len(member.at.assigned) for member in self.members.values())
        return len(self.members) * MEMBER_BYTES + names + partitions * PARTITION_BYTES

    # --- the log ------------------------------------------------------------------------------------------------

    def apply(self, key: ConsumerKey, raw: bytes | None) -> bool:
        """Apply a record; False for a value of a newer version. Raises BadRecord."""
        match key.kind:
            case ShareKind.GROUP:
                pair = (0, 0) if raw is None else decode_group_value(raw)
                if pair is not None:
                    self.epoch, self.hash = pair
                    self.exists = raw is not None
                return pair is not None
            case ShareKind.TARGET:
                pair = (0, 0) if raw is None else r.decode_epoch(raw)
                self.assignment_epoch = self.assignment_epoch if pair is None else pair[0]
                return pair is not None
            case ShareKind.STATES:
                states = {} if raw is None else decode_states_value(raw)
                self.states = self.states if states is None else states
                return states is not None
            case _:
                return self._apply_member(key, raw)

    def _apply_member(self, key: ConsumerKey, raw: bytes | None) -> bool:
        member = self.members.get(key.name) or ShareMember(key.name)
        known = True
        if key.kind is ShareKind.MEMBER:
            value = None if raw is None else decode_member_value(raw)
            known = raw is None or value is not None
            member.value = value if known else member.value
        elif key.kind is ShareKind.MEMBER_TARGET:
            target = None if raw is None else r.decode_member_target(raw)
            known = raw is None or target is not None
            member.target = target if known else member.target
        else:
            current = None if raw is None else decode_current_value(raw)
            known = raw is None or current is not None
            member.current = current if known else member.current
        if member.value is None and member.current is None and member.target is None:
            self.members.pop(member.id, None)
        else:
            self.members[member.id] = member
        return known

    def loaded(self, turn: Turn, settings: ShareSettings) -> None:
        """Give each member a whole session; drop torn members."""
        for member in list(self.members.values()):
            if member.value is None:
                del self.members[member.id]
            else:
                turn.schedule(SHARE_TIMER, self.id, settings.session_timeout_ms, member.id)


# --- assigning --------------------------------------------------------------------------------------------------


def simple(
    members: Mapping[str, tuple[frozenset[bytes], tuple[Partition, ...]]], topics: Mapping[bytes, int]
) -> dict[str, tuple[Partition, ...]]:
    """Kafka's assignor ``simple`` by what it promises: each partition has a member, each member has a partition.

    ``members``: the topics and the target until now of each; ``topics``: partitions by topic id. The more numerous are
    spread evenly over the others, and both keep what they have as far as that allows. Where members have different
    topics, each topic is spread by itself.
    """
    targets: dict[str, list[Partition]] = {name: [] for name in members}
    same = len({wanted for wanted, _ in members.values()}) == 1
    every = sorted({topic for wanted, _ in members.values() for topic in wanted if topics.get(topic, 0) > 0})
    for parts in [every] if same else [[topic] for topic in every]:
        units = [(topic, index) for topic in parts for index in range(topics[topic])]
        names = sorted(name for name, (wanted, _) in members.items() if not wanted.isdisjoint(parts))
        if not units or not names:
            continue
        if len(names) <= len(units):
            for name, own in spread(units, names, {name: members[name][1] for name in names}).items():
                targets[name] += own
            continue
        before: dict[Partition, list[str]] = {unit: [] for unit in units}
        for name in names:
            for unit in members[name][1]:
                if unit in before:
                    before[unit].append(name)
        places = {str(number): unit for number, unit in enumerate(units)}
        held = {place: before[unit] for place, unit in places.items()}
        for place, own_names in spread(names, list(places), held).items():
            for name in own_names:
                targets[name].append(places[place])
    return {name: tuple(sorted(own)) for name, own in targets.items()}


def _key(group: ShareGroup, kind: ShareKind, name: str = "") -> ConsumerKey:
    return ConsumerKey(kind, group.id, name)


def _topics(values: Iterable[ShareMemberValue], picture: Picture) -> list[str]:
    """The topics that there are of those that members subscribe to."""
    return sorted({topic for value in values for topic in value.topics if topic in picture.topics})


def _hash(names: Iterable[str], picture: Picture) -> int:
    """Another one for other topics, ids or numbers of partitions."""
    digest = hashlib.blake2b(digest_size=8)
    for name in names:
        topic = picture.topics[name]
        digest.update(f"{name}:{topic.id}:{len(topic.partitions)};".encode())
    return int.from_bytes(digest.digest(), signed=True) if names else 0


def _assign(
    group: ShareGroup, values: Mapping[str, ShareMemberValue], epoch: int, turn: Turn
) -> dict[str, tuple[Partition, ...]]:
    """A new target, with the records of the members that it is another one for; the group's comes last."""
    picture = group.picture
    topics = {name: picture.topics[name] for name in _topics(values.values(), picture)}
    counts = {topic.id.bytes: len(topic.partitions) for topic in topics.values()}
    members = {}
    for name, value in values.items():
        wanted = frozenset(topics[topic].id.bytes for topic in value.topics if topic in topics)
        known = group.members.get(name)
        members[name] = wanted, (known.target or ()) if known is not None else ()
    targets = simple(members, counts)
    for name, target in targets.items():
        if target != members[name][1]:
            key = _key(group, ShareKind.MEMBER_TARGET, name)
            turn.records.append(r.record(key, r.member_target_value(target)))
    states = group.states | {t.id.bytes: StateTopic(t.name, len(t.partitions)) for t in topics.values()}
    if states != group.states:
        turn.records.append(r.record(_key(group, ShareKind.STATES), states_value(states, turn.now.wall_ms)))
    turn.records.append(r.record(_key(group, ShareKind.TARGET), r.epoch_value(epoch, 0)))
    return targets


# --- the heartbeat ----------------------------------------------------------------------------------------------


def share_heartbeat(group: ShareGroup, beat: Beat, picture: Picture, turn: Turn, settings: ShareSettings) -> Result:
    """Handle a heartbeat; answers :class:`BeatAnswer`. Raises BeatRefused."""
    group.picture = picture
    member = group.members.get(beat.member_id)
    if member is None and beat.epoch != JOINS:
        raise BeatRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {beat.member_id} is not a member of the group.")
    if beat.epoch == LEAVES:
        assert member is not None, "it was asked for"
        remove_share_members(group, [member], turn)
        return turn.result(BeatAnswer(ErrorCode.NONE, None, beat.member_id, LEAVES))
    if member is None and group.changing:
        raise BeatRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group's offsets are being changed.")
    if member is None and len(group.members) >= settings.max_size:
        raise BeatRefused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has {settings.max_size} members.")
    known = member if member is not None else ShareMember(beat.member_id)
    old = known.at
    if beat.epoch not in (JOINS, old.epoch, old.previous_epoch):
        text = f"The member is at epoch {old.epoch}, not {beat.epoch}. It must join again."
        raise BeatRefused(ErrorCode.FENCED_MEMBER_EPOCH, text)
    value = _updated(known.value, beat)
    if value != known.value:
        turn.records.append(r.record(_key(group, ShareKind.MEMBER, known.id), share_member_value(value)))
    values = {m.id: m.value for m in group.members.values() if m.value is not None} | {known.id: value}
    new_topics = known.value is None or value.topics != known.value.topics
    epoch, target = group.assignment_epoch, known.target or ()
    group_epoch = _bumped(group, values, new_topics, turn)
    if group_epoch > group.assignment_epoch:
        epoch, target = group_epoch, _assign(group, values, group_epoch, turn)[known.id]
    new = old
    if old.epoch != epoch or old.assigned != target or known.current is None:
        new = ShareCurrent(epoch, old.epoch if old.epoch != epoch else old.previous_epoch, target)
        turn.records.append(r.record(_key(group, ShareKind.CURRENT, known.id), share_current_value(new)))
    turn.schedule(SHARE_TIMER, group.id, settings.session_timeout_ms, known.id)
    tell = beat.epoch != new.epoch or beat.topics is not None or new.assigned != old.assigned
    return turn.result(
        BeatAnswer(
            ErrorCode.NONE, None, known.id, new.epoch, settings.heartbeat_interval_ms, new.assigned if tell else None
        )
    )


def _updated(before: ShareMemberValue | None, beat: Beat) -> ShareMemberValue:
    topics = before.topics if before is not None else ()
    rack_id = before.rack_id if before is not None else None
    return ShareMemberValue(
        rack_id if beat.rack_id is None else beat.rack_id,
        beat.client_id,
        beat.client_host,
        topics if beat.topics is None else tuple(sorted(set(beat.topics))),
    )


def _bumped(group: ShareGroup, values: Mapping[str, ShareMemberValue], changed: bool, turn: Turn) -> int:
    """The group's epoch, which is the next one if its members' subscriptions or topics changed."""
    picture, digest = group.picture, group.hash
    if picture.version >= 0 and (changed or picture.version != group.hashed_version):
        digest = _hash(_topics(values.values(), picture), picture)
        if digest == group.hash:
            group.hashed_version = picture.version
    if not changed and digest == group.hash:
        return group.epoch
    turn.records.append(r.record(_key(group, ShareKind.GROUP), share_group_value(group.epoch + 1, digest)))
    return group.epoch + 1


def remove_share_members(group: ShareGroup, gone: Collection[ShareMember], turn: Turn) -> None:
    """End memberships; the others get what is theirs at their heartbeats."""
    for member in gone:
        turn.records += [r.record(_key(group, kind, member.id), None) for kind in _parts(member)]
        turn.cancel(SHARE_TIMER, group.id, member.id)
    without = {member.id for member in gone}
    values = {m.id: m.value for m in group.members.values() if m.value is not None and m.id not in without}
    epoch = _bumped(group, values, True, turn)
    if group.picture is not NO_PICTURE:
        _assign(group, values, epoch, turn)


def _parts(member: ShareMember) -> list[ShareKind]:
    """What the log has of a member, in the order in which it is taken away."""
    parts = (
        (ShareKind.CURRENT, member.current), (ShareKind.MEMBER_TARGET, member.target), (ShareKind.MEMBER, member.value),
    )  # fmt: skip
    return [kind for kind, part in parts if part is not None]


def begin_change(group: ShareGroup, added: Mapping[bytes, StateTopic], turn: Turn) -> ErrorCode:
    """From now on nobody joins: offsets are changed, also those of ``added`` topics. Only a group without members."""
    if group.members:
        return ErrorCode.NON_EMPTY_GROUP
    if group.changing:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    group.changing = True
    wider = {
        topic_id: topic
        for topic_id, topic in added.items()
        if topic_id not in group.states or group.states[topic_id].partitions < topic.partitions
    }
    if wider:
        turn.records.append(
            r.record(_key(group, ShareKind.STATES), states_value(group.states | wider, turn.now.wall_ms))
        )
    return ErrorCode.NONE


def end_change(group: ShareGroup, forgotten: Collection[bytes], turn: Turn) -> None:
    """The change has ended; of ``forgotten`` topics there are no states any more."""
    group.changing = False
    kept = {topic_id: topic for topic_id, topic in group.states.items() if topic_id not in forgotten}
    if kept != group.states:
        turn.records.append(r.record(_key(group, ShareKind.STATES), states_value(kept, turn.now.wall_ms)))


def share_tombstones(group: ShareGroup) -> list[CoordinatorRecord]:
    """What deletes a group."""
    gone = [r.record(_key(group, kind, m.id), None) for m in group.members.values() for kind in _parts(m)]
    has = ((ShareKind.TARGET, group.assignment_epoch), (ShareKind.STATES, group.states), (ShareKind.GROUP, True))
    return [*gone, *(r.record(_key(group, kind), None) for kind, part in has if part)]


# --- records ----------------------------------------------------------------------------------------------------


def share_group_value(epoch: int, metadata_hash: int) -> bytes:
    """Value of key 11."""
    return _GROUP.pack(0, epoch, metadata_hash)


def share_member_value(member: ShareMemberValue) -> bytes:
    """Value of key 10."""
    texts = (
        r.compact_text(member.rack_id),
        r.compact_text(member.client_id),
        r.compact_text(member.client_host),
        r.compact_texts(member.topics),
    )
    return _I16.pack(0) + b"".join(texts) + b"\0"


def share_current_value(current: ShareCurrent) -> bytes:
    """Value of key 14; the state is always Kafka's STABLE."""
    head = _CURRENT.pack(0, current.epoch, current.previous_epoch, r.STABLE)
    return head + r.member_target_value(current.assigned)[2:]


def states_value(states: Mapping[bytes, StateTopic], now_ms: int) -> bytes:
    """Value of key 15: all of them are initialised, none is being deleted."""
    rows = [
        topic_id
        + r.compact_text(topic.name)
        + r.compact_numbers(list(range(topic.partitions)))
        + _I64.pack(now_ms)
        + b"\0"
        for topic_id, topic in sorted(states.items())
    ]
    return _I16.pack(0) + b"\1" + varint_bytes(len(rows) + 1) + b"".join(rows) + b"\1\0"


def _reader(raw: bytes) -> RecordReader | None:
    reader = RecordReader(raw)
    if reader.i16() != 0:
        return None
    reader.flexible = True
    return reader


def decode_group_value(raw: bytes) -> tuple[int, int] | None:
    """Epoch and hash of key 11; None for a newer version, as in the others. Raises BadRecord."""
    reader = _reader(raw)
    return None if reader is None else (reader.i32(), reader.i64())


def decode_member_value(raw: bytes) -> ShareMemberValue | None:
    """Value of key 10."""
    reader = _reader(raw)
    if reader is None:
        return None
    rack_id, client_id, client_host = reader.nullable_string(), reader.string(), reader.string()
    return ShareMemberValue(
        rack_id, client_id, client_host, tuple(reader.string() for _ in range(reader.array_size()))
    )  # fmt: skip


def decode_current_value(raw: bytes) -> ShareCurrent | None:
    """Value of key 14."""
    reader = _reader(raw)
    if reader is None:
        return None
    epoch, previous_epoch = reader.i32(), reader.i32()
    reader.take(1)
    assigned = r.decode_member_target(_I16.pack(0) + raw[reader.pos :])
    return ShareCurrent(epoch, previous_epoch, assigned or ())


def decode_states_value(raw: bytes) -> dict[bytes, StateTopic] | None:
    """Value of key 15."""
    reader = _reader(raw)
    if reader is None:
        return None
    states = {}
    for _ in range(2):  # being initialised, initialised
        for _ in range(reader.array_size()):
            topic_id, name = reader.take(16), reader.string()
            indexes = [reader.i32() for _ in range(reader.array_size())]
            reader.i64()
            reader.tags()
            states[topic_id] = StateTopic(name, max(indexes, default=-1) + 1)
    return states
