"""Throttled replication: the budget, the replicas that a setting names, and the average rate."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.config import TOPIC_SETTINGS, BrokerConfig, ConfigError
from fleetlog.brokers.metadata.cache import MetadataCache, MetadataChange
from fleetlog.brokers.metadata.image import MetadataDelta
from fleetlog.brokers.metadata.znodes import ConfigChanged
from fleetlog.brokers.replication.throttles import (
    LOOK_AGAIN_MS,
    Budget,
    ReplicationThrottle,
    throttle_of,
    throttled_replicas,
)
from fleetlog.wire.types import TopicPartition

MB = 1_000_000


@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 10 * MB), st.integers(0, 10 * MB)), max_size=60),
    st.integers(1, 10 * MB),
)
def test_when_it_says_to_look_again_something_is_left(steps: list[tuple[int, int, int]], rate: int) -> None:
    budget, now_ms = Budget(), 0
    for pause_ms, size, other_rate in steps:
        now_ms += pause_ms
        budget.take(size, other_rate, now_ms)
    while wait_ms := budget.wait_ms(rate, now_ms):
        assert wait_ms <= LOOK_AGAIN_MS
        if wait_ms < LOOK_AGAIN_MS:
            assert budget.wait_ms(rate, now_ms + wait_ms - 1) == 1
            assert budget.wait_ms(rate, now_ms + wait_ms) == 0
            return
        budget.take(0, 2**40, now_ms := now_ms + wait_ms)
    assert budget.wait_ms(0, now_ms) == LOOK_AGAIN_MS, "no rate, no bytes"


def test_whom_a_setting_names() -> None:
    assert throttled_replicas(()) == frozenset()
    assert throttled_replicas(("none",)) == frozenset()
    assert throttled_replicas(("*",)) is None
    assert throttled_replicas(("0:1", "3:2", "x:1", "4", "-1:2", "5:", "1" * 5_000 + ":1")) == {(0, 1), (3, 2)}


@pytest.mark.parametrize("name", [name for name in TOPIC_SETTINGS if "throttled" in name])
def test_what_such_a_setting_may_say(name: str) -> None:
    row = TOPIC_SETTINGS[name]
    for good in ("", "*", "none", "0:1", "0:1,0:2, 12:30"):
        row.parse(good)
    for bad in ("x", "0", "0:1,1:b", "0:-1", "0:1:2", "**"):
        with pytest.raises(ConfigError, match="partition:broker"):
            row.parse(bad)


def throttle(limit: int, *items: str) -> ReplicationThrottle:
    return ReplicationThrottle(2, lambda topic: items if topic == "t" else (), lambda: limit)


def test_only_named_replicas_are_held_back_and_only_above_the_limit() -> None:
    some = throttle(MB, "0:2", "1:3")
    here, elsewhere, other = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
    assert [some.applies(tp) for tp in (here, elsewhere, other)] == [True, False, False]
    assert throttle(MB, "*").applies(elsewhere)
    assert not some.holds_back(here, 0)
    some.record(3 * MB, 0)
    assert some.holds_back(here, 0)
    assert not some.holds_back(elsewhere, 0)
    assert some.wait_ms(0) == 1_000
    assert some.holds_back(here, 1_999)
    assert not some.holds_back(here, 2_001)


@pytest.mark.parametrize("piece", [10_000, 5 * MB])
def test_a_limit_is_kept_over_time(piece: int) -> None:
    """Whatever the size of one fetch, in a minute not much more goes by than the limit allows."""
    limited, now_ms, sent = throttle(MB, "*"), 0, 0
    while now_ms < 60_000:
        if wait_ms := limited.wait_ms(now_ms):
            now_ms += wait_ms
        else:
            limited.record(piece, now_ms)
            sent += piece
            now_ms += 5
    assert 60 * MB <= sent <= 66 * MB


def test_settings_of_the_metadata_cache_apply_at_once() -> None:
    metadata = MetadataCache(cast(Any, None), BrokerConfig(broker_id=1, zookeeper_connect="unused"), cast(Any, None))
    sides = {side: throttle_of(metadata, side) for side in ("leader", "follower")}  # type: ignore[arg-type]
    for one in sides.values():
        one.record(100 * MB, 0)
        assert not one.wait_ms(0), "no limit by default"
    rates = {"leader.replication.throttled.rate": "1000", "follower.replication.throttled.rate": str(2**40)}
    delta = MetadataDelta()
    metadata.image.apply([ConfigChanged("brokers", "1", 0, rates)], delta)
    metadata._notify(MetadataChange(configs_changed=tuple(delta.configs_changed)))
    for one in sides.values():
        one.record(MB, 10)
    assert sides["leader"].wait_ms(10) == LOOK_AGAIN_MS
    assert not sides["follower"].wait_ms(10)
