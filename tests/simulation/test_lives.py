"""What clients were told of a topic that is deleted and created again counts for one of its lives."""

from __future__ import annotations

import uuid

from fleetlog.wire.types import TopicPartition
from tests.simulation.lives import Lives
from tests.simulation.world import World

AGAIN, OTHER = TopicPartition("again", 0), TopicPartition("t", 0)


def test_the_end_of_a_deleted_topics_log_says_nothing_of_the_next_one() -> None:
    oracle = World(0).oracle
    lives = Lives(oracle, AGAIN.topic)
    first = lives.begin(uuid.uuid4())
    for tp in (AGAIN, OTHER):
        oracle.told_latest("client", tp, False, 13, 0)
    assert [oracle.begin_latest(tp, False) for tp in (AGAIN, OTHER)] == [13, 13]
    assert oracle.life(AGAIN) is first
    lives.end(first)
    assert oracle.life(AGAIN) is None
    assert oracle.life(OTHER) is not None
    second = lives.begin(uuid.uuid4())
    assert oracle.life(AGAIN) is second
    assert [oracle.begin_latest(tp, False) for tp in (AGAIN, OTHER)] == [0, 13]
    oracle.told_latest("client", OTHER, False, 12, 13)
    assert oracle.violations == ["client was told the latest offset 12 of t-0 after 13"]
