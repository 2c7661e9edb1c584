"""A leader's questions to transaction coordinators: is this partition in the producer's open transaction? (KIP-890)

The rules are in ``txn.verification``; the guard that makes an answer count for one attempt only belongs to the log.
Questions to the same coordinator that come up while one request is under way share the next one. A transactional id
stands in a request at most once, so that answers can't be mistaken and batches of one producer stay in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import wire.messages as m
from brokers.model import TRANSACTION_STATE_TOPIC
from txn.commands import Failed, Now, Result, Ticket
from txn.coordinator import AddPartitionsAnswer, Producer, TransactionShard, VerifyAnswer
from txn.verification import Ask, Question
from wire.errors import ErrorCode
from wire.types import TopicPartition

if TYPE_CHECKING:
    from brokers.api.base import Services
    from brokers.cluster.peers import PeersPort
    from brokers.cluster.view import ClusterView
    from brokers.coordinators.runtime import CoordinatorRuntime

log = logging.getLogger(__name__)

ADD_PARTITIONS_TO_TXN, BATCHED_VERSION = 24, 5
CALL_TIMEOUT_MS = 10_000
MAX_QUESTIONS_PER_REQUEST = 500
MAX_WAITING = 20_000
PATIENCE_MS = 100
FIRST_PAUSE_MS = 1

Errors = dict[TopicPartition, ErrorCode]


async def verify(
    services: Services,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[TopicPartition],
    *,
    add: bool,
) -> Errors:
    """Ask the id's coordinator about these partitions; ``add`` makes them part of the transaction.

    Answers one error code for each partition: NONE, or Kafka's for AddPartitionsToTxn; never raises.
    """
    from brokers.coordinators.transactions import TransactionCoordinator

    coordinator = services.transactions
    assert isinstance(coordinator, TransactionCoordinator)
    question = Question(
        transactional_id,
        producer_id,
        producer_epoch,
        tuple(sorted(set(partitions))),
        Ask.ADD if add else Ask.VERIFY,
        abortable=True,
    )
    return await coordinator.verifier.ask(question)


class Admission(NamedTuple):
    """Whether a producer may append to a partition now; ``guard`` goes with the append."""

    error: ErrorCode
    guard: object | None = None


async def admit(
    services: Services,
    transactional_id: str,
    producer: tuple[int, int],
    places: Mapping[TopicPartition, tuple[ProducersPort, int]],
    *,
    add: bool,
) -> dict[TopicPartition, Admission]:
    """Guards and the coordinator's word for (producer id, epoch) on partitions led here.

    ``places`` gives each partition's producer state and the sequence about to be appended. While the previous end is
    being written, or when its marker takes a guard's worth away, both are asked for again, for a moment: a producer
    that is told to come again waits far longer. Use the guards in the same step of the loop.
    """
    admitted: dict[TopicPartition, Admission] = {}
    until_ms = services.clock.mono_ms() + PATIENCE_MS
    pause_ms = FIRST_PAUSE_MS
    left = dict(places)
    while left:
        guards = {tp: state.verification_guard(*producer, sequence) for tp, (state, sequence) in left.items()}
        asked = [tp for tp, guard in guards.items() if guard is not None]
        errors = await verify(services, transactional_id, *producer, asked, add=add) if asked else {}
        last = services.clock.mono_ms() + pause_ms > until_ms
        for tp, (state, sequence) in list(left.items()):
            error, guard = errors.get(tp, ErrorCode.NONE), guards[tp]
            # Nobody's guard: where the transaction was ongoing already, the log shall insist that it still is.
            admission = Admission(error, object() if guard is None else guard)
            stale = error is ErrorCode.NONE and state.verification_guard(*producer, sequence) is not guard
            if last or not (stale or error is ErrorCode.CONCURRENT_TRANSACTIONS):
                admitted[tp] = admission
                del left[tp]
        if left:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms *= 2
    return admitted


class ProducersPort(Protocol):
    """The part of ``brokers.log`` ProducerState that gives out guards."""

    def verification_guard(self, producer_id: int, producer_epoch: int, base_sequence: int) -> object | None:
        """A guard to hold while the coordinator is asked; None if the transaction is ongoing there already."""
        ...


class _Waiting:
    __slots__ = ("future", "question")

    def __init__(self, question: Question, future: asyncio.Future[Errors]) -> None:
        self.question = question
        self.future = future


class Verifier:
    """Asks coordinators, this broker's own included. Loop thread only."""

    def __init__(self, broker_id: int, view: ClusterView, peers: PeersPort, runtime: CoordinatorRuntime) -> None:
        self._broker_id = broker_id
        self._view = view
        self._peers = peers
        self._runtime = runtime
        self._waiting: dict[int, list[_Waiting]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def ask(self, question: Question) -> Errors:
        """The coordinator's word on each partition of the question."""
        partition = TopicPartition(TRANSACTION_STATE_TOPIC, self._runtime.partition_for(question.transactional_id))
        state = self._view.partition(partition)
        if state is None or state.leader not in self._view.brokers:
            return _all(question, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        future: asyncio.Future[Errors] = asyncio.get_running_loop().create_future()
        if state.leader == self._broker_id:
            self._ask_here(question, future)
        else:
            self._ask_there(state.leader, question, future)
        return await future

    async def close(self) -> None:
        """Stop asking; open questions end as COORDINATOR_NOT_AVAILABLE."""
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
            # In the same step that saw the line empty, or a question asked right now would wait for nobody.
            del self._tasks[broker]

    async def _send_all(self, broker: int) -> None:
        while self._waiting.get(broker):
            batch, rest = _split(self._waiting[broker])
            self._waiting[broker] = rest
            try:
                message = encode([entry.question for entry in batch])
                response = await self._peers.call(
                    broker, ADD_PARTITIONS_TO_TXN, BATCHED_VERSION, message, CALL_TIMEOUT_MS
                )
                answers = decode(response)
                silence = ErrorCode(response.error_code) or ErrorCode.COORDINATOR_NOT_AVAILABLE
            except asyncio.CancelledError:
                _answer_all(batch, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                raise
            except Exception as error:
                log.info("verification at broker %d: %s", broker, error)
                _answer_all(batch, ErrorCode.NETWORK_EXCEPTION)
                continue
            for entry in batch:
                if not entry.future.done():
                    told = answers.get(entry.question.transactional_id, {})
                    entry.future.set_result({tp: told.get(tp, silence) for tp in entry.question.partitions})
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
        case AddPartitionsAnswer(error) | Failed(error):
            return _all(question, error)
    raise AssertionError(f"no answer to a verification: {response!r}")


def _all(question: Question, error: ErrorCode) -> Errors:
    return dict.fromkeys(question.partitions, error)


def _answer_all(waiting: Sequence[_Waiting], error: ErrorCode) -> None:
    for entry in waiting:
        if not entry.future.done():
            entry.future.set_result(_all(entry.question, error))


def _split(waiting: Sequence[_Waiting]) -> tuple[list[_Waiting], list[_Waiting]]:
    """The next request's questions and the rest, both in order; each transactional id once."""
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


def encode(questions: Sequence[Question]) -> Any:
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


def decode(response: Any) -> dict[str, Errors]:
    """Errors by transactional id and partition; an error of the whole request is each partition's."""
    whole = ErrorCode(response.error_code)
    answers: dict[str, Errors] = {}
    for result in response.results_by_transaction:
        errors = answers.setdefault(result.transactional_id, {})
        for topic in result.topic_results:
            for found in topic.results_by_partition:
                error = ErrorCode(found.partition_error_code)
                errors[TopicPartition(topic.name, found.partition_index)] = whole or error
    return answers
