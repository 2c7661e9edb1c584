"""What a leader knows of its followers: which lag, where their logs start, which can serve a consumer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fleetlog.brokers.replication import isr
from tests.replication.trio import ALL, LAG_MS, THIRD, Trio
from tests.support.stage import ME, OTHER


def fetch_idly(trio: Trio) -> None:
    """Both followers are at the end, and name other partitions only, for long."""
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    trio.clock.now_ms += 100 * LAG_MS
    for session in trio.sessions.values():
        session.fetched(trio.clock.mono_ms(), 0)


def leave_after_the_lag_time(trio: Trio) -> None:
    """Both followers were caught up until now: not a ms earlier."""
    trio.clock.now_ms += LAG_MS
    trio.check()
    assert trio.proposals == []
    trio.clock.now_ms += 1
    trio.check()
    assert trio.proposed().isr == (ME,)


def test_a_follower_at_the_end_is_caught_up_as_long_as_its_session_fetches(trio: Trio) -> None:
    fetch_idly(trio)
    trio.append("t")
    leave_after_the_lag_time(trio)


def test_a_follower_whose_session_ends_was_caught_up_until_then(trio: Trio) -> None:
    """Its next one names its partitions in some moments: until then it does not lag."""
    fetch_idly(trio)
    for session in trio.sessions.values():
        trio.p.followers.forget_position(session)
    leave_after_the_lag_time(trio)


def test_a_follower_that_keeps_pace_behind_the_end_is_not_lagging(trio: Trio) -> None:
    for step in range(10):
        trio.append("t")
        trio.fetch(OTHER, step)
        trio.fetch(THIRD, step + 1)
        trio.clock.now_ms += LAG_MS // 2
        trio.check()
    assert trio.proposals == []


def test_a_previous_leader_does_not_know_the_others_log_starts(trio: Trio) -> None:
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    assert trio.p.lowest_start() == 0
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    assert trio.p.lowest_start() == -1, "or a DeleteRecords would be answered as done"


def test_a_deletion_waits_for_every_live_replica(tmp_path: Path) -> None:
    """One that is out of sync may join, and lead, while its log still begins below."""
    trio = Trio(tmp_path, isr=(ME, OTHER))
    for _ in range(3):
        trio.append("t")
    trio.fetch(OTHER, 3)
    trio.fetch(THIRD, 1)
    trio.p.log.truncation.raise_start(2)
    trio.fetch(OTHER, 3, log_start=2)
    assert trio.p.lowest_start() == 0
    trio.fetch(THIRD, 2, log_start=2)
    assert trio.p.lowest_start() == 2
    trio.fetch(THIRD, 2, log_start=1)
    del trio.metadata.brokers[THIRD]
    assert trio.p.lowest_start() == 2, "a replica that is away may not join before it begins there"


def test_a_deletion_does_not_wait_for_a_replica_that_was_moved_away(trio: Trio) -> None:
    for _ in range(2):
        trio.append("t")
    trio.fetch(OTHER, 2)
    trio.fetch(THIRD, 2)
    trio.p.log.truncation.raise_start(2)
    trio.fetch(OTHER, 2, log_start=2)
    assert trio.p.lowest_start() == 0
    known = trio.p.state
    trio.p.update_state(replace(isr.without(known, {THIRD}, 1), replicas=(ME, OTHER), partition_epoch=9))
    assert trio.p.lowest_start() == 2
    assert list(trio.p.followers.ends()) == [OTHER]


def test_a_consumer_is_sent_only_where_its_position_is(trio: Trio) -> None:
    rack = trio.metadata.brokers[OTHER].rack
    assert rack is not None
    for _ in range(3):
        trio.append("t")
    trio.fetch(OTHER, 2, log_start=1)
    assert [trio.p.followers.preferred(rack, offset) for offset in range(4)] == [-1, OTHER, OTHER, -1]
