"""Kafka's own tool for ACLs, unchanged, and a Java client that is denied."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka_jars.conftest import Tools
from tests.support.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]

PACKAGE = "org.apache.kafka.tools"
ACLS = f"{PACKAGE}.AclCommand"


@pytest.fixture(scope="module")
def guarded(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    fleet = Fleet(
        tmp_path_factory.mktemp("guarded"),
        brokers=1,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        allow_everyone_if_no_acl_found="true",
    )
    try:
        yield Tools(classpath, fleet.start())
    finally:
        fleet.close()


def test_the_tool_adds_lists_and_removes(guarded: Tools) -> None:
    prefixed = ("--topic", "t-", "--group", "g-", "--resource-pattern-type", "prefixed")
    guarded(ACLS, "--add", "--allow-principal", "User:alice", "--producer", "--topic", "t-tool")
    guarded(ACLS, "--add", "--allow-principal", "User:bob", "--allow-host", "10.0.0.1", "--consumer", *prefixed)
    guarded(ACLS, "--add", "--deny-principal", "User:eve", "--operation", "Read", *prefixed)
    listed = guarded(ACLS, "--list")
    for part in (
        "ResourcePattern(resourceType=TOPIC, name=t-tool, patternType=LITERAL)",
        "(principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW)",
        "(principal=User:alice, host=*, operation=CREATE, permissionType=ALLOW)",
        "ResourcePattern(resourceType=GROUP, name=g-, patternType=PREFIXED)",
        "(principal=User:bob, host=10.0.0.1, operation=READ, permissionType=ALLOW)",
        "(principal=User:eve, host=*, operation=READ, permissionType=DENY)",
    ):
        assert part in listed
    matching = guarded(ACLS, "--list", "--topic", "t-tool", "--resource-pattern-type", "match")
    assert "User:alice" in matching
    assert "User:bob" in matching
    assert "resourceType=GROUP" not in matching
    guarded(ACLS, "--remove", "--force", "--topic", "t-tool")
    guarded(ACLS, "--remove", "--force", *prefixed)
    assert "User:" not in guarded(ACLS, "--list")


def test_a_java_client_is_told_that_it_is_denied(guarded: Tools) -> None:
    topics = f"{PACKAGE}.TopicCommand"
    guarded(topics, "--create", "--topic", "t-denied")
    guarded(ACLS, "--add", "--allow-principal", "User:ANONYMOUS", "--operation", "Describe", "--topic", "t-denied")
    assert "Topic authorization failed" in guarded(topics, "--delete", "--topic", "t-denied", code=1)
    guarded(ACLS, "--remove", "--force", "--topic", "t-denied")
    guarded(topics, "--delete", "--topic", "t-denied")
