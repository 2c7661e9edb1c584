"""The judge of histories: what a new leader must have is what leaders before it committed."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog.brokers.log.log import Log
from tests.simulation.invariants import Oracle, hooked
from tests.support.logs import TP, append, batch, open_log

TOPIC_ID = uuid.UUID(int=1)


def led_by(oracle: Oracle, log: Log, epoch: int) -> Any:
    """A replica whose broker leads in that epoch."""
    partition = SimpleNamespace(tp=TP, topic_id=TOPIC_ID, log=log, is_leader=True, leader_epoch=epoch)
    oracle.shadow_of(log).partition = partition  # type: ignore[assignment]
    return partition


@pytest.mark.parametrize(
    ("committed_in", "begins", "good"),
    [
        pytest.param(0, 1, False, id="its own leader committed the batch"),
        pytest.param(2, 1, True, id="a later leader held the batch and committed it"),
        pytest.param(2, 3, False, id="a leader between them committed it"),
    ],
)
def test_a_new_leader_has_what_leaders_of_earlier_epochs_committed(
    committed_in: int, begins: int, good: bool, tmp_path: Path
) -> None:
    world: Any = SimpleNamespace(
        note=lambda _: None,
        loop=SimpleNamespace(current=lambda: SimpleNamespace(name="b1#1")),
    )
    oracle = Oracle(world)
    oracle.check_candidates = lambda *_: None  # type: ignore[method-assign]
    with closing(open_log(tmp_path / "has")) as has, closing(open_log(tmp_path / "lacks")) as lacks, hooked(oracle):
        led_by(oracle, has, committed_in)
        append(has, batch(), epoch=0)
        assert oracle.truths[TOPIC_ID, TP.partition].end == 1
        oracle.led(led_by(oracle, lacks, begins), begins)
    assert bool(oracle.violations) is not good, oracle.violations
