"""Registries that share a topic and die, stand still, lose answers and take each other's place: histories by a seed.

The registries are the real `SchemaStore`, of which only the network is not there: the topic, its leader's fence and the
coordinator of the transactional id are small values here. One thread runs at a time; whenever a registry waits for
something, another step of the history comes first, so a seed always makes the same history.

Every answer must be the one of some moment between its question and itself, as if there were one registry; an id means
one schema for ever, a version one schema until it is deleted for good, and whoever reads the topic from its start, as
compaction left it, knows the same as who read all of it.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.cli.sender import InputRecord
from fleetlog.brokers.cli.topic_reader import FetchedPart, StoredRecord
from fleetlog.brokers.schemas import command
from fleetlog.brokers.schemas.command import CLAIM_S, SPENT_EPOCH, SchemaStore
from fleetlog.brokers.schemas.registry import Plan, RegistryRefusal, RegistryState, context_of
from fleetlog.txn.transaction import MAX_EPOCH

STEPS = 400
TIMEOUT_S = 10.0
SUBJECTS = ("a", "b", ":.x:a")
SCHEMAS = 5
Decide = Callable[[RegistryState], Plan]


class Violation(AssertionError):
    """The registries contradict each other, or themselves."""


class _Killed(BaseException):
    """The process ends here."""


class SimClock:
    """Stands for the module ``time``."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.pause: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.pause()


class Row(NamedTuple):
    """A record in the topic."""

    offset: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Packet(NamedTuple):
    """A request that may arrive late."""

    producer: tuple[int, int]
    rows: list[InputRecord]


class Topic:
    """The partition at its leader, and the coordinator of the transactional id."""

    def __init__(self, epoch: int) -> None:
        self.rows: list[Row] = []
        self.history: list[Row] = []
        self.states = [RegistryState()]
        """What the first so many records of the history make."""
        self.end = 0
        self.producer = 7, epoch
        self.epochs: dict[int, int] = {7: epoch}
        self.late: list[Packet] = []

    def claim(self) -> tuple[int, int]:
        """The coordinator's answer: the next epoch, or the first of another producer id after the last but one."""
        number, epoch = self.producer
        self.producer = (number + 1, 0) if epoch >= MAX_EPOCH - 1 else (number, epoch + 1)
        return self.producer

    def append(self, packet: Packet) -> int | None:
        """The offset of its last record; None: an epoch before one that has written."""
        number, epoch = packet.producer
        if epoch < self.epochs.get(number, 0):
            return None
        self.epochs[number] = epoch
        for record in packet.rows:
            assert record.key is not None
            row = Row(self.end, record.key, record.value, record.headers)
            self.rows.append(row)
            self.history.append(row)
            state = self.states[-1].copy()
            state.apply(row.key, row.value)
            self.states.append(state)
            self.end += 1
        return self.end - 1

    def compact(self, read: int) -> None:
        """The last of each key stays. Tombstones go before the offset that all have read: ``delete.retention.ms``."""
        last = {row.key: row.offset for row in self.rows}
        self.rows = [
            row for row in self.rows if last[row.key] == row.offset and (row.value is not None or row.offset >= read)
        ]


class SimWriter:
    """As `Sender`: what it sends arrives or not, and its answer comes or not."""

    def __init__(self, store: SimStore, producer: tuple[int, int]) -> None:
        self._store, self._producer = store, producer
        self.last: dict[int, int] = {}

    def send(self, rows: list[InputRecord]) -> None:
        world = self._store.world
        self._store.pause()
        packet = Packet(self._producer, rows)
        fate = world.rng.choice(("arrives", "arrives", "arrives", "arrives", "unanswered", "lost", "late"))
        if fate == "late":
            world.topic.late.append(packet)
        last = world.topic.append(packet) if fate in ("arrives", "unanswered") else None
        self._store.pause()
        if fate != "arrives" or last is None:
            raise CliError(f"no answer: {fate}")
        self.last = {0: last}

    def spent(self) -> list[int]:
        self._store.pause()
        epochs = self._store.world.topic.epochs
        return [
            number
            for number, epoch in epochs.items()
            if number != self._producer[0] and SPENT_EPOCH <= epoch < MAX_EPOCH
        ]


class _Reading:
    """Stands for the store's condition: whoever waits lets others have their turn."""

    def __init__(self, store: SimStore) -> None:
        self._store = store

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        pass

    def wait_for(self, good: Callable[[], bool], timeout_s: float) -> bool:
        clock = self._store.world.clock
        until_s = clock.now_s + timeout_s
        while not good() and clock.now_s < until_s:
            self._store.pause()
        return good()


class SimReader:
    """What one fetch gives: so many records at most."""

    def __init__(self, topic: Topic, most: int) -> None:
        self._topic, self._most = topic, most

    def fetch(self, positions: dict[int, int], *_: int) -> dict[int, FetchedPart]:
        ahead = [row for row in self._topic.rows if row.offset >= positions[0]]
        some = ahead[: self._most]
        after = self._topic.end if len(some) == len(ahead) else some[-1].offset + 1
        rows = [
            StoredRecord(0, row.offset, 0, row.key, row.value, row.headers, "", "", -1, -1, -1, 0, "none")
            for row in some
        ]
        return {0: FetchedPart(rows, after, 0)}


class SimStore(SchemaStore):
    """A registry's process."""

    def __init__(self, world: World) -> None:
        super().__init__(Target("nowhere:1", TIMEOUT_S))
        self.world = world
        self._changed: Any = _Reading(self)
        self.running: Change | None = None

    def pause(self) -> None:
        """Others go on; this one when it has its turn, if it lives."""
        if self.running is not None:
            self.running.wait_for_turn()

    def new_writer(self, timeout_s: float) -> Any:
        self.pause()
        if self.world.rng.random() < 0.1:
            raise CliError("the coordinator does not answer")
        producer = self.world.topic.claim()
        self.pause()
        return SimWriter(self, producer), lambda number: SimWriter(self, (number, MAX_EPOCH))

    def read_some(self, most: int) -> None:
        reader: Any = SimReader(self.world.topic, most)
        self.read(reader)

    @property
    def position(self) -> int:
        return self._next


class Change(threading.Thread):
    """A request that changes something, in its thread."""

    def __init__(self, store: SimStore, what: str, decide: Decide) -> None:
        super().__init__(daemon=True)
        self.store, self.what, self.decide = store, what, decide
        self.asked = store.world.topic.end
        self.outcome: Any = None
        self.killed = self.ended = False
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._fault: BaseException | None = None

    def run(self) -> None:
        self._turn.acquire()
        try:
            self.outcome = outcome_of(lambda: self.store.change(self.decide, self.store.world.clock.now_s))
        except _Killed:
            self.killed = True
        except BaseException as fault:  # of the code that is tested
            self._fault = fault
        self.ended = True
        self._back.release()

    def step(self) -> None:
        """Let it go on to where it waits next."""
        self._turn.release()
        self._back.acquire()
        if self._fault is not None:
            raise self._fault

    def kill(self) -> None:
        """SIGKILL: it does nothing more."""
        self.killed = True
        while not self.ended:
            self.step()

    def wait_for_turn(self) -> None:
        if self.killed:
            raise _Killed
        self._back.release()
        self._turn.acquire()
        if self.killed:
            raise _Killed


def outcome_of(act: Callable[[], Any]) -> Any:
    """An answer, or what it is refused with."""
    try:
        return act()
    except RegistryRefusal as refused:
        return refused.code


class World:
    """Some registries, and what happens to them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = SimClock()
        self.topic = Topic(MAX_EPOCH - self.rng.randrange(1, 9) if self.rng.random() < 0.5 else 0)
        self.stores = [SimStore(self) for _ in range(self.rng.randrange(2, 4))]
        self.done: list[str] = []
        for store in self.stores:
            store.read_some(1_000)

    def run(self) -> None:
        with self._clocked():
            for _ in range(STEPS):
                self._step()
            while busy := [store for store in self.stores if store.running is not None]:
                self.clock.now_s += 0.05
                for store in busy:
                    store.read_some(1_000)
                    self._go_on(store)
            self._check_end()

    @contextmanager
    def _clocked(self) -> Iterator[None]:
        self.clock.pause = self._pause_whoever_runs
        with patch.object(command, "time", self.clock):
            try:
                yield
            finally:
                for store in self.stores:
                    if store.running is not None and not store.running.ended:
                        store.running.kill()

    def _pause_whoever_runs(self) -> None:
        current = threading.current_thread()
        if isinstance(current, Change):
            current.wait_for_turn()

    # ---- what happens ------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        store = self.rng.choice(self.stores)
        action = self.rng.choices(
            ("change", "go on", "read", "late", "kill", "compact", "time", "long"),
            (20, 45, 20, 4, 2, 4, 4, 1),
        )[0]
        busy = [one for one in self.stores if one.running is not None]
        if action == "go on" and busy:
            self._go_on(self.rng.choice(busy))
        elif action == "change" and store.running is None:
            store.running = self._new_change(store)
            store.running.start()
            self._go_on(store)
        elif action == "read":
            store.read_some(self.rng.randrange(1, 6))
        elif action == "late" and self.topic.late:
            self.topic.append(self.topic.late.pop(self.rng.randrange(len(self.topic.late))))
        elif action == "kill":
            if store.running is not None:
                store.running.kill()
            self.done.append(f"killed with {store.running and store.running.what}")
            self.stores[self.stores.index(store)] = fresh = SimStore(self)
            fresh.read_some(1_000)
        elif action == "compact":
            self.topic.compact(min(one.position for one in self.stores))
        elif action == "time":
            self.clock.now_s += self.rng.uniform(0, 2)
        elif action == "long" and all(one.running is None for one in self.stores):
            self.clock.now_s += CLAIM_S

    def _new_change(self, store: SimStore) -> Change:
        what = self.rng.choices(("register", "delete", "version", "purge", "level", "mode"), (18, 9, 3, 9, 3, 1))[0]
        subject, number = self.rng.choice(SUBJECTS), self.rng.randrange(SCHEMAS)
        level = self.rng.choice(("NONE", "BACKWARD"))
        text = json.dumps({"type": "record", "name": "R", "fields": [{"name": f"f{number}", "type": "int"}]})
        mode = self.rng.choice(("READONLY", "READWRITE", "READWRITE", "READWRITE"))
        decisions: dict[str, Decide] = {
            "register": lambda state: state.register(subject, {"schema": text}, normalize=False),
            "delete": lambda state: state.delete_subject(subject, permanent=False),
            "version": lambda state: state.delete_version(subject, "latest", permanent=False),
            "purge": lambda state: state.delete_subject(subject, permanent=True),
            "level": lambda state: state.set_config(None, {"compatibility": level}),
            "mode": lambda state: state.set_mode(None, {"mode": mode}, force=False),
        }
        return Change(store, f"{what} {subject} {number}", decisions[what])

    def _go_on(self, store: SimStore) -> None:
        change = store.running
        assert change is not None
        change.step()
        if not change.ended:
            return
        store.running = None
        self.done.append(f"{change.what}: {change.outcome}, asked at {change.asked}, answered at {self.topic.end}")
        if change.outcome in (50001, 50002):
            return
        moments = self.topic.states[change.asked : self.topic.end + 1]
        if not any(outcome_of(lambda state=state: change.decide(state).answer) == change.outcome for state in moments):
            raise self._violation(f"{change.what} is answered with {change.outcome}, which was true at no moment")

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def _violation(self, text: str) -> Violation:
        violation = Violation(text)
        for line in self.done[-12:]:
            violation.add_note(line)
        return violation

    def _check_end(self) -> None:
        self._check_history()
        for store in self.stores:
            store.read_some(1_000_000)
        self.topic.compact(self.topic.end)
        fresh = SimStore(self)
        fresh.read_some(1_000_000)
        wanted = known(self.topic.states[-1])
        for store in (*self.stores, fresh):
            if known(store.registry()) != wanted:
                raise self._violation(f"{'a new' if store is fresh else 'a'} registry knows something else")

    def _check_history(self) -> None:
        ids: dict[tuple[str, int], str] = {}
        versions: dict[tuple[str, int], str] = {}
        for row in self.topic.history:
            key, value = json.loads(row.key), json.loads(row.value or b"null")
            if key["keytype"] != "SCHEMA":
                continue
            at = key["subject"], key["version"]
            if value is None:
                versions.pop(at, None)
                continue
            if ids.setdefault((context_of(key["subject"]), value["id"]), value["schema"]) != value["schema"]:
                raise self._violation(f"id {value['id']} is given to two schemas")
            if versions.setdefault(at, value["schema"]) != value["schema"]:
                raise self._violation(f"version {at} is given to two schemas")


def known(state: RegistryState) -> Any:
    """All that a registry shows, and the highest ids."""
    shown = [one.shown() | {"deleted": one.deleted} for one in state.all(":*:", deleted=True, latest=False)]
    return shown, state.highest_ids(), state.config(None, default=True), state.mode(None, default=True)


def run(seed: int) -> None:
    """One history. Raises Violation."""
    try:
        World(seed).run()
    except Violation as violation:
        violation.add_note(f"seed {seed}")
        raise
