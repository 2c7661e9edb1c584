"""What is fetched is counted when it is answered, also without a look at the clock."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog.brokers.api.base import Context, DelayedResponse, Done
from fleetlog.brokers.api.fetch import handle_fetch
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.quotas.image import CONSUMER_BYTE_RATE, Entity, QuotaImage
from fleetlog.brokers.quotas.metering import Meter, Metering
from tests.support.fetching import decoded, part, request
from tests.support.stage import Stage

VERSION = 12
WINDOWS, WINDOW_MS = 3, 1000


class Consumer:
    """A connection that a quota governs; its requests are executed at once, by the stage's clock."""

    muted: list[int]
    meter: Meter

    def __init__(self, stage: Stage, bytes_per_second: int) -> None:
        metering = Metering(stage.config, stage.clock, Metrics())
        metering.replace(QuotaImage({Entity("ANONYMOUS"): {CONSUMER_BYTE_RATE.name: bytes_per_second * 1000}}))
        meter = metering.meter(SimpleNamespace(listener="PLAINTEXT", principal="User:ANONYMOUS"))
        assert meter is not None
        self.stage, self.meter, self.muted = stage, meter, []
        self.source: Any = SimpleNamespace(closed=False, meter=meter, mute=self.muted.append)

    def fetch(self, offset: int, max_wait_ms: int = 0) -> Any:
        context: Context = self.stage.context(1, VERSION)
        context.source = self.source
        self.meter.asked_s = self.stage.clock.mono_ms() / 1000
        return handle_fetch(request(part("t", offset), max_wait_ms=max_wait_ms), context)

    def used(self) -> int:
        """Bytes in windows that count now."""
        assert self.meter.fetched is not None
        return self.meter.fetched.used(self.stage.clock.mono_ms())


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path, **{"quota.window.num": str(WINDOWS)})
    stage.topic("t")
    return stage


def size_of(outcome: Any) -> int:
    """Bytes of records in an answer."""
    response = outcome.response if isinstance(outcome, Done) else outcome
    return sum(len(found.records) for found in decoded(VERSION, response).parts.values())


def test_an_answer_that_had_to_wait_counts_when_it_leaves(stage: Stage) -> None:
    consumer = Consumer(stage, 1 << 20)
    stage.append("t")
    first = size_of(consumer.fetch(0))
    assert consumer.used() == first > 0
    consumer.fetch(0)
    consumer.fetch(0)
    stage.clock.now_ms += WINDOW_MS // 2
    answers: list[Any] = []
    waits = consumer.fetch(1, max_wait_ms=60_000)
    assert isinstance(waits, DelayedResponse)
    waits.on_done(answers.append)
    stage.clock.now_ms += WINDOWS * WINDOW_MS - WINDOW_MS
    assert consumer.meter.fetched is not None
    assert consumer.meter.fetched.left, "what was granted then is not used up"
    stage.append("t", 3)
    stage.turn()
    (late,) = (size_of(one) for one in answers)
    assert late > first
    stage.clock.now_ms += WINDOW_MS
    assert consumer.used() == late, "of the three before, none counts any more"


def test_an_answer_is_empty_above_the_rate_however_many_came_before_in_the_window(stage: Stage) -> None:
    stage.append("t", size=1000)
    consumer = Consumer(stage, 5_000)
    sizes = [size_of(consumer.fetch(0)) for _ in range(12)]
    assert sizes[0] > 1000
    allowed = WINDOWS - 1  # seconds' worth that may be used at once
    given = allowed * 5_000 // sizes[0]
    assert sizes == [sizes[0]] * given + [0] * (len(sizes) - given)
    assert consumer.muted
    stage.clock.now_ms += WINDOWS * WINDOW_MS
    assert size_of(consumer.fetch(0)) == sizes[0]


def test_what_is_granted_in_a_window_is_not_used_behind_it(stage: Stage) -> None:
    consumer = Consumer(stage, 1 << 20)
    stage.append("t")
    sizes = []
    for _ in range(2 * WINDOWS):
        sizes += [size_of(consumer.fetch(0)) for _ in range(3)]
        stage.clock.now_ms += WINDOW_MS + 1
    counting = WINDOWS - 1
    assert consumer.used() == sum(sizes[-3 * counting :]) > 0
    assert not consumer.muted
