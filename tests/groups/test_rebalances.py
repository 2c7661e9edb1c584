"""How often groups rebalance, and how long it takes."""

from __future__ import annotations

import pytest

from fleetlog.brokers.groups.requests import GroupSettings
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.wire.errors import ErrorCode
from tests.support.group_driver import Client, Driver, assign, settle


@pytest.fixture
def driver() -> Driver:
    return Driver(GroupSettings(initial_rebalance_delay_ms=3_000))


def counted(driver: Driver) -> tuple[int, int, float]:
    """Rebalances that began, those that ended, and the seconds of these."""
    seconds = driver.shard.rebalances
    return driver.shard.groups["g"].rebalances, sum(seconds.counts), seconds.total


def longest_ms(driver: Driver) -> int:
    return max(driver.shard.longest_rebalances_ms(driver.now.mono_ms), default=0)


def test_a_rebalance_takes_from_the_first_that_joins_again_to_the_new_generation(driver: Driver) -> None:
    a, b = Client(driver, "a"), Client(driver, "b")
    settle(a, b)
    assert counted(driver) == (1, 1, 6.0), "settle takes six seconds"
    assert longest_ms(driver) == 0
    c = Client(driver, "c")
    c.join()
    driver.advance(2_000)
    a.join()
    assert counted(driver) == (2, 1, 6.0)
    assert longest_ms(driver) == 2_000
    b.join()
    driver.advance(500)
    assign(a, b, c)
    assert counted(driver) == (2, 2, 8.5)
    assert longest_ms(driver) == 0


def test_one_that_begins_anew_before_its_end_is_one(driver: Driver) -> None:
    a = Client(driver, "a")
    settle(a)
    b = Client(driver, "b")
    b.join()
    driver.advance(1_000)
    a.join()
    c = Client(driver, "c")
    c.join()
    driver.advance(1_000)
    a.join()
    b.join()
    assign(a, b, c)
    assert counted(driver) == (2, 2, 8.0)


def test_one_whose_assignment_cannot_be_logged_goes_on(driver: Driver) -> None:
    a = Client(driver, "a")
    a.join()
    driver.advance(3_000)
    driver.fail_appends = ErrorCode.NOT_ENOUGH_REPLICAS
    a.sync({})
    assert counted(driver) == (1, 0, 0.0)
    driver.fail_appends = None
    driver.advance(1_000)
    a.join()
    assign(a)
    assert counted(driver) == (1, 1, 4.0)


def test_a_group_that_is_loaded_has_none(driver: Driver) -> None:
    a = Client(driver, "a")
    settle(a)
    again = driver.restart()
    assert counted(again) == (0, 0, 0.0)
    assert longest_ms(again) == 0


def test_the_last_member_leaves(driver: Driver) -> None:
    a = Client(driver, "a")
    settle(a)
    a.leave()
    assert counted(driver) == (2, 2, 6.0), "an empty group is a generation, too"


def test_what_was_counted_stays_when_a_shard_goes() -> None:
    one = GroupShard(0, GroupSettings())
    one.rebalances.observe(1.5)
    other = GroupShard(1, GroupSettings(), rebalances=one.rebalances)
    other.rebalances.observe(0.5)
    assert other.rebalances.total == 2.0
