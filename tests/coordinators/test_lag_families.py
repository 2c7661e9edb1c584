"""How large the page of groups becomes, and when it is made at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.coordinators.lags import ASKED_WITHIN_MS, GroupLag, LagFamilies, serve_lags
from fleetlog.brokers.groups.lag import PartitionLag, Progress
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.wire.types import TopicPartition
from tests.support.bytecodes import Bytecodes, Steps
from tests.support.coordinator_broker import Broker, play
from tests.support.one_znode import OneZnode

CAP = 10
BYTECODES_PER_TURN = 50_000


def group(name: str, records: int, seconds: float, progress: Progress = Progress.OK) -> GroupLag:
    row = PartitionLag(0, records, records, seconds, progress)
    return GroupLag(name, "Empty", "", "", 0, [], 1, {TopicPartition("t", 0): row}, 0)


async def page_of(tmp_path: Path, groups: list[GroupLag]) -> dict[tuple[str, str], float]:
    """Values by family, and by group or state."""
    broker = await Broker(tmp_path, OneZnode()).ready()
    lags: Any = broker.services.lags
    lags.groups = {one.group_id: one for one in groups}
    families = LagFamilies(1, "1", CAP, lags, broker.metadata, broker.replicas, broker.clock)
    families.page()
    await families.make()
    await broker.stop()
    return {
        (sample.name, sample.labels.get("group", sample.labels.get("state", ""))): sample.value
        for family in text_string_to_metric_families(b"".join(families.page()).decode())
        for sample in family.samples
    }


def test_series_of_groups_have_a_limit_and_those_behind_come_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        calm = [group(f"calm-{number}", 1, 0.1) for number in range(20)]
        found = await page_of(tmp_path, [*calm, group("late", 7, 90.0), group("stopped", 5, 3.0, Progress.STOP)])
        shown = {name for family, name in found if family == "fleetlog_group_state"}
        assert shown == {"late", "stopped", "calm-0", "calm-1", "calm-10"}, "five groups with a topic each are ten"
        assert {name for family, name in found if family == "fleetlog_group_lag_records"} == shown
        assert found["fleetlog_lag_groups_left_out", ""] == 17
        assert found["fleetlog_groups_lag_records", ""] == 32
        assert found["fleetlog_groups_lag_seconds", ""] == 90.0
        assert (found["fleetlog_groups", "OK"], found["fleetlog_groups", "STOP"]) == (21, 1)

    play(scenario)


@pytest.mark.parametrize(("count", "left_out"), [(CAP // 2, 0), (CAP // 2 + 1, 1)])
def test_below_the_limit_each_group_has_its_own(tmp_path: Path, count: int, left_out: int) -> None:
    async def scenario() -> None:
        found = await page_of(tmp_path, [group(f"g{number}", 1, 1.0) for number in range(count)])
        assert found["fleetlog_lag_groups_left_out", ""] == left_out
        assert found["fleetlog_lag_series_left_out", ""] == left_out
        assert len([1 for family, _ in found if family == "fleetlog_group_state"]) == count - left_out

    play(scenario)


def test_a_group_of_many_partitions_members_and_topics_lets_the_loop_move(tmp_path: Path) -> None:
    row = PartitionLag(5, 12, 7, 0.5, Progress.OK)
    many = {TopicPartition(f"t{topic}", index): row for topic in range(1_000) for index in range(10)}
    assigned = [{f"t{topic}": 10} for topic in range(1_000)]
    wide = GroupLag("wide", "Stable", "consumer", "range", 1_000, assigned, 1, many, 0)
    counter = Bytecodes()

    async def scenario() -> None:
        broker = await Broker(tmp_path, OneZnode()).ready()
        lags: Any = broker.services.lags
        lags.groups = {"wide": wide, **{f"g{number}": group(f"g{number}", 1, 0.1) for number in range(1_000)}}
        families = LagFamilies(1, "1", 20_000, lags, broker.metadata, broker.replicas, broker.clock)
        families.page()
        await Steps(families.make(), counter)
        text = b"".join(families.page()).decode()
        assert text.count('kafka_consumergroup_lag{consumergroup="wide"') == 10_000
        assert text.count('fleetlog_group_lag_records{group="wide"') == 1_000
        assert text.count('kminion_kafka_consumer_group_topic_members{group_id="wide"') == 1_000
        await broker.stop()

    play(scenario)
    assert len(counter.counted) > 100
    assert max(counter.counted) < BYTECODES_PER_TURN


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        ({"admin_listener": "127.0.0.1:1"}, True),
        ({"admin_listener": "127.0.0.1:1", "metrics_enable": False}, False),
        ({"admin_listener": ""}, False),
    ],
)
def test_the_text_is_made_where_metrics_are_served(tmp_path: Path, settings: dict[str, Any], made: bool) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, OneZnode()).ready()
        lags, metrics = broker.services.lags, Metrics()
        assert lags is not None
        config, clock = BrokerConfig(broker_id=1, **settings), broker.clock
        serve_lags(config, "1", lags, broker.metadata, broker.replicas, metrics, clock)
        await lags.round()
        assert b"".join(metrics.group_families()) == b"", "nobody has asked for it"
        await lags.round()
        assert (b"kminion_exporter_up" in b"".join(metrics.group_families())) is made
        assert bool(lags._after_round) is made
        clock.ahead_ms += ASKED_WITHIN_MS + 1
        await lags.round()
        assert b"".join(metrics.group_families()) == b"", "what is old is told to nobody"
        await broker.stop()

    play(scenario)
