"""``fleetlog records``: one record is written, or copied as it stands."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, Producer, TopicPartition

from tests.cli.shell import Shell
from tests.support.fleet import Fleet

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def shell(fleet: Fleet) -> Shell:
    return Shell(fleet)


@pytest.fixture
def topic(shell: Shell) -> str:
    name = f"records-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "3")
    return name


def record_at(fleet: Fleet, written: dict[str, Any]) -> Any:
    """What librdkafka reads there."""
    consumer = Consumer({"bootstrap.servers": fleet.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(written["topic"], written["partition"], written["offset"])])
        found = consumer.poll(30)
    finally:
        consumer.close()
    assert found is not None
    assert found.error() is None
    assert found.offset() == written["offset"]
    return found


def test_a_record_is_written_where_its_key_belongs(fleet: Fleet, shell: Shell, topic: str) -> None:
    words = ("records", "write", topic, "--key=some key", "--value=two\nlines", "-H", "a=1", "-H", "a=x=y")
    (shown,) = shell.json(*words, "--dry-run")
    assert (shown["partition"], shown["value"], shown["headers"]) == (
        shown["partition"],
        "two\nlines",
        ["a=1", "a=x=y"],
    )
    assert sum(p["end_offset"] for p in shell.json("topics", "describe", topic)[0]["partitions"]) == 0
    written = shell.json(*words)
    assert (written["partition"], written["offset"]) == (shown["partition"], 0)
    found = record_at(fleet, written)
    assert (found.key(), found.value(), found.headers()) == (b"some key", b"two\nlines", [("a", b"1"), ("a", b"x=y")])
    again = shell.json("records", "write", topic, "--key=some key", "--null-value")
    assert (again["partition"], again["offset"]) == (shown["partition"], 1)
    assert record_at(fleet, again).value() is None
    raw = shell.json("records", "write", topic, "--base64", "--key=/w==", "--value=AP8=", "-p", "2")
    assert raw["partition"] == 2
    assert (record_at(fleet, raw).key(), record_at(fleet, raw).value()) == (b"\xff", b"\0\xff")


def test_a_record_is_copied_as_it_stands(fleet: Fleet, shell: Shell, topic: str) -> None:
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "compression.type": "zstd"})
    for number in range(5):
        producer.produce(
            topic, b"\xff%d" % number, b"k\0", partition=1, timestamp=1_000_000_000_000, headers={"h": None}
        )
    assert producer.flush(30) == 0
    other = f"{topic}-other"
    shell.run("topics", "create", other, "-p", "1")
    (shown,) = shell.json("records", "copy", f"{topic}:1:3", other, "--dry-run")
    assert (shown["origin"], shown["time"], shown["bytes"]) == (f"{topic}:1:3", "now", 4)
    copied = shell.json("records", "copy", f"{topic}:1:3", other)
    found = record_at(fleet, copied)
    assert (found.key(), found.value(), found.headers()) == (b"k\0", b"\xff3", [("h", None)])
    assert found.timestamp()[1] > 1_000_000_000_000
    kept = record_at(fleet, shell.json("records", "copy", f"{topic}:1:4", other, "--keep-time"))
    assert (kept.value(), kept.timestamp()) == (b"\xff4", (TIMESTAMP_CREATE_TIME, 1_000_000_000_000))


def test_what_is_not_committed_is_not_copied(fleet: Fleet, shell: Shell, topic: str) -> None:
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for commits in (False, True):
        producer.begin_transaction()
        producer.produce(topic, b"committed" if commits else b"aborted", partition=0)
        assert producer.flush(30) == 0
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
    for offset in (0, 1, 3, 4, 10**17):  # aborted, the two markers, the end, beyond
        assert "no committed record" in shell.fails("records", "copy", f"{topic}:0:{offset}", topic)
    copied = shell.json("records", "copy", f"{topic}:0:2", topic, "-p", "2")
    assert record_at(fleet, copied).value() == b"committed"


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("write", "{}"), 2, "either --value or --null-value"),
        (("write", "{}", "--value=a", "--null-value"), 2, "either --value or --null-value"),
        (("write", "{}", "--null-value"), 2, "needs --key"),
        (("write", "{}", "--value=a b", "--base64"), 2, "not base64"),
        (("write", "{}", "--value=a", "-H", "b"), 2, "NAME=VALUE"),
        (("write", "{}", "--value=a", "-p", "3"), 1, "partitions 0 to 2"),
        (("write", "no-{}", "--value=a"), 1, "no such topic"),
        (("copy", "{}:0", "{}"), 2, "TOPIC:PARTITION:OFFSET"),
        (("copy", "{}:7:0", "{}"), 1, "partitions 0 to 2"),
        (("copy", "{}:0:0", "{}"), 1, "no committed record"),
    ],
)
def test_what_cannot_be_written_is_said(
    shell: Shell, topic: str, words: tuple[str, ...], code: int, reason: str
) -> None:
    result = shell.run("records", *(word.format(topic) for word in words), code=code)
    assert reason in result.stderr
    assert "no-" + topic not in {row["topic"] for row in shell.json("topics", "list")}
