"""``perf shares``: share groups (KIP-932) beside Apache Kafka: records a second, and the broker's CPU for each of them.

Twenty members read a topic of four partitions from its start, each a plain socket that fetches from one partition and
accepts what it got with its next fetch. In the same run fleetlog does it with the order by key. Then, with that order
and 2,000 records a second, a member keeps one record of a key for ten seconds: how long those of the other keys wait
from their producer to a member, before and meanwhile. It prints its numbers, and writes none.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import random
import selectors
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fleetlog._native.batch import scan
from fleetlog.brokers.log.validation import batch_records
from fleetlog.wire import messages
from perf.clients import cpu_s
from perf.groups import LIMIT_S, SHARE_FETCH, SHARE_HEARTBEAT, Link, coordinator
from perf.results import Results
from perf.targets import Address, Cluster, TargetError
from perf.targets.fleetlog import Fleetlog
from perf.targets.kafka import Kafka, version

MEMBERS, PARTITIONS, KEYS = 20, 4, 1_000
RECORD_BYTES = 1_024
MAX_RECORDS = 500
RATE_S, BEFORE_S, SLOW_S = 2_000, 4.0, 10.0
SLOW_KEY = b"slow"
ACCEPT = 1
STATES: dict[str, Any] = {
    "share_coordinator_state_topic_replication_factor": 1, "share_coordinator_state_topic_min_isr": 1,
}  # fmt: skip
_numbers = itertools.count(1)
_Fetch = messages.request_class(SHARE_FETCH)
_Heartbeat = messages.request_class(SHARE_HEARTBEAT)
_Batch = _Fetch.FetchTopic.FetchPartition.AcknowledgementBatch
Ranges = list[tuple[int, int]]


class Member:
    """A member that reads one partition; ``accepts`` are the offsets that its next fetch accepts."""

    def __init__(self, group: str, topic_id: uuid.UUID, partition: int, leader: Address, name: str) -> None:
        self.link, self.name, self.partition = Link(leader), name, partition
        self.accepts: Ranges = []
        self._group, self._topic_id, self._epoch = group, topic_id, 0

    def ask(self) -> None:
        """Send the next fetch."""
        batches = [
            _Batch(version=1, first_offset=first, last_offset=last, acknowledge_types=[ACCEPT])
            for first, last in self.accepts
        ]
        self.accepts = []
        topics = []
        if batches or not self._epoch:
            kind = _Fetch.FetchTopic
            part = kind.FetchPartition(version=1, partition_index=self.partition, acknowledgement_batches=batches)
            topics = [kind(version=1, topic_id=self._topic_id, partitions=[part])]
        request = _Fetch(
            version=1, group_id=self._group, member_id=self.name, share_session_epoch=self._epoch, max_wait_ms=500,
            min_bytes=1, max_bytes=1 << 20, max_records=MAX_RECORDS, batch_size=MAX_RECORDS, topics=topics,
            forgotten_topics_data=[],
        )  # fmt: skip
        self._epoch += 1
        self.link.send(SHARE_FETCH, request)

    def hear(self) -> tuple[Ranges, Any] | None:
        """What it acquired, with the records' bytes; None while the answer is not complete."""
        answer = self.link.receive(SHARE_FETCH)
        if answer is None:
            return None
        rows = [part for topic in answer.responses for part in topic.partitions]
        for code in (
            answer.error_code,
            *(code for row in rows for code in (row.error_code, row.acknowledge_error_code)),
        ):
            if code:
                raise TargetError(f"a share fetch is answered {code}: {answer.error_message}")
        acquired = [(one.first_offset, one.last_offset) for row in rows for one in row.acquired_records]
        return acquired, rows[0].records if rows else None


class Crew:
    """A new group's members on a topic, from its start."""

    def __init__(self, cluster: Cluster, topic: str, members: int, settings: Mapping[str, str]) -> None:
        self.group, self._selector = f"shares-{next(_numbers)}", selectors.DefaultSelector()
        cluster.alter("GROUP", self.group, {"share.auto.offset.reset": "earliest", **settings})
        self._coordinator = Link(coordinator(cluster, self.group))
        names = [base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=") for _ in range(members)]
        topic_id, leaders = self._join(topic, names), cluster.leaders(topic)
        self.members = [
            Member(self.group, topic_id, number % PARTITIONS, leaders[number % PARTITIONS], name)
            for number, name in enumerate(names)
        ]

    def _join(self, topic: str, names: list[str]) -> uuid.UUID:
        """All join; the topic's id once one of them has an assignment."""
        epochs, deadline, told = dict.fromkeys(names, 0), time.monotonic() + LIMIT_S, set[uuid.UUID]()
        while not told or not all(epochs.values()):
            for name in names:
                subscribed = None if epochs[name] else [topic]
                answer = self._coordinator.call(
                    SHARE_HEARTBEAT,
                    _Heartbeat(version=1, group_id=self.group, member_id=name, member_epoch=epochs[name],
                               rack_id=None, subscribed_topic_names=subscribed),
                )  # fmt: skip
                if not answer.error_code:
                    epochs[name] = answer.member_epoch
                    rows = answer.assignment.topic_partitions if answer.assignment is not None else ()
                    told |= {row.topic_id for row in rows}
            if time.monotonic() > deadline:
                raise TargetError(f"the members of {self.group} have no assignment within {LIMIT_S:g} s")
            time.sleep(0.2)
        return told.pop()

    def run(self, take: Callable[[Member, Ranges, Any], Ranges], done: Callable[[], bool]) -> None:
        """Until it is done, each member fetches, and accepts what ``take`` says of it."""
        for member in self.members:
            self._selector.register(member.link.sock, selectors.EVENT_READ, member)
            member.ask()
        deadline = time.monotonic() + 2 * LIMIT_S
        while not done():
            for event, _ in self._selector.select(0.05):
                member = event.data
                heard = member.hear()
                if heard is not None:
                    member.accepts += take(member, *heard)
                    member.ask()
            if time.monotonic() > deadline:
                raise TargetError(f"{self.group}: not all records came within {2 * LIMIT_S:g} s")

    def close(self) -> None:
        """Hang up."""
        self._selector.close()
        for link in (self._coordinator, *(member.link for member in self.members)):
            link.sock.close()


def permit(cluster: Cluster) -> None:
    """Finalize ``share.version`` 2, as an operator does."""
    from kafka.admin import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    told = client.update_features({"share.version": 2})
    client.close()
    if set(told.values()) != {"OK"}:
        raise TargetError(f"{cluster.label}: share groups are not permitted: {told}")


def fill(cluster: Cluster, topic: str, records: int) -> None:
    """Records of keys that are drawn, those of a key in one partition."""
    from confluent_kafka import Producer

    cluster.create_topic(topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 20, "batch.size": 65_536})
    value, rng = bytes(RECORD_BYTES), random.Random(records)
    for _ in range(records):
        key = rng.randrange(KEYS)
        while True:
            try:
                producer.produce(topic, value, key=b"%d" % key, partition=key % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(LIMIT_S):
        raise TargetError(f"{cluster.label}: {topic} is not filled within {LIMIT_S:g} s")


def drained(cluster: Cluster, topic: str, records: int, settings: Mapping[str, str]) -> dict[str, float]:
    """A new group reads all of it."""
    crew, given = Crew(cluster, topic, MEMBERS, settings), [0]

    def take(_: Member, acquired: Ranges, __: Any) -> Ranges:
        given[0] += sum(last - first + 1 for first, last in acquired)
        return acquired

    try:
        before, began, own = cpu_s(cluster), time.monotonic(), time.process_time()
        crew.run(take, lambda: given[0] >= records)
        took, cpu = time.monotonic() - began, cpu_s(cluster) - before
        return {
            "records_s": records / took, "cpu_us_record": cpu / records * 1e6,
            "generator_cores": (time.process_time() - own) / took,
        }  # fmt: skip
    finally:
        crew.close()


def slow_key(cluster: Cluster, topic: str) -> dict[str, float]:
    """How long records of other keys wait, in ms, before and while a member keeps one record of a key."""
    from confluent_kafka import Producer

    cluster.create_topic(topic, PARTITIONS)
    crew = Crew(cluster, topic, MEMBERS, {"fleetlog.share.order": "key"})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
    waited: dict[bool, list[float]] = {False: [], True: []}
    kept: list[tuple[Member, int, float]] = []
    began, sent, slow = time.monotonic(), 0, 0

    def produce() -> bool:
        nonlocal sent, slow
        now = time.monotonic() - began
        for number in range(sent, int(now * RATE_S)):
            other = number % 100 == 0 and now > BEFORE_S
            slow += other
            key = SLOW_KEY if other else b"%d" % (number % KEYS)
            producer.produce(topic, b"%d" % time.monotonic_ns(), key=key, partition=number % PARTITIONS)
        sent = int(now * RATE_S)
        producer.poll(0)
        return now > BEFORE_S + SLOW_S

    def take(member: Member, acquired: Ranges, data: Any) -> Ranges:
        now = time.monotonic_ns()
        mine = {offset for first, last in acquired for offset in range(first, last + 1)}
        raw = bytes(data or b"")
        for at, header in scan(raw):
            for record in batch_records(raw, at, header, 1 << 20):
                if record.offset not in mine:
                    continue
                if record.key == SLOW_KEY and not any(one.partition == member.partition for one, _, _ in kept):
                    kept.append((member, record.offset, time.monotonic()))
                    mine.discard(record.offset)
                elif record.key != SLOW_KEY:
                    waited[bool(kept)].append((now - int(record.value or b"0")) / 1e6)
        return [(offset, offset) for offset in sorted(mine)]

    try:
        crew.run(take, produce)
    finally:
        crew.close()
    producer.purge()
    if not kept:
        raise TargetError(f"{cluster.label}: no record of the slow key was given out")
    held = time.monotonic() - kept[0][2]
    (quiet, busy) = (sorted(waited[which]) for which in (False, True))
    return {
        "kept_s": held, "p50_ms": _at(quiet, 0.5), "p50_meanwhile_ms": _at(busy, 0.5),
        "p99_ms": _at(quiet, 0.99), "p99_meanwhile_ms": _at(busy, 0.99), "most_ms": quiet[-1],
        "most_meanwhile_ms": busy[-1],
    }  # fmt: skip


def _at(values: list[float], part: float) -> float:
    return values[int(len(values) * part)]


def main() -> None:
    """Both servers in turns; a line for each measurement."""
    parser = argparse.ArgumentParser(prog="python -m perf shares", description=__doc__)
    parser.add_argument("--records", default=200_000, type=int, help="of 1 KB, which each new group reads")
    parser.add_argument("--rounds", default=2, type=int, help="how often each case is run on each server, in turn")
    parser.add_argument("--dir", type=Path, default=None, help="where the servers keep their data")
    asked = parser.parse_args()
    if asked.records < 10:
        parser.error("--records: at least ten")
    results = Results.begin("shares", rounds=asked.rounds, kafka=version(), members=MEMBERS)
    with Kafka(1, asked.dir).running() as kafka, Fleetlog(1, asked.dir, **STATES).running() as fleetlog:
        clusters: tuple[Cluster, ...] = (kafka, fleetlog)
        permit(fleetlog)
        for cluster in clusters:
            fill(cluster, "warm", asked.records // 10)
            drained(cluster, "warm", asked.records // 10, {})
            fill(cluster, "jobs", asked.records)
        for round_ in range(asked.rounds):
            for cluster in clusters if round_ % 2 == 0 else reversed(clusters):
                results.add("accepted", cluster.label, drained(cluster, "jobs", asked.records, {}), round_=round_)
            row = drained(fleetlog, "jobs", asked.records, {"fleetlog.share.order": "key"})
            results.add("accepted by key", fleetlog.label, row, round_=round_)
        results.add("a slow key", fleetlog.label, slow_key(fleetlog, "slow"))
