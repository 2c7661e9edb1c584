"""What a Produce of several partitions says of one that another broker came to lead before all of it was committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch, stamp
from fleetlog.brokers.api.base import DelayedResponse, Done
from fleetlog.brokers.api.produce import handle_produce
from fleetlog.brokers.api.unpacking import BYTES_PER_TURN
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode
from tests.support.producing import request
from tests.support.stage import ME, OTHER, Stage, body_of

VERSION = 9
NONE, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    stage.services.unpacking.count_on(stage.services.loop.call_soon)
    for topic in "tu":
        stage.topic(topic, replicas=(ME, OTHER), epoch=1)
    return stage


def another_leads_for_a_while(stage: Stage) -> None:
    """What this broker had in the first partition is cut, and another record is committed where it stood."""
    partition = stage.partition("t")
    stage.topic("t", leader=OTHER, replicas=(ME, OTHER), epoch=2)
    partition.log.truncation.truncate_to(0)
    other = bytearray(encode_batch([Record(0, stage.clock.wall_ms(), b"k", b"other", ())]))
    stamp(other, 0, 0, 2, -1)
    partition.log.appender.append_as_follower(other)
    partition.log.appender.set_high_watermark(1)


def packed(stage: Stage) -> bytes:
    return stage.batch(attributes=4, compress=lambda data: compression.compress(4, data))


def errors(stage: Stage, outcome: Any) -> list[ErrorCode]:
    found: list[Any] = []
    if isinstance(outcome, DelayedResponse):
        outcome.on_done(found.append)
        stage.fetched("u", OTHER, 1)
    else:
        found.append(outcome.response)
    (answer,) = found
    message = m.decode_response(0, VERSION, body_of(stage.made(answer)))
    return [ErrorCode(part.error_code) for topic in message.responses for part in topic.partition_responses]


@pytest.mark.parametrize("make", [Stage.batch, packed])
def test_while_it_waits_for_the_others(stage: Stage, make: Callable[[Stage], bytes]) -> None:
    outcome = stage.start(handle_produce, 0, VERSION, request(("t", 0, make(stage)), ("u", 0, make(stage))))
    assert isinstance(outcome, DelayedResponse)
    another_leads_for_a_while(stage)
    assert errors(stage, outcome) == [NOT_LEADER, NONE]


@pytest.mark.parametrize("again", [False, True])
def test_between_two_slices(stage: Stage, again: bool) -> None:
    stage.services.unpacking.spend(BYTES_PER_TURN - 1)
    work: Any = handle_produce(request(("t", 0, packed(stage)), ("u", 0, packed(stage))), stage.context(0, VERSION))
    next(work.work)
    assert [stage.partition(topic).log.log_end_offset for topic in "tu"] == [1, 0]
    another_leads_for_a_while(stage)
    if again:
        stage.topic("t", leader=ME, replicas=(ME, OTHER), epoch=3)
    outcome = stage.made(work)
    assert isinstance(outcome, (Done, DelayedResponse))
    assert errors(stage, outcome) == [NOT_LEADER, NONE]


def test_what_is_committed_before_another_leads_stays_so(stage: Stage) -> None:
    outcome = stage.start(handle_produce, 0, VERSION, request(("t", 0, stage.batch()), ("u", 0, stage.batch())))
    assert isinstance(outcome, DelayedResponse)
    stage.fetched("t", OTHER, 1)
    stage.topic("t", leader=OTHER, replicas=(ME, OTHER), epoch=2)
    stage.topic("t", leader=ME, replicas=(ME, OTHER), epoch=3)
    assert errors(stage, outcome)[0] == NONE
