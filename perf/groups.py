"""``perf groups``: how long a consumer group of 50 members takes for a rebalance, beside Apache Kafka.

The members are plain sockets with prepared requests of the classic protocol, so that they cost little: all 50 send
JoinGroup at once, the leader hands out 50 assignments with SyncGroup, and the rebalance is over when the last member
has its own. What is measured is the broker's part: no heartbeat interval is waited for.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import time
from typing import Any

from fleetlog.wire import messages
from perf.clients import cpu_s
from perf.options import Options
from perf.results import Results
from perf.targets import Address, Cluster, TargetError
from perf.targets.kafka import Kafka, version

MEMBERS = 50
TOPIC = b"\0\0\0\1" + b"\0\5topic"
SUBSCRIPTION, ASSIGNMENT = b"\0\0" + TOPIC + b"\0\0\0\4", b"\0\0" + TOPIC + b"\0\0\0\1\0\0\0\0" + b"\xff\xff\xff\xff"
"""ConsumerProtocol version 0: one topic, and as the user's data the number of the rebalance; one partition."""
FIND_COORDINATOR, JOIN, HEARTBEAT, SYNC, API_VERSIONS, CONSUMER_HEARTBEAT = 10, 11, 12, 14, 18, 68
SHARE_HEARTBEAT, SHARE_FETCH = 76, 78
VERSIONS = {
    FIND_COORDINATOR: 2, JOIN: 5, HEARTBEAT: 1, SYNC: 3, API_VERSIONS: 0, CONSUMER_HEARTBEAT: 1, SHARE_HEARTBEAT: 1,
    SHARE_FETCH: 1,
}  # fmt: skip
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION = 79, 27, 25, 22
STALLED_S = 0.3
REBALANCES = 20
LIMIT_S = 60.0
_numbers = itertools.count(1)


def run(options: Options) -> Results:
    """Both in turns."""
    suite = "groups" if options.brokers == 1 else f"groups-{options.brokers}"
    results = Results.begin(suite, rounds=options.rounds, members=MEMBERS, kafka=version())
    with (
        Kafka(options.brokers, options.directory).running() as kafka,
        options.fleetlog(options.brokers).running() as fleetlog,
    ):
        clusters = (kafka, fleetlog)
        for cluster in clusters:
            measure(cluster, 10 if options.short else 2 * REBALANCES)
        for round_ in range(options.rounds):
            for cluster in clusters if round_ % 2 == 0 else reversed(clusters):
                row = measure(cluster, REBALANCES // 2 if options.short else REBALANCES)
                results.add(f"{MEMBERS} members", cluster.label, row, round_=round_)
    return results


def measure(cluster: Cluster, rebalances: int) -> dict[str, Any]:
    """A new group; the times of ``rebalances`` after the first."""
    group = _Group(cluster, f"perf-{next(_numbers)}")
    try:
        group.rebalance()
        before = cpu_s(cluster)
        times = sorted(group.rebalance() for _ in range(rebalances))
        cpu = cpu_s(cluster) - before
    finally:
        group.close()
    return {
        "rebalance_ms": times[len(times) // 2] * 1000,
        "slowest_ms": times[-1] * 1000,
        "cpu_ms_rebalance": cpu / rebalances * 1000,
    }


class Link:
    """A member's connection."""

    def __init__(self, address: Address) -> None:
        self.sock = socket.create_connection(address, timeout=LIMIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""

    def call(self, key: int, request: Any) -> Any:
        self.send(key, request)
        while (answer := self.receive(key)) is None:
            pass
        return answer

    def send(self, key: int, request: Any) -> None:
        self.sock.sendall(messages.encode_request(key, VERSIONS[key], 1, "perf", request))

    def receive(self, key: int) -> Any:
        """An answer, or None while it is not complete."""
        data = self.sock.recv(1 << 20)
        if not data:
            raise TargetError("a member's connection was closed")
        self.received += data
        size = int.from_bytes(self.received[:4], "big")
        if len(self.received) < 4 or len(self.received) < size + 4:
            return None
        frame, self.received = self.received[4 : size + 4], self.received[size + 4 :]
        _, body = messages.split_response(key, VERSIONS[key], frame)
        return messages.decode_response(key, VERSIONS[key], body)


class _Member(Link):
    """What the group knows it by."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.id = ""
        self.generation = -1


def coordinator(cluster: Cluster, group: str) -> Address:
    """The group's, once it has loaded; the first question makes ``__consumer_offsets``. Raises TargetError."""
    request = messages.request_class(FIND_COORDINATOR)(version=VERSIONS[FIND_COORDINATOR], key=group, key_type=0)
    deadline = time.monotonic() + LIMIT_S
    while True:
        asking = Link(cluster.brokers[0].address)
        answer = asking.call(FIND_COORDINATOR, request)
        asking.sock.close()
        if not answer.error_code:
            address = Address(answer.host, answer.port)
            if _answers(address, group):
                return address
        if time.monotonic() > deadline:
            raise TargetError(f"{cluster.label}: no coordinator for {group}: {answer.error_code}")
        time.sleep(0.2)


def _answers(address: Address, group: str) -> bool:
    """Whether the coordinator has loaded. A JoinGroup as a probe would leave a member that all wait for."""
    probe = Link(address)
    request = messages.request_class(HEARTBEAT)(
        version=VERSIONS[HEARTBEAT], group_id=group, generation_id=1, member_id="unknown"
    )
    answer = probe.call(HEARTBEAT, request)
    probe.sock.close()
    return bool(answer.error_code == UNKNOWN_MEMBER_ID)


class _Group:
    """The members, and one rebalance after the other."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name, self.label = name, cluster.label
        self._round = 0
        self._waits: dict[_Member, int] = {}
        self._settled: dict[_Member, int] = {}
        self._selector = selectors.DefaultSelector()
        address = coordinator(cluster, name)
        self.members = [_Member(address) for _ in range(MEMBERS)]
        for member in self.members:
            answer = member.call(JOIN, self._join(member))
            if answer.error_code != MEMBER_ID_REQUIRED:
                raise TargetError(f"{self.label}: JoinGroup without a member id was answered {answer.error_code}")
            member.id = answer.member_id
            self._selector.register(member.sock, selectors.EVENT_READ, member)

    def _join(self, member: _Member) -> Any:
        request = messages.request_class(JOIN)
        # another subscription every time: a member that rejoins with the known one starts no rebalance
        metadata = SUBSCRIPTION + self._round.to_bytes(4, "big")
        protocol = request.JoinGroupRequestProtocol(name="range", metadata=metadata)
        return request(
            version=VERSIONS[JOIN], group_id=self.name, session_timeout_ms=30_000, rebalance_timeout_ms=60_000,
            member_id=member.id, group_instance_id=None, protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip

    def _sync(self, member: _Member, generation: int, leads: bool) -> Any:
        request = messages.request_class(SYNC)
        given = [
            request.SyncGroupRequestAssignment(member_id=other.id, assignment=ASSIGNMENT) for other in self.members
        ]
        return request(
            version=VERSIONS[SYNC], group_id=self.name, generation_id=generation, member_id=member.id,
            group_instance_id=None, assignments=given if leads else [],
        )  # fmt: skip

    def rebalance(self) -> float:
        """Seconds from the first JoinGroup until all members have an assignment of one generation."""
        self._round += 1
        joins = {
            member: messages.encode_request(JOIN, VERSIONS[JOIN], 1, "perf", self._join(member))
            for member in self.members
        }
        self._waits = {}
        self._settled = {}
        started = time.monotonic()
        for member in self.members:
            self._ask(member, JOIN, joins[member])
        while self._waits or len(set(self._settled.values())) > 1:
            events = self._selector.select(STALLED_S)
            for event, _ in events:
                member = event.data
                key = self._waits[member]
                answer = member.receive(key)
                if answer is not None:
                    del self._waits[member]
                    self._answered(member, key, answer, joins[member])
            if not events:  # only while the group forms: early members have to rejoin for the others
                for member in [member for member in self.members if member not in self._waits]:
                    self._ask(member, JOIN, joins[member])
            if time.monotonic() - started > LIMIT_S:
                raise TargetError(f"{self.label}: {len(self._waits)} of {MEMBERS} members have no answer")
        return time.monotonic() - started

    def _ask(self, member: _Member, key: int, frame: bytes) -> None:
        self._waits[member] = key
        self._settled.pop(member, None)
        member.sock.sendall(frame)

    def _answered(self, member: _Member, key: int, answer: Any, join: bytes) -> None:
        if answer.error_code in (REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION):
            self._ask(member, JOIN, join)
        elif answer.error_code:
            raise TargetError(f"{self.label}: a member was answered error code {answer.error_code}")
        elif key == JOIN:
            member.generation = answer.generation_id
            sync = self._sync(member, answer.generation_id, answer.leader == member.id)
            self._ask(member, SYNC, messages.encode_request(SYNC, VERSIONS[SYNC], 1, "perf", sync))
        else:
            self._settled[member] = member.generation

    def close(self) -> None:
        self._selector.close()
        for member in self.members:
            member.sock.close()
