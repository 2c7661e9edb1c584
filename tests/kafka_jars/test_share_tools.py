"""kafka-share-groups, the console share consumer and kafka-share-consumer-perf-test of Kafka 4.4, unchanged, against a
fleet with share groups.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka_jars.conftest import Tools
from tests.support.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]

PACKAGE = "org.apache.kafka.tools"
GROUPS = f"{PACKAGE}.consumer.group.ShareGroupCommand"


@pytest.fixture(scope="module")
def share_tools(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    fleet = Fleet(tmp_path_factory.mktemp("share-tools")).start()
    try:
        tools = Tools(classpath, fleet)
        tools(f"{PACKAGE}.FeatureCommand", "upgrade", "--feature", "share.version=1")
        yield tools
    finally:
        fleet.close()


def from_the_start(tools: Tools, group: str) -> None:
    tools(f"{PACKAGE}.ConfigCommand", "--alter", "--group", group, "--add-config", "share.auto.offset.reset=earliest")


def test_kafkas_share_group_tool_in_its_verbs(share_tools: Tools) -> None:
    tools = share_tools
    tools(f"{PACKAGE}.TopicCommand", "--create", "--topic", "jobs", "--partitions", "1")
    tools(f"{PACKAGE}.ConsoleProducer", "--topic", "jobs", text="a\nb\nc\n")
    from_the_start(tools, "g")
    read = tools(
        f"{PACKAGE}.consumer.ConsoleShareConsumer", "--topic", "jobs", "--group", "g", "--max-messages", "2",
        "--timeout-ms", "30000",
    )  # fmt: skip
    assert read.split()[:2] == ["a", "b"]
    assert "g" in tools(GROUPS, "--list").split()
    assert _row(tools(GROUPS, "--describe", "--group", "g", "--offsets")) == ["jobs", "0", "2", "1"]
    assert "Empty" in tools(GROUPS, "--describe", "--group", "g", "--state")
    tools(GROUPS, "--describe", "--group", "g", "--members")
    tools(GROUPS, "--reset-offsets", "--group", "g", "--topic", "jobs", "--to-earliest", "--execute")
    assert _row(tools(GROUPS, "--describe", "--group", "g", "--offsets")) == ["jobs", "0", "0", "3"]
    tools(GROUPS, "--delete-offsets", "--group", "g", "--topic", "jobs")
    assert "jobs" not in tools(GROUPS, "--describe", "--group", "g", "--offsets")
    tools(GROUPS, "--delete", "--group", "g")
    assert "g" not in tools(GROUPS, "--list").split()


def test_kafkas_performance_test_of_share_consumers(share_tools: Tools) -> None:
    tools, count = share_tools, 20_000
    tools(f"{PACKAGE}.TopicCommand", "--create", "--topic", "perf", "--partitions", "4")
    tools(
        f"{PACKAGE}.ProducerPerformance", "--topic", "perf", "--num-records", str(count), "--record-size", "100",
        "--throughput", "-1", "--command-property", f"bootstrap.servers={tools.bootstrap}", bootstrap=False,
    )  # fmt: skip
    from_the_start(tools, "perf-share-consumer")
    told = tools(
        f"{PACKAGE}.ShareConsumerPerformance", "--topic", "perf", "--num-records", str(count), "--threads", "3",
        "--show-consumer-stats", "--hide-header", "--timeout", "60000",
    )  # fmt: skip
    rows = [line.split(", ") for line in told.splitlines()]
    shown = [int(row[5]) for row in rows if len(row) >= 7 and row[0].startswith("20")]
    assert sum(shown) >= count, told
    by_member = [row for row in rows if row[0].startswith("Share consumer")]
    assert len(by_member) == 3, told


def _row(described: str) -> list[str]:
    """Topic, partition, start offset and lag of the only row."""
    (line,) = [line.split() for line in described.splitlines() if line.split()[:2] == ["g", "jobs"]]
    return line[1:5]
