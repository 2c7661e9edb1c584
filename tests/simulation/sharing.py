"""A share group (KIP-932) whose workers pause, vanish, give back, and do not hear every answer, over two partitions.

What was acknowledged, and the answer seen, is never given out again, and no start goes back; with an order by key, in
half of the seeds, no record is given out before those of its key that are before it are finished; and when nothing
fails any more, every record is soon finished, because somebody said so, unless so many answers were lost that the limit
of deliveries was reached. In half of the seeds the group has dead letters: what was rejected, and the answer seen, has
one. In half of the seeds some records say from when on they are given out: none is before, by its leader's clock.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.coordinators.shard_host import ShardState
from fleetlog.brokers.coordinators.share_partitions import DELIVER_AT
from fleetlog.brokers.model import SHARE_STATE_TOPIC
from fleetlog.brokers.shares.acks import AckType
from fleetlog.brokers.shares.state import ENDS, NO_OFFSET
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.admin import Admin
from tests.simulation.clients import GROUP as GROUPS
from tests.simulation.clients import OK, RETRIABLE, Client, Producer, batches_of

if TYPE_CHECKING:
    from tests.simulation.world import World

INVARIANTS = ("records of workers", "starts of share partitions", "queues at rest", "dead letters")
LETTERS = TopicPartition("dlq.queue", 0)
GROUP, QUEUE = "workers", "queue"
PARTITIONS = tuple(TopicPartition(QUEUE, index) for index in range(2))
DELIVERIES = 10
SETTINGS: dict[str, Any] = {
    "group_share_min_record_lock_duration_ms": 1_000, "group_share_record_lock_duration_ms": 1_000,
    "group_share_delivery_count_limit": DELIVERIES, "share_coordinator_state_topic_num_partitions": 1,
}  # fmt: skip
KEYS = 4
DELAY_MAX_MS = 8_000
MOST_RECORDS = 120
"""Of a writer: workers that lose every other answer get to the end of them."""
REST_S = 40.0
"""Until all is finished when nothing fails any more."""
LATER = RETRIABLE | {
    ErrorCode.UNSUPPORTED_VERSION, ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    ErrorCode.INVALID_RECORD_STATE, ErrorCode.FENCED_STATE_EPOCH,
}  # fmt: skip
Place = tuple[int, int]
"""A partition, and an offset."""


class Queue:
    """What workers were told, and how far the newest coordinator says that the group is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ordered = random.Random(f"{world.seed}/order").random() < 0.5
        self.delays = random.Random(f"{world.seed}/delays").random() < 0.5
        self.letters = random.Random(f"{world.seed}/letters").random() < 0.5
        self.rejected: set[Place] = set()
        """Whose rejection was answered."""
        self.accepted: set[Place] = set()
        """Of which somebody asked for that: what is said of it behind the start is taken, too."""
        self.finished: dict[Place, float] = {}
        """When the answer to its acceptance or rejection was seen."""
        self.said: set[Place] = set()
        """Of which somebody asked for that."""
        self.given: Counter[Place] = Counter()
        self.keys: dict[Place, bytes | None] = {}
        self.lost = 0
        """Answers that nobody heard."""
        self._starts: dict[int, int] = {}
        self._at_rest = False
        self._rests_by = 0.0

    def take(self, name: str, place: Place, record: Record, asked_s: float, early: bool) -> None:
        """A worker was given a record, by a request of that time; whether it was given before its own time."""
        oracle = self._world.oracle
        oracle.checked["records of workers"] += 1
        if early:
            oracle.violate(f"{name} gets {place} before its time: {record.headers}")
        self.given[place] += 1
        self.keys[place] = record.key
        if self.finished.get(place, asked_s) < asked_s:
            oracle.violate(f"{name} gets {place}, which was finished")
        if not self.ordered:
            return
        for other in sorted(self.keys):
            before = other[0] == place[0] and other[1] < place[1] and self.keys[other] == record.key
            if before and other not in self.said and self.given[other] + self.lost < DELIVERIES:
                oracle.violate(f"{name} gets {place}, and {other} of its key is not finished")

    def look(self) -> dict[int, int]:
        """The start of each partition as the newest coordinator has it: none goes back."""
        oracle, starts = self._world.oracle, dict[int, int]()
        for broker in self._world.fleet.brokers.values():
            states = broker.services.share_states if broker.services is not None else None
            host = states.host(0) if states is not None else None
            newest = oracle.loaded[SHARE_STATE_TOPIC]
            if host is None or host.state is not ShardState.ACTIVE or host.leader_epoch != newest:
                continue
            for key, state in host.shard.states.items():
                if state.start == NO_OFFSET:
                    continue
                oracle.checked["starts of share partitions"] += 1
                before, at = self._starts.get(key.partition, 0), state.start
                if at < before:
                    oracle.violate(f"the start of {QUEUE}-{key.partition} goes back from {before} to {at}")
                self._starts[key.partition] = at
                for batch in state.batches:
                    at = batch.last + 1 if batch.first == at and batch.state in ENDS else at
                starts[key.partition] = at
        return starts

    @property
    def at_rest(self) -> bool:
        """Whether the run closes and every record is finished; it stays so."""
        now, oracle = self._world.loop.time(), self._world.oracle
        starts = self.look()
        if not self._world.closing or self._at_rest:
            return self._at_rest
        self._rests_by = self._rests_by or now + REST_S
        ends = {tp.partition: oracle.by_name[tp].end for tp in PARTITIONS}
        self._at_rest = all(starts.get(index, 0) >= end for index, end in ends.items())
        oracle.checked["queues at rest"] += self._at_rest
        if not self._at_rest and now > self._rests_by:
            oracle.violate(f"{REST_S:.0f} s after all faults, the queue is at {starts} of {ends}")
        missed = [(index, offset) for index, end in ends.items() for offset in range(end)]
        missed = [place for place in missed if place not in self.said and self.given[place] + self.lost < DELIVERIES]
        if self._at_rest and missed:
            oracle.violate(f"{missed[:5]} are finished, and nobody said so")
        return self._at_rest


class JobWriter(Producer):
    """Writes records of a few keys, some of which are to be given out later."""

    delays = False

    async def write(self) -> None:
        """Until the run closes."""
        await self.prepare(PARTITIONS)
        while not self.world.closing and self._made < MOST_RECORDS:
            tp = self.rng.choice(PARTITIONS)
            batch = self.next_batch(tp, 5)
            await self.deliver(tp, batch.data, batch.values)
            await self.pause(*self.world.pace)

    def batch(self, values: Sequence[str], producer_id: int, epoch: int, sequence: int, attributes: int = 0) -> bytes:
        """Each with the key that its number has."""
        keys = [b"%d" % (int(value.rpartition("-")[2]) % KEYS) for value in values]
        now_ms = self.world.wall_ms()
        times = [self.rng.choice((None, None, 300, 2_000, 6_000, 90_000)) if self.delays else None for _ in keys]
        records = [
            Record(-1, now_ms, key, value.encode(), () if ms is None else ((DELIVER_AT, b"%d" % (now_ms + ms)),))
            for key, value, ms in zip(keys, values, times, strict=True)
        ]
        return encode_batch(
            records, attributes=attributes, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )


class Worker(Client):
    """A member with at most one share session at a broker."""

    def __init__(self, world: World, name: str, queue: Queue) -> None:
        super().__init__(world, name)
        self.queue = queue
        self.number = self._epoch = 0
        self._sessions: dict[int, tuple[int, set[TopicPartition]]] = {}
        """By broker: the next epoch, and what the session has."""

    @property
    def id(self) -> str:
        """As a member."""
        return f"{self.name}-{self.number}"

    async def main(self) -> None:
        """Until the run closes and the queue is at rest."""
        while QUEUE not in self.ids:
            await self.refresh()
        while not self.queue.at_rest:
            if (self._epoch and self.rng.random() < 0.8) or await self.beat():
                await self.turn(self.rng.choice(PARTITIONS))
            await self.pause(0.01, 0.2)

    async def beat(self) -> bool:
        """Join, or say that it is there; whether it is a member as far as it knows."""
        request = m.ShareGroupHeartbeatRequest(
            version=1, group_id=GROUP, member_id=self.id, member_epoch=self._epoch, rack_id=None,
            subscribed_topic_names=None if self._epoch else [QUEUE],
        )  # fmt: skip
        answer = await self.coordinate(GROUPS, GROUP, request, 1)
        error = None if answer is None else ErrorCode(answer.error_code)
        if error == OK:
            self._epoch = answer.member_epoch
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self._epoch = 0
        else:
            self.forget_coordinator(GROUPS, GROUP)
            if error is not None and error not in LATER:
                self.world.oracle.violate(f"{self.id} gets {error.name} for a heartbeat at epoch {self._epoch}")
        return self._epoch > 0

    async def turn(self, tp: TopicPartition) -> None:
        """Fetch, and do something with what comes."""
        broker = await self.leader(tp)
        epoch, named = self._sessions.get(broker, (0, set[TopicPartition]()))
        asked_s, clock = self.loop.time(), self.world.fleet.brokers[broker].clock
        skew_ms = clock.skew_ms
        answer = await self.ask(broker, self._fetch(tp, epoch, tp not in named), 2, 1.0)
        if answer is None or not self._goes_on(broker, answer.error_code, epoch, {*named, tp}):
            await self._lost(broker, answer is None, tp)
            return
        for topic in answer.responses:
            for part in topic.partitions:
                where = TopicPartition(QUEUE, part.partition_index)
                if part.error_code != OK:
                    await self.lost_leader(where)
                elif part.acquired_records:
                    judged_s = asked_s if clock.skew_ms == skew_ms else None
                    await self._work(broker, where, part, asked_s, judged_s)

    def _early(self, broker: int, record: Record, asked_s: float) -> bool:
        """Whether a leader whose clock did not jump gave out a record for the first time before its time had come."""
        due_ms, wall_ms = (
            int(dict(record.headers).get(DELIVER_AT) or 0),
            self.world.fleet.brokers[broker].clock.wall_ms(),
        )
        asked_ms = wall_ms - 1_000 * (self.loop.time() - asked_s)
        return wall_ms < due_ms < asked_ms + DELAY_MAX_MS

    async def _work(self, broker: int, tp: TopicPartition, part: Any, asked_s: float, judged_s: float | None) -> None:
        records = {record.offset: record for batch in batches_of(part.records) for record in batch.records}
        given = {offset for row in part.acquired_records for offset in _offsets(row)}
        mine = sorted(given & records.keys())
        first = {o for row in part.acquired_records if row.delivery_count == 1 for o in _offsets(row)}
        for offset in mine:
            judged = self.queue.delays and offset in first and judged_s is not None
            early = judged and self._early(broker, records[offset], asked_s)
            self.queue.take(self.name, (tp.partition, offset), records[offset], asked_s, early)
        roll = 0.0 if self.world.closing else self.rng.random()
        if roll > 0.97:
            self.world.note(f"{self.name} vanishes with {mine}")
            self._hang_up(broker)
            self.number, self._epoch = self.number + 1, 0
            return
        if roll > 0.9:
            await self.pause(0.8, 1.6)  # beyond its locks, perhaps
        for offset in mine:
            roll = 0.0 if self.world.closing else self.rng.random()
            if roll < 0.95 and not await self._say(broker, tp, offset, self._kind(roll)):
                return

    @staticmethod
    def _kind(roll: float) -> AckType:
        if roll < 0.75:
            return AckType.ACCEPT
        return AckType.RELEASE if roll < 0.88 else AckType.REJECT

    async def _say(self, broker: int, tp: TopicPartition, offset: int, kind: AckType) -> bool:
        """Acknowledge one record; whether the session goes on."""
        if broker not in self._sessions:  # it has ended with what was said of another partition
            return False
        epoch, named = self._sessions[broker]
        place = tp.partition, offset
        if kind is not AckType.RELEASE:
            self.queue.said.add(place)
            if kind is AckType.ACCEPT:
                self.queue.accepted.add(place)
        answer = await self.ask(broker, self._acknowledge(tp, offset, kind, epoch), 2, 1.5)
        if answer is None or not self._goes_on(broker, answer.error_code, epoch, named):
            await self._lost(broker, answer is None, tp)
            return False
        error = ErrorCode(answer.responses[0].partitions[0].error_code)
        if error == OK and kind is not AckType.RELEASE:
            self.queue.finished.setdefault(place, self.loop.time())
            if kind is AckType.REJECT:
                self.queue.rejected.add(place)
        elif error != OK and error not in LATER:
            self.world.oracle.violate(f"{self.name} gets {error.name} for {kind.name} of {tp} {offset}")
        return True

    def _goes_on(self, broker: int, code: int, epoch: int, named: set[TopicPartition]) -> bool:
        error = ErrorCode(code)
        if error == OK:
            self._sessions[broker] = epoch + 1, named
        elif error not in LATER:
            self.world.oracle.violate(f"{self.name} gets {error.name} in its session at b{broker}")
        return error == OK

    async def _lost(self, broker: int, unheard: bool, tp: TopicPartition) -> None:
        self.queue.lost += unheard
        self._hang_up(broker)
        await self.lost_leader(tp)

    def _hang_up(self, broker: int) -> None:
        self._sessions.pop(broker, None)
        if broker in self._wires:
            self._wires.pop(broker).close("given up")

    def _fetch(self, tp: TopicPartition, epoch: int, names: bool) -> Any:
        kind = m.ShareFetchRequest
        topics = []
        if names:
            part = kind.FetchTopic.FetchPartition(version=2, partition_index=tp.partition, acknowledgement_batches=[])
            topics = [kind.FetchTopic(version=2, topic_id=self.ids[QUEUE], partitions=[part])]
        return kind(
            version=2, group_id=GROUP, member_id=self.id, share_session_epoch=epoch,
            max_wait_ms=self.rng.choice((0, 200)), min_bytes=1, max_bytes=1 << 20,
            max_records=self.rng.choice((1, 5, 50)), batch_size=50, share_acquire_mode=self.rng.choice((0, 1)),
            is_renew_ack=False, topics=topics, forgotten_topics_data=[],
        )  # fmt: skip

    def _acknowledge(self, tp: TopicPartition, offset: int, how: AckType, epoch: int) -> Any:
        kind = m.ShareAcknowledgeRequest
        partition = kind.AcknowledgeTopic.AcknowledgePartition
        batch = partition.AcknowledgementBatch(
            version=2, first_offset=offset, last_offset=offset, acknowledge_types=[int(how)]
        )
        part = partition(version=2, partition_index=tp.partition, acknowledgement_batches=[batch])
        topic = kind.AcknowledgeTopic(version=2, topic_id=self.ids[QUEUE], partitions=[part])
        return kind(
            version=2, group_id=GROUP, member_id=self.id, share_session_epoch=epoch,
            is_renew_ack=False, topics=[topic],
        )  # fmt: skip


def _offsets(row: Any) -> range:
    return range(row.first_offset, row.last_offset + 1)


class Foreman(Admin):
    """Permits share groups, and sets the group's own settings."""

    async def permit(self, queue: Queue) -> None:
        """Until all of it is done."""
        update = m.UpdateFeaturesRequest.FeatureUpdateKey(
            version=1, feature="share.version", max_version_level=2, upgrade_type=1
        )
        request = m.UpdateFeaturesRequest(version=1, timeout_ms=4_000, feature_updates=[update], validate_only=False)
        while (answer := await self.command(request, 1)) is None or answer.error_code != OK:
            await self.pause(0.05, 0.3)
        kind = m.IncrementalAlterConfigsRequest.AlterConfigsResource
        settings = {"share.auto.offset.reset": "earliest", "fleetlog.share.retry.backoff.ms": "100"}
        if queue.delays:
            settings["fleetlog.share.delay.max.ms"] = str(DELAY_MAX_MS)
        if queue.ordered:
            settings["fleetlog.share.order"] = "key"
        if queue.letters:
            await self.create(
                LETTERS.topic, 1, 3, {"min.insync.replicas": "2", "errors.deadletterqueue.group.enable": "true"}
            )
            settings["errors.deadletterqueue.topic.name"] = LETTERS.topic
        configs = [
            kind.AlterableConfig(version=1, name=name, config_operation=0, value=value)
            for name, value in settings.items()
        ]
        resource = kind(version=1, resource_type=32, resource_name=GROUP, configs=configs)
        alter = m.IncrementalAlterConfigsRequest(version=1, resources=[resource], validate_only=False)
        while (answer := await self.command(alter, 1)) is None or answer.responses[0].error_code != OK:
            await self.pause(0.05, 0.3)

    async def read_letters(self, queue: Queue) -> None:
        """When all is finished: each rejected record has one, which nobody else has."""
        while not queue.at_rest:
            await self.pause(0.1, 0.3)
        if not queue.letters:
            return
        found, offset, end = list[Place](), 0, self.world.oracle.by_name[LETTERS].end
        aborted: list[tuple[int, int]] = []
        while offset < end:
            part = await self.fetch(await self.leader(LETTERS), LETTERS, offset, committed=True, max_wait_ms=100)
            if part is None or part.error_code != OK:
                await self.lost_leader(LETTERS)
                continue
            aborted += [(one.first_offset, one.producer_id) for one in part.aborted_transactions or ()]
            for batch in batches_of(part.records):
                offset = batch.last_offset + 1
                if batch.control:
                    aborted = [one for one in aborted if one[1] != batch.producer_id or one[0] > batch.base_offset]
                elif not any(first <= batch.base_offset and batch.producer_id == who for first, who in aborted):
                    found += [place_of(record) for record in batch.records]
        oracle = self.world.oracle
        oracle.checked["dead letters"] += len(found)
        if len(found) != len(set(found)):
            oracle.violate(f"dead letters stand twice: {sorted(found)}")
        if lacking := queue.rejected - queue.accepted - set(found):
            oracle.violate(f"rejected, and without a dead letter: {sorted(lacking)}")


def place_of(letter: Record) -> Place:
    """Which record a dead letter is of."""
    headers = dict(letter.headers)
    partition, offset = (headers[f"__dlq.errors.{name}"] for name in ("partition", "offset"))
    assert partition is not None
    assert offset is not None
    return int(partition), int(offset)


def clients(world: World) -> tuple[Foreman, Queue, list[tuple[Client, Any]]]:
    """Who permits it, and for what; a writer and workers, each with its work."""
    queue, writer = Queue(world), JobWriter(world, "j1")
    writer.delays = queue.delays
    workers = [Worker(world, f"w-share{number}", queue) for number in range(1, 4)]
    foreman = Foreman(world, "foreman")
    works = [(writer, writer.write()), (foreman, foreman.read_letters(queue)), *((one, one.main()) for one in workers)]
    return foreman, queue, works
