"""Long work in slices: one slice a turn, given up with its client; and the cap on requests without records."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import Context, Done, Outcome, in_slices
from fleetlog.brokers.api.unpacking import PAUSE
from fleetlog.brokers.server.dispatch import FIRST_SLICE_S, SLICE_S, Pacing, Reply
from fleetlog.brokers.server.framing import Blocks, FrameError, Framer
from fleetlog.wire.apis import APIS, LARGE_KEYS
from tests.support.harness import RunningServer

ROW_S = 0.0005


class Loop:
    """Runs what is due in a turn when it is told to."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.ticks = count()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()

    def pacing(self) -> Pacing:
        loop: Any = self
        return Pacing(loop, lambda: next(self.ticks) * ROW_S)


class Job:
    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.did = 0
        self.closed = self.gone = self.failed = False
        self.found: list[Any] = []

    def work(self) -> Generator[None, None, str]:
        try:
            for _ in range(self.rows):
                yield
                self.did += 1
        except GeneratorExit:
            self.closed = True
            raise
        return "done"

    def start(self, pacing: Pacing) -> None:
        pacing.start(self.work(), lambda: self.gone, self.found.append, lambda: setattr(self, "failed", True))


def test_short_work_is_done_at_once() -> None:
    loop, job = Loop(), Job(1)
    job.start(loop.pacing())
    assert (job.found, len(loop.soon)) == (["done"], 0)


def test_long_work_takes_turns() -> None:
    loop = Loop()
    pacing = loop.pacing()
    jobs = [Job(60), Job(60)]
    for job in jobs:
        job.start(pacing)
    at_once = jobs[0].did
    assert at_once <= FIRST_SLICE_S / ROW_S
    while any(not job.found for job in jobs):
        before = sum(job.did for job in jobs)
        assert len(loop.soon) == 1, "one slice in a turn, however many there are"
        loop.turn()
        assert sum(job.did for job in jobs) - before <= SLICE_S / ROW_S + 1
        assert abs(jobs[0].did - jobs[1].did) <= SLICE_S / ROW_S + at_once + 1
    assert (len(pacing), len(loop.soon)) == (0, 0)


def test_work_that_asks_for_another_turn_gets_it() -> None:
    loop, found = Loop(), []

    def work() -> Generator[object, None, str]:
        yield
        yield PAUSE
        yield PAUSE
        return "done"

    loop.pacing().start(work(), lambda: False, found.append, lambda: None)
    for _ in range(2):
        assert not found
        loop.turn()
    assert (found, len(loop.soon)) == (["done"], 0)


def test_work_of_a_client_that_has_gone_is_given_up() -> None:
    loop = Loop()
    pacing = loop.pacing()
    job = Job(1000)
    job.start(pacing)
    loop.turn()
    job.gone, did = True, job.did
    loop.turn()
    assert (job.closed, job.did, job.found, len(pacing)) == (True, did, [], 0)


def test_work_that_raises_fails_alone() -> None:
    loop = Loop()
    pacing = loop.pacing()
    bad, good = Job(30), Job(30)

    def broken() -> Generator[None, None, None]:
        yield from bad.work()
        raise ValueError

    pacing.start(broken(), lambda: False, bad.found.append, lambda: setattr(bad, "failed", True))
    good.start(pacing)
    while loop.soon:
        loop.turn()
    assert (bad.failed, bad.found, good.found) == (True, [], ["done"])


class Spending:
    """In place of a connection's meter: the seconds that it was told of."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def spent(self, _: object, began: float, ended: float) -> None:
        self.seconds.append(ended - began)

    measure = spent


def test_each_slice_is_charged_once() -> None:
    meter: Any = Spending()
    unused: Any = None
    context: Any = SimpleNamespace(exempted=False)
    route: Any = SimpleNamespace(seconds=lambda: 2.0)
    reply = Reply(route, context, unused, unused, started=1.0)
    reply.meter = meter
    reply.spent(meter, 1.5, 2.0)
    reply.measure()
    assert meter.seconds == [1.0], "the first slice is a part of what the request took until it waits"
    reply.spent(meter, 7.0, 7.25)
    assert meter.seconds == [1.0, 0.25]


def test_others_are_answered_between_the_rows_of_a_long_answer() -> None:
    """A handler that yields, and an answer of many rows: another client's heartbeats come in between."""
    turns: list[str] = []

    @in_slices
    def slow(request: Any, context: Context) -> Generator[None, None, Done]:
        try:
            while request.timeout_ms == 1 and "beat" not in turns:
                yield
            for _ in range(20_000) if request.timeout_ms == 1 else count():
                yield
                sum(range(20))
        except GeneratorExit:
            turns.append("given up")
            raise
        row = m.DeleteTopicsResponse.DeletableTopicResult
        rows = [row(version=5, name=f"t{i}", error_code=0, error_message=None) for i in range(20_000)]
        return Done(m.DeleteTopicsResponse(version=5, responses=rows))

    def beat(request: Any, context: Context) -> Done:
        turns.append("beat")
        return Done(m.HeartbeatResponse(version=0, error_code=0))

    with RunningServer({20: slow, 12: beat}) as server:
        long, short = server.client(), server.client()
        long.send(m.DeleteTopicsRequest(version=5, topic_names=[], timeout_ms=1), 5, 1)
        server.until(lambda: len(server.server._dispatcher._pacing) == 1, "the first slice")
        short.ask(m.HeartbeatRequest(version=0, group_id="g", generation_id=1, member_id="m"), 0)
        assert turns == ["beat"]
        assert len(long.receive()[1].responses) == 20_000
        long.send(m.DeleteTopicsRequest(version=5, topic_names=[], timeout_ms=2), 5, 2)
        server.until(lambda: len(server.server._dispatcher._pacing) == 1, "the first slice")
        long.close()
        server.until(lambda: len(server.server) == 1, "the close")
        server.until(lambda: len(server.server._dispatcher._pacing) == 0, "the end of its work")
        assert turns == ["beat", "given up"]
        assert server.call(lambda: server.server.budget.used) == 0


def test_records_are_appended_though_their_client_has_gone() -> None:
    """With acks=0 a client closes its connection behind its last request: that one, and those before it, count."""
    appended: list[int] = []
    gate = threading.Event()

    def append(request: Any, context: Context) -> Outcome:
        if request.timeout_ms == 1:
            return first()
        appended.append(2)
        return Done(None)

    @in_slices
    def first() -> Generator[None, None, Done]:
        while not gate.is_set():
            yield
        appended.append(1)
        return Done(None)

    with RunningServer({0: append}) as server:
        client = server.client()
        for timeout_ms in (1, 2):
            message = m.ProduceRequest(transactional_id=None, acks=0, timeout_ms=timeout_ms, topic_data=[])
            client.raw(m.encode_request(0, 9, timeout_ms, "", message))
        client.close()
        server.until(lambda: [not c._reading for c in server.server.connections.values()] == [True], "its end is seen")
        assert appended == []
        gate.set()
        server.until(lambda: len(server.server) == 0, "the close")
        assert appended == [1, 2]
        assert server.call(lambda: server.server.budget.used) == 0


@pytest.mark.parametrize("key", sorted(APIS))
def test_a_request_without_records_has_a_smaller_cap(key: int) -> None:
    framer = Framer(1 << 20, Blocks(), 1 << 10)
    head = (1 << 19).to_bytes(4, "big") + key.to_bytes(2, "big")
    room = framer.into(64)
    room[:4] = head[:4]
    framer.received(4)
    assert framer.size() is None, "the key is not there yet"
    framer.into(64)[:2] = head[4:]
    framer.received(2)
    if key in LARGE_KEYS:
        assert framer.size() == 1 << 19
    else:
        with pytest.raises(FrameError, match=r"socket\.control.request.max.bytes"):
            framer.size()


def test_only_produce_carries_records() -> None:
    assert {0} == LARGE_KEYS


def test_a_large_control_request_closes_the_connection() -> None:
    heartbeat: Any = {12: lambda request, context: Done(m.HeartbeatResponse(version=0, error_code=0))}
    with RunningServer(heartbeat, {"socket.control.request.max.bytes": "65536"}) as server:
        client = server.client()
        client.raw((70_000).to_bytes(4, "big") + (12).to_bytes(2, "big") + bytes(100))
        assert client.closed()
        assert server.refused("frame") == 1
