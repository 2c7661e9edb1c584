"""Closed segments are read again in the background: a flipped bit is named, and what changed meanwhile is not."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetlog.brokers.log.segment import Segment
from fleetlog.brokers.log.verify import MOST_LOGS, MOST_SEGMENTS, BackgroundVerify
from fleetlog.wire.types import TopicPartition
from tests.support.stage import Stage

RATE = "log.verify.bytes.per.second"
LARGE = str(10**9)
T0 = TopicPartition("t", 0)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = made(tmp_path, LARGE)
    yield stage
    stage.close()


def made(directory: Path, rate: str, logs: int = 2) -> Stage:
    stage = Stage(directory, **{RATE: rate, "log.segment.bytes": "1000"})
    stage.topic("t", logs)
    for index in range(logs):
        for _ in range(20):
            stage.append("t", 3, index, size=20)
    return stage


def closed(stage: Stage, index: int = 0) -> list[Segment]:
    segments = stage.partition("t", index).log.segments
    return [one for one in segments if one is not segments.active]


def turn(verify: BackgroundVerify) -> None:
    """One second's step, and its end."""
    verify.step()
    under_way = verify.round
    if under_way is not None and under_way.pending is not None:
        assert under_way.pending.wait(20)


def whole_pass(verify: BackgroundVerify) -> None:
    """From the first segment to the last, with what was found."""
    goal, deadline_s = verify.passes + 1, time.monotonic() + 60
    while verify.passes < goal or verify.round is not None:
        assert time.monotonic() < deadline_s
        turn(verify)
        if verify.passes >= goal:
            verify.queue.clear()
            if verify.round is not None and verify.round.ended:
                verify._take(verify.round)


def flip(segment: Segment, position: int) -> None:
    with open(segment.log.path, "r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def test_whole_segments_are_counted_and_nothing_is_told(stage: Stage) -> None:
    verify = stage.logs.verify
    whole_pass(verify)
    every = [one for index in (0, 1) for one in closed(stage, index)]
    assert len(every) > 4
    assert verify.segments == len(every)
    assert verify.bytes == sum(one.size for one in every)
    assert (verify.damaged, verify.failures, verify.troubles()) == ({}, 0, [])


def test_a_flipped_bit_is_named_by_file_position_and_offset(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    verify, segment = stage.logs.verify, closed(stage)[1]
    positions = [(position, header) for position, header in segment.headers()]
    position, header = positions[2]
    flip(segment, position + 80)
    caplog.set_level(logging.ERROR)
    whole_pass(verify)
    (damage,) = verify.damaged.values()
    assert (damage.path, damage.position, damage.offset) == (segment.log.path, position, header.base_offset)
    assert "checksum" in damage.reason
    (line,) = [record.getMessage() for record in caplog.records]
    place = f"offset {header.base_offset}, position {position}"
    assert line.startswith(f"segment {segment.log.path} is damaged at {place}: ")
    assert verify.troubles() == stage.replicas.troubles() == [str(damage)]
    assert verify.failures == 1
    assert verify.segments == len(closed(stage)) + len(closed(stage, 1)), "the others are checked all the same"
    whole_pass(verify)
    assert (len(caplog.records), verify.failures) == (1, 1), "a known one is told once"
    flip(segment, position + 80)
    whole_pass(verify)
    assert verify.troubles() == [], "what is whole again is no trouble any more"


def test_a_cut_file_is_damaged(stage: Stage) -> None:
    segment = closed(stage)[0]
    os.truncate(segment.log.path, segment.size - 7)
    whole_pass(stage.logs.verify)
    (damage,) = stage.logs.verify.damaged.values()
    assert damage.reason == "a closed segment ends in half a batch"


def test_a_file_that_is_gone_is_damaged(stage: Stage) -> None:
    segment = closed(stage)[0]
    os.rename(segment.log.path, segment.log.path + ".away")
    whole_pass(stage.logs.verify)
    (damage,) = stage.logs.verify.damaged.values()
    assert damage.reason.startswith("it cannot be read: ")
    os.rename(segment.log.path + ".away", segment.log.path)


def test_segments_that_are_deleted_or_cut_meanwhile_are_not_told(stage: Stage) -> None:
    verify, log = stage.logs.verify, stage.partition("t", 0).log
    flip(closed(stage)[0], 80)
    verify.step()
    under_way = verify.round
    assert under_way is not None
    assert under_way.pending is not None
    assert under_way.pending.wait(20)
    assert [damage for _, damage in under_way.found if damage is not None]
    log.truncation.truncate_to(log.log_end_offset - 1, now_ms=stage.clock.wall_ms())
    verify.step()
    assert verify.damaged == {}


def test_damage_of_a_topic_that_is_deleted_goes(stage: Stage) -> None:
    verify = stage.logs.verify
    flip(closed(stage)[0], 80)
    whole_pass(verify)
    assert [key[0] for key in verify.damaged] == [T0]
    stage.logs.delete(T0)
    verify.queue.extend([(T0, -1)])
    turn(verify)
    assert verify.damaged == {}


def test_a_second_reads_no_more_than_its_share(tmp_path: Path) -> None:
    stage = made(tmp_path, "1")
    verify, seen = stage.logs.verify, 0
    largest = max(one.size for one in closed(stage))
    for _ in range(5):
        turn(verify)
        under_way = verify.round
        assert under_way is not None
        assert under_way.handled_bytes <= largest, "a step is a chunk of one segment at least"
        seen += 1
    assert seen == 5
    assert verify.segments <= 5
    stage.close()


def test_off_it_does_nothing(tmp_path: Path) -> None:
    stage = made(tmp_path, "0")
    flip(closed(stage)[0], 80)
    for _ in range(3):
        stage.logs.tick(stage.clock.wall_ms())
    verify = stage.logs.verify
    assert (verify.round, verify._work_disk, verify.bytes, verify.damaged) == (None, None, 0, {})
    assert not verify.queue
    stage.close()


def test_many_logs_are_looked_at_some_at_a_time(stage: Stage) -> None:
    verify = stage.logs.verify
    verify.queue.extend((TopicPartition("gone", index), -1) for index in range(MOST_LOGS + 5))
    assert verify._choose(10**9) == []
    assert len(verify.queue) == 5
    assert MOST_SEGMENTS < MOST_LOGS
