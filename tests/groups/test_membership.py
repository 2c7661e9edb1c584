"""Transcripts of classic groups: joining, leaving, dying, restarting, rebalancing."""

from __future__ import annotations

import pytest

from fleetlog.brokers.groups import classic
from fleetlog.brokers.groups import shard as shard_module
from fleetlog.brokers.groups.members import GroupState
from fleetlog.brokers.groups.requests import GroupSettings, Leaver, Protocol
from fleetlog.wire.errors import ErrorCode
from tests.support.gauges import added_up
from tests.support.group_driver import Client, Driver, assign, settle


@pytest.fixture
def driver() -> Driver:
    return Driver()


def state(driver: Driver, group: str = "g") -> GroupState:
    return driver.shard.groups[group].state


def test_three_members_join_in_the_first_rebalance_delay(driver: Driver) -> None:
    a, b, c = (Client(driver, name) for name in "abc")
    a.join()
    driver.advance(2_000)
    b.join()
    driver.advance(1_500)  # the first delay is over, but b came in it: it is prolonged
    assert not a.joining.done
    c.join()
    driver.advance(6_000)
    leader = assign(a, b, c)
    assert leader is a
    assert {m.member_id for m in a.joining.response.members} == {a.member_id, b.member_id, c.member_id}
    assert b.joining.response.members == ()
    assert state(driver) is GroupState.STABLE
    assert [x.heartbeat() for x in (a, b, c)] == [ErrorCode.NONE] * 3
    assert a.generation == 1


def test_the_initial_delay_ends_with_the_rebalance_timeout(driver: Driver) -> None:
    a = Client(driver, "a", rebalance_ms=5_000)
    a.join()
    driver.advance(2_900)
    late = Client(driver, "late", rebalance_ms=5_000)
    late.join()
    driver.advance(2_200)  # 3 s and the remaining 2 s
    assert a.joining.done
    assert late.joining.done


def test_without_an_initial_delay_the_first_member_is_served_at_once() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=0))
    a = Client(driver, "a")
    assert a.join().done
    assert assign(a) is a


def test_a_member_leaves_and_the_others_rebalance(driver: Driver) -> None:
    a, b, c = (Client(driver, name) for name in "abc")
    settle(a, b, c)
    assert c.leave() is ErrorCode.NONE
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    a.join()
    assert not a.joining.done
    b.join()
    assign(a, b)
    assert a.generation == 2
    assert c.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_when_the_leader_leaves_another_leads(driver: Driver) -> None:
    a, b, c = (Client(driver, name) for name in "abc")
    settle(a, b, c)
    a.leave()
    b.join()
    c.join()
    assert assign(b, c) is b


def test_a_silent_member_is_dropped_after_its_session(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b")
    settle(a, b)
    for _ in range(4):
        driver.advance(3_000)
        a.heartbeat()
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    a.join()
    assert assign(a) is a
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeats_keep_a_member_for_ever(driver: Driver) -> None:
    a = Client(driver, "a")
    settle(a)
    for _ in range(50):
        driver.advance(9_999)
        assert a.heartbeat() is ErrorCode.NONE


def test_a_member_that_does_not_rejoin_in_the_rebalance_timeout_is_removed(driver: Driver) -> None:
    a, b = Client(driver, "a", rebalance_ms=8_000, session_ms=30_000), Client(driver, "b", session_ms=30_000)
    b.rebalance_ms = 8_000
    settle(a, b)
    c = Client(driver, "c", rebalance_ms=8_000)
    c.join()
    a.join()
    driver.advance(7_900)
    assert not c.joining.done
    b.heartbeat()
    driver.advance(200)
    assign(a, c)
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_sync_in_the_rebalance_timeout_is_removed(driver: Driver) -> None:
    a, b = Client(driver, "a", rebalance_ms=8_000), Client(driver, "b", rebalance_ms=8_000)
    a.join()
    b.join()
    driver.advance(6_000)
    a.sync({a.member_id: b"x", b.member_id: b"y"})
    assert a.assignment == b"x"
    for _ in range(3):
        driver.advance(3_000)
        a.heartbeat()
        b.heartbeat()
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert b.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_syncs_late_gets_its_assignment_at_once(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b")
    a.join()
    b.join()
    driver.advance(6_000)
    a.sync({a.member_id: b"x", b.member_id: b"y"})
    b.sync()
    assert b.assignment == b"y"


def test_a_member_that_never_comes_back_with_its_id_is_forgotten(driver: Driver) -> None:
    ghost = Client(driver, "ghost")
    assert ghost.send_join().response.error is ErrorCode.MEMBER_ID_REQUIRED
    assert "g" in driver.shard.groups
    driver.advance(11_000)
    assert driver.shard.groups == {}
    assert ghost.send_join().response.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_member_ids_are_bounded(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic, "MAX_PENDING_MEMBERS", 3)
    monkeypatch.setattr(shard_module, "MAX_FLEETING_GROUPS", 2)
    for number in range(3):
        assert Client(driver, f"m{number}").send_join().response.error is ErrorCode.MEMBER_ID_REQUIRED
    assert Client(driver, "m").send_join().response.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    settle(Client(driver, "durable", group="d"))
    Client(driver, "a", group="second").send_join()
    assert Client(driver, "a", group="third").send_join().response.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.advance(11_000)
    assert Client(driver, "a", group="third").send_join().response.error is ErrorCode.MEMBER_ID_REQUIRED


def test_old_clients_join_without_knowing_their_id(driver: Driver) -> None:
    old = Client(driver, "old", version=3)
    assert not old.send_join().done
    driver.advance(3_100)
    assert old.joining.response.member_id == "old-old1"


def test_a_new_member_cannot_wait_for_ever(driver: Driver) -> None:
    holder = Client(driver, "h", rebalance_ms=20 * 60_000, session_ms=20 * 60_000)
    settle(holder)
    new = Client(driver, "new")
    new.join()
    driver.advance(5 * 60_000 + 1)
    assert new.joining.response.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_generation_and_identity_are_checked(driver: Driver) -> None:
    a = Client(driver, "a")
    settle(a)
    assert a.heartbeat(generation=7) is ErrorCode.ILLEGAL_GENERATION
    assert a.sync(generation=7).response.error is ErrorCode.ILLEGAL_GENERATION
    a.member_id = "unknown"
    assert a.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert a.sync().response.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert a.join().response.error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, -1])
def test_session_timeouts_have_bounds(driver: Driver, session_ms: int) -> None:
    assert Client(driver, "a", session_ms=session_ms).join().response.error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert driver.shard.groups == {}


def test_protocols_must_have_something_in_common(driver: Driver) -> None:
    a = Client(driver, "a", protocols=(Protocol("range", b""), Protocol("sticky", b"")))
    settle(a)
    stranger = Client(driver, "x", protocols=(Protocol("mine", b""),))
    assert stranger.join().response.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    connect = Client(driver, "k", protocols=(Protocol("range", b""),))
    connect.protocol_type = "connect"
    assert connect.join().response.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    nothing = Client(driver, "n", group="other")
    nothing.protocols = ()
    assert nothing.join().response.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "other" not in driver.shard.groups


def test_the_protocol_most_members_prefer_among_the_common_ones_wins(driver: Driver) -> None:
    def offers(*names: str) -> tuple[Protocol, ...]:
        return tuple(Protocol(name, f"{name}-data".encode()) for name in names)

    a = Client(driver, "a", protocols=offers("x", "range", "sticky"))
    b = Client(driver, "b", protocols=offers("sticky", "range"))
    c = Client(driver, "c", protocols=offers("sticky", "range"))
    for client in (a, b, c):
        client.join()
    driver.advance(6_000)
    assert a.joining.response.protocol == "sticky"
    assert {m.metadata for m in a.joining.response.members} == {b"sticky-data"}


def test_a_group_has_a_maximal_size() -> None:
    driver = Driver(GroupSettings(max_size=2))
    a, b, c = (Client(driver, name) for name in "abc")
    settle(a, b)
    answer = c.join().response
    assert (answer.error, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    b.leave()
    a.join()
    assign(a)
    c.join()
    a.join()
    assert c.joining.done


def test_a_loaded_group_above_the_limit_rebalances_and_shrinks() -> None:
    big = Driver()
    clients = [Client(big, name) for name in "abc"]
    settle(*clients)
    small = Driver(GroupSettings(max_size=2), list(big.log), big.now.wall_ms)
    assert state(small) is GroupState.PREPARING
    for client in clients:
        client.driver = small
        client.join()
    assert [c.joining.response.error for c in clients if c.joining.done][-1] is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_the_leader_may_force_a_rebalance_and_a_follower_may_not(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b")
    settle(a, b)
    assert b.join().response.generation == 1
    assert a.heartbeat() is ErrorCode.NONE
    a.join()
    assert not a.joining.done
    assert b.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    b.join()
    assign(a, b)
    assert a.generation == 2


def test_a_follower_with_another_subscription_starts_a_rebalance(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b")
    settle(a, b)
    b.protocols = (Protocol("range", b"other topics"),)
    b.join()
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    a.join()
    assert b"other topics" in {m.metadata for m in a.joining.response.members}


def test_a_lost_join_answer_is_given_again(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b")
    a.join()
    b.join()
    driver.advance(6_000)
    again = b.join()
    assert again.done
    assert again.response.generation == 1
    assert len(a.join().response.members) == 2


def test_a_join_during_the_sync_phase_sends_everybody_back(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b")
    a.join()
    b.join()
    driver.advance(6_000)
    b.sync()
    c = Client(driver, "c")
    c.join()
    assert b.syncing.response.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert a.sync({}).response.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_repeated_join_answers_the_older_request_too(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b")
    settle(a, b)
    first = a.join()
    second = a.join()
    assert first.response.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert not second.done


def test_when_the_assignment_cannot_be_logged_all_members_get_the_error_and_rejoin(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b")
    a.join()
    b.join()
    driver.advance(6_000)
    b.sync()
    driver.fail_appends = ErrorCode.NOT_ENOUGH_REPLICAS
    assert a.sync({a.member_id: b"x"}).response.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert b.syncing.response.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state(driver) is GroupState.PREPARING
    a.join()
    b.join()
    assign(a, b)
    driver.advance(20_000)  # sessions still run after the failure
    assert driver.shard.groups["g"].members == {}


def test_batched_leave_and_removal_by_instance_id(driver: Driver) -> None:
    a, s, pending = Client(driver, "a"), Client(driver, "s", instance_id="s-1"), Client(driver, "p")
    settle(a, s)
    pending.send_join()
    leavers = (
        Leaver("", "s-1"),
        Leaver("", "unknown"),
        Leaver("", None),
        Leaver(pending.member_id, None),
        Leaver("stranger", None),
    )
    answer = driver.submit(
        "g", lambda shard, now, ticket: shard.leave("g", leavers, now, ticket, driver.picture)
    ).response
    assert [error for _, error in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert set(driver.shard.groups["g"].members) == {a.member_id}


def test_leaving_an_unknown_group(driver: Driver) -> None:
    a = Client(driver, "a")
    a.member_id = "x"
    assert a.leave() is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_member_leaves_an_empty_group_whose_generation_continues(driver: Driver) -> None:
    a = Client(driver, "a")
    settle(a)
    a.leave()
    assert state(driver) is GroupState.EMPTY
    assert driver.durable()["g"][0].generation == 2
    again = Client(driver.restart(), "a")
    settle(again)
    assert again.generation == 3


# --- static members ---------------------------------------------------------------------------------------------


def test_a_restarted_static_member_keeps_its_assignment_without_a_rebalance(driver: Driver) -> None:
    a, s = Client(driver, "a"), Client(driver, "s", instance_id="s-1")
    settle(a, s)
    old_id, s.member_id = s.member_id, ""
    answer = s.join().response
    assert (answer.error, answer.generation, answer.skip_assignment) == (ErrorCode.NONE, 1, False)
    assert answer.member_id != old_id
    s.sync()
    assert s.assignment == b"s"
    assert a.heartbeat() is ErrorCode.NONE
    assert s.heartbeat() is ErrorCode.NONE
    s.member_id = old_id
    assert s.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert s.commit(5) is ErrorCode.FENCED_INSTANCE_ID
    assert s.join().response.error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.restart().durable() == driver.durable()


@pytest.mark.parametrize("version", [5, 9])
def test_a_restarted_static_leader(version: int, driver: Driver) -> None:
    leader, b = Client(driver, "l", instance_id="l-1", version=version), Client(driver, "b")
    assert settle(leader, b) is leader
    old_id, leader.member_id = leader.member_id, ""
    answer = leader.join().response
    if version >= 9:
        assert answer.skip_assignment
        assert answer.leader == leader.member_id
        assert {j.member_id for j in answer.members} == {leader.member_id, b.member_id}
    else:
        assert not answer.skip_assignment
        assert answer.leader == old_id
        assert answer.members == ()
    leader.sync({})
    assert leader.assignment == b"l"
    assert driver.shard.groups["g"].leader == leader.member_id


def test_a_static_member_with_another_protocol_does_rebalance(driver: Driver) -> None:
    both = (Protocol("range", b""), Protocol("sticky", b""))
    s = Client(driver, "s", instance_id="s-1", protocols=both)
    b = Client(driver, "b", protocols=both)
    for client in (s, b):
        client.join()
    driver.advance(6_000)
    b.sync()
    s.sync({})
    assert s.joining.response.protocol == "range"
    b.protocols = s.protocols = (Protocol("sticky", b""),)
    s.member_id = ""
    s.join()
    assert b.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    b.join()
    assert b.joining.response.protocol == "sticky"
    assert s.joining.response.protocol == "sticky"


def test_a_static_replacement_that_cannot_be_logged_leaves_the_old_member(driver: Driver) -> None:
    a, s = Client(driver, "a"), Client(driver, "s", instance_id="s-1")
    settle(a, s)
    old_id, s.member_id = s.member_id, ""
    driver.fail_appends = ErrorCode.KAFKA_STORAGE_ERROR
    assert s.join().response.error is ErrorCode.NOT_COORDINATOR
    s.member_id = old_id
    assert s.heartbeat() is ErrorCode.NONE
    assert s.commit(1) is ErrorCode.NONE


def test_a_second_instance_fences_the_first_in_a_rebalance(driver: Driver) -> None:
    first, b = Client(driver, "s", instance_id="s-1"), Client(driver, "b")
    first.join()
    second = Client(driver, "s", instance_id="s-1")
    second.joins = 10
    second.join()
    assert first.joining.response.error is ErrorCode.FENCED_INSTANCE_ID
    b.join()
    driver.advance(6_000)
    assign(second, b)


def test_a_second_instance_fences_the_first_that_waits_for_its_assignment(driver: Driver) -> None:
    first, b = Client(driver, "s", instance_id="s-1"), Client(driver, "b")
    for client in (b, first):
        client.join()
    driver.advance(6_000)
    assert b.joining.response.leader == b.member_id
    waiting = first.sync()
    assert not waiting.done
    second = Client(driver, "s", instance_id="s-1")
    second.joins = 10
    second.join()
    assert waiting.response.error is ErrorCode.FENCED_INSTANCE_ID
    assert first.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    b.join()
    assign(second, b)


def test_a_static_member_that_is_away_stays_until_its_session_ends(driver: Driver) -> None:
    s = Client(driver, "s", instance_id="s-1", session_ms=30_000, rebalance_ms=6_000)
    a = Client(driver, "a", session_ms=30_000, rebalance_ms=6_000)
    settle(a, s)
    b = Client(driver, "b", session_ms=30_000, rebalance_ms=6_000)
    b.join()
    a.join()
    driver.advance(6_100)
    assert {j.instance_id for j in a.joining.response.members} == {None, "s-1"}
    assert len(a.joining.response.members) == 3


def test_static_members_alone_postpone_the_rebalance_until_one_is_back(driver: Driver) -> None:
    s = Client(driver, "s", instance_id="s-1", session_ms=60_000, rebalance_ms=6_000)
    r = Client(driver, "r", instance_id="r-1", session_ms=60_000, rebalance_ms=6_000)
    d = Client(driver, "d", session_ms=60_000, rebalance_ms=6_000)
    settle(s, r, d)
    d.leave()
    driver.advance(13_000)
    assert state(driver) is GroupState.PREPARING
    s.join()
    driver.advance(6_100)
    assert s.joining.response.error is ErrorCode.NONE
    assert len(s.joining.response.members) == 2


# --- restart of the coordinator ---------------------------------------------------------------------------------


def test_members_continue_after_the_coordinator_moved(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b")
    settle(a, b)
    moved = driver.restart()
    a.driver = b.driver = moved
    assert state(moved) is GroupState.STABLE
    assert a.heartbeat() is ErrorCode.NONE
    assert a.sync().response.assignment == b"a"
    driver_time = moved.settings.min_session_timeout_ms
    moved.advance(driver_time)
    b.heartbeat()
    moved.advance(driver_time)
    assert b.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS, "a's session was armed by the load"


def test_describe_and_list(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b", instance_id="b-1")
    settle(a, b)
    one = driver.shard.describe("g")
    assert (one.state, one.protocol_type, one.protocol) == ("Stable", "consumer", "range")
    assert {(m.client_id, m.instance_id, m.metadata, m.assignment) for m in one.members} == {
        ("a", None, b"a", b"a"),
        ("b", "b-1", b"b", b"b"),
    }
    Client(driver, "c").join()
    one = driver.shard.describe("g")
    assert (one.state, one.protocol, one.members[0].metadata) == ("PreparingRebalance", "", b"")
    assert driver.shard.describe("nope").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert [g.state for g in driver.shard.listing()] == ["PreparingRebalance"]
    assert added_up(driver.shard.metric_parts())["members"] == 3.0


def test_ids_with_colons_and_odd_letters(driver: Driver) -> None:
    a = Client(driver, "a:1:ü", group="g:2:ö", session_ms=6_000)
    settle(a)
    driver.advance(6_100)
    assert driver.shard.groups["g:2:ö"].members == {}
