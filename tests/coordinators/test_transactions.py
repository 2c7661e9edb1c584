"""The transaction coordinator around the pure shard: markers out and in, verification, patience."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

import wire.messages as m
from brokers.coordinators import marker_sender, verification
from brokers.coordinators.marker_sender import MarkerSender
from brokers.coordinators.ports import Marker
from brokers.coordinators.verification import Verifier
from brokers.log import ProducerState
from brokers.model import PartitionState, TopicInfo
from txn.commands import Failed, WriteMarkers
from txn.coordinator import AddPartitionsAnswer, VerifyAnswer
from txn.markers import Job
from txn.verification import Ask, Question
from wire.errors import ErrorCode
from wire.types import TopicPartition

A, B, GONE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("deleted", 0)
TX = TopicPartition("__transaction_state", 0)


class View:
    """Leaders by partition; brokers 1 to 3 live."""

    def __init__(self, **leaders: int) -> None:
        self.leaders: dict[TopicPartition, int] = {A: 1, B: 2, TX: 1}
        self.brokers = {1: None, 2: None, 3: None}
        self.listeners: list[Callable[[Any], None]] = []

    def partition(self, tp: TopicPartition) -> PartitionState | None:
        leader = self.leaders.get(tp)
        return None if leader is None else PartitionState((leader,), leader, 0, (leader,), 0, 0)

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


class RealClock:
    def wall_ms(self) -> int:
        return 0

    def mono_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)


def run(what: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(what, 20))


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


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


def sender(view: View, peers: Peers, here: list[Any], done: list[Job]) -> MarkerSender:
    def write_here(markers: Any, answered: Any) -> None:
        here.extend(markers)
        answered([ErrorCode.NONE] * len(markers))

    return MarkerSender(
        1, view, peers, asyncio.get_running_loop(), RealClock(), write_here=write_here, on_written=done.append
    )  # type: ignore[arg-type]


def effect(*partitions: TopicPartition) -> WriteMarkers:
    return WriteMarkers("x", 7, 3, True, 5, partitions, 2)


def test_markers_go_to_the_leaders_this_broker_included() -> None:
    async def scenario() -> None:
        here: list[Any] = []
        done: list[Job] = []
        peers = Peers(markers_answer(lambda tp: ErrorCode.NONE))
        out = sender(View(), peers, here, done)
        out.add(0, effect(A, B))
        await until(lambda: done)
        assert here == [(A, Marker(7, 3, 5, True, 2))]
        ((broker, request),) = peers.calls
        (marker,) = request.markers
        assert (broker, marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (2, 7, 3, 5)
        assert (marker.transaction_result, marker.transaction_version) == (True, 2)
        assert len(out) == 0
        await out.close()

    run(scenario())


def test_markers_are_sent_until_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_sender, "PAUSE_S", 0.001)

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
        await until(lambda: done)
        assert len(peers.calls) == 4
        await out.close()

    run(scenario())


def test_a_new_leader_is_found_by_the_views_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_sender, "PAUSE_S", 3_600)

    async def scenario() -> None:
        view, done = View(), []
        view.leaders[B] = -1
        peers = Peers(markers_answer(lambda tp: ErrorCode.NONE))
        out = sender(view, peers, [], done)
        out.add(0, effect(B))
        await asyncio.sleep(0.01)
        assert peers.calls == []
        view.leaders[B] = 3
        view.tell(partitions_changed=(B,))
        await until(lambda: done)
        assert [broker for broker, _ in peers.calls] == [3]
        await out.close()

    run(scenario())


def test_a_deleted_topic_needs_no_marker_and_an_unknown_one_gets_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_sender, "PAUSE_S", 0.001)
    monkeypatch.setattr(marker_sender, "UNKNOWN_IS_GONE_MS", 50)

    async def scenario() -> None:
        view, done = View(), []
        out = sender(view, Peers(markers_answer(lambda tp: ErrorCode.NONE)), [], done)
        view.tell(deleted=(TopicInfo("deleted", uuid.uuid4(), ()),))
        out.add(0, effect(GONE))
        await until(lambda: done)
        began = RealClock().mono_ms()
        out.add(0, effect(TopicPartition("perhaps new", 0))._replace(transactional_id="y"))
        await until(lambda: len(done) == 2)
        assert RealClock().mono_ms() - began >= 50
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
        view = View()
        view.leaders[TX] = 2
        peers = Peers(batched_answer)
        verifier = Verifier(1, view, peers, Runtime())  # type: ignore[arg-type]
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


def test_a_broken_connection_and_a_missing_coordinator() -> None:
    async def scenario() -> None:
        view = View()

        def answer(broker: int, key: int, request: Any) -> Any:
            raise OSError("unplugged")

        verifier = Verifier(1, view, Peers(answer), Runtime())  # type: ignore[arg-type]
        view.leaders[TX] = 2
        assert await verifier.ask(ask("x", A)) == {A: ErrorCode.NETWORK_EXCEPTION}
        view.leaders[TX] = -1
        assert await verifier.ask(ask("x", A)) == {A: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        del view.leaders[TX]
        assert await verifier.ask(ask("x", A)) == {A: ErrorCode.COORDINATOR_NOT_AVAILABLE}

    run(scenario())


@pytest.mark.parametrize(
    "response",
    [
        VerifyAnswer({A: ErrorCode.PRODUCER_FENCED}),
        AddPartitionsAnswer(ErrorCode.PRODUCER_FENCED),
        Failed(ErrorCode.PRODUCER_FENCED),
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
    monkeypatch: pytest.MonkeyPatch, answers: Callable[[ProducerState], ErrorCode]
) -> tuple[ProducerState, list[Any], verification.Admission]:
    state = ProducerState(expiration_ms=1_000, max_producers=10)
    asked: list[Any] = []

    async def verify(services: Any, name: str, pid: int, epoch: int, places: Any, *, add: bool) -> Any:
        asked.append((name, pid, epoch, list(places), add))
        return dict.fromkeys(places, answers(state))

    monkeypatch.setattr(verification, "verify", verify)
    result: list[verification.Admission] = []

    async def scenario() -> None:
        services: Any = SimpleNamespace(clock=RealClock())
        result.append((await verification.admit(services, "x", (7, 3), {A: (state, 0)}, add=True))[A])

    run(scenario())
    return state, asked, result[0]


def test_a_confirmed_partition_gets_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    state, asked, admitted = admission(monkeypatch, lambda state: ErrorCode.NONE)
    assert asked == [("x", 7, 3, [A], True)]
    assert admitted.error is ErrorCode.NONE
    assert admitted.guard is state.verification_guard(7, 3, 0)


def test_the_previous_end_is_waited_out_with_a_new_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([ErrorCode.CONCURRENT_TRANSACTIONS] * 2 + [ErrorCode.NONE] * 2)

    def answer(state: ProducerState) -> ErrorCode:
        error = next(answers)
        if error is not ErrorCode.NONE:
            state._verifications.clear()  # the marker of the previous transaction arrives
        return error

    state, asked, admitted = admission(monkeypatch, answer)
    assert len(asked) == 3
    assert admitted == (ErrorCode.NONE, state.verification_guard(7, 3, 0))


def test_a_marker_that_takes_the_guards_worth_means_asking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([True, False])

    def answer(state: ProducerState) -> ErrorCode:
        if next(times):
            state._verifications.clear()
        return ErrorCode.NONE

    state, asked, admitted = admission(monkeypatch, answer)
    assert len(asked) == 2
    assert admitted.guard is state.verification_guard(7, 3, 0)


def test_patience_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked, admitted = admission(monkeypatch, lambda state: ErrorCode.CONCURRENT_TRANSACTIONS)
    assert admitted.error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert 2 <= len(asked) <= 10


def test_a_refusal_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked, admitted = admission(monkeypatch, lambda state: ErrorCode.TRANSACTION_ABORTABLE)
    assert admitted.error is ErrorCode.TRANSACTION_ABORTABLE
    assert len(asked) == 1
