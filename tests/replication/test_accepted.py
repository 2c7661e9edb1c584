"""A follower of a topic that drops duplicates is told what its leader had accepted before it fetches, if it lacks that;
and how the leader tells it, over the real handler and bytes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api.replicas import handle_accepted_positions
from fleetlog.brokers.log.positions import PAGE_POSITIONS
from fleetlog.brokers.replication import accepted
from fleetlog.brokers.replication.fetch_plan import LackingReplica
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from tests.log.sourced import DECAY, DEDUP, damage, known, sets_of, sourced, values
from tests.replication.replicas import ID, TP, Replica
from tests.support.logs import NOW, append
from tests.support.stage import ME, OTHER, Stage

KEY = api_keys.ACCEPTED_POSITIONS
WINDOW = DEDUP.fleetlog_dedup_window_ms
LATER = NOW + 3 * WINDOW


class Line:
    """The way to a broker: requests and answers go through bytes; ``twist`` changes an answer on the way."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.positions: list[int] = []
        self.twist = lambda answer: None

    async def call(self, broker_id: int, api_key: int, version: int, message: Any, timeout_ms: int = 30_000) -> Any:
        request = m.decode_request(api_key, version, memoryview(message.encode(version=version)))
        self.positions.append(request.position)
        work = handle_accepted_positions(request, self.stage.context(api_key, version))
        while True:
            try:
                next(work.work)
            except StopIteration as end:
                answer = m.decode_response(api_key, version, m.encode_response(end.value.response, api_key, version))
                self.twist(answer)
                return answer

    async def exchange(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int = 30_000
    ) -> memoryview:
        raise NotImplementedError


def ask(line: Line, topic_id: Any, epoch: int = 3, offset: int = 0) -> memoryview | ErrorCode:
    lacking = LackingReplica((topic_id, 0), TP, epoch, offset)
    return asyncio.run(accepted.ask_accepted(line, ME, lacking, NOW))


@pytest.fixture
def copies(tmp_path: Path) -> list[Replica]:
    return [Replica(number, tmp_path / str(number), fleetlog_dedup="source") for number in (1, 2)]


def write(leader: Replica, *positions: int, now_ms: int = NOW) -> Any:
    return append(leader.log, sourced(*positions), epoch=leader.leader_epoch, commit_hw=False, now_ms=now_ms)


def away_for_too_long(leader: Replica, follower: Replica) -> None:
    """The leader refuses position 5, and has no record from then any more; the follower has nothing later."""
    leader.lead(0)
    follower.follow(leader)
    write(leader, 5)
    follower.catch_up(leader)
    write(leader, 3 * PAGE_POSITIONS, now_ms=LATER)
    leader.log.appender.roll(LATER)
    write(leader, 3 * PAGE_POSITIONS + 1, now_ms=LATER)
    leader.commit()
    leader.log.truncation.delete_records_before(2)
    leader.log.truncation.remove_segments([leader.log.segments.first], LATER)
    assert write(leader, 5, now_ms=LATER).error is ErrorCode.INVALID_RECORD


def equal(leader: Replica, follower: Replica) -> None:
    assert follower.log.log_end_offset == leader.log.log_end_offset
    assert follower.bytes == leader.bytes


def test_one_that_was_away_for_longer_than_records_are_kept_refuses_what_its_leader_refused(
    copies: list[Replica],
) -> None:
    leader, follower = copies
    away_for_too_long(leader, follower)
    follower.follow(leader)
    follower.catch_up(leader)
    equal(leader, follower)
    assert known(follower.log) == known(leader.log)
    follower.lead(1)
    assert write(follower, 5, now_ms=LATER).error is ErrorCode.INVALID_RECORD
    write(follower, 3 * PAGE_POSITIONS, 3 * PAGE_POSITIONS + 1, 3 * PAGE_POSITIONS + 2)
    assert [value for _, value in values(follower.log)] == [b"%d" % (3 * PAGE_POSITIONS + n) for n in (1, 2)]


def test_it_fetches_nothing_before_it_is_told(copies: list[Replica]) -> None:
    leader, follower = copies
    away_for_too_long(leader, follower)
    follower.tell = lambda leader, lacking: ErrorCode.OFFSET_NOT_AVAILABLE
    follower.follow(leader)
    for _ in range(20):
        follower.fetch(leader)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (2, 2)
    follower.restart(clean=False)
    follower.follow(leader)
    for _ in range(20):
        follower.fetch(leader)
    assert follower.log.log_end_offset == 2, "nor after a restart"
    del follower.tell
    follower.catch_up(leader)
    equal(leader, follower)
    assert known(follower.log) == known(leader.log)


@pytest.mark.parametrize("what", DECAY)
def test_one_that_cannot_read_a_batch_is_told_what_was_accepted_in_it(copies: list[Replica], what: str) -> None:
    """Else it would lead with fewer positions than its log has, and take a repeat that it replicates to sound ones."""
    leader, follower = copies
    leader.lead(0)
    follower.follow(leader)
    for position in range(6):
        write(leader, position)
        follower.catch_up(leader, 3)
        if position % 3 == 2:
            follower.log.appender.roll(NOW)
    leader.commit(follower)
    follower.catch_up(leader, 3)
    before = known(leader.log)
    damage(follower.log, 1, what)
    follower.restart(snapshots=False)
    assert follower.log.lacks_positions == ("records" in what)
    write(leader, 6)
    follower.follow(leader)
    follower.catch_up(leader)
    assert known(follower.log) == known(leader.log) != before
    follower.lead(1)
    write(follower, *range(7))
    assert follower.log.log_end_offset == 14, "a repeat keeps its offsets"
    assert list(sets_of(follower.log).sources) == [b"q:1"]
    assert sets_of(follower.log).dropped == 7


def test_a_leader_that_cannot_tell_is_followed_as_before(
    copies: list[Replica], caplog: pytest.LogCaptureFixture
) -> None:
    leader, follower = copies
    away_for_too_long(leader, follower)
    follower.tell = lambda leader, lacking: None
    follower.follow(leader)
    follower.catch_up(leader)
    equal(leader, follower)
    assert "leader 1 is of a version that cannot tell" in caplog.text


def test_nonsense_is_not_believed(copies: list[Replica]) -> None:
    leader, follower = copies
    away_for_too_long(leader, follower)
    follower.tell = lambda leader, lacking: memoryview(b"\0\0\0\2nonsense")
    follower.follow(leader)
    for _ in range(20):
        follower.fetch(leader)
    assert follower.log.lacks_positions
    assert follower.log.log_end_offset == 2


def test_a_log_that_starts_in_the_middle_of_a_batch(copies: list[Replica]) -> None:
    """What was accepted in the part of the batch that is deleted is known, too."""
    leader, follower = copies
    leader.lead(0)
    write(leader, 1, 2)
    write(leader, *range(10, 20))
    write(leader, 30)
    leader.commit()
    leader.log.truncation.delete_records_before(7)
    follower.follow(leader)
    follower.catch_up(leader)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (7, 13)
    assert known(follower.log) == known(leader.log)


def test_a_new_replica_of_a_log_that_was_trimmed(copies: list[Replica], tmp_path: Path) -> None:
    leader, follower = copies
    away_for_too_long(leader, follower)
    fresh = Replica(3, tmp_path / "fresh", fleetlog_dedup="source")
    fresh.follow(leader)
    fresh.catch_up(leader)
    equal(leader, fresh)
    fresh.lead(1)
    assert write(fresh, 5, now_ms=LATER).error is ErrorCode.INVALID_RECORD


# ---- the handler


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_leader_tells_in_parts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted, "PART_BYTES", 100)
    topic = stage.topic("once", epoch=3, **{"fleetlog.dedup": "source"})
    log = stage.partition("once").log
    for page in range(20):
        append(log, sourced(page * PAGE_POSITIONS), epoch=3)
    log.appender.roll(NOW)
    append(log, sourced(7), epoch=3)
    line = Line(stage)
    told = ask(line, topic.id, offset=20)
    assert not isinstance(told, ErrorCode)
    assert line.positions == list(range(0, len(told), 100))
    assert len(told) > 500


def test_who_does_not_lead_or_has_nothing_to_tell_says_so(stage: Stage) -> None:
    plain = stage.topic("plain", epoch=3)
    once = stage.topic("once", epoch=3, **{"fleetlog.dedup": "source"})
    followed = stage.topic("followed", epoch=3, leader=OTHER, replicas=(ME, OTHER), **{"fleetlog.dedup": "source"})
    line = Line(stage)
    assert ask(line, plain.id) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert ask(line, followed.id) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(line, ID) is ErrorCode.UNKNOWN_TOPIC_ID
    assert ask(line, once.id, epoch=2) is ErrorCode.FENCED_LEADER_EPOCH
    assert ask(line, once.id, epoch=4) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert not isinstance(ask(line, once.id), ErrorCode)


def test_parts_that_do_not_belong_together_are_asked_for_again(stage: Stage) -> None:
    topic = stage.topic("once", epoch=3, **{"fleetlog.dedup": "source"})
    append(stage.partition("once").log, sourced(7), epoch=3)
    line = Line(stage)

    def damaged(answer: Any) -> None:
        answer.checksum ^= 1

    line.twist = damaged
    assert ask(line, topic.id) is ErrorCode.CORRUPT_MESSAGE


def test_a_last_replica_leads_without_what_nobody_knows(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.topic("once", epoch=3, leader=OTHER, replicas=(ME, OTHER), **{"fleetlog.dedup": "source"})
    partition = stage.partition("once")
    partition.follower_role.out_of_range(3, 40, 50)
    assert partition.log.lacks_positions
    stage.topic("once", epoch=4, leader=ME, replicas=(ME, OTHER), **{"fleetlog.dedup": "source"})
    assert not partition.log.lacks_positions
    assert "leading without what was accepted before offset 40" in caplog.text
    assert append(partition.log, sourced(1), epoch=4).error is ErrorCode.NONE
    assert sets_of(partition.log).sources
