"""Followers with real logs: what KIP-101, KIP-279 and random elections leave behind must be what the leader has.

Each replica has a real ``FollowerRole`` on a real directory, fetched into by a real plan; only the way between leader
and follower is short. The leader answers as ``brokers.api.fetch`` does.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetlog.wire.errors import ErrorCode
from tests.replication.replicas import PAUSE, Replica, same
from tests.support.faulty import Fault
from tests.support.logs import NOW, append, content, end_txn, produced


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[list[Replica]]:
    made = [Replica(number, tmp_path / str(number)) for number in (1, 2, 3)]
    yield made
    for replica in made:
        replica.log.abandon()


def test_a_follower_is_a_copy_batch_by_batch(copies: list[Replica]) -> None:
    leader, follower, _ = copies
    leader.lead(5)
    for count in (1, 3, 2, 7):
        leader.produce(count)
    follower.follow(leader)
    follower.catch_up(leader)
    leader.commit(follower)
    follower.fetch(leader)
    same(leader, follower)
    assert follower.log.high_watermark == 13
    assert (follower.counts.records, follower.counts.fetched_bytes) == (13, len(leader.bytes))
    assert follower.follower_role.lost_commits == 0


def test_kip_101_scenario_one_a_restart_of_both_loses_nothing_committed(copies: list[Replica]) -> None:
    """The follower restarts before it gets the high watermark; truncating to that would lose m2."""
    leader, follower, _ = copies
    leader.lead(0)
    follower.follow(leader)
    leader.produce()
    follower.catch_up(leader)
    leader.commit(follower)
    follower.catch_up(leader)
    leader.produce()
    follower.catch_up(leader)
    leader.commit(follower)  # the follower knows of offset 1 only
    assert (follower.log.log_end_offset, follower.log.high_watermark) == (2, 1)
    follower.restart(clean=False)
    follower.lead(1)
    assert follower.log.log_end_offset == 2
    leader.restart(clean=False)
    leader.follow(follower)
    leader.catch_up(follower)
    same(leader, follower)


def test_kip_101_scenario_two_other_records_at_the_same_offset(copies: list[Replica]) -> None:
    a, b, _ = copies
    a.lead(0)
    b.follow(a)
    a.produce()
    b.catch_up(a)
    a.produce()  # b lacks it; both go down, b comes back first
    b.lead(1)
    b.produce()
    a.restart(clean=False)
    a.follow(b)
    a.catch_up(b)
    same(a, b)
    assert a.epochs == [(0, 0), (1, 1)]


def test_kip_279_quick_changes_of_leader_with_epochs_that_the_other_never_saw(copies: list[Replica]) -> None:
    """The new leader knows nothing of the follower's last epoch, nor the follower of the leader's."""
    a, b, _ = copies
    a.lead(0)
    b.follow(a)
    a.produce(2)
    b.catch_up(a)
    b.lead(1)
    b.produce(3)  # a never fetches these
    a.lead(2)
    a.produce(1)
    a.produce(1)
    b.follow(a)
    b.catch_up(a)
    same(a, b)
    assert b.epochs == [(0, 0), (2, 2)]


def test_several_unshared_epochs_take_several_steps(copies: list[Replica]) -> None:
    a, b, _ = copies
    a.lead(0)
    b.follow(a)
    a.produce(4)
    b.catch_up(a)
    for epoch in range(1, 20, 2):
        a.lead(epoch)
        a.produce()
        b.lead(epoch + 1)
        b.produce(2)
    b.lead(30)
    a.follow(b)
    a.catch_up(b)
    same(a, b)
    assert a.counts.truncations >= 2


def test_an_epoch_without_records_at_the_end_does_not_stop_a_follower(copies: list[Replica]) -> None:
    a, b, _ = copies
    a.lead(0)
    b.follow(a)
    a.produce(2)
    b.catch_up(a)
    b.lead(1)  # and appends nothing
    a.lead(2)
    a.produce()
    b.follow(a)
    b.catch_up(a)
    same(a, b)


def test_a_log_that_starts_in_the_middle_of_a_batch(copies: list[Replica]) -> None:
    """Deleted records may end inside a batch; a new follower gets that batch whole."""
    leader, follower, _ = copies
    leader.lead(0)
    leader.produce(2)
    leader.produce(10)
    leader.produce(1)
    leader.commit()
    leader.log.truncation.delete_records_before(7)
    follower.follow(leader)
    follower.catch_up(leader)
    assert follower.log.log_end_offset == 13
    assert follower.log.log_start_offset == 7
    assert follower.bytes == content(leader.log, 7)


def test_a_follower_that_fell_off_the_leaders_log_starts_over(copies: list[Replica]) -> None:
    leader, follower, _ = copies
    leader.lead(0)
    follower.follow(leader)
    leader.produce(3)
    follower.catch_up(leader)
    leader.produce(5)
    leader.produce(5)
    leader.commit()
    leader.log.truncation.delete_records_before(8)
    follower.follow(leader)
    follower.catch_up(leader)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (8, 13)
    assert follower.bytes == content(leader.log, 8)
    assert follower.follower_role.lost_commits == 0


def test_a_follower_ahead_of_a_leader_elected_uncleanly_is_cut_back_loudly(
    copies: list[Replica], caplog: pytest.LogCaptureFixture
) -> None:
    a, b, c = copies
    a.lead(0)
    for follower in (b, c):
        follower.follow(a)
    a.produce(2)
    c.catch_up(a)
    a.produce(5)
    b.catch_up(a)
    a.commit(b)
    b.catch_up(a)
    c.lead(1)  # out of sync: what the others committed is gone
    b.follow(c)
    for _ in range(3):
        b.fetch(c)
    assert (b.follower_role.lost_commits, b.log.log_end_offset) == (0, 7), "not without an unclean election"
    b.follow(c, unclean=True)
    b.catch_up(c)
    same(b, c)
    assert b.follower_role.lost_commits == 1
    assert "t-0" in caplog.text
    assert "committed records are lost" in caplog.text


def test_an_empty_leader_elected_uncleanly(copies: list[Replica]) -> None:
    a, b, c = copies
    a.lead(0)
    a.produce(5)
    b.follow(a)
    b.catch_up(a)
    c.lead(1)
    b.follow(c)
    b.catch_up(c)
    c.produce(2)
    b.catch_up(c)
    same(b, c)


def test_transactions_and_producers_come_with_the_records(copies: list[Replica]) -> None:
    leader, follower, _ = copies
    leader.lead(0)
    follower.follow(leader)
    append(leader.log, produced(11, 0, 0, 2), epoch=0)
    guard = leader.log.producers.verification_guard(12, 0, 0)
    append(leader.log, produced(12, 0, 0, 3, txn=True), epoch=0, verification_guard=guard)
    follower.catch_up(leader)
    assert follower.log.last_stable_offset == leader.log.last_stable_offset == 2
    end_txn(leader.log, 12, 0, commit=False)
    follower.catch_up(leader)
    same(leader, follower)
    assert follower.log.last_stable_offset == 6
    assert follower.log.reader.aborted_transactions(0, 10) == leader.log.reader.aborted_transactions(0, 10) != []
    follower.lead(1)
    duplicate = append(follower.log, produced(11, 0, 0, 2), epoch=1)
    assert duplicate.duplicate


def test_damage_on_the_way_is_never_appended(copies: list[Replica]) -> None:
    leader, follower, _ = copies
    leader.lead(0)
    leader.produce(3)
    follower.follow(leader)
    for _ in range(8):
        follower.fetch(leader, damage=True)
    assert follower.log.log_end_offset == 0
    assert follower.counts.corrupt > 2
    follower.now += 100_000
    follower.catch_up(leader)
    same(leader, follower)


def test_a_full_disk_is_waited_out_and_a_broken_one_ends_it(copies: list[Replica]) -> None:
    leader, follower, _ = copies
    leader.lead(0)
    leader.produce(3)
    follower.follow(leader)
    follower.disk.faults = [Fault("write", ".log", written=10)]
    follower.fetch(leader)
    follower.fetch(leader)
    assert follower.log.log_end_offset == 0
    follower.disk.faults.clear()
    follower.now += 10 * PAUSE
    follower.catch_up(leader)
    same(leader, follower)
    leader.produce()
    follower.disk.faults = [Fault("write", ".log", errno.EIO)]
    for _ in range(3):
        follower.fetch(leader)
    assert follower.log.offline
    assert follower.plan is not None
    assert follower.plan.next_due_ms() is None


def test_deleted_records_at_the_leader_are_deleted_here(copies: list[Replica]) -> None:
    leader, follower, _ = copies
    leader.lead(0)
    leader.produce(4)
    leader.produce(4)
    follower.follow(leader)
    follower.catch_up(leader)
    leader.commit(follower)
    leader.log.truncation.delete_records_before(4)
    follower.catch_up(leader)
    assert follower.log.log_start_offset == 4
    assert follower.follower_role.fetch_position().log_start_offset == 4
    same(leader, follower)


def test_what_was_fetched_in_another_epoch_is_refused(copies: list[Replica]) -> None:
    leader, follower, _ = copies
    leader.lead(3)
    leader.produce(2)
    follower.follow(leader)
    records = memoryview(leader.bytes)
    for epoch in (2, 4):
        assert follower.follower_role.replicate(epoch, records, 0, 0, NOW) is ErrorCode.FENCED_LEADER_EPOCH
        assert follower.follower_role.diverged(epoch, 0, 0) is ErrorCode.FENCED_LEADER_EPOCH
        assert follower.follower_role.out_of_range(epoch, 5, 9) is ErrorCode.FENCED_LEADER_EPOCH
    follower.is_leader = True
    assert follower.follower_role.replicate(3, records, 0, 0, NOW) is ErrorCode.FENCED_LEADER_EPOCH
    follower.is_leader, follower.deleted = False, True
    assert follower.follower_role.replicate(3, records, 0, 0, NOW) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert follower.log.log_end_offset == 0


def test_an_end_behind_the_leaders_end_is_cut_back(copies: list[Replica]) -> None:
    leader, follower, _ = copies
    leader.lead(0)
    for _ in range(4):
        leader.produce(2)
    follower.follow(leader)
    follower.catch_up(leader)
    assert follower.follower_role.out_of_range(0, 0, 5) is ErrorCode.NONE
    assert follower.log.log_end_offset == 4, "batches are cut whole"
    follower.catch_up(leader)
    same(leader, follower)


# ---- random elections ------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["produce"] * 3 + ["fetch"] * 4 + ["elect", "learn", "restart", "crash", "trim"]),
        st.integers(0, 2),
    ),
    max_size=60,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_in_the_end_all_replicas_have_the_leaders_log(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any replica may be elected at any time, as by unclean elections: the worst that epochs must make good."""
    directory = tmp_path_factory.mktemp("copies")
    copies = [Replica(number, directory / str(number)) for number in (1, 2, 3)]
    epoch, leader = 0, copies[0]
    leader.lead(epoch)
    for what, number in steps:
        replica = copies[number]
        if what == "produce" and replica.is_leader:  # also one that doesn't know yet that it was replaced
            replica.produce(number + 1)
        elif what == "fetch" and replica.plan is not None and replica.state.leader == leader.broker_id:
            replica.fetch(leader)
        elif what == "elect":
            epoch, leader = epoch + 1, replica
            leader.lead(epoch)
        elif what == "learn" and replica is not leader and replica.leader_epoch != epoch:
            replica.follow(leader, unclean=True)
        elif what in ("restart", "crash"):
            replica.restart(clean=what == "restart", lost=number * 50)
        elif what == "trim" and replica is leader:
            replica.commit()
            start = replica.log.log_start_offset
            replica.log.truncation.delete_records_before(start + (replica.log.high_watermark - start) // 2)
        matching(copies)
    leader.lead(epoch + 1)  # it may have lost its own tail
    leader.produce()
    for replica in copies:
        if replica is not leader:
            replica.follow(leader, unclean=True)
            replica.now += 100_000
            replica.catch_up(leader)
            start = max(replica.log.log_start_offset, leader.log.log_start_offset)
            assert replica.log.log_end_offset == leader.log.log_end_offset
            assert content(replica.log, start) == content(leader.log, start)
    for replica in copies:
        replica.log.abandon()


def matching(copies: list[Replica]) -> None:
    """Where two logs hold the same offset of the same epoch, they are the same from there on down."""
    for a, b in itertools.combinations(copies, 2):
        start = max(a.log.log_start_offset, b.log.log_start_offset)
        end = min(a.log.log_end_offset, b.log.log_end_offset)
        common = end
        while common > start and a.log.epochs.epoch_at(common - 1) != b.log.epochs.epoch_at(common - 1):
            common -= 1
        if common > start:
            first, second = content(a.log, start, common), content(b.log, start, common)
            assert first == second, f"replicas {a.broker_id} and {b.broker_id} differ below offset {common}"
