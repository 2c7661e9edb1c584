"""A Produce to many partitions may be interrupted between them; its outcome is in ``test_produce.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleetlog.wire.messages as m
from fleetlog._native.batch import stamp
from fleetlog.brokers.api.base import Done
from fleetlog.brokers.api.fetch_answers import SLICE_PARTS
from fleetlog.brokers.api.produce import LONG_PARTS, handle_produce
from fleetlog.wire.errors import ErrorCode
from tests.support.logs import batch
from tests.support.producing import request
from tests.support.stage import ME, OTHER, Stage, body_of

VERSION = 9


def test_others_have_their_turn_while_it_is_appended_and_answered(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.topic("t", 2)
    count, places = 2 * LONG_PARTS, []
    stage.between = lambda: places.append(stage.partition("t").log.log_end_offset)
    parts = [("t", number % 2, stage.batch()) for number in range(count)]
    outcome = stage.start(handle_produce, 0, VERSION, request(*parts))
    assert isinstance(outcome, Done)
    slices = count // SLICE_PARTS
    assert places[:slices] == [number * SLICE_PARTS // 2 for number in range(slices)]
    assert len(places) == slices + 2 * slices // SLICE_PARTS, "what to wait for is found out in slices, too"
    places.clear()
    encoded = stage.made(outcome.response)
    assert len(places) > slices, "rows are made, then encoded"
    (topic,) = m.decode_response(0, VERSION, body_of(encoded)).responses
    assert [one.base_offset for one in topic.partition_responses] == [number // 2 for number in range(count)]


def test_a_request_to_few_partitions_is_not_interrupted(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.topic("t", 2)
    places: list[int] = []
    stage.between = lambda: places.append(1)
    outcome = stage.start(
        handle_produce, 0, VERSION, request(*(("t", number % 2, stage.batch()) for number in range(LONG_PARTS)))
    )
    assert isinstance(outcome, Done)
    assert body_of(outcome.response)
    assert not places


def test_a_request_that_times_out_answers_by_what_was_committed_then(tmp_path: Path) -> None:
    """While its answer is made another leader may have put its own records at the same offsets."""
    stage = Stage(tmp_path)
    stage.services.unpacking.count_on(stage.services.loop.call_soon)
    stage.topic("u", LONG_PARTS, replicas=(ME, OTHER), epoch=1)
    stage.topic("t", replicas=(ME, OTHER), epoch=1)
    parts = [("u", number, stage.batch()) for number in range(LONG_PARTS)] + [("t", 0, stage.batch())]
    outcome = stage.start(handle_produce, 0, VERSION, request(*parts))
    answers: list[Any] = []
    outcome.on_done(answers.append)
    outcome.expire()
    (work,) = answers
    for _ in range(5):
        next(work.work)
    stage.topic("t", leader=OTHER, replicas=(ME, OTHER), epoch=2)
    log = stage.partition("t").log
    log.truncation.truncate_to(0)
    other = bytearray(batch(value=b"another's"))
    stamp(other, 0, 0, 2, -1)
    assert log.appender.append_as_follower(other).error == 0
    log.appender.set_high_watermark(1)
    response = m.decode_response(0, VERSION, body_of(stage.made(work)))
    for topic in response.responses:
        assert {one.error_code for one in topic.partition_responses} == {ErrorCode.REQUEST_TIMED_OUT}
