"""What happens to a fleet: the seed chooses fault, process, moment and duration. All are over in the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from fleetlog.coordination.election import CONTROLLER
from fleetlog.coordination.store import Delete
from fleetlog.wire.types import TopicPartition
from tests.simulation.clients import Auditor
from tests.simulation.directories import Directories
from tests.simulation.fleet import SESSION_MS
from tests.simulation.invariants import MIN_IN_SYNC
from tests.simulation.zookeeper import DOWN, UP

if TYPE_CHECKING:
    from tests.simulation.disk import Copy
    from tests.simulation.fleet import SimBroker
    from tests.simulation.loop import Owner
    from tests.simulation.world import World

WEIGHTS = {
    "kill": 10, "power": 8, "pause": 10, "stop": 5, "die in a write": 6,
    "cut": 10, "isolate": 6, "reset": 6, "slow": 6, "client cut": 4,
    "cut from zookeeper": 9, "break zookeeper": 4, "lose an answer": 8,
    "zookeeper server": 5, "zookeeper majority": 3, "zookeeper lag": 4,
    "depose the controller": 3, "disk full": 3, "disk fails": 3, "clock": 2,
    "disk put back": 4, "stall a mover": 6, "all brokers": 3, "zookeeper leader cut": 4, "hold the loop": 10,
    "overtake": 8,
}  # fmt: skip
LATER = ("disk put back", "stall a mover", "hold the loop", "overtake")
"""Kinds that generators of their own add to a seed's (the first two have one), so that the others' histories stay."""

FORGETTING = ("power", "disk put back")
PING_S = SESSION_MS / 3000
"""Between two pings of kazoo's thread."""
OUTLIVED_S, LAG_S = 2.4, 2.0
"""No session lasts that long after its loop stood still.

Its last ping (a sixth of a timeout), its server's answer to the leader (half a tick), the timeout, rounded up to two
ticks, and some more for the way; and what a server that lags takes to come to the last requests that were sent.
"""


class Faults:
    """See the module. ``fired`` counts what happened."""

    def __init__(self, world: World) -> None:
        self.fired: Counter[str] = Counter()
        self._world = world
        self._rng = random.Random(f"{world.seed}/faults")
        self._loop = world.loop
        rng = self._rng
        # a few kinds per seed, so that they coincide more often
        first = [kind for kind in WEIGHTS if kind not in LATER]
        kinds = rng.sample(first, rng.choice((2, 4, 8, len(first))))
        more = random.Random(f"{world.seed}/more faults")
        kinds += [kind for kind in LATER[:2] if more.random() < 0.25]
        kinds += [kind for kind in LATER[2:] if random.Random(f"{world.seed}/{kind}").random() < 0.25]
        self._kinds = {kind: WEIGHTS[kind] for kind in world.kinds or kinds}
        if world.fleet.spread:
            self._kinds["directories"] = 12
        self._away: dict[int, Directories] = {}
        """Brokers whose log directories are not what they were."""
        self._lossy = False
        """Whether a disk has lost something already."""
        self._calm_s = rng.choice((0.2, 0.5, 1.0))
        self._copies: dict[int, Copy] = {}
        """What a broker's directory was after an earlier clean stop."""
        self._standing_s: dict[Owner, float] = {}
        """For how long those stand still that do."""
        self._held_until_us: dict[Owner, int] = {}
        """The loops that are held, also beyond the other faults: most seeds have them for less than a session."""

    @property
    def keeps_starts(self) -> bool:
        """Whether no log may begin earlier than a client knows: only a machine that ends may lose what was saved."""
        return self.fired.keys().isdisjoint(FORGETTING)

    async def happen(self, duration_s: float) -> None:
        """Faults for so long, then everything is mended."""
        until = self._loop.time() + duration_s
        broker = self._world.fleet.brokers[1]
        while self._loop.time() < until:
            await asyncio.sleep(self._rng.uniform(0.02, 2 * self._calm_s))
            kind = self._rng.choices(list(self._kinds), list(self._kinds.values()))[0]
            if self._rng.random() < 0.6:  # else misfortunes never come singly
                broker = self._rng.choice(list(self._world.fleet.brokers.values()))
            if getattr(self, "_" + kind.replace(" ", "_"))(broker) is not False:
                self.fired[kind] += 1
        self._mend()

    def _mend(self) -> None:
        world = self._world
        for source, target in sorted(world.network.blocked):
            world.network.unblock(source, target)
        world.network.slow.clear()
        world.zookeeper.losing_answers.clear()
        for server in world.zookeeper.servers:
            server.lag_us = 0
            if not server.up or server.cut:
                world.zookeeper.start_server(server.index)
        for broker in world.fleet.brokers.values():
            world.zookeeper.unblock(broker.name)
            broker.medium.full = False
            broker.medium.die_after_writes = -1
            if broker.medium.failed_directory or broker.id in self._away:
                broker.kill()
            self._directories_back(broker)
            if broker.owner is not None and self._held_until_us.get(broker.owner, 0) <= self._loop.now_us:
                self._loop.resume(broker.owner)  # a loop that is held goes on by itself
            broker.start()

    def _note(self, text: str) -> None:
        self._world.note(f"FAULT {text}")

    def _later(self, low_s: float, high_s: float, action: Callable[..., object], *args: object) -> float:
        delay_s = self._rng.uniform(low_s, high_s)
        self._loop.call_later(delay_s, action, *args, context=self._loop.world.context)
        return delay_s

    def _span(self) -> tuple[float, float]:
        """Shorter than a session and the lag that is allowed, or longer."""
        return self._rng.choice(((0.05, 1.0), (1.5, 4.0)))

    # ---- processes

    def _start(self, broker: SimBroker) -> None:
        broker.start()

    def _kill(self, broker: SimBroker) -> bool:
        if not broker.running or not self._may_end(broker):
            return False
        broker.kill()
        self._note(f"kill {broker.name} for {self._later(0.02, 3.0, broker.start):.2f} s")
        return True

    def _all_brokers(self, broker: SimBroker) -> bool:
        """Every process ends in the same moment: no memory is left, but all that was written is."""
        if self._lossy or not all(one.running for one in self._world.fleet.brokers.values()):
            return False
        for one in self._world.fleet.brokers.values():
            one.kill()
            self._later(0.02, self._rng.choice((0.3, 3.0)), one.start)
        self._note("kill all brokers")
        return True

    def _power(self, broker: SimBroker) -> bool:
        alone = self._world.oracle.alone()
        if alone and self._rng.random() < 0.5:
            broker = self._world.fleet.brokers[self._rng.choice(alone)]
        if not broker.running or not self._spared(broker):
            return False
        self._lossy = True
        broker.kill(power=True)
        self._note(f"power of {broker.name} fails for {self._later(0.02, 3.0, broker.start):.2f} s")
        return True

    def _spared(self, broker: SimBroker) -> bool:
        """Whether for every partition another live broker holds all that is committed.

        More cannot be asked: what no surviving copy holds is lost, unless everything is flushed before it counts.
        """
        return self._world.flushes or self._world.oracle.spares(broker.id)

    def _may_end(self, broker: SimBroker) -> bool:
        """Whether its process may end: not the last with a copy that counts once others lost theirs."""
        return not self._lossy or self._spared(broker)

    def _die_in_a_write(self, broker: SimBroker) -> bool:
        if not broker.running:
            return False
        broker.medium.die_after_writes = self._rng.randint(0, 30)
        power = self._rng.random() < 0.5

        def die() -> None:
            lost = power and self._spared(broker)
            self._lossy |= lost
            broker.kill(power=lost)
            self._note(f"{broker.name} dies in a write{', power lost' if lost else ''}")
            self._later(0.02, 2.5, broker.start)

        broker.medium.on_death = die
        return True

    def _pause(self, broker: SimBroker) -> bool:
        owner = broker.owner
        if owner is None or owner.paused:
            return False
        self._loop.pause(owner)
        self._standing_s[owner] = self._later(*self._span(), self._loop.resume, owner)
        self._note(f"pause {broker.name} for {self._standing_s[owner]:.2f} s")
        return True

    def outlasts_its_session(self, owner: Owner) -> bool:
        """Whether it stands still for so long that its session may end meanwhile."""
        return owner.paused and self._standing_s.get(owner, 0.0) > SESSION_MS / 1000 - PING_S

    def _hold_the_loop(self, broker: SimBroker) -> bool:
        """Its tasks and timers do not run, and what comes waits; kazoo's thread goes on."""
        owner, store = broker.owner, broker.store
        if owner is None or store is None or broker.services is None or owner.paused:
            return False
        self._loop.pause(owner)
        span = self._rng.choice(((0.05, 1.0), (1.5, 4.0), (2.5, 6.0), (2.5, 6.0)))
        seconds = self._later(*span, self._loop.resume, owner)
        self._standing_s[owner] = seconds
        self._note(f"loop of {broker.name} held for {seconds:.2f} s")
        since_us = self._loop.now_us
        until_us = self._held_until_us[owner] = since_us + round(seconds * 1e6)

        def stands() -> bool:
            return owner.paused and not owner.dead and self._loop.now_us < until_us

        def ping() -> None:
            if stands():
                store.ping()
                self._loop.call_later(PING_S, ping, context=self._loop.world.context)

        store.heartbeats_prove(lambda: (self._loop.now_us - since_us) // 1000 if stands() else 0)
        session = store.session()
        if session is not None:
            ping()
            allowed_s = OUTLIVED_S + (LAG_S if self.fired["zookeeper lag"] else 0.0)
            self._later(allowed_s, allowed_s, self._outlived, broker, stands, session.session_id, since_us)
        return True

    def _outlived(self, broker: SimBroker, stands: Callable[[], bool], session_id: int, since_us: int) -> None:
        """The loop has stood for longer than a session may: what the broker leads must be free for others."""
        zookeeper = self._world.zookeeper
        lengthened_us = max(zookeeper.lengthened_us.get(name, 0) for name in ("", broker.name))
        if not stands() or zookeeper.leader is None or lengthened_us >= since_us:
            return
        self._world.oracle.checked["loops held"] += 1
        if not zookeeper.sessions[session_id].over:
            self._world.oracle.violate(f"the session of {broker.name} outlives its loop, held since {since_us / 1e6} s")

    def _stop(self, broker: SimBroker) -> bool:
        if broker.services is None or not self._may_end(broker):
            return False
        broker.stop()
        self._note(f"stop {broker.name}")

        def again() -> None:
            if broker.running and broker.stopping:
                if not self._may_end(broker):
                    self._later(0.5, 3.0, again)
                    return
                broker.kill()  # systemd's patience is over
            elif not broker.running:
                self._copies.setdefault(broker.id, broker.medium.copy())
            broker.start()

        self._later(0.5, 3.0, again)
        return True

    def _disk_put_back(self, broker: SimBroker) -> bool:
        """A clean stop; then the directory is what it was after an earlier one (a snapshot restored, another mount)."""
        if broker.services is None or not self._may_end(broker):
            return False
        broker.stop()
        self._note(f"stop {broker.name} to put its disk back")

        def stopped() -> None:
            if broker.running and broker.stopping:
                if not self._may_end(broker):
                    self._later(0.5, 3.0, stopped)
                    return
                broker.kill()
            elif not broker.running:
                copy = self._copies.get(broker.id)
                if copy is None:
                    self._copies[broker.id] = broker.medium.copy()
                    self._later(0.2, 1.5, self._disk_put_back, broker)
                elif self._world.oracle.spares(broker.id):
                    self._lossy = True
                    if self._rng.random() < 0.6:
                        broker.medium.put_back(copy)
                        self._note(f"disk of {broker.name} put back")
                    else:
                        self._note(f"{broker.name} starts without {self._take_a_partition(broker)}")
            broker.start()

        self._later(0.1, 1.0, stopped)
        return True

    def _take_a_partition(self, broker: SimBroker) -> str:
        """An operator moves the directory of a partition away, for its files are damaged. Returns what is missing."""
        medium = broker.medium
        found = sorted({name.rpartition("/")[0] for name in medium.files if name.endswith(".log")})
        if not found:
            return "partitions, for all have moved away"
        path = self._rng.choice(found)
        medium.remove_tree(path)
        return path

    def _directories(self, broker: SimBroker) -> bool:
        """A clean stop, often of all brokers, this one last; it starts with other log directories than it had."""
        if self._lossy or not all(one.services is not None for one in self._world.fleet.brokers.values()):
            return False
        self._lossy = True
        others = [one for one in self._world.fleet.brokers.values() if one is not broker]
        first = others if self._rng.random() < 0.7 else []
        for other in first:
            other.stop()
        way = self._rng.choice(Directories.WAYS)
        self._note(f"stop {', '.join(one.name for one in (*first, broker))}: log directories of {broker.name} {way}")

        starts = {one.id: one.starts for one in first}

        def stop_last() -> None:
            if any(one.running and one.starts == starts[one.id] for one in first):
                self._later(0.1, 0.3, stop_last)
                return
            broker.stop()
            self._later(0.1, 0.3, changed)

        def changed() -> None:
            if broker.running and broker.stopping:
                self._later(0.1, 0.3, changed)
                return
            away = not (broker.running or self._alone_by_permission(broker))  # one that was killed may have started
            if away:
                self._away[broker.id] = Directories(broker, way, self._rng)
            broker.start()
            for other in first:
                self._later(0.5, 4.0, other.start)
            if away:
                self._later(3.0, 6.0, back)

        def back() -> None:
            if broker.id not in self._away:
                return
            if broker.running:  # a clean stop takes nothing from the last copy that counts
                broker.kill() if self._rng.random() < 0.5 and self._may_end(broker) else broker.stop()
            self._later(0.5, 1.0, mended)

        def mended() -> None:
            if broker.running and broker.id in self._away:
                self._later(0.5, 1.0, back)
            elif not broker.running:
                self._directories_back(broker)
                broker.start()

        self._later(0.0, 0.2, stop_last)
        return True

    def _alone_by_permission(self, broker: SimBroker) -> bool:
        """Whether it alone may have what it acknowledged: an operator asked for no second replica (INVARIANTS R12)."""
        return self._world.least_minimum < MIN_IN_SYNC and broker.id in self._world.oracle.alone()

    def _directories_back(self, broker: SimBroker) -> None:
        away = self._away.pop(broker.id, None)
        if away is not None:
            self._note(f"log directories of {broker.name} are back")
            away.undo()

    # ---- network

    def _cut(self, broker: SimBroker) -> None:
        other = self._rng.choice([one for one in self._world.fleet.brokers.values() if one is not broker])
        ways = self._rng.choice(([(broker, other)], [(other, broker)], [(broker, other), (other, broker)]))
        self._block([(source.name, target.name) for source, target in ways])

    def _isolate(self, broker: SimBroker) -> None:
        others = [one.name for one in self._world.fleet.brokers.values() if one is not broker]
        self._block([(broker.name, other) for other in others] + [(other, broker.name) for other in others])

    def _client_cut(self, broker: SimBroker) -> None:
        client = self._rng.choice(self._world.cast)
        self._block(self._rng.choice(([(client, broker.name)], [(broker.name, client)])))

    def _block(self, ways: list[tuple[str, str]]) -> None:
        for way in ways:
            self._world.network.block(*way)

        def unblock() -> None:
            for way in ways:
                self._world.network.unblock(*way)

        self._note(f"cut {ways} for {self._later(*self._span(), unblock):.2f} s")

    def _reset(self, broker: SimBroker) -> None:
        names = [one.name for one in self._world.fleet.brokers.values() if one is not broker]
        other = self._rng.choice([*names, *self._world.cast])
        self._world.network.reset(broker.name, other)
        self._note(f"reset {broker.name} and {other}")

    def _overtake(self, broker: SimBroker) -> None:
        """A broker gives its connections to another one up; what it sent comes behind the requests of the next ones."""
        network = self._world.network
        other = self._rng.choice([one for one in self._world.fleet.brokers.values() if one is not broker])
        late_s = self._rng.uniform(0.2, 3.0)
        network.hold_back(broker.name, other.name, round(late_s * 1e6))
        given_up_s = self._later(0.01, min(0.5, late_s), network.give_up, broker.name, other.name)
        self._note(f"{broker.name} gives {other.name} up in {given_up_s:.2f} s, what it sends comes in {late_s:.2f} s")

    def _slow(self, broker: SimBroker) -> None:
        names = [one.name for one in self._world.fleet.brokers.values() if one is not broker]
        way = (broker.name, self._rng.choice(names))
        way = way if self._rng.random() < 0.5 else way[::-1]
        self._world.network.slow[way] = self._rng.choice((50_000, 300_000, 1_500_000))
        self._note(f"slow {way} for {self._later(0.2, 2.5, self._world.network.slow.pop, way, None):.2f} s")

    # ---- ZooKeeper

    def _cut_from_zookeeper(self, broker: SimBroker) -> None:
        ways = self._rng.choice(((UP,), (DOWN,), (UP, DOWN)))
        zookeeper = self._world.zookeeper
        zookeeper.block(broker.name, *ways)
        self._note(f"{broker.name} cut {ways} for {self._later(0.1, 3.0, zookeeper.unblock, broker.name):.2f} s")

    def _stall_a_mover(self, broker: SimBroker) -> bool:
        """The next leader that is replaced hears nothing of ZooKeeper for less than its lease, and is asked on."""
        oracle = self._world.oracle
        if oracle.on_moved is not None:
            return False

        def moved(tp: TopicPartition, leader: int) -> None:
            previous = self._world.fleet.brokers[leader]
            if previous.services is None or previous.stopping:
                return
            oracle.on_moved = None
            zookeeper = self._world.zookeeper
            zookeeper.block(previous.name, DOWN)
            self._note(f"{previous.name}, which led {tp}, hears of ZooKeeper in"
                       f" {self._later(0.2, 0.6, zookeeper.unblock, previous.name):.2f} s")  # fmt: skip
            asking = Auditor(self._world, f"late{self.fired['stall a mover']}")
            asking.run(asking.insist(tp, leader))

        oracle.on_moved = moved
        return True

    def _break_zookeeper(self, broker: SimBroker) -> None:
        self._world.zookeeper.break_connections(broker.name)
        self._note(f"{broker.name} loses its connection to ZooKeeper")

    def _lose_an_answer(self, broker: SimBroker) -> None:
        self._world.zookeeper.losing_answers.add(broker.name)
        self._note(f"{broker.name} will not hear what becomes of its next write in ZooKeeper")

    def _zookeeper_server(self, broker: SimBroker) -> bool:
        return self._stop_servers(1)

    def _zookeeper_majority(self, broker: SimBroker) -> bool:
        return self._stop_servers(2)

    def _stop_servers(self, count: int) -> bool:
        zookeeper = self._world.zookeeper
        if not all(server.up and not server.cut for server in zookeeper.servers):
            return False
        for index in self._rng.sample(range(3), count):
            if count == 1 and self._rng.random() < 0.5:
                zookeeper.cut_server(index)
            else:
                zookeeper.stop_server(index)
            self._note(f"ZooKeeper server {index} gone for {self._later(0.2, 2.5, self._back, index):.2f} s")
        return True

    def _zookeeper_leader_cut(self, broker: SimBroker) -> bool:
        """It goes on answering for a while, with what it knew; the others elect another leader."""
        zookeeper = self._world.zookeeper
        leader = zookeeper.leader
        if leader is None or not all(server.up and not server.cut for server in zookeeper.servers):
            return False
        zookeeper.cut_server(leader.index)
        self._note(
            f"ZooKeeper's leader {leader.index} cut off for {self._later(0.8, 2.5, self._back, leader.index):.2f} s"
        )
        return True

    def _back(self, index: int) -> None:
        server = self._world.zookeeper.servers[index]
        if not server.up or server.cut:
            self._world.zookeeper.start_server(index)

    def _zookeeper_lag(self, broker: SimBroker) -> None:
        server = self._rng.choice(self._world.zookeeper.servers)
        self._world.zookeeper.lengthened_us[""] = self._loop.now_us
        server.lag_us = self._rng.choice((0, 50_000, 300_000, 1_000_000))
        self._note(f"ZooKeeper server {server.index} lags by {server.lag_us / 1e6} s")

    def _depose_the_controller(self, broker: SimBroker) -> bool:
        """An operator that wants another controller deletes its znode; the old one may not hear of it for a while."""
        zookeeper = self._world.zookeeper
        if zookeeper.leader is None:
            return False
        zookeeper.commit([Delete(CONTROLLER)], 0)
        self._note("the controller is deposed")
        return True

    # ---- disks and clocks

    def _disk_full(self, broker: SimBroker) -> None:
        broker.medium.full = True
        self._note(f"disk of {broker.name} full for {self._later(0.1, 2.0, self._room, broker):.2f} s")

    def _room(self, broker: SimBroker) -> None:
        broker.medium.full = False

    def _disk_fails(self, broker: SimBroker) -> bool:
        if broker.services is None or broker.medium.failed_directory or not self._world.oracle.spares(broker.id):
            return False
        self._lossy = True
        broker.medium.failed_directory = f"/{broker.name}"

        def mended() -> None:
            if broker.medium.failed_directory:
                broker.kill()
                broker.medium.failed_directory = ""
                broker.start()

        self._note(f"disk of {broker.name} fails; restarted after {self._later(0.5, 3.0, mended):.2f} s")
        return True

    def _clock(self, broker: SimBroker) -> None:
        broker.clock.skew_ms = self._rng.choice((-3_600_000, -5_000, 0, 5_000, 3_600_000))
        self._note(f"wall clock of {broker.name} off by {broker.clock.skew_ms} ms")
