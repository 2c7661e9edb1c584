"""A Fetch that is executed where it was received is answered as any other; woken fetches take turns."""

from __future__ import annotations

import gc
import itertools
import random
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog.brokers.api import fetch
from fleetlog.brokers.api.base import ClientConnection, DelayedResponse, Done
from fleetlog.brokers.api.fetch import execute_fetch, handle_fetch
from fleetlog.brokers.api.fetch_reads import ZSTD_VERSION
from fleetlog.brokers.api.fetch_sessions import LOOKS_PER_TURN, NO_SESSION, FetchSession, SessionPart, Wakes
from fleetlog.brokers.model import BrokerId
from fleetlog.brokers.server import dispatch
from fleetlog.brokers.server.connection import ConnectionMarks, Slot
from fleetlog.brokers.server.limits import ByteBudget, QuietLog
from fleetlog.brokers.timers import Timers
from fleetlog.wire import hot
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from tests.support.fetching import decoded, fetch_frame, part, request
from tests.support.stage import ME, OTHER, Stage, body_of

VERSIONS = range(ZSTD_VERSION, APIS[1].max_version + 1)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def both(stage: Stage, version: int, asked: Any) -> tuple[Any, Any]:
    """The bodies of a handler's answer and of a run's (None: it waits)."""
    outcome = stage.start(handle_fetch, 1, version, asked)
    run = hot.FetchRun(asked, version, [0], [0])
    (executed,) = execute_fetch([run], [stage.context(1, version)])
    for waits in (outcome, executed):
        if isinstance(waits, DelayedResponse):
            waits.cancel()
    return tuple(body(found, version) if isinstance(found, Done) else None for found in (outcome, executed))  # type: ignore[return-value]


def body(outcome: Done, version: int) -> bytes:
    """The body of an answer, which may be a whole frame."""
    if not isinstance(outcome.response, list):
        return body_of(outcome.response)
    data = body_of(hot.Encoded(outcome.response))
    header = 5 if version >= 12 else 4
    assert len(data) == 4 + int.from_bytes(data[:4], "big"), "the size is that of the frame"
    return data[4 + header :]


def _topics(stage: Stage) -> list[Any]:
    """One with several segments, one with an open transaction, one whose followers are behind, one led elsewhere."""
    rolled = stage.topic("rolled", epoch=3, segment_bytes="1024", segment_index_bytes="4096", index_interval_bytes="64")
    open_ended = stage.topic("open")
    behind = stage.topic("behind", replicas=(ME, BrokerId(OTHER)))
    elsewhere = stage.topic("elsewhere", leader=OTHER, replicas=(BrokerId(OTHER), ME))
    sizes = random.Random(5)
    for _ in range(40):
        stage.append("rolled", sizes.randrange(1, 6), size=sizes.randrange(1, 120))
        stage.append("behind")
    assert len(list(stage.partition("rolled").log.segments)) > 3
    stage.append("open", 2)
    stage.append("open", 2, producer_id=7, producer_epoch=0, base_sequence=0, attributes=16)
    stage.append("open", 2)
    stage.fetched("behind", OTHER, 25)
    return [rolled, open_ended, behind, elsewhere]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_is_answered_as_by_the_handler(stage: Stage, version: int) -> None:
    topics = _topics(stage)
    chosen = random.Random(version)
    answered = {True: 0, False: 0}
    limits = (0, 1, 61, 300, 1_000, 1_500, 1 << 20)
    for info, offset, _ in itertools.product(topics, (-1, 0, 1, 2, 5, 24, 25, 26, 40, 77, 300), range(4)):
        fields = {
            "max_wait_ms": chosen.choice((0, 500, 500)), "min_bytes": chosen.choice((1, 200, 5_000, 1 << 20)),
            "max_bytes": chosen.choice(limits), "isolation_level": chosen.choice((0, 0, 0, 1)),
            "rack_id": chosen.choice(("", "", "east")), "replica_id": chosen.choice((-1, -1, -1, -2)),
        }  # fmt: skip
        parts = [
            part(
                info.id if version >= 13 else info.name, offset, index, last_fetched_epoch=chosen.choice((-1, -1, 0)),
                current_leader_epoch=chosen.choice((-1, -1, 0, 3, 9)), max_bytes=chosen.choice(limits),
            )
            for index in range(chosen.choice((1, 1, 2)))
        ]  # fmt: skip
        ours, expected = both(stage, version, request(*parts, **fields))
        assert ours == expected, (parts, fields)
        answered[ours is not None] += 1
    assert min(answered.values()) >= 5, f"hardly tried: {answered}"
    assert not any(stage.partition(info.name).watchers for info in topics if info.name != "elsewhere")


def test_a_fetch_that_waits_lets_the_file_go(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 3)
    file: Any = stage.partition("t").log.segments.active.log
    waits = stage.start(handle_fetch, 1, 12, request(part("t", 0), min_bytes=1 << 20, max_wait_ms=500))
    assert isinstance(waits, DelayedResponse)
    assert not file.pinned
    waits.cancel()
    found = stage.start(handle_fetch, 1, 12, request(part("t", 0)))
    assert file.pinned
    assert isinstance(found, Done)
    found.response.release()
    assert not file.pinned


@pytest.mark.parametrize("fields", [{}, {"session_epoch": 0}, {"session_epoch": 0, "max_wait_ms": 500}])
def test_a_log_that_fails_is_reported(stage: Stage, fields: dict[str, int]) -> None:
    stage.topic("t")
    stage.append("t", 3)
    stage.partition("t").log.offline = True
    found = stage.start(handle_fetch, 1, 12, request(part("t", 0), **fields))
    assert isinstance(found, Done)
    assert decoded(12, found.response).parts["t", 0].error == ErrorCode.KAFKA_STORAGE_ERROR


def answers(stage: Stage, frame: bytes) -> list[bytes]:
    """What a dispatcher answers to a frame between others, and to the same frame dispatched by itself."""
    dispatcher = dispatch.Dispatcher(stage.services, ByteBudget(1 << 20), QuietLog(stage.clock.mono_ms))
    found = []
    for run in (True, False):
        chunks: list[Any] = []
        slot: Any = SimpleNamespace(answer=chunks.extend, cost=0)
        peer = ClientConnection(1, "PLAINTEXT", "127.0.0.1")
        connection: Any = SimpleNamespace(
            closed=False,
            login=None,
            meter=None,
            muted_until_ms=0,
            peer=peer,
            marks=ConnectionMarks(0),
            deliver=lambda _, answer, chunks=chunks: chunks.extend(answer),
            next_slot=lambda slot=slot: slot,
            close=lambda _: None,
        )
        data = memoryview(bytearray(b"before" + frame + b"behind"))
        if run:
            assert dispatcher.dispatch_run(connection, data, 6, 6 + len(frame), 5) == 6 + len(frame)
            assert connection.batchable is False
        else:
            dispatcher.dispatch(connection, data[10 : 6 + len(frame)], slot)
        found.append(body_of(hot.Encoded(chunks)))
    return found


def test_the_dispatcher_executes_a_fetch_where_it_was_received(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 3)
    counted = stage.services.metrics.request_seconds.labels("Fetch")
    run, alone = answers(stage, fetch_frame("t"))
    assert run == alone
    assert len(run) == 4 + int.from_bytes(run[:4], "big")
    assert counted.value == 2


def test_a_fetch_that_fails_is_answered_with_an_error(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.topic("t")
    stage.append("t", 3)
    monkeypatch.setattr(fetch.Fetch, "look", lambda *_: 1 // 0)
    run, alone = answers(stage, fetch_frame("t"))
    assert run == alone
    assert decoded(12, SimpleNamespace(chunks=[run[9:]], release=lambda: None)).error == ErrorCode.UNKNOWN_SERVER_ERROR


def test_only_a_whole_small_fetch_is_a_run(stage: Stage) -> None:
    frame = fetch_frame("t")
    for size in range(len(frame)):
        assert hot.decode_fetch_run(memoryview(frame[:size]), 0, size, 4, 18, 5) is None
    run = hot.decode_fetch_run(memoryview(b"xy" + frame + b"z"), 2, 2 + len(frame), 4, 18, 5)
    assert run is not None
    assert (run.version, run.ends, run.request.parts[0].topic) == (12, [2 + len(frame)], "t")
    old, new, negative, long, produce = (bytearray(frame) for _ in range(5))
    old[7], new[7], negative[0], produce[5] = 3, 99, 255, 0
    long += bytes(1024)
    long[:4] = (len(long) - 4).to_bytes(4, "big")
    for data in (old, new, negative, long, produce):
        assert hot.decode_fetch_run(memoryview(data), 0, len(data), 4, 18, 5) is None
    assert hot.decode_fetch_run(memoryview(frame), 0, len(frame), 4, 18, 0) is None, "the connection takes no more"


class Turns:
    """A loop of which a test makes the turns."""

    def __init__(self) -> None:
        self.soon: deque[tuple[Any, tuple[Any, ...]]] = deque()

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.soon.append((callback, args))

    def call_later(self, _: float, callback: Any, *args: Any) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def turn(self) -> None:
        for _ in range(len(self.soon)):
            callback, args = self.soon.popleft()
            callback(*args)


def alive() -> list[Any]:
    """What fetches are made of."""
    kinds = (fetch.Fetch, FetchSession, SessionPart)
    return [found for found in gc.get_objects() if type(found) in kinds and found is not NO_SESSION]


@pytest.mark.parametrize("end", ["data", "time", "connection"])
def test_a_wait_that_is_over_leaves_nothing_to_the_garbage_collector(stage: Stage, end: str) -> None:
    """Thousands of circles a second held the loop for a second each time they were looked for."""
    stage.topic("t")
    loop: Any = Turns()
    timers = Timers(loop, stage.clock)
    stage.services.timers = timers
    dispatcher = dispatch.Dispatcher(stage.services, ByteBudget(1 << 20), QuietLog(stage.clock.mono_ms))
    frame = fetch_frame("t")[4:]
    connection: Any = SimpleNamespace(
        closed=False, login=None, meter=None, muted_until_ms=0, peer=ClientConnection(1, "PLAINTEXT", "127.0.0.1"),
        marks=ConnectionMarks(0), pump=lambda: None, answered=lambda _: None,
    )  # fmt: skip
    slot = Slot(connection, 0)
    gc.collect()
    gc.disable()
    try:
        dispatcher.dispatch(connection, memoryview(bytearray(frame)), slot)
        assert {type(found) for found in alive()} == {fetch.Fetch, FetchSession, SessionPart}
        if end == "data":
            stage.append("t")
            stage.turn()
        elif end == "time":
            stage.clock.now_ms += 1_000
            timers._fire()
        else:
            assert slot.on_drop is not None
            slot.on_drop()
        assert slot.ready == (end != "connection")
        slot.chunks, slot.on_drop = [], None  # as the connection does
        assert not alive()
        assert not stage.partition("t").watchers
        assert len(timers) == 0
    finally:
        gc.enable()


def test_woken_fetches_take_turns() -> None:
    loop: Any = Turns()
    wakes, looked = Wakes(), []
    for number in range(2 * LOOKS_PER_TURN + 1):
        wakes.add(loop, lambda number=number: looked.append(number))
    for turn in range(1, 4):
        assert len(loop.soon) == 1, "one callback, however many wait"
        loop.turn()
        assert looked == list(range(min(turn * LOOKS_PER_TURN, 2 * LOOKS_PER_TURN + 1))), "in their order"
    assert (len(wakes), len(loop.soon)) == (0, 0)
    wakes.add(loop, lambda: looked.append(-1))
    loop.turn()
    assert looked[-1] == -1


def test_a_look_that_fails_stops_no_other() -> None:
    loop: Any = Turns()
    wakes, looked = Wakes(), []
    wakes.add(loop, lambda: 1 // 0)
    wakes.add(loop, lambda: looked.append(1))
    with pytest.raises(ZeroDivisionError):
        loop.turn()
    loop.turn()
    assert looked == [1]


def test_a_batch_for_many_consumers_takes_several_turns(stage: Stage) -> None:
    stage.topic("t", replicas=(ME, BrokerId(OTHER)), isr=(ME,))
    waiting = request(part("t", 0), max_wait_ms=500)
    delayed = [stage.start(handle_fetch, 1, 12, waiting) for _ in range(LOOKS_PER_TURN + 5)]
    stage.append("t")
    stage.turn()
    assert sum(one.done for one in delayed if isinstance(one, DelayedResponse)) == LOOKS_PER_TURN
    stage.turn()
    assert all(isinstance(one, DelayedResponse) and one.done for one in delayed)
