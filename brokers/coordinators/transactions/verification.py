"""Verification of transactions (KIP-890): a leader asks the coordinator whether a partition is in the producer's open
transaction.

The rules are in ``txn.verification``; the log's guard limits an answer to one attempt. Questions to one coordinator
that arrive while a request is in flight share the next request. A request contains a transactional id at most once, so
that answers are unambiguous and batches of one producer stay in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import fleetlog.wire.messages as m
from fleetlog.brokers.model import TRANSACTION_STATE_TOPIC, Clock
from fleetlog.txn.commands import CommandFailed, Now, Result, Ticket
from fleetlog.txn.coordinator import AddPartitionsAnswer, Producer, TransactionShard, VerifyAnswer
from fleetlog.txn.verification import Ask, Question
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
    from fleetlog.brokers.log import ProducerState
    from fleetlog.brokers.metadata.cache import MetadataCache
    from fleetlog.brokers.peers.calls import PeersPort

logger = logging.getLogger(__name__)

ADD_PARTITIONS_TO_TXN, BATCHED_VERSION = 24, 5
CALL_TIMEOUT_MS = 10_000
MAX_QUESTIONS_PER_REQUEST = 500
MAX_WAITING = 20_000
PATIENCE_MS = 100
FIRST_PAUSE_MS = 1

Errors = dict[TopicPartition, ErrorCode]


class Admission(NamedTuple):
    """Whether a producer may append to a partition now; ``guard`` goes with the append."""

    error: ErrorCode
    guard: object | None = None


async def admit(
    ask: Callable[[Question], Awaitable[Errors]],
    clock: Clock,
    transactional_id: str,
    producer: tuple[int, int],
    places: Mapping[TopicPartition, tuple[ProducerState, int]],
    *,
    add: bool,
) -> dict[TopicPartition, Admission]:
    """Guards and the coordinator's answers for (producer id, epoch) on partitions that this broker leads.

    ``ask`` is :meth:`Verifier.ask`; ``add`` adds the partitions to the transaction. ``places`` has each partition's
    producer state and the sequence to be appended. While the previous end is being
    written, or if its marker invalidates a guard, both are requested again, for up to PATIENCE_MS: a producer's own
    backoff is far longer. Use the guards in the same step of the loop.

    The retries are for transactions version 2 (``add``), where each transaction has its own epoch. Before it, a batch
    that arrives during the end of a transaction belongs to that one, and must not be verified against the next one: the
    producer sends it again if it still needs to.
    """
    admitted: dict[TopicPartition, Admission] = {}
    until_ms = clock.mono_ms() + (PATIENCE_MS if add else 0)
    pause_ms = FIRST_PAUSE_MS
    left = dict(places)
    while left:
        guards = {tp: state.verification_guard(*producer, sequence) for tp, (state, sequence) in left.items()}
        asked = tuple(sorted(tp for tp, guard in guards.items() if guard is not None))
        question = Question(transactional_id, *producer, asked, Ask.ADD if add else Ask.VERIFY, abortable=True)
        errors = await ask(question) if asked else {}
        last = clock.mono_ms() + pause_ms > until_ms
        for tp, (state, sequence) in list(left.items()):
            error, guard = errors.get(tp, ErrorCode.NONE), guards[tp]
            # A fresh guard: if the transaction was ongoing already, the log then requires that it still is.
            admission = Admission(error, object() if guard is None else guard)
            stale = error is ErrorCode.NONE and state.verification_guard(*producer, sequence) is not guard
            if last and stale:  # the log would reject it with a fatal error, but it is only too early
                admission = Admission(ErrorCode.CONCURRENT_TRANSACTIONS)
            if last or not (stale or error is ErrorCode.CONCURRENT_TRANSACTIONS):
                admitted[tp] = admission
                del left[tp]
        if left:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms *= 2
    return admitted


class _Waiting:
    __slots__ = ("future", "question")

    def __init__(self, question: Question, future: asyncio.Future[Errors]) -> None:
        self.question = question
        self.future = future


class Verifier:
    """Asks coordinators, this broker's own included. Loop thread only."""

    def __init__(
        self, broker_id: int, metadata: MetadataCache, peers: PeersPort, runtime: CoordinatorRuntime[TransactionShard]
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._peers = peers
        self._runtime = runtime
        self._waiting: dict[int, list[_Waiting]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def ask(self, question: Question) -> Errors:
        """The coordinator's answer for each partition of the question."""
        partition = TopicPartition(TRANSACTION_STATE_TOPIC, self._runtime.partition_for(question.transactional_id))
        state = self._metadata.partition(partition)
        if state is None or state.leader not in self._metadata.brokers:
            return _all(question, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        future: asyncio.Future[Errors] = asyncio.get_running_loop().create_future()
        if state.leader == self._broker_id:
            self._ask_here(question, future)
        else:
            self._ask_there(state.leader, question, future)
        return await future

    async def close(self) -> None:
        """Cancel all requests; open questions get COORDINATOR_NOT_AVAILABLE."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for waiting in self._waiting.values():
            _answer_all(waiting, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._waiting.clear()

    def _ask_here(self, question: Question, future: asyncio.Future[Errors]) -> None:
        pending = self._runtime.submit(question.transactional_id, command_for(question))

        def done(response: Any) -> None:
            if not future.done():
                future.set_result(errors_of(question, response))

        pending.on_done(done)

    def _ask_there(self, broker: int, question: Question, future: asyncio.Future[Errors]) -> None:
        waiting = self._waiting.setdefault(broker, [])
        if len(waiting) >= MAX_WAITING:
            future.set_result(_all(question, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        waiting.append(_Waiting(question, future))
        if broker not in self._tasks:
            self._tasks[broker] = asyncio.get_running_loop().create_task(
                self._drain(broker), name=f"verification at {broker}"
            )

    async def _drain(self, broker: int) -> None:
        try:
            await self._send_all(broker)
        finally:
            # In the same step that found the queue empty, otherwise a new question would have no task.
            del self._tasks[broker]

    async def _send_all(self, broker: int) -> None:
        while self._waiting.get(broker):
            batch, rest = _split(self._waiting[broker])
            self._waiting[broker] = rest
            try:
                message = encode_questions([entry.question for entry in batch])
                response = await self._peers.call(
                    broker, ADD_PARTITIONS_TO_TXN, BATCHED_VERSION, message, CALL_TIMEOUT_MS
                )
                answers = decode_verdicts(response)
                silence = ErrorCode(response.error_code) or ErrorCode.COORDINATOR_NOT_AVAILABLE
            except asyncio.CancelledError:
                _answer_all(batch, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                raise
            except Exception as error:
                logger.info("verifying transactions at broker %d failed: %s", broker, error)
                _answer_all(batch, ErrorCode.NETWORK_EXCEPTION)
                continue
            for entry in batch:
                if not entry.future.done():
                    errors = answers.get(entry.question.transactional_id, {})
                    entry.future.set_result({tp: errors.get(tp, silence) for tp in entry.question.partitions})
        self._waiting.pop(broker, None)


def command_for(question: Question) -> Callable[[TransactionShard, Now, Ticket], Result]:
    """The question as a command of the coordinator's shard."""
    producer = Producer(question.producer_id, question.producer_epoch)

    def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
        if question.ask is Ask.VERIFY:
            return shard.verify_partitions(question.transactional_id, producer, question.partitions)
        return shard.add_partitions(question.transactional_id, producer, question.partitions, 2, now)

    return command


def errors_of(question: Question, response: Any) -> Errors:
    """The shard's response as one error for each partition."""
    match response:
        case VerifyAnswer(errors):
            return dict(errors)
        case AddPartitionsAnswer(error) | CommandFailed(error):
            return _all(question, error)
    raise AssertionError(f"no answer to a verification: {response!r}")


def _all(question: Question, error: ErrorCode) -> Errors:
    return dict.fromkeys(question.partitions, error)


def _answer_all(waiting: Sequence[_Waiting], error: ErrorCode) -> None:
    for entry in waiting:
        if not entry.future.done():
            entry.future.set_result(_all(entry.question, error))


def _split(waiting: Sequence[_Waiting]) -> tuple[list[_Waiting], list[_Waiting]]:
    """The next request's questions, each transactional id once, and the rest, both in order."""
    batch: list[_Waiting] = []
    rest: list[_Waiting] = []
    seen: set[str] = set()
    for entry in waiting:
        name = entry.question.transactional_id
        if name in seen or len(batch) >= MAX_QUESTIONS_PER_REQUEST:
            rest.append(entry)
        else:
            batch.append(entry)
        seen.add(name)
    return batch, rest


def encode_questions(questions: Sequence[Question]) -> Any:
    """A batched AddPartitionsToTxn request."""
    kind = m.request_class(ADD_PARTITIONS_TO_TXN)
    version = BATCHED_VERSION
    transactions = []
    for question in questions:
        topics: dict[str, list[int]] = {}
        for topic, index in question.partitions:
            topics.setdefault(topic, []).append(index)
        transactions.append(
            kind.AddPartitionsToTxnTransaction(
                version=version,
                transactional_id=question.transactional_id,
                producer_id=question.producer_id,
                producer_epoch=question.producer_epoch,
                verify_only=question.ask is Ask.VERIFY,
                topics=[
                    kind.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                    for name, indexes in topics.items()
                ],
            )
        )
    return kind(version=version, transactions=transactions)


def decode_verdicts(response: Any) -> dict[str, Errors]:
    """Errors by transactional id and partition; an error of the whole response applies to each partition."""
    whole = ErrorCode(response.error_code)
    answers: dict[str, Errors] = {}
    for result in response.results_by_transaction:
        errors = answers.setdefault(result.transactional_id, {})
        for topic in result.topic_results:
            for verdict in topic.results_by_partition:
                error = ErrorCode(verdict.partition_error_code)
                errors[TopicPartition(topic.name, verdict.partition_index)] = whole or error
    return answers
