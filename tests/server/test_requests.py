"""Requests over real sockets: order, purgatory, refusals, errors."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import CLOSE, DelayedResponse, Done, in_task
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from tests.support.harness import RunningServer
from tests.support.samples import ALL_VERSIONS, request

HEARTBEAT, METADATA, PRODUCE = 12, 3, 0


def heartbeat(text: str = "") -> Any:
    return m.HeartbeatRequest(group_id=text, generation_id=1, member_id="m")


def beat(version: int, code: int = 0) -> Any:
    return m.HeartbeatResponse(version=version, error_code=code)


def test_an_answer_carries_its_requests_correlation_id_and_version() -> None:
    seen: list[Any] = []

    def handler(request: Any, context: Any) -> Done:
        seen.append((request.group_id, context.api_version, context.client_id, context.connection.listener))
        return Done(beat(context.api_version, 27))

    with RunningServer({HEARTBEAT: handler}) as server:
        for version in range(5):
            client = server.client()
            assert client.ask(heartbeat(f"v{version}"), version, 100 + version).error_code == 27
            client.close()
    assert seen == [(f"v{version}", version, "test", "PLAINTEXT") for version in range(5)]


def test_pipelined_requests_run_one_after_the_other_and_are_answered_in_order() -> None:
    delayed: list[DelayedResponse] = []
    started: list[str] = []

    def handler(request: Any, context: Any) -> Any:
        started.append(request.group_id)
        if request.group_id == "first":
            delayed.append(DelayedResponse(60_000, lambda: beat(4, 99)))
            return delayed[0]
        return Done(beat(context.api_version))

    with RunningServer({HEARTBEAT: handler}) as server:
        client = server.client()
        client.send(heartbeat("first"), 4, 1)
        for number in range(2, 300):
            client.send(heartbeat("more"), 4, number)
        server.until(lambda: bool(delayed), "the first request")
        assert started == ["first"], "a request ran before the one in front of it was answered"
        server.call(lambda: delayed[0].complete(beat(4, 7)))
        answers = [client.receive() for _ in range(1, 300)]
        assert [number for number, _ in answers] == list(range(1, 300))
        assert answers[0][1].error_code == 7


def test_a_produce_that_waits_for_replicas_lets_the_next_one_append() -> None:
    delayed: list[DelayedResponse] = []

    def handler(request: Any, context: Any) -> Any:
        delayed.append(DelayedResponse(60_000, lambda: None))
        delayed[-1].serial = False
        return delayed[-1]

    with RunningServer({PRODUCE: handler}, {"max.in.flight.requests.per.connection": "4"}) as server:
        client = server.client()
        for number in range(6):
            client.send(m.ProduceRequest(acks=-1, timeout_ms=1, topic_data=[]), 9, number)
        server.until(lambda: len(delayed) == 4, "four requests at once")
        for number in (3, 1, 0, 2):
            server.call(
                lambda number=number: delayed[number].complete(m.ProduceResponse(version=9, throttle_time_ms=number))
            )
        server.until(lambda: len(delayed) == 6, "the rest")
        for number in (5, 4):
            server.call(
                lambda number=number: delayed[number].complete(m.ProduceResponse(version=9, throttle_time_ms=number))
            )
        assert [client.receive()[1].throttle_time_ms for _ in range(6)] == list(range(6))


def test_a_delayed_request_is_answered_at_its_deadline() -> None:
    with RunningServer(
        {HEARTBEAT: lambda _, context: DelayedResponse(20, lambda: beat(context.api_version, 27))}
    ) as server:
        assert server.client().ask(heartbeat(), 4).error_code == 27
        assert server.call(lambda: len(server.server.timers)) == 1, "the sweep's alone"


def test_a_deadline_whose_answer_fails_is_still_answered() -> None:
    def expired() -> Any:
        raise RuntimeError("planted")

    with RunningServer({HEARTBEAT: lambda *_: DelayedResponse(20, expired)}) as server:
        assert server.client().ask(heartbeat(), 4).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_produce_that_was_verified_first_lets_the_next_one_run_once_it_has_appended() -> None:
    delayed: list[DelayedResponse] = []
    gates: list[asyncio.Future[None]] = []

    @in_task
    async def verify(context: Any) -> DelayedResponse:
        gates.append(context.services.loop.create_future())
        await gates[-1]
        delayed.append(DelayedResponse(60_000, lambda: None))
        delayed[-1].serial = False
        return delayed[-1]

    with RunningServer({PRODUCE: lambda _, context: verify(context)}) as server:
        client = server.client()
        for number in range(2):
            client.send(m.ProduceRequest(acks=-1, timeout_ms=1, topic_data=[]), 9, number)
        server.until(lambda: len(gates) == 1, "the question")
        server.call(lambda: None)
        assert len(gates) == 1, "the second batch overtook the first one's verification"
        server.call(lambda: gates[0].set_result(None))
        server.until(lambda: len(gates) == 2, "the second question, while the first batch waits for replicas")
        assert not delayed[0].done


def test_a_client_that_goes_away_drops_its_delayed_request() -> None:
    dropped: list[bool] = []
    delayed: list[bool] = []

    def handler(request: Any, context: Any) -> Any:
        delayed.append(True)
        return DelayedResponse(600_000, lambda: None, on_cancel=lambda: dropped.append(True))

    with RunningServer({HEARTBEAT: handler}) as server:
        client = server.client()
        client.send(heartbeat(), 4, 1)
        server.until(lambda: bool(delayed), "the request")
        client.close()
        server.until(lambda: bool(dropped), "the drop")
        assert server.call(lambda: (len(server.server), len(server.server.timers), server.server.budget.used)) == (
            0,
            1,
            0,
        )


def test_a_coroutine_handler_is_awaited_and_may_fail() -> None:
    @in_task
    async def handler(request: Any, context: Any) -> Done:
        await asyncio.sleep(0.01)
        if request.group_id == "bad":
            raise RuntimeError("planted")
        return Done(beat(context.api_version))

    with RunningServer({HEARTBEAT: handler}) as server:
        client = server.client()
        assert client.ask(heartbeat("good"), 4).error_code == 0
        assert client.ask(heartbeat("bad"), 4).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_failing_handler_answers_or_closes_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def handler(request: Any, context: Any) -> Any:
        raise RuntimeError("planted")

    with RunningServer({HEARTBEAT: handler, METADATA: handler}) as server:
        client = server.client()
        assert client.ask(heartbeat(), 4).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        client.send(m.MetadataRequest(topics=None), 9, 2)  # its answer has no place for an error
        assert client.closed()
        assert server.client().ask(heartbeat(), 0).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert sum("planted" in record.exc_text for record in caplog.records if record.exc_text) == 3


@pytest.mark.parametrize("bad", ["nonsense", None])
def test_a_handler_with_a_wrong_answer_closes_the_connection(bad: Any) -> None:
    handler = (lambda *_: bad) if bad else (lambda *_: Done(m.MetadataResponse(version=0)))
    with RunningServer({HEARTBEAT: handler}) as server:
        client = server.client()
        client.send(heartbeat(), 4, 1)
        assert client.closed()
        assert server.call(lambda: server.server.budget.used) == 0


def test_apiversions_of_an_unknown_version_is_answered_in_version_0() -> None:
    with RunningServer({}) as server:
        client = server.client()
        client.raw(b"\0\0\0\x0e" + b"\0\x12\0\x63" + b"\0\0\0\7" + b"\0\1c\0zz")
        frame = client.frame()
        answer = m.ApiVersionsResponse.decode(frame[4:], version=0)
        assert int.from_bytes(frame[:4], "big") == 7
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(k.api_key, k.min_version, k.max_version) for k in answer.api_keys] == [(18, 0, APIS[18].max_version)]


@pytest.mark.parametrize(("head", "reason"), [
    (b"\3\xe7\0\0", "api"),  # no such API
    (b"\xff\xff\0\0", "api"),
    (b"\0\x0c\0\x63", "version"),  # Heartbeat 99
    (b"\0\x0c\xff\xff", "version"),
    (b"\0\x0c\0\4", "body"),  # no body
])  # fmt: skip
def test_what_cannot_be_served_closes_the_connection_with_a_reason(
    head: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningServer({HEARTBEAT: lambda _, context: Done(beat(context.api_version))}) as server:
        other = server.client()
        client = server.client()
        client.raw(b"\0\0\0\x0c" + head + b"\0\0\0\7" + b"\0\1c\0")
        assert client.closed()
        assert server.refused(reason) == 1
        assert other.ask(heartbeat(), 4).error_code == 0
    assert any("the connection is closed" in record.message for record in caplog.records)


def test_every_api_serves_requests_with_bytes_behind_them_and_strings_that_are_not_utf_8(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """librdkafka 0.11.5 to 1.3.0 sends ApiVersions v0 with four bytes more; C clients have names in Latin-1."""

    def handler(request: Any, context: Any) -> Done:
        return Done(m.response_class(context.api_key)(version=context.api_version))

    handlers = dict.fromkeys(APIS, handler) | {PRODUCE: lambda *_: Done(None)}
    with RunningServer(handlers) as server:
        client = server.client()
        for _ in range(2):
            for key, version in ALL_VERSIONS:
                body = bytes(request(key, version, random.Random(1)).encode(version=version)) + b"more"
                head = struct.pack(">hhih", key, version, 1, 4) + b"J\xf6rg" + b"\0" * m.is_flexible(key, version)
                client.raw(struct.pack(">i", len(head + body)) + head + body)
                if key != PRODUCE:
                    assert client.frame(), (key, version)
            lines = [record.message for record in caplog.records if "it is served" in record.message]
            assert len(lines) == 1, "once for each client software"
            assert "client id is not UTF-8" in lines[0]
        assert client.ask(heartbeat(), 4).error_code == 0


def test_an_old_produce_closes_the_connection() -> None:
    """As Kafka, which advertises these versions, too: old clients take an answer that they cannot read for success."""
    with RunningServer({PRODUCE: lambda *_: Done(None)}) as server:
        for version in (0, 1, 2):
            client = server.client()
            topic = m.ProduceRequest.TopicProduceData
            data = [topic(name="t", partition_data=[topic.PartitionProduceData(index=3, records=b"old")])]
            client.send(m.ProduceRequest(version=version, acks=1, timeout_ms=1, topic_data=data), version, 1)
            assert client.closed()


def test_a_failed_request_without_answer_closes_the_connection() -> None:
    with RunningServer({PRODUCE: lambda *_: Done(CLOSE)}) as server:
        client = server.client()
        client.send(m.ProduceRequest(acks=0, timeout_ms=1, topic_data=[]), 9, 1)
        assert client.closed()
        assert server.call(lambda: server.server.budget.used) == 0


def test_no_answer_for_acks_0_and_the_next_request_is_answered() -> None:
    with RunningServer({
        PRODUCE: lambda *_: Done(None),
        HEARTBEAT: lambda _, context: Done(beat(context.api_version, 27)),
    }) as server:  # fmt: skip
        client = server.client()
        client.send(m.ProduceRequest(acks=0, timeout_ms=1, topic_data=[]), 9, 1)
        assert client.ask(heartbeat(), 4, 2).error_code == 27
        assert server.call(lambda: server.server.budget.used) == 0


def test_refusals_are_logged_ten_times_a_second_at_most(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with RunningServer({}) as server:
        server.clock.ahead_ms -= server.clock.mono_ms() % 1000  # all within one second of the clock
        for _ in range(40):
            client = server.client()
            client.raw(b"\xff\xff\xff\xff")
            assert client.closed()
        assert server.refused("frame") == 40
    lines = [record for record in caplog.records if "a frame of" in record.message]
    assert 10 <= len(lines) <= 20
