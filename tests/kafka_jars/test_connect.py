"""Kafka Connect, distributed: two workers with exactly-once support for sources, files as source and sink.

A sink reads as a group of either protocol. One worker is killed, its tasks move to the other; connectors are stopped
and their offsets altered over REST.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from confluent_kafka.admin import AdminClient

from fleetlog.coordination.ports import free_ports
from tests.kafka_jars.programs import Program, read_topic, write_properties
from tests.support.clients import Confluent
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop, pytest.mark.timeout(600)]

LIMIT_S = 120.0
LINES = 400
TOPICS = {"config": "connect-configs", "offset": "connect-offsets", "status": "connect-status"}
PROTOCOLS = ("classic", "consumer")
STRINGS = "org.apache.kafka.connect.storage.StringConverter"


class Worker(Program):
    def __init__(self, classpath: str, directory: Path, bootstrap: str) -> None:
        directory.mkdir()
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect",
            "listeners": self.url,
            "exactly.once.source.support": "enabled",
            "key.converter": STRINGS,
            "value.converter": STRINGS,
            "offset.flush.interval.ms": 500,
            "scheduled.rebalance.max.delay.ms": 1000,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1500,
            "plugin.discovery": "service_load",
            "offset.storage.partitions": 5,
            "status.storage.partitions": 2,
            **{f"{name}.storage.topic": topic for name, topic in TOPICS.items()},
            **{f"{name}.storage.replication.factor": 3 for name in TOPICS},
        }
        file = write_properties(directory / "properties", settings)
        super().__init__(classpath, directory / "out", "org.apache.kafka.connect.cli.ConnectDistributed", str(file))

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """A request to the REST API; None where it says "not now" (409: a rebalance) or does not answer yet."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"{}")
        except HTTPError as problem:
            if problem.code not in (404, 409):
                raise AssertionError(f"{method} {path}: {problem.code}: {problem.read()!r}") from problem
        except OSError:
            assert self.alive(), self.tail()
        return None

    def done(self, method: str, path: str, body: object = None) -> Any:
        what = f"{method} {path}"
        return eventually(lambda: self.ask(method, path, body), what, LIMIT_S, good=lambda got: got is not None)

    def tasks(self, connector: str) -> dict[int, str]:
        """The worker of each running task; what Connect 4.3.1 itself breaks is started again, as an operator does.

        Its sinks do not stand a rebalance that takes some of their partitions: UnsupportedOperationException.
        """
        found = self.ask("GET", f"/connectors/{connector}/status") or {"tasks": []}
        for task in found["tasks"]:
            if "SinkTaskMetricsGroup.clearOffsets" in task.get("trace", ""):
                url = f"http://{task['worker_id']}/connectors/{connector}/tasks/{task['id']}/restart"
                with contextlib.suppress(OSError):  # a rebalance, or that worker has ended: it is asked again
                    urlopen(Request(url, method="POST"), timeout=30).close()
        return {task["id"]: task["worker_id"] for task in found["tasks"] if task["state"] == "RUNNING"}

    @property
    def name(self) -> str:
        return self.url.removeprefix("http://")

    def wait_state(self, connector: str, state: str) -> None:
        def now() -> str:
            return str((self.ask("GET", f"/connectors/{connector}/status") or {"connector": {}})["connector"])

        eventually(now, f"{connector} is {state}", LIMIT_S, good=lambda text: f"'{state}'" in text)


@pytest.fixture
def workers(connect_classpath: str, fleet: Fleet, tmp_path: Path) -> Iterator[list[Worker]]:
    made = [Worker(connect_classpath, tmp_path / name, fleet.bootstrap) for name in ("one", "other")]
    try:
        for worker in made:
            worker.start()
        yield made
    finally:
        for worker in made:
            worker.kill()


class Files:
    """Two files that grow, two that are written of what was read, and the settings of the connectors."""

    def __init__(self, directory: Path) -> None:
        self.sources = [directory / f"source-{number}" for number in range(2)]
        self.sinks = {protocol: directory / f"sink-{protocol}" for protocol in PROTOCOLS}
        for sink in self.sinks.values():
            sink.touch()
        self.lines: list[list[str]] = [[], []]

    def grow(self) -> None:
        for number, source in enumerate(self.sources):
            fresh = [f"{number}:{len(self.lines[number]) + more}" for more in range(LINES)]
            self.lines[number] += fresh
            with source.open("a") as file:
                file.write("".join(f"{line}\n" for line in fresh))

    def source(self, number: int) -> dict[str, str]:
        return {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1", "topic": f"from-file-{number}", "file": str(self.sources[number]),
            "exactly.once.support": "required", "transaction.boundary": "poll",
        }  # fmt: skip

    def sink_settings(self, protocol: str) -> dict[str, str]:
        return {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "tasks.max": "2", "topics": "from-file-0,from-file-1", "file": str(self.sinks[protocol]),
            "consumer.override.group.protocol": protocol,
        }  # fmt: skip


def sent(bootstrap: str, number: int) -> list[str]:
    return [(message.value or b"").decode() for message in read_topic(bootstrap, f"from-file-{number}")]


def test_files_are_copied_exactly_once_though_a_worker_is_killed(
    workers: list[Worker], fleet: Fleet, tmp_path: Path
) -> None:
    one, other = workers
    files = Files(tmp_path)
    for number in range(2):
        Confluent().create_topic(fleet.bootstrap, f"from-file-{number}")
    files.grow()
    for name, settings in (
        ("source-0", files.source(0)),
        ("source-1", files.source(1)),
        *((f"sink-{protocol}", files.sink_settings(protocol)) for protocol in PROTOCOLS),
    ):
        other.done("PUT", f"/connectors/{name}/config", settings)
    connectors = {"source-0": 1, "source-1": 1, "sink-classic": 2, "sink-consumer": 2}

    def placed() -> list[str]:
        found = [other.tasks(name) for name in connectors]
        if [len(tasks) for tasks in found] != list(connectors.values()):
            return []
        return [worker for tasks in found for worker in tasks.values()]

    eventually(placed, "tasks run on both workers", LIMIT_S, good=lambda names: set(names) == {one.name, other.name})
    wait_sent(fleet.bootstrap, files)
    for topic in TOPICS.values():
        assert Confluent().topic_config(fleet.bootstrap, topic)["cleanup.policy"] == "compact"
    files.grow()
    one.kill()
    files.grow()
    eventually(placed, "tasks run on what is left", LIMIT_S, good=lambda names: set(names) == {other.name}, pause_s=0.3)
    wait_sent(fleet.bootstrap, files)
    one.start()
    files.grow()
    eventually(placed, "tasks run on both again", LIMIT_S, good=lambda names: set(names) == {one.name, other.name})
    wait_sent(fleet.bootstrap, files)
    everything = {line for lines in files.lines for line in lines}
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    for protocol, sink in files.sinks.items():
        eventually(
            lambda sink=sink: set(sink.read_text().split("\n")[:-1]), "the sink has it all", LIMIT_S,
            good=everything.__eq__,
        )  # fmt: skip
        group = f"connect-sink-{protocol}"
        described = admin.describe_consumer_groups([group])[group].result(60)
        assert (described.type.name, len(described.members)) == (protocol.upper(), 2)
    offsets_of_a_source_are_altered(other, fleet.bootstrap, files)
    for protocol in PROTOCOLS:
        offsets_of_a_sink_are_altered(other, fleet.bootstrap, files, protocol)


def wait_sent(bootstrap: str, files: Files) -> None:
    """Until each line is in its topic: once, and in order."""
    for number, lines in enumerate(files.lines):
        eventually(
            lambda number=number: len(sent(bootstrap, number)), f"{len(lines)} lines of file {number}", LIMIT_S,
            good=len(lines).__le__, pause_s=0.3,
        )  # fmt: skip
        assert sent(bootstrap, number) == lines


def offsets_of_a_source_are_altered(worker: Worker, bootstrap: str, files: Files) -> None:
    """The last 10 lines once more."""
    place = {"filename": str(files.sources[0])}
    worker.done("PUT", "/connectors/source-0/stop")
    worker.wait_state("source-0", "STOPPED")
    whole = files.sources[0].stat().st_size
    now = worker.done("GET", "/connectors/source-0/offsets")
    assert now == {"offsets": [{"partition": place, "offset": {"position": whole}}]}
    again = files.lines[0][-10:]
    back = whole - sum(len(line) + 1 for line in again)
    altered = {"offsets": [{"partition": place, "offset": {"position": back}}]}
    assert "altered successfully" in worker.done("PATCH", "/connectors/source-0/offsets", altered)["message"]
    assert worker.done("GET", "/connectors/source-0/offsets") == altered
    worker.done("PUT", "/connectors/source-0/resume")
    files.lines[0] += again
    wait_sent(bootstrap, files)


def offsets_of_a_sink_are_altered(worker: Worker, bootstrap: str, files: Files, protocol: str) -> None:
    """From the last 10 of a topic on; then from the start."""
    sink = f"/connectors/sink-{protocol}"
    worker.done("PUT", f"{sink}/stop")
    worker.wait_state(f"sink-{protocol}", "STOPPED")
    end = read_topic(bootstrap, "from-file-1")[-1].offset
    read = {entry["partition"]["kafka_topic"]: entry for entry in worker.done("GET", f"{sink}/offsets")["offsets"]}
    assert read["from-file-1"]["partition"]["kafka_partition"] == 0
    assert read["from-file-1"]["offset"]["kafka_offset"] >= end
    before = files.sinks[protocol].read_text()
    read["from-file-1"]["offset"]["kafka_offset"] = read_topic(bootstrap, "from-file-1")[-10].offset
    worker.done("PATCH", f"{sink}/offsets", {"offsets": [read["from-file-1"]]})
    worker.done("PUT", f"{sink}/resume")
    eventually(
        lambda: sorted(files.sinks[protocol].read_text()[len(before) :].split()), "these lines once more", LIMIT_S,
        good=lambda got: [line for line in got if line.startswith("1:")] == sorted(files.lines[1][-10:]),
    )  # fmt: skip
    worker.done("PUT", f"{sink}/stop")
    worker.wait_state(f"sink-{protocol}", "STOPPED")
    assert "reset successfully" in worker.done("DELETE", f"{sink}/offsets")["message"]
    assert worker.done("GET", f"{sink}/offsets") == {"offsets": []}
