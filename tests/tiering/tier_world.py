"""A tiered partition of three replicas whose leaders change, over a bucket that fails, is slow and loses answers.

The oracle knows each committed record, and what retention and clients allow to be gone. Between any two calls to the
bucket anything may come: appends, elections, a former leader that does not know yet that it is one, its calls that are
applied late, listings that lack what was written just now.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from fleetlog.brokers.tiering.decisions import Listed, LocalLog, LocalSegment, TierLimits, first_offset
from fleetlog.brokers.tiering.leader import (
    BucketError,
    NameTaken,
    NoSuchObject,
    TierLeader,
    TierOvertaken,
    Uploaded,
    prefix_of,
    remove_partition,
)
from fleetlog.brokers.tiering.manifest import Manifest, ManifestEpoch, decode_manifest, generation_of

TOPIC = uuid.UUID(int=7)
PREFIX = prefix_of("orders", TOPIC, 0)
GRACE_MS, LEASE_MS, LATE_MS = 60_000, 6_000, 20_000
"""An orphan's age; how long a former leader may not know; how late a call may be applied."""


class Violation(AssertionError):
    """A rule was broken."""


class Record(NamedTuple):
    """One record of one byte."""

    epoch: int
    number: int
    time_ms: int


class Call:
    """A call under way: it is awaited, and the world decides what becomes of it."""

    def __init__(self, apply: Callable[[], Any], *, reads: bool) -> None:
        self.apply = apply
        self.reads = reads

    def __await__(self) -> Generator[Call, Any, Any]:
        return (yield self)


class SimulatedBucket:
    """Objects with the times of their writes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.held: dict[str, tuple[bytes, int]] = {}

    def write_new(self, name: str, data: bytes) -> None:
        if name in self.held:
            raise NameTaken(name)
        self.held[name] = data, self.world.now_ms

    def read(self, name: str) -> bytes:
        if name not in self.held:
            raise NoSuchObject(name)
        return self.held[name][0]

    def listed(self, prefix: str) -> list[Listed]:
        seen_ms = self.world.now_ms - self.world.random.choice((-1, -1, 0, 2_000))
        rows = sorted(self.held.items())
        return [Listed(n, len(d), at) for n, (d, at) in rows if n.startswith(prefix) and at <= seen_ms]

    def remove(self, names: list[str]) -> None:
        newest = self.newest()
        named = {PREFIX + name for name in newest.names()} if newest is not None else set()
        if newest is not None and self.world.removes and newest.broker_id >= 0:
            named = set()  # what a leader says that does not know of the deletion goes, too
        for name in names:
            if name in named and name in self.held:
                raise Violation(f"{name} is deleted, and the newest manifest names it")
            self.held.pop(name, None)

    def newest(self) -> Manifest | None:
        names = [name for name in self.held if generation_of(name.removeprefix(PREFIX)) >= 0]
        return decode_manifest(self.held[max(names)][0], max(names)) if names else None

    async def put_new(self, name: str, data: bytes) -> None:
        await Call(lambda: self.write_new(name, data), reads=False)

    async def get(self, name: str, start: int = 0, size: int = -1) -> bytes:
        data: bytes = await Call(lambda: self.read(name), reads=True)
        return data

    async def objects(self, prefix: str) -> list[Listed]:
        rows: list[Listed] = await Call(lambda: self.listed(prefix), reads=True)
        return rows

    async def delete(self, names: list[str]) -> None:
        await Call(lambda: self.remove(names), reads=False)


class Replica:
    """A log: its records from its start on, where its segments begin, and the epochs it knows."""

    def __init__(self) -> None:
        self.start = 0
        self.records: dict[int, Record] = {}
        self.bases = [0]

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    @property
    def epochs(self) -> tuple[ManifestEpoch, ...]:
        entries: list[ManifestEpoch] = []
        for offset, record in sorted(self.records.items()):
            if not entries or entries[-1].epoch != record.epoch:
                entries.append(ManifestEpoch(record.epoch, offset))
        return tuple(entries)

    def append(self, offset: int, record: Record) -> None:
        assert offset == self.end
        self.records[offset] = record

    def roll(self) -> None:
        if self.end > self.bases[-1]:
            self.bases.append(self.end)

    def cut(self, end: int) -> None:
        self.records = {offset: record for offset, record in self.records.items() if offset < end}
        self.bases = [base for base in self.bases if base < end] or [end]
        if end < self.start:
            self.start, self.bases = end, [end]

    def begin_at(self, offset: int) -> None:
        """Everything before goes, as far as whole segments."""
        if offset >= self.end:
            self.start, self.records, self.bases = offset, {}, [offset]
            return
        self.start = max(self.start, offset)
        self.records = {at: record for at, record in self.records.items() if at >= self.start}
        self.bases = [base for base in self.bases if base > self.start]
        self.bases.insert(0, self.start)

    def view(self, stable: int) -> LocalLog:
        bounds = [*self.bases, self.end]
        segments = tuple(
            LocalSegment(first, last, last - first, max(self.records[at].time_ms for at in range(first, last)))
            for first, last in pairwise(bounds[:-1])
            if last > first
        )
        return LocalLog(self.start, self.end, stable, len(self.records), segments, self.epochs)


class Removal:
    """The work of the broker that removes a deleted topic, again and again."""

    def __init__(self) -> None:
        self.work: Coroutine[Call, Any, Any] | None = None
        self.call: Call | None = None


class Led:
    """A leader's work in one epoch; its log is a copy once it was deposed."""

    def __init__(self, world: World, broker: int, epoch: int) -> None:
        self.world = world
        self.replica = world.replicas[broker]
        self.broker = broker
        self.epoch = epoch
        self.until_ms = -1
        """Until when it believes that it leads, once it does not any more."""
        self.work: Coroutine[Call, Any, Any] | None = None
        self.call: Call | None = None
        mine = Manifest(TOPIC, 0, leader_epoch=epoch, broker_id=broker, incarnation=epoch)
        self.tier = TierLeader(
            world.bucket, PREFIX, self, mine, now_ms=lambda: world.now_ms, new_id=world.new_id, grace_ms=GRACE_MS
        )

    @property
    def deposed(self) -> bool:
        return self.until_ms >= 0

    def view(self) -> LocalLog:
        if self.deposed and self.world.now_ms > self.until_ms:
            raise TierOvertaken("the lease has run out")
        return self.replica.view(min(self.replica.end, len(self.world.truth)) if not self.deposed else self.stable)

    stable = 0

    def limits(self) -> TierLimits:
        limits = self.world.limits
        if limits.copies:
            return limits
        return limits._replace(local_ms=limits.retention_ms, local_bytes=limits.retention_bytes)

    async def upload(self, segment: LocalSegment, log_name: str, index_name: str) -> Uploaded:
        rows = [self.replica.records.get(at) for at in range(segment.start, segment.end)]
        if None in rows:
            raise BucketError("the segment went")
        data = json.dumps(rows).encode()
        await Call(lambda: self.world.bucket.write_new(log_name, data), reads=False)
        await Call(lambda: self.world.bucket.write_new(index_name, b"index"), reads=False)
        return Uploaded(len(rows), 5, 0, 0)

    def begin_at(self, offset: int) -> None:
        self.view()
        self.replica.begin_at(offset)
        if not self.deposed:
            for other in self.world.replicas:
                if other is not self.replica:
                    other.begin_at(offset)

    def depose(self) -> None:
        """It goes on with what it has, for a while."""
        world, present = self.world, self.replica
        self.stable = min(present.end, len(world.truth))
        self.until_ms = world.now_ms + world.random.randint(0, LEASE_MS)
        self.replica = Replica()
        self.replica.start, self.replica.records = present.start, dict(present.records)
        self.replica.bases = list(present.bases)


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000_000
        self.truth: list[Record] = []
        self.replicas = [Replica() for _ in range(3)]
        self.bucket = SimulatedBucket(self)
        self.late: list[tuple[int, Call]] = []
        choose = self.random.choice
        self.limits = TierLimits(
            choose((-1, 30_000, 120_000)), choose((-1, 25, 60)), choose((-1, 0, 5_000)), choose((0, 5, 20)),
            choose((0, 0, 20_000, -1)), choose((-1, -1, 8)),
        )  # fmt: skip
        self.trouble = choose((0.0, 0.1, 0.35))
        self.switches = choose((0.96, 0.97, 0.975))
        """Up to which of what happens is switched all the time: nothing, copies, the tier itself too."""
        self.sweeps = choose((0.1, 0.4))
        """How much of a leader's work is to look for orphans."""
        self.ahead_ms = choose((0, 0, 100_000))
        """How far ahead some clients' clocks are."""
        self.numbers = 0
        self.floor = 0
        """Records before that offset may be gone."""
        self.deleted = 0
        """Records before that offset were deleted, and a client was told so."""
        self.begun = 0
        """Where clients were told that the log begins."""
        self.was_to_end = False
        """Then a former leader's copy may be counted when the tier is wanted again: the log begins earlier."""
        self.removes = False
        """Whether the topic is deleted."""
        self.lost = False
        """Whether committed records were lost, and no manifest knows: then one waits for the end (docs/tiering.md)."""
        self.epoch = 0
        self.leaders = [Led(self, 0, 0)]

    def new_id(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128))

    @property
    def leader(self) -> Led:
        return self.leaders[-1]

    # ---- what happens

    def append(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            record = Record(self.epoch, self.numbers, self.now_ms + self.random.choice((0, 0, self.ahead_ms)))
            self.numbers += 1
            for replica in self.replicas:
                replica.append(len(self.truth), record)
            self.truth.append(record)
        for replica in self.replicas:
            if self.random.random() < 0.5:
                replica.roll()

    def elect(self) -> None:
        unclean = self.random.random() < 0.2
        self.leader.depose()
        broker = self.random.randrange(3)
        if unclean and self.truth:
            end = self.random.randint(max(0, len(self.truth) - 15), len(self.truth))
            del self.truth[end:]
            self.deleted = min(self.deleted, end)
            self.begun = min(self.begun, end)
            self.lost = True
            for replica in self.replicas:
                replica.cut(end)
                if replica.start > end:
                    raise Violation("a replica begins behind its leader's end")
        self.epoch += 1
        if self.random.random() < 0.3:  # the replica is new: it has the log from its leader's start on only
            self.replicas[broker].bases = [self.replicas[broker].start]
        self.leaders = [*self.leaders[-2:], Led(self, broker, self.epoch)]

    def delete_records(self) -> None:
        tier = self.leader.tier
        if tier.manifest is not None and self.truth:
            offset = self.random.randint(0, len(self.truth))
            tier.deleted_before = max(tier.deleted_before, offset)
            self.floor = max(self.floor, offset)

    def remove(self, *, last: bool = True) -> Coroutine[Call, Any, Any]:
        return remove_partition(self.bucket, PREFIX, lambda: self.now_ms, last=last)

    def switch(self) -> None:
        """The tier is to be deleted, and its log goes by its own retention; or it is wanted again, perhaps too soon."""
        led, replica = self.leader, self.leader.replica
        if not self.limits.ends:
            self.limits = self.limits._replace(ends=True)
            self.was_to_end = True
            return
        if self.lost and not led.tier.ended:
            return
        bases = [base for base in replica.bases if replica.start < base <= self.floor]
        if bases:
            led.begin_at(self.random.choice(bases))
        self.limits = self.limits._replace(ends=False)

    def renew(self) -> None:
        """A tier that had ended begins anew where it is wanted again."""
        led = self.leader
        if led.tier.ended and not self.limits.ends:
            self.leaders[-1] = Led(self, led.broker, led.epoch)

    def advance(self, led: Led | Removal) -> None:
        """One call of a leader's work is answered, or its next step begins."""
        self.renew()
        try:
            if led.work is None:
                if isinstance(led, Removal):
                    led.work = self.remove(last=False)
                else:
                    sweeps = self.random.random() < self.sweeps
                    led.work = led.tier.sweep() if sweeps else led.tier.step()
                led.call = led.work.send(None)
            else:
                self.answer(led)
        except StopIteration:
            led.work = led.call = None
        except (BucketError, TierOvertaken):
            led.work = led.call = None

    def answer(self, led: Led | Removal) -> None:
        work, call = led.work, led.call
        assert work is not None
        assert call is not None
        fate = "fine"
        if self.random.random() < self.trouble:
            fate = "failed" if call.reads else self.random.choice(("failed", "lost", "late"))
        if fate == "late":
            self.late.append((self.now_ms + self.random.randint(0, LATE_MS), call))
        if fate in ("failed", "late"):
            led.call = work.throw(BucketError(fate))
            return
        try:
            outcome = call.apply()
        except (NameTaken, NoSuchObject) as wrong:
            led.call = work.throw(wrong)
            return
        led.call = work.throw(BucketError(fate)) if fate == "lost" else work.send(outcome)

    def pass_time(self) -> None:
        self.now_ms += self.random.choice((10, 500, 5_000, 30_000))
        due = [entry for entry in self.late if entry[0] <= self.now_ms]
        self.late = [entry for entry in self.late if entry[0] > self.now_ms]
        for _, call in sorted(due, key=lambda entry: entry[0]):
            try:
                call.apply()
            except NameTaken:
                pass

    # ---- what must hold

    def note_floor(self) -> None:
        floor, limits = self.floor, self.limits
        if limits.retention_bytes >= 0:
            floor = max(floor, len(self.truth) - limits.retention_bytes)
        if limits.retention_ms >= 0:
            while floor < len(self.truth) and self.now_ms - self.truth[floor].time_ms > limits.retention_ms:
                floor += 1
        if limits.ends:  # what is in the bucket only is to go
            floor = max(floor, min(len(self.truth), max(led.replica.start for led in self.leaders)))
        self.floor = max(floor, self.floor)

    def judge(self) -> None:
        """Whatever a client may read is what was committed there."""
        manifest, replica = self.leader.tier.manifest, self.leader.replica
        if manifest is None:
            return
        self.lost = False
        start = first_offset(manifest, replica.start, self.leader.tier.deleted_before)
        if self.limits.ends:  # a log begins where a client said so, at least
            start = max(replica.start, manifest.log_start)
        if manifest.log_start >= self.leader.tier.deleted_before >= 0:
            self.deleted = max(self.deleted, self.leader.tier.deleted_before)
        if start < self.deleted:
            raise Violation(f"the log begins at {start}, and a client was told that it begins at {self.deleted}")
        begins = first_offset(manifest, replica.start, -1)
        if begins < self.begun and not self.was_to_end:
            raise Violation(f"the log begins at {begins}, after it began at {self.begun}")
        self.begun = begins
        if start > self.floor:
            raise Violation(f"the log begins at {start}, and only what is before {self.floor} may be gone")
        contents: dict[str, list[Any]] = {}
        for offset in range(start, len(self.truth)):
            if offset >= replica.start:
                record = replica.records[offset]
            else:
                index = manifest.at(offset)
                if index == len(manifest.segments) or manifest.segments[index].start > offset:
                    raise Violation(f"{offset} is nowhere: the log is here from {replica.start} on")
                segment = manifest.segments[index]
                name = PREFIX + segment.log_name
                if name not in self.bucket.held or PREFIX + segment.index_name not in self.bucket.held:
                    raise Violation(f"{offset} is in {name}, which is not there")
                if name not in contents:
                    contents[name] = json.loads(self.bucket.held[name][0])
                record = Record(*contents[name][offset - segment.start])
            if record != self.truth[offset]:
                raise Violation(f"{offset} is {record}, and was {self.truth[offset]}")

    def finish(self) -> None:
        """Without trouble everything that is due gets done, and nothing is left over."""
        self.trouble = 0.0
        if self.limits.ends:
            self.now_ms += LATE_MS + LEASE_MS
            self.pass_time()
            self.leader.work = None
            self.complete(self.leader.tier.step)
            self.switch()
        self.renew()
        self.limits = self.limits._replace(copies=True, lag_ms=0)
        self.now_ms += LATE_MS + LEASE_MS
        self.pass_time()
        led = self.leader
        led.work = None
        self.complete(led.tier.step)
        while self.complete(led.tier.step):
            pass
        self.now_ms += 2 * GRACE_MS
        self.note_floor()
        self.complete(led.tier.sweep)
        self.judge()
        newest = self.bucket.newest()
        assert newest is not None
        kept = {PREFIX + name for name in newest.names()}
        left = [n for n in self.bucket.held if n not in kept and generation_of(n.removeprefix(PREFIX)) < 0]
        if left:
            raise Violation(f"left over: {left}")
        closed = led.view().segments
        if closed and newest.end < closed[-1].end and newest.log_start < closed[-1].end:
            raise Violation(f"copied up to {newest.end} only, of {closed[-1].end}")
        if self.random.random() < 0.3:
            self.limits = self.limits._replace(ends=True)
            self.floor = led.replica.start
            self.complete(led.tier.step)
            self.judge()
            left = [n for n in self.bucket.held if generation_of(n.removeprefix(PREFIX)) < 0]
            if left or not led.tier.ended:
                raise Violation(f"of a tier that ended is left over: {left}")

    def delete_topic(self) -> None:
        """Its leaders hear of it late, or never; whatever comes between, nothing of it is left."""
        self.trouble = self.random.choice((0.0, 0.1, 0.35))
        self.limits = self.limits._replace(ends=False)
        self.elect()
        for _ in range(self.random.randint(0, 60)):
            self.random.choice((self.append, partial(self.advance, self.leader), partial(self.advance, self.leader)))()
        self.leader.depose()
        self.removes = True
        removal = Removal()
        for _ in range(self.random.randint(0, 60)):
            self.advance(self.random.choice((*self.leaders, removal, removal)))
            if self.random.random() < 0.15:
                self.pass_time()
        self.trouble = 0.0
        self.now_ms += LATE_MS + LEASE_MS + GRACE_MS
        self.pass_time()
        while self.complete(self.remove):
            self.now_ms += GRACE_MS  # a listing that was late is not any more
        if self.bucket.held:
            raise Violation(f"of a deleted topic is left over: {sorted(self.bucket.held)}")

    def complete(self, begin: Callable[[], Coroutine[Call, Any, Any]]) -> Any:
        work, resume = begin(), None
        while True:
            try:
                call = work.send(None) if resume is None else resume()
            except StopIteration as ended:
                return ended.value
            try:
                resume = partial(work.send, call.apply())
            except (NameTaken, NoSuchObject) as wrong:
                resume = partial(work.throw, wrong)


def run(seed: int, steps: int = 250) -> World:
    """One history; raises Violation."""
    world = World(seed)
    try:
        for _ in range(steps):
            world.note_floor()
            what = world.random.random()
            if world.random.random() < 0.06 and world.switches > 0.96:
                what = world.random.uniform(0.96, world.switches)
            if what < 0.6:
                world.advance(world.random.choice((*world.leaders, world.leader)))
            elif what < 0.78:
                world.append()
            elif what < 0.92:
                world.pass_time()
            elif what < 0.95:
                world.elect()
            elif what < 0.96:
                world.delete_records()
            elif what < 0.97:
                world.limits = world.limits._replace(copies=not world.limits.copies)
            elif what < 0.975:
                world.switch()
            world.note_floor()
            if what < 0.6 or what > 0.92:
                world.judge()
        world.finish()
        if world.random.random() < 0.3:
            world.delete_topic()
    except Violation as wrong:
        wrong.add_note(f"seed {seed}")
        raise
    return world
