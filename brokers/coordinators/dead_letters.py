"""Dead letters of share groups (KIP-1191): written in one transaction with the state that they are the end of.

The leader of a share partition is a transactional producer by the name of the share partition, of transactions version
2: partitions join the transaction with what is written to them, and each transaction has an epoch of its own. A leader
that was replaced is fenced by its successor's first transaction. What was not committed is aborted, at the latest by
its time; until then the share coordinator does nothing to the state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, CorruptBatch, Record, decode_records, encode_batch, scan
from fleetlog.brokers.coordinators.asking import Coordinators
from fleetlog.brokers.coordinators.pending import answer_of
from fleetlog.brokers.coordinators.shard_host import TRANSACTIONAL
from fleetlog.brokers.coordinators.share_states import ATTEMPTS, RETRY_S, ShareStates, Within
from fleetlog.brokers.coordinators.transactions.verification import admit
from fleetlog.brokers.log import DiskError, LogOffline, OffsetOutOfRange, Origin, SliceGone
from fleetlog.brokers.metadata.features import SHARE_VERSION
from fleetlog.brokers.model import Clock, TopicPartition
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.shares.coordinator import ShareWrite, coordinator_key
from fleetlog.brokers.shares.runs import Doom
from fleetlog.brokers.shares.state import ShareKey
from fleetlog.brokers.shares.window import Doomed
from fleetlog.txn.commands import Now, Result, Ticket
from fleetlog.txn.coordinator import End, Producer, TransactionShard
from fleetlog.wire import messages
from fleetlog.wire.compression import CodecError, decompress
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.coordinators.transactions.coordinator import TransactionCoordinator
    from fleetlog.brokers.log import FileSlice
    from fleetlog.brokers.metadata.cache import MetadataCache
    from fleetlog.brokers.metrics.registry import Counter, Labelled
    from fleetlog.brokers.replication.partition import Partition
    from fleetlog.brokers.replication.replicas import ReplicaManager

logger = logging.getLogger(__name__)

LETTER_TOPIC, COPIES = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"
LETTERS_TOGETHER = 200
"""Dead letters of one transaction at most."""
READ_BYTES = 1 << 20
"""What is read of a log for one transaction at most, but for a batch that is larger."""
TRANSACTION_MS = 20_000
"""After so long a transaction is aborted whose leader is gone: what it holds back waits no longer."""
CALL_MS = 10_000
MAKE_MS = 5_000
"""So long the first dead letter waits for its topic."""
LARGEST_BATCH = 16 << 20
"""The most bytes that are unpacked of a batch for a letter; of more, letters have no record."""
ROOM = 1_024
"""What a letter's own headers and its frame take at most, less names."""
REASON: Final = "fleetlog.dlq.reason"
"""The header that says why: a value of :class:`Doom`."""
HEADERS: Final = "__dlq.errors."
INIT_VERSION, PRODUCE_VERSION, END_VERSION = 4, 12, 5
_NONE = ErrorCode.NONE
_SAID = {
    Doom.REJECTED: "A member rejected the record.",
    Doom.AFTER_POISON: "A record of its key before it became a dead letter.",
    Doom.TOO_MANY_DELIVERIES: "The record was delivered as often as the group permits.",
}


class OutcomeUnknown(Exception):
    """Whether a transaction was committed is not known here."""


class Letters(NamedTuple):
    """Where dead letters of a group go, and whether they have what the record had."""

    topic: str
    copies: bool


class Burying(NamedTuple):
    """A share partition, for as long as some of its records are buried."""

    key: ShareKey
    partition: Partition
    leader_epoch: int
    letters: Letters
    read: Callable[[FileSlice], Awaitable[bytes | bytearray]]
    """Gives a slice of the log, without waiting for the disk on the loop."""
    closed: Callable[[], ErrorCode]
    """Why it serves nothing any more; NONE while it does."""
    paused: bool
    """Whether the last try failed: that was told."""


class LetterPlan(NamedTuple):
    """The dead letters of one transaction: of all that is doomed up to ``until``. With an error there are none."""

    error: ErrorCode
    until: int
    target: TopicPartition | None = None
    records: tuple[Record, ...] = ()
    whys: tuple[Doom, ...] = ()


def _refusal_of_name(topic: str, metadata: MetadataCache) -> str | None:
    prefix = metadata.effective.errors_deadletterqueue_topic_name_prefix
    if topic.startswith("__"):
        return "its name begins with __"
    if not topic.startswith(prefix):
        return f"its name does not begin with {prefix} (errors.deadletterqueue.topic.name.prefix)"
    return None


def refusal_of(topic: str, metadata: MetadataCache) -> str | None:
    """Why a topic cannot have dead letters now; None if it can. Both permits of KIP-1191, and ours."""
    refused = _refusal_of_name(topic, metadata)
    if refused is not None:
        return refused
    info = metadata.topics.get(topic)
    if info is None:
        return "there is no such topic"
    config = metadata.topic_config(topic)
    if not config.errors_deadletterqueue_group_enable:
        return "errors.deadletterqueue.group.enable of the topic is false"
    if config.fleetlog_dedup != "none":
        return "it drops repeats (fleetlog.dedup)"
    return None


def letter(
    key: ShareKey, topic: str, offset: int, one: Doomed, now_ms: int, original: Record | None, room: int
) -> Record:
    """A dead letter, with what the record had if there is room for it."""
    text = _SAID[one.why]
    headers: list[tuple[str, bytes | None]] = [
        (HEADERS + "topic", topic.encode()),
        (HEADERS + "partition", str(key.partition).encode()),
        (HEADERS + "offset", str(offset).encode()),
        (HEADERS + "group", key.group_id.encode()),
        (HEADERS + "delivery.count", str(one.deliveries).encode()),
        (REASON, one.why.value.encode()),
    ]
    if original is not None and letter_bytes(original) + ROOM + len(topic) + 4 * len(key.group_id) > room:
        original, text = None, f"{text} It has no room in the topic of dead letters."
    headers.append((HEADERS + "message", text.encode()))
    if original is None:
        return Record(0, now_ms, None, None, tuple(headers))
    return Record(0, now_ms, original.key, original.value, (*original.headers, *headers))


def letter_bytes(record: Record) -> int:
    """About the bytes of a record, at most."""
    headers = sum(2 * 5 + 4 * len(name) + len(value or b"") for name, value in record.headers)
    return 64 + len(record.key or b"") + len(record.value or b"") + headers


def _decoded(batch: bytes, header: BatchHeader) -> list[tuple[int, Record | None]]:
    """The offsets of a batch with their records; without those, if it cannot be unpacked."""
    payload: Any = memoryview(batch)[HEADER_SIZE:]
    if header.is_control:
        return []
    try:
        if header.codec:
            payload = decompress(header.codec, payload, LARGEST_BATCH)
        return [(record.offset, record) for record in decode_records(payload, header)]
    except (CodecError, CorruptBatch):
        return [(offset, None) for offset in range(header.base_offset, header.last_offset + 1)]


def producer_of(key: ShareKey) -> str:
    """The transactional id by which a share partition's leader writes."""
    return f"__share.{coordinator_key(key)}"


class DeadLetters:
    """Those of the share partitions that are led here."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        peers: PeersPort,
        transactions: TransactionCoordinator,
        replicas: ReplicaManager,
        states: ShareStates,
        create: Callable[..., Awaitable[dict[str, ErrorCode]]],
        clock: Clock,
        written: Labelled[Counter],
    ) -> None:
        self.waiting: dict[ShareKey, int] = {}
        """Records that wait to become dead letters, as of the last try."""
        self._producers: dict[ShareKey, tuple[int, int]] = {}
        """Id and epoch of the next transaction of each that has had one."""
        self._broker_id = broker_id
        self._metadata = metadata
        self._peers = peers
        self._transactions = transactions
        self._replicas = replicas
        self._states = states
        self._create = create
        self._coordinators = Coordinators(broker_id, metadata, peers, create)
        self._clock = clock
        self._written = written

    @property
    def served(self) -> bool:
        """Whether every broker knows states that are written in transactions."""
        return self._metadata.features.get(SHARE_VERSION, 0) >= 2

    def waiting_records(self) -> int:
        """Of all share partitions."""
        return sum(self.waiting.values())

    # --- gathering ----------------------------------------------------------------------------------------------

    async def gather(self, share: Burying, doomed: Sequence[Doomed]) -> LetterPlan:
        """The letters of the first of what is doomed."""
        rules, key = share.letters, share.key
        await self._make(rules.topic)
        refused, info = refusal_of(rules.topic, self._metadata), self._metadata.topics.get(rules.topic)
        if refused is None and info is not None:
            index = key.partition % len(info.partitions)
            if info.partitions[index].leader not in self._metadata.brokers:
                refused = f"partition {index} has no leader"
        if refused is not None or info is None:
            level = logging.DEBUG if share.paused else logging.WARNING
            logger.log(
                level, "dead letters of group %s wait for topic %s: %s", key.group_id[:200], rules.topic, refused
            )
            return LetterPlan(ErrorCode.KAFKA_STORAGE_ERROR, doomed[-1].last)
        room = self._metadata.topic_config(rules.topic).max_message_bytes - HEADER_SIZE
        target, now_ms = TopicPartition(rules.topic, index), self._clock.wall_ms()
        records: list[Record] = []
        whys: list[Doom] = []
        until, size = doomed[0].first - 1, 0
        try:
            async for offset, one, original, last in self._records(share, doomed):
                if one is not None:
                    made = letter(key, share.partition.tp.topic, offset, one, now_ms, original, room)
                    size += letter_bytes(made)
                    if records and (size > min(room, READ_BYTES) or len(records) >= LETTERS_TOGETHER):
                        break
                    records.append(made)
                    whys.append(one.why)
                until = last
        except (OffsetOutOfRange, SliceGone, LogOffline, DiskError) as problem:
            logger.info("dead letters of %s: %s", coordinator_key(key)[:200], problem)
            return LetterPlan(ErrorCode.KAFKA_STORAGE_ERROR, doomed[-1].last)
        numbered = tuple(record._replace(offset=number) for number, record in enumerate(records))
        return LetterPlan(_NONE, max(until, doomed[0].first), target, numbered, tuple(whys))

    async def _make(self, topic: str) -> None:
        """Make the topic if there is none and brokers may; in vain, it is tried again with the letters."""
        metadata = self._metadata
        may = topic not in metadata.topics and metadata.effective.errors_deadletterqueue_auto_create_topics_enable
        if may and _refusal_of_name(topic, metadata) is None:
            made = await self._create([topic], MAKE_MS, {"errors.deadletterqueue.group.enable": "true"})
            logger.info("the topic of dead letters %s is made: %s", topic, made[topic].name)

    async def _records(self, share: Burying, doomed: Sequence[Doomed]) -> Any:
        """Offsets that are doomed and what is there, from the first on, as far as one read goes.

        Yields the offset with what dooms it and the record (None where the log has it no more, or it is not copied),
        and up to where everything was looked at. Where compaction left nothing there is nothing to bury.
        """
        log, copies = share.partition.log, share.letters.copies
        first, start = doomed[0].first, log.log_start_offset
        for one in doomed:
            for offset in range(one.first, min(one.last + 1, start)):
                yield offset, one, None, offset
        if doomed[-1].last < start:
            return
        result = log.reader.read(max(first, start), READ_BYTES, log.high_watermark)
        try:
            run = b"".join([await share.read(piece) for piece in result.slices])
        finally:
            result.release()
        reach = max(first, start) - 1
        for position, header in scan(run):
            await asyncio.sleep(0)
            inside = [one for one in doomed if one.last >= header.base_offset and one.first <= header.last_offset]
            batch = run[position : position + header.size]
            for offset, record in await asyncio.to_thread(_decoded, batch, header) if inside else ():
                by = next((one for one in inside if one.first <= offset <= one.last), None)
                if by is not None and offset >= start:
                    yield offset, by, record if copies else None, offset
            reach = header.last_offset
            yield reach, None, None, reach
        if reach < max(first, start):
            yield doomed[-1].last, None, None, doomed[-1].last  # the log ends before: there is nothing any more

    # --- writing ------------------------------------------------------------------------------------------------

    async def write(self, share: Burying, plan: LetterPlan, state: ShareWrite) -> ErrorCode:
        """Commit the letters and the state together; with an error there is neither. Raises OutcomeUnknown."""
        if not plan.records:  # compaction has taken them
            return (await self._states.write(state)).error
        name = producer_of(share.key)
        known = self._producers.pop(share.key, None) or await self._first(name)
        if isinstance(known, ErrorCode):
            return known
        within, error = Within(name, known), ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            assert plan.target is not None, "there are letters"
            batch = encode_batch(
                plan.records, attributes=TRANSACTIONAL, producer_id=within.producer[0],
                producer_epoch=within.producer[1], base_sequence=0,
            )  # fmt: skip
            error = await self._produce(plan.target, within, batch)
            if error is not _NONE and not error.retriable:  # its topic's rules, and clocks, may be others soon
                logger.warning("%s: dead letters are refused: %s", plan.target, error.name)
                error = ErrorCode.KAFKA_STORAGE_ERROR
            if error is _NONE:
                error = await self._persist(share, state, within)
        finally:
            if error is not _NONE:
                await self._end(within, commit=False)
        if error is not _NONE:
            return error
        ended = await self._end(within, commit=True)
        if isinstance(ended, ErrorCode):
            raise OutcomeUnknown(f"the end of transaction {name[:200]}: {ended.name}")
        self._producers[share.key] = ended
        for why in plan.whys:
            self._written.labels(why.value).inc()
        return _NONE

    async def _persist(self, share: Burying, state: ShareWrite, within: Within) -> ErrorCode:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(RETRY_S)
            if (closed := share.closed()) is not _NONE:
                return closed
            error = (await self._states.write(state, within)).error
            if error is _NONE or not error.retriable:
                break
        return error

    async def _produce(self, tp: TopicPartition, within: Within, batch: bytes) -> ErrorCode:
        state = self._metadata.partition(tp)
        if state is None or state.leader not in self._metadata.brokers:
            return ErrorCode.LEADER_NOT_AVAILABLE
        if state.leader == self._broker_id:
            return await self._append(tp, within, batch)
        kind, version = messages.ProduceRequest, PRODUCE_VERSION
        part = kind.TopicProduceData.PartitionProduceData(index=tp.partition, records=batch)
        request = kind(
            version=version, transactional_id=within.transactional_id, acks=-1, timeout_ms=CALL_MS,
            topic_data=[kind.TopicProduceData(name=tp.topic, partition_data=[part])],
        )  # fmt: skip
        try:
            answer = await self._peers.call(state.leader, kind.API_KEY, version, request, 2 * CALL_MS)
        except PeerUnavailable as problem:
            logger.info("dead letters for broker %d: %s", state.leader, problem)
            return ErrorCode.NETWORK_EXCEPTION
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    async def _append(self, tp: TopicPartition, within: Within, batch: bytes) -> ErrorCode:
        partition, refusal = self._replicas.leader(tp)
        if partition is None:
            return refusal
        admitted = await admit(
            self._transactions.verifier.ask, self._clock, within.transactional_id, within.producer,
            {tp: (partition.log.producers, 0)}, add=True,
        )  # fmt: skip
        if admitted[tp].error is not _NONE:
            return admitted[tp].error
        info = partition.append(bytearray(batch), acks=-1, origin=Origin.CLIENT, verification_guard=admitted[tp].guard)
        if info.error is not _NONE:
            return info.error
        committed: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        partition.wait_for(info.last_offset, lambda error: None if committed.done() else committed.set_result(error))
        try:
            async with asyncio.timeout(CALL_MS / 1000):
                return await committed
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT

    # --- transactions -------------------------------------------------------------------------------------------

    async def settle(self, key: ShareKey) -> None:
        """End a transaction of a leader before, or wait until it has ended."""
        known = await self._first(producer_of(key))
        if not isinstance(known, ErrorCode):
            self._producers[key] = known

    def forget(self, key: ShareKey) -> None:
        """It is not led here any more."""
        self.waiting.pop(key, None)
        self._producers.pop(key, None)

    async def _first(self, name: str) -> tuple[int, int] | ErrorCode:
        """The producer by that name: a transaction of a leader before is aborted, and that leader fenced."""
        ids = self._transactions.producer_ids
        timeout_ms = min(TRANSACTION_MS, self._metadata.effective.transaction_max_timeout_ms)

        def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
            return shard.init_producer_id(name, timeout_ms, None, ids.take, now)

        request = messages.InitProducerIdRequest(
            version=INIT_VERSION, transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=-1,
            producer_epoch=-1,
        )  # fmt: skip
        return await self._told(name, command, INIT_VERSION, request)

    async def _end(self, within: Within, *, commit: bool) -> tuple[int, int] | ErrorCode:
        """The producer's next id and epoch. An abort that fails is made up for by :meth:`_first`, or by time."""
        ids = self._transactions.producer_ids
        name, (producer_id, epoch) = within

        def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
            return shard.end_transaction(name, Producer(producer_id, epoch), End(commit, 2), ids.take, now)

        request = messages.EndTxnRequest(
            version=END_VERSION, transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )
        return await self._told(name, command, END_VERSION, request)

    async def _told(
        self, name: str, command: Callable[[TransactionShard, Now, Ticket], Result], version: int, request: Any
    ) -> tuple[int, int] | ErrorCode:
        """What the transaction coordinator says, asked again while that may help."""
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(RETRY_S)
            try:
                answer = await self._asked(name, command, version, request)
            except PeerUnavailable as problem:
                logger.info("the transaction coordinator of %s: %s", name[:200], problem)
                error = ErrorCode.NETWORK_EXCEPTION
                continue
            error = ErrorCode(answer.error_code if hasattr(answer, "error_code") else answer.error)
            if error is _NONE:
                return int(answer.producer_id), int(answer.producer_epoch)
            if not error.retriable:
                break
        return error

    async def _asked(
        self, name: str, command: Callable[[TransactionShard, Now, Ticket], Result], version: int, request: Any
    ) -> Any:
        async def here() -> Any:
            filled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._transactions.producer_ids.when_filled(lambda: None if filled.done() else filled.set_result(None))
            async with asyncio.timeout(CALL_MS / 1000):
                await filled
            return await answer_of(self._transactions.submit_patiently(name, command))

        return await self._coordinators.ask(self._transactions, name, here, lambda: request, version, CALL_MS)
