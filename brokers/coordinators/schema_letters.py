"""Dead letters of what a topic's check of schemas does not take (``fleetlog.schema.invalid=dlq:TOPIC``).

The leader of the checked partition has them written, then appends the batch without those records. They are written
first, as a repeat of a batch that is in the log is answered as a success whatever became of its letters; so a batch
that comes again, because what followed failed, brings its letters again. In a transaction of the producer's they belong
to it: the leader adds their partition to the transaction, and their batches have the producer's id and epoch, but no
sequence, as the offsets that coordinators write have none. ADR 0024.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetlog._native.batch import HEADER_SIZE, Record, decode_records, encode_batch
from fleetlog._native.compact import leave_out
from fleetlog.brokers.coordinators.dead_letters import HEADERS, REASON, letter_bytes, refusal_of
from fleetlog.brokers.coordinators.shard_host import TRANSACTIONAL
from fleetlog.brokers.coordinators.share_states import Within
from fleetlog.brokers.coordinators.transactions.verification import admit
from fleetlog.brokers.log import Origin
from fleetlog.brokers.log.door import BadRecords
from fleetlog.brokers.log.producers.entries import MAX_SEQUENCE, add_sequence
from fleetlog.brokers.model import Clock, TopicPartition
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.txn.verification import Ask, Question, client_error
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

if TYPE_CHECKING:
    from fleetlog.brokers.coordinators.transactions.coordinator import TransactionCoordinator
    from fleetlog.brokers.metadata.cache import MetadataCache
    from fleetlog.brokers.metrics.registry import Counter, Labelled
    from fleetlog.brokers.replication.partition import Partition
    from fleetlog.brokers.replication.replicas import ReplicaManager

logger = logging.getLogger(__name__)

SCHEMA: Final = "schema"
"""The reason of these letters."""
CALL_MS: Final = 10_000
_NONE: Final = ErrorCode.NONE
_OF_THE_PRODUCER: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)  # fmt: skip
"""What says that the transaction is over, or another one's: the producer is told."""


class Said(NamedTuple):
    """What became of letters; with an error not all of them are there."""

    error: ErrorCode = _NONE
    message: str | None = None


def letters_refusal(topic: str, metadata: MetadataCache) -> str | None:
    """Why a topic cannot have such letters; None if it can."""
    refused = refusal_of(topic, metadata)
    if refused is not None:
        return refused
    config = metadata.topic_config(topic)
    if config.checks_schemas:
        return "it asks for schemas itself"
    if "compact" in config.cleanup_policy:
        return "it is compacted, and would keep the last letter of each key alone"
    return None


def letters_of(tp: TopicPartition, bad: BadRecords, now_ms: int) -> Iterator[Record]:
    """The letters of bad records, in their order: what each of them had, and why it failed. Raises CorruptBatch."""
    header = bad.header
    kept = leave_out(bad.payload, header, set(range(header.record_count)) - bad.whys.keys())
    assert kept.payload is not None, "some are left"
    rows = decode_records(kept.payload, header._replace(record_count=kept.record_count))
    for record, (index, why) in zip(rows, sorted(bad.whys.items()), strict=True):
        headers: list[tuple[str, bytes | None]] = [
            (HEADERS + "topic", tp.topic.encode()),
            (HEADERS + "partition", str(tp.partition).encode()),
        ]
        if header.base_sequence != NO_SEQUENCE:  # by these a letter that came twice is known
            headers += [
                (HEADERS + "producer.id", str(header.producer_id).encode()),
                (HEADERS + "producer.epoch", str(header.producer_epoch).encode()),
                (HEADERS + "sequence", str(add_sequence(header.base_sequence, index)).encode()),
            ]
        headers += [(REASON, SCHEMA.encode()), (HEADERS + "message", why.encode())]
        yield Record(0, now_ms, record.key, record.value, (*record.headers, *headers))


class SchemaLetters:
    """Those of the partitions that are led here, and what other leaders have for partitions that are led here."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        peers: PeersPort,
        transactions: TransactionCoordinator,
        replicas: ReplicaManager,
        clock: Clock,
        written: Labelled[Counter],
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._peers = peers
        self._transactions = transactions
        self._replicas = replicas
        self._clock = clock
        self._written = written

    # --- of what is checked here ------------------------------------------------------------------------------------

    async def bury(
        self, partition: Partition, bad: BadRecords, asked: Question | None, guard: object | None = None
    ) -> Said:
        """Have the letters of these records written; what is said is for the producer.

        ``asked``: the question for its request, where that has a transactional id; ``guard``: with which its batch is
        going to be appended.
        """
        topic = bad.topic
        refused, info = letters_refusal(topic, self._metadata), self._metadata.topics.get(topic)
        if refused is not None or info is None:
            return Said(ErrorCode.INVALID_RECORD, refused)
        target = TopicPartition(topic, partition.tp.partition % len(info.partitions))
        room = self._metadata.topic_config(topic).max_message_bytes - HEADER_SIZE
        letters = list(letters_of(partition.tp, bad, self._clock.wall_ms()))
        if any(letter_bytes(one) > room for one in letters):
            return Said(ErrorCode.INVALID_RECORD, "a letter is larger than its max.message.bytes")
        within = None
        if bad.header.is_transactional:
            assert asked is not None, "without a transactional id such a batch is refused"
            within = Within(asked.transactional_id, (bad.header.producer_id, bad.header.producer_epoch))
            added = await self._add(target, within)
            if added is not _NONE:
                return Said(client_error(asked, added), added.name)
            if not partition.log.producers.may_write(*within.producer, guard):
                return Said(ErrorCode.INVALID_TXN_STATE, "the transaction has ended")
        for batch in _batches(letters, room, within):
            error, message = await self._write(target, within, batch)
            if error is not _NONE:
                return _told(error, f"{error.name}: {message}" if message else error.name, asked)
        self._written.labels(SCHEMA).inc(len(letters))
        return Said()

    async def _add(self, target: TopicPartition, within: Within) -> ErrorCode:
        """Have the letters' partition in the transaction. What comes late for another one is refused by the epoch.

        Producers before transactions version 2 keep theirs: whether it is still the same is asked of the log next.
        """
        question = Question(within.transactional_id, *within.producer, (target,), Ask.ADD, abortable=True)
        return (await self._transactions.verifier.ask(question))[target]

    async def _write(self, tp: TopicPartition, within: Within | None, batch: bytes) -> Said:
        state = self._metadata.partition(tp)
        if state is None or state.leader not in self._metadata.brokers:
            return Said(ErrorCode.LEADER_NOT_AVAILABLE)
        if state.leader == self._broker_id:
            return await self.take(tp, within, batch)
        name, (producer_id, epoch) = within or (None, (NO_PRODUCER_ID, NO_PRODUCER_EPOCH))
        kind = messages.WriteLettersRequest
        request = kind(
            version=0, topic_name=tp.topic, partition_index=tp.partition, transactional_id=name,
            producer_id=producer_id, producer_epoch=epoch, records=batch,
        )  # fmt: skip
        try:
            answer = await self._peers.call(state.leader, kind.API_KEY, 0, request, 2 * CALL_MS)
        except PeerUnavailable as problem:
            logger.info("dead letters for broker %d: %s", state.leader, problem)
            return Said(ErrorCode.NETWORK_EXCEPTION)
        return Said(ErrorCode(answer.error_code), answer.error_message)

    # --- of what is led here ----------------------------------------------------------------------------------------

    async def take(self, tp: TopicPartition, within: Within | None, batch: bytes) -> Said:
        """Append a batch of letters; done when it is committed."""
        partition, error = self._replicas.leader(tp)
        if partition is None:
            return Said(error)
        refused = letters_refusal(tp.topic, self._metadata)
        if refused is not None:
            return Said(ErrorCode.POLICY_VIOLATION, refused)
        guard: object | None = None
        if within is not None:
            admitted = await admit(
                self._transactions.verifier.ask, self._clock, within.transactional_id, within.producer,
                {tp: (partition.log.producers, MAX_SEQUENCE)}, add=False,
            )  # fmt: skip
            error, guard = admitted[tp]
            if error is not _NONE:
                return Said(error)
        info = partition.append(bytearray(batch), acks=-1, origin=Origin.COORDINATOR, verification_guard=guard)
        if info.error is not _NONE:
            return Said(info.error, info.error_message)
        committed: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        partition.wait_for(info.last_offset, lambda error: None if committed.done() else committed.set_result(error))
        try:
            async with asyncio.timeout(CALL_MS / 1000):
                return Said(await committed)
        except TimeoutError:
            return Said(ErrorCode.REQUEST_TIMED_OUT)


def _told(error: ErrorCode, message: str, asked: Question | None) -> Said:
    """What the producer is told of what the letters' leader said."""
    if asked is not None and error in _OF_THE_PRODUCER:
        return Said(client_error(asked, error), message)
    return Said(ErrorCode.NOT_ENOUGH_REPLICAS if error.retriable else ErrorCode.INVALID_RECORD, message)


def _batches(letters: Sequence[Record], room: int, within: Within | None) -> Iterator[bytes]:
    """The letters in batches that their topic takes."""
    some: list[Record] = []
    size = 0
    for one in letters:
        if some and size + letter_bytes(one) > room:
            yield _batch(some, within)
            some, size = [], 0
        some.append(one._replace(offset=len(some)))
        size += letter_bytes(one)
    yield _batch(some, within)


def _batch(letters: Sequence[Record], within: Within | None) -> bytes:
    if within is None:
        return bytes(encode_batch(letters))
    producer_id, epoch = within.producer
    return bytes(encode_batch(letters, attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=epoch))
