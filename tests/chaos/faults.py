"""The faults.

Each is a generator: it does its harm, yields for how many seconds it wants to wait, undoes it, and returns what was hit
and the proof that it happened. The scheduler in run.py resumes it; nothing here waits.
"""

from __future__ import annotations

import logging
import random
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

from fleetlog.brokers.cli.dev_security import ADMIN
from tests.chaos.cluster import (
    CLIENT_HOSTS,
    KAFKA_PORT,
    SESSION_MS,
    ZOOKEEPER_PORT,
    ChaosBroker,
    ChaosZooKeeper,
    Cluster,
    Machine,
)
from tests.chaos.login import confluent
from tests.chaos.supervisor import Clients, Slot
from tests.chaos.switch import ENCRYPTED

Outcome = tuple[str, Any]
"""(target, proof); a proof that is empty or None means that nothing happened."""
Fault = Generator[float, None, Outcome]
logger = logging.getLogger("chaos")
READY_S = 240.0
STOPS_S = 90.0
LOOK_S = 0.3
SESSION_S = SESSION_MS / 1000


class NoTarget(Exception):
    """Everything that could be hit is being hit already."""


class Stage:
    """What faults act on, shared by all of them."""

    def __init__(self, cluster: Cluster, clients: Clients) -> None:
        self.cluster = cluster
        self.clients = clients
        self.problems: list[str] = []
        """What went wrong that no client can see: a broker that died by itself or didn't come back."""
        self.lossy_until = 0.0
        """Until then some broker may have lost a tail without being out of the in-sync sets; others may not lose
        theirs."""
        self.taken: set[str] = set()
        self.write: Callable[..., None] = lambda **_: None
        """Writes an event to the history."""

    def metadata(self, timeout_s: float) -> Any:
        """The cluster as a client sees it; None when no broker answers in time."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            client = AdminClient({**confluent(self.cluster.bootstrap, ADMIN), "log_level": 0})
            return client.list_topics(timeout=timeout_s)
        except KafkaException:
            return None

    def all_in_sync(self) -> bool:
        """Is every replica of every partition in sync, as a client sees it?"""
        found = self.metadata(8.0)
        parts = [part for topic in found.topics.values() for part in topic.partitions.values()] if found else []
        return bool(parts) and all(len(part.isrs) == len(part.replicas) for part in parts)


class Grip:
    """What one fault holds. Hosts are taken one by one and given back together."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.cluster = stage.cluster
        self.clients = stage.clients
        self.held: set[str] = set()

    def take(self, *hosts: str) -> None:
        """Hold hosts; raises NoTarget when another fault does."""
        if self.stage.taken & set(hosts):
            raise NoTarget
        self.stage.taken.update(hosts)
        self.held.update(hosts)

    def release(self) -> None:
        """Give all back."""
        self.stage.taken -= self.held

    def broker(self, rng: random.Random) -> ChaosBroker:
        """A broker that nothing else is done to; half of the time one with a role, if it is free."""
        free = [
            broker for broker in self.cluster.brokers if broker.host not in self.stage.taken and broker.pid is not None
        ]
        if not free:
            raise NoTarget
        chosen = rng.choice(free)
        if rng.random() < 0.5:
            numbers = self._with_role(rng)
            chosen = next((broker for broker in free if broker.number in numbers), chosen)
        self.take(chosen.host)
        return chosen

    def _with_role(self, rng: random.Random) -> list[int]:
        """The controller, or the leader of some partition, if a broker says it at once."""
        topic_name, controller = (
            rng.choice(("idem", "txn", "__transaction_state", "__consumer_offsets")),
            rng.random() < 0.3,
        )
        found = self.stage.metadata(1.0)
        if found is None:
            return []
        topic = found.topics.get(topic_name)
        if controller or topic is None or not topic.partitions:
            return [found.controller_id]
        return [rng.choice([part.leader for part in topic.partitions.values()])]

    def zookeepers(self, rng: random.Random, count: int) -> list[ChaosZooKeeper]:
        """ZooKeeper nodes; while one fault holds any of them, no other gets one."""
        self.take(*(node.host for node in self.cluster.zookeepers))
        return rng.sample(self.cluster.zookeepers, count)


def wait_ready(grip: Grip, *machines: Machine) -> Generator[float, None, bool]:
    """Until they serve; a broker can't while ZooKeeper is away, so it has a while."""
    deadline = time.monotonic() + READY_S
    for machine in machines:
        while not machine.serves():
            if machine.pid is None or time.monotonic() > deadline:
                grip.stage.problems.append(
                    f"{machine.host} did not come back in {READY_S:.0f} s, see {machine.log_file}"
                )
                return False
            yield LOOK_S
    return True


def aside(call: Callable[[], Any]) -> Generator[float, None, Any]:
    """The result of a call that may take its time, made in a thread; None when it fails."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            logger.debug("%s: %s", call, error)
            results.append(None)

    threading.Thread(target=run, daemon=True).start()
    while not results:
        yield 0.1
    return results[0]


# ---- processes -----------------------------------------------------------------------------------------------------


def kill(grip: Grip, rng: random.Random) -> Fault:
    """SIGKILL a broker; sometimes it is back before its session ends, sometimes long after."""
    broker = grip.broker(rng)
    pid, status = broker.pid, broker.kill()
    yield rng.choice((rng.uniform(0.0, 1.0), rng.uniform(1.0, SESSION_S), rng.uniform(SESSION_S, 2 * SESSION_S)))
    broker.start()
    yield from wait_ready(grip, broker)
    return broker.host, {"pid": pid, "status": status, "then": broker.pid} if status == -signal.SIGKILL else None


def kill_all(grip: Grip, rng: random.Random) -> Fault:
    """SIGKILL all brokers at once, start them in random order."""
    grip.take(*(broker.host for broker in grip.cluster.brokers))
    statuses = [broker.kill() for broker in grip.cluster.brokers]
    yield rng.uniform(0.0, 3.0)
    for broker in rng.sample(grip.cluster.brokers, len(grip.cluster.brokers)):
        broker.start()
        yield rng.choice((0.0, rng.uniform(0.0, 3.0)))
    yield from wait_ready(grip, *grip.cluster.brokers)
    return "all brokers", statuses if set(statuses) == {-signal.SIGKILL} else None


def _pause(machine: Machine, seconds: float) -> Fault:
    machine.signal(signal.SIGSTOP)
    yield 0.05
    state = machine.state()
    yield seconds
    machine.signal(signal.SIGCONT)
    yield 0.5
    return machine.host, {"state": state, "seconds": round(seconds, 1)} if state == "T" else None


def pause_short(grip: Grip, rng: random.Random) -> Fault:
    """SIGSTOP a broker for less than its session."""
    return (yield from _pause(grip.broker(rng), rng.uniform(0.3, SESSION_S * 0.7)))


def pause_long(grip: Grip, rng: random.Random) -> Fault:
    """SIGSTOP a broker until long after its session ended."""
    return (yield from _pause(grip.broker(rng), rng.uniform(SESSION_S * 1.3, SESSION_S * 2.2)))


def loop_held(grip: Grip, rng: random.Random) -> Fault:
    """A broker's loop stands still while its threads go on: for less than its session, or until it must be over.

    In the second case ZooKeeper is in peace, so a broker that is registered still keeps what it leads from others.
    """
    broker = grip.broker(rng)
    long = rng.random() < 0.5
    if long:
        grip.zookeepers(rng, 0)
    if not (yield from wait_ready(grip, broker)):
        return broker.host, None
    before = (yield from aside(lambda: _registered(grip, broker))) if long else None
    broker.hold.touch()
    try:
        broker.signal(signal.SIGUSR1)
        yield LOOK_S + 1.1  # the broker calls it standing after a second
        said = yield from aside(broker.standing)
        yield rng.uniform(2.2 * SESSION_S, 3.2 * SESSION_S) if long else rng.uniform(0.3, SESSION_S * 0.5)
        after = (yield from aside(lambda: _registered(grip, broker))) if long else None
    finally:
        broker.hold.unlink()
    if before and before == after:
        grip.stage.problems.append(f"{broker.host}: {said}, and its session {before:#x} goes on")
    yield from wait_ready(grip, broker)
    proof = {"said": said, "session over": before != after} if long else {"said": said}
    return broker.host, proof if said and (not long or (before and after is not None)) else None


def _registered(grip: Grip, broker: ChaosBroker) -> int:
    """The session that a broker is registered with, as ZooKeeper says; 0 when it is not. Raises KazooException."""
    from kazoo.client import KazooClient

    hosts = ",".join(f"{node.address}:{ZOOKEEPER_PORT}" for node in grip.cluster.zookeepers)
    client = KazooClient(hosts=hosts, timeout=5.0)
    try:
        client.start(timeout=5.0)
        client.sync("/")
        found = client.exists(f"/brokers/ids/{broker.number}")
        return found.owner_session_id if found is not None else 0
    finally:
        client.stop()
        client.close()


def stop(grip: Grip, broker: ChaosBroker) -> Generator[float, None, int]:
    """A clean stop; the exit status."""
    broker.wanted = False
    broker.signal(signal.SIGTERM)
    deadline = time.monotonic() + STOPS_S
    while broker.pid is not None:
        if time.monotonic() > deadline:
            grip.stage.problems.append(
                f"{broker.host} did not stop in {STOPS_S:.0f} s after SIGTERM, see {broker.log_file}"
            )
            broker.kill()
        yield 0.1
    assert broker.process is not None
    return broker.process.returncode


def restart(grip: Grip, rng: random.Random) -> Fault:
    """A clean shutdown, and a start."""
    broker = grip.broker(rng)
    start = time.monotonic()
    status = yield from stop(grip, broker)
    took = time.monotonic() - start
    yield rng.choice((0.0, rng.uniform(0.5, SESSION_S)))
    broker.start()
    yield from wait_ready(grip, broker)
    return broker.host, {"status": status, "seconds": round(took, 2)} if status == 0 else None


# ---- ZooKeeper -----------------------------------------------------------------------------------------------------


def zookeeper_kill(grip: Grip, rng: random.Random) -> Fault:
    """SIGKILL one node."""
    (node,) = grip.zookeepers(rng, 1)
    status = node.kill()
    yield rng.uniform(0.5, 8.0)
    node.start()
    yield from wait_ready(grip, node)
    return node.host, {"status": status}


def zookeeper_majority(grip: Grip, rng: random.Random) -> Fault:
    """SIGKILL two of three nodes: nothing is served until one is back, sometimes only after all sessions could have
    expired."""
    nodes = grip.zookeepers(rng, 2)
    (left,) = [node for node in grip.cluster.zookeepers if node not in nodes]
    for node in nodes:
        node.kill()
    hold = rng.choice((rng.uniform(2.0, SESSION_S), rng.uniform(SESSION_S, 3 * SESSION_S)))
    yield min(1.5, hold)
    silent = left.mode() is None
    yield hold
    for node in nodes:
        node.start()
    yield from wait_ready(grip, left, *nodes)
    return "+".join(node.host for node in nodes), {"the third served no client": True} if silent else None


def zookeeper_pause(grip: Grip, rng: random.Random) -> Fault:
    """SIGSTOP one node: its clients' connections stay open and silent."""
    (node,) = grip.zookeepers(rng, 1)
    return (yield from _pause(node, rng.uniform(1.0, 1.5 * SESSION_S)))


# ---- the network ---------------------------------------------------------------------------------------------------


def _side(grip: Grip, rng: random.Random) -> tuple[str, list[tuple[str, str]]]:
    """Two sides of a cut: what it is called, and its pairs in one direction."""
    cluster = grip.cluster
    nodes = [node.host for node in cluster.zookeepers]
    what = rng.choice(("all", "brokers", "zookeeper", "clients", "one broker", "client host", "zookeeper node"))
    if what == "client host":
        host = rng.choice(CLIENT_HOSTS)
        grip.take(host)
        return f"{host} | brokers", [(host, broker.host) for broker in cluster.brokers]
    if what == "zookeeper node":
        (node,) = grip.zookeepers(rng, 1)
        return f"{node.host} | other nodes", [(node.host, other) for other in nodes if other != node.host]
    broker = grip.broker(rng).host
    others = [other.host for other in cluster.brokers if other.host != broker]
    targets = {
        "all": [*others, *nodes, *CLIENT_HOSTS], "brokers": others, "zookeeper": nodes, "clients": list(CLIENT_HOSTS),
        "one broker": [rng.choice(others)],
    }[what]  # fmt: skip
    return f"{broker} | {what}", [(broker, target) for target in targets]


def _turned(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(b, a) for a, b in pairs]


def _disturb(grip: Grip, name: str, pairs: list[tuple[str, str]], seconds: float, **rule: Any) -> Fault:
    network = grip.cluster.network
    before = network.counts()
    network.rule(pairs, **rule)
    yield seconds
    after = network.counts()
    network.rule(pairs)
    hit = sum(after[pair].dropped - before[pair].dropped + after[pair].delayed - before[pair].delayed for pair in pairs)
    return name, {"packets": hit, "seconds": round(seconds, 1), **rule} if hit else None


def cut(grip: Grip, rng: random.Random) -> Fault:
    """Nothing passes between two sides, silently."""
    name, pairs = _side(grip, rng)
    seconds = rng.choice((rng.uniform(1.0, SESSION_S), rng.uniform(SESSION_S, 2.5 * SESSION_S)))
    return (yield from _disturb(grip, name, pairs + _turned(pairs), seconds, drop=True))


def cut_one_way(grip: Grip, rng: random.Random) -> Fault:
    """Nothing passes in one direction."""
    name, pairs = _side(grip, rng)
    name, pairs = rng.choice(((f"{name}, outwards", pairs), (f"{name}, inwards", _turned(pairs))))
    return (yield from _disturb(grip, name, pairs, rng.uniform(1.0, 2.5 * SESSION_S), drop=True))


def delay(grip: Grip, rng: random.Random) -> Fault:
    """Everything between two sides takes its time, in one direction or both."""
    name, pairs = _side(grip, rng)
    if rng.random() < 0.5:
        pairs = pairs + _turned(pairs)
    delay_ms = round(rng.choice((rng.uniform(5, 60), rng.uniform(60, 400), rng.uniform(400, 3000))))
    return (yield from _disturb(grip, name, pairs, rng.uniform(2.0, 12.0), delay_ms=delay_ms))


HELD = {
    "Produce": 0,
    "OffsetCommit": 8,
    "InitProducerId": 22,
    "EndTxn": 26,
    "TxnOffsetCommit": 28,
    "CommitBatch": 12003,
}
"""Kafka's API keys of the requests whose answers are held; half of the time it is Produce."""


def held_answer(grip: Grip, rng: random.Random) -> Fault:
    """The answer to one request is held until its client has given it up; every other connection goes on."""
    client, broker = rng.choice(CLIENT_HOSTS), grip.broker(rng)
    grip.take(client)
    name = "Produce" if rng.random() < 0.5 else rng.choice(sorted(HELD))
    api = HELD[name]
    if grip.cluster.secure:
        name, api = "what TLS hides", ENCRYPTED
    seconds = rng.choice((rng.uniform(0.5, 4.0), rng.uniform(6.0, 10.0)))  # clients wait for 5 s
    network, back = grip.cluster.network, (broker.host, client)
    before = network.counts()[back].delayed
    network.hold_answer(client, broker.host, KAFKA_PORT, api, seconds)
    deadline = time.monotonic() + 10.0
    while network.counts()[back].delayed == before:
        if time.monotonic() > deadline:
            network.hold_answer(client, broker.host, 0, 0, 0.0)  # port 0: nothing is waited for any more
            return f"{broker.host} to {client}", None
        yield 0.1
    yield seconds
    packets = network.counts()[back].delayed - before
    return f"{broker.host} to {client}", {"answer to": name, "seconds": round(seconds, 1), "packets": packets}


# ---- clients -------------------------------------------------------------------------------------------------------


def _slot(grip: Grip, rng: random.Random, *roles: str) -> Slot:
    found = [slot for slot in grip.clients.slots if slot.pid is not None and (not roles or slot.role in roles)]
    if not found:
        raise NoTarget
    return rng.choice(found)


def client_kill(grip: Grip, rng: random.Random) -> Fault:
    """SIGKILL one or two clients."""
    killed = []
    for _ in range(rng.randint(1, 2)):
        slot = _slot(grip, rng)
        assert slot.process is not None
        slot.process.kill()
        slot.process.wait()
        killed.append(slot.name)
    yield 1.0
    return "+".join(killed), {"killed": killed}


def client_zombie(grip: Grip, rng: random.Random) -> Fault:
    """SIGSTOP a transactional client, or a member of the share group, let another one take its transactional id, sink
    or work, and let the first go on.
    """
    slot = _slot(grip, rng, "txn", "txn-kp", "worker", "sink", "sharer", "sharer-raw")
    zombie = slot.process
    assert zombie is not None
    zombie.send_signal(signal.SIGSTOP)
    yield 0.05
    if zombie.poll() is not None:  # another fault killed it
        return slot.name, None
    stopped = Path(f"/proc/{zombie.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    slot.zombies.append(zombie)
    grip.clients.fill(slot)
    yield rng.uniform(2.0, 2 * SESSION_S)
    zombie.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + 10
    while zombie.poll() is None and time.monotonic() < deadline:
        yield 0.2
    status = zombie.poll()
    if status is None:
        zombie.terminate()
    return slot.name, {"stopped": True, "status": status} if stopped else None
