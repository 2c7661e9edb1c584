"""The command line against real brokers."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.loopwatch import slower
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shell(fleet: Fleet) -> Shell:
    return Shell(fleet)


@pytest.fixture
def topic(shell: Shell) -> str:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "3")
    return name


def test_a_topic_from_its_creation_to_its_deletion(shell: Shell) -> None:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "2", "-c", "retention.ms=-1", "--dry-run")
    assert name not in {row["topic"] for row in shell.json("topics", "list")}
    (created,) = shell.json("topics", "create", name, "-p", "2", "-c", "retention.ms=-1")
    assert created["created"] is True
    assert "TOPIC_ALREADY_EXISTS" in shell.fails("topics", "create", name)
    shell.run("topics", "create", name, "--if-not-exists")
    shell.run("topics", "alter", name, "--config", "segment.ms=1000000", "--dry-run")
    shell.run("topics", "alter", name, "-c", "segment.bytes=1000000")
    shell.run("topics", "alter", name, "-u", "segment.bytes")
    shell.run("topics", "alter", name, "-p", "3", "--set", "max.message.bytes=5000", "--unset", "retention.ms")
    assert "INVALID_PARTITIONS" in shell.fails("topics", "alter", name, "-p", "2")
    assert "no.such.setting" in shell.fails("topics", "alter", name, "--set", "no.such.setting=1")
    described = eventually(  # another broker may not have read the change yet
        lambda: shell.json("topics", "describe", name)[0], "the change is read",
        good=lambda found: found["configs"] == {"max.message.bytes": "5000"} and len(found["partitions"]) == 3,
    )  # fmt: skip
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert all(p["leader"] in p["isr"] and p["end_offset"] == 0 for p in described["partitions"])
    (row,) = [row for row in shell.json("topics", "list") if row["topic"] == name]
    assert (row["partitions"], row["offline"]) == (3, 0)
    shell.run("topics", "delete", name, "--yes")
    eventually(lambda: name not in {row["topic"] for row in shell.json("topics", "list")}, "it is gone")
    assert name in shell.fails("topics", "delete", name, "--yes")
    shell.run("topics", "delete", name, "--if-exists", "--yes")
    assert name in shell.fails("topics", "describe", name)


def test_a_topic_is_compacted_at_once(shell: Shell, topic: str) -> None:
    """The command waits for all copies; what its setting keeps only goes with ``--now``."""
    assert "cleanup.policy" in shell.fails("topics", "compact", topic)
    (described,) = shell.json("topics", "describe", topic)
    assert described["compaction"] == []
    name = f"{topic}-compacted"
    settings = ("cleanup.policy=compact", "min.cleanable.dirty.ratio=1", "min.compaction.lag.ms=3600000")
    shell.run("topics", "create", name, "-p", "2", *(word for one in settings for word in ("-c", one)))
    shell.run("produce", name, "-K", ":", stdin="".join(f"k{i % 10}:value {i}\n" for i in range(500)))
    rows = shell.json("topics", "compact", name)
    assert rows
    assert {row["clean_up_to"] for row in rows} == {0}
    assert "min.compaction.lag.ms" in rows[0]["note"]
    rows = shell.json("topics", "compact", name, "--now")
    assert [row["note"] for row in rows] == [None] * len(rows)
    assert all(row["after"] < row["before"] / 5 for row in rows)
    values = [line.split()[-1] for line in shell.lines("consume", name, "--to", "end")]
    assert sorted(map(int, values)) == list(range(490, 500))
    (described,) = shell.json("topics", "describe", name)
    figures = described["compaction"]
    assert {(row["partition"], row["broker"]) for row in figures} == {(row["partition"], row["broker"]) for row in rows}
    assert {(row["state"], row["dirty_ratio"], row["trouble"]) for row in figures} == {(0, 0.0, None)}
    assert "clean up to" in shell.run("topics", "describe", name).stdout
    assert shell.json("topics", "compact", name, "--no-wait")["asked"] == len(rows)


def test_nothing_is_deleted_unasked(shell: Shell, topic: str) -> None:
    assert "--yes" in shell.fails("topics", "delete", topic)
    assert "--yes" in shell.fails("groups", "delete", topic)
    assert "--yes" in shell.fails("topics", "elect", topic, "--unclean")
    shell.run("produce", topic, stdin="1\n")
    shell.run("consume", topic, "-g", f"group-{topic}", "--to", "end")
    assert "--internal" in shell.fails("topics", "delete", topic, "__consumer_offsets", "--yes")
    refused = shell.fails("topics", "delete", "__consumer_offsets", "--internal", "--yes")
    assert "internal.topics.alter.enable" in refused
    assert {topic, "__consumer_offsets"} <= {row["topic"] for row in shell.json("topics", "list", "--internal")}


def test_what_goes_in_comes_out(shell: Shell, topic: str, tmp_path: Path) -> None:
    lines = "".join(f"k{i}\tvalue {i}\n" for i in range(50))
    shell.run("produce", topic, "-K", "\\t", "-H", "from=test", "-z", "zstd", stdin=lines)
    records = [json.loads(line) for line in shell.lines("consume", topic, "--to", "end", "--json")]
    assert {(r["key"], r["value"]) for r in records} == {(f"k{i}", f"value {i}") for i in range(50)}
    assert records[0]["headers"] == [{"name": "from", "value": "test"}]
    copy = tmp_path / "records.json"
    copy.write_text("".join(json.dumps(r) + "\n" for r in records))
    other = f"{topic}-copy"
    shell.run("topics", "create", other, "-p", "3")
    shell.run("produce", other, str(copy), "--format", "json")
    again = [json.loads(line) for line in shell.lines("consume", other, "--to", "end", "--json")]

    def essence(found: list[dict[str, Any]]) -> list[Any]:
        return sorted(
            (r["partition"], r["offset"], r["key"], r["value"], r["timestamp"], str(r["headers"])) for r in found
        )

    assert essence(records) == essence(again)


def test_points_to_read_from_and_to(shell: Shell, topic: str) -> None:
    lines = "".join(json.dumps({"value": str(i), "timestamp": 1_000_000 + i * 1_000}) + "\n" for i in range(20))
    shell.run("topics", "alter", topic, "--set", "retention.ms=-1")
    report = shell.json("produce", topic, "-p", "1", "--format", "json", stdin=lines)
    assert report == {"topic": topic, "records": 20, "last_offsets": {"1": 19}}
    one = f"{topic}:1"

    def read(*arguments: str) -> list[int]:
        return [int(line) for line in shell.lines("consume", one, *arguments)]

    assert read("--from", "15", "--to", "end") == [15, 16, 17, 18, 19]
    assert read("--from", "3", "--to", "6") == [3, 4, 5]
    assert read("--from", "@000001004500", "--to", "@000001008000") == [5, 6, 7]
    assert read("--from", "1970-01-01T00:16:58", "--to", "end") == [18, 19]
    assert read("-n", "2") == [0, 1]
    assert read("--from", "end", "--to", "end") == []
    assert [line.split()[-1] for line in shell.lines("consume", one, "--to", "2", "--details", "-K", "|")] == [
        "|0",
        "|1",
    ]


def test_a_hundred_thousand_lines_take_less_than_a_second_of_cpu(shell: Shell, topic: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"key {i}:{i:080}\n" for i in range(200_000)))
    before = slower()
    process = shell.start("produce", topic, str(lines), "-K", ":")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.communicate() == (f"200000 records to {topic}\n", "")
    assert usage.ru_utime + usage.ru_stime < 2.0 * max(1.0, before, slower())
    (described,) = shell.json("topics", "describe", topic)
    assert sum(p["records"] for p in described["partitions"]) == 200_000


def test_mistakes_with_records(shell: Shell, topic: str, tmp_path: Path) -> None:
    assert "not 9" in shell.fails("consume", f"{topic}:9", "--to", "end")
    assert "not 9" in shell.fails("produce", topic, "-p", "9")
    assert "no-such-topic" in shell.fails("consume", "no-such-topic", "-n", "1")
    shell.run("topics", "alter", topic, "--set", "max.message.bytes=1000")
    big = tmp_path / "big"
    big.write_bytes(os.urandom(5_000))
    line = shell.fails("produce", topic, str(big), "--whole-file")
    assert topic in line
    assert "MESSAGE_TOO_LARGE" in line


def test_a_group_is_described_reset_and_deleted(shell: Shell, topic: str) -> None:
    group = f"group-{topic}"
    assert "GROUP_ID_NOT_FOUND" in shell.fails("groups", "describe", group)
    shell.run("produce", topic, stdin="".join(f"{i}\n" for i in range(90)))
    assert len(shell.lines("consume", topic, "-g", group, "--to", "end")) == 90
    assert shell.lines("consume", topic, "-g", group, "--to", "end") == []
    assert {"group": group, "state": "Empty", "type": "classic", "protocol": "consumer"} in shell.json("groups", "list")
    (described,) = shell.json("groups", "describe", group)
    assert described["lag"] == 0
    assert sum(row["committed"] for row in described["offsets"]) == 90

    plan = shell.json("groups", "reset", group, "--to-earliest")
    assert {row["new"] for row in plan} == {0}
    assert shell.json("groups", "describe", group)[0]["lag"] == 0, "a dry run changes nothing"
    shell.run("groups", "reset", group, "--to-earliest", "--execute")
    assert shell.json("groups", "describe", group)[0]["lag"] == 90
    shell.run("groups", "reset", group, "--topic", f"{topic}:0", "--to-offset", "5", "--execute")
    assert {r["partition"]: r["committed"] for r in shell.json("groups", "describe", group)[0]["offsets"]}[0] == 5
    plan = shell.json("groups", "reset", group, "--topic", f"{topic}:0", "--shift-by", "-2")
    assert [(row["committed"], row["new"], row["change"]) for row in plan] == [(5, 3, -2)]
    plan = shell.json("groups", "reset", group, "--by-duration", "1h")
    assert {row["new"] for row in plan} == {0}
    ends = {row["partition"]: row["new"] for row in shell.json("groups", "reset", group, "--to-latest")}
    assert sum(ends.values()) == 90
    plan = shell.json("groups", "reset", group, "--to-datetime", "2100-01-01")
    assert {row["partition"]: row["new"] for row in plan} == ends

    shell.run("groups", "delete", group, "--topic", f"{topic}:0", "--yes")
    assert {r["partition"] for r in shell.json("groups", "describe", group)[0]["offsets"]} == {1, 2}
    shell.run("groups", "delete", group, "--yes")
    assert "GROUP_ID_NOT_FOUND" in shell.fails("groups", "delete", group, "--yes")


def test_a_group_commits_no_more_than_was_written(shell: Shell, topic: str) -> None:
    group, one = f"group-{topic}", f"{topic}-one"
    shell.run("topics", "create", one, "-p", "1")
    shell.run("produce", one, stdin="".join(f"{i}\n" for i in range(50)))
    assert shell.lines("consume", one, "-g", group, "-n", "7") == [str(i) for i in range(7)]
    assert shell.lines("consume", one, "-g", group, "--to", "20") == [str(i) for i in range(7, 20)]
    (described,) = shell.json("groups", "describe", group)
    assert [row["committed"] for row in described["offsets"]] == [20]


def test_a_new_group_begins_where_it_is_told(shell: Shell, topic: str) -> None:
    group = f"group-{topic}"
    shell.run("produce", topic, stdin="one\n")
    assert shell.lines("consume", topic, "-g", group, "--from", "beginning", "-n", "1") == ["one"]
    refused = shell.fails("consume", topic, "-g", group, "--from", "beginning", "-n", "1")
    assert f"group {group} has committed offsets of {topic}" in refused
    assert "groups reset" in refused
    assert shell.lines("consume", topic, "-g", f"{group}-end", "--from", "end", "--to", "end") == []


def test_nothing_erases_what_is_typed(shell: Shell, topic: str) -> None:
    """At a terminal there is a line that says what to do, and no progress bar."""
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "produce", topic]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **shell.environment}
    ) as process:
        os.close(theirs)
        shown = b""
        while b"Ctrl-D" not in shown:
            shown += os.read(ours, 1000)
        os.write(ours, b"typed\n\x04")
        with suppress(OSError):  # its end, on Linux
            while piece := os.read(ours, 1000):
                shown += piece
    os.close(ours)
    assert process.returncode == 0
    assert b"\x1b" not in shown
    assert f"1 record to {topic}".encode() in shown
    assert "typed" in shell.lines("consume", topic, "--to", "end")


def test_names_are_completed(shell: Shell, topic: str) -> None:
    shell.environment = {
        **shell.environment,
        "_FLEETLOG_COMPLETE": "bash_complete",
        "COMP_WORDS": f"fleetlog topics describe {topic[:-2]}",
        "COMP_CWORD": "3",
    }
    try:
        assert topic in shell.run().stdout
    finally:
        for name in ("_FLEETLOG_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
            del shell.environment[name]


def test_a_group_at_work(shell: Shell, topic: str) -> None:
    group = f"group-{topic}"
    member = shell.start("consume", topic, "-g", group)
    try:
        deadline = time.monotonic() + 60
        while True:
            state = {row["group"]: row["state"] for row in shell.json("groups", "list")}.get(group)
            # A client that does not know the topic yet starts without partitions and rebalances.
            if state == "Stable":
                (described,) = shell.json("groups", "describe", group)
                if [m["assigned"] for m in described["members"]] == [[f"{topic}:0,1,2"]]:
                    break
            assert time.monotonic() < deadline, state
        assert "NON_EMPTY_GROUP" in shell.fails("groups", "delete", group, "--yes")
        assert "active members" in shell.fails("groups", "reset", group, "--topic", topic, "--to-latest", "--execute")
    finally:
        member.send_signal(signal.SIGTERM)
        _, errors = member.communicate(timeout=60)
    assert (member.returncode, errors) == (0, "")
    states = {row["group"]: row["state"] for row in shell.json("groups", "list")}
    assert states.get(group) in {None, "Empty"}, "it left when it was ended"


def test_open_transactions_are_listed_and_described(shell: Shell, topic: str) -> None:
    from kafka import KafkaProducer

    name = f"tx-{topic}"
    said = eventually(  # the coordinators' topic may have been made by this very question
        lambda: shell.fails("transactions", "describe", name), "a coordinator answers",
        good=lambda said: "try again in a moment" not in said,
    )  # fmt: skip
    assert "TRANSACTIONAL_ID_NOT_FOUND" in said
    producer = KafkaProducer(
        bootstrap_servers=shell.environment["FLEETLOG_BOOTSTRAP"].split(","), transactional_id=name
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"aborted", partition=0).get(30)
        (row,) = [row for row in shell.json("transactions", "list") if row["transactional_id"] == name]
        assert row["state"] == "Ongoing"
        assert name not in {row["transactional_id"] for row in shell.json("transactions", "list", "--state", "Empty")}
        (described,) = shell.json("transactions", "describe", name)
        assert described["partitions"] == [f"{topic}:0"]
        (open_one,) = shell.json("transactions", "producers", topic, "--open")
        assert (open_one["partition"], open_one["producer_id"]) == (0, described["producer_id"])
        assert open_one["transaction_from"] == 0
        assert shell.lines("consume", topic, "--to", "end") == []
        assert shell.lines("consume", topic, "--to", "end", "--isolation", "read_uncommitted") == ["aborted"]
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"committed", partition=0).get(30)
        producer.commit_transaction()
    finally:
        producer.close()
    eventually(  # the commit is answered before its markers are written
        lambda: shell.json("transactions", "producers", topic, "--open") == [], "the transaction has ended"
    )
    assert shell.lines("consume", topic, "--to", "end") == ["committed"]


def test_dump_of_a_running_brokers_files(shell: Shell, fleet: Fleet, topic: str) -> None:
    shell.run("produce", topic, "-p", "2", "-k", "key", stdin="dumped\n")
    (segment,) = [
        path
        for broker in fleet.brokers
        for path in broker.directory.glob(f"data/{topic}-2/*.log")
        if path.stat().st_size
    ]
    rows = [json.loads(line) for line in shell.lines("log", "dump", "--records", "--json", str(segment))]
    assert [(r["key"], r["value"]) for r in rows if "record" in r] == [("key", "dumped")]


def test_tables_for_people(shell: Shell, topic: str) -> None:
    assert shell.lines("topics", "list")[0].split()[:5] == [
        "topic",
        "partitions",
        "replication",
        "offline",
        "under-replicated",
    ]
    assert topic in shell.run("topics", "describe", topic).stdout
    shell.run("produce", topic, stdin="x\n")
    assert shell.run("produce", topic, stdin="x\ny\n").stdout == f"2 records to {topic}\n"


def test_a_deleted_topics_offsets_are_forgotten(shell: Shell, topic: str) -> None:
    group = f"group-{topic}"
    shell.run("produce", topic, stdin="1\n2\n")
    shell.run("consume", topic, "-g", group, "--to", "end")
    assert shell.json("groups", "describe", group)[0]["offsets"]
    shell.run("topics", "delete", topic, "--yes")
    eventually(
        lambda: shell.json("groups", "describe", group)[0]["offsets"], "the offsets are forgotten",
        good=lambda offsets: not offsets,
    )  # fmt: skip


def test_a_reader_that_goes_away_ends_it_quietly(shell: Shell, topic: str) -> None:
    shell.run("produce", topic, stdin="".join(f"{i:0100}\n" for i in range(5_000)))
    reading = shell.start("consume", topic, "--to", "end")
    assert reading.stdout is not None
    assert reading.stdout.readline()
    reading.stdout.close()
    assert reading.stderr is not None
    assert reading.stderr.read() == ""
    reading.stderr.close()
    assert reading.wait(60) == 0
