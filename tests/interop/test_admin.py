"""Admin calls of stock clients."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.interop.clients import Client, Message

pytestmark = pytest.mark.interop


def _eventually(check: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.1)
    return check()


def test_topics_come_and_go(client: Client, bootstrap: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("admin")
    assert topic not in client.topics(bootstrap)
    client.create_topic(bootstrap, topic, 3)
    assert _eventually(lambda: topic in client.topics(bootstrap))
    client.delete_topic(bootstrap, topic)
    assert _eventually(lambda: topic not in client.topics(bootstrap))
    client.create_topic(bootstrap, topic, 1)
    assert _eventually(lambda: topic in client.topics(bootstrap))


def test_topic_settings_are_kept_and_described(client: Client, bootstrap: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("settings")
    client.create_topic(bootstrap, topic, 1, retention_ms="12345678", cleanup_policy="compact")
    settings = client.topic_config(bootstrap, topic)
    assert settings["retention.ms"] == "12345678"
    assert settings["cleanup.policy"] == "compact"
    assert settings["segment.bytes"] == str(1024 * 1024 * 1024)


def test_a_second_topic_of_the_same_name_is_refused(
    client: Client, bootstrap: str, fresh: Callable[[str], str]
) -> None:
    topic = fresh("twice")
    client.create_topic(bootstrap, topic)
    with pytest.raises(Exception, match=r"(?i)exist|36"):
        client.create_topic(bootstrap, topic)


def test_a_wrong_setting_is_refused(client: Client, bootstrap: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("wrong")
    with pytest.raises(Exception, match=r"(?i)config|40"):
        client.create_topic(bootstrap, topic, 1, retention_ms="soon")
    assert topic not in client.topics(bootstrap)


@pytest.mark.parametrize("incremental", [True, False], ids=["IncrementalAlterConfigs", "AlterConfigsRequest"])
def test_settings_change_without_a_restart(
    client: Client, bootstrap: str, fresh: Callable[[str], str], incremental: bool
) -> None:
    topic = fresh("altered")
    client.create_topic(bootstrap, topic, 1, retention_ms="1000000", max_message_bytes="500")
    with pytest.raises(Exception, match=r"(?i)size|large|10"):
        client.produce(bootstrap, topic, [Message(b"x" * 2000, partition=0)])
    client.alter_topic(bootstrap, topic, incremental, max_message_bytes="5000")
    assert _eventually(lambda: client.topic_config(bootstrap, topic)["max.message.bytes"] == "5000")
    # The older call replaces all settings; kafka-python sends along what was set; aiokafka has only the older one.
    keeps = client.name == "kafka-python" or (incremental and client.name != "aiokafka")
    kept = "1000000" if keeps else str(7 * 24 * 3600 * 1000)
    assert _eventually(lambda: client.topic_config(bootstrap, topic)["retention.ms"] == kept)

    def fits() -> bool:  # the leader may hear of the change a moment after the broker that was asked
        try:
            client.produce(bootstrap, topic, [Message(b"x" * 2000, partition=0)])
        except (Exception, AssertionError):
            return False
        return True

    assert _eventually(fits)
