"""One seed, one history: a fleet, its clients, what happens to them, and whether all that is promised was kept."""

from __future__ import annotations

import asyncio
import logging
import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fleetlog.brokers.controller import controller, move_commands
from fleetlog.brokers.log.disk.failures import DiskError, LogOffline
from fleetlog.brokers.model import TRANSACTION_STATE_TOPIC, TopicPartition
from fleetlog.brokers.peers.calls import PeerUnavailable
from fleetlog.coordination import changes
from fleetlog.coordination.store import StoreError
from fleetlog.txn.states import ENDED
from tests.simulation import checking, rebalancing, renewing, repeating, sharing, spreading
from tests.simulation.admin import Admin
from tests.simulation.batches import Driver
from tests.simulation.clients import (
    INTERNAL,
    Auditor,
    Client,
    Consumer,
    Member,
    OldTransactionalProducer,
    Producer,
    TransactionalProducer,
)
from tests.simulation.eraser import Eraser
from tests.simulation.faults import Faults
from tests.simulation.fleet import Fleet
from tests.simulation.hurried import ForgetfulProducer, HurriedProducer
from tests.simulation.inspector import Inspector
from tests.simulation.invariants import COMPACTED_TOPICS, Oracle, hooked
from tests.simulation.logins import Registrar
from tests.simulation.pipelined import PipelinedProducer
from tests.simulation.readers import RackReader, SessionReader
from tests.simulation.rights import SETTINGS as RIGHTS_SETTINGS
from tests.simulation.rights import Officer
from tests.simulation.rollback import Rollback
from tests.simulation.tables import TABLE, TableWriter

TRACE_LINES = 60
THE_WORLD = (DiskError, LogOffline, StoreError, PeerUnavailable)
"""What production code may log with a stack trace without being wrong itself."""
BOOT_S, HEAL_S = 30.0, 60.0
OPEN_S = 20.0
"""Transactions time out after 2.5 s."""
LETTERS_S = 20.0
"""Those of dead letters so much later."""
SEEN_S = 5.0
"""Until what a broker's start has changed is known everywhere."""
TOPIC = "t"
OPERATOR, DRIVERS, HURRY, RIGHTS, REPEATS = "operator", "drivers", "hurry", "rights", "repeats"
LOGINS, SPREADS, RENEWS, DIRECTORIES, TRIMS = "logins", "spreads", "renews", "directories", "trims"
ROLLBACK, REBALANCES, CHECKS, SHARES = "rollback", "rebalances", "checks", "shares"
ASKED_FOR = (
    OPERATOR, DRIVERS, HURRY, RIGHTS, REPEATS, LOGINS, SPREADS, RENEWS, DIRECTORIES, TRIMS, ROLLBACK, REBALANCES,
    CHECKS, SHARES,
)  # fmt: skip
NOT_IN_LOGS = (LOGINS, RENEWS, CHECKS, SHARES)
"""Like rights: what an older ZooKeeper does not know of them no repair finds in the logs."""
NOTED_SEEDS = 1_000
"""Seeds below are noted with mutations and courses: their histories stay as they are."""
TOPICS = "/brokers/topics/"
CHANGE = f"{changes.CHANGES}/{changes.PREFIX}"
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
ROLES: dict[str, type[Client]] = {
    "p": Producer, "x": TransactionalProducer, "y": OldTransactionalProducer, "r": Consumer, "a": Auditor, "m": Member,
    "d": Driver, "i": Inspector, "q": PipelinedProducer, "s": SessionReader, "k": RackReader, "e": Eraser,
    "h": HurriedProducer, "f": ForgetfulProducer,
}  # fmt: skip


def goes_back(seed: int) -> bool:
    """Whether ZooKeeper is put back to an older copy in the ordinary history of a seed."""
    return seed >= NOTED_SEEDS and random.Random(f"{seed}/rolls back").random() < 0.02


@dataclass
class Report:
    """How a run went."""

    seed: int
    violations: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Exceptions that were not caught or that were logged as our own bug."""
    hash: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    checked: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    kinds: tuple[str, ...] = ()
    """What restricted the faults, as it was asked for."""

    @property
    def again(self) -> str:
        """The arguments that show the same history again."""
        return f"{self.seed}" + (f' --faults "{",".join(self.kinds)}"' if self.kinds else "")

    @property
    def ok(self) -> bool:
        return not self.violations and not self.errors


class _ErrorLog(logging.Handler):
    """Collects stack traces that production code logs: what it took for its own bug."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        wrong = record.exc_info[1] if record.exc_info else None
        if wrong is not None and not isinstance(wrong, THE_WORLD) and record.levelno >= logging.ERROR:
            self._world.errors.append(f"{record.getMessage()}: {wrong!r}")
            self._world.note(f"ERROR {record.getMessage()}: {wrong!r}")
        elif self._world.verbose:
            self._world.note(f"{self._world.loop.current().name} {record.name}: {record.getMessage()}")


class World:
    """Runs one seed.

    ``kinds`` restricts the faults to some of ``faults.WEIGHTS``; "operator" asks for one, "drivers" for two drivers of
    a sink and a reader, and no other client; "hurry" adds the producers of ``hurried``, "rights" those of ``rights``,
    "repeats" the writers of ``repeating`` ("trims" with them: their first records are deleted), "logins" the lodgers of
    ``logins``, "spreads" the producers of ``spreading``, "renews" the clients of ``renewing``, "rebalances" the members
    of ``rebalancing``, "checks" the clients of ``checking``, "shares" the workers of ``sharing``, "directories" log
    directories that go and come back. With
    "rollback" ZooKeeper is put back to an older copy instead of any fault, as in one of fifty seeds from
    :data:`NOTED_SEEDS` on.
    """

    def __init__(self, seed: int, *, verbose: bool = False, kinds: Sequence[str] = ()) -> None:
        self.seed = seed
        self.asked = tuple(kinds)
        self.kinds = [kind for kind in kinds if kind not in ASKED_FOR]
        self.verbose = verbose
        self.errors: list[str] = []
        self.closing = False
        self.trace: deque[str] = deque(maxlen=None if verbose else TRACE_LINES)
        self._hash = 0
        self.rng = random.Random(f"{seed}/world")
        rng = self.rng
        self.size = rng.choices((3, 4, 5), (60, 30, 10))[0]
        settings: dict[str, Any] = {}
        if rng.random() < 0.15:
            settings["log_flush_policy"] = "ack"
        self.flushes = "log_flush_policy" in settings
        self.operated = rng.random() < 0.6 or OPERATOR in kinds
        self.pace = (0.05, rng.choice((0.4, 0.8)))
        racks = rng.random() < 0.3
        if racks:
            settings["replica_selector_class"] = RACK_AWARE
        self.cast = [*rng.choice((("p1",), ("p1", "q1"), ("q1", "q2"))), "r1", "a1", rng.choice(("x1", "x1", "y1"))]
        self.cast += [name for name in ("x2", "m1", "m2", "m3") if rng.random() < 0.45]
        self.cast += rng.choice((("k1", "k2"), ("k2",), ("s1",)) if racks else (("s1",), ("r2",), ()))
        drivers = rng.choice(((), (), (), ("d1",), ("d1", "d2")))
        self.cast += drivers or rng.choice(((), (), ("e1",)))
        self.cast += rng.choice(((), ("i1",)))
        hurry = random.Random(f"{seed}/hurry")
        self.cast += [name for name in ("h1", "f1") if hurry.random() < 0.25 or HURRY in kinds]
        driven = DRIVERS in kinds or "d1" in self.cast  # what checks the drivers goes by their epochs alone
        if hurry.random() < 0.3 and not driven:
            settings["transaction_last_producer_epoch"] = hurry.randint(1, 4)
        if DRIVERS in kinds:
            self.cast = ["r1", "d1", "d2"]
        tables = random.Random(f"{seed}/tables").random() < 0.3 and DRIVERS not in kinds  # other seeds stay as they are
        if tables:
            settings["log_cleaner_backoff_ms"] = 100
        rolled = not kinds and goes_back(seed)
        self.rolls_back = rolled or ROLLBACK in kinds
        """Whether ZooKeeper is put back to an older copy, in place of the seed's faults."""
        rights = RIGHTS in kinds or random.Random(f"{seed}/rights").random() < 0.2
        rights = rights and DRIVERS not in kinds and not rolled
        if rights:
            settings |= RIGHTS_SETTINGS
        self.minimum = 2
        """``min.insync.replicas`` of the topic."""
        self.least_minimum = self.minimum
        """The least that an operator asked for since."""
        self.client_crashes = rng.choice((0.0, 0.05, 0.2))
        self.duration_s = rng.uniform(1.5, 4.5)

        def later(what: str) -> bool:
            drawn = seed >= NOTED_SEEDS and random.Random(f"{seed}/{what}").random() < 0.25 and DRIVERS not in kinds
            return (drawn and not (rolled and what in NOT_IN_LOGS)) or what in kinds

        logins, rebalances = later(LOGINS), later(REBALANCES)
        if rebalances:
            settings |= rebalancing.SETTINGS
        shares = later(SHARES)
        if shares:
            settings |= sharing.SETTINGS
        self.fleet = Fleet(
            seed, self.size, note=self.note, settings=settings, racks=racks, logs_in=logins, spread=later(DIRECTORIES)
        )
        self.loop = self.fleet.loop
        self.network = self.fleet.network
        self.zookeeper = self.fleet.zookeeper
        self.oracle = Oracle(self)
        self.internal = INTERNAL
        self.network.on_request = self._requested
        self.network.on_runs = self._counted
        self.keeps_changes = rng.choice((0, 1, 1, 3))
        """So many entries stay in the change log when the controller prunes it; 0: as many as outside."""
        self.zookeeper.on_commit = self._committed
        self.faults = Faults(self)
        if self.rolls_back:
            self.faults.happen = Rollback(self).happen  # type: ignore[method-assign]
        self.clients: list[asyncio.Task[Any]] = []
        self.table = TableWriter(self, "table writer") if tables else None
        self.officer = Officer(self, "officer") if rights else None
        self.registrar = Registrar(self, "registrar") if logins else None
        self.repeating = repeating.writers(self) if later(REPEATS) else []
        self.trims = later(TRIMS)
        self.checking = checking.Checking(self) if later(CHECKS) else None
        self.spreading = spreading.clients(self) if later(SPREADS) else []
        self.renewing = renewing.clients(self) if later(RENEWS) else []
        self.rebalancing = rebalancing.clients(self) if rebalances else []
        self.sharing = sharing.clients(self) if shares else None

    # ---- what others ask

    def client_rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    def wall_ms(self) -> int:
        return self.fleet.brokers[1].clock.wall_ms() - self.fleet.brokers[1].clock.skew_ms

    def note(self, text: str) -> None:
        """One line of the history."""
        line = f"{self.loop.time() - 1:9.4f} {text}"
        self._hash = zlib.crc32(line.encode(), self._hash)
        self.trace.append(line)

    def _requested(self, client: str, server: str, api_key: int) -> None:
        self._hash = zlib.crc32(f"{self.loop.now_us}{client}{server}{api_key}{self.loop.steps}".encode(), self._hash)

    def _counted(self, what: str) -> None:
        self.oracle.checked[what] += 1

    def _committed(self, paths: list[str]) -> None:
        self._hash = zlib.crc32(f"{self.loop.now_us}{paths}".encode(), self._hash)
        self.oracle.checked["changes pruned"] += sum(path.startswith(CHANGE) and path != CHANGE for path in paths)
        for path in paths:
            if path.startswith(TOPICS) and path.count("/") == TOPICS.count("/"):
                self.oracle.topic_written(path)
        if any(path.endswith("/state") for path in paths):
            self.oracle.states_written()

    # ---- the run

    def run(self) -> Report:
        """Run the seed to its end or its first violation."""
        with _quiet(self), hooked(self.oracle):
            try:
                self._story()
            finally:
                self.errors += self.loop.errors
                report = Report(
                    self.seed, self.oracle.violations, self.errors, self._hash, self.loop.steps,
                    self.loop.time() - 1, self.oracle.checked, self.faults.fired, list(self.trace),
                    self.asked,
                )  # fmt: skip
                self.loop.close()
        return report

    def _story(self) -> None:
        self.fleet.start()
        if not self._until(self.fleet.serving, BOOT_S):
            self.oracle.violate("the fleet does not start")
        main = self.loop.spawn(self.loop.world, self._main(), "world")
        self._until(main.done, 600.0)
        if main.done() and not self.stopped:
            main.result()
        elif not self.stopped:
            self.oracle.violate("the run does not end")

    @property
    def stopped(self) -> bool:
        return bool(self.oracle.violations or self.errors or self.loop.errors)

    def _until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Run until done, a violation, or a time-out; whether it is done."""
        self.loop.run_until(lambda: self.stopped or done(), self.loop.now_us + round(timeout_s * 1e6))
        return done()

    async def _main(self) -> None:
        partitions = [TopicPartition(TOPIC, index) for index in range(2)]
        admin = Admin(self, "operator")
        await admin.run(admin.create(TOPIC, 2, 3, {"min.insync.replicas": str(self.minimum)}))
        groups = ["g", *(f"copies-{name}" for name in self.cast if name[0] in "xyf")]
        clients: list[tuple[Client, Any]] = [(admin, admin.main(TOPIC, 2))] if self.operated else []
        for name in self.cast:
            client = ROLES[name[0]](self, name)
            match client:
                case Inspector():
                    clients.append((client, client.main(TOPIC, 2)))
                case Producer():
                    clients.append((client, client.main(partitions)))
                case SessionReader():
                    clients.append((client, client.main(partitions, self.rng.random() < 0.5)))
                case Eraser():
                    clients.append((client, client.main(partitions)))
                case Consumer():
                    number = int(name[1:]) % 2
                    clients.append((client, client.main(partitions[number], number == 1)))
                case Auditor():
                    clients.append((client, client.main(partitions, groups)))
                case Member():
                    clients.append((client, client.main("g", partitions)))
        if self.table is not None:
            await admin.run(admin.create(TABLE, 1, 3, self.table.settings))
            clients.append((self.table, self.table.write()))
        if self.officer is not None:
            clients.append((self.officer, self.officer.main(partitions)))
        if self.registrar is not None:
            clients.append((self.registrar, self.registrar.main()))
        more, also = await self._of_other_topics(admin)
        clients, partitions = [*clients, *more], [*partitions, *also]
        self.clients = [client.run(work) for client, work in clients]
        self.note(f"clients run for {self.duration_s:.1f} s against {self.size} brokers")
        await self.faults.happen(self.duration_s)
        self.note("all faults are over")
        try:
            async with asyncio.timeout(HEAL_S):
                await asyncio.sleep(1.0)
                self.closing = True
                await asyncio.gather(*self.clients)
                self.note("all clients are done")
                await self._whole()
                shown = await self._read_all(partitions)
        except TimeoutError:
            self.oracle.violate(f"not healed within {HEAL_S:.0f} s: {self._what_is_wrong()}")
        if self.stopped:
            return
        if self.fleet.invisible:
            self.oracle.violate(f"waited in vain for their registrations: {self.fleet.invisible}")
        letters = shown.pop(checking.LETTERS, [])
        self.oracle.check_all(shown)
        if self.checking is not None:
            checking.check(self, self.checking, shown[checking.CHECKED], letters)
        self.oracle.check_shadows()
        self._same_everywhere()
        if self.table is not None:
            self.table.check(self._partitions()[TopicPartition(TABLE, 0)])

    async def _of_other_topics(self, admin: Admin) -> tuple[list[tuple[Client, Any]], list[TopicPartition]]:
        """Clients that have topics of their own, with their work, and these topics' partitions."""
        clients: list[tuple[Client, Any]] = []
        partitions: list[TopicPartition] = []
        if self.repeating:
            await admin.run(admin.create(repeating.ONCE, 1, 3, repeating.SETTINGS))
            self.oracle.once.add(repeating.ONCE)
            clients += [(writer, writer.write()) for writer in self.repeating]
            if self.trims:
                trimmer = repeating.Trimmer(self, "trimmer")
                clients.append((trimmer, trimmer.trim()))
            partitions.append(repeating.TP)
        if self.checking is not None:
            for tp, settings in self.checking.topics.items():
                await admin.run(admin.create(tp.topic, 1, 3, settings))
            clients.append((self.checking.registrar, self.checking.registrar.register()))
            clients += [(writer, writer.write()) for writer in self.checking.writers]
            partitions += [tp for tp in self.checking.topics if tp != checking.SCHEMAS]
        if self.spreading:
            await admin.run(admin.create(spreading.WIDE, len(spreading.PARTITIONS), 3, spreading.SETTINGS))
            clients += self.spreading
            partitions += spreading.PARTITIONS
        if self.renewing:
            clients += self.renewing
            partitions += renewing.PARTITIONS
        if self.rebalancing:
            await admin.run(admin.create(rebalancing.DEALT, rebalancing.FIRST, 3))
            clients += self.rebalancing
        if self.sharing is not None:
            foreman, queue, workers = self.sharing
            await foreman.run(foreman.permit(queue))
            await admin.run(admin.create(sharing.QUEUE, len(sharing.PARTITIONS), 3, {"min.insync.replicas": "2"}))
            clients += workers
            partitions += sharing.PARTITIONS
        return clients, partitions

    # ---- the end

    def _what_is_wrong(self) -> str:
        waiting = [task.get_name() for task in self.clients if task.cancelled() or not task.done()]
        return f"clients {waiting}, partitions {self._broken()}"

    def _open(self) -> list[str]:
        """Transactions that have not ended: for their coordinators, or in a log, where they hold readers up."""
        open_now = [
            f"{name} is {transaction.state.label}"
            for broker in self.fleet.brokers.values()
            for partition in (broker.services.replicas.all() if broker.services is not None else ())
            if partition.is_leader and partition.tp.topic == TRANSACTION_STATE_TOPIC
            for host in [broker.services.transactions.host(partition.tp.partition)]
            for name, transaction in (host.shard.transactions.items() if host is not None else ())
            if transaction.state not in ENDED
        ]
        return open_now + [
            f"producers {sorted(partition.log.producers.open)} in {tp} from {partition.log.last_stable_offset}"
            for tp, replicas in self._partitions().items()
            for partition in replicas
            if partition.is_leader and partition.log.producers.open
        ]

    def _broken(self) -> list[str]:
        """Partitions that are not led with all replicas in sync, their ends equal everywhere and nothing open."""
        if not self.fleet.serving():
            return ["not all brokers serve"]
        images = [broker.services.metadata for broker in self.fleet.brokers.values() if broker.services is not None]
        wrong = [] if all(metadata.topics == images[0].topics for metadata in images) else ["the views differ"]
        for tp, replicas in self._partitions().items():
            ends = {(p.log.log_end_offset, p.log.high_watermark, p.log.last_stable_offset) for p in replicas}
            leaders = [p for p in replicas if p.is_leader]
            whole = len(leaders) == 1 and len(leaders[0].state.isr) == len(leaders[0].state.target) == len(replicas)
            if not whole or len(ends) != 1 or len(set(next(iter(ends)))) != 1:
                state = leaders[0].state if leaders else None
                wrong.append(f"{tp} {sorted(ends)} {state}")
        return wrong

    def _partitions(self) -> dict[TopicPartition, list[Any]]:
        found: dict[TopicPartition, list[Any]] = {}
        for broker in self.fleet.brokers.values():
            if broker.services is not None:
                for partition in broker.services.replicas.all():
                    found.setdefault(partition.tp, []).append(partition)
        return found

    async def _whole(self) -> None:
        """Wait until the fleet is as it should be. No transaction may stay open for much longer than its timeout."""
        deadline = self.loop.time() + OPEN_S
        away_s = 0.0
        while (left := self._open()) or self._broken() or self.oracle.stale_metadata():
            if not self.fleet.serving():
                away_s = self.loop.time()
            if self.loop.time() > deadline:
                stale = self.oracle.stale_metadata() if self.loop.time() > away_s + SEEN_S else []
                more_s = LETTERS_S if all(one.startswith("__share.") for one in left) else 0
                if left and self.loop.time() > deadline + more_s:
                    self.oracle.violate(f"open {OPEN_S + more_s:.0f} s after all clients had gone: {left}")
                    return
                if stale:
                    self.oracle.violate(f"stale {OPEN_S:.0f} s after all clients had gone: {stale}")
                    return
            await asyncio.sleep(0.1)
        self.oracle.checked["nothing left open"] += 1
        for watched, what in ((self.officer, "rights in the end"), (self.registrar, "passwords in the end")):
            while watched is not None and (wrong := watched.wrong()):
                if self.loop.time() > deadline:
                    self.oracle.violate(f"{OPEN_S:.0f} s after all clients had gone: {wrong}")
                    return
                await asyncio.sleep(0.1)
            self.oracle.checked[what] += watched is not None

    async def _read_all(self, partitions: list[TopicPartition]) -> dict[TopicPartition, list[str]]:
        """What a read_committed consumer shows from start to end."""
        shown = {}
        for tp in partitions:
            reader = Consumer(self, f"last{tp.partition}")
            position, end = 0, self.oracle.by_name[tp].end if tp in self.oracle.by_name else 0
            while position < end:
                position = await reader.run(reader.poll(tp, position, True, 0))
            shown[tp] = reader.shown
        return shown

    def _same_everywhere(self) -> None:
        """The replicas of a partition hold the same batches."""
        for tp, replicas in self._partitions().items():
            start = max(p.log.log_start_offset for p in replicas)
            logs = [
                [
                    (h.base_offset, h.last_offset, h.partition_leader_epoch, h.crc)
                    for h in self.oracle.shadow_of(p.log).headers
                    if h.last_offset >= start
                ]
                for p in replicas
            ]
            if tp.topic not in COMPACTED_TOPICS and any(log != logs[0] for log in logs):
                self.oracle.violate(f"the replicas of {tp} differ")
            low = self.oracle.deleted.get(tp, 0)
            if self.faults.keeps_starts and any(p.log.log_start_offset < low for p in replicas):
                starts = [p.log.log_start_offset for p in replicas]
                self.oracle.violate(f"the records of {tp} up to {low} were deleted, and the replicas start at {starts}")


@contextmanager
def _quiet(world: World) -> Iterator[None]:
    """Random ids from the seed, and the log for ourselves."""
    import uuid

    handler, root = _ErrorLog(world), logging.getLogger()
    level, handlers, original = root.level, root.handlers[:], uuid.uuid4
    every_s, kept = controller.PRUNE_EVERY_SECONDS, controller.KEEP_CHANGES
    moves, move_commands.MOVES_PER_TURN = move_commands.MOVES_PER_TURN, 1  # a few of them shall be as slow as hundreds
    if world.keeps_changes:
        controller.PRUNE_EVERY_SECONDS, controller.KEEP_CHANGES = 0.25, world.keeps_changes
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if world.verbose else logging.ERROR)
    uuid.uuid4 = world.fleet.new_id
    try:
        yield
    finally:
        uuid.uuid4 = original
        controller.PRUNE_EVERY_SECONDS, controller.KEEP_CHANGES = every_s, kept
        move_commands.MOVES_PER_TURN = moves
        root.handlers[:] = handlers
        root.setLevel(level)
