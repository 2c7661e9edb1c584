"""Simulated clients: they speak the real protocol and retry as stock clients do, and tell the oracle what they saw."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch, scan
from fleetlog._native.byte_reader import varint_bytes
from fleetlog._native.wire import FetchPart, encode_fetch_request
from fleetlog.brokers.log.validation import batch_records
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.network import Broken, Wire

if TYPE_CHECKING:
    from tests.simulation.serving import Pledge
    from tests.simulation.world import World

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN, SYNC = 8, 9, 10, 11, 14
INIT_PRODUCER_ID, END_TXN, TXN_OFFSET_COMMIT = 22, 26, 28
PRODUCE_VERSION, FETCH_VERSION = 12, 16
TRANSACTIONAL = 0x10
GROUP, TRANSACTION = 0, 1
LATEST, EARLIEST = -1, -2
INFLATE_LIMIT = 1 << 20
OK = ErrorCode.NONE

RETRIABLE = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_CONTROLLER, ErrorCode.UNSTABLE_OFFSET_COMMIT,
})  # fmt: skip


class Batch(NamedTuple):
    """One record batch as a consumer reads it."""

    base_offset: int
    last_offset: int
    epoch: int
    crc: int
    producer_id: int
    control: bool
    transactional: bool
    records: list[Record]


class NewBatch(NamedTuple):
    """One that a producer sends, with its first sequence."""

    values: list[str]
    data: bytes
    sequence: int


def produce_body(
    transactional_id: str | None, acks: int, timeout_ms: int, tp: TopicPartition, records: bytes, topic_id: Any = None
) -> bytes:
    """A Produce of one batch, version 9 to 12; version 13 with a topic id."""
    return produce_bodies(transactional_id, acks, timeout_ms, topic_id or tp.topic, [(tp.partition, records)])


def produce_bodies(
    transactional_id: str | None, acks: int, timeout_ms: int, topic: Any, parts: Sequence[tuple[int, bytes]]
) -> bytes:
    """The same with a batch for each of several partitions of a topic, given by name or id."""
    name = bytes([len(topic) + 1]) + topic.encode() if isinstance(topic, str) else topic.bytes
    transaction = b"\0" if transactional_id is None else bytes([len(transactional_id) + 1]) + transactional_id.encode()
    head = struct.pack(">hi", acks, timeout_ms)
    begin = b"\2" + name + bytes([len(parts) + 1])
    each = (
        piece
        for partition, records in parts
        for piece in (partition.to_bytes(4, "big"), varint_bytes(len(records) + 1), records, b"\0")
    )
    return b"".join((transaction, head, begin, *each, b"\0", b"\0"))


class Client:
    """One client process: its connections, and where it believes things to be."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.loop = world.loop
        self.owner = world.loop.owner(name)
        self.rng = world.client_rng(name)
        self.topics: dict[TopicPartition, tuple[int, int]] = {}
        self.ids: dict[str, Any] = {}
        self.controller = -1
        self._wires: dict[int, Wire] = {}
        self._coordinators: dict[tuple[int, str], int] = {}

    def run(self, coroutine: Any) -> asyncio.Task[Any]:
        """Run as this client's process."""
        return self.loop.spawn(self.owner, coroutine, self.name)

    async def pause(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(low_s, high_s))

    def hang_up(self) -> None:
        """Close all connections; what was sent may still arrive."""
        for wire in self._wires.values():
            wire.close("given up")
        self._wires.clear()

    def wire(self, broker: int) -> Wire:
        """The connection to that broker."""
        wire = self._wires.get(broker)
        if wire is None or not wire.open:
            wire = self._wires[broker] = self.world.network.connect(self.owner, self.name, f"b{broker}")
        return wire

    async def exchange(self, broker: int, key: int, version: int, body: bytes, timeout_s: float) -> memoryview | None:
        """The answer's body, or None: the outcome of the request is unknown."""
        try:
            return await self.wire(broker).ask(key, version, body, timeout_s)
        except Broken:
            await self.pause(0.02, 0.1)
        return None

    async def ask(self, broker: int, message: Any, version: int, timeout_s: float = 1.5) -> Any:
        """The decoded answer, or None."""
        body = bytes(message.encode(version=version))
        answer = await self.exchange(broker, message.API_KEY, version, body, timeout_s)
        return None if answer is None else m.decode_response(message.API_KEY, version, answer)

    def any_broker(self) -> int:
        return self.rng.choice(list(self.world.fleet.brokers))

    async def refresh(self) -> None:
        """Ask any broker for the leader."""
        answer = await self.ask(self.any_broker(), m.MetadataRequest(version=12, topics=None), 12)
        if answer is None:
            return
        self.controller = answer.controller_id
        for topic in answer.topics:
            known, self.ids[topic.name] = self.ids.get(topic.name), topic.topic_id
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if part.leader_epoch >= self.topics.get(tp, (-1, -1))[1] or topic.topic_id != known:
                    self.topics[tp] = part.leader_id, part.leader_epoch

    async def leader(self, tp: TopicPartition) -> int:
        """The partition's leader as far as known; waits until there is one."""
        while self.topics.get(tp, (-1, -1))[0] < 0:
            await self.refresh()
            if self.topics.get(tp, (-1, -1))[0] < 0:
                await self.pause(0.05, 0.3)
        return self.topics[tp][0]

    async def lost_leader(self, tp: TopicPartition) -> None:
        """Look for the leader again, after a moment."""
        await self.pause(0.02, 0.2)
        known = self.topics.get(tp)
        await self.refresh()
        if self.topics.get(tp) == known:
            await self.pause(0.05, 0.3)

    async def coordinator(self, kind: int, key: str) -> int:
        """The broker that coordinates that group or transactional id."""
        while (kind, key) not in self._coordinators:
            request = m.FindCoordinatorRequest(version=4, key_type=kind, coordinator_keys=[key])
            answer = await self.ask(self.any_broker(), request, 4)
            if answer is not None and answer.coordinators[0].error_code == OK:
                self._coordinators[kind, key] = answer.coordinators[0].node_id
            else:
                await self.pause(0.05, 0.3)
        return self._coordinators[kind, key]

    async def coordinate(self, kind: int, key: str, message: Any, version: int, timeout_s: float = 1.5) -> Any:
        """Ask the coordinator once; forget it when it isn't any more."""
        broker = await self.coordinator(kind, key)
        answer = await self.ask(broker, message, version, timeout_s)
        if answer is None:
            self._coordinators.pop((kind, key), None)
        return answer

    def forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def fetch(
        self, broker: int, tp: TopicPartition, offset: int, *, committed: bool, max_wait_ms: int, rack: str = ""
    ) -> Any:
        """One Fetch of one partition: its part of the answer, or None."""
        part = FetchPart(None, self.ids[tp.topic], tp.partition, self.topics[tp][1], offset, -1, -1, 64 * 1024, -1)
        body = encode_fetch_request(
            FETCH_VERSION, replica_id=-1, replica_epoch=-1, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20,
            session_id=0, session_epoch=-1, parts=[part], rack_id=rack, isolation_level=int(committed),
        )  # fmt: skip
        raw = await self.exchange(broker, FETCH, FETCH_VERSION, body, 1.0 + max_wait_ms / 1000)
        if raw is None:
            return None
        answer = m.decode_response(FETCH, FETCH_VERSION, raw)
        if answer.error_code or not answer.responses:
            return None
        return answer.responses[0].partitions[0]


def batches_of(records: Any) -> list[Batch]:
    """The whole batches in a Fetch answer."""
    data = bytes(records or b"")
    return [
        Batch(
            h.base_offset, h.last_offset, h.partition_leader_epoch, h.crc, h.producer_id, h.is_control,
            h.is_transactional, [] if h.is_control else batch_records(data, at, h, INFLATE_LIMIT),
        )
        for at, h in scan(data)
    ]  # fmt: skip


class Producer(Client):
    """An idempotent producer: each batch is sent again until it is acknowledged."""

    async def main(self, partitions: Sequence[TopicPartition]) -> None:
        await self.prepare(partitions)
        while not self.world.closing:
            tp = self.rng.choice(partitions)
            batch = self.next_batch(tp, 4)
            await self.deliver(tp, batch.data, batch.values)
            await self.pause(*self.world.pace)

    async def prepare(self, partitions: Sequence[TopicPartition]) -> None:
        """Get a producer id, for :meth:`next_batch`."""
        self._producer_id = await self.new_producer_id()
        self._sequences = dict.fromkeys(partitions, 0)
        self._made = 0

    def next_batch(self, tp: TopicPartition, most: int) -> NewBatch:
        """Of at most so many new records, which the oracle expects from now on."""
        values = [f"{self.name}-{self._made + i}" for i in range(self.rng.randint(1, most))]
        self._made += len(values)
        sequence = self._sequences[tp]
        data = self.batch(values, self._producer_id, 0, sequence)
        self._sequences[tp] += len(values)
        self.world.oracle.sending(tp, values)
        return NewBatch(values, data, sequence)

    def batch(self, values: Sequence[str], producer_id: int, epoch: int, sequence: int, attributes: int = 0) -> bytes:
        now_ms = self.world.wall_ms() - self.rng.choice((0, 0, 1, 50, 1_000))
        records = [Record(-1, now_ms, value.partition("-")[0].encode(), value.encode(), ()) for value in values]
        return encode_batch(
            records, attributes=attributes, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )

    async def new_producer_id(self, broker: int | None = None) -> int:
        """One of that broker, or of any."""
        while True:
            request = m.InitProducerIdRequest(version=4, transactional_id=None, transaction_timeout_ms=60_000)
            answer = await self.ask(self.any_broker() if broker is None else broker, request, 4)
            if answer is not None and answer.error_code == OK:
                self.world.oracle.producer_id_given(answer.producer_id, self.name)
                return int(answer.producer_id)
            await self.pause(0.05, 0.3)

    async def deliver(self, tp: TopicPartition, data: bytes, values: Sequence[str]) -> None:
        """Send the batch until it is acknowledged. In order, one at a time, so no other answer is acceptable."""
        body = produce_body(None, -1, 800, tp, data)
        while True:
            answer = await self.produce(tp, body)
            if answer is None or answer.error_code in RETRIABLE:
                await self.lost_leader(tp)
                continue
            if answer.error_code not in (OK, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                error = ErrorCode(answer.error_code).name
                self.world.oracle.violate(f"{self.name} gets {error} for {values[0]} in {tp}")
            self.world.oracle.acknowledged(tp, values, answer.base_offset)
            return

    async def produce(self, tp: TopicPartition, body: bytes, version: int = PRODUCE_VERSION) -> Any:
        broker = await self.leader(tp)
        raw = await self.exchange(broker, PRODUCE, version, body, 1.5)
        if raw is None:
            return None
        return m.decode_response(PRODUCE, version, raw).responses[0].partition_responses[0]


class Fenced(Exception):
    """A newer producer of the same transactional id exists, or the transaction is lost: begin anew."""


class TransactionalProducer(Producer):
    """Transactions of protocol 2 (KIP-890), with offsets in them; crashes in the middle and begins anew."""

    produce_version, offsets_version, end_version = 12, 5, 5
    patience = (1, 30)
    """How often an unanswered end is asked for: once, or for long."""

    async def main(self, partitions: Sequence[TopicPartition]) -> None:
        self.source = partitions[0]
        self.group = f"copies-{self.name}"
        self.transactions = 0
        self.joined: set[TopicPartition] = set()
        producer_id, epoch = -1, -1
        while not self.world.closing:
            try:
                producer_id, epoch = await self.init((producer_id, epoch))
                sequences = dict.fromkeys(partitions, 0)
                while not self.world.closing:
                    before = producer_id, epoch
                    producer_id, epoch = await self.transaction(sequences, producer_id, epoch)
                    if self.end_version >= 5 and self.rng.random() < 0.1:
                        producer_id, epoch = await self.recover((producer_id, epoch))
                    if (producer_id, epoch) != before:
                        sequences = dict.fromkeys(partitions, 0)
                    await self.pause(*self.world.pace)
            except Fenced:
                self.hang_up()

    async def init(self, last: tuple[int, int]) -> tuple[int, int]:
        """A new epoch; now and then by recovery of the ``last`` producer id and epoch (KIP-360)."""
        return await self._init(last if self.rng.random() < 0.3 else (-1, -1), may_be_fenced=True)

    async def recover(self, last: tuple[int, int]) -> tuple[int, int]:
        """A new epoch between two transactions: nothing has fenced the last one, whichever answers are lost."""
        await self._ask_for_epoch(last, self.rng.choice((0.01, 0.05, 1.5)))  # the answer goes astray
        self.forget_coordinator(TRANSACTION, self.name)
        await self.pause(0.02, 1.5)
        return await self._init(last, may_be_fenced=False)

    async def _ask_for_epoch(self, named: tuple[int, int], timeout_s: float = 1.5) -> Any:
        request = m.InitProducerIdRequest(
            version=4, transactional_id=self.name, transaction_timeout_ms=2_500, producer_id=named[0],
            producer_epoch=named[1],
        )  # fmt: skip
        return await self.coordinate(TRANSACTION, self.name, request, 4, timeout_s)

    async def _init(self, named: tuple[int, int], *, may_be_fenced: bool) -> tuple[int, int]:
        while True:
            answer = await self._ask_for_epoch(named)
            if answer is not None and answer.error_code == OK:
                self.world.oracle.initialised(self.name)
                return answer.producer_id, answer.producer_epoch
            refused = answer is not None and answer.error_code not in RETRIABLE
            if refused and may_be_fenced and named != (-1, -1):
                named = (-1, -1)  # another producer has fenced that epoch
            elif refused:
                self.world.oracle.violate(f"{self.name}: InitProducerId {ErrorCode(answer.error_code).name}")
                named = (-1, -1)
            self.forget_coordinator(TRANSACTION, self.name)
            await self.pause(0.05, 0.3)

    async def transaction(self, sequences: dict[TopicPartition, int], producer_id: int, epoch: int) -> tuple[int, int]:
        """One transaction from its first record to its end; returns the next one's producer id and epoch."""
        oracle = self.world.oracle
        self.transactions += 1
        number = self.transactions
        self.joined.clear()
        for step in range(self.rng.randint(1, 4)):
            tp = self.rng.choice(list(sequences))
            values = [f"{self.name}-{number}.{step}.{i}" for i in range(self.rng.randint(1, 3))]
            oracle.sending(tp, values, (self.name, number))
            data = self.batch(values, producer_id, epoch, sequences[tp], TRANSACTIONAL)
            sequences[tp] += len(values)
            await self.enlist(tp, producer_id, epoch)
            await self.add(tp, data, values)
            if self.rng.random() < self.world.client_crashes:
                raise Fenced
        with_offset = self.rng.random() < 0.5
        if with_offset:
            await self.add_offset(number, producer_id, epoch)
        return await self.end((self.name, number), self.rng.random() < 0.8, producer_id, epoch)

    async def enlist(self, tp: TopicPartition, producer_id: int, epoch: int) -> None:
        """The leader adds the partition to the transaction, with the first batch."""

    async def enlist_group(self, producer_id: int, epoch: int) -> None:
        """The group's coordinator adds its partition, with the offsets."""

    async def add(self, tp: TopicPartition, data: bytes, values: Sequence[str]) -> None:
        body = produce_body(self.name, -1, 800, tp, data)
        for _ in range(self.rng.choice((3, 20))):
            answer = await self.produce(tp, body, self.produce_version)
            if answer is not None and answer.error_code in (OK, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self.world.oracle.acknowledged(tp, values, answer.base_offset)
                return
            if answer is not None and answer.error_code not in RETRIABLE:
                raise Fenced
            await self.lost_leader(tp)
        raise Fenced

    async def add_offset(self, number: int, producer_id: int, epoch: int) -> None:
        await self.enlist_group(producer_id, epoch)
        version = self.offsets_version
        topic = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part = topic.TxnOffsetCommitRequestPartition(
            version=version, partition_index=self.source.partition, committed_offset=number,
            committed_metadata=self.name,
        )  # fmt: skip
        request = m.TxnOffsetCommitRequest(
            version=version, transactional_id=self.name, group_id=self.group, producer_id=producer_id,
            producer_epoch=epoch, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            topics=[topic(version=version, name=self.source.topic, partitions=[part])],
        )  # fmt: skip
        self.world.oracle.committing(self.group, self.source, number)
        for _ in range(10):
            answer = await self.coordinate(GROUP, self.group, request, version)
            if answer is None and version < 5:
                raise Fenced  # a late copy must not find the next transaction under the same epoch
            error = None if answer is None else answer.topics[0].partitions[0].error_code
            if error == OK:
                return
            if error is not None and error not in RETRIABLE:
                raise Fenced
            self.forget_coordinator(GROUP, self.group)
            await self.pause(0.02, 0.2)
        raise Fenced

    async def end(self, transaction: tuple[str, int], commit: bool, producer_id: int, epoch: int) -> tuple[int, int]:
        """Ask for the end until it is answered, or give up: then the next InitProducerId finds out."""
        oracle = self.world.oracle
        oracle.ending(transaction, commit)
        version = self.end_version
        request = m.EndTxnRequest(
            version=version, transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )
        unanswered = self.rng.choice(self.patience)
        while unanswered:
            answer = await self.coordinate(TRANSACTION, self.name, request, version)
            if answer is not None and answer.error_code == OK:
                oracle.ended(transaction, commit)
                return (answer.producer_id, answer.producer_epoch) if version >= 5 else (producer_id, epoch)
            if answer is not None and answer.error_code not in RETRIABLE:
                raise Fenced
            unanswered -= answer is None
            self.forget_coordinator(TRANSACTION, self.name)
            await self.pause(0.02, 0.2)
        raise Fenced


class OldTransactionalProducer(TransactionalProducer):
    """Transactions of protocol 1: partitions are added before they are written to, and the epoch stays.

    A request that is held up may then fall into the next transaction (KAFKA-17754), so this one begins anew, with a new
    epoch, whenever it does not know what became of a request that could do harm later.
    """

    produce_version, offsets_version, end_version = 11, 3, 4
    patience = (1, 1)

    async def enlist(self, tp: TopicPartition, producer_id: int, epoch: int) -> None:
        if tp in self.joined:
            return
        topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = m.AddPartitionsToTxnRequest(
            version=3, v3_and_below_transactional_id=self.name, v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[topic(version=3, name=tp.topic, partitions=[tp.partition])],
        )  # fmt: skip
        await self.insist(request, lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0]
                          .partition_error_code)  # fmt: skip
        self.joined.add(tp)

    async def enlist_group(self, producer_id: int, epoch: int) -> None:
        request = m.AddOffsetsToTxnRequest(
            version=3, transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, group_id=self.group
        )
        await self.insist(request, lambda answer: answer.error_code)

    async def insist(self, request: Any, error_of: Callable[[Any], int]) -> None:
        """Ask until it is done; adding twice is harmless."""
        for _ in range(20):
            answer = await self.coordinate(TRANSACTION, self.name, request, 3)
            if answer is not None and error_of(answer) == OK:
                return
            if answer is not None and error_of(answer) not in RETRIABLE:
                raise Fenced
            self.forget_coordinator(TRANSACTION, self.name)
            await self.pause(0.02, 0.2)
        raise Fenced


class Consumer(Client):
    """Reads one partition from its start and shows the oracle every batch; ``shown`` are the values it shows."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.shown: list[str] = []

    async def main(self, tp: TopicPartition, committed: bool) -> None:
        position = 0
        while not self.world.closing:
            position = await self.poll(tp, position, committed)
            await self.pause(*self.world.pace)

    async def poll(self, tp: TopicPartition, position: int, committed: bool, max_wait_ms: int = 300) -> int:
        """Fetch once; returns the next position."""
        broker = await self.leader(tp)
        pledge = self.world.oracle.serving.asked(broker, tp, position, committed)
        part = await self.fetch(broker, tp, position, committed=committed, max_wait_ms=max_wait_ms)
        if part is None or part.error_code in RETRIABLE:
            await self.lost_leader(tp)
            return position
        return await self.took(tp, position, part, committed, pledge)

    async def took(self, tp: TopicPartition, position: int, part: Any, committed: bool, pledge: Pledge | None) -> int:
        """Show what came for one partition to the oracle; returns the next position."""
        oracle = self.world.oracle
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and position < oracle.erasing.get(tp, 0):
            return max(position, await self.earliest(tp))
        if part.error_code != OK:
            oracle.violate(f"{self.name} reads {tp} at {position}: {ErrorCode(part.error_code).name}")
            return position
        aborted = sorted((entry.first_offset, entry.producer_id) for entry in part.aborted_transactions or ())
        batches = [batch for batch in batches_of(part.records) if batch.last_offset >= position]
        reached = batches[-1].last_offset + 1 if batches else position
        oracle.serving.answered(self.name, pledge, position, batches)
        if tp.topic in oracle.once:  # a control record stands in for batches without records
            batches = [batch for batch in batches if not batch.control]
        oracle.serving.follows(self.name, tp, position, batches)
        self.shown += oracle.read(self.name, tp, batches, committed, aborted, position)
        return reached

    async def earliest(self, tp: TopicPartition) -> int:
        """Where the log starts."""
        floor = self.world.oracle.begin_earliest(tp)
        answer = await list_offset(self, tp, EARLIEST)
        if answer is None:
            return -1
        self.world.oracle.told_earliest(self.name, tp, answer.offset, floor)
        return int(answer.offset)


class Auditor(Client):
    """Asks for latest offsets and committed group offsets, which must never go back, and for offsets by time."""

    async def main(self, partitions: Sequence[TopicPartition], groups: Sequence[str]) -> None:
        while not self.world.closing:
            roll = self.rng.random()
            if roll < 0.4:
                await self.latest(self.rng.choice(partitions), self.rng.random() < 0.5)
            elif roll < 0.6:
                await self.by_time(self.rng.choice(partitions))
            else:
                group = self.rng.choice(groups)
                await fetch_committed(self, group, self.rng.choice(partitions), stable=self.rng.random() < 0.5)
            await self.pause(0.05, 0.4)

    async def insist(self, tp: TopicPartition, leader: int) -> None:
        """Ask a previous leader again and again, as a client whose metadata are old."""
        for _ in range(10):
            self.topics[tp] = leader, 1 << 30
            await self.latest(tp, False, insists=True)
            await self.pause(0.01, 0.05)

    async def latest(self, tp: TopicPartition, committed: bool, *, insists: bool = False) -> int | None:
        """ListOffsets of the end; None when it could not be told, or was of a topic that has been deleted."""
        oracle = self.world.oracle
        life = oracle.life(tp)
        floor = oracle.begin_latest(tp, committed)
        answer = await list_offset(self, tp, LATEST, committed, insists=insists)
        if answer is None or life is None or oracle.life(tp) is not life:
            return None
        oracle.told_latest(self.name, tp, committed, int(answer.offset), floor)
        return int(answer.offset)

    async def by_time(self, tp: TopicPartition) -> None:
        """ListOffsets of the first record since some moment of the run, to the millisecond where one was sent."""
        serving, truth = self.world.oracle.serving, self.world.oracle.by_name.get(tp)
        stamps = list(truth.stamps.values()) if truth is not None else []
        if not stamps:
            return
        timestamp = self.rng.choice(stamps) + self.rng.choice((-1, 0, 0, 1))
        before = serving.first_since(tp, timestamp, self.world.oracle.erasing.get(tp, 0))
        answer = await list_offset(self, tp, timestamp)
        if answer is not None:
            serving.told_first_since(self.name, tp, timestamp, answer, before)


class Member(Client):
    """A member of a consumer group with heartbeats: commits ever higher offsets for what it is assigned.

    After a commit whose outcome is unknown it leaves and joins as another member, so that a late copy of the commit
    is of a previous generation.
    """

    async def main(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        member_id = ""
        while not self.world.closing:
            member_id, generation, assigned = await self.join(group, member_id, len(partitions))
            if generation < 0:
                await self.pause(0.02, 0.2)
                continue
            offsets = {partitions[index]: await self.position(group, partitions[index]) for index in assigned}
            while not self.world.closing:
                await self.pause(0.1, 0.6)
                error = await self.beat(group, member_id, generation)
                if error == OK and offsets and self.rng.random() < 0.7:
                    tp = self.rng.choice(list(offsets))
                    offsets[tp] += 1
                    error = await self.commit(group, tp, offsets[tp], member_id, generation)
                if error == OK and self.rng.random() > 0.03:
                    continue
                if error not in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
                    await self.leave(group, member_id)
                    member_id = ""
                break

    @property
    def instance(self) -> str | None:
        """The third one is a static member (KIP-345)."""
        return self.name if self.name.endswith("3") else None

    async def asked(self, group: str, request: Any, version: int, timeout_s: float = 1.5) -> Any:
        """The answer, or None for none; the coordinator is looked for again when it isn't the one asked."""
        answer = await self.coordinate(GROUP, group, request, version, timeout_s)
        if answer is not None and getattr(answer, "error_code", OK) in RETRIABLE:
            self.forget_coordinator(GROUP, group)
            await self.pause(0.05, 0.3)
        return answer

    async def join(self, group: str, member_id: str, count: int) -> tuple[str, int, list[int]]:
        """Member id, generation (-1: try again) and the partitions that the group's leader gave us."""
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(version=7, name="range", metadata=b"x")
        request = m.JoinGroupRequest(
            version=7, group_id=group, session_timeout_ms=1_500, rebalance_timeout_ms=1_500, member_id=member_id,
            group_instance_id=self.instance, protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        joined = await self.asked(group, request, 7, 4.0)
        if joined is None or joined.error_code != OK:
            error = None if joined is None else joined.error_code
            if error == ErrorCode.MEMBER_ID_REQUIRED:
                return joined.member_id, -1, []
            lost = error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
            return "" if lost else member_id, -1, []
        kind = m.SyncGroupRequest.SyncGroupRequestAssignment
        members = [member.member_id for member in joined.members]
        assignments = [
            kind(
                version=5, member_id=one, assignment=bytes(i for i in range(count) if members[i % len(members)] == one)
            )
            for one in members
        ]
        request = m.SyncGroupRequest(
            version=5, group_id=group, generation_id=joined.generation_id, member_id=joined.member_id,
            group_instance_id=self.instance, protocol_type="consumer", protocol_name="range", assignments=assignments,
        )  # fmt: skip
        synced = await self.asked(group, request, 5, 4.0)
        if synced is None or synced.error_code != OK:
            return joined.member_id, -1, []
        return joined.member_id, joined.generation_id, list(synced.assignment)

    async def position(self, group: str, tp: TopicPartition) -> int:
        """Where to go on; 0 for a new group. Asks until it is told."""
        while True:
            found = await fetch_committed(self, group, tp, stable=True)
            if found is not None:
                return max(0, found)
            await self.pause(0.05, 0.3)

    async def beat(self, group: str, member_id: str, generation: int) -> int:
        request = m.HeartbeatRequest(
            version=4, group_id=group, generation_id=generation, member_id=member_id, group_instance_id=self.instance
        )
        answer = await self.asked(group, request, 4)
        return ErrorCode.NOT_COORDINATOR if answer is None else answer.error_code

    async def leave(self, group: str, member_id: str) -> None:
        kind = m.LeaveGroupRequest.MemberIdentity
        leaver = kind(version=4, member_id=member_id, group_instance_id=self.instance)
        await self.asked(group, m.LeaveGroupRequest(version=4, group_id=group, members=[leaver]), 4)

    async def commit(self, group: str, tp: TopicPartition, offset: int, member_id: str, generation: int) -> int:
        """Commit once; an error other than NONE, or no answer, says nothing about the outcome."""
        self.world.oracle.committing(group, tp, offset)
        if await commit_offset(self, group, tp, offset, member_id, generation, self.instance):
            self.world.oracle.committed_offset(group, tp, offset)
            return OK
        return ErrorCode.UNKNOWN_SERVER_ERROR


async def list_offset(
    client: Client, tp: TopicPartition, timestamp: int, committed: bool = False, *, insists: bool = False
) -> Any:
    """ListOffsets of one partition: its part of the answer; None when it could not be told."""
    topic = m.ListOffsetsRequest.ListOffsetsTopic
    request = m.ListOffsetsRequest(
        version=7, replica_id=-1, isolation_level=int(committed),
        topics=[topic(version=7, name=tp.topic, partitions=[topic.ListOffsetsPartition(
            version=7, partition_index=tp.partition, current_leader_epoch=-1, timestamp=timestamp)])],
    )  # fmt: skip
    answer = await client.ask(await client.leader(tp), request, 7)
    if answer is None or answer.topics[0].partitions[0].error_code != OK:
        if not insists:
            await client.lost_leader(tp)
        return None
    return answer.topics[0].partitions[0]


async def commit_offset(
    client: Client, group: str, tp: TopicPartition, offset: int, member_id: str = "", generation: int = -1,
    instance: str | None = None,
) -> bool:  # fmt: skip
    """OffsetCommit, once, by a member or by none; whether it was acknowledged."""
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic
    part = topic.OffsetCommitRequestPartition(
        version=7, partition_index=tp.partition, committed_offset=offset, committed_leader_epoch=-1,
        committed_metadata=client.name,
    )  # fmt: skip
    request = m.OffsetCommitRequest(
        version=7, group_id=group, generation_id_or_member_epoch=generation, member_id=member_id,
        group_instance_id=instance, topics=[topic(version=7, name=tp.topic, partitions=[part])],
    )  # fmt: skip
    answer = await client.coordinate(GROUP, group, request, 7)
    if answer is not None and answer.topics[0].partitions[0].error_code == OK:
        return True
    client.forget_coordinator(GROUP, group)
    return False


async def fetch_committed(client: Client, group: str, tp: TopicPartition, *, stable: bool) -> int | None:
    """OffsetFetch, shown to the oracle; None when it could not be told."""
    oracle = client.world.oracle
    floor = oracle.begin_committed(group, tp)
    offset = await fetch_offset(client, group, tp, stable=stable)
    if offset is not None:
        oracle.told_committed(client.name, group, tp, offset, floor)
    return offset


async def fetch_offset(client: Client, group: str, tp: TopicPartition, *, stable: bool) -> int | None:
    """OffsetFetch of one partition; None when it could not be told."""
    kind = m.OffsetFetchRequest.OffsetFetchRequestGroup
    asked = kind(
        version=8, group_id=group,
        topics=[kind.OffsetFetchRequestTopics(version=8, name=tp.topic, partition_indexes=[tp.partition])],
    )  # fmt: skip
    answer = await client.coordinate(
        GROUP, group, m.OffsetFetchRequest(version=8, groups=[asked], require_stable=stable), 8
    )
    if answer is None or answer.groups[0].error_code != OK:
        client.forget_coordinator(GROUP, group)
        return None
    part = answer.groups[0].topics[0].partitions[0]
    return int(part.committed_offset) if part.error_code == OK else None


INTERNAL = (TopicPartition(GROUP_METADATA_TOPIC, 0), TopicPartition(TRANSACTION_STATE_TOPIC, 0))
