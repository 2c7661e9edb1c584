"""``perf consumers``: groups of the consumer protocol (KIP-848) beside Apache Kafka, with equal heartbeat intervals.

The members are plain sockets, each with its own connection to the coordinator. They do as stock clients: a heartbeat
every five seconds, as the coordinator says, and one at once when they have given up or taken partitions. Measured are
the times until the group is at rest after all have joined, after one more has, and after one has left; the broker's CPU
above that of an idle one while nothing changes; how long heartbeats wait for their answers; and memory, before the
members connect, when they have, and when they have joined. It prints its numbers, and writes none.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import selectors
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fleetlog.wire import messages
from perf.clients import cpu_s
from perf.groups import API_VERSIONS, CONSUMER_HEARTBEAT, LIMIT_S, VERSIONS, Link, coordinator
from perf.results import Results
from perf.targets import Cluster, TargetError
from perf.targets.fleetlog import Fleetlog
from perf.targets.kafka import Kafka, version

MEMBERS = (50, 1_000)
STEADY_MEMBERS = 5_000
MOST_PARTITIONS = 1_000
JOIN_AT_ONCE = 100
REBALANCE_MS = 60_000
LEAVES = -1
CONNECTIONS: dict[str, Any] = {"max_connections": 20_000, "max_connections_per_ip": 20_000}
_numbers = itertools.count(1)
_Request = messages.request_class(CONSUMER_HEARTBEAT)


@dataclasses.dataclass(slots=True, eq=False)
class Member:
    """What a client knows of its membership; ``sent`` is when its open request was sent, 0 without one."""

    link: Link
    id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))
    epoch: int = 0
    owned: frozenset[tuple[uuid.UUID, int]] = frozenset()
    reported: frozenset[tuple[uuid.UUID, int]] | None = None
    due: float = 0.0
    sent: float = 0.0

    def frame(self, topic: str, epoch: int) -> bytes:
        """Its next heartbeat: all that it knows when it joins, what has changed later."""
        joins = epoch == 0
        rows = None
        if joins or (epoch > 0 and self.owned != self.reported):
            rows = [
                _Request.TopicPartitions(topic_id=topic_id, partitions=[index for _, index in of_topic])
                for topic_id, of_topic in itertools.groupby(sorted(self.owned), key=lambda row: row[0])
            ]
            self.reported = self.owned
        request = _Request(
            version=1, group_id=topic, member_id=self.id, member_epoch=epoch, instance_id=None, rack_id=None,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1, subscribed_topic_names=[topic] if joins else None,
            subscribed_topic_regex=None, server_assignor=None, topic_partitions=rows,
        )  # fmt: skip
        return messages.encode_request(CONSUMER_HEARTBEAT, 1, 1, "perf", request)


class Swarm:
    """A group with its members, and one topic of that name."""

    def __init__(self, cluster: Cluster, members: int, partitions: int) -> None:
        self.name, self.label = f"consumers-{next(_numbers)}", cluster.label
        self.partitions = partitions
        cluster.create_topic(self.name, partitions)
        self.address = coordinator(cluster, self.name)
        self._selector = selectors.DefaultSelector()
        self.members: list[Member] = []
        self.answered_ms: list[float] = []
        self.waiting = [Link(self.address) for _ in range(members)]
        """Connections whose members have not joined; they have asked what any client asks first."""
        for link in self.waiting:
            link.call(API_VERSIONS, messages.request_class(API_VERSIONS)(version=VERSIONS[API_VERSIONS]))

    def join(self, links: Iterable[Link]) -> None:
        for link in links:
            member = Member(link)
            self.members.append(member)
            self._selector.register(link.sock, selectors.EVENT_READ, member)

    def leave(self, member: Member) -> None:
        self._selector.unregister(member.link.sock)
        self.members.remove(member)
        if member.sent:
            self._receive(member)
        answer = member.link.call(CONSUMER_HEARTBEAT, self._goodbye(member))
        if answer.error_code:
            raise TargetError(f"{self.label}: a member that leaves is answered {answer.error_code}")
        member.link.sock.close()

    def _goodbye(self, member: Member) -> Any:
        return _Request(version=1, group_id=self.name, member_id=member.id, member_epoch=LEAVES)

    def at_rest(self) -> bool:
        """Whether all are at one epoch and have all partitions between them, one more or less each."""
        if any(member.epoch != self.members[0].epoch or member.owned != member.reported for member in self.members):
            return False
        shares = [len(member.owned) for member in self.members]
        return self.members[0].epoch > 0 and sum(shares) == self.partitions and max(shares) - min(shares) <= 1

    def until_rest(self) -> float:
        """Seconds until the group is at rest. Raises TargetError if it is not in time."""
        began = time.monotonic()
        self.run(self.at_rest, LIMIT_S)
        if not self.at_rest():
            raise TargetError(f"{self.label}: {len(self.members)} members are not at rest within {LIMIT_S:g} s")
        return time.monotonic() - began

    def run(self, done: Callable[[], bool], limit_s: float) -> None:
        """Send what is due and hear the answers, until it is done or the time is over."""
        end = time.monotonic() + limit_s
        while not done() and (now := time.monotonic()) < end:
            due = [member for member in self.members if not member.sent and member.due <= now]
            for member in due:
                member.sent = time.monotonic()
                member.link.sock.sendall(member.frame(self.name, member.epoch))
            waits = min((member.due for member in self.members if not member.sent), default=end) - time.monotonic()
            for event, _ in self._selector.select(max(0.0, min(waits, end - time.monotonic()))):
                self._receive(event.data)

    def _receive(self, member: Member) -> None:
        answer = member.link.receive(CONSUMER_HEARTBEAT)
        if answer is None:
            return
        now = time.monotonic()
        self.answered_ms.append((now - member.sent) * 1000)
        member.sent = 0.0
        if answer.error_code:
            raise TargetError(f"{self.label}: a heartbeat is answered {answer.error_code}: {answer.error_message}")
        member.epoch = answer.member_epoch
        member.due = now + answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            told = frozenset((row.topic_id, index) for row in rows for index in row.partitions)
            if told != member.owned:
                member.owned, member.due = told, now

    def close(self) -> None:
        self._selector.close()
        for link in (*self.waiting, *(member.link for member in self.members)):
            link.sock.close()


def changes(cluster: Cluster, members: int) -> dict[str, float]:
    """Seconds until rest after joins and a leave, and how long the heartbeats of that time waited."""
    swarm = Swarm(cluster, members, min(2 * members, MOST_PARTITIONS))
    try:
        last = swarm.waiting.pop()
        swarm.join(swarm.waiting)
        swarm.waiting = []
        row = {"all_join_s": swarm.until_rest()}
        swarm.answered_ms.clear()
        swarm.join([last])
        row["one_joins_s"] = swarm.until_rest()
        swarm.leave(swarm.members[0])
        row["one_leaves_s"] = swarm.until_rest()
        row["heartbeat_p99_ms"] = _p99(swarm.answered_ms)
    finally:
        swarm.close()
    return row


def steady(cluster: Cluster, members: int, seconds: float) -> dict[str, float]:
    """What members cost while nothing changes, above what the idle broker costs; memory for each of them."""
    idle = _cores(cluster, lambda: time.sleep(seconds), seconds)
    before = _anonymous(cluster)
    swarm = Swarm(cluster, members, MOST_PARTITIONS)
    try:
        connected = _anonymous(cluster)
        while swarm.waiting:  # few at once: what their requests take while they wait is nothing that stays
            swarm.join(swarm.waiting[:JOIN_AT_ONCE])
            del swarm.waiting[:JOIN_AT_ONCE]
            swarm.run(lambda: all(member.epoch for member in swarm.members), LIMIT_S)
        swarm.until_rest()
        joined = _anonymous(cluster)
        for number, member in enumerate(swarm.members):  # they joined at once, and are spread over the interval
            member.due = time.monotonic() + 5.0 * number / members
        swarm.run(lambda: False, 5.0)
        swarm.answered_ms.clear()
        cores = _cores(cluster, lambda: swarm.run(lambda: False, seconds), seconds)
        return {
            "cpu_percent": (cores - idle) * 100, "idle_percent": idle * 100,
            "heartbeats_s": len(swarm.answered_ms) / seconds, "heartbeat_p99_ms": _p99(swarm.answered_ms),
            "connection_kib": (connected - before) / members / 1024,
            "member_kib": (joined - connected) / members / 1024,
        }  # fmt: skip
    finally:
        swarm.close()


def _cores(cluster: Cluster, work: Callable[[], object], seconds: float) -> float:
    before = cpu_s(cluster)
    work()
    return (cpu_s(cluster) - before) / seconds


def _anonymous(cluster: Cluster) -> int:
    """Bytes of anonymous memory of the cluster's processes."""
    pages = (Path(f"/proc/{pid}/status").read_text() for pid in cluster.pids)
    return sum(int(page.partition("RssAnon:")[2].split()[0]) * 1024 for page in pages)


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)] if values else 0.0


def main() -> None:
    """Both servers in turns; a line for each measurement."""
    parser = argparse.ArgumentParser(prog="python -m perf consumers", description=__doc__)
    parser.add_argument("--members", default=",".join(map(str, MEMBERS)), help="sizes of the groups that change")
    parser.add_argument("--steady", default=STEADY_MEMBERS, type=int, help="members of a group that does not; 0: none")
    parser.add_argument("--seconds", default=20.0, type=float, help="how long that is measured")
    parser.add_argument("--rounds", default=3, type=int, help="how often each case is run on each server, in turn")
    parser.add_argument("--dir", type=Path, default=None, help="where the servers keep their data")
    found = parser.parse_args()
    sizes = [int(size) for size in found.members.split(",") if size]
    results = Results.begin("consumers", rounds=found.rounds, kafka=version())
    with Kafka(1, found.dir).running() as kafka, Fleetlog(1, found.dir, **CONNECTIONS).running() as fleetlog:
        clusters: tuple[Cluster, ...] = (kafka, fleetlog)
        for round_ in range(found.rounds):
            for cluster in clusters if round_ % 2 == 0 else reversed(clusters):
                for size in sizes:
                    results.add(f"{size} members change", cluster.label, changes(cluster, size), round_=round_)
                if found.steady:
                    row = steady(cluster, found.steady, found.seconds)
                    results.add(f"{found.steady} members at rest", cluster.label, row, round_=round_)
