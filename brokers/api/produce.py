"""Produce (key 0): append batches to the partitions this broker leads, and answer as the producer's acks ask.

A request is a run of one: :func:`execute_produce` takes the requests of one or several connections, appends what they
have for a partition in one call, and answers each connection. Figures: ADR 0012, 0014 and 0015.

Each partition succeeds or fails by itself. A transactional batch whose transaction is not known on the partition yet is
verified with the transaction coordinator first (KIP-890), holding the log's guard; a producer of protocol 2 (version 12
and up) adds the partition to its transaction by the same question. In the same way a batch waits whose payloads another
process checks, or whose bad records get dead letters first (``brokers.log.door``).

A request to many partitions is executed some dozens of them at a time, with everything else of the loop in between.
Batches with a codec come one at a time, and when the turn of the loop has unpacked enough they wait for another
(``brokers.api.unpacking``). The outcome is that of doing it in one go: what the request has for a partition is appended
in its order, and its connection's next request begins when all of it is appended. Once begun all of it is appended,
although the client has gone (``brokers.server.dispatch``): with acks=0 a client closes its connection behind its last
request.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from fleetlog._native.batch import Admitted, BatchHeader, CorruptBatch, parse_header
from fleetlog.brokers.acls.access import TOPIC, TRANSACTIONAL_ID, WRITE, WRITE_TOPIC, WRITE_TRANSACTIONAL_ID
from fleetlog.brokers.api.base import (
    CLOSE,
    Batching,
    Context,
    DelayedResponse,
    Done,
    InSlices,
    InTask,
    Outcome,
    Paced,
    in_slices,
)
from fleetlog.brokers.api.fetch_answers import slices_of
from fleetlog.brokers.api.leaders import current_leader, endpoints_of
from fleetlog.brokers.api.rows import Cost, Row
from fleetlog.brokers.api.unpacking import ATTRIBUTES_AT, CODEC_MASK, is_compressed
from fleetlog.brokers.audit.events import EventType
from fleetlog.brokers.log import Appended, AppendInfo, Origin, Terms
from fleetlog.brokers.log.door import BadRecords, Judgement, Judging
from fleetlog.brokers.log.producers.rejected import Place
from fleetlog.brokers.metrics.topics import TopicFigures
from fleetlog.brokers.model import AUDIT_TOPIC, PROTECTED_TOPICS, TopicPartition
from fleetlog.brokers.replication.partition import Partition
from fleetlog.txn.verification import Ask, VerifiedFrom, client_error, client_message, question
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import (
    Encoded,
    NodeEndpoint,
    ProduceOutcome,
    ProducePart,
    ProduceRequest,
    ProduceRun,
    decode_produce_run,
    encode_produce_response,
    encode_produce_run,
    framed,
)
from fleetlog.wire.messages import encode_response_header
from fleetlog.wire.topic_pieces import produce_response_pieces

ALL, LEADER, NONE = -1, 1, 0
ZSTD_VERSION = 7
VERIFIED = VerifiedFrom(adding=12, abortable=11)
VERIFIED_PER_YIELD = 32
ASKED_MAX = 3
CHANGING = "the schemas of the batch are being changed"

_TRANSACTIONAL = 0x10
_NONE, _TOPIC_DENIED = ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED
"""Looked up once: an enum's metaclass takes a thousand instructions to find a member."""
_new = tuple.__new__
"""Makes a named tuple without the Python function that its own constructor is."""
_TERMS = {
    (transactional, zstd): Terms(Origin.CLIENT, transactional=transactional, zstd=zstd, whole_request=True)
    for transactional in (False, True)
    for zstd in (False, True)
}
"""Of requests of one partition each: whether they have a transactional id, and a version that knows zstd."""

BatchOutcome = Admitted | AppendInfo | ProduceOutcome


def run_of(request: ProduceRequest, context: Context) -> ProduceRun:
    """The request as a run whose answers are one: it has no ``ends``."""
    parts: list[ProducePart] = []
    batches: list[list[memoryview]] = []
    places: dict[tuple[Any, int], int] = {}
    groups: list[int] = []
    for part in request.parts:
        place = (part.topic_id or part.topic, part.partition)
        group = places.setdefault(place, len(parts))
        if group == len(parts):
            parts.append(part._replace(records=None))
            batches.append([])
        batches[group].append(memoryview(b"") if part.records is None else part.records)
        groups.append(group)
    return ProduceRun(
        context.api_version, request.acks, request.timeout_ms, request.transactional_id, parts, batches, groups,
        [context.correlation_id], [],
    )  # fmt: skip


def count(figures: TopicFigures, appended: Appended) -> None:
    """Count what of it is in the log now, and duplicates."""
    for outcome in appended[0]:
        if isinstance(outcome, Admitted):
            figures.appended((outcome,))
        elif outcome.error is ErrorCode.NONE:
            if outcome.duplicate:
                figures.duplicates += 1
            else:
                figures.appended_records(outcome.record_count, outcome.size)


class ProduceExecution:
    """The requests of one connection that are executed together, and what becomes of them.

    For each partition that they name ``partitions`` has it, if this broker leads it and clients may write to it, and
    ``outcomes`` what became of its batches. ``plain``: all that is to be answered is where the batches are.
    ``unverified`` are copies of those that wait for the verification of their transaction, by partition.
    """

    __slots__ = ("acks", "context", "outcomes", "partitions", "plain", "run", "terms", "unverified")

    def __init__(self, run: ProduceRun, context: Context, denied: ErrorCode | None = None) -> None:
        self.run = run
        self.context = context
        version, acks, _, transactional_id, parts, batches, _, _, ends = run
        self.acks = acks
        transactional, zstd = transactional_id is not None, version >= ZSTD_VERSION
        self.plain = len(ends) > 0
        if ends:
            self.terms = _TERMS[transactional, zstd]
        else:  # its partitions share what may be spent on naming bad records
            self.terms = Terms(
                Origin.CLIENT, transactional=transactional, zstd=zstd, whole_request=True, shares=True,
                unpack=context.services.config.decompressed_request_max_bytes,
            )  # fmt: skip
        self.partitions: list[Partition | None] = []
        self.outcomes: list[list[Any]] = []
        self.unverified: dict[int, list[bytes]] = {}
        services = context.services
        access = services.access
        guarded, peer = access.authorizer is not None, context.connection
        if denied is None:
            denied = denied_transaction(context, transactional_id, batches)
        for topic, topic_id, index, _ in parts:
            if topic_id is not None:
                topic = services.metadata.topic_names.get(topic_id)
            # whether a broker writes the audit topic is looked at below
            if guarded and (
                denied
                or (
                    topic
                    and topic != AUDIT_TOPIC
                    and not access.granted.get((peer.principal, peer.peer_host, WRITE, TOPIC, topic))
                    and not access.allows(context, WRITE, TOPIC, topic)
                )
            ):
                self._refuse(topic, index, batches[len(self.outcomes)], denied or _TOPIC_DENIED)
                continue
            partition = None
            if topic is not None and (topic not in PROTECTED_TOPICS or self._may_audit(topic)):
                partition = services.replicas.get((topic, index))
                if partition is not None and topic_id is not None and partition.topic_id != topic_id:
                    topic = partition = None  # it is of a deleted topic of this name
            if partition is None or not partition.is_leader or not ALL <= acks <= LEADER:
                self._refuse(topic, index, batches[len(self.outcomes)], topic_id=topic_id)
            else:
                self.partitions.append(partition)
                self.outcomes.append([])

    def _may_audit(self, topic: str) -> bool:
        """Whether it is the audit topic, and another broker writes its events."""
        return topic == AUDIT_TOPIC and self.context.writes_audit()

    def _refuse(
        self,
        topic: str | None,
        index: int,
        batches: list[memoryview],
        denied: ErrorCode = ErrorCode.NONE,
        topic_id: uuid.UUID | None = None,
    ) -> None:
        """Nothing can be appended to a partition: the client may not, it is not led here, or the topic is internal."""
        refused: list[Any] = []
        for batch in batches:
            if denied is not ErrorCode.NONE:
                refused.append(ProduceOutcome(denied))
            elif not ALL <= self.acks <= LEADER:
                refused.append(ProduceOutcome(ErrorCode.INVALID_REQUIRED_ACKS))
            elif topic is None:
                if topic_id is not None and batch:
                    self._remember((topic_id, index), batch, ErrorCode.UNKNOWN_TOPIC_ID)
                refused.append(ProduceOutcome(ErrorCode.UNKNOWN_TOPIC_ID))
            elif topic in PROTECTED_TOPICS and not self._may_audit(topic):
                message = f"{topic} is an internal topic; clients cannot write to it"
                right = self.context.refusal(WRITE, TOPIC, topic) if topic == AUDIT_TOPIC else _NONE
                refused.append(ProduceOutcome(right or ErrorCode.INVALID_TOPIC_EXCEPTION, error_message=message))
            elif not batch:
                refused.append(ProduceOutcome(ErrorCode.INVALID_RECORD, error_message="no record batch"))
            else:
                tp, services = TopicPartition(topic, index), self.context.services
                error = services.replicas.leader(tp).error
                self._remember(tp, batch, error)
                refused.append(refusal(error, tp, self.context, message=services.replicas.why_unopened(tp)))
        self.plain = False
        self.partitions.append(None)
        self.outcomes.append(refused)

    def _remember(self, place: Place, batch: memoryview, error: ErrorCode) -> None:
        """Those behind it may arrive when this broker leads the partition."""
        services = self.context.services
        services.replicas.before_leading.refused(place, batch, error, services.clock.mono_ms())

    def append(self) -> None:
        """Append what there is for each partition."""
        acks, batches, terms = self.acks, self.run.batches, self.terms
        worked = terms.work
        for group, partition in enumerate(self.partitions):
            if partition is not None:
                some = batches[group]
                outcomes, plain = appended = partition.append_batches(some, acks, terms)
                if plain and len(outcomes) == len(some):  # as below, but quicker
                    self.outcomes[group] = outcomes
                    figures = partition.figures
                    if figures is not None:
                        figures.appended(outcomes)
                else:
                    if partition.figures is not None:
                        count(partition.figures, appended)
                    self.appended(group, outcomes, plain)
        if terms.work != worked:
            self.context.services.unpacking.spend(terms.work - worked)

    def appended(self, group: int, outcomes: list[Any], plain: bool) -> None:
        """What became of a partition's batches; of fewer if the next one's transaction must be verified."""
        self.outcomes[group] = outcomes
        self.plain = self.plain and plain
        left = self.run.batches[group][len(outcomes) :]
        if left:  # a view would hold all that was received beside them
            self.unverified[group] = [bytes(batch) for batch in left]

    # ---- verification

    async def _verified(self, epochs: Sequence[int]) -> Outcome:
        """Append what is verified now, and what to say; ``epochs`` are those in which the others were appended."""
        await self._verify()
        for group, epoch in enumerate(epochs):
            self._disown(group, epoch)
        outcome = self.outcome()
        assert isinstance(outcome, (Done, DelayedResponse)), "nothing is left to be verified"
        return outcome

    def _epochs(self) -> list[int]:
        """The leader epochs in which this broker leads the partitions now."""
        return [-1 if partition is None else partition.leader_epoch for partition in self.partitions]

    def _disown(self, group: int, epoch: int) -> None:
        """Time has passed since the append in that leader epoch: what another leader may have cut is not promised."""
        partition = self.partitions[group]
        if partition is not None and not (partition.is_leader and partition.leader_epoch == epoch):
            lost = refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, partition.tp, self.context)
            self.outcomes[group] = [lost] * len(self.outcomes[group])
            self.partitions[group], self.plain = None, False

    async def _verify(self) -> None:
        """Ask what must be known before the batches that are left are appended, then append them.

        That is the transaction coordinator, of the partitions that do not know the transaction yet, and the process
        that checks payloads.
        """
        unverified = self.unverified
        guards: dict[int, dict[int, Any]] = {group: {} for group in unverified}
        refused: dict[tuple[int, int, int], tuple[ErrorCode, str | None]] = {}
        if self.run.transactional_id is not None:
            await self._admit(guards, refused)
        late, unpacking = 0, self.context.services.unpacking
        for group, batches in unverified.items():
            partition = self._led(group)
            terms = Terms(
                Origin.CLIENT, transactional=self.terms.transactional, zstd=self.terms.zstd, whole_request=True,
                guards=guards[group], explain=self.terms.explain, shares=self.terms.shares,
                unpack=self.terms.unpack - self.terms.unpacked, judging=Judging(),
            )  # fmt: skip
            appended_so_far = list(self.outcomes[group])
            for batch in batches:
                late += 1
                if late % VERIFIED_PER_YIELD == 0:
                    await asyncio.sleep(0)
                while unpacking.exhausted:
                    await asyncio.sleep(0)
                header = _header(batch)
                why = header and refused.get((group, header.producer_id, header.producer_epoch))
                if header and why and header.is_transactional:
                    error, message = why
                    appended_so_far.append(ProduceOutcome(partition.order.answer(header, error), error_message=message))
                    continue
                outcomes, plain = appended = await self._append_judged(partition, batch, terms)
                if partition.figures is not None:
                    count(partition.figures, appended)
                appended_so_far += outcomes
                self.plain = self.plain and plain
            self.terms.unpacked += terms.unpacked
            self.plain = self.plain and not refused
            self.outcomes[group] = appended_so_far
        self.unverified = {}

    async def _append_judged(self, partition: Partition, batch: bytes, terms: Terms) -> Appended:
        """Append a batch, once the process that checks payloads was asked, and dead letters are written, if need be."""
        schemas, worked, times = partition.log.settings.schemas, terms.work, 0
        terms.judging = judging = Judging()
        while not (appended := partition.append_batches([bytearray(batch)], self.acks, terms))[0]:
            times += 1
            if judging.letters is not None:
                await self._bury(partition, judging, terms, judging.letters, times)
                continue
            assert schemas is not None, "the topic has a door"
            assert schemas.judge is not None, "else nothing is to be asked"
            assert judging.question is not None, "else its transaction would have been verified"
            judging.verdict = await schemas.judge(judging.question) if times <= ASKED_MAX else Judgement(why=CHANGING)
        if terms.work != worked:
            self.context.services.unpacking.spend(terms.work - worked)
        return appended

    async def _bury(self, partition: Partition, judging: Judging, terms: Terms, bad: BadRecords, times: int) -> None:
        """Have the dead letters of bad records written, or say why not."""
        letters, name, header = self.context.services.schema_letters, self.run.transactional_id, bad.header
        asked = None
        if name is not None:
            asked = question(VERIFIED, self.context.api_version, name, (header.producer_id, header.producer_epoch), ())
        judging.letters = None
        if times > ASKED_MAX:
            judging.unburied = ErrorCode.NOT_ENOUGH_REPLICAS, CHANGING
            return
        assert letters is not None, "it was built"
        error, message = await letters.bury(partition, bad, asked, (terms.guards or {}).get(header.producer_id))
        if error is _NONE:
            judging.buried |= bad.whys.keys()
        else:
            judging.unburied = error, message or error.name

    async def _admit(
        self, guards: dict[int, dict[int, Any]], refused: dict[tuple[int, int, int], tuple[ErrorCode, str | None]]
    ) -> None:
        """Verify the transactions of what is left: a group's guards by producer, or why it is not appended."""
        from fleetlog.brokers.coordinators.transactions import verification

        context, run = self.context, self.run
        assert run.transactional_id is not None, "else no transaction is verified"
        for producer, groups in self._producers(self.unverified).items():
            asked = question(VERIFIED, context.api_version, run.transactional_id, producer, ())
            admitted = await verification.admit(
                context.services.transactions.verifier.ask,
                context.services.clock,
                run.transactional_id,
                producer,
                self._first(groups),
                add=asked.ask is Ask.ADD,
            )
            for group in groups:
                error, guard = admitted[self._led(group).tp]
                if error is ErrorCode.NONE:
                    guards[group][producer[0]] = guard
                else:
                    refused[group, *producer] = client_error(asked, error), client_message(asked, error)

    def _led(self, group: int) -> Partition:
        partition = self.partitions[group]
        assert partition is not None, "it has batches that may be appended"
        return partition

    def _producers(self, unverified: dict[int, list[bytes]]) -> dict[tuple[int, int], dict[int, int]]:
        """The producers (id, epoch) whose transactions are verified, with their first sequence in each partition."""
        producers_seen: dict[tuple[int, int], dict[int, int]] = {}
        for group, batches in unverified.items():
            producers = self._led(group).log.producers
            for batch in batches:
                header = _header(batch)
                if header is None or not header.is_transactional:
                    continue
                producer = header.producer_id, header.producer_epoch
                if producers.needs_verification(*producer):
                    producers_seen.setdefault(producer, {}).setdefault(group, header.base_sequence)
        return producers_seen

    def _first(self, groups: dict[int, int]) -> dict[TopicPartition, tuple[Any, int]]:
        """The producers and the first sequence of each partition, which may have several groups."""
        firsts: dict[TopicPartition, tuple[Any, int]] = {}
        for group, first in groups.items():
            partition = self._led(group)
            firsts.setdefault(partition.tp, (partition.log.producers, first))
        return firsts

    # ---- waiting

    def outcome(self) -> Outcome:
        """The answers; with acks=all once all is committed, or the in-sync set has become too small for that."""
        if self.unverified:
            self.run = self.run._replace(batches=[])  # a request that waits keeps no view of what was received
            return InTask(self._verified(self._epochs()))
        acks, plain = self.acks, self.plain
        waits: list[tuple[int, Partition, int]] = []
        for group, partition in enumerate(self.partitions):
            if partition is not None:
                of_group = self.outcomes[group]
                # of a refused batch it is -1, of a duplicate not the last
                last_offset = of_group[-1][1] if plain else max([last_offset_of(one) for one in of_group])
                if partition.must_wait(acks, last_offset):
                    waits.append((group, partition, last_offset))
        if not waits:
            return _new(Done, (self._response({}),))
        return self._wait(waits)

    def _wait(self, waits: list[tuple[int, Partition, int]]) -> DelayedResponse:
        delayed, committed = self.waiting({group for group, _, _ in waits})
        for group, partition, last_offset in waits:
            partition.wait_for(last_offset, functools.partial(committed, group), gives_up=True)
        return delayed

    def waiting(self, missing: set[int]) -> tuple[DelayedResponse, Callable[[int, ErrorCode], None]]:
        """What waits for those groups, and what to call for each of them."""
        self.run = self.run._replace(batches=[])  # a request that waits keeps no view of what was received
        errors: dict[int, ErrorCode] = {}

        def expired() -> Any:
            return self._response(errors | dict.fromkeys(missing, ErrorCode.REQUEST_TIMED_OUT))

        delayed = DelayedResponse(max(0, self.run.timeout_ms), expired)
        delayed.serial = False  # it has appended: the next request need not wait for the replicas

        def committed(group: int, error: ErrorCode) -> None:
            missing.discard(group)
            if error is not ErrorCode.NONE:  # what of it is committed is known now: later another may lead
                self.outcomes[group] = [self.answer_of(group, one, error) for one in self.outcomes[group]]
                errors[group] = error
            if not missing and not delayed.done:
                delayed.complete(self._response(errors))

        return delayed, committed

    # ---- answers

    def _response(self, errors: dict[int, ErrorCode]) -> Any:
        """All answers. In a partition with an error, what is not committed gets that."""
        run = self.run
        if self.plain and not errors:
            starts = []
            for partition in self.partitions:
                assert partition is not None, "each has batches in its log"
                starts.append(partition.log.log_start_offset)
            return [encode_produce_run(run, starts, self.outcomes)]
        turns = [iter(of_group) for of_group in self.outcomes]
        outcomes = [self.answer_of(group, next(turns[group]), errors.get(group)) for group in run.groups]
        self._count_errors(run.groups, outcomes)
        parts = [(run.parts[group], outcome) for group, outcome in zip(run.groups, outcomes, strict=True)]
        if not run.ends:
            return self.one_response(parts)
        frames: list[bytes] = []
        for one, correlation_id in zip(parts, run.correlation_ids, strict=True):
            body = encode_produce_response(run.version, [one], endpoints=self._endpoints([one]))
            frames += framed(encode_response_header(api_keys.PRODUCE, run.version, correlation_id), [body])
        return [b"".join(frames)]

    def _count_errors(self, groups: Sequence[int], outcomes: Sequence[ProduceOutcome]) -> None:
        services, run = self.context.services, self.run
        for group, outcome in zip(groups, outcomes, strict=True):
            if outcome.error is not _NONE:
                services.metrics.failed("Produce", outcome.error)
                partition = self.partitions[group]
                figures = None if partition is None else partition.figures
                if figures is None and services.replicas.topic_figures is not None:
                    figures = services.replicas.topic_figures.known(run.parts[group].topic)
                if figures is not None:
                    figures.failed_produces += 1
                    figures.damaged += outcome.error is ErrorCode.CORRUPT_MESSAGE

    def one_response(self, parts: list[tuple[ProducePart, ProduceOutcome]]) -> Any:
        """The answer to a request of several partitions."""
        if self.acks == NONE:
            # without an answer, a closed connection is what makes the producer look for the leader again
            return None if all(outcome.error == ErrorCode.NONE for _, outcome in parts) else CLOSE
        return Encoded([encode_produce_response(self.run.version, parts, endpoints=self._endpoints(parts))])

    def _endpoints(self, parts: list[tuple[ProducePart, ProduceOutcome]]) -> list[NodeEndpoint]:
        if all(outcome.current_leader is None for _, outcome in parts):
            return []
        return endpoints_of(self.context, [outcome.current_leader for _, outcome in parts])

    def committed_to(self, group: int, partition: Partition) -> int:
        """The end of what is committed of the group's partition."""
        return partition.log.high_watermark

    def answer_of(self, group: int, outcome: BatchOutcome, error: ErrorCode | None) -> ProduceOutcome:
        """What to say of a batch, in whose partition that error is met by all that is not committed."""
        if isinstance(outcome, ProduceOutcome):
            return outcome
        partition = self._led(group)
        info = partition.log.appender.info(outcome)
        if info.error is not ErrorCode.NONE:
            refused = refusal(info.error, partition.tp, self.context, info.record_errors, info.error_message)
            if info.error is ErrorCode.UNKNOWN_PRODUCER_ID:
                # without a log start the Java client before 4.0 tries for ever
                return refused._replace(log_start_offset=info.log_start_offset)
            return refused
        appended = ProduceOutcome(
            ErrorCode.NONE, info.first_offset, info.log_append_time_ms, info.log_start_offset
        )  # fmt: skip
        if error is None or info.last_offset < self.committed_to(group, partition):
            return appended
        if error is ErrorCode.REQUEST_TIMED_OUT:
            return appended._replace(error=error)
        return refusal(error, partition.tp, self.context)


def execute_produce(runs: Sequence[ProduceRun], contexts: Sequence[Context]) -> list[Outcome]:
    """Execute the requests of connections, a run of each: what they have for a partition by one append.

    The outcome is that of one connection after the other, and of each one's requests in order, but that the disk takes
    all or none of what needs no closer look.
    """
    if len(runs) == 1:
        work = ProduceExecution(runs[0], contexts[0])
        work.append()
        return [work.outcome()]
    works = [ProduceExecution(run, context) for run, context in zip(runs, contexts, strict=True)]
    _append_together(works)
    return [work.outcome() for work in works]


def _append_together(works: list[ProduceExecution]) -> None:
    """Append what several connections have for a partition in one call, if their requests are alike."""
    together: dict[tuple[Partition, int, Terms], list[tuple[ProduceExecution, int]]] = {}
    for work in works:
        acks, terms = work.acks, work.terms
        for group, partition in enumerate(work.partitions):
            if partition is not None:
                together.setdefault((partition, acks, terms), []).append((work, group))
    for (partition, acks, terms), members in together.items():
        batches = [batch for work, group in members for batch in work.run.batches[group]]
        outcomes, plain = appended = partition.append_batches(batches, acks, terms)
        if partition.figures is not None:
            if plain:
                partition.figures.appended(outcomes)
            else:
                count(partition.figures, appended)
        begin = 0
        for work, group in members:
            end = begin + len(work.run.batches[group])
            work.appended(group, outcomes[begin:end], plain)
            begin = end


def denied_transaction(
    context: Context, transactional_id: str | None, groups: Iterable[Sequence[bytes | memoryview]]
) -> ErrorCode:
    """Why nothing of a request with transactional batches is appended; NONE without such batches.

    Without a transactional id an append refuses batches that are transactional.
    """
    if transactional_id is None or context.services.access.authorizer is None or not _say_transactional(groups):
        return _NONE
    return context.refusal(WRITE, TRANSACTIONAL_ID, transactional_id)


def _say_transactional(groups: Iterable[Sequence[bytes | memoryview]]) -> bool:
    """Whether one of the batches says so in its header; an append refuses what is no batch, whatever it says."""
    for batches in groups:
        for batch in batches:
            if len(batch) > ATTRIBUTES_AT and batch[ATTRIBUTES_AT] & _TRANSACTIONAL:
                return True
    return False


def _header(batch: bytes | memoryview) -> BatchHeader | None:
    try:
        return parse_header(batch)
    except CorruptBatch:
        return None


def last_offset_of(outcome: BatchOutcome) -> int:
    """Of a batch that is in the log, else -1."""
    if isinstance(outcome, ProduceOutcome):
        return -1
    return outcome.last_offset


def refusal(
    error: ErrorCode,
    tp: TopicPartition,
    context: Context,
    record_errors: Any = (),
    message: str | None = None,
) -> ProduceOutcome:
    """The answer for a partition whose batch was not taken; it names the leader if another broker leads."""
    leader = current_leader(context, tp) if error is ErrorCode.NOT_LEADER_OR_FOLLOWER else None
    return ProduceOutcome(error, record_errors=record_errors, error_message=message, current_leader=leader)


LONG_PARTS = 256
"""A Produce to more partitions is executed in slices: some milliseconds of work."""

Answers = list[tuple[ProducePart, ProduceOutcome]]


@in_slices
def produce_in_slices(request: ProduceRequest, context: Context) -> Paced:
    """As :func:`handle_produce`, with pauses."""
    work = _SlicedExecution(run_of(request._replace(parts=[]), context), context)
    yield from work.append_in_slices(request, whole=len(request.parts) <= LONG_PARTS)
    return (yield from work.outcome_in_slices())


def _slices(parts: Sequence[ProducePart]) -> Iterator[Sequence[ProducePart]]:
    """Some dozens of parts at a time, those with a codec by themselves."""
    first = 0
    for at, part in enumerate(parts):
        if is_compressed(part.records):
            yield from slices_of(parts[first:at])
            yield parts[at : at + 1]
            first = at + 1
    yield from slices_of(parts[first:])


class _SlicedExecution(ProduceExecution):
    """The work of all slices. A partition that is named in several of them has a group in each."""

    __slots__ = ("_committed_to", "epochs")

    def append_in_slices(self, request: ProduceRequest, *, whole: bool) -> Generator[Any, None, None]:
        """Append what there is; what is behind a batch of its partition that must be verified is left, too.

        ``whole``: without a pause, as long as the turn has something left to be unpacked.
        """
        stopped: set[Partition | None] = set()
        batches = ((part.records,) for part in request.parts if part.records is not None)
        denied = denied_transaction(self.context, request.transactional_id, batches)
        self.epochs: list[int] = []
        self._committed_to: dict[int, int] = {}
        for parts in _slices(request.parts):
            if not whole:
                yield
            if is_compressed(parts[0].records):
                yield from self.context.services.unpacking.share()
            work = ProduceExecution(run_of(request._replace(parts=list(parts)), self.context), self.context, denied)
            work.terms = self.terms
            behind = [group for group, partition in enumerate(work.partitions) if partition in stopped]
            held = {group: work.partitions[group] for group in behind}
            for group in behind:
                work.partitions[group] = None
            work.append()
            for group, partition in held.items():
                work.partitions[group] = partition
                work.appended(group, [], False)
            first = len(self.partitions)
            self.run.parts.extend(work.run.parts)
            self.run.groups.extend(first + group for group in work.run.groups)
            self.partitions += work.partitions
            self.outcomes += work.outcomes
            self.epochs += work._epochs()
            for group, left in work.unverified.items():
                self.unverified[first + group] = left
                stopped.add(self._led(first + group))

    def outcome_in_slices(self) -> Paced:
        """What to answer; with acks=all once all is committed, or the in-sync set has become too small for that."""
        if self.unverified:
            return InTask(self._verified_in_slices())
        acks = self.run.acks
        if acks == NONE:
            return Done(self.one_response((yield from self._answers({}))))
        waits: list[tuple[int, Partition, int]] = []
        for groups in slices_of(range(len(self.partitions))):
            yield
            for group in groups:
                self._disown(group, self.epochs[group])
                partition = self.partitions[group]
                if partition is not None:
                    last_offset = max(map(last_offset_of, self.outcomes[group]))
                    if partition.must_wait(acks, last_offset):
                        waits.append((group, partition, last_offset))
        if not waits:
            return Done(self._response({}))
        delayed, committed = self.waiting({group for group, _, _ in waits})
        for some in slices_of(waits):
            yield
            for group, partition, last_offset in some:
                self._disown(group, self.epochs[group])
                if self.partitions[group] is None:
                    committed(group, ErrorCode.NONE)  # its outcome says that it is not
                else:
                    partition.wait_for(last_offset, functools.partial(committed, group), gives_up=True)
        return delayed

    async def _verified_in_slices(self) -> Outcome:
        await self._verify()
        return InSlices(self.outcome_in_slices())

    def committed_to(self, group: int, partition: Partition) -> int:
        return self._committed_to.get(group, partition.log.high_watermark)

    def _response(self, errors: dict[int, ErrorCode]) -> InSlices:
        """All answers, made and encoded in slices; what is committed is decided now: later another may lead."""
        for group in errors:
            partition = self.partitions[group]
            if partition is not None:
                self._committed_to[group] = partition.log.high_watermark
        return InSlices(self._encoded(errors))

    def _encoded(self, errors: dict[int, ErrorCode]) -> Generator[None, None, Encoded]:
        answers = yield from self._answers(errors)
        leaders = dict.fromkeys(outcome.current_leader for _, outcome in answers)
        endpoints = endpoints_of(self.context, leaders)
        return Encoded((yield from produce_response_pieces(self.run.version, answers, endpoints)))

    def _answers(self, errors: dict[int, ErrorCode]) -> Generator[None, None, Answers]:
        turns = [iter(of_group) for of_group in self.outcomes]
        answers: Answers = []
        for groups in slices_of(self.run.groups):
            yield
            outcomes = [self.answer_of(group, next(turns[group]), errors.get(group)) for group in groups]
            self._count_errors(groups, outcomes)
            answers += zip((self.run.parts[group] for group in groups), outcomes, strict=True)
        return answers


def handle_produce(request: ProduceRequest, context: Context) -> Outcome:
    """Append what can be appended; delayed while acks=all waits for the in-sync replicas."""
    parts = request.parts
    if len(parts) > LONG_PARTS or (
        (len(parts) > 1 or context.services.unpacking.exhausted) and any(is_compressed(part.records) for part in parts)
    ):
        return produce_in_slices(request, context)
    (outcome,) = execute_produce([run_of(request, context)], [context])
    return outcome


def _is_compressed(run: ProduceRun) -> bool:
    """One with a codec is a run of one request. As :func:`is_compressed`, but asked of every run of several."""
    if len(run[8]) > 1:
        return False
    records = run[5][0][0]
    return len(records) > ATTRIBUTES_AT and records[ATTRIBUTES_AT] & CODEC_MASK != 0


BATCHING = Batching(decode_produce_run, execute_produce, attrgetter("transactional_id"), _is_compressed)
"""How the server executes Produce requests that come together."""


# the id only for transactional batches
Row(api_keys.PRODUCE, (WRITE_TRANSACTIONAL_ID, WRITE_TOPIC), EventType.PRODUCE, batching=BATCHING, cost=Cost.DATA)(
    handle_produce
)
