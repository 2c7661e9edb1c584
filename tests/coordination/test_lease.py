"""The lease, as a pure thing: what counts as proof, and that it never outlasts the session."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog.coordination.store import SessionLease
from tests.support.clocks import ManualClock
from tests.support.draw import examples

TIMEOUT_MS = 6000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lease(clock: ManualClock) -> SessionLease:
    lease = SessionLease(clock.mono_ms)
    lease.handshake(clock.now_ms, TIMEOUT_MS)
    return lease


def test_there_is_none_before_a_session() -> None:
    lease = SessionLease(ManualClock().mono_ms)
    assert not lease.valid()
    assert lease.remaining_ms() == 0


def test_it_counts_from_the_sending_of_the_handshake(clock: ManualClock, lease: SessionLease) -> None:
    assert lease.remaining_ms() == TIMEOUT_MS - lease.margin_ms
    clock.now_ms += TIMEOUT_MS - lease.margin_ms - 1
    assert lease.valid()
    clock.now_ms += 1
    assert not lease.valid()


def test_two_answers_prove_nothing_the_third_proves_the_first(clock: ManualClock, lease: SessionLease) -> None:
    start_ms = clock.now_ms
    for _ in range(2):
        clock.now_ms += 1000
        lease.heartbeat_answered(clock.now_ms)
        assert lease.remaining_ms() == start_ms + TIMEOUT_MS - lease.margin_ms - clock.now_ms
    clock.now_ms += 1000
    lease.heartbeat_answered(clock.now_ms)
    assert lease.remaining_ms() == start_ms + 1000 + TIMEOUT_MS - lease.margin_ms - clock.now_ms


def test_a_broken_connection_starts_the_proof_anew_and_keeps_the_lease(clock: ManualClock, lease: SessionLease) -> None:
    for _ in range(2):
        clock.now_ms += 1000
        lease.heartbeat_answered(clock.now_ms)
    lease.disconnected()
    before_ms = lease.remaining_ms()
    lease.heartbeat_answered(clock.now_ms)
    assert lease.remaining_ms() == before_ms > 0


def test_the_end_of_the_session_ends_it_and_late_answers_do_not_revive_it(lease: SessionLease) -> None:
    lease.ended()
    for _ in range(5):
        lease.heartbeat_answered(2_000_000)
    assert not lease.valid()


def test_steady_heartbeats_keep_it_up_with_room_to_spare(clock: ManualClock, lease: SessionLease) -> None:
    for _ in range(50):
        clock.now_ms += lease.heartbeat_interval_ms
        sent_ms = clock.now_ms
        clock.now_ms += 50
        assert lease.remaining_ms() > TIMEOUT_MS // 4
        lease.heartbeat_answered(sent_ms)


@given(st.integers(0, 2**32))
@settings(max_examples=examples(200), deadline=None)
def test_never_longer_than_the_session_behind_a_follower(seed: int) -> None:
    """A model of the delays: a follower forwards heartbeats only with its answers to the leader's pings."""
    rng = random.Random(seed)
    clock = ManualClock()
    lease = SessionLease(clock.mono_ms)
    tick_ms = rng.choice((500, 1000, TIMEOUT_MS // 3))
    lease.handshake(clock.now_ms, TIMEOUT_MS)
    leader_heard_ms = clock.now_ms  # what the leader heard last from us
    follower_heard_ms = clock.now_ms  # the follower's, not yet passed on
    next_ping_ms = clock.now_ms + rng.randrange(1, tick_ms // 2 + 1)
    end_ms = clock.now_ms + rng.randrange(10_000, 40_000)  # here the follower is cut from its leader, for good

    def pass_time(until_ms: int) -> None:
        nonlocal next_ping_ms, leader_heard_ms
        while next_ping_ms <= min(until_ms, end_ms):
            if follower_heard_ms > leader_heard_ms:
                leader_heard_ms = next_ping_ms
            next_ping_ms += tick_ms // 2
        clock.now_ms = until_ms

    while clock.now_ms < end_ms:
        pass_time(clock.now_ms + lease.heartbeat_interval_ms)
        sent_ms = clock.now_ms
        follower_heard_ms = sent_ms + 1
        pass_time(clock.now_ms + rng.randrange(2, 200))
        if clock.now_ms < end_ms:  # a sync is answered only with the leader's help
            lease.heartbeat_answered(sent_ms)
    clock.now_ms = max(clock.now_ms, leader_heard_ms + TIMEOUT_MS)
    assert not lease.valid()
