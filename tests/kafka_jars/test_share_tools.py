"""kafka-share-groups and the console share consumer of Kafka 4.4, unchanged, against a fleet with share groups."""

from __future__ import annotations

import pytest

from tests.kafka_jars.conftest import Tools
from tests.support.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]

PACKAGE = "org.apache.kafka.tools"
GROUPS = f"{PACKAGE}.consumer.group.ShareGroupCommand"


def test_kafkas_share_group_tool_in_its_verbs(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    fleet = Fleet(tmp_path_factory.mktemp("share-tools")).start()
    try:
        tools = Tools(classpath, fleet)
        tools(f"{PACKAGE}.FeatureCommand", "upgrade", "--feature", "share.version=1")
        tools(f"{PACKAGE}.TopicCommand", "--create", "--topic", "jobs", "--partitions", "1")
        tools(f"{PACKAGE}.ConsoleProducer", "--topic", "jobs", text="a\nb\nc\n")
        tools(
            f"{PACKAGE}.ConfigCommand", "--alter", "--group", "g", "--add-config", "share.auto.offset.reset=earliest",
        )  # fmt: skip
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
    finally:
        fleet.close()


def _row(described: str) -> list[str]:
    """Topic, partition, start offset and lag of the only row."""
    (line,) = [line.split() for line in described.splitlines() if line.split()[:2] == ["g", "jobs"]]
    return line[1:5]
