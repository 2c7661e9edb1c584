"""Jobs: records of some keys, and members of a share group that accept, give back and reject them, slowly at times."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

import fleetlog.wire.messages as m
from fleetlog._native.batch import scan
from fleetlog.brokers.cli.dev_security import ADMIN
from fleetlog.brokers.log.validation import batch_records
from fleetlog.brokers.shares.acks import AckType
from tests.chaos.history import ACCEPT, JOBS, REJECT, RELEASE, Records
from tests.chaos.login import confluent as confluent_login
from tests.chaos.login import python as python_login
from tests.chaos.outcomes import text_of
from tests.chaos.recorder import Recorder, RoleControl, pack, unpack
from tests.chaos.workload_produce import Drawn, several_in_flight
from tests.chaos.workload_read import CONSUMER
from tests.support.raw_transactions import Wire

GROUP, LETTERS = "sharers", f"dlq.{JOBS}"
KEYS = 40
LOCK_S = 5
BROKER = {
    "group.share.min.record.lock.duration.ms": 1_000, "group.share.record.lock.duration.ms": LOCK_S * 1_000,
    "group.share.delivery.count.limit": 10, "group.share.min.heartbeat.interval.ms": 1_000,
    "group.share.heartbeat.interval.ms": 1_000, "group.share.min.session.timeout.ms": 6_000,
    "group.share.session.timeout.ms": 6_000, "share.coordinator.state.topic.num.partitions": 4,
}  # fmt: skip
"""Settings of brokers."""
SETTINGS = {
    "share.auto.offset.reset": "earliest", "fleetlog.share.order": "key", "fleetlog.share.retry.backoff.ms": "200",
    "fleetlog.share.retry.backoff.max.ms": "1000", "errors.deadletterqueue.topic.name": LETTERS,
}  # fmt: skip
MEMBER = {
    "group.id": GROUP, "share.acknowledgement.mode": "explicit",
    **{name: value for name, value in CONSUMER.items() if name.startswith(("socket", "reconnect", "topic", "log"))},
}  # fmt: skip
CALL_S = 10.0
LIVES = (5.0, 25.0)
"""How long a consumer lives, in seconds: all that it is given it asked for after its birth."""
QUIET_S = 15.0
"""So long nothing is given out when all is finished: sessions of dead members are over then, and all locks."""
INFLATE_LIMIT = 1 << 20
INVALID_SESSION = frozenset({122, 123})
TYPES = {ACCEPT: AckType.ACCEPT, RELEASE: AckType.RELEASE, REJECT: AckType.REJECT}
Ends = dict[str, dict[int, str]]


def set_up(bootstrap: str, topic_config: Mapping[str, str], replicas: int, timeout_s: float = 30.0) -> None:
    """Permit share groups and make the topic of dead letters, as the fleet's administrator."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined,unused-ignore]
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewTopic,
    )
    from kafka.admin import KafkaAdminClient

    kafka = KafkaAdminClient(**python_login(bootstrap, ADMIN))
    told = kafka.update_features({"share.version": 2}, timeout_ms=int(timeout_s * 1_000))
    kafka.close()
    if set(told.values()) - {"OK"}:
        raise RuntimeError(f"share groups cannot be permitted: {told}")
    admin = AdminClient(confluent_login(bootstrap, ADMIN))
    permitted = {"errors.deadletterqueue.group.enable": "true", **topic_config}
    admin.create_topics([NewTopic(LETTERS, 1, replicas, config=permitted)])[LETTERS].result(timeout_s)
    entries = [ConfigEntry(*row, incremental_operation=AlterConfigOpType.SET) for row in SETTINGS.items()]
    resource = ConfigResource(ConfigResource.Type.GROUP, GROUP, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(timeout_s)


def jobs(recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, partitions: int, rate: float) -> None:
    """The name of each value ends with its record's key: ``PROC.N@KEY``."""

    def draw(value: str) -> Drawn:
        number = control.rng.randrange(KEYS)
        named = f"{value}@k{number}"
        return Drawn(number % partitions, named, pack(named), {"key": f"k{number}"})

    several_in_flight(recorder, control, bootstrap, topic, rate, draw)


def _draw(control: RoleControl, records: Mapping[str, Records]) -> Ends:
    """What becomes of each record."""
    kinds, weights = (ACCEPT, RELEASE, REJECT), (85, 11, 4)
    return {
        key: {offset: control.rng.choices(kinds, weights)[0] for offset, _ in found} for key, found in records.items()
    }


def _dawdle(control: RoleControl) -> None:
    """Work on what was given: not long, or until its lock has ended, perhaps."""
    control.pause(control.rng.uniform(0.8, 1.4) * LOCK_S if control.rng.random() < 0.03 else control.rng.random() / 4)


# ---- librdkafka's share consumer


class _Member:
    """A share consumer, with what it said of which records."""

    def __init__(self, recorder: Recorder, bootstrap: str) -> None:
        from confluent_kafka import ShareConsumer

        self.born, self._recorder = recorder.now(), recorder
        self._consumer = ShareConsumer({**confluent_login(bootstrap), **MEMBER})
        self._consumer.set_acknowledgement_commit_callback(self._told)
        self._consumer.subscribe([JOBS])
        self._open: dict[tuple[str, int], deque[dict[str, Any]]] = defaultdict(deque)
        """By record: what was said of it and not answered yet. It may be given again before that is told here."""

    def poll(self, seconds: float) -> tuple[dict[str, Any], dict[str, Records], list[Any]]:
        """What it is given: the name of that, the records, and as messages."""
        found: dict[str, Records] = defaultdict(list)
        messages = []
        for message in self._consumer.poll(seconds):
            if message.error() is not None:
                self._recorder.single("poll", self._recorder.now(), e="info", error=str(message.error())[:120])
                continue
            messages.append(message)
            key = f"{message.topic()}/{message.partition()}"
            found[key].append((message.offset() or 0, unpack(message.value(), message.headers())))
        name = self._recorder.given(self.born, found) if found else {}
        return name, found, messages

    def say(self, name: dict[str, Any], ends: Ends, messages: list[Any], how: str) -> None:
        """Say what becomes of them: ``sync`` waits, with ``poll`` it goes with the next fetch."""
        from confluent_kafka import AcknowledgeType

        types = {ACCEPT: AcknowledgeType.ACCEPT, RELEASE: AcknowledgeType.RELEASE, REJECT: AcknowledgeType.REJECT}
        self._recorder.then(name, "invoke", o=ends)
        for message in messages:
            key = f"{message.topic()}/{message.partition()}"
            self._open[key, message.offset()].append(name)
            self._consumer.acknowledge(message, types[ends[key][message.offset()]])
        if how == "sync":
            self._consumer.commit_sync(CALL_S)
        elif how == "async":
            self._consumer.commit_async()

    def _told(self, offsets: Mapping[Any, set[int]], error: Any) -> None:
        by_name: dict[int, tuple[dict[str, Any], dict[str, list[int]]]] = {}
        for part, some in offsets.items():
            key = f"{part.topic}/{part.partition}"
            for offset in sorted(some):
                names = self._open[key, offset]
                if names:
                    name = names.popleft()
                    by_name.setdefault(name["n"], (name, {}))[1].setdefault(key, []).append(offset)
        for name, told in by_name.values():
            if error is None:
                self._recorder.then(name, "ok", o=told)
            else:
                self._recorder.then(name, "info", error=text_of(error))

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


def confluent(recorder: Recorder, control: RoleControl, bootstrap: str) -> None:
    """One share consumer after the other."""
    from confluent_kafka import KafkaException

    while control.on:
        member, end = _Member(recorder, bootstrap), time.monotonic() + control.rng.uniform(*LIVES)
        try:
            while control.on and time.monotonic() < end:
                name, records, messages = member.poll(0.5)
                if records:
                    _dawdle(control)
                    member.say(name, _draw(control, records), messages, control.rng.choice(("sync", "async", "poll")))
        except KafkaException as error:
            recorder.single("poll", member.born, e="info", error=text_of(error))
        member.close()


# ---- by hand: when each request was sent is known


class _Raw:
    """Sessions of one member at the leaders, a request at a time."""

    def __init__(self, bootstrap: str, member: str, control: RoleControl) -> None:
        host, _, port = control.rng.choice(bootstrap.split(",")).partition(":")
        self.member, self._rng = member, control.rng
        self._first = Wire(host, int(port), CALL_S)
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[int, int] = {}
        self._id: Any = None
        self._sessions: dict[int, tuple[Wire, int, set[int]]] = {}
        """By broker: its connection, the next epoch, and the partitions that it has."""
        self.refresh()

    def refresh(self) -> None:
        """Ask who leads."""
        topics = [m.MetadataRequest.MetadataRequestTopic(version=12, name=JOBS)]
        found = self._first.ask(m.MetadataRequest(version=12, topics=topics, allow_auto_topic_creation=False), 12)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in found.brokers}
        self._id = found.topics[0].topic_id
        self._leaders = {part.partition_index: part.leader_id for part in found.topics[0].partitions}

    def close(self) -> None:
        """Hang up everywhere."""
        for broker in [*self._sessions]:
            self.hang_up(broker)
        self._first.close()

    def hang_up(self, broker: int) -> None:
        """End the session there by its connection."""
        if broker in self._sessions:
            self._sessions.pop(broker)[0].close()

    def fetch(self, partition: int) -> tuple[int, Any]:
        """The leader, and its answer; raises OSError or AssertionError where there is none."""
        broker = self._leaders.get(partition, -1)
        if broker not in self._brokers:
            raise OSError(f"{JOBS}/{partition} has no leader")
        if broker not in self._sessions:
            self._sessions[broker] = Wire(*self._brokers[broker], CALL_S), 0, set()
        wire, epoch, named = self._sessions[broker]
        kind = m.ShareFetchRequest
        topics = []
        if partition not in named:
            part = kind.FetchTopic.FetchPartition(version=2, partition_index=partition, acknowledgement_batches=[])
            topics = [kind.FetchTopic(version=2, topic_id=self._id, partitions=[part])]
        request = kind(
            version=2, group_id=GROUP, member_id=self.member, share_session_epoch=epoch, max_wait_ms=200, min_bytes=1,
            max_bytes=1 << 20, max_records=self._rng.choice((1, 5, 20)), batch_size=20, is_renew_ack=False,
            share_acquire_mode=self._rng.choice((0, 1)), topics=topics, forgotten_topics_data=[],
        )  # fmt: skip
        return broker, self._ask(broker, wire, request, epoch, {*named, partition})

    def acknowledge(self, broker: int, key: str, ends: Mapping[int, str]) -> int:
        """Say what becomes of records; the error."""
        if broker not in self._sessions:
            return min(INVALID_SESSION)
        wire, epoch, named = self._sessions[broker]
        kind = m.ShareAcknowledgeRequest
        partition = kind.AcknowledgeTopic.AcknowledgePartition
        batches = [
            partition.AcknowledgementBatch(
                version=2, first_offset=offset, last_offset=offset, acknowledge_types=[int(TYPES[end])]
            )
            for offset, end in sorted(ends.items())
        ]
        index = int(key.rpartition("/")[2])
        part = partition(version=2, partition_index=index, acknowledgement_batches=batches)
        request = kind(
            version=2, group_id=GROUP, member_id=self.member, share_session_epoch=epoch, is_renew_ack=False,
            topics=[kind.AcknowledgeTopic(version=2, topic_id=self._id, partitions=[part])],
        )  # fmt: skip
        answer = self._ask(broker, wire, request, epoch, named)
        return int(answer.error_code or answer.responses[0].partitions[0].error_code)

    def _ask(self, broker: int, wire: Wire, request: Any, epoch: int, named: set[int]) -> Any:
        try:
            answer = wire.ask(request, 2)
        except BaseException:
            self.hang_up(broker)
            raise
        if answer.error_code:
            self.hang_up(broker)
        else:
            self._sessions[broker] = wire, epoch + 1, named
        return answer


def by_hand(recorder: Recorder, control: RoleControl, bootstrap: str, partitions: int) -> None:
    """Raw requests to the leaders; whatever goes wrong ends the session there."""
    raw = _Raw(bootstrap, recorder.proc, control)
    while control.on:
        start = recorder.now()
        try:
            broker, answer = raw.fetch(control.rng.randrange(partitions))
            if answer.error_code:
                raise OSError(f"ShareFetch: {answer.error_code} {answer.error_message}")
            for topic in answer.responses:
                for part in topic.partitions:
                    if part.error_code:
                        raise OSError(f"ShareFetch of a partition: {part.error_code} {part.error_message}")
                    if part.acquired_records:
                        _work(recorder, control, raw, broker, part, start)
        except (OSError, AssertionError) as error:
            recorder.single("poll", start, e="info", error=text_of(error))
            control.pause(0.3)
            raw.refresh()  # without an answer the next process goes on
        control.pause(control.rng.random() / 4)
    raw.close()


def _work(recorder: Recorder, control: RoleControl, raw: _Raw, broker: int, part: Any, start: int) -> None:
    """What is done with the records of an answer."""
    mine = {offset for row in part.acquired_records for offset in range(row.first_offset, row.last_offset + 1)}
    data = bytes(part.records or b"")
    records: Records = [
        (record.offset, unpack(record.value))
        for at, header in scan(data)
        if not header.is_control
        for record in batch_records(data, at, header, INFLATE_LIMIT)
        if record.offset in mine
    ]
    key = f"{JOBS}/{part.partition_index}"
    name = recorder.given(start, {key: records})
    _dawdle(control)
    if control.rng.random() < 0.02:
        raw.hang_up(broker)
        return
    ends = _draw(control, {key: records})
    recorder.then(name, "invoke", o=ends)
    error = raw.acknowledge(broker, key, ends[key])
    if error:
        recorder.then(name, "info", error=f"ShareAcknowledge: {error}")
    else:
        recorder.then(name, "ok", o={key: sorted(ends[key])})


# ---- at the end


def finish(recorder: Recorder, control: RoleControl, bootstrap: str) -> None:
    """When all is healed and the members have gone: accept what is left, then read the dead letters."""
    member, last = _Member(recorder, bootstrap), time.monotonic()
    while control.on and time.monotonic() < last + QUIET_S:
        name, records, messages = member.poll(0.5)
        if records:
            last = time.monotonic()
            member.say(name, {key: {offset: ACCEPT for offset, _ in some} for key, some in records.items()}, messages,
                       "sync")  # fmt: skip
    member.close()
    start = recorder.now()
    recorder.single("letters", start, r=_letters(control, bootstrap))


def _letters(control: RoleControl, bootstrap: str) -> list[tuple[str, int, str]]:
    """Of the topic from its start to its end, by a reader of what is committed."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    settings = {"group.id": "unused", "enable.partition.eof": True, "isolation.level": "read_committed", **CONSUMER}
    consumer = Consumer({**confluent_login(bootstrap), **settings})
    consumer.assign([TopicPartition(LETTERS, 0, 0)])
    found: list[tuple[str, int, str]] = []
    while control.on:
        for message in consumer.consume(500, 0.5):
            error = message.error()
            if error is None:
                headers = {name: (value or b"").decode() for name, value in message.headers() or ()}
                key = f"{headers['__dlq.errors.topic']}/{headers['__dlq.errors.partition']}"
                found.append((key, int(headers["__dlq.errors.offset"]), headers["fleetlog.dlq.reason"]))
            elif error.code() == KafkaError._PARTITION_EOF:
                consumer.close()
                return found
    raise TimeoutError("the dead letters were not read to their end")
