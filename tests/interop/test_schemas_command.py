"""``fleetlog schemas`` against a registry: what a person does with files of schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.ports import free_port
from tests.support.registry_process import RegistryProcess

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def shell(fleet: Fleet) -> Iterator[Shell]:
    process = RegistryProcess(fleet.bootstrap)
    found = Shell(fleet)
    found.environment["FLEETLOG_REGISTRY"] = process.url
    yield found
    process.process.kill()


def record(path: Path, *fields: dict[str, Any]) -> str:
    path.write_text(json.dumps({"type": "record", "name": "Order", "fields": list(fields)}))
    return str(path)


def test_a_schema_is_tried_registered_compared_and_deleted(shell: Shell, tmp_path: Path) -> None:
    price, note = {"name": "price", "type": "long"}, {"name": "note", "type": "string"}
    first, second = record(tmp_path / "a.avsc", price), record(tmp_path / "b.avsc", price, note | {"default": ""})
    bad = record(tmp_path / "c.avsc", price, note)
    number = shell.json("schemas", "register", "people-orders", first)["id"]
    assert shell.json("schemas", "register", "people-orders", first)["id"] == number
    refused = shell.run("schemas", "check", "people-orders", bad, code=1)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused.stdout
    assert "compatible" in shell.run("schemas", "check", "people-orders", second).stdout
    assert "(409)" in shell.fails("schemas", "register", "people-orders", bad)
    text = Path(second).read_text()
    shell.run("schemas", "register", "people-orders", "-", "--type", "AVRO", stdin=text)
    listed = shell.json("schemas", "list", "--prefix", "people-")
    assert [(row["subject"], row["type"], row["version"]) for row in listed] == [("people-orders", "AVRO", 2)]
    assert shell.json("schemas", "show", "people-orders", "--version", "1")["id"] == number
    assert json.loads(shell.run("schemas", "show", "--id", str(number)).stdout)["name"] == "Order"
    assert shell.lines("schemas", "compatibility", "people-orders") == ["people-orders: BACKWARD"]
    value = shell.json("schemas", "compatibility", "people-orders", "--set", "full")
    assert value == {"subject": "people-orders", "compatibility": "FULL"}
    assert shell.lines("schemas", "compatibility") == ["all subjects: BACKWARD"]
    assert shell.lines("schemas", "compatibility", "people-orders", "--unset") == ["people-orders: BACKWARD"]
    lines = shell.lines("schemas", "diff", "people-orders")
    assert lines[:2] == ["--- people-orders version 1", "+++ people-orders version 2"]
    assert '+      "name": "note",' in lines
    assert "for good" in shell.fails("schemas", "delete", "people-orders", "--permanent")
    shell.run("schemas", "delete", "people-orders", "--version", "2", "--yes")
    assert shell.json("schemas", "list", "--prefix", "people-")[0]["version"] == 1
    assert "(40405)" in shell.fails("schemas", "delete", "people-orders", "--permanent", "--yes")
    shell.run("schemas", "delete", "people-orders", "--yes")
    assert shell.json("schemas", "list", "--prefix", "people-") == []
    assert shell.json("schemas", "delete", "people-orders", "--permanent", "--yes") == {"deleted": [1, 2]}


def test_other_formats_and_references(shell: Shell, tmp_path: Path) -> None:
    proto, other = tmp_path / "user.proto", tmp_path / "group.proto"
    proto.write_text('syntax = "proto3";\nmessage User { string name = 1; }\n')
    other.write_text('syntax = "proto3";\nimport "user.proto";\nmessage Group { repeated User users = 1; }\n')
    shell.run("schemas", "register", "a/user ü", str(proto))
    shell.run("schemas", "register", "group", str(other), "--reference", "user.proto=a/user ü:1")
    assert "message Group" in shell.run("schemas", "show", "group").stdout
    assert "has no version before 1" in shell.fails("schemas", "diff", "group")
    assert "(42206)" in shell.fails("schemas", "delete", "a/user ü", "--yes")


def test_what_cannot_be_is_said(shell: Shell, tmp_path: Path) -> None:
    odd = tmp_path / "schema.txt"
    odd.write_bytes(b"\xff")
    assert "UTF-8" in shell.run("schemas", "register", "s", str(odd), "--type", "AVRO", code=2).stderr
    odd.write_text("{}")
    assert "--type" in shell.run("schemas", "register", "s", str(odd), code=2).stderr
    assert (
        "NAME=SUBJECT:VERSION"
        in shell.run("schemas", "register", "s", str(odd), "--type", "AVRO", "--reference", "x", code=2).stderr
    )
    assert "(42201)" in shell.fails("schemas", "register", "s", str(odd), "--type", "AVRO")
    assert "(40401)" in shell.fails("schemas", "show", "nobody")
    assert "either" in shell.run("schemas", "show", code=2).stderr
    nobody = f"http://127.0.0.1:{free_port()}"
    assert "no registry answers" in shell.fails("schemas", "list", "--registry", nobody)
    assert "is not like" in shell.run("schemas", "list", "--registry", "ftp://x", code=2).stderr
