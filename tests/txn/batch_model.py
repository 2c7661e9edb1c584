"""The model of batch transactions: every interleaving of drivers, tasks, coordinator and leaders, within small bounds.

It is the protocol of docs/protocol.md without bytes: a sink's record at its coordinator (kept by a replicated log, lost
in part when the coordinator crashes), partition leaders with logs and high watermarks (what lies above may vanish with
the leader), drivers of one streaming query (any of them may live on as a zombie), task attempts, Produce requests that
arrive late or twice, answers that get lost, verification that is answered and not yet used, and markers.

Each rule of the protocol can be switched off. `python -m tests.txn.batch_model` runs larger bounds and all ablations;
`test_batch_model` runs what finishes soon. A breadth-first search over states: the first violation found is a shortest.

What must hold in every state, for a reader of committed data:
  DUP      no row of a batch is visible twice, whichever driver wrote it
  TORN     a partition shows all tasks' rows of a batch, or none
  LOSS     a batch that Spark has logged, or that the fence names, is visible when everything has come to rest
  HANGING  nothing stays open for ever once the sink is at rest
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

T = TypeVar("T")
EMPTY, OPEN, COMMITTING, ABORTING, COMMITTED, ABORTED = (
    "EMPTY",
    "OPEN",
    "COMMITTING",
    "ABORTING",
    "COMMITTED",
    "ABORTED",
)
AT_REST = (EMPTY, COMMITTED, ABORTED)
ENDING = (COMMITTING, ABORTING)

Member = tuple[int, int]  # (slot, epoch)
RowId = tuple[int, int, int, int]  # (batch, task, driver, attempt)
Entry = tuple[str, int, int, RowId | bool, int]
"""("row", slot, epoch, id, 0), or ("mark", slot, bumped epoch, commit, rest), where rest is the number of markers of
the run still to come, plus a hundred times the coordinator's epoch."""


@dataclass(frozen=True)
class Rules:
    """The protocol's rules; False switches one off."""

    compare_fence: bool = True  # CommitBatch compares the fence with the batch it is asked to commit
    check_epoch_at_commit: bool = True
    check_epoch_at_enlist: bool = True
    winners: bool = True  # CommitBatch names the members that count; otherwise every member does
    bump: bool = True  # a member's marker bumps its epoch
    verify: bool = True  # a leader asks the coordinator before a member's first row
    guard: bool = True  # a marker voids verifications under way at that leader
    markers_everywhere: bool = True  # every member gets a marker on every partition of the batch
    slots_after_markers: bool = True  # a slot is free when the markers are below the high watermark, not when sent
    hold: bool = True  # the last stable offset waits for a run of markers
    answer_after_replication: bool = True
    coordinator_epochs: bool = True  # a marker of an older coordinator is refused
    strict_markers: bool = True  # a marker's epoch is above that of the transaction it ends (KIP-890)
    skip: str = "never"  # a driver skips a batch by what it read of the fence: never, after begin, before begin


@dataclass(frozen=True)
class Bounds:
    """How much may happen. ``attempts``: attempts of each task."""

    drivers: int = 2
    batches: int = 1
    attempts: tuple[int, ...] = (1,)
    partitions: int = 1
    crashes: int = 0
    failovers: int = 0
    timeouts: int = 0


class Record(NamedTuple):
    """What the coordinator keeps of the sink. ``slots``: the next epoch of each."""

    epoch: int = 0
    status: str = EMPTY
    fence: int = -1
    members: frozenset[Member] = frozenset()
    partitions: frozenset[int] = frozenset()
    winners: frozenset[Member] = frozenset()
    slots: tuple[int, ...] = ()


class Leader(NamedTuple):
    """A partition. ``verified``: verifications answered, rows not yet appended. ``waits``: a run of markers is sent."""

    log: tuple[Entry, ...] = ()
    high_watermark: int = 0
    verified: frozenset[tuple[int, int, RowId]] = frozenset()
    waits: bool = False


class Driver(NamedTuple):
    """One incarnation of the driver. ``read``: the fence it found."""

    at: str
    batch: int
    epoch: int = -1
    reports: frozenset[tuple[int, int, int]] = frozenset()  # (task, slot, epoch)
    read: int = -1


class Task(NamedTuple):
    """One attempt."""

    at: str
    driver: int
    batch: int
    number: int
    attempt: int
    parent_epoch: int
    slot: int = -1
    epoch: int = -1

    @property
    def row(self) -> RowId:
        return self.batch, self.number, self.driver, self.attempt


class State(NamedTuple):
    """Everything. ``before``: the replicated record while a newer one is not; ``waiter``: the request that it
    answers.

    ``stale``: the state of a previous coordinator that is cut off. ``term``: the coordinator's epoch.
    """

    record: Record
    leaders: tuple[Leader, ...]
    before: Record | None = None
    waiter: tuple[object, ...] | None = None
    marked: frozenset[int] = frozenset()
    stale: Record | None = None
    term: int = 0
    sent: frozenset[tuple[int, int, int, RowId]] = frozenset()
    logged: int = 0
    drivers: tuple[Driver, ...] = ()
    tasks: frozenset[Task] = frozenset()
    crashes: int = 0
    failovers: int = 0
    timeouts: int = 0


@lru_cache(maxsize=200_000)
def producers(log: tuple[Entry, ...]) -> dict[int, tuple[int, bool, int]]:
    """By slot: the epoch, whether rows are open, and the epoch of the coordinator whose marker came last."""
    found: dict[int, tuple[int, bool, int]] = {}
    for kind, slot, epoch, _, rest in log:
        term = found.get(slot, (-1, False, -1))[2]
        found[slot] = (epoch, True, term) if kind == "row" else (epoch, False, rest // 100)
    return found


@lru_cache(maxsize=200_000)
def visible(log: tuple[Entry, ...], high_watermark: int, hold: bool) -> tuple[RowId, ...]:
    """The rows that a reader of committed data gets."""
    open_rows: dict[int, list[tuple[int, RowId]]] = {}
    committed: list[tuple[int, RowId]] = []
    held: list[int] = []
    for offset, (kind, slot, _, what, rest) in enumerate(log[:high_watermark]):
        if kind == "row":
            assert isinstance(what, tuple)
            open_rows.setdefault(slot, []).append((offset, what))
            continue
        ended = open_rows.pop(slot, [])
        if what:
            committed += ended
        held = [*held, *(position for position, _ in ended)] if hold and rest % 100 else []
    undecided = [offset for rows in open_rows.values() for offset, _ in rows]
    last_stable = min([high_watermark, *held, *undecided])
    return tuple(row for offset, row in committed if offset < last_stable)


class Model:
    """The protocol under given rules, within given bounds."""

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules = rules
        self.bounds = bounds
        self.tasks = range(len(bounds.attempts))

    def first(self) -> State:
        """Nothing has happened."""
        b = self.bounds
        leaders = (Leader(),) * b.partitions
        return State(Record(), leaders, crashes=b.crashes, failovers=b.failovers, timeouts=b.timeouts)

    def next(self, s: State) -> Iterator[State]:
        """Every state that may follow."""
        if len(s.drivers) < self.bounds.drivers and s.logged < self.bounds.batches:
            yield s._replace(drivers=(*s.drivers, Driver("start", s.logged)))
        for index, driver in enumerate(s.drivers):
            yield from self._driver(s, index, driver)
        for task in s.tasks:
            yield from self._task(s, task)
        for message in s.sent:
            yield from self._produce(s, *message)
        for index, leader in enumerate(s.leaders):
            yield from self._leader(s, index, leader)
        yield from self._coordinator(s)

    # ---- drivers and tasks -----------------------------------------------------------------------------------------

    def _driver(self, s: State, index: int, d: Driver) -> Iterator[State]:
        r = s.record

        def become(**change: object) -> State:
            return s._replace(drivers=_put(s.drivers, index, d._replace(**change)))  # type: ignore[arg-type]

        if d.at == "start":
            yield become(at="begin", read=r.fence)
        elif d.at == "begin" and s.before is None:
            if r.status == OPEN:
                yield from self._append(s, self._aborting(r), None)
            elif r.status in AT_REST:
                new = r._replace(epoch=r.epoch + 1, status=EMPTY, winners=frozenset())
                yield from self._append(s, new, ("begun", index, new.epoch, new.fence))
        elif d.at == "plan":
            if self.rules.skip != "never" and d.read >= d.batch:
                yield become(at="log")
            else:
                attempts = {
                    Task("enlist", index, d.batch, number, attempt, d.epoch)
                    for number in self.tasks
                    for attempt in range(self.bounds.attempts[number])
                }
                yield become(at="gather")._replace(tasks=s.tasks | attempts)
        elif d.at == "gather":
            if {report[0] for report in d.reports} == set(self.tasks):
                yield become(at="commit")
        elif d.at == "commit" and s.before is None:
            yield from self._commit(s, index, d)
        elif d.at == "log":
            done = s.logged == d.batch
            more = done and d.batch + 1 < self.bounds.batches
            following = Driver("start", d.batch + 1) if more else Driver("dead", d.batch)
            logged = s.logged + 1 if done else s.logged
            yield s._replace(drivers=_put(s.drivers, index, following), logged=logged)

    def _commit(self, s: State, index: int, d: Driver) -> Iterator[State]:
        r = s.record
        dead = s._replace(drivers=_put(s.drivers, index, Driver("dead", d.batch)))
        done = s._replace(drivers=_put(s.drivers, index, d._replace(at="log")))
        winners = frozenset((slot, epoch) for _, slot, epoch in d.reports)
        if d.epoch == r.epoch - 1 and r.status in (COMMITTING, COMMITTED) and r.fence == d.batch:
            yield done  # the answer was lost, and is given again
        elif r.status in ENDING and (d.epoch == r.epoch or not self.rules.check_epoch_at_commit):
            return  # CONCURRENT_TRANSACTIONS: ask again
        elif self.rules.check_epoch_at_commit and d.epoch != r.epoch:
            yield dead
        elif self.rules.compare_fence and r.fence == d.batch:
            if r.status == OPEN:
                yield from self._append(s, self._aborting(r), ("committed", index))
            else:
                yield done
        elif (self.rules.compare_fence and r.fence != d.batch - 1) or r.status != OPEN or not winners <= r.members:
            yield dead
        else:
            counting = winners if self.rules.winners else r.members
            new = r._replace(epoch=r.epoch + 1, status=COMMITTING, fence=d.batch, winners=counting)
            yield from self._append(s, new, ("committed", index))
            yield from self._append(s, new, None)  # the answer is lost; the driver asks again, or is never heard of

    def _task(self, s: State, t: Task) -> Iterator[State]:
        r, others = s.record, s.tasks - {t}
        if t.at == "enlist" and s.before is None:
            if r.status not in (EMPTY, OPEN) or (self.rules.check_epoch_at_enlist and r.epoch != t.parent_epoch):
                yield s._replace(tasks=others)
                return
            used = {slot for slot, _ in r.members}
            slot = next((n for n in range(len(r.slots)) if n not in used), len(r.slots))
            slots = r.slots if slot < len(r.slots) else (*r.slots, 0)
            new = r._replace(status=OPEN, members=r.members | {(slot, slots[slot])}, slots=slots)
            yield from self._append(s, new, ("enlisted", t, slot, slots[slot]))
        elif t.at == "send":
            messages = {(p, t.slot, t.epoch, t.row) for p in range(self.bounds.partitions)}
            yield s._replace(sent=s.sent | messages, tasks=others | {t._replace(at="wait")})
        elif t.at == "wait" and all(self._acknowledged(leader, t) for leader in s.leaders):
            d = s.drivers[t.driver]
            heard = d.at == "gather" and d.batch == t.batch and t.number not in {report[0] for report in d.reports}
            if heard:
                told = d._replace(reports=d.reports | {(t.number, t.slot, t.epoch)})
                yield s._replace(tasks=others, drivers=_put(s.drivers, t.driver, told))
            if not heard or self.bounds.attempts[t.number] > 1:
                yield s._replace(tasks=others)  # Spark took another attempt, or never heard of this one

    @staticmethod
    def _acknowledged(leader: Leader, t: Task) -> bool:
        return ("row", t.slot, t.epoch, t.row, 0) in leader.log[: leader.high_watermark]

    # ---- the coordinator -------------------------------------------------------------------------------------------

    @staticmethod
    def _aborting(r: Record) -> Record:
        return r._replace(epoch=r.epoch + 1, status=ABORTING, winners=frozenset())

    def _append(self, s: State, new: Record, waiter: tuple[object, ...] | None) -> Iterator[State]:
        """The coordinator writes the record; waiting requests are answered once it is replicated."""
        changed = s._replace(record=new)
        if s.crashes == 0:
            yield self._answer(changed, waiter)
        elif self.rules.answer_after_replication:
            yield changed._replace(before=s.record, waiter=waiter)
        else:
            yield self._answer(changed, waiter)._replace(before=s.record)

    def _answer(self, s: State, waiter: tuple[object, ...] | None) -> State:
        match waiter:
            case ("begun", int(index), int(epoch), int(fence)):
                d = s.drivers[index]
                read = d.read if self.rules.skip == "before begin" else fence
                return s._replace(drivers=_put(s.drivers, index, d._replace(at="plan", epoch=epoch, read=read)))
            case ("committed", int(index)):
                return s._replace(drivers=_put(s.drivers, index, s.drivers[index]._replace(at="log")))
            case ("enlisted", Task() as t, int(slot), int(epoch)):
                return s._replace(tasks=s.tasks - {t} | {t._replace(at="send", slot=slot, epoch=epoch)})
            case ("verified", int(p), int(slot), int(epoch), tuple() as row):
                leader = s.leaders[p]
                verified = leader.verified | {(slot, epoch, row)}
                return s._replace(leaders=_put(s.leaders, p, leader._replace(verified=verified)))
        return s

    def _coordinator(self, s: State) -> Iterator[State]:
        r = s.record
        if s.before is not None:
            yield self._answer(s._replace(before=None, waiter=None), s.waiter)
        if s.crashes:
            for kept in {r, s.before or r}:
                yield s._replace(
                    record=kept, before=None, waiter=None, marked=frozenset(), stale=s.before or r, term=s.term + 1,
                    crashes=s.crashes - 1, leaders=tuple(leader._replace(waits=False) for leader in s.leaders),
                )  # fmt: skip
        if s.before is not None:
            return
        if r.status == OPEN and s.timeouts:
            yield from self._append(s._replace(timeouts=s.timeouts - 1), self._aborting(r), None)
        if r.status in ENDING:
            for p in r.partitions - s.marked:
                if not s.leaders[p].waits:
                    yield self._mark(s, p, r, s.term)
            if s.marked >= r.partitions:
                bumped = {slot: epoch + self.rules.bump for slot, epoch in r.members}
                slots = tuple(bumped.get(slot, epoch) for slot, epoch in enumerate(r.slots))
                ended = r._replace(
                    status=COMMITTED if r.status == COMMITTING else ABORTED, members=frozenset(),
                    partitions=frozenset(), winners=frozenset(), slots=slots,
                )  # fmt: skip
                yield s._replace(record=ended, marked=frozenset())
        if s.stale is not None and s.stale.status in ENDING:
            for p in s.stale.partitions:
                late = self._mark(s, p, s.stale, s.term - 1)
                yield late._replace(stale=None)

    def _mark(self, s: State, p: int, r: Record, term: int) -> State:
        """A run of markers arrives at a leader; what it refuses is left out."""
        leader = s.leaders[p]
        known = producers(leader.log)
        taken = []
        for slot, epoch in sorted(r.members):
            present, is_open, last_term = known.get(slot, (-1, False, -1))
            bumped = epoch + self.rules.bump
            refused = (
                (self.rules.coordinator_epochs and term < last_term)
                or (self.rules.strict_markers and self.rules.bump and is_open and bumped <= present)
                or bumped < present
                or not (self.rules.markers_everywhere or is_open)
            )
            if not refused:
                taken.append((slot, epoch))
        run = tuple(
            ("mark", slot, epoch + self.rules.bump, (slot, epoch) in r.winners, len(taken) - 1 - n + 100 * term)
            for n, (slot, epoch) in enumerate(taken)
        )
        verified = leader.verified
        if self.rules.guard:
            verified = frozenset(v for v in verified if v[:2] not in r.members)
        own = term == s.term
        sure = own and (not run or not self.rules.slots_after_markers)
        after = leader._replace(log=leader.log + run, verified=verified, waits=leader.waits or (own and not sure))
        return s._replace(leaders=_put(s.leaders, p, after), marked=s.marked | {p} if sure else s.marked)

    # ---- leaders ---------------------------------------------------------------------------------------------------

    def _produce(self, s: State, p: int, slot: int, epoch: int, row: RowId) -> Iterator[State]:
        """A Produce request arrives, perhaps late, perhaps again."""
        leader = s.leaders[p]
        present, is_open, _ = producers(leader.log).get(slot, (-1, False, -1))
        if epoch < present or ("row", slot, epoch, row, 0) in leader.log or (slot, epoch, row) in leader.verified:
            return
        if (epoch == present and is_open) or not self.rules.verify:
            yield self._add_row(s, p, slot, epoch, row)
            return
        verified = ("verified", p, slot, epoch, row)
        r = s.record
        if s.before is None and r.status == OPEN and (slot, epoch) in r.members:
            if p in r.partitions:
                yield self._answer(s, verified)
            else:
                yield from self._append(s, r._replace(partitions=r.partitions | {p}), verified)
        old = s.stale
        if old is not None and old.status == OPEN and (slot, epoch) in old.members and p in old.partitions:
            yield self._answer(s, verified)

    def _add_row(self, s: State, p: int, slot: int, epoch: int, row: RowId) -> State:
        leader = s.leaders[p]
        verified = leader.verified - {(slot, epoch, row)}
        log = (*leader.log, ("row", slot, epoch, row, 0))
        # Where no leader can be lost any more, lag changes nothing but the time of an answer.
        reached = len(log) if s.failovers == 0 and leader.high_watermark == len(leader.log) else leader.high_watermark
        after = leader._replace(log=log, verified=verified, high_watermark=reached)
        return s._replace(leaders=_put(s.leaders, p, after))

    def _leader(self, s: State, p: int, leader: Leader) -> Iterator[State]:
        for slot, epoch, row in leader.verified:
            if epoch >= producers(leader.log).get(slot, (-1, False, -1))[0]:
                yield self._add_row(s, p, slot, epoch, row)
            else:
                dropped = leader._replace(verified=leader.verified - {(slot, epoch, row)})
                yield s._replace(leaders=_put(s.leaders, p, dropped))
        end = len(leader.log)
        if leader.high_watermark < end:
            after = leader._replace(high_watermark=leader.high_watermark + 1)
            yield s._replace(leaders=_put(s.leaders, p, after))
        elif leader.waits:
            after = leader._replace(waits=False)
            yield s._replace(leaders=_put(s.leaders, p, after), marked=s.marked | {p})
        if s.failovers:
            for kept in range(leader.high_watermark, end + 1):
                elected = Leader(leader.log[:kept], leader.high_watermark)
                yield s._replace(leaders=_put(s.leaders, p, elected), failovers=s.failovers - 1)

    # ---- what must hold --------------------------------------------------------------------------------------------

    def violation(self, s: State) -> str | None:
        """What a reader, or an operator, would complain of."""
        rest = s.before is None and s.record.status in AT_REST
        for p, leader in enumerate(s.leaders):
            shown = visible(leader.log, leader.high_watermark, self.rules.hold)
            places = [row[:2] for row in shown]
            if len(set(places)) < len(places):
                return f"DUP on partition {p}: {shown}"
            for batch in range(self.bounds.batches):
                count = sum(place[0] == batch for place in places)
                if count not in (0, len(self.tasks)):
                    return f"TORN batch {batch} on partition {p}: {shown}"
                settled = rest and leader.high_watermark == len(leader.log)
                if count == 0 and settled and (s.record.fence >= batch or s.logged > batch):
                    return f"LOSS of batch {batch} on partition {p}"
            if rest and not leader.waits:
                hanging = [slot for slot, (_, is_open, _) in producers(leader.log).items() if is_open]
                if hanging:
                    return f"HANGING rows of slots {hanging} on partition {p}"
        return None


def _put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])


class Verdict(NamedTuple):
    """``violation`` of None: safe, if ``complete``. ``finished``: some path logs every batch, or the search is idle."""

    violation: str | None
    states: int
    complete: bool
    finished: bool
    trace: tuple[State, ...] = ()


def explore(rules: Rules, bounds: Bounds, limit: int = 2_000_000) -> Verdict:
    """Every reachable state, or until the first violation, or ``limit`` states."""
    model = Model(rules, bounds)
    first = model.first()
    came_from: dict[State, State | None] = {first: None}
    queue = deque([first])
    finished = False
    while queue:
        state = queue.popleft()
        finished = finished or state.logged == bounds.batches
        found = model.violation(state)
        if found is not None:
            trace = [state]
            while (parent := came_from[trace[-1]]) is not None:
                trace.append(parent)
            return Verdict(found, len(came_from), False, finished, tuple(reversed(trace)))
        if len(came_from) > limit:
            return Verdict(None, len(came_from), False, finished)
        for following in model.next(state):
            if following not in came_from:
                came_from[following] = state
                queue.append(following)
    return Verdict(None, len(came_from), True, finished)


FULL = Rules()
SKIPPING = replace(FULL, compare_fence=False, skip="after begin")

SAFE = {
    "two drivers": Bounds(),
    "two tasks": Bounds(attempts=(1, 1)),
    "two batches": Bounds(batches=2),
    "two partitions": Bounds(partitions=2),
    "the coordinator crashes": Bounds(crashes=1),
    "a leader is lost": Bounds(failovers=1),
    "the time runs out": Bounds(timeouts=1),
    "a leader is lost, the time runs out": Bounds(failovers=1, timeouts=1),
    "coordinator and leader are lost": Bounds(crashes=1, failovers=1),
}
LARGER = {
    "two attempts": Bounds(attempts=(2,)),
    "the coordinator crashes, the time runs out": Bounds(crashes=1, timeouts=1),
    "one driver, two attempts, all faults": Bounds(drivers=1, attempts=(2,), crashes=1, failovers=1, timeouts=1),
    "all faults": Bounds(crashes=1, failovers=1, timeouts=1),
    "two tasks, a leader is lost": Bounds(attempts=(1, 1), failovers=1),
    "two tasks, one twice": Bounds(attempts=(2, 1)),
    "three drivers": Bounds(drivers=3),
    "two batches, the coordinator crashes": Bounds(batches=2, crashes=1),
}
BROKEN = {
    "no fence compare": (replace(FULL, compare_fence=False), Bounds(), "DUP"),
    "the fence read before BeginBatch, no compare": (
        replace(FULL, compare_fence=False, skip="before begin"), Bounds(), "DUP",
    ),
    "no winners list": (replace(FULL, winners=False), Bounds(attempts=(2,)), "DUP"),
    "no epoch bump": (replace(FULL, bump=False), Bounds(), "DUP"),
    "no verification": (replace(FULL, verify=False), Bounds(), "HANGING"),
    "markers only where rows are": (replace(FULL, markers_everywhere=False), Bounds(crashes=1), "HANGING"),
    "the same, and no verification guard": (
        replace(FULL, markers_everywhere=False, guard=False), Bounds(timeouts=1), "HANGING",
    ),
    "slots free before their markers are safe": (
        replace(FULL, slots_after_markers=False), Bounds(failovers=1), "HANGING",
    ),
    "the last stable offset does not wait for the run": (replace(FULL, hold=False), Bounds(attempts=(1, 1)), "TORN"),
    "answers before replication": (replace(FULL, answer_after_replication=False), Bounds(crashes=1), "HANGING"),
    "late markers of an older coordinator": (
        replace(FULL, coordinator_epochs=False, strict_markers=False), Bounds(crashes=1), "DUP",
    ),
    "no parent epoch checks, no compare, a driver that skips": (
        replace(SKIPPING, check_epoch_at_commit=False, check_epoch_at_enlist=False), Bounds(batches=2), "DUP",
    ),
}  # fmt: skip
SPARE = {
    "no verification guard": (replace(FULL, guard=False), Bounds(crashes=1)),
    "no coordinator epochs": (replace(FULL, coordinator_epochs=False), Bounds(crashes=1)),
    "markers of the same epoch": (replace(FULL, strict_markers=False), Bounds(crashes=1)),
    "no parent epoch checks": (
        replace(FULL, check_epoch_at_commit=False, check_epoch_at_enlist=False), Bounds(batches=2),
    ),
    "no compare, a driver that skips by a fence read after BeginBatch": (SKIPPING, Bounds(batches=2)),
}  # fmt: skip
"""Rules of which another one takes the place: without one of them all is safe, within these bounds."""


def main(limit: int) -> int:
    """Everything; the number of surprises."""
    surprises = 0
    runs = [(name, FULL, bounds, "") for name, bounds in {**SAFE, **LARGER}.items()]
    runs += [(f"without: {name}", rules, bounds, "") for name, (rules, bounds) in SPARE.items()]
    runs += [(f"without: {name}", rules, bounds, expected) for name, (rules, bounds, expected) in BROKEN.items()]
    for name, rules, bounds, expected in runs:
        began = time.monotonic()
        verdict = explore(rules, bounds, limit)
        found = verdict.violation or ("safe" if verdict.complete else "nothing found before the limit")
        right = found.startswith(expected) if expected else verdict.violation is None
        surprises += not right
        effort = f"[{verdict.states:,} states, {time.monotonic() - began:.0f} s]"
        print(f"{'  ' if right else '! '}{name:68s} {found}  {effort}", flush=True)
    return surprises


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000))
