"""The transaction coordinator around the pure shard: markers out and in, verification, patience."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.coordinators.shard_host import TransactionMarker
from fleetlog.brokers.coordinators.transactions import coordinator, verification
from fleetlog.brokers.coordinators.transactions.coordinator import MarkerSender
from fleetlog.brokers.coordinators.transactions.verification import Verifier
from fleetlog.brokers.log import ProducerState
from fleetlog.brokers.model import PartitionState, TopicInfo
from fleetlog.brokers.timers import Timers
from fleetlog.coordination.store import StoreError
from fleetlog.txn.batches import MemberMarker
from fleetlog.txn.commands import CommandFailed, WriteMarkers
from fleetlog.txn.coordinator import AddPartitionsAnswer, VerifyAnswer
from fleetlog.txn.markers import Job, JobId, MarkerToSend
from fleetlog.txn.verification import Ask, Question
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.support.clocks import RealClock
from tests.support.coordinator_broker import PATIENCE_MS
from tests.support.waiting import PATIENCE_S, eventually_async

A, B, GONE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("gone", 0)
TX = TopicPartition("__transaction_state", 0)
NONE, REFUSED = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
ENDED = ErrorCode.INVALID_PRODUCER_EPOCH
"""Counts as written: an operator has ended the transaction."""


class View:
    """Leaders by partition; brokers 1 to 3 live."""

    def __init__(self, **leaders: int) -> None:
        self.leaders: dict[TopicPartition, int] = {A: 1, B: 2, TX: 1}
        self.brokers = {1: None, 2: None, 3: None}
        self.listeners: list[Callable[[Any], None]] = []
        self.looks = 0
        self.look: Callable[[], Awaitable[bool]] = self.up_to_date

    async def up_to_date(self) -> bool:
        return True

    def partition(self, tp: TopicPartition) -> PartitionState | None:
        leader = self.leaders.get(tp)
        return None if leader is None else PartitionState((leader,), leader, 0, (leader,), 0, 0)

    async def refreshed(self, timeout_ms: int) -> bool:
        self.looks += 1
        return await self.look()

    def subscribe(self, listener: Callable[[Any], None]) -> None:
        self.listeners.append(listener)

    def tell(self, **what: Any) -> None:
        change = SimpleNamespace(deleted=(), partitions_changed=(), reloaded=False)
        vars(change).update(what)
        for listener in self.listeners:
            listener(change)


class Peers:
    """``answer(broker, key, message)`` gives the response or raises. Every message goes through its bytes."""

    def __init__(self, answer: Callable[[int, int, Any], Any]) -> None:
        self.answer = answer
        self.calls: list[tuple[int, Any]] = []

    async def call(self, broker: int, key: int, version: int, message: Any, timeout_ms: int = 0) -> Any:
        frame = m.encode_request(key, version, 1, "test", message)
        header = m.parse_request_header(memoryview(frame)[4:])
        decoded = m.decode_request(key, version, memoryview(frame)[4 + header.body :])
        self.calls.append((broker, decoded))
        await asyncio.sleep(0)
        response = self.answer(broker, key, decoded)
        return m.decode_response(key, version, m.encode_response(response, key, version))


def run(what: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(what, 2 * PATIENCE_S))


# ---- markers out ---------------------------------------------------------------------------------------------------


def markers_answer(errors: Callable[[TopicPartition], ErrorCode]) -> Callable[[int, int, Any], Any]:
    def answer(broker: int, key: int, request: Any) -> Any:
        kind = m.WriteTxnMarkersResponse.WritableTxnMarkerResult
        topic_kind = kind.WritableTxnMarkerTopicResult
        return m.WriteTxnMarkersResponse(
            markers=[
                kind(
                    producer_id=marker.producer_id,
                    topics=[
                        topic_kind(
                            name=topic.name,
                            partitions=[
                                topic_kind.WritableTxnMarkerPartitionResult(
                                    partition_index=index, error_code=errors(TopicPartition(topic.name, index))
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    return answer


def sender(metadata: View, peers: Peers, here: list[Any], done: list[Job]) -> MarkerSender:
    def write_here(markers: Any, answered: Any) -> None:
        here.extend(markers)
        answered([ErrorCode.NONE] * len(markers))

    loop = asyncio.get_running_loop()
    return MarkerSender(
        1, metadata, peers, loop, Timers(loop, RealClock()),
        incarnation=lambda: 4, write_here=write_here, on_written=done.append,
    )  # type: ignore[arg-type]  # fmt: skip


def effect(*partitions: TopicPartition) -> WriteMarkers:
    return WriteMarkers("x", 7, 3, True, 5, partitions, 2)


def test_markers_go_to_the_leaders_this_broker_included() -> None:
    async def scenario() -> None:
        here: list[Any] = []
        done: list[Job] = []
        peers = Peers(markers_answer(lambda tp: ErrorCode.NONE))
        out = sender(View(), peers, here, done)
        out.add(0, effect(A, B))
        await eventually_async(lambda: done, "the markers are written")
        assert here == [(A, TransactionMarker(7, 3, 5, True, 2))]
        ((broker, request),) = peers.calls
        (marker,) = request.markers
        assert (broker, marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (2, 7, 3, 5)
        assert (marker.transaction_result, marker.transaction_version) == (True, 2)
        assert len(out) == 0
        await out.close()

    run(scenario())


def test_markers_are_sent_until_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MARKER_PAUSE_MS", 1)

    async def scenario() -> None:
        answers = iter([ErrorCode.NOT_LEADER_OR_FOLLOWER, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE])
        done: list[Job] = []

        def answer(broker: int, key: int, request: Any) -> Any:
            error = next(answers)
            if error is None:
                raise OSError("unplugged")
            return markers_answer(lambda tp: error)(broker, key, request)

        peers = Peers(answer)
        out = sender(View(), peers, [], done)
        out.add(0, effect(B))
        await eventually_async(lambda: done, "the markers are written")
        assert [(asked.sender_id, asked.sender_incarnation) for _, asked in peers.calls] == 4 * [(1, 4)]
        numbers = [asked.sender_number for _, asked in peers.calls]
        assert numbers == sorted(set(numbers)), "what comes late is told by it"
        await out.close()

    run(scenario())


@pytest.mark.parametrize("known", [[NONE, REFUSED], [REFUSED, NONE], [ENDED, REFUSED], [REFUSED, ENDED]], ids=str)
def test_a_run_is_written_when_all_its_markers_are(known: list[ErrorCode]) -> None:
    """Whatever the last one's outcome is."""
    job = JobId(0, 3, "s", 7, 1)
    entry = MarkerToSend(job, (MemberMarker(11, 1, True), MemberMarker(12, 1, False)), 2, (A,))
    kind = m.WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic, partition = (
        kind.WritableTxnMarkerTopicResult,
        kind.WritableTxnMarkerTopicResult.WritableTxnMarkerPartitionResult,
    )
    rows = [
        kind(
            version=2,
            producer_id=marker.producer_id,
            topics=[topic(version=2, name="t", partitions=[partition(version=2, partition_index=0, error_code=error)])],
        )
        for marker, error in zip(entry.markers, known, strict=True)
    ]
    answer = m.WriteTxnMarkersResponse(version=2, markers=rows)
    assert coordinator.decode_markers([entry], answer) == {(job, A): REFUSED}
    assert coordinator.decode_markers([entry], m.WriteTxnMarkersResponse(version=2, markers=rows[:1])) == {}


def test_a_new_leader_is_found_by_the_metadata_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MARKER_PAUSE_MS", 3_600_000)

    async def scenario() -> None:
        metadata, done = View(), []
        metadata.leaders[B] = -1
        peers = Peers(markers_answer(lambda tp: ErrorCode.NONE))
        out = sender(metadata, peers, [], done)
        out.add(0, effect(B))
        await asyncio.sleep(0.01)
        assert peers.calls == []
        metadata.leaders[B] = 3
        metadata.tell(partitions_changed=(B,))
        await eventually_async(lambda: done, "the markers are written")
        assert [broker for broker, _ in peers.calls] == [3]
        await out.close()

    run(scenario())


def test_a_deleted_topic_needs_no_marker_and_a_new_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache may lag behind the broker that has the partition, also if a topic of that name was deleted before."""
    monkeypatch.setattr(coordinator, "MARKER_PAUSE_MS", 1)

    async def scenario() -> None:
        metadata, done = View(), []
        peers = Peers(markers_answer(lambda tp: ErrorCode.NONE))
        out = sender(metadata, peers, [], done)
        metadata.tell(deleted=(TopicInfo("gone", uuid.uuid4(), ()),))
        out.add(0, effect(GONE))
        await eventually_async(lambda: done, "the markers are written")
        assert (metadata.looks, peers.calls) == (1, [])

        async def found() -> bool:
            metadata.leaders[GONE] = 2
            return True

        metadata.look = found
        out.add(0, effect(GONE)._replace(transactional_id="y"))
        await eventually_async(lambda: len(done) == 2, "both jobs are done")
        assert [broker for broker, _ in peers.calls] == [2]
        await out.close()

    run(scenario())


def test_only_a_look_that_began_after_the_decision_shows_that_a_partition_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "MARKER_PAUSE_MS", 1)

    async def scenario() -> None:
        metadata, done, answers = View(), [], asyncio.Queue[bool | StoreError]()

        async def look() -> bool:
            answer = await answers.get()
            if isinstance(answer, StoreError):
                raise answer
            return answer

        metadata.look = look
        out = sender(metadata, Peers(markers_answer(lambda tp: ErrorCode.NONE)), [], done)
        out.add(0, effect(GONE))
        await eventually_async(lambda: metadata.looks == 1, "it looks")
        answers.put_nowait(StoreError("no ZooKeeper"))
        await eventually_async(lambda: metadata.looks == 2, "it looks again")
        answers.put_nowait(False)
        await eventually_async(lambda: metadata.looks == 3, "and again")
        assert not done
        out.add(0, effect(GONE)._replace(transactional_id="y"))
        answers.put_nowait(True)
        await eventually_async(lambda: metadata.looks == 4, "once more, for the second one")
        assert not done
        answers.put_nowait(True)
        await eventually_async(lambda: len(done) == 2, "both jobs are done")
        await out.close()

    run(scenario())


def test_a_look_that_ends_with_a_decision_does_not_count_for_it() -> None:
    """Both in one turn of the loop, the decision behind the look's end."""

    async def scenario() -> None:
        metadata, done, ends = View(), [], asyncio.get_running_loop().create_future()

        async def look() -> bool:
            await ends
            return True

        metadata.look = look
        out = sender(metadata, Peers(markers_answer(lambda tp: ErrorCode.NONE)), [], done)
        out.add(0, effect(GONE))
        await eventually_async(lambda: metadata.looks == 1, "it looks")
        ends.set_result(None)
        asyncio.get_running_loop().call_soon(out.add, 0, effect(GONE)._replace(transactional_id="y"))
        await eventually_async(lambda: len(done) == 2, "both jobs are done")
        assert metadata.looks > 1
        await out.close()

    run(scenario())


# ---- verification --------------------------------------------------------------------------------------------------


class Runtime:
    """A coordinator here; ``submit`` answers with what the test says."""

    def __init__(self, response: Any = None) -> None:
        self.response = response
        self.submitted: list[str] = []

    def partition_for(self, key: str) -> int:
        return 0

    def submit(self, key: str, command: Any) -> Any:
        self.submitted.append(key)
        return SimpleNamespace(on_done=lambda callback: callback(self.response))


def ask(name: str, *partitions: TopicPartition, how: Ask = Ask.VERIFY) -> Question:
    return Question(name, 7, 3, partitions, how, True)


def batched_answer(broker: int, key: int, request: Any) -> Any:
    kind = m.AddPartitionsToTxnResponse
    topic_kind = kind.AddPartitionsToTxnTopicResult
    return kind(
        error_code=0,
        results_by_transaction=[
            kind.AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=[
                    topic_kind(
                        name=topic.name,
                        results_by_partition=[
                            topic_kind.AddPartitionsToTxnPartitionResult(
                                partition_index=index,
                                partition_error_code=0 if index == 0 else ErrorCode.TRANSACTION_ABORTABLE,
                            )
                            for index in topic.partitions
                        ],
                    )
                    for topic in transaction.topics
                ],
            )
            for transaction in request.transactions
        ],
    )


def test_questions_to_another_broker_share_requests() -> None:
    async def scenario() -> None:
        metadata = View()
        metadata.leaders[TX] = 2
        peers = Peers(batched_answer)
        verifier = Verifier(1, metadata, peers, Runtime())  # type: ignore[arg-type]
        questions = [ask("x", A, B), ask("y", A, how=Ask.ADD), ask("x", B), ask("z", A)]
        answers = await asyncio.gather(*map(verifier.ask, questions))
        refused = ErrorCode.TRANSACTION_ABORTABLE
        assert answers == [{A: ErrorCode.NONE, B: refused}, {A: ErrorCode.NONE}, {B: refused}, {A: ErrorCode.NONE}]
        sent = [[t.transactional_id for t in request.transactions] for _, request in peers.calls]
        assert [name for names in sent for name in names].count("x") == 2
        assert all(len(names) == len(set(names)) for names in sent), "an id stands in a request once"
        assert [t.verify_only for _, r in peers.calls for t in r.transactions if t.transactional_id == "y"] == [False]
        assert await verifier.ask(ask("again", A)) == {A: ErrorCode.NONE}, "the line starts anew when it was empty"
        await verifier.close()

    run(scenario())


def test_an_error_of_the_whole_answer_is_that_of_each_partition() -> None:
    """Whatever the rows say: a broker that refuses the request has asked no coordinator."""

    async def scenario() -> None:
        metadata = View()
        metadata.leaders[TX] = 2

        def refused(broker: int, key: int, request: Any) -> Any:
            answer = batched_answer(broker, key, request)
            answer.error_code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return answer

        verifier = Verifier(1, metadata, Peers(refused), Runtime())  # type: ignore[arg-type]
        assert await verifier.ask(ask("x", A)) == {A: ErrorCode.CLUSTER_AUTHORIZATION_FAILED}

    run(scenario())


def test_a_broken_connection_and_a_missing_coordinator() -> None:
    async def scenario() -> None:
        metadata = View()

        def answer(broker: int, key: int, request: Any) -> Any:
            raise OSError("unplugged")

        verifier = Verifier(1, metadata, Peers(answer), Runtime())  # type: ignore[arg-type]
        metadata.leaders[TX] = 2
        assert await verifier.ask(ask("x", A)) == {A: ErrorCode.NETWORK_EXCEPTION}
        metadata.leaders[TX] = -1
        assert await verifier.ask(ask("x", A)) == {A: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        del metadata.leaders[TX]
        assert await verifier.ask(ask("x", A)) == {A: ErrorCode.COORDINATOR_NOT_AVAILABLE}

    run(scenario())


@pytest.mark.parametrize(
    "response",
    [
        VerifyAnswer({A: ErrorCode.PRODUCER_FENCED}),
        AddPartitionsAnswer(ErrorCode.PRODUCER_FENCED),
        CommandFailed(ErrorCode.PRODUCER_FENCED),
    ],
)
def test_the_coordinator_here_is_asked_directly(response: Any) -> None:
    async def scenario() -> None:
        peers = Peers(batched_answer)
        verifier = Verifier(1, View(), peers, Runtime(response))  # type: ignore[arg-type]
        assert await verifier.ask(ask("x", A)) == {A: ErrorCode.PRODUCER_FENCED}
        assert peers.calls == []

    run(scenario())


# ---- admission -----------------------------------------------------------------------------------------------------


def admission(
    answers: Callable[[ProducerState], ErrorCode], *, add: bool = True
) -> tuple[ProducerState, list[Any], verification.Admission]:
    state = ProducerState(expiration_ms=1_000, max_producers=10)
    asked: list[Any] = []

    async def asking(question: Question) -> dict[TopicPartition, ErrorCode]:
        asked.append(question)
        return dict.fromkeys(question.partitions, answers(state))

    result: list[verification.Admission] = []

    async def scenario() -> None:
        result.append((await verification.admit(asking, RealClock(), "x", (7, 3), {A: (state, 0)}, add=add))[A])

    run(scenario())
    return state, asked, result[0]


def test_a_confirmed_partition_gets_its_guard() -> None:
    state, asked, admitted = admission(lambda state: ErrorCode.NONE)
    assert asked == [ask("x", A, how=Ask.ADD)]
    assert admitted.error is ErrorCode.NONE
    assert admitted.guard is state.verification_guard(7, 3, 0)


def test_the_previous_end_is_waited_out_with_a_new_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "PATIENCE_MS", PATIENCE_MS)
    answers = iter([ErrorCode.CONCURRENT_TRANSACTIONS] * 2 + [ErrorCode.NONE] * 2)

    def answer(state: ProducerState) -> ErrorCode:
        error = next(answers)
        if error is not ErrorCode.NONE:
            state.verifications.clear()  # the marker of the previous transaction arrives
        return error

    state, asked, admitted = admission(answer)
    assert len(asked) == 3
    assert admitted == (ErrorCode.NONE, state.verification_guard(7, 3, 0))


def test_a_marker_that_takes_the_guards_worth_means_asking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "PATIENCE_MS", PATIENCE_MS)
    times = iter([True, False])

    def answer(state: ProducerState) -> ErrorCode:
        if next(times):
            state.verifications.clear()
        return ErrorCode.NONE

    state, asked, admitted = admission(answer)
    assert len(asked) == 2
    assert admitted.guard is state.verification_guard(7, 3, 0)


def test_a_question_that_takes_longer_than_patience_is_not_answered_with_a_guard_of_no_worth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first pass is the last one, and the marker of the previous transaction came meanwhile."""
    monkeypatch.setattr(verification, "PATIENCE_MS", 0)

    def answer(state: ProducerState) -> ErrorCode:
        state.verifications.clear()
        return ErrorCode.NONE

    _, asked, admitted = admission(answer)
    assert len(asked) == 1
    assert admitted == (ErrorCode.CONCURRENT_TRANSACTIONS, None), "it may come again"


@pytest.mark.parametrize("said", [ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS])
def test_a_batch_at_the_end_of_its_transaction_does_not_wait_for_the_next_one(said: ErrorCode) -> None:
    """Protocol 1: the next transaction has the same epoch, and the batch would become part of it."""

    def answer(state: ProducerState) -> ErrorCode:
        state.verifications.clear()
        return said

    _, asked, admitted = admission(answer, add=False)
    assert len(asked) == 1
    assert admitted.error is ErrorCode.CONCURRENT_TRANSACTIONS


def test_patience_has_an_end() -> None:
    _, asked, admitted = admission(lambda state: ErrorCode.CONCURRENT_TRANSACTIONS)
    assert admitted.error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert 2 <= len(asked) <= 10


def test_a_refusal_is_final() -> None:
    _, asked, admitted = admission(lambda state: ErrorCode.TRANSACTION_ABORTABLE)
    assert admitted.error is ErrorCode.TRANSACTION_ABORTABLE
    assert len(asked) == 1
