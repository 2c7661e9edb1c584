"""A group of the consumer protocol (KIP-848): its state in the log, the heartbeat, and what ends a membership. Pure.

Three epochs: the group's grows with each change of members, subscriptions or topics; the target assignment is for one
of them; a member's is that of the target which it has fully moved to. A partition is handed out only when nobody has
it: neither assigned nor still to be given up. Kafka's own rules, but for one: what a member never said it owned counts
as given up only when it certainly has the answer that took it away, so that no lost answer leaves two with a partition.
For the same reason a request that comes behind those of a newer connection of its member gives nothing up.

State in the log changes in :meth:`ConsumerGroup.apply` alone; what a member reported, and when the group was last
assigned, is kept in memory and is unknown after a load. Timers: ``member`` (session), ``revoke`` (rebalance timeout),
``assign`` (a target that waits for ``group.consumer.assignment.interval.ms``); ``rejoin`` and ``resync`` (what a
member of the classic protocol has to do within its rebalance timeout), ``downgrade``.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fleetlog.brokers.groups.consumer import records as r
from fleetlog.brokers.groups.consumer.assignors import ASSIGNORS, Subscriber
from fleetlog.brokers.groups.consumer.embedded import classic_record
from fleetlog.brokers.groups.consumer.records import Classic, Current, MemberValue, Partition, Resolved, Subscription
from fleetlog.brokers.groups.members import MEMBER_BYTES, Turn
from fleetlog.brokers.groups.records import ConsumerKey, ConsumerKind, group_record
from fleetlog.brokers.groups.requests import UNLIMITED, ConsumerSettings, OffsetCommitRequest
from fleetlog.brokers.model import TopicInfo
from fleetlog.txn.commands import CoordinatorRecord, Result
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

JOINS, LEAVES, LEAVES_FOR_NOW = 0, -1, -2
"""Member epochs with a meaning of their own; the last is a static member's."""
MOVING = ("Assigning", "Reconciling")
"""States of a group that classic groups do not have."""
MEMBER_TIMERS = ("member", "revoke", "rejoin", "resync")
TIMERS = frozenset((*MEMBER_TIMERS, "assign", "downgrade"))
PARTITION_BYTES = 250
"""The approximate memory of one partition of a member: in its target, its assignment, and among the owners."""


class Picture(NamedTuple):
    """The topics as the broker knows them; ``version`` tells two pictures apart."""

    topics: Mapping[str, TopicInfo]
    version: int


UNKNOWN = MemberValue(None, None, "", "", (), None, -1, None)
"""A member that has said nothing."""
NO_PICTURE = Picture({}, -1)
"""Of a coordinator that has not looked yet."""


class Beat(NamedTuple):
    """ConsumerGroupHeartbeat. None: as it was. ``resolved``: patterns that were looked up for this request.

    Also a JoinGroup to a group of the consumer protocol, if ``classic`` is not None.
    """

    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: frozenset[Partition] | None = None
    client_id: str = ""
    client_host: str = ""
    resolved: Mapping[str, Resolved] = {}
    classic: Classic | None = None
    link: int = 0
    """The connection by which it came; later ones have greater numbers."""

    @property
    def full(self) -> bool:
        """Whether it says everything: clients do so when they join, or cannot know that their last answer came."""
        says = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms >= 0 and says and self.owned is not None

    @property
    def held(self) -> int:
        """The bytes that a member with this request takes, without its partitions."""
        texts = (self.member_id, self.instance_id, self.rack_id, self.regex, self.client_id, self.client_host)
        names = sum(60 + len(name) for name in self.topics or ())
        return MEMBER_BYTES + names + sum(len(text) for text in texts if text)


class BeatAnswer(NamedTuple):
    """``assignment`` None: as the member knows it."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: tuple[Partition, ...] | None = None


class BeatRefused(Exception):
    """A request that the rules forbid: its error code and text."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


@dataclass(slots=True)
class Member:
    """One member; parts of it that are not in the log are None. ``reported`` and ``seen`` are in memory only."""

    id: str
    value: MemberValue | None = None
    current: Current | None = None
    target: tuple[Partition, ...] | None = None
    reported: tuple[Partition, ...] | None = None
    """What it said last that it owns."""
    seen: tuple[Partition, ...] = ()
    """What it ever said that it owns, of what it has."""
    link: int = 0
    """The newest connection by which it was heard."""
    asked: bool = False
    """Whether this member of the classic protocol was told to join again, and has not."""

    @property
    def at(self) -> Current:
        """What it has; nothing for a member that the log does not tell of."""
        return self.current if self.current is not None else Current()

    def part(self, wanted: Container[Partition]) -> tuple[Partition, ...]:
        """What it has of these, or still has to give up. The target itself if that is it: nearly always."""
        has = tuple(p for p in (*self.at.assigned, *self.at.pending) if p in wanted)
        return self.target if self.target is not None and has == self.target else has

    @property
    def classic(self) -> bool:
        """Whether it uses the classic protocol."""
        return self.value is not None and self.value.classic is not None


@dataclass(slots=True)
class ConsumerGroup:
    """One group without its committed offsets, which :class:`~fleetlog.brokers.groups.members.Group` has."""

    id: str
    epoch: int = 0
    hash: int = 0
    assignment_epoch: int = 0
    exists: bool = False
    """Whether the log has its metadata."""
    members: dict[str, Member] = field(default_factory=dict)
    subscriptions: Counter[Subscription] = field(default_factory=Counter)
    """How many members have each."""
    statics: dict[str, str] = field(default_factory=dict)
    owners: dict[Partition, str] = field(default_factory=dict)
    """Who has a partition, assigned or still to be given up."""
    regexes: dict[str, Resolved] = field(default_factory=dict)
    looked_up: dict[str, Resolved] = field(default_factory=dict)
    """How each pattern was last looked up, here, with nothing new."""
    picture: Picture = NO_PICTURE
    """The topics that the group's coordinator looked at last."""
    latest: MemberValue | None = None
    """What a member last said of itself."""
    hashed_version: int | None = None
    """The version of the picture that ``hash`` is known to be right for."""
    assigned_ms: int | None = None
    joined_ms: int | None = None
    """When a member last joined."""

    # --- reading ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Kafka's name of the group's state."""
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return MOVING[0]
        steady = all(m.at.state == r.STABLE and m.at.epoch == self.assignment_epoch for m in self.members.values())
        return "Stable" if steady else MOVING[1]

    @property
    def disposable(self) -> bool:
        """Whether nothing of it is left in the log."""
        return not (self.exists or self.members or self.regexes or self.assignment_epoch)

    @property
    def size(self) -> int:
        """The approximate memory of its members, in bytes."""
        values = [m.value for m in self.members.values() if m.value is not None]
        names = sum(60 + len(topic) for value in values for topic in value.topics)
        classic = sum(value.classic.size for value in values if value.classic is not None)
        return len(self.members) * MEMBER_BYTES + names + classic + len(self.owners) * PARTITION_BYTES

    def subscribes_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic."""
        return any(topic in _topics_of(subscription, self.regexes) for subscription in self.subscriptions)

    def assignor(self, default: str) -> str:
        """The one that most members wish; the default if none does."""
        return _preferred((m.value for m in self.members.values() if m.value is not None), default)

    def commit_errors(
        self, request: OffsetCommitRequest, transactional: bool
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        """What is wrong with a commit: for all of it (NONE: nothing), or of some partitions (KIP-1251)."""
        if request.generation < 0:
            nameless = not request.member_id and request.instance_id is None
            if not self.members or (transactional and nameless):
                return ErrorCode.NONE
        member = self.members.get(request.member_id)
        if member is None or member.value is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if request.instance_id is not None and member.value.instance_id != request.instance_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member.classic:
            same = request.generation == member.at.epoch
            return ErrorCode.NONE if same else ErrorCode.ILLEGAL_GENERATION
        if not transactional and not request.knows_missing_groups:
            return ErrorCode.UNSUPPORTED_VERSION
        at = member.at
        if request.generation == at.epoch:
            return ErrorCode.NONE
        if request.generation > at.epoch:
            return ErrorCode.STALE_MEMBER_EPOCH
        stale: dict[TopicPartition, ErrorCode] = {}
        for tp, committed in request.offsets:
            partition = (committed.topic_id or b"", tp.partition)
            since = at.assigned.get(partition, at.pending.get(partition))
            if since is None or since > request.generation:
                stale[tp] = ErrorCode.STALE_MEMBER_EPOCH
        return stale

    def fetch_error(self, member_id: str | None, epoch: int) -> ErrorCode:
        """What is wrong with an OffsetFetch that names a member, which must be at this epoch."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.at.epoch == epoch:
            return ErrorCode.NONE
        return ErrorCode.ILLEGAL_GENERATION if member.classic else ErrorCode.STALE_MEMBER_EPOCH

    # --- the log ------------------------------------------------------------------------------------------------

    def apply(self, key: ConsumerKey, raw: bytes | None) -> bool:
        """Apply a record; False for a value of a newer version. Raises BadRecord.

        A tombstone of what is not there has no effect: the cleaner may have taken away what it is for.
        """
        match key.kind:
            case ConsumerKind.GROUP | ConsumerKind.TARGET:
                pair = (0, 0) if raw is None else r.decode_epoch(raw)
                if pair is not None and key.kind is ConsumerKind.GROUP:
                    self.epoch, self.hash = pair
                    self.exists = raw is not None
                elif pair is not None:
                    self.assignment_epoch = pair[0]
                return pair is not None
            case ConsumerKind.REGEX:
                resolved = None if raw is None else r.decode_regex(raw)
                if resolved is not None:
                    self.regexes[key.name] = resolved
                elif raw is None:
                    self.regexes.pop(key.name, None)
                    self.looked_up.pop(key.name, None)
                return raw is None or resolved is not None
            case _:
                return self._apply_member(key, raw)

    def _apply_member(self, key: ConsumerKey, raw: bytes | None) -> bool:
        member = self.members.get(key.name)
        if member is None:
            if raw is None:
                return True
            member = Member(key.name)
        known = True
        if key.kind is ConsumerKind.MEMBER:
            value = None if raw is None else r.decode_member(raw)
            known = raw is None or value is not None
            if known:
                self._name(member, value)
        elif key.kind is ConsumerKind.MEMBER_TARGET:
            target = None if raw is None else r.decode_member_target(raw)
            known = raw is None or target is not None
            if target is not None:
                target = tuple(_same_objects(target, member.at.assigned))
            member.target = target if known else member.target
        else:
            current = None if raw is None else r.decode_current(raw)
            known = raw is None or current is not None
            if known:
                self.keep_current(member, current)
        if known:
            self.members[member.id] = member
        if member.value is None and member.current is None and member.target is None:
            self.members.pop(member.id, None)
        return known

    def _name(self, member: Member, value: MemberValue | None) -> None:
        before = member.value.instance_id if member.value is not None else None
        if before is not None and self.statics.get(before) == member.id:
            del self.statics[before]
        if member.value is not None:
            _uncount(self.subscriptions, member.value)
        if value is not None:  # members of a group say much the same
            latest = self.latest or value
            value = self.latest = MemberValue._make(b if a == b else a for a, b in zip(value, latest, strict=True))
            self.subscriptions[value.subscription] += 1
        member.value = value
        if value is not None and value.instance_id is not None:
            self.statics[value.instance_id] = member.id

    def keep_current(self, member: Member, current: Current | None) -> None:
        for partition in (*member.at.assigned, *member.at.pending):
            if self.owners.get(partition) == member.id:
                del self.owners[partition]
        if current is not None:
            assigned = _same_objects(current.assigned, member.target or ())
            current = current._replace(assigned=dict(zip(assigned, current.assigned.values(), strict=True)))
        member.current = current
        for partition in (*member.at.assigned, *member.at.pending):
            self.owners[partition] = member.id
        if member.seen:
            member.seen = member.part(frozenset(member.seen))

    def loaded(self, turn: Turn, settings: ConsumerSettings) -> None:
        """Give each member a whole session, and those that give up partitions their time; drop torn members."""
        for member in list(self.members.values()):
            if member.value is None:  # the cleaner took the record away, and the tombstones of the others are to come
                self.keep_current(member, None)
                del self.members[member.id]
                continue
            turn.schedule("member", self.id, session_ms(member.value, settings), member.id)
            if member.at.state == r.UNREVOKED and not member.classic:
                turn.schedule("revoke", self.id, member.value.rebalance_timeout_ms, member.id)


def _uncount(subscriptions: Counter[Subscription], value: MemberValue) -> None:
    subscriptions[value.subscription] -= 1
    if not subscriptions[value.subscription]:
        del subscriptions[value.subscription]


def _topics_of(subscription: Subscription, regexes: Mapping[str, Resolved]) -> frozenset[str]:
    """The names that a member subscribes to: those it names, and what its pattern matches."""
    topics, regex = subscription
    matched = regexes.get(regex) if regex else None
    return frozenset(topics).union(matched.topics if matched is not None else ())


def _same_objects(partitions: Iterable[Partition], known: Iterable[Partition]) -> list[Partition]:
    """The partitions, by the objects that are known for them: groups have many thousands."""
    ours = {partition: partition for partition in known}
    return [ours.get(partition, partition) for partition in partitions]


def _key(group: ConsumerGroup, kind: ConsumerKind, name: str = "") -> ConsumerKey:
    return ConsumerKey(kind, group.id, name)


def tombstones(group: ConsumerGroup) -> list[CoordinatorRecord]:
    """What deletes a group: of what the log has, in Kafka's order."""
    members = group.members.values()
    gone = [r.record(_key(group, ConsumerKind.CURRENT, m.id), None) for m in members if m.current is not None]
    gone += [r.record(_key(group, ConsumerKind.MEMBER_TARGET, m.id), None) for m in members if m.target is not None]
    gone += [r.record(_key(group, ConsumerKind.TARGET), None)] if group.assignment_epoch else []
    gone += [r.record(_key(group, ConsumerKind.MEMBER, m.id), None) for m in members if m.value is not None]
    gone += [r.record(_key(group, ConsumerKind.REGEX, regex), None) for regex in group.regexes]
    return [*gone, r.record(_key(group, ConsumerKind.GROUP), None)]


def _preferred(values: Iterable[MemberValue], default: str) -> str:
    wishes = Counter(value.assignor for value in values if value.assignor is not None and value.assignor in ASSIGNORS)
    return min(wishes, key=lambda name: (-wishes[name], name), default=default)


# --- the heartbeat ----------------------------------------------------------------------------------------------


class _Draft:
    """The group as a heartbeat would have it: its patterns, subscriptions and targets with what changes."""

    def __init__(self, group: ConsumerGroup, gone: Iterable[Member] = ()) -> None:
        self.group = group
        self.epoch = group.epoch
        self.hash = group.hash
        self.assignment_epoch = group.assignment_epoch
        self.regexes = dict(group.regexes)
        self.subscriptions = group.subscriptions.copy()
        self.targets: dict[str, tuple[Partition, ...]] = {}
        """New ones, if there are."""
        self._gone: set[str] = set()
        self._changed: dict[str, tuple[MemberValue, tuple[Partition, ...]]] = {}
        for member in gone:
            self._gone.add(member.id)
            self._forget(member)

    def _forget(self, member: Member | None) -> None:
        if member is not None and member.value is not None:
            _uncount(self.subscriptions, member.value)

    def take(self, member_id: str, value: MemberValue, target: tuple[Partition, ...]) -> None:
        """A member that is new, or says something else than it did, with its target until now."""
        self._forget(self.group.members.get(member_id))
        self.subscriptions[value.subscription] += 1
        self._changed[member_id] = value, target

    def topics(self) -> set[str]:
        """What any member subscribes to."""
        return set().union(*(_topics_of(subscription, self.regexes) for subscription in self.subscriptions))

    def metadata_hash(self, picture: Picture) -> int:
        """Of the topics that members subscribe to: another one for other ids or numbers of partitions."""
        digest = hashlib.blake2b(digest_size=8)
        present = sorted(name for name in self.topics() if name in picture.topics)
        for name in present:
            topic = picture.topics[name]
            digest.update(f"{name}:{topic.id}:{len(topic.partitions)};".encode())
        return int.from_bytes(digest.digest(), signed=True) if present else 0

    def assign_in_time(self, settings: ConsumerSettings, turn: Turn, *, at_once: bool) -> None:
        """Compute a target if one is missing, but not sooner after the last than the interval says (KIP-1263)."""
        since = self.group.assigned_ms
        wait_ms = 0 if since is None else since + settings.assignment_interval_ms - turn.now.mono_ms
        if self.epoch > self.assignment_epoch:
            if at_once or wait_ms <= 0:
                self.assign(settings, turn)
            else:
                turn.schedule("assign", self.group.id, wait_ms)

    def assign(self, settings: ConsumerSettings, turn: Turn) -> None:
        """A new target, with the records of the members that it is another one for; the group's comes last."""
        group, topics = self.group, self.group.picture.topics
        kept = [member for member in group.members.values() if member.id not in self._gone]
        present = {m.id: (m.value, m.target or ()) for m in kept if m.value is not None} | self._changed
        ids = {name: topics[name].id.bytes for name in self.topics() if name in topics}
        wanted = {
            subscription: frozenset(ids[topic] for topic in _topics_of(subscription, self.regexes) if topic in ids)
            for subscription in self.subscriptions
        }
        members = {
            name: Subscriber(wanted[value.subscription], target)
            for name, (value, target) in sorted(
                present.items(), key=lambda item: (item[1][0].instance_id or item[0], item[0])
            )
        }
        assignor = ASSIGNORS[_preferred((value for value, _ in present.values()), settings.assignors[0])]
        counts = {topic_id: len(topics[name].partitions) for name, topic_id in ids.items()}
        for name, target in (assignor(members, counts) if members else {}).items():
            before = group.members.get(name)
            if target != ((before.target or ()) if before is not None else ()):
                key = _key(group, ConsumerKind.MEMBER_TARGET, name)
                turn.records.append(r.record(key, r.member_target_value(target)))
            self.targets[name] = target
        self.assignment_epoch = self.epoch
        value_of_target = r.epoch_value(self.epoch, turn.now.wall_ms)
        turn.records.append(r.record(_key(group, ConsumerKind.TARGET), value_of_target))
        group.assigned_ms = turn.now.mono_ms

    def resolve(self, beat: Beat, turn: Turn) -> bool:
        """Take over the patterns that were looked up, drop those without a member; whether topics changed."""
        group, changed = self.group, False
        used = {regex for _, regex in self.subscriptions if regex}
        for regex, resolved in beat.resolved.items():
            if regex not in used:
                continue
            before = self.regexes.get(regex)
            if before is None or before.topics != resolved.topics:
                self.regexes[regex] = resolved
                turn.records.append(r.record(_key(group, ConsumerKind.REGEX, regex), r.regex_value(resolved)))
                changed = True
            else:
                group.looked_up[regex] = resolved
        for regex in [regex for regex in self.regexes if regex not in used]:
            del self.regexes[regex]
            turn.records.append(r.record(_key(group, ConsumerKind.REGEX, regex), None))
        return changed

    def bump(self, changed: bool, turn: Turn) -> None:
        """The group's next epoch if its members' subscriptions or topics changed."""
        group, picture = self.group, self.group.picture
        if picture.version >= 0 and (changed or picture.version != group.hashed_version):
            self.hash = self.metadata_hash(picture)
            if self.hash == group.hash:
                group.hashed_version = picture.version
        if changed or self.hash != group.hash:
            self.epoch = group.epoch + 1
            turn.records.append(r.record(_key(group, ConsumerKind.GROUP), r.epoch_value(self.epoch, self.hash)))


def consumer_heartbeat(
    group: ConsumerGroup, beat: Beat, picture: Picture, turn: Turn, settings: ConsumerSettings
) -> Result:
    """Handle a heartbeat; answers :class:`BeatAnswer`. Raises BeatRefused."""
    group.picture = picture
    if beat.epoch < JOINS:
        return _leave(group, beat, turn, settings)
    member, replaced = _member(group, beat, settings)
    old, new = step(group, beat, member, replaced, turn, settings)
    fresh = member is None
    tell = beat.full or beat.epoch != old.epoch or fresh or new.assigned.keys() != old.assigned.keys()
    assignment = tuple(sorted(new.assigned)) if tell else None
    interval_ms = settings.heartbeat_interval_ms
    if beat.epoch == JOINS:
        before_ms, group.joined_ms = group.joined_ms, turn.now.mono_ms
        if before_ms is not None and turn.now.mono_ms - before_ms < interval_ms:
            # members that join at once would ask at once ever after; one alone waits as long as others may give up
            interval_ms -= zlib.crc32(beat.member_id.encode()) % (interval_ms // 2 + 1)
    return turn.result(BeatAnswer(ErrorCode.NONE, None, beat.member_id, new.epoch, interval_ms, assignment))


def rests(
    group: ConsumerGroup, member_id: str, epoch: int, instance_id: str | None, client: tuple[str, str], picture: Picture
) -> bool:
    """Whether all that :func:`consumer_heartbeat` would do with a heartbeat that says no more than this is to begin the
    member's session anew and to answer with its epoch. False also wherever that takes a closer look.
    """
    member = group.members.get(member_id)
    if member is None or member.current is None or member.value is None:
        return False
    at, value = member.current, member.value
    if not JOINS < epoch == at.epoch == group.assignment_epoch >= group.epoch or at.state != r.STABLE:
        return False
    if picture.version != group.hashed_version or value.classic is not None:
        return False
    if client != (value.client_id, value.client_host):
        return False
    if instance_id is not None and (instance_id != value.instance_id or group.statics.get(instance_id) != member_id):
        return False
    looked_up = group.looked_up.get(value.regex) if value.regex else None
    if value.regex and (looked_up is None or looked_up.version != picture.version):
        return False
    group.picture = picture
    return True


def moves_alone(group: ConsumerGroup, beat: Beat, picture: Picture, settings: ConsumerSettings) -> bool:
    """Whether a heartbeat changes at most what its own member has, towards a target that the log has, or adds one.

    Such heartbeats of several members may be handled by the same state of the log, one beside the other: a partition is
    in one target alone, and nobody else takes it; what others give up meanwhile is not free for this one yet.
    """
    member = group.members.get(beat.member_id)
    if beat.epoch == JOINS:
        return settings.max_size == UNLIMITED and _joins_alone(group, beat, picture)
    if beat.epoch < JOINS or beat.resolved or member is None or member.value is None:
        return False
    late = group.epoch > group.assignment_epoch or picture.version != group.hashed_version
    return not late and _updated(member.value, beat) == member.value


def _joins_alone(group: ConsumerGroup, beat: Beat, picture: Picture) -> bool:
    """Whether a member is new, brings no other topics, and will be in the target that is awaited: its timer runs."""
    new = beat.member_id not in group.members and beat.instance_id is None and beat.classic is None
    awaited = group.epoch > group.assignment_epoch and group.assigned_ms is not None
    if not new or not awaited or beat.resolved or picture.version != group.hashed_version:
        return False
    return _updated(UNKNOWN, beat).subscription in group.subscriptions


def step(
    group: ConsumerGroup, beat: Beat, member: Member | None, replaced: Member | None, turn: Turn,
    settings: ConsumerSettings,
) -> tuple[Current, Current]:  # fmt: skip
    """Take over what a request says, and bring its member nearer to its target: what it had, and what it has.

    ``member`` None: a new one, in the place of the static member ``replaced``, if it is not None.
    """
    picture, fresh = group.picture, member is None
    if member is None:
        member = Member(beat.member_id)
        if replaced is not None:
            member.value, member.target = replaced.value, replaced.target
            member.current = replaced.at._replace(epoch=JOINS, previous_epoch=JOINS)
            _bury(group, replaced, turn)
    if _late(member, beat):  # nor does anybody get the answer
        _time(group, member.id, member.at, member.at, member.value or UNKNOWN, turn, settings)
        return member.at, member.at
    _listen(member, beat)
    before = member.value or UNKNOWN
    value = _updated(before, beat)
    if fresh or value != member.value:
        turn.records.append(r.record(_key(group, ConsumerKind.MEMBER, member.id), r.member_value(value)))
    target, epoch = member.target or (), group.assignment_epoch
    if fresh and target:
        key = _key(group, ConsumerKind.MEMBER_TARGET, member.id)
        turn.records.append(r.record(key, r.member_target_value(target)))
    late = group.epoch > epoch or picture.version != group.hashed_version
    if fresh or value != member.value or beat.resolved or late:
        draft = _Draft(group, () if replaced is None else (replaced,))
        draft.take(member.id, value, target)
        resubscribed = (value.topics, value.regex) != (before.topics, before.regex)
        changed = draft.resolve(beat, turn) or resubscribed
        draft.bump(changed or (fresh and replaced is None), turn)
        if not _joins_alone(group, beat, picture):
            draft.assign_in_time(settings, turn, at_once=changed and not fresh)
        target, epoch = draft.targets.get(member.id, target), draft.assignment_epoch
    old = member.at
    new = _next(group, member, target, epoch, beat, replaced)
    if fresh or new != old:
        turn.records.append(r.record(_key(group, ConsumerKind.CURRENT, member.id), r.current_value(new)))
    _time(group, member.id, old, new, value, turn, settings)
    return old, new


def _member(group: ConsumerGroup, beat: Beat, settings: ConsumerSettings) -> tuple[Member | None, Member | None]:
    """The member of the request, None for a new one; and the static member whose place that takes."""
    member, replaced = group.members.get(beat.member_id), None
    if beat.instance_id is not None:
        holder = group.members.get(group.statics.get(beat.instance_id, ""))
        if holder is None:
            if beat.epoch != JOINS or member is not None:
                raise BeatRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {beat.instance_id} is unknown.")
        elif holder is not member:
            if beat.epoch != JOINS or member is not None:
                raise BeatRefused(ErrorCode.FENCED_INSTANCE_ID, f"Static member {holder.id} has this instance id.")
            if holder.at.epoch != LEAVES_FOR_NOW and not holder.classic:
                text = f"Static member {holder.id} with instance id {beat.instance_id} has not left the group."
                raise BeatRefused(ErrorCode.UNRELEASED_INSTANCE_ID, text)
            replaced = holder
    if member is None:
        if beat.epoch != JOINS:
            raise BeatRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {beat.member_id} is not a member of the group.")
        if replaced is None and len(group.members) >= settings.max_size:
            raise BeatRefused(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has its maximum of {settings.max_size} members."
            )
    elif beat.epoch != JOINS:
        _check_epoch(member.at, beat)
    return member, replaced


def _check_epoch(at: Current, beat: Beat) -> None:
    """A member may be one epoch behind, as the answer may be lost, if it owns only what it has."""
    if beat.epoch == at.epoch:
        return
    behind = beat.epoch < at.epoch and beat.epoch == at.previous_epoch
    if behind and beat.owned is not None and beat.owned <= at.assigned.keys():
        return
    raise BeatRefused(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The member is at epoch {at.epoch}, not {beat.epoch}. It must give up its partitions and join again.",
    )


def _late(member: Member, beat: Beat) -> bool:
    """Whether the request was on its way by a connection that its member has given up, and tells nothing of now."""
    return beat.classic is None and beat.link < member.link


def _listen(member: Member, beat: Beat) -> None:
    """Note what the member says it owns."""
    member.link = beat.link
    if beat.epoch == JOINS or beat.classic is not None:
        member.reported = member.seen = ()
        member.asked = False
    elif beat.owned is not None:  # also at the epoch before, when it did not hear the answer
        member.reported = member.part(beat.owned)
        member.seen = member.part({*member.seen, *member.reported})


def _updated(value: MemberValue, beat: Beat) -> MemberValue:
    return MemberValue(
        value.instance_id if beat.instance_id is None else beat.instance_id,
        value.rack_id if beat.rack_id is None else beat.rack_id,
        beat.client_id,
        beat.client_host,
        value.topics if beat.topics is None else tuple(sorted(set(beat.topics))),
        value.regex if beat.regex is None else beat.regex or None,
        value.rebalance_timeout_ms if beat.rebalance_timeout_ms < 0 else beat.rebalance_timeout_ms,
        value.assignor if beat.assignor is None else beat.assignor,
        beat.classic,
    )


def _gave_up(member: Member, beat: Beat) -> bool:
    """Whether the member certainly has none of the partitions that it must give up."""
    if beat.epoch == JOINS or beat.classic is not None:
        return not _keeps(beat, member.at.pending)
    owned: Collection[Partition] | None = member.reported if beat.owned is None else beat.owned
    if beat.epoch != member.at.epoch or owned is None:
        return False
    owned, seen = frozenset(owned), frozenset(member.seen)
    return all(p not in owned and (p in seen or not beat.full) for p in member.at.pending)


def _keeps(beat: Beat, partitions: Iterable[Partition]) -> bool:
    """Whether a member may have some of these still. One that joins tells all that it has, by either protocol."""
    return beat.epoch != JOINS if beat.classic is None else any(p in (beat.owned or ()) for p in partitions)


def _next(
    group: ConsumerGroup, member: Member, target: tuple[Partition, ...], epoch: int, beat: Beat, replaced: Member | None
) -> Current:
    """The member's next step towards its target of that assignment epoch."""
    at = member.at
    if at.state == r.UNREVOKED and not _gave_up(member, beat):
        return at
    if at.state == r.STABLE and at.epoch == epoch:
        return at
    wanted = set(target)
    kept = {partition: since for partition, since in at.assigned.items() if partition in wanted}
    lost = {partition: since for partition, since in at.assigned.items() if partition not in wanted}
    if lost and _keeps(beat, lost):
        return Current(at.epoch, at.previous_epoch, r.UNREVOKED, kept, lost)
    mine = {None, member.id, replaced.id if replaced is not None else None}
    state = r.STABLE
    for partition in target:
        if partition not in kept:
            if group.owners.get(partition) in mine:
                kept[partition] = epoch
            else:
                state = r.UNRELEASED
    return Current(epoch, at.previous_epoch if at.epoch == epoch else at.epoch, state, kept, {})


def _time(
    group: ConsumerGroup, name: str, old: Current, new: Current, value: MemberValue, turn: Turn,
    settings: ConsumerSettings,
) -> None:  # fmt: skip
    """Begin the session anew; the time to give up partitions begins when they are taken away.

    A member of the classic protocol has its own times: to join again when it is asked to, then to ask what it has.
    """
    turn.schedule("member", group.id, session_ms(value, settings), name)
    if value.classic is not None:
        turn.schedule("resync", group.id, value.rebalance_timeout_ms, name)
        turn.cancel("rejoin", group.id, name)
        turn.cancel("revoke", group.id, name)
    elif new.state == r.UNREVOKED and (old.state != r.UNREVOKED or old.pending != new.pending):
        turn.schedule("revoke", group.id, value.rebalance_timeout_ms, name)
    elif new.state != r.UNREVOKED and old.state == r.UNREVOKED:
        turn.cancel("revoke", group.id, name)


def session_ms(value: MemberValue, settings: ConsumerSettings) -> int:
    """After so long without a request the member is gone; members of the classic protocol say it themselves."""
    return settings.session_timeout_ms if value.classic is None else value.classic.session_timeout_ms


# --- the end of a membership ------------------------------------------------------------------------------------


def _leave(group: ConsumerGroup, beat: Beat, turn: Turn, settings: ConsumerSettings) -> Result:
    member = group.members.get(beat.member_id)
    if beat.instance_id is not None:
        holder = group.members.get(group.statics.get(beat.instance_id, ""))
        if holder is not None and holder is not member:
            raise BeatRefused(ErrorCode.FENCED_INSTANCE_ID, f"Static member {holder.id} has this instance id.")
        member = holder
    if member is None:
        raise BeatRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {beat.member_id} is not a member of the group.")
    if beat.epoch == LEAVES_FOR_NOW:
        away = member.at._replace(epoch=LEAVES_FOR_NOW, previous_epoch=member.at.epoch, state=r.STABLE, pending={})
        turn.records.append(r.record(_key(group, ConsumerKind.CURRENT, member.id), r.current_value(away)))
        turn.cancel("revoke", group.id, member.id)
    else:
        remove_members(group, [member], turn, settings)
    return turn.result(BeatAnswer(ErrorCode.NONE, None, beat.member_id, beat.epoch))


def _bury(group: ConsumerGroup, member: Member, turn: Turn) -> None:
    """Tombstones of what the log has of a member, and the end of its timers."""
    has = ((ConsumerKind.CURRENT, member.current), (ConsumerKind.MEMBER_TARGET, member.target))
    for kind, part in (*has, (ConsumerKind.MEMBER, member.value)):
        if part is not None:
            turn.records.append(r.record(_key(group, kind, member.id), None))
    _untime(group, member, turn)


def _untime(group: ConsumerGroup, member: Member, turn: Turn) -> None:
    for kind in MEMBER_TIMERS:
        turn.cancel(kind, group.id, member.id)


def remove_members(group: ConsumerGroup, gone: Collection[Member], turn: Turn, settings: ConsumerSettings) -> None:
    """End memberships: what the members have is free, and the others get it at their heartbeats.

    If none of the others uses the consumer protocol, the group becomes a classic one.
    """
    if not gone or _downgrade(group, {member.id for member in gone}, turn, settings):
        return
    for member in gone:
        _bury(group, member, turn)
    draft = _Draft(group, gone)
    draft.resolve(Beat(group.id, "", LEAVES), turn)
    draft.bump(True, turn)


def _downgrade(group: ConsumerGroup, gone: Collection[str], turn: Turn, settings: ConsumerSettings) -> bool:
    """Turn a group whose members, but for those gone, use the classic protocol into a classic one, if it may be.

    They rebalance when that is in the log.
    """
    left = {m.id: (m.value, m.at) for m in group.members.values() if m.value is not None and m.id not in gone}
    if not left or len(left) > settings.classic_max_size or not settings.downgrades or group.picture is NO_PICTURE:
        return False
    if any(value.classic is None for value, _ in left.values()):
        return False
    stored = classic_record(group.id, group.epoch, left, group.picture.topics, turn.now)
    if stored is None:
        return False
    turn.records += tombstones(group)
    turn.records.append(group_record(group.id, stored))
    for member in group.members.values():
        _untime(group, member, turn)
    turn.schedule("rebalance", group.id, 0)
    return True


def on_timer(group: ConsumerGroup, kind: str, member_id: str, turn: Turn, settings: ConsumerSettings) -> None:
    """A time of a member's is over; or a target may be computed now, or the group become a classic one."""
    member = group.members.get(member_id)
    if kind == "assign":
        draft = _Draft(group)
        if group.picture is not NO_PICTURE and group.epoch > group.assignment_epoch and draft.subscriptions:
            draft.assign(settings, turn)
    elif kind == "downgrade":
        _downgrade(group, (), turn, settings)
    elif member is not None and (
        kind == "member" or (member.at.state == r.UNREVOKED if kind == "revoke" else member.classic)
    ):
        remove_members(group, [member], turn, settings)
