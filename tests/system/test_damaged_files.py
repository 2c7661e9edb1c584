"""A partition whose files are damaged is named by ``fleetlog log verify`` and fetched again, as the docs describe."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import Confluent, Message
from tests.support.copies import Cluster
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

client = Confluent()


def verified(directory: Path, code: int) -> dict[str, Any]:
    """What the command says of each partition, by its directory's name."""
    command = [
        sys.executable,
        "-m",
        "fleetlog.brokers.cli.main",
        "log",
        "verify",
        "--json",
        "--records",
        str(directory),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("damaged" in done.stderr) == (code == 1)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {f"{row['topic']}-{row['partition']}": row for row in rows}


def test_a_running_broker_finds_damage_by_itself_and_a_lost_disk_is_filled_again(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, brokers=2, default_replication_factor=2, log_segment_bytes=65536,
                  log_verify_bytes_per_second=10**8)  # fmt: skip
    try:
        _, two = fleet.start().brokers
        cluster = Cluster(fleet)
        cluster.create("t", replicas=2)
        values = [b"%d" % number + b"." * 900 for number in range(200)]
        for begin in range(0, len(values), 20):
            sent = [Message(value) for value in values[begin : begin + 20]]
            client.produce(fleet.bootstrap, "t", sent, acks="all")
        cluster.wait_isr("t", {1, 2})
        file = sorted((two.directory / "data" / "t-0").glob("*.log"))[0]
        with file.open("r+b") as segment:
            segment.seek(5_000)
            byte = segment.read(1)[0]
            segment.seek(5_000)
            segment.write(bytes([byte ^ 1]))
        eventually(lambda: cluster.metric(two, "fleetlog_damaged_segments") == 1, "the broker finds it")
        assert f"segment {file} is damaged at offset " in two.output()
        command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "doctor", "--json", "-b", fleet.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        (found,) = [one for one in json.loads(done.stdout) if one["check"] == "segment"]
        assert (found["severity"], found["where"]) == ("error", "broker 2")
        assert str(file) in found["what"]
        assert two.stop() == 0
        shutil.rmtree(two.directory / "data")  # a new disk
        two.start()
        two.wait_ready()
        cluster.wait_isr("t", {1, 2})
        assert cluster.metric(two, "fleetlog_damaged_segments") == 0
        assert verified(two.directory / "data", 0)["t-0"]["end"] >= 200
        assert [message.value for message in client.consume(fleet.bootstrap, "t", 200)] == values
    finally:
        fleet.close()


def test_a_damaged_partition_is_fetched_again(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, brokers=2, default_replication_factor=2, min_insync_replicas=2, log_segment_bytes=65536,
                  auto_leader_rebalance_enable="false")  # fmt: skip
    try:
        one, two = fleet.start().brokers
        Cluster(fleet).create("t", replicas=2)

        def partition() -> Any:
            from confluent_kafka.admin import AdminClient

            return (
                AdminClient({"bootstrap.servers": fleet.bootstrap})
                .list_topics("t", timeout=30)
                .topics["t"]
                .partitions[0]
            )

        values = [b"%d" % number + b"." * 900 for number in range(200)]
        for begin in range(0, len(values), 20):
            sent = [Message(value) for value in values[begin : begin + 20]]
            client.produce(fleet.bootstrap, "t", sent, acks="all")
        eventually(lambda: len(partition().isrs) == 2, "both are in sync")
        data = two.directory / "data"
        assert verified(data, 0)["t-0"]["end"] >= 200  # while the broker runs
        assert two.stop() == 0
        file = sorted((data / "t-0").glob("*.log"))[0]
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        found = verified(data, 1)
        assert {name for name, row in found.items() if row["problems"]} == {"t-0"}
        assert found["t-0"]["problems"][0]["file"] == str(file)
        assert "checksum" in found["t-0"]["problems"][0]["what"]

        shutil.move(data / "t-0", tmp_path / "away")
        one.kill()
        two.start()  # it could lead, having stopped cleanly, were its log not empty
        eventually(lambda: "lost records since its clean stop" in two.output(), "the broker says so")
        one.start()
        for broker in (one, two):
            broker.wait_ready()
        eventually(lambda: len(partition().isrs) == 2, "both are in sync again")
        assert [message.value for message in client.consume(fleet.bootstrap, "t", 200)] == values
        assert one.stop() == 0
        eventually(lambda: partition().leader == two.id, "the restored replica leads")
        assert [message.value for message in client.consume(fleet.bootstrap, "t", 200)] == values
        assert verified(data, 0)["t-0"]["end"] >= 200
    finally:
        fleet.close()
