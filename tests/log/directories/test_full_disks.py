"""When a directory that was full is tried again."""

from __future__ import annotations

import pytest

from fleetlog.brokers.log.directories.directories import CALM_MS, FIRST_PAUSE_MS, LONGEST_PAUSE_MS, Room
from fleetlog.brokers.model import FREE_BYTES_MOST, has_room
from fleetlog.wire.types import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("total", "usable", "enough"),
    [(1000, 49, False), (1000, 50, True), (1 << 50, FREE_BYTES_MOST - 1, False), (1 << 50, FREE_BYTES_MOST, True),
     (-1, -1, False), (0, 0, False)],
)  # fmt: skip
def test_how_much_room_is_enough(total: int, usable: int, enough: bool) -> None:
    assert has_room(total, usable) is enough


def test_a_refusal_is_news_once_and_begins_the_pause_anew() -> None:
    room = Room()
    assert not room.due(0)
    assert room.refused(A, 1000)
    assert not room.refused(B, 1500)
    assert not room.due(1499 + FIRST_PAUSE_MS)
    assert room.due(1500 + FIRST_PAUSE_MS)
    assert room.returned(3000) == [A, B]
    assert not room.due(1 << 40)


def test_a_directory_that_fills_up_again_and_again_is_tried_less_often() -> None:
    room, now, pauses = Room(), 0, []
    for _ in range(8):
        room.refused(A, now)
        pause = next(ms for ms in range(FIRST_PAUSE_MS, LONGEST_PAUSE_MS + 1, FIRST_PAUSE_MS) if room.due(now + ms))
        pauses.append(pause)
        now += pause
        room.returned(now)
    assert pauses == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]
    room.refused(A, now + CALM_MS)
    assert room.due(now + CALM_MS + FIRST_PAUSE_MS), "it was calm for long"
