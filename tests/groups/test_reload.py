"""Random histories of groups: a reload of their records gives the same state, and every request is answered."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetlog.brokers.groups.members import GroupState
from fleetlog.brokers.groups.requests import Protocol
from tests.groups.histories import SETTINGS, crowd, perform, steps
from tests.support.draw import examples
from tests.support.group_driver import Client, Driver


def check(driver: Driver) -> None:
    for group in driver.shard.groups.values():
        assert (group.leader in group.members) == bool(group.members)
        if group.state in {GroupState.STABLE, GroupState.COMPLETING}:
            assert group.members
            assert group.protocol is not None
            assert all(m.join_ticket is None for m in group.members.values())
        if group.state is not GroupState.COMPLETING:
            assert all(m.sync_ticket is None for m in group.members.values())
        if group.state is GroupState.EMPTY:
            assert not group.members
        statics = [m.instance_id for m in group.members.values() if m.instance_id]
        assert len(statics) == len(set(statics))
        waiting = [t for m in group.members.values() for t in (m.join_ticket, m.sync_ticket) if t is not None]
        assert set(waiting) <= set(driver.pending), "a member waits for an answer that is never taken"


def check_loaded(driver: Driver) -> None:
    """What a loaded coordinator says of members is what the last record of their group says."""
    for group in driver.shard.groups.values():
        for logged in group.durable.members if group.durable is not None else ():
            member = group.members[logged.member_id]
            assert member.metadata(group.protocol) == logged.subscription
            assert (member.client_id, member.client_host) == (logged.client_id, logged.client_host)
            assert member.session_timeout_ms == logged.session_timeout_ms
            assert member.rebalance_timeout_ms == logged.rebalance_timeout_ms


def test_a_loaded_member_is_as_the_last_record_says() -> None:
    driver = Driver(SETTINGS)
    client = Client(driver, "a", session_ms=60_000)
    for subscription in (b"first", b"second"):
        client.protocols = (Protocol("range", subscription),)
        client.join()
        driver.advance(10_000)
        client.sync({client.member_id: b"all"})
    check_loaded(driver.restart())


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=40))
def test_a_reload_gives_the_same_state_and_all_are_answered(script: list[tuple[str, int]]) -> None:
    driver = Driver(SETTINGS)
    clients = crowd(driver)
    for what, number in script:
        driver = perform(driver, clients, what, number)
        check(driver)
        restarted = driver.restart()
        assert restarted.durable() == driver.durable()
        check_loaded(restarted)
    driver.fail_appends = None
    for producer_id in range(3):
        driver.marker(producer_id, 0, commit=False)
    driver.advance(3_600_000)
    assert driver.pending == {}, "every deferred answer comes"
    assert driver.shard.groups == {}, "without members all expires"
    assert driver.restart().shard.groups == {}
