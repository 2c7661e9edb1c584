"""The memory limits of group members, and the removal of members whose clients have disconnected."""

from __future__ import annotations

from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api.disconnects import MAX_WATCHED, Disconnects
from fleetlog.brokers.groups import classic
from fleetlog.brokers.groups.member_memory import RECOUNT_MS, MemberRoom
from fleetlog.brokers.groups.members import GroupState
from fleetlog.brokers.groups.requests import GroupSettings, Protocol
from fleetlog.wire.errors import ErrorCode
from tests.support.group_api import Api
from tests.support.group_driver import Client, Driver, settle

NOW = GroupSettings(initial_rebalance_delay_ms=0, max_session_timeout_ms=1_800_000)
HALF_HOUR_MS = 1_800_000


def patient(driver: Driver, name: str, size: int = 100, group: str = "g") -> Client:
    """A client that asks for the longest times there are."""
    client = Client(driver, name, group, protocols=(Protocol("range", bytes(size)),), rebalance_ms=HALF_HOUR_MS)
    client.session_ms = HALF_HOUR_MS
    return client


def disconnect(driver: Driver, client: Client) -> None:
    driver.submit(client.group, lambda shard, now, t: shard.disconnected(client.group, client.member_id, now, t))


def test_a_member_that_never_was_in_a_generation_is_forgotten_soon_after_its_connection() -> None:
    driver = Driver(NOW)
    one = patient(driver, "a")
    assert one.join().done
    disconnect(driver, one)
    driver.advance(classic.GONE_MS - 1)
    assert one.member_id in driver.shard.groups["g"].members
    driver.advance(1)
    assert not driver.shard.groups["g"].members
    assert driver.shard.member_bytes() == 0


def test_a_member_that_comes_back_in_time_stays() -> None:
    driver = Driver(NOW)
    one = patient(driver, "a")
    one.join()
    disconnect(driver, one)
    driver.advance(classic.GONE_MS - 1)
    settle(one)
    driver.advance(60_000)
    assert one.heartbeat() is ErrorCode.NONE


def test_a_heartbeat_brings_a_member_back_too() -> None:
    driver = Driver(NOW)
    one = patient(driver, "a")
    one.join()
    disconnect(driver, one)
    driver.advance(classic.GONE_MS - 1)
    assert one.heartbeat() is ErrorCode.NONE
    driver.advance(60_000)
    assert one.member_id in driver.shard.groups["g"].members


def test_a_member_of_a_generation_has_its_session_also_without_a_connection() -> None:
    driver = Driver(NOW)
    one = patient(driver, "a")
    settle(one)
    disconnect(driver, one)
    driver.advance(HALF_HOUR_MS - 1)
    assert driver.shard.groups["g"].state is GroupState.STABLE
    assert one.heartbeat() is ErrorCode.NONE


def test_a_join_whose_connection_closes_is_forgotten_too() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=3_000, max_session_timeout_ms=1_800_000))
    one, two = patient(driver, "a"), patient(driver, "b")
    one.join()
    two.join()
    waiting = one.joining.ticket
    driver.submit("g", lambda shard, now, t: shard.abandoned("g", waiting, now, t))
    driver.advance(6_000)
    assert two.joining.done
    driver.advance(classic.GONE_MS)
    assert len(driver.shard.groups["g"].members) == 1


def test_the_late_end_of_an_older_connection_removes_no_member_that_waits_on_another() -> None:
    driver = Driver(NOW)
    one, two = patient(driver, "a"), patient(driver, "b")
    settle(one)
    two.join()
    assert not two.joining.done, "it waits for the other to come back"
    disconnect(driver, two)
    driver.advance(classic.GONE_MS + 1)
    assert two.member_id in driver.shard.groups["g"].members


def test_an_id_that_was_only_given_out_is_forgotten_soon_after_its_connection() -> None:
    api = Api()
    join = {"session_timeout_ms": HALF_HOUR_MS, "rebalance_timeout_ms": HALF_HOUR_MS, "group_id": "g"}
    protocols = [m.JoinGroupRequest.JoinGroupRequestProtocol(version=5, name="range", metadata=b"")]
    answer = api.call(11, 5, m.JoinGroupRequest(
        version=5, member_id="", group_instance_id=None, protocol_type="consumer", protocols=protocols, **join
    ))  # fmt: skip
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert len(api.driver.shard.groups["g"].pending_members) == 1
    api.services.disconnects.closed(1)
    api.driver.advance(classic.GONE_MS)
    assert "g" not in api.driver.shard.groups


def test_a_member_of_too_many_bytes_or_protocols_is_refused() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=0, member_max_bytes=10_000))
    assert patient(driver, "a", 10_001).join().response.error is ErrorCode.INVALID_REQUEST
    many = tuple(Protocol(f"p{i}", b"") for i in range(classic.MAX_PROTOCOLS + 1))
    assert Client(driver, "b", protocols=many).join().response.error is ErrorCode.INVALID_REQUEST
    assert not driver.shard.groups
    assert patient(driver, "c", 8_000).join().response.error is ErrorCode.NONE


def test_all_members_together_have_a_bound_and_room_that_is_given_back_is_found() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=0, members_max_bytes=100_000))
    members = [patient(driver, f"m{i}", 30_000, group=f"g{i}") for i in range(4)]
    errors = [member.join().response.error for member in members]
    assert errors == [ErrorCode.NONE] * 3 + [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    disconnect(driver, members[0])
    driver.advance(classic.GONE_MS)
    assert patient(driver, "late", 30_000, group="late").join().response.error is ErrorCode.NONE


def test_what_is_counted_is_what_members_hold() -> None:
    driver = Driver()
    a, b = patient(driver, "a", 1_000), patient(driver, "b", 2_000)
    settle(a, b)
    held = driver.shard.member_bytes()
    assert 3_000 < held < 6_000
    again = driver.restart()
    assert again.shard.member_bytes() == 3_000, "the log has the subscriptions"
    a.leave()
    assert driver.shard.member_bytes() < held - 1_000


def test_room_is_counted_anew_at_most_once_a_second() -> None:
    class Shard:
        counts = 0

        def member_bytes(self) -> int:
            Shard.counts += 1
            return 90

    room, shard = MemberRoom(100), Shard()
    room.share(shard)
    assert room.take(60, 0)
    assert not room.take(60, 0)
    assert not room.take(60, RECOUNT_MS - 1)
    assert Shard.counts == 1
    assert room.take(10, RECOUNT_MS)
    assert room.take(1, RECOUNT_MS)
    assert Shard.counts == 2
    assert not room.take(10, 2 * RECOUNT_MS - 1)


@pytest.mark.parametrize("unwatched", [True, False])
def test_disconnects_call_back_once(unwatched: bool) -> None:
    disconnects, called = Disconnects(), list[Any]()
    disconnects.watch(1, "a", lambda: called.append("a"))
    disconnects.watch(1, "a", lambda: called.append("again"))
    disconnects.watch(2, "a", lambda: called.append("other"))
    if unwatched:
        disconnects.unwatch(1, "a")
        disconnects.unwatch(1, "a")
    disconnects.closed(1)
    disconnects.closed(1)
    assert called == ([] if unwatched else ["again"])
    for number in range(2 * MAX_WATCHED):
        disconnects.watch(3, number, lambda: None)
    assert len(disconnects._watched[3]) == MAX_WATCHED


def test_a_member_that_joins_again_with_more_is_counted_with_more() -> None:
    """A shard counts what its members hold now, not what they came with."""
    driver = Driver(NOW)
    one = patient(driver, "a", 100)
    settle(one)
    small = driver.shard.member_bytes()
    one.protocols = (Protocol("range", bytes(20_000)),)
    one.join()
    assert driver.shard.member_bytes() == small + 19_900
