"""The short way of a Fetch answers as the general way does, or not at all; woken fetches take turns."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brokers.api.base import Connection, Done, Park
from brokers.api.fetch import handle_fetch
from brokers.api.fetch_reads import ZSTD_VERSION
from brokers.api.fetch_short import short_fetch
from brokers.api.fetch_wakes import LOOKS_PER_TURN, Wakes
from brokers.model import BrokerId
from brokers.server import dispatch
from brokers.server.connection import Slot
from brokers.server.limits import ByteBudget, QuietLog
from brokers.server.parking import Parking
from perf.generator.frames import fetch_frame
from tests.server.fetching import part, request
from tests.server.stage import ME, OTHER, Stage, body_of
from wire import hot
from wire.apis import APIS
from wire.errors import ErrorCode

VERSIONS = range(ZSTD_VERSION, APIS[1].max_version + 1)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def either_way(stage: Stage, version: int, asked: Any) -> tuple[Any, Any, bool]:
    """What both ways say (None: wait), and whether the short one said it."""
    short = short_fetch(asked, stage.services, version)
    outcome = stage.start(handle_fetch, 1, version, asked)
    if isinstance(outcome, Park):
        outcome.drop()
    expected = body_of(outcome.response) if isinstance(outcome, Done) else None
    return expected if short is None else body_of(encoded(version, short)), expected, short is not None


def encoded(version: int, found: Any) -> hot.Encoded:
    """The body of what the short way found."""
    return hot.encode_fetch_response(version, [found])


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
def test_both_ways_answer_the_same(stage: Stage, version: int) -> None:
    topics = _topics(stage)
    chosen = random.Random(version)
    ways: dict[bool, int] = {True: 0, False: 0}
    limits = (0, 1, 61, 300, 1_000, 1_500, 1 << 20)
    for info, offset, _ in itertools.product(topics, (-1, 0, 1, 2, 5, 24, 25, 26, 40, 77, 300), range(12)):
        fields = {
            "max_wait_ms": chosen.choice((0, 500)), "min_bytes": chosen.choice((0, 1, 1, 200, 5_000)),
            "max_bytes": chosen.choice(limits), "isolation_level": chosen.choice((0, 0, 0, 1)),
            "rack_id": chosen.choice(("", "", "east")), "replica_id": chosen.choice((-1, -1, -1, -2)),
        }  # fmt: skip
        asked = part(
            info.id if version >= 13 else info.name, offset, current_leader_epoch=chosen.choice((-1, -1, 0, 3, 9)),
            last_fetched_epoch=chosen.choice((-1, -1, 0)), max_bytes=chosen.choice(limits),
        )  # fmt: skip
        ours, expected, short = either_way(stage, version, request(asked, **fields))
        assert ours == expected, (asked, fields)
        ways[short] += 1
    assert min(ways.values()) > 20, f"one of the ways was hardly taken: {ways}"


def test_the_short_way_leaves_to_the_other_what_is_not_there(stage: Stage) -> None:
    info = stage.topic("t", 2)
    stage.append("t", 3)
    assert short_fetch(request(part("t", 0)), stage.services, ZSTD_VERSION) is not None
    assert short_fetch(request(part("t", 0)), stage.services, ZSTD_VERSION - 1) is None
    for asked in (
        request(part("nope", 0)), request(part("t", 0, 7)), request(), request(part("t", 0), part("t", 0, 1)),
        request(part("t", 3), max_wait_ms=500), request(part("t", 0), session_epoch=0),
        request(part("t", 0), session_id=5, session_epoch=4), request(part("t", 0), session_id=5),
    ):  # fmt: skip
        ours, expected, short = either_way(stage, 12, asked)
        assert (ours, short) == (expected, False), asked
    stage.delete("t")
    for asked, version in ((request(part("t", 0)), 12), (request(part(info.id, 0)), 13)):
        assert short_fetch(asked, stage.services, version) is None
    stage.topic("t", 2)  # another topic of the same name
    stage.append("t", 3)
    assert short_fetch(request(part(info.id, 0)), stage.services, 13) is None


def test_an_answer_that_is_not_sent_lets_the_file_go(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 3)
    file: Any = stage.partition("t").log.segments.active.log
    assert short_fetch(request(part("t", 0), min_bytes=1 << 20, max_wait_ms=500), stage.services, 12) is None
    assert not file.pinned
    found = short_fetch(request(part("t", 0)), stage.services, 12)
    assert found is not None
    assert file.pinned
    encoded(12, found).release()
    assert not file.pinned


def test_a_log_that_fails_is_told_by_the_general_way(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 3)
    stage.partition("t").log.offline = True
    assert short_fetch(request(part("t", 0)), stage.services, 12) is None
    ours, expected, _ = either_way(stage, 12, request(part("t", 0)))
    assert ours == expected
    assert int.from_bytes(ours[18:20], "big") == ErrorCode.KAFKA_STORAGE_ERROR


def test_the_dispatcher_asks_the_short_way_first(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves to the general one what has nothing to say, or fails."""
    stage.topic("t")
    stage.append("t", 3)
    frame = fetch_frame("t", 0, batch_bytes=1, batch_records=1, max_bytes=1 << 20).data

    def answer(short: Any, data: bytes = frame) -> tuple[bool, bytes]:
        monkeypatch.setattr(dispatch, "short_fetch", short)
        chunks: list[Any] = []
        slot: Any = SimpleNamespace(answer=chunks.extend, cost=0)
        peer = Connection(1, "PLAINTEXT", "127.0.0.1")
        connection: Any = SimpleNamespace(closed=False, peer=peer, deliver=chunks.extend)
        parking: Any = None
        dispatcher = dispatch.Dispatcher(stage.services, parking, ByteBudget(1 << 20), QuietLog(stage.clock.mono_ms))
        view = memoryview(bytearray(b"before" + data + b"behind"))
        end = dispatcher.dispatch_run(connection, view, 6, 6 + len(data), 5)
        assert end in (6, 6 + len(data))
        if end == 6:
            assert not chunks
            dispatcher.dispatch(connection, view[10 : 6 + len(data)], slot)
        return end > 6, body_of(hot.Encoded(chunks))

    counted = stage.services.metrics.requests.labels("Fetch")
    found = [answer(short_fetch), answer(lambda *_: None), answer(lambda *_: 1 // 0)]
    assert [short for short, _ in found] == [True, False, False]
    assert found[0][1] == found[1][1] == found[2][1]
    assert counted.value == 3
    assert len(found[0][1]) == 4 + int.from_bytes(found[0][1][:4], "big")


def test_only_a_whole_small_fetch_takes_the_short_way(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 3)
    frame = fetch_frame("t", 0, batch_bytes=1, batch_records=1, max_bytes=1 << 20).data
    parking: Any = None
    dispatcher = dispatch.Dispatcher(stage.services, parking, ByteBudget(1 << 20), QuietLog(stage.clock.mono_ms))
    answers: list[Any] = []
    connection: Any = SimpleNamespace(deliver=answers.append)
    for size in range(len(frame)):
        assert dispatcher.dispatch_run(connection, memoryview(frame[:size]), 0, size, 5) == 0
    old, new, negative, long = bytearray(frame), bytearray(frame), bytearray(frame), bytearray(frame + bytes(1024))
    old[7], new[7], negative[0] = 3, 99, 255
    long[:4] = (len(long) - 4).to_bytes(4, "big")
    for wrong in (old, new, negative, long, bytearray(frame[:-1] + b"\x01")):
        assert dispatcher.dispatch_run(connection, memoryview(wrong), 0, len(wrong), 5) == 0
    assert not answers
    assert dispatcher.dispatch_run(connection, memoryview(frame), 0, len(frame), 5) == len(frame)
    assert len(answers) == 1


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


@pytest.mark.parametrize("end", ["data", "time", "connection"])
def test_a_wait_that_is_over_leaves_nothing_to_the_garbage_collector(stage: Stage, end: str) -> None:
    """Thousands of circles a second held the loop for a second each time they were looked for."""
    stage.topic("t")
    loop: Any = Turns()
    parking = Parking(loop, stage.clock)
    dispatcher = dispatch.Dispatcher(stage.services, parking, ByteBudget(1 << 20), QuietLog(stage.clock.mono_ms))
    frame = fetch_frame("t", 0, batch_bytes=1, batch_records=1, max_bytes=1 << 20).data[4:]
    connection: Any = SimpleNamespace(
        closed=False, peer=Connection(1, "PLAINTEXT", "127.0.0.1"), pump=lambda: None, answered=lambda _: None
    )
    slot = Slot(connection, 0)
    gc.collect()
    gc.disable()
    try:
        dispatcher.dispatch(connection, memoryview(bytearray(frame)), slot)
        (waiting,) = stage.partition("t")._watchers
        gone = weakref.ref(waiting)
        del waiting
        if end == "data":
            stage.append("t")
            stage.turn()
        elif end == "time":
            stage.clock.now_ms += 1_000
            parking._fire()
        else:
            assert slot.on_drop is not None
            slot.on_drop()
        assert slot.ready == (end != "connection")
        slot.chunks, slot.on_drop = [], None  # as the connection does
        assert gone() is None
        assert not stage.partition("t")._watchers
        assert len(parking) == 0
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
    parks = [stage.start(handle_fetch, 1, 12, waiting) for _ in range(LOOKS_PER_TURN + 5)]
    stage.append("t")
    stage.turn()
    assert sum(park.done for park in parks if isinstance(park, Park)) == LOOKS_PER_TURN
    stage.turn()
    assert all(isinstance(park, Park) and park.done for park in parks)
