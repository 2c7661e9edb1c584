"""The pure parts: frames out of any splitting of the bytes, answers out in any portions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _native.io import FilePart
from brokers.server.framing import LARGE_FRAME, FrameError, Framer, Outbox
from brokers.server.parking import TICK_MS, TimerWheel


def prefixed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


@settings(deadline=None, max_examples=60)
@given(
    payloads=st.lists(st.binary(max_size=40) | st.integers(LARGE_FRAME - 2, LARGE_FRAME + 300).map(bytes), max_size=8),
    steps=st.lists(st.integers(1, 50_000), min_size=1, max_size=30),
    greedy=st.booleans(),
)
def test_frames_come_out_whole_however_the_bytes_come_in(payloads: list[bytes], steps: list[int], greedy: bool) -> None:
    stream = memoryview(b"".join(map(prefixed, payloads)))
    framer = Framer(LARGE_FRAME * 4)
    found: list[bytes] = []
    turn = 0
    while stream:
        step = framer.room(max(steps[turn % len(steps)], len(stream) // 500))
        assert step > 0
        turn += 1
        framer.feed(stream[:step])
        stream = stream[step:]
        while greedy or not len(stream):
            frame = framer.next()
            if frame is None:
                break
            assert not frame.readonly
            found.append(bytes(frame))
    while (frame := framer.next()) is not None:
        found.append(bytes(frame))
    assert found == payloads
    assert len(framer) == 0


def test_a_frame_keeps_its_bytes_while_more_are_received() -> None:
    framer = Framer(1 << 20)
    framer.feed(prefixed(b"one") + prefixed(b"two"))
    first = framer.next()
    framer.feed(prefixed(b"three"))
    second = framer.next()
    assert first is not None
    assert second is not None
    assert (bytes(first), bytes(second)) == (b"one", b"two")


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_impossible_lengths_are_refused_before_a_byte_of_the_frame(size: int) -> None:
    framer = Framer(1000)
    framer.feed(size.to_bytes(4, "big", signed=True))
    with pytest.raises(FrameError, match="frame of"):
        framer.next()


class Piece:
    def __init__(self, data: bytes, position: int) -> None:
        self.position, self.length, self.released = position, len(data), 0

    def fileno(self) -> int:
        return 7

    def part(self, position: int, length: int) -> FilePart:
        return FilePart(7, position, length)

    def release(self) -> None:
        self.released += 1


@settings(deadline=None, max_examples=60)
@given(
    contents=st.lists(st.tuples(st.booleans(), st.binary(max_size=30)), max_size=12),
    portions=st.lists(st.integers(1, 25), min_size=1),
)
def test_answers_leave_in_order_and_in_any_portions(contents: list[tuple[bool, bytes]], portions: list[int]) -> None:
    pieces, stored = [], b"?" * 100
    for in_file, data in contents:
        if in_file:
            pieces.append(Piece(data, len(stored)))
            stored += data
    queue = iter(pieces)
    outbox = Outbox()
    outbox.put([next(queue) if in_file else data for in_file, data in contents])
    expected = b"".join(data for _, data in contents)
    assert outbox.pending == len(expected)
    sent = b""
    turn = 0
    while outbox.chunks:
        portion = portions[turn % len(portions)]
        turn += 1
        head = outbox.head_slice()
        if head is not None and turn % 3 == 0:
            _, position, length = head
            outbox.read_in(stored[position : position + min(length, portion)])
            continue
        parts = outbox.parts(3)
        assert len(parts) == min(3, len(outbox.chunks))
        data = b"".join(
            stored[part.position : part.position + part.length] if isinstance(part, FilePart) else bytes(part)
            for part in parts
        )[:portion]
        sent += data
        outbox.sent(len(data))
    assert sent == expected
    assert (outbox.pending, outbox.held) == (0, 0)
    assert all(piece.released == 1 for piece in pieces)


def test_dropping_answers_lets_their_files_go() -> None:
    piece = Piece(b"abc", 0)
    outbox = Outbox()
    outbox.put([b"head", piece])
    outbox.sent(5)
    outbox.clear()
    assert piece.released == 1
    assert (outbox.pending, outbox.held, len(outbox.chunks)) == (0, 0, 0)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=40), st.integers(1, 40))
def test_timers_run_in_order_never_early_and_not_when_cancelled(delays: list[tuple[int, bool]], step: int) -> None:
    wheel = TimerWheel()
    ran: list[int] = []
    now = 1_000_003
    for number, (delay, cancelled) in enumerate(delays):
        timer = wheel.add(now, delay, lambda number=number: ran.append(number))
        if cancelled:
            wheel.cancel(timer)
            wheel.cancel(timer)
    start = now
    while (due := wheel.next_ms()) is not None:
        assert due > now - step
        now += step
        before = len(ran)
        for callback in wheel.due(now):
            callback()
        for number in ran[before:]:
            late = now - start - delays[number][0]
            assert 0 <= late < TICK_MS + step
    assert sorted(ran) == [number for number, (_, cancelled) in enumerate(delays) if not cancelled]
    assert wheel.size == 0
