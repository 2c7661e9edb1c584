"""The pure parts: frames out of any splitting of the bytes, answers out in any portions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog._native.io import FilePart
from fleetlog.brokers.server.framing import (
    LARGE_FRAME,
    LARGE_KEPT,
    LARGE_MOST,
    LARGE_RECEIVE_BYTES,
    RECEIVE_BYTES,
    Blocks,
    FrameError,
    Framer,
    Outbox,
)


def prefixed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


@settings(deadline=None, max_examples=60)
@given(
    payloads=st.lists(
        st.binary(max_size=40) | st.integers(LARGE_FRAME - 10, LARGE_FRAME + 300_000).map(bytes), max_size=12
    ),
    steps=st.lists(st.integers(1, 50_000) | st.integers(300_000, 2_000_000), min_size=1, max_size=30),
    greedy=st.booleans(),
    keeping=st.booleans(),
)
def test_frames_come_out_whole_however_the_bytes_come_in(
    payloads: list[bytes], steps: list[int], greedy: bool, keeping: bool
) -> None:
    stream = memoryview(b"".join(map(prefixed, payloads)))
    blocks = Blocks()
    framer, other = Framer(LARGE_FRAME * 8, blocks), Framer(LARGE_FRAME * 8, blocks)
    found: list[memoryview] = []
    turn = 0
    while stream:
        step = max(steps[turn % len(steps)], len(stream) // 500)
        turn += 1
        if framer.waiting < LARGE_FRAME or not framer.may_be_whole:  # as a connection does
            room = framer.into(step)
            assert 0 < len(room) <= step
            room[: len(stream)] = stream[: len(room)]
            count = min(len(room), len(stream))
            del room
            framer.received(count)
            stream = stream[count:]
        while greedy or not len(stream) or framer.waiting >= LARGE_FRAME:
            frame = framer.next()
            if frame is None:
                break
            assert not frame.readonly
            found.append(frame if keeping else memoryview(bytes(frame)))
            del frame
        framer.keep()
        other.into(1000)[:] = bytes(1000)  # what another connection receives meanwhile
        other.keep()
    while (frame := framer.next()) is not None:
        found.append(frame)
    assert list(map(bytes, found)) == payloads
    assert framer.waiting == 0


def feed(framer: Framer, data: bytes) -> None:
    """Receive ``data``."""
    framer.into(len(data))[:] = data
    framer.received(len(data))


def test_a_frame_keeps_its_bytes_while_more_are_received() -> None:
    blocks = Blocks()
    framer = Framer(1 << 20, blocks)
    feed(framer, prefixed(b"one") + prefixed(b"two"))
    first = framer.next()
    framer.keep()
    feed(framer, prefixed(b"three"))
    second = framer.next()
    assert first is not None
    assert second is not None
    assert (bytes(first), bytes(second)) == (b"one", b"two")


def test_the_begin_of_a_frame_stays_before_what_a_whole_block_receives() -> None:
    framer = Framer(1 << 20, Blocks())
    data = prefixed(b"a frame that comes in two parts")
    for part in (data[:9], data[9:]):
        assert framer.next() is None
        framer.keep()
        framer.into(RECEIVE_BYTES)[: len(part)] = part
        framer.received(len(part))
    frame = framer.next()
    assert frame is not None
    assert bytes(frame) == data[4:]


def test_a_block_is_used_again_only_without_readers() -> None:
    blocks = Blocks(1000)
    first = blocks.common()
    part = first[10:20]
    address = id(first.obj)
    del first
    second = blocks.common()
    assert id(second.obj) != address
    part[:] = b"0123456789"
    assert bytes(second[10:20]) == bytes(10)
    address = id(second.obj)
    del second
    assert id(blocks.common().obj) == address

    large = blocks.large(100_000)
    address, rest = id(large.obj), large[5:]
    assert len(large) == 100_000
    del large
    assert id(blocks.large(100_000).obj) != address
    del rest
    assert id(blocks.large(120_000).obj) == address
    assert len(blocks.large_blocks) == 2


def test_large_blocks_are_kept_in_bounds() -> None:
    blocks = Blocks(1000)
    held = [blocks.large(size) for size in (LARGE_MOST, LARGE_MOST + 1, *[70_000] * 10)]
    assert all(len(metadata) for metadata in held)
    assert len(blocks.large_blocks) == LARGE_KEPT
    assert all(len(block) <= LARGE_MOST for block in blocks.large_blocks)


def test_a_large_frame_is_received_where_it_lies() -> None:
    blocks = Blocks()
    framer = Framer(1 << 20, blocks)
    payload = bytes(range(256)) * 1000
    feed(framer, prefixed(payload)[:70_000])
    assert framer.next() is None
    framer.keep()
    rest = framer.into(1 << 20)
    assert len(rest) == len(payload) - 69_996
    rest[:] = payload[69_996:]
    framer.received(len(rest))
    frame = framer.next()
    assert frame is not None
    assert frame.obj is rest.obj
    assert bytes(frame) == payload
    assert len(framer.into()) == LARGE_RECEIVE_BYTES  # others like it are expected


def test_large_frames_that_wait_are_received_together() -> None:
    """The last of them moves once, to the front of the next block; what comes slowly has a block of its own then."""
    framer = Framer(1 << 20, Blocks())
    payload = bytes(range(256)) * 500
    feed(framer, prefixed(payload))
    assert framer.next() == payload
    framer.keep()
    stream = prefixed(payload) * 4
    for part in (stream[:500_000], stream[500_000:500_001], stream[500_001:]):
        room = framer.into()
        room[: len(part)] = part
        framer.received(len(part))
        while framer.may_be_whole and (frame := framer.next()) is not None:
            assert frame == payload
        framer.keep()
    assert framer.waiting == 0


def test_a_long_begin_of_a_frame_has_room_behind_small_frames() -> None:
    framer = Framer(1 << 21, Blocks())
    feed(framer, prefixed(bytes(LARGE_FRAME)))
    assert framer.next() == bytes(LARGE_FRAME)
    framer.keep()
    payload = bytes(range(250)) * 4_000 + bytes(500_000)
    room, begin = framer.into(), prefixed(b"small") + prefixed(payload)
    room[:] = begin[: len(room)]
    framer.received(len(room))
    assert framer.next() == b"small"
    assert framer.next() is None
    framer.keep()
    position = len(room)
    while position < len(begin):
        room = framer.into()
        count = min(len(room), len(begin) - position)
        assert count > 0
        room[:count] = begin[position : position + count]
        framer.received(count)
        position += count
        frame = framer.next()
        framer.keep()
    assert frame == payload


def test_a_size_that_is_only_claimed_costs_no_memory() -> None:
    framer = Framer(1 << 30, Blocks())
    feed(framer, (1 << 30).to_bytes(4, "big") + b"x")
    assert framer.next() is None
    framer.keep()
    held = b"x"
    while len(held) < 3_000_000:
        room = framer.into(100_000)
        assert len(room.obj) <= 16 * 1024 or len(room.obj) <= 4 * len(held) + LARGE_FRAME
        data = bytes([len(held) % 251]) * len(room)
        room[:] = data
        framer.received(len(room))
        held += data
        assert framer.next() is None
    assert framer._whole is not None
    assert bytes(framer._whole[: len(held)]) == held


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_impossible_lengths_are_refused_before_a_byte_of_the_frame(size: int) -> None:
    framer = Framer(1000, Blocks())
    feed(framer, size.to_bytes(4, "big", signed=True))
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
