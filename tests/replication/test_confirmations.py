"""Without its lease a leader asks its followers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.log import AppendInfo, Origin
from fleetlog.brokers.replication.partition import Confirmations
from fleetlog.brokers.replication.serving import Serve
from fleetlog.wire.errors import ErrorCode as E
from tests.replication.trio import ALL, THIRD, Trio
from tests.support.stage import ME, OTHER


def test_followers_confirm_a_leader_without_its_lease(trio: Trio) -> None:
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    told: list[E] = []
    trio.p.when_confirmed(told.append)
    assert told == [E.NONE]
    trio.lease = False
    assert trio.p.may_serve(Serve.COORDINATOR_STATE) is E.COORDINATOR_LOAD_IN_PROGRESS
    trio.clock.now_ms += 10
    asked = trio.clock.mono_ms()
    trio.p.when_confirmed(told.append)
    trio.sessions[OTHER].fetched(asked + 5, asked + 1)
    trio.sessions[THIRD].fetched(asked + 5, asked - 1)  # it answers to something sent before the question
    assert told == [E.NONE]
    trio.sessions[THIRD].fetched(asked + 6, asked)
    assert told == [E.NONE, E.NONE]


def test_an_eligible_replica_has_to_confirm_too(tmp_path: Path) -> None:
    """It may be elected while the in-sync set is too small, whatever the members say."""
    trio = Trio(tmp_path, isr=(ME, OTHER), min_insync_replicas="3")
    trio.append("t")
    trio.topic("t", replicas=ALL, isr=(ME, OTHER), epoch=1, min_insync_replicas="3")
    trio.p.update_state(replace(trio.p.state, elr=(THIRD,), elr_incarnations=(trio.incarnation,)))
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)  # not caught up: it is not being proposed
    assert trio.proposals == []
    trio.lease = False
    trio.clock.now_ms += 10
    asked = trio.clock.mono_ms()
    told: list[E] = []
    trio.p.when_confirmed(told.append)
    trio.sessions[OTHER].fetched(asked + 5, asked + 1)
    assert told == []
    trio.sessions[THIRD].fetched(asked + 5, asked + 1)
    assert told == [E.NONE]


def test_a_follower_that_turned_away_confirms_nothing(trio: Trio) -> None:
    trio.lease = False
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    told: list[E] = []
    trio.p.when_confirmed(told.append)
    trio.p.followers.forget_position(trio.sessions[OTHER])
    for session in trio.sessions.values():
        session.fetched(trio.clock.mono_ms() + 9, trio.clock.mono_ms() + 9)
    assert told == []
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    assert told == [E.NOT_LEADER_OR_FOLLOWER]


def test_a_follower_that_fetches_again_confirms_what_was_asked_before(trio: Trio) -> None:
    """A cut ended all fetch sessions, so that none was there to be waited for when the question came."""
    trio.lease = False
    told: list[E] = []
    trio.p.when_confirmed(told.append)
    trio.clock.now_ms += 10
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    for session in trio.sessions.values():
        session.fetched(trio.clock.mono_ms(), trio.clock.mono_ms())
    assert told == [E.NONE]


def test_a_question_that_waits_for_two_followers_is_looked_at_once_for_each_fetch(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for both again after each of their fetches; kept twice, it would be looked at 2^n times."""
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 0)
    trio.lease = False
    trio.clock.now_ms += 1_000
    told: list[E] = []
    for _ in range(3):
        trio.p.when_confirmed(told.append)
    looks: list[None] = []
    look = Confirmations.confirmed_ms
    monkeypatch.setattr(Confirmations, "confirmed_ms", lambda part: looks.append(None) or look(part))
    asked = trio.clock.mono_ms()
    for late_ms in range(16, 0, -1):
        for session in trio.sessions.values():
            session.fetched(asked, asked - late_ms)
    assert told == []
    assert len(looks) == 2 * 16


def test_a_lease_that_comes_back_confirms_what_was_asked_without_it(trio: Trio) -> None:
    trio.lease = False
    told: list[E] = []
    trio.p.when_confirmed(told.append)
    trio.replicas.tick(trio.clock.mono_ms())
    assert told == []
    trio.lease = True
    trio.clock.now_ms += 60_000
    trio.replicas.tick(trio.clock.mono_ms())
    assert told == [E.NONE]


def test_where_anybody_may_be_elected_nothing_is_confirmed(tmp_path: Path) -> None:
    for name, configs, expected in (("a", {}, [E.NONE]), ("b", {"unclean_leader_election_enable": "true"}, [])):
        trio = Trio(tmp_path / name, isr=(ME,), **configs)
        trio.lease = False
        told: list[E] = []
        trio.p.when_confirmed(told.append)
        assert told == expected


def test_a_leader_that_waived_its_lease_asks_its_followers(trio: Trio) -> None:
    told: list[E] = []
    trio.p.waive_lease()
    assert not trio.p.lease_valid()
    assert trio.p.may_serve(Serve.LIST_OFFSETS) is E.NOT_LEADER_OR_FOLLOWER
    assert trio.p.may_serve(Serve.APPEND) is trio.p.may_serve(Serve.FETCH) is E.NONE
    assert trio.p.must_wait(1, 0), "it promises nothing that its followers don't have"
    trio.p.when_confirmed(told.append)
    assert told == []
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    assert told == [E.NOT_LEADER_OR_FOLLOWER]
    trio.topic("t", replicas=ALL, epoch=2)
    assert trio.p.lease_valid(), "a new epoch is a new lease"


def test_a_leader_without_its_lease_finds_nothing_wrong_with_a_batch(trio: Trio) -> None:
    """Its successor's log may have what this one misses before it."""

    def append(sequence: int, size: int = 1) -> AppendInfo:
        batch = encode_batch(
            [Record(-1, 0, None, b"x" * size, ())], producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        return trio.p.append(bytearray(batch), acks=1, origin=Origin.CLIENT)

    assert append(0).error is E.NONE
    assert append(2).error is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(1, 2_000_000).error is E.MESSAGE_TOO_LARGE
    trio.lease = False
    assert append(2).error is E.NOT_LEADER_OR_FOLLOWER
    assert append(1, 2_000_000).error is E.NOT_LEADER_OR_FOLLOWER
    assert append(0).duplicate
    trio.lease = True
    assert append(2).error is E.OUT_OF_ORDER_SEQUENCE_NUMBER
