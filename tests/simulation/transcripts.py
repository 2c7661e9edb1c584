"""Histories that people read: directed courses of events on a small fleet, kept as text in ``docs/histories``.

``python -m tests.simulation.transcripts --write`` renews the texts; without ``--write`` it prints those whose names
contain an argument.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fleetlog.wire.messages as m
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.metadata.znodes import CONTROLLER, decode_controller
from fleetlog.brokers.model import PartitionState
from fleetlog.coordination.store import NoNode
from fleetlog.wire.types import TopicPartition
from tests.simulation.admin import TIMEOUT_MS, Admin
from tests.simulation.clients import (
    GROUP,
    INTERNAL,
    TRANSACTION,
    TRANSACTIONAL,
    Client,
    Consumer,
    Fenced,
    Member,
    Producer,
    TransactionalProducer,
)
from tests.simulation.fleet import SETTINGS, SimBroker
from tests.simulation.invariants import wrapped
from tests.simulation.network import Wire
from tests.simulation.scribe import Scribe
from tests.simulation.world import BOOT_S, TOPIC, Report, World
from tests.simulation.zookeeper import DOWN

FOLDER = Path(__file__).parents[2] / "docs" / "histories"
SEED = 5
BROKERS = (1, 2, 3, 4)
PATIENCE_S = 20.0
SETTLES_S = 1.0
T0, T1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


class _Even(random.Random):
    """Draws the middle of everything: all ways are equally long, and no chance decides."""

    def random(self) -> float:
        return 0.5


class _Steady(Client):
    """Asks the broker with the highest id for metadata, of those that serve."""

    def any_broker(self) -> int:
        return max(broker.id for broker in self.world.fleet.brokers.values() if broker.services is not None)


class Operator(_Steady, Admin):
    """Does what the course says."""


class Author(_Steady, Producer):
    """A producer whose records the course names."""

    async def begin(self) -> None:
        await self.prepare([T0, T1])

    async def send(self, *values: str, tp: TopicPartition = T0) -> None:
        """One batch, sent until it is acknowledged."""
        data = self.batch(values, self._producer_id, 0, self._sequences[tp])
        self._sequences[tp] += len(values)
        self.world.oracle.sending(tp, values)
        await self.deliver(tp, data, values)


class Payer(_Steady, TransactionalProducer):
    """One process of a transactional producer, by a name of its own."""

    def __init__(self, world: World, name: str, process: str) -> None:
        super().__init__(world, name)
        self.process = process
        self.epoch = (-1, -1)
        self.transaction_now = (name, 0)
        self._sequences = dict.fromkeys((T0, T1), 0)

    def wire(self, broker: int) -> Wire:
        if broker not in self._wires or not self._wires[broker].open:
            self._wires[broker] = self.world.network.connect(self.owner, self.process, f"b{broker}")
        return self._wires[broker]

    async def begin(self, number: int) -> None:
        """Get an epoch; what is written from now on is of that transaction."""
        self.epoch = await self._init((-1, -1), may_be_fenced=False)
        self.transaction_now = self.name, number

    async def write(self, tp: TopicPartition, *values: str) -> None:
        """One batch; raises Fenced."""
        self.world.oracle.sending(tp, values, self.transaction_now)
        data = self.batch(values, *self.epoch, self._sequences[tp], TRANSACTIONAL)
        self._sequences[tp] += len(values)
        await self.add(tp, data, values)

    async def commit(self) -> None:
        """Raises Fenced."""
        await self.end(self.transaction_now, True, *self.epoch)


class Reader(_Steady, Consumer):
    """A read_committed consumer that shows what it reads."""

    async def read(self, scribe: Scribe, tp: TopicPartition, position: int) -> int:
        """One fetch; returns the next position."""
        shown = len(self.shown)
        position = await self.poll(tp, position, True, 0)
        scribe.does(self.name, f"shows [{' '.join(self.shown[shown:])}] of {tp}")
        return position


class Participant(_Steady, Member):
    """A member of a group."""


class Stage(World):
    """The fleet of a course: b4 is the controller, the topic t has its replicas on the other three, b1 leads it."""

    def __init__(self, course: Course) -> None:
        super().__init__(SEED)
        assert self.size == len(BROKERS), f"seed {SEED} has another number of brokers"
        self.course = course
        self.scribe = Scribe(self)
        self.table = self.officer = self.registrar = None
        self.minimum = 2
        self.keeps_changes = 0
        self.loop._random = _Even().random
        self.network.rng = self.zookeeper.rng = _Even()
        self.network._turn_us = 1
        settings = {**SETTINGS, "auto_leader_rebalance_enable": False}
        for broker in self.fleet.brokers.values():
            broker.config = BrokerConfig(broker_id=broker.id, log_dirs=(f"/{broker.name}",), **settings)
            broker.medium.rng = _Even()
        self.p = Author(self, "p")
        self.admin = Operator(self, "operator")

    def client_rng(self, name: str) -> random.Random:
        return _Even()

    # ---- the run

    def perform(self) -> tuple[Report, str]:
        """How the course went, and its transcript."""
        with wrapped(self.scribe.hooks()):
            report = self.run()
        return report, self.scribe.text(self.course.title, self.course.shows, self._cast())

    def _cast(self) -> str:
        """Who is there when it begins."""
        led = (f"b{ids[0]} leads {TOPIC}-{index} (replicas {' '.join(f'b{one}' for one in ids)})"
               for index, ids in enumerate(self.course.replicas))  # fmt: skip
        return f"{', '.join(led)}; b{BROKERS[-1]} is the controller; min.insync.replicas is {self.minimum}."

    def _story(self) -> None:
        controller = self.brokers[BROKERS[-1]]
        controller.start()
        self._until(lambda: controller.services is not None, BOOT_S)
        super()._story()

    async def _main(self) -> None:
        await self.admin.run(self._create())
        await self.p.run(self.p.begin())
        await self.until(lambda: len(self.state().isr) == 3, "all replicas are in sync")
        await asyncio.sleep(SETTLES_S)
        await self.course.play(self)
        await asyncio.sleep(SETTLES_S)

    async def _create(self) -> None:
        kind = m.CreateTopicsRequest.CreatableTopic
        replicas = kind.CreatableReplicaAssignment
        topic = kind(
            version=5, name=TOPIC, num_partitions=-1, replication_factor=-1,
            assignments=[replicas(version=5, partition_index=index, broker_ids=list(ids))
                         for index, ids in enumerate(self.course.replicas)],
            configs=[kind.CreatableTopicConfig(version=5, name="min.insync.replicas", value=str(self.minimum))],
        )  # fmt: skip
        request = m.CreateTopicsRequest(version=5, topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=False)
        while T0 not in self.admin.topics:
            await self.admin.command(request, 5, 1)
            await self.admin.refresh()

    # ---- what courses do

    @property
    def brokers(self) -> dict[int, SimBroker]:
        return self.fleet.brokers

    def state(self, tp: TopicPartition = T0) -> PartitionState:
        state = self.oracle._state(tp)
        assert state is not None
        return state

    async def coordinated(self, client: Client, kind: int, key: str) -> None:
        """Wait until there is a coordinator, and its topic is replicated."""
        await client.run(client.coordinator(kind, key))
        topic = INTERNAL[kind]
        await self.until(lambda: len(self.state(topic).isr) == 3, f"{topic} is in sync")

    @staticmethod
    async def refused(attempt: Coroutine[Any, Any, None]) -> None:
        try:
            await attempt
        except Fenced:
            return
        raise AssertionError("it is not refused")

    def controller(self) -> int:
        """The broker that is the controller; -1 if there is none."""
        try:
            return decode_controller(self.zookeeper.tree.find(CONTROLLER).data)
        except NoNode:
            return -1

    def step(self, heading: str) -> None:
        """What follows stands under this heading."""
        self.scribe.begin(heading)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it, and until what it brings with it is over."""
        deadline = self.loop.time() + PATIENCE_S
        while not condition():
            assert self.loop.time() < deadline, f"not after {PATIENCE_S} s: {what}; {self.state()}"
            await asyncio.sleep(0.02)
        await asyncio.sleep(SETTLES_S)

    async def in_sync(self, *ids: int) -> None:
        await self.until(lambda: sorted(self.state().isr) == sorted(ids), f"{ids} are in sync")

    async def sends(self, *values: str, tp: TopicPartition = T0) -> None:
        """The producer sends one batch and is told of it."""
        await self.p.run(self.p.send(*values, tp=tp))
        await asyncio.sleep(SETTLES_S)

    def cut(self, speaker: str, *hearers: str) -> None:
        """What one says does not reach the others until :meth:`mend`."""
        for hearer in hearers:
            self.network.block(speaker, hearer)

    async def mend(self, speaker: str, *hearers: str) -> None:
        """The way is open for what is said from now on."""
        for hearer in hearers:
            self.network.give_up(hearer, speaker)
            await asyncio.sleep(0)
            self.network.unblock(speaker, hearer)

    async def serves(self, broker: int) -> None:
        """Start that broker again."""
        self.brokers[broker].start()
        await self.until(lambda: self.brokers[broker].services is not None, f"b{broker} serves")


class Course(NamedTuple):
    """One directed course of events; ``shows`` says what it shows."""

    name: str
    title: str
    shows: str
    play: Callable[[Stage], Coroutine[Any, Any, None]]
    replicas: Sequence[Sequence[int]] = ((1, 2, 3),)


async def _replication(stage: Stage) -> None:
    stage.step("p sends a, b and c with acks=all.")
    await stage.sends("a", "b", "c")
    stage.step("And d.")
    await stage.sends("d")


async def _follower_dies(stage: Stage) -> None:
    stage.step("The follower b2 is killed, and p sends a and b.")
    stage.brokers[2].kill()
    await stage.sends("a", "b")
    stage.step("p sends c: b2 is not waited for any more.")
    await stage.sends("c")
    stage.step("b2 is started again.")
    await stage.serves(2)
    await stage.in_sync(1, 2, 3)
    stage.step("p sends d.")
    await stage.sends("d")


async def _leader_dies(stage: Stage) -> None:
    stage.step("p sends a.")
    await stage.sends("a")
    stage.step("What b1 says no longer reaches its followers, and p sends b to it. Then b1 is killed.")
    stage.cut("b1", "b2", "b3")
    sending = stage.p.run(stage.p.send("b"))
    await asyncio.sleep(0.1)
    stage.brokers[1].kill()
    await stage.until(lambda: stage.state().leader == 2, "b2 leads")
    await sending
    await asyncio.sleep(SETTLES_S)
    stage.step("b1 is started again.")
    await stage.mend("b1", "b2", "b3")
    await stage.serves(1)
    await stage.in_sync(1, 2, 3)


async def _cut_from_zookeeper(stage: Stage) -> None:
    stage.step("b1 no longer reaches ZooKeeper. p sends a at once: b1 still has its lease.")
    stage.zookeeper.block("b1")
    await stage.p.run(stage.p.send("a"))
    await asyncio.sleep(0.1)
    stage.step("p sends b when the lease of b1 has ended.")
    await stage.until(lambda: stage.state().leader == 2, "b2 leads")
    await stage.sends("b")
    stage.step("b1 reaches ZooKeeper again.")
    stage.zookeeper.unblock("b1")
    await stage.in_sync(1, 2, 3)


async def _paused(stage: Stage) -> None:
    stage.step("The process of b1 stands still (SIGSTOP), and p sends a.")
    owner = stage.brokers[1].owner
    assert owner is not None
    stage.loop.pause(owner)
    await stage.sends("a")
    stage.step("b1 goes on.")
    stage.loop.resume(owner)
    await stage.in_sync(1, 2, 3)


async def _eligible(stage: Stage) -> None:
    stage.step("b3 is killed.")
    stage.brokers[3].kill()
    await stage.in_sync(1, 2)
    stage.step("p sends a.")
    await stage.sends("a")
    stage.step("b2 stops cleanly. p sends b.")
    stage.brokers[2].stop()
    await stage.in_sync(1)
    sending = stage.p.run(stage.p.send("b"))
    await asyncio.sleep(SETTLES_S)
    stage.step("b1 is killed.")
    stage.brokers[1].kill()
    await stage.until(lambda: stage.state().leader < 0, "nobody leads")
    stage.step("b3 is started again: it has not got a, and waits.")
    await stage.serves(3)
    stage.step("b2 is started again.")
    await stage.serves(2)
    await stage.in_sync(2, 3)
    await sending
    await asyncio.sleep(SETTLES_S)
    stage.step("b1 is started again.")
    await stage.serves(1)
    await stage.in_sync(1, 2, 3)


async def _controller_dies(stage: Stage) -> None:
    stage.step("b4, the controller, is killed; p sends a meanwhile.")
    stage.brokers[4].kill()
    await stage.sends("a")
    for late in ("b2", "b3"):
        stage.zookeeper.block(late, DOWN)
    stage.step("The session of b4 ends. b1 hears of it first, b2 and b3 a little later.")
    while stage.controller() != 1:
        await asyncio.sleep(0.02)
    for late in ("b2", "b3"):
        stage.zookeeper.unblock(late)
    await asyncio.sleep(SETTLES_S)
    stage.step("b2 is killed.")
    stage.brokers[2].kill()
    await stage.in_sync(1, 3)


async def _retry(stage: Stage) -> None:
    stage.step("What b1 says no longer reaches p. p sends a.")
    stage.cut("b1", "p")
    sending = stage.p.run(stage.p.send("a"))
    await asyncio.sleep(2.5)
    stage.step("b1 is heard again.")
    stage.network.unblock("b1", "p")
    await sending
    await asyncio.sleep(SETTLES_S)
    stage.step("p sends b.")
    await stage.sends("b")


async def _moved(stage: Stage) -> None:
    stage.step("p sends a.")
    await stage.sends("a")
    stage.step("An operator moves t-0 from b1, b2 and b3 to b4, b2 and b3.")
    await stage.admin.run(stage.admin.move(T0, [4, 2, 3]))
    await stage.in_sync(2, 3, 4)
    stage.step("p sends b.")
    await stage.sends("b")


async def _clean_stop(stage: Stage) -> None:
    stage.step("b1 gets SIGTERM.")
    stage.brokers[1].stop()
    await stage.until(lambda: not stage.brokers[1].running, "b1 has stopped")
    stage.step("p sends a.")
    await stage.sends("a")
    stage.step("b1 is started again.")
    await stage.serves(1)
    await stage.in_sync(1, 2, 3)
    stage.step("An operator asks for the preferred leader.")
    await stage.admin.run(stage.admin.elect(T0))
    await stage.until(lambda: stage.state().leader == 1, "b1 leads")


async def _transaction(stage: Stage) -> None:
    x, r = Payer(stage, "x", "x"), Reader(stage, "r")
    await stage.coordinated(x, TRANSACTION, "x")
    stage.step("x begins, and writes a to t-0 and b to t-1.")
    await x.run(x.begin(1))
    await x.run(x.write(T0, "a"))
    await x.run(x.write(T1, "b"))
    await asyncio.sleep(SETTLES_S)
    stage.step("r, which is read_committed, reads t-0.")
    await r.run(r.read(stage.scribe, T0, 0))
    stage.step("x commits.")
    await x.run(x.commit())
    await asyncio.sleep(SETTLES_S)
    stage.step("r reads both.")
    await r.run(r.read(stage.scribe, T0, 0))
    await r.run(r.read(stage.scribe, T1, 0))


async def _zombie(stage: Stage) -> None:
    old, new, r = Payer(stage, "x", "x-old"), Payer(stage, "x", "x-new"), Reader(stage, "r")
    await stage.coordinated(old, TRANSACTION, "x")
    stage.step("The first process of x begins, and writes a.")
    await old.run(old.begin(1))
    await old.run(old.write(T0, "a"))
    await asyncio.sleep(SETTLES_S)
    stage.step("It stands still; a second process of x is started, and begins.")
    await new.run(new.begin(2))
    await asyncio.sleep(SETTLES_S)
    stage.step("The first one goes on: it writes b, and commits.")
    await old.run(stage.refused(old.write(T0, "b")))
    await old.run(stage.refused(old.commit()))
    stage.step("r, which is read_committed, reads t-0.")
    await r.run(r.read(stage.scribe, T0, 0))


async def _coordinator_moves(stage: Stage) -> None:
    m1 = Participant(stage, "m")
    await stage.coordinated(m1, GROUP, "g")
    stage.step("m joins the group g.")
    member_id, _, _ = await m1.run(m1.join("g", "", 1))
    member_id, generation, _ = await m1.run(m1.join("g", member_id, 1))
    stage.step("m commits the offset 5 of t-0.")
    await m1.run(m1.commit("g", T0, 5, member_id, generation))
    await asyncio.sleep(0.1)
    stage.step("The coordinator is killed, and m goes on.")
    stage.brokers[stage.state(INTERNAL[0]).leader].kill()
    while await m1.run(m1.beat("g", member_id, generation)):
        await asyncio.sleep(0.1)
    stage.step("m commits the offset 6, and asks for it.")
    await m1.run(m1.commit("g", T0, 6, member_id, generation))
    await m1.run(m1.position("g", T0))


async def _lost_tails(stage: Stage) -> None:
    b1, b2, b3 = (stage.brokers[one] for one in (1, 2, 3))
    before = b1.medium.copy()
    b3.kill()
    await stage.in_sync(1, 2)
    stage.step("b3 is away and not in sync. p sends a.")
    await stage.sends("a")
    stage.step("b2 is killed, and then b1, whose disk has lost a with the power.")
    b2.kill()
    await stage.in_sync(1)
    b1.kill()
    b1.medium.put_back(before)
    await stage.until(lambda: stage.state().leader < 0, "nobody leads")
    stage.step("b3 and b1 are started again.")
    await stage.serves(3)
    await stage.serves(1)
    stage.step("b2 is started again.")
    await stage.serves(2)
    await stage.in_sync(1, 2, 3)


COURSES = (
    Course(
        "01-replication", "Records are replicated, and the high watermark follows",
        "A record is committed once all in-sync replicas have it: the high watermark is behind it. The leader learns"
        " what a follower has from where it fetches next, the followers learn the high watermark with what they fetch."
        " With acks=all the producer is told of committed records only.",
        _replication,
    ),
    Course(
        "02-a-follower-dies", "A follower dies, and comes back",
        "acks=all waits for the members of the in-sync set, so a dead one must leave it first. It comes back as a"
        " follower that is not in sync, reads what it lacks, and joins the set again.",
        _follower_dies,
    ),
    Course(
        "03-the-leader-dies", "The leader dies with a record that nobody else has",
        "Another member of the in-sync set leads, in the next epoch. What the old leader alone had was never"
        " acknowledged. When it comes back the two logs are compared by epoch, and it gives up what is not in the"
        " new leader's log.",
        _leader_dies,
    ),
    Course(
        "04-the-leader-is-cut-from-zookeeper", "The leader no longer reaches ZooKeeper",
        "A leader acknowledges and serves while its lease is valid, which ends before its session does: when another"
        " broker is elected, nothing more comes from the old one. What that one still takes is never committed.",
        _cut_from_zookeeper,
    ),
    Course(
        "05-the-leader-is-paused", "The leader stands still, and wakes up as a follower",
        "A process that was stopped does not know it. What it takes when it goes on, it takes without a lease, and"
        " gives up as soon as it has heard who leads.",
        _paused,
    ),
    Course(
        "06-an-eligible-replica-leads", "The last member of the in-sync set is lost, and an eligible replica leads",
        "Below min.insync.replicas nothing is committed, so a replica that leaves the in-sync set then has all that"
        " ever was: it stays eligible to lead (KIP-966). A replica that left earlier is not.",
        _eligible,
    ),
    Course(
        "07-the-controller-dies", "The controller dies, and the next one goes on",
        "Leaders serve and commit without a controller. Whoever creates the znode next is the controller, in the next"
        " epoch; all others are refused. From then on it watches over the brokers.",
        _controller_dies,
    ),
    Course(
        "08-a-retry", "A producer retries, and its batch is appended once",
        "A batch carries its producer's id and a sequence. The leader remembers the last ones, and answers a repeated"
        " batch with the offset that it has.",
        _retry,
    ),
    Course(
        "09-a-replica-moves", "A replica is moved to another broker",
        "A new replica is added first, and reads the log. Once it is in sync the old one is taken out; as that one"
        " leads here, leadership moves, too.",
        _moved,
    ),
    Course(
        "10-a-clean-stop", "A clean stop hands over leadership",
        "A broker that stops asks the controller for successors before it closes its door. Its logs are whole when it"
        " comes back, and so it is told apart from one that was killed: it is intact since it stopped.",
        _clean_stop,
    ),
    Course(
        "11-a-transaction", "A transaction over two partitions is committed by markers",
        "The leader of each partition adds it to the transaction at its coordinator. The coordinator writes down that"
        " it commits, has a marker written to each partition, and is done. Until a partition has its marker,"
        " read_committed consumers get nothing from the first record of the transaction on.",
        _transaction, ((1, 2, 3), (2, 3, 1)),
    ),
    Course(
        "12-a-zombie-is-fenced", "A producer that was taken for dead is fenced",
        "A transactional id belongs to the process that asked for it last. The epoch of the one before is over: its"
        " open transaction is aborted, and whatever it still sends is refused.",
        _zombie,
    ),
    Course(
        "13-a-coordinator-moves", "A coordinator dies, and its group goes on",
        "What a group's coordinator knows stands in a partition of __consumer_offsets. The next leader of that"
        " partition reads it, and is the coordinator: members go on in the same generation.",
        _coordinator_moves,
    ),
    Course(
        "14-the-last-member-lost-its-tail", "The last member of the in-sync set comes back without what it had",
        "A broker that was not stopped cleanly begins a new incarnation, and what the state says of the one before does"
        " not count for it. So it does not lead at once, though it was the last in sync: the replicas that may have it"
        " all are heard first, and the one with most leads.",
        _lost_tails,
    ),
)  # fmt: skip


def transcript(course: Course) -> tuple[Report, str]:
    """How a course goes, and its text."""
    return Stage(course).perform()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.transcripts", description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="only those whose names contain this")
    parser.add_argument("--write", action="store_true", help="renew the files in docs/histories")
    asked = parser.parse_args()
    for course in COURSES:
        if asked.name not in course.name:
            continue
        report, text = transcript(course)
        for problem in (*report.violations, *report.errors):
            print(f"{course.name}: {problem}", file=sys.stderr)
        if asked.write:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / f"{course.name}.txt").write_text(text)
        else:
            print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
