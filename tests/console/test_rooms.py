"""Pages of share groups and their dead letters, of schemas and what was refused for them, and of tiered topics."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from tests.cli.shell import Shell
from tests.console.served import Served, Visitor, log_in, scram_config
from tests.support.fleet import Fleet
from tests.support.guarded_registry import ADMIN, Guarded
from tests.support.registry_process import RegistryProcess
from tests.support.secured import PASSWORD, USER
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

FEATURES = ("share.version=2", "fleetlog.tiering.version=1")
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NOTE = {"name": "note", "type": "string", "default": "<none>"}
LETTERS = "errors.deadletterqueue"


class Rooms(NamedTuple):
    fleet: Fleet
    shell: Shell
    visitor: Visitor
    registry: RegistryProcess

    def ask(self, change: str, **fields: str) -> Any:
        """What the question before a change has; with ``confirm`` what the change says."""
        got = self.visitor.post(f"/change/{change}", self.form(fields), Accept="application/json")
        return got.value | {"status": got.status}

    def asked(self, change: str, **fields: str) -> str:
        """The question as a page."""
        return self.visitor.post(f"/change/{change}", self.form(fields)).text

    def form(self, fields: dict[str, str]) -> dict[str, str]:
        return {**fields, "form_token": self.visitor.token(self.visitor.page("/security"))}


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rooms]:
    directory = tmp_path_factory.mktemp("rooms")
    fleet = Fleet(
        directory, remote_log_storage_system_enable="true", fleetlog_bucket_url=f"file://{directory}/bucket",
        remote_log_manager_task_interval_ms=500, share_coordinator_state_topic_num_partitions=3,
        group_share_heartbeat_interval_ms=500,
    )  # fmt: skip
    (directory / "bucket").mkdir()
    fleet.start()
    shell = Shell(fleet)
    for feature in FEATURES:
        shell.run("features", "upgrade", feature)
    registry = RegistryProcess(fleet.bootstrap)
    console = Served(fleet.bootstrap, "--schema-registry", registry.url)
    yield Rooms(fleet, shell, Visitor(console), registry)
    assert console.close() == 0
    registry.close()
    fleet.close()


def _rejecting(rooms: Rooms, topic: str, group: str, count: int) -> None:
    """A member that rejects all records, until it has had so many."""
    worker = ShareConsumer({
        "bootstrap.servers": rooms.fleet.bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit",
    })  # fmt: skip
    worker.subscribe([topic])
    seen, end_s = 0, time.monotonic() + 60
    while seen < count and time.monotonic() < end_s:
        for record in worker.poll(1.0):
            assert record.error() is None, record.error()
            worker.acknowledge(record, AcknowledgeType.REJECT)
            seen += 1
    worker.close()
    assert seen == count


def test_a_share_group_and_its_dead_letters_are_looked_at_and_sent_back(rooms: Rooms) -> None:
    visitor, shell, group = rooms.visitor, rooms.shell, "thumbnails"
    shell.run("topics", "create", "jobs", "-p", "1")
    shell.run("topics", "create", "dlq.jobs", "-p", "1", "--set", f"{LETTERS}.group.enable=true")
    settings = {"share.auto.offset.reset": "earliest", f"{LETTERS}.topic.name": "dlq.jobs"}
    shell.run("groups", "alter", group, *(f"--set={name}={value}" for name, value in settings.items()))
    shell.run("produce", "jobs", stdin="one\ntwo\nthree\n")
    _rejecting(rooms, "jobs", group, 3)

    def letters() -> list[dict[str, Any]]:
        return list(visitor.json("/topics/dlq.jobs/letters")["letters"])

    rows = eventually(letters, "all letters", good=lambda rows: len(rows) == 3)
    assert [(row["reason"], row["group"], row["record"], row["copied"], row["replayed"]) for row in rows] == [
        ("rejected", group, f"jobs:0:{offset}", False, False) for offset in (2, 1, 0)
    ]
    page = visitor.page("/topics/dlq.jobs/letters")
    assert 'href="/topics/jobs/record?partition=0&amp;offset=2"' in page
    assert 'href="/topics/dlq.jobs/letters"' in visitor.page("/topics/dlq.jobs")
    assert visitor.json("/topics/dlq.jobs/letters?group=others")["letters"] == []
    described = visitor.json(f"/group?name={group}")
    assert (described["type"], described["letters"], described["lag"]) == ("share", "dlq.jobs", 0)
    assert [(row["start"], row["end"]) for row in described["offsets"]] == [(3, 3)]
    changed = {row["name"]: row["value"] for row in described["settings"]["rows"] if row["changed"]}
    assert changed == settings
    page = visitor.page(f"/group?name={group}")
    assert f'href="/topics/dlq.jobs/letters?group={group}"' in page
    assert f'href="/group/setting?group={group}&amp;name=share.delivery.count.limit"' in page.replace(
        "&name", "&amp;name"
    )

    place = f"{rows[0]['partition']}:{rows[0]['offset']}"
    question = rooms.ask("replay-letters", topic="dlq.jobs", letter=place)
    assert (question["preview"][0]["letters"], f"--letter={place}" in question["command"]) == (1, True)
    assert "reaches all groups" in rooms.asked("replay-letters", topic="dlq.jobs", letter=place)
    rooms.ask("replay-letters", topic="dlq.jobs", letter=place, confirm="yes")
    assert not any(row["replayed"] for row in letters()), "one letter moves no position"
    rooms.ask("replay-letters", topic="dlq.jobs", confirm="yes")
    assert all(row["replayed"] for row in letters())
    assert "sent back" in visitor.page("/topics/dlq.jobs/letters")
    found = shell.run("consume", "jobs", "--to", "end", "-f", "%v ").stdout
    assert found == "one two three three one two three "
    question = rooms.ask("purge-letters", topic="dlq.jobs", before="end")
    assert (question["preview"][0]["first_offset"], question["destroys"]) == (0, True)
    rooms.ask("purge-letters", topic="dlq.jobs", before="end", confirm="yes")
    assert letters() == []
    assert "No letter is here" in visitor.page("/topics/dlq.jobs/letters")


def test_a_setting_of_a_group_has_a_page_that_changes_it(rooms: Rooms) -> None:
    name, visitor = "share.delivery.count.limit", rooms.visitor
    assert visitor.json(f"/group/setting?group=g&name={name}")["value"] == "5"
    assert "Deliveries of a record" in visitor.page(f"/group/setting?group=g&name={name}")
    question = rooms.ask("alter-group", group="g", setting=name, value="3")
    assert question["preview"] == [{"group": "g", "changes": [f"{name}: 5 → 3"]}]
    assert rooms.ask("alter-group", group="g", setting=name, value="none")["status"] == 400
    rooms.ask("alter-group", group="g", setting=name, value="3", confirm="yes")
    value = visitor.json(f"/group/setting?group=g&name={name}")
    assert (value["value"], value["origin"]) == ("3", "this group")
    rooms.ask("alter-group", group="g", setting=name, to="default", confirm="yes")
    assert visitor.json(f"/group/setting?group=g&name={name}")["value"] == "5"
    assert visitor.get("/group/setting?group=g&name=no.such").status == 404
    assert visitor.get("/group/setting?name=no.such").status == 400


def test_letters_that_were_written_by_hand_and_masked_ones(rooms: Rooms, tmp_path: Path) -> None:
    """What stands in headers is shown as text, and what is masked is neither shown nor sent back."""
    rooms.shell.run("topics", "create", "dlq.odd", "-p", "1")
    producer = Producer({"bootstrap.servers": rooms.fleet.bootstrap})
    for group in (b"<b>g</b>", b"other"):
        headers = {"__dlq.errors.topic": b"gone:1", "__dlq.errors.partition": b"x", "__dlq.errors.group": group}
        producer.produce("dlq.odd", b"secret", headers=headers)
    producer.produce("dlq.odd", b"no letter at all")
    assert producer.flush(30) == 0
    page = rooms.visitor.page("/topics/dlq.odd/letters")
    assert "&lt;b&gt;g&lt;/b&gt;" in page
    assert "does not permit dead letters" in page
    assert len(rooms.visitor.json("/topics/dlq.odd/letters?group=other")["letters"]) == 1
    assert rooms.visitor.get("/topics/no-such/letters").status == 404
    assert rooms.visitor.get("/topics/dlq.odd/letters?cursor=!").status == 400
    rules = tmp_path / "masks"
    rules.write_text("dlq.* headers.*\n", "utf-8")
    console = Served(rooms.fleet.bootstrap, "--mask", str(rules))
    try:
        visitor = Visitor(console)
        assert "other" not in visitor.page("/topics/dlq.odd/letters").split("<tbody>")[1]
        assert visitor.get("/topics/dlq.odd/letters?group=other").status == 403
        token = visitor.token(visitor.page("/security"))
        form = {"topic": "dlq.odd", "confirm": "yes", "form_token": token}
        assert visitor.post("/change/replay-letters", form).status == 403
    finally:
        assert console.close() == 0


def test_a_change_of_a_schema_is_tried_before_it_is_registered(rooms: Rooms) -> None:
    visitor, subject = rooms.visitor, "orders/new-value"
    first = json.dumps(ORDER)
    question = rooms.ask("register-schema", subject=subject, kind="AVRO", text=first)
    assert question["preview"] == [{"compatible": True, "why": [], "lines": []}]
    rooms.ask("register-schema", subject=subject, kind="AVRO", text=first, confirm="yes")
    assert subject in [row["subject"] for row in visitor.json("/schemas?name=ORDERS/new")["subjects"]]
    address = "/schema?name=orders%2Fnew-value"
    assert visitor.json(address)["difference"] is None
    assert f'href="{address}"' in visitor.page("/schemas")

    wrong = json.dumps({**ORDER, "fields": [{"name": "id", "type": "string"}]})
    verdict = rooms.ask("register-schema", subject=subject, kind="AVRO", text=wrong)["preview"][0]
    assert (verdict["compatible"], "TYPE_MISMATCH" in verdict["why"][0]) == (False, True)
    assert '-      "type": "long"' in verdict["lines"]
    page = rooms.asked("register-schema", subject=subject, kind="AVRO", text=wrong)
    assert "It is not compatible" in page
    assert "<del>" in page
    assert 'name="confirm"' not in page, "nothing can be registered from there"
    assert rooms.ask("register-schema", subject=subject, kind="AVRO", text=wrong, confirm="yes")["status"] == 409
    assert rooms.ask("register-schema", subject=subject, kind="AVRO", text="{")["status"] == 422
    assert rooms.ask("register-schema", subject=subject, kind="AVRO", text=" ")["status"] == 400
    assert rooms.ask("register-schema", subject=subject, kind="AVRO", text="x" * 100_001)["status"] == 413

    better = json.dumps({**ORDER, "fields": [*ORDER["fields"], NOTE]})
    assert "&lt;none&gt;" in rooms.asked("register-schema", subject=subject, kind="AVRO", text=better)
    rooms.ask("register-schema", subject=subject, kind="AVRO", text=better, confirm="yes")
    value = visitor.json(address)
    assert (value["versions"], value["version"], value["kind"], value["compatibility"]) == (
        [1, 2],
        2,
        "AVRO",
        "BACKWARD",
    )
    assert (value["difference"]["from"], value["difference"]["to"]) == (1, 2)
    assert visitor.json(f"{address}&version=1")["difference"] is None
    assert "<ins>" in visitor.page(address)
    assert "<del>" in visitor.page(f"{address}&version=1&with=2")
    assert visitor.get(f"{address}&version=7").status == 404
    assert visitor.get("/schema?name=no-such").status == 404
    assert visitor.get("/schema").status == 400

    rooms.ask("set-compatibility", subject=subject, level="FULL", confirm="yes")
    assert visitor.json(address)["compatibility"] == "FULL"
    rooms.ask("set-compatibility", subject=subject, level="", confirm="yes")
    assert visitor.json(address)["compatibility"] == "BACKWARD"
    assert rooms.ask("delete-schema", subject=subject, version="2")["preview"][0]["version"] == 2
    rooms.ask("delete-schema", subject=subject, version="2", confirm="yes")
    assert visitor.json(address)["versions"] == [1]


def test_what_is_refused_at_the_door_is_counted_with_its_reason(rooms: Rooms) -> None:
    shell, visitor = rooms.shell, rooms.visitor
    shell.run("topics", "create", "checked", "-p", "1", "--config", "fleetlog.schema.validation=id")
    eventually(lambda: "no schema's id" in shell.fails("produce", "checked", stdin="bad\n"), "the broker knows schemas")

    def told() -> list[dict[str, Any]]:
        return list(visitor.json("/refused")["reasons"]["rows"])

    (row,) = eventually(told, "the log says why")
    assert (row["topic"], row["reason"]) == ("checked", "the value has no schema's id")
    assert visitor.json("/refused")["topics"][0]["records"] >= 1
    assert visitor.json("/refused?topic=others")["topics"] == []
    assert "the value has no schema&#39;s id" in visitor.page("/refused?topic=checked")
    assert 'href="/refused?topic=checked"' in visitor.page("/topics/checked")


def test_a_tiered_topic_shows_what_is_where(rooms: Rooms) -> None:
    shell, visitor, name = rooms.shell, rooms.visitor, f"cold-{uuid.uuid4().hex[:6]}"
    shell.run("topics", "create", name, "-p", "1", *(
        f"--config={one}" for one in ("remote.storage.enable=true", "local.retention.ms=1", "segment.bytes=1048576")
    ))  # fmt: skip
    assert visitor.json(f"/topics/{name}/bucket")["bytes"] == 0
    for _ in range(3):
        shell.run("produce", name, stdin=f"{'x' * 1000}\n" * 1000)

    def tiered() -> dict[str, Any]:
        return dict(visitor.json(f"/topics/{name}")["partitions"][0])

    row = eventually(tiered, "a segment is in the bucket alone", 60, good=lambda row: row["local_start"])
    assert 0 < row["tiered_end"] < row["end_offset"]
    value = visitor.json(f"/topics/{name}/bucket")
    assert (value["error"], value["partitions"][0]["partition"], value["partitions"][0]["start"]) == (
        None,
        f"{name}-0",
        0,
    )
    assert value["bytes"] > 1_000_000
    page = visitor.page(f"/topics/{name}")
    assert "In the bucket up to" in page
    assert f'hx-get="/topics/{name}/bucket"' in page
    assert "In the bucket" not in visitor.page("/topics/_schemas")
    assert visitor.get("/topics/no-such/bucket").status == 404


def test_schemas_are_shown_with_the_rights_of_who_looks(tmp_path: Path) -> None:
    """A console with logins shows none, unless it may ask the registry as its users."""
    guarded = Guarded(tmp_path)
    options = ("--login", "SCRAM-SHA-256", "--command-config", str(scram_config(tmp_path)))
    options = (*options, "--schema-registry", guarded.registry.url)
    closed, opened = (Served(guarded.fleet.bootstrap, *options, *more) for more in ((), ("--schema-registry-as-user",)))
    try:
        body = {"schema": json.dumps(ORDER)}
        for subject in ("hers-value", "others-value"):
            assert guarded.registry.ask("POST", f"/subjects/{subject}/versions", body, **ADMIN) == {"id": 1}
        guarded.acl("add", USER, "--topic", "schemas:hers-value", "--operation", "Read")
        alice = Visitor(closed)
        assert log_in(alice, USER, PASSWORD).status == 303
        assert "--schema-registry-as-user" in alice.page("/schemas")
        assert alice.get("/schema?name=hers-value").status == 403
        alice = Visitor(opened)
        assert log_in(alice, USER, PASSWORD).status == 303
        seen = lambda: [row["subject"] for row in alice.json("/schemas")["subjects"]]  # noqa: E731
        eventually(seen, "the registry knows the right", good=lambda subjects: subjects == ["hers-value"])
        assert alice.json("/schema?name=hers-value")["versions"] == [1]
        assert alice.get("/schema?name=others-value").status == 403
        form = {"subject": "hers-value", "confirm": "yes", "form_token": alice.token(alice.page("/schemas"))}
        assert alice.post("/change/delete-schema", form).status == 403
        assert "Reasons stand in the brokers' logs" in alice.page("/refused")
    finally:
        assert (closed.close(), opened.close()) == (0, 0)
        guarded.close()


def test_a_console_without_a_registry_has_no_pages_of_schemas(rooms: Rooms) -> None:
    console = Served(rooms.fleet.bootstrap)
    try:
        visitor = Visitor(console)
        assert "--schema-registry URL" in visitor.page("/schemas")
        assert visitor.get("/schema?name=x").status == 403
        form = {"subject": "x", "kind": "AVRO", "text": "{}", "form_token": visitor.token(visitor.page("/security"))}
        assert visitor.post("/change/register-schema", form).status == 403
    finally:
        assert console.close() == 0
