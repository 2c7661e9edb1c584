"""A share partition with members that are slow, die and lie, leaders that change, and a coordinator that moves.

The oracle knows what members were answered, and judges every acquisition by it. A former leader may not know that it
is one, but has no lease to give records out. Writes to the coordinator may fail, or be persisted without an answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from fleetlog.brokers.shares.acks import AckBatch, AckType, WrongAcknowledgement, checked
from fleetlog.brokers.shares.coordinator import ShareShard, ShareWrite, StateAnswer
from fleetlog.brokers.shares.runs import Doom
from fleetlog.brokers.shares.state import NO_OFFSET, RecordState, ShareKey
from fleetlog.brokers.shares.times import RecordTimes
from fleetlog.brokers.shares.window import (
    MAX_SPAN,
    Noted,
    ShareLimits,
    StateWrite,
    Window,
)
from fleetlog.txn.commands import CoordinatorRecord, Now, Result, Ticket
from fleetlog.wire.errors import ErrorCode

KEY = ShareKey("g", bytes(range(16)), 0)
FINAL = (AckType.ACCEPT, AckType.REJECT)
TICKET = Ticket(0)


class Violation(AssertionError):
    """A rule was broken."""


@dataclass
class Ack:
    """What a member said of its records, and waits to be answered: for a write, for a burial, or for both."""

    member: str
    offsets: dict[int, AckType]
    waits: Noted = Noted.WRITE
    buried: frozenset[int] = frozenset()
    """Of the offsets, those that wait for a burial."""
    failed: bool = False

    def part(self, kind: Noted) -> list[int]:
        return [offset for offset in self.offsets if (offset in self.buried) == (kind is Noted.BURIAL)]


@dataclass
class Leader:
    """A leader of one epoch: its window, acknowledgements that wait for a write, and the write under way."""

    epoch: int
    window: Window
    noted: list[Ack] = field(default_factory=list)
    under_way: list[Ack] = field(default_factory=list)
    write: StateWrite | None = None
    letters: dict[int, Doom] | None = None
    """Those of the write under way, if it is a burial."""
    held: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The oracle's view: who has an offset, until when."""
    keys_known: int = 0
    """When the burial under way began."""
    counts: dict[int, int] = field(default_factory=dict)
    given_ms: dict[int, int] = field(default_factory=dict)


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000
        self.limits = ShareLimits(
            self.random.choice((5, 40, 200)), self.random.choice((2, 3, 5)), self.random.choice((1_000, 30_000))
        )
        draw = random.Random(f"{seed}/order")
        self.ordered = draw.random() < 0.4
        if draw.random() < 0.4:
            self.limits = self.limits._replace(backoff_ms=draw.choice((50, 2_000)), backoff_max_ms=5_000)
        draw = random.Random(f"{seed}/delays")
        self.times: dict[int, int] = {}
        """From when on records may be given out, of those that say it, by a clock that is ahead of the other one."""
        if draw.random() < 0.5:
            kept = draw.choice((2, 10, 100_000))
            self.limits = self.limits._replace(delay_max_ms=draw.choice((500, 60_000)), times_kept=kept)
        self.delays = draw
        self.limits = self.limits._replace(poisons=self.ordered and draw.random() < 0.5)
        self.poisoned: set[int] = set()
        """Which were behind a dead letter of their key when that was written."""
        self.keys = [None, *(bytes([number]) for number in range(draw.choice((1, 3, 20))))]
        self.updates = self.random.choice((0, 1, 5))
        self.buries = self.random.random() < 0.5
        self.letters: dict[int, Doom] = {}
        """Dead letters, which are written in one transaction with the state."""
        self.log: list[CoordinatorRecord] = []
        self.shard = ShareShard(0, self.updates)
        self.batches: list[tuple[int, int, bool]] = []
        """Of the topic: first and last offset, and whether it has records for the group."""
        self.log_start = self.log_end = 0
        self.members = [f"m{number}" for number in range(self.random.randint(1, 4))]
        self.leaders: list[Leader] = []
        self.acked: set[int] = set()
        """Whose acceptance or rejection was answered."""
        self.accepted: set[int] = set()
        """Of which a member that had it said that it accepts it."""
        self.rejected: set[int] = set()
        """Of which a member that had it said that it rejects it."""
        self.said: set[int] = set()
        """Of which a member that had it said, in any leader's time, that it is finished."""
        self.delivered: dict[int, int] = {}
        self.start = NO_OFFSET
        self.told: list[str] = []

    # --- the coordinator ------------------------------------------------------------------------------------------

    def submit(self, result: Result) -> StateAnswer:
        for record in result.records:
            self.log.append(record)
            self.shard.apply(record, None, self.now())
        answer = result.response
        assert isinstance(answer, StateAnswer)
        state = self.shard.states.get(KEY)
        if state is not None and state.start != NO_OFFSET:
            if state.start < self.start:
                raise Violation(f"the start goes back from {self.start} to {state.start}")
            self.start = state.start
        return answer

    def move_coordinator(self) -> None:
        before = self.shard.states
        self.shard = ShareShard(0, self.updates)
        for record in self.log:
            self.shard.apply(record, None, self.now())
        same = {key: state._replace(written_ms=0) for key, state in self.shard.states.items()}
        if same != {key: state._replace(written_ms=0) for key, state in before.items()}:
            raise Violation("a coordinator that loads has another state than the one that wrote")
        if self.shard.skipped:
            raise Violation(f"records were skipped: {self.shard.skipped}")

    def now(self) -> Now:
        return Now(self.now_ms, self.now_ms)

    # --- leaders ----------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Leader:
        return self.leaders[-1]

    def elect(self) -> None:
        epoch = self.leader.epoch + 1 if self.leaders else 0
        answer = self.submit(self.shard.read(KEY, epoch, self.now(), TICKET))
        if answer.error is not ErrorCode.NONE:
            raise Violation(f"a new leader reads {answer.error.name}")
        state, fresh = answer.state, answer.state.start == NO_OFFSET
        if fresh:
            state = state._replace(start=self.log_start)
        until_ms = 0 if fresh else self.now_ms + self.limits.lock_ms
        window = Window(state, self.limits, fresh=fresh, predecessors_until_ms=until_ms)
        window.bury(self.buries)
        window.ordered = self.ordered
        self.leaders.append(Leader(epoch, window))
        if len(self.leaders) > 2:
            del self.leaders[0]

    def judge(self, leader: Leader) -> None:
        """The window's own order."""
        window, at = leader.window, leader.window.start
        for run in window.runs:
            if run.first != at or run.last < run.first:
                raise Violation(f"runs do not tile the window: {run} at {at}")
            at = run.last + 1
        if at != window.end or window.end - window.start > MAX_SPAN + window.waiting:
            raise Violation(f"the window ends at {window.end}, its runs at {at}")
        plain = not self.ordered and not self.limits.backoff_ms and not self.limits.delay_max_ms
        if (window.unfinished if plain else window.locked) > self.limits.records:
            raise Violation(f"{window.locked} records are locked, {window.unfinished} are not finished")

    @property
    def wall_ms(self) -> int:
        """The leaders' wall clock."""
        return self.now_ms + 777_000

    def key_of(self, offset: int) -> bytes | None:
        """The key of the record there."""
        return self.keys[hash((offset, 7)) % len(self.keys)]

    def acquire(self, leader: Leader) -> None:
        window, member = leader.window, self.random.choice(self.members)
        window.log_starts(self.log_start)
        begin = window.next_offset
        if begin >= self.log_end and window.read_again is not None:
            begin = window.read_again
        readable = [b for b in self.batches if b[1] >= begin and b[0] >= self.log_start][: self.random.randint(1, 6)]
        if not readable or begin < self.log_start:
            return
        data = [(first, last) for first, last, has in readable if has]
        most, whole = self.random.randint(1, 30), self.random.random() < 0.5
        if not window.may_acquire:
            return
        read = (begin, readable[-1][1])
        times = RecordTimes(self.wall_ms, sorted((o, ms) for o, ms in self.times.items() if read[0] <= o <= read[1]))
        if self.ordered:
            offsets = (offset for first, last in data for offset in range(first, last + 1))
            keys = [(offset, self.key_of(offset)) for offset in offsets if offset >= window.keys_known]
            got, whole = window.acquire_in_order(member, read, keys, most, self.now_ms, times), False
        else:
            got = window.acquire(member, read, data, most, self.now_ms, times, whole_batches=whole)
        if not whole and sum(g.last - g.first + 1 for g in got) > most:
            raise Violation("more than asked for")
        for first, last, count in got:
            for offset in range(first, last + 1):
                self.given(leader, member, offset, count)

    def given(self, leader: Leader, member: str, offset: int, count: int) -> None:
        if not any(first <= offset <= last and has for first, last, has in self.batches):
            raise Violation(f"offset {offset} has no record")
        if offset in self.acked:
            raise Violation(f"offset {offset} was acknowledged and is given out again")
        if offset in self.poisoned:
            raise Violation(f"offset {offset} was behind a dead letter of its key, and is given out")
        holder = leader.held.get(offset)
        if holder is not None and holder[1] > self.now_ms:
            raise Violation(f"{holder[0]} has offset {offset}, which {member} gets")
        if count <= leader.counts.get(offset, 0) or count > self.limits.deliveries:
            raise Violation(f"offset {offset} is given with count {count} after {leader.counts.get(offset)}")
        wait_ms = min(self.limits.backoff_ms << (count - 2), self.limits.backoff_max_ms) if count > 1 else 0
        if offset in leader.given_ms and self.now_ms < leader.given_ms[offset] + wait_ms:
            raise Violation(f"offset {offset} is tried again too soon")
        due_ms = self.times.get(offset, 0)
        if count == 1 and self.wall_ms < due_ms <= self.wall_ms + self.limits.delay_max_ms:
            raise Violation(f"offset {offset} is given out at {self.wall_ms}, before its time: {due_ms}")
        leader.given_ms[offset] = self.now_ms
        if self.ordered and self.key_of(offset) is not None:
            self.in_turn(offset)
        leader.counts[offset] = count
        leader.held[offset] = (member, self.now_ms + self.limits.lock_ms)
        self.delivered[offset] = self.delivered.get(offset, 0) + 1

    def in_turn(self, offset: int) -> None:
        """No record of the same key is before it and unfinished, or with a member of any leader's."""
        for first, last, has in self.batches:
            for other in range(first, last + 1) if has else ():
                if other == offset or self.key_of(other) != self.key_of(offset):
                    continue
                given_up = self.delivered.get(other, 0) >= self.limits.deliveries
                if other < offset and other not in self.said | self.letters.keys() and not given_up:
                    raise Violation(f"offset {offset} overtakes {other} of its key")
                if any(one.held.get(other, ("", 0))[1] > self.now_ms for one in self.leaders):
                    raise Violation(f"offset {offset} is given out beside {other} of its key")

    def acknowledge(self, leader: Leader) -> None:
        member = self.random.choice(self.members)
        mine = sorted(offset for offset, (who, _) in leader.held.items() if who == member)
        lies = self.random.random() < 0.1 or not mine
        if lies:
            first = self.random.randint(0, max(0, leader.window.end))
            last = first + self.random.randint(0, 4)
        else:
            first = self.random.choice(mine)
            last = first
            while last + 1 in leader.held and leader.held[last + 1][0] == member and self.random.random() < 0.8:
                last += 1
        types = [self.random.choice((1, 1, 1, 2, 3, 4)) for _ in range(last - first + 1)]
        if self.random.random() < 0.6:
            types = types[:1]
        pieces = checked([AckBatch(first, last, types)])
        if leader is not self.leader and any(kind is AckType.RENEW for _, _, kind in pieces):
            return  # it has no lease to renew locks by, either
        offsets = {at: kind for begin, end, kind in pieces for at in range(begin, end + 1)}
        above = [offset for offset in offsets if offset >= leader.window.start]
        has = all(leader.held.get(o, ("", 0))[0] == member and leader.held[o][1] > self.now_ms for o in above)
        try:
            noted = leader.window.acknowledge(member, pieces, self.now_ms)
        except WrongAcknowledgement:
            return
        if not has:
            raise Violation(f"{member} acknowledges {first} to {last}, which it does not have")
        for offset in above:
            if offsets[offset] is AckType.RENEW:
                leader.held[offset] = (member, self.now_ms + self.limits.lock_ms)
        said = {offset: kind for offset, kind in offsets.items() if offset in above and kind is not AckType.RENEW}
        self.said |= {offset for offset, kind in said.items() if kind in FINAL}
        self.accepted |= {offset for offset, kind in said.items() if kind is AckType.ACCEPT}
        self.rejected |= {offset for offset, kind in said.items() if kind is AckType.REJECT}
        doomed = {o for run in leader.window.runs if run.doom is not None for o in range(run.first, run.last + 1)}
        ack = Ack(member, said, noted, frozenset(doomed & said.keys()))
        if noted:
            leader.noted.append(ack)
        else:
            self.answered(leader, ack)

    def answered(self, leader: Leader, ack: Ack) -> None:
        self.acked |= {offset for offset, kind in ack.offsets.items() if kind in FINAL}

    def begin(self, leader: Leader) -> None:
        if leader.write is None:
            leader.write = leader.window.begin_write()
            leader.letters = None
            if leader.write is not None:
                leader.under_way = [ack for ack in leader.noted if ack.waits & Noted.WRITE]

    def bury(self, leader: Leader) -> None:
        """A burial begins: of all that is doomed, or of the first of it."""
        doomed = leader.window.doomed
        if leader.write is not None or not doomed:
            return
        last = doomed[-1].last if self.random.random() < 0.5 else self.random.randint(doomed[0].first, doomed[-1].last)
        whys = {offset: one.why for one in doomed for offset in range(one.first, one.last + 1) if offset <= last}
        leader.write = leader.window.begin_burial([(o.first, min(o.last, last)) for o in doomed if o.first <= last])
        if leader.write is not None:
            leader.keys_known = leader.window.keys_known if self.limits.poisons else 0
            leader.letters = {offset: why for offset, why in whys.items() if offset >= leader.window.start}
            waiting = [ack for ack in leader.noted if ack.waits & Noted.BURIAL]
            leader.under_way = [ack for ack in waiting if min(ack.buried) <= last]

    def written(self, leader: Leader) -> None:
        """The letters of a burial that counts."""
        for offset, why in (leader.letters or {}).items():
            if offset in self.letters:
                raise Violation(f"offset {offset} has two dead letters")
            if why is Doom.REJECTED and offset not in self.rejected:
                raise Violation(f"nobody rejected offset {offset}")
            if why is Doom.TOO_MANY_DELIVERIES and self.delivered.get(offset, 0) < self.limits.deliveries:
                raise Violation(f"offset {offset} was delivered {self.delivered.get(offset, 0)} times")
            behind = [o for o in range(offset + 1, leader.keys_known) if self.key_of(o) == self.key_of(offset)]
            if self.limits.poisons and self.key_of(offset) is not None and offset >= self.log_start:
                self.poisoned.update(behind)
            if why is Doom.AFTER_POISON and offset not in self.poisoned | self.behind_poison(offset):
                raise Violation(f"offset {offset} is behind no dead letter of its key")
            self.letters[offset] = why

    def behind_poison(self, offset: int) -> set[int]:
        """The offset, if a record of its key before it has a dead letter."""
        return {offset for other in self.letters if other < offset and self.key_of(other) == self.key_of(offset)}

    def end(self, leader: Leader) -> None:
        """The coordinator gets the write, or not, and its answer comes, or not."""
        write = leader.write
        if write is None:
            return
        fate = self.random.random()
        error = ErrorCode.REQUEST_TIMED_OUT
        if fate > 0.1:
            asked = ShareWrite(KEY, 0, leader.epoch, write.start, write.complete, write.batches)
            error = self.submit(self.shard.write(asked, self.now(), TICKET)).error
            if error is ErrorCode.NONE:
                self.written(leader)
            if fate < 0.2 and error is ErrorCode.NONE and leader.letters is None:
                error = ErrorCode.REQUEST_TIMED_OUT  # of a burial the leader waits to know, or it closes
        leader.write = None
        persisted = error is ErrorCode.NONE
        leader.window.end_write(persisted, self.now_ms)
        kind = Noted.WRITE if leader.letters is None else Noted.BURIAL
        until = max(leader.letters) if leader.letters else self.log_end
        for ack in leader.under_way:
            for offset in ack.part(kind) if persisted else ():
                if offset <= until:
                    leader.held.pop(offset, None)
            if persisted and leader.letters and max(ack.buried) > until:
                continue  # there is more of it to be buried
            ack.waits &= ~kind
            ack.failed = ack.failed or not persisted
            if not ack.waits:
                leader.noted.remove(ack)
                if not ack.failed:
                    self.answered(leader, ack)
        leader.under_way = []
        if error in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH) and leader is not self.leader:
            self.leaders.remove(leader)

    # --- steps --------------------------------------------------------------------------------------------------------

    def produce(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            size, has = self.random.randint(1, 8), self.random.random() < 0.85
            hole = self.random.randint(1, 5) if self.random.random() < 0.15 else 0
            first = self.log_end + hole
            self.batches.append((first, first + size - 1, has))
            self.log_end = first + size
            if self.limits.delay_max_ms and has and self.delays.random() < 0.5:
                for offset in range(first, first + size):
                    if self.delays.random() < 0.7:
                        self.times[offset] = self.wall_ms + self.delays.choice((-9, 40, 400, 5_000, 50_000, 10**9))

    def release(self, leader: Leader) -> None:
        member = self.random.choice(self.members)
        leader.window.release(member, self.now_ms)
        waiting = {o for ack in leader.noted for kind in Noted if kind & ack.waits for o in ack.part(kind)}
        for offset in [o for o, (who, _) in leader.held.items() if who == member and o not in waiting]:
            del leader.held[offset]

    def retain(self) -> None:
        if self.batches and self.random.random() < 0.3:
            self.log_start = self.random.choice(self.batches)[0]
            self.batches = [batch for batch in self.batches if batch[0] >= self.log_start]
            self.said.update(range(self.log_start))

    def step(self) -> None:
        leader = self.random.choice(self.leaders) if self.random.random() < 0.2 else self.leader
        actions = (
            (6, lambda: self.acquire(self.leader)),
            (6, lambda: self.acknowledge(leader)),
            (4, lambda: self.begin(leader)),
            (4, lambda: self.end(leader)),
            (2, lambda: self.bury(leader)),
            (3, self.produce),
            (3, lambda: self.pass_time(self.random.choice((10, 300, self.limits.lock_ms)))),
            (1, lambda: self.release(leader)),
            (1, self.move_coordinator),
            (1, self.elect),
            (1, self.retain),
        )
        action = self.random.choices([one for _, one in actions], [weight for weight, _ in actions])[0]
        action()
        for one in self.leaders:
            self.judge(one)

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for leader in self.leaders:
            leader.window.expire(self.now_ms)
            leader.window.due(self.wall_ms)

    def all_die(self) -> None:
        """Within the lock's time and a second everything is free."""
        leader = self.leader
        if leader.write is not None:
            self.end(leader)
        for _ in range(2 + self.limits.lock_ms // 500):
            self.pass_time(500)
            self.begin(leader)
            self.end(leader)
        left = [run for run in leader.window.runs if run.state is RecordState.ACQUIRED and run.becomes is None]
        if left:
            raise Violation(f"nobody lives who has {left}")

    def finish(self) -> None:
        """Without faults one member takes what is left; then everything has come to its end."""
        self.all_die()
        self.elect()
        leader = self.leader
        self.pass_time(self.limits.lock_ms)
        for _ in range(20 * (len(self.batches) + self.log_end + 5)):
            self.pass_time(1_000 if leader.window.delayed else 0)
            self.acquire(leader)
            for offset, (member, _) in sorted(leader.held.items()):
                try:
                    leader.window.acknowledge(member, [(offset, offset, AckType.ACCEPT)], self.now_ms)
                except WrongAcknowledgement:
                    continue
                self.said.add(offset)
                self.accepted.add(offset)
            leader.held.clear()
            write = leader.window.begin_write()
            if write is not None:
                asked = ShareWrite(KEY, 0, leader.epoch, write.start, write.complete, write.batches)
                answer = self.submit(self.shard.write(asked, self.now(), TICKET))
                leader.window.end_write(answer.error is ErrorCode.NONE, self.now_ms)
            self.bury(leader)
            if (write := leader.write) is not None:
                asked = ShareWrite(KEY, 0, leader.epoch, write.start, write.complete, write.batches)
                if self.submit(self.shard.write(asked, self.now(), TICKET)).error is ErrorCode.NONE:
                    self.written(leader)
                leader.window.end_write(True, self.now_ms)
                leader.write = None
            if leader.window.start >= self.log_end:
                break
        if leader.window.start < self.log_end:
            raise Violation(f"the start stays at {leader.window.start} of {self.log_end}: {leader.window.runs[:3]}")
        for first, last, has in self.batches:
            for offset in range(first, last + 1) if has else ():
                if self.buries and offset >= self.log_start and offset not in self.accepted | self.letters.keys():
                    raise Violation(f"offset {offset} was not accepted, and has no dead letter")
                if (
                    offset not in self.said | self.poisoned | self.letters.keys()
                    and self.delivered.get(offset, 0) < self.limits.deliveries
                ):
                    raise Violation(f"offset {offset} is finished, though nobody said so")


def run(seed: int, steps: int = 120) -> World:
    """One history. Raises Violation."""
    world = World(seed)
    world.produce()
    world.elect()
    try:
        for _ in range(steps):
            world.step()
        world.finish()
    except Violation as problem:
        problem.add_note(f"seed {seed}, {world.limits}")
        raise
    assert all(state.start >= world.log_end for state in world.shard.states.values())
    return world
