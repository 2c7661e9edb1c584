"""Masked fields: on no page, in no JSON, export or difference; and no filter finds out what stands in them."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from fleetlog.brokers.cli.main import cli
from fleetlog.brokers.cli.record_filter import parse_filter
from fleetlog.brokers.cli.topic_reader import StoredRecord
from fleetlog.brokers.console.masking import Masks, read_masks
from tests.cli.shell import Shell
from tests.console.served import Served, Visitor
from tests.support.fleet import Fleet

RULES = """
# what belongs to people
orders-*   value.customer.Email
orders-*   value.lines.*.note
orders-eu  key
*          headers.authorization
"""


def stored(value: bytes | None, key: bytes | None = b"k", *headers: tuple[str, bytes | None]) -> StoredRecord:
    return StoredRecord(0, 0, 0, key, value, headers, "", "", -1, -1, -1, 0, "none")


def masked_value(value: Any, rules: str = RULES) -> Any:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    after = read_masks(rules).of("orders-1").masked(stored(raw), json.loads).value
    assert after is not None
    return after.decode() if after == b"***" else json.loads(after)


@pytest.mark.parametrize(
    ("value", "after"),
    [
        ({"customer": {"email": "a@b", "name": "x"}, "n": 1}, {"customer": {"email": "***", "name": "x"}, "n": 1}),
        ({"Customer": {"EMAIL": {"all": 1}}}, {"Customer": {"EMAIL": "***"}}),
        ({"customer": [{"email": None}, [{"email": 5}]]}, {"customer": [{"email": "***"}, [{"email": "***"}]]}),
        ({"customer": '{"email": 1}'}, {"customer": "***"}),
        ({"customer": ["text", 7]}, {"customer": ["***", 7]}),
        ({"lines": {"a": {"note": 1, "b": 2}}}, {"lines": {"a": {"note": "***", "b": 2}}}),
        ([{"customer": {"email": 1}}], [{"customer": {"email": "***"}}]),
        (b'{"customer": {"email": 1, "email": 2}}', {"customer": {"email": "***"}}),
        ({"other": "\ud800"}, {"other": "\ud800"}),
        (5, "***"),
        ("a@b", "***"),
    ],
)
def test_what_a_rule_masks(value: Any, after: Any) -> None:
    assert masked_value(value) == after


def test_what_cannot_be_taken_apart_is_masked_whole() -> None:
    mask = read_masks(RULES).of("orders-1")
    assert mask.masked(stored(b"a@b"), lambda raw: None).value == b"***"
    assert mask.masked(stored(None), lambda raw: None).value is None
    after = mask.masked(stored(b"{}", b"k", ("Authorization", b"x"), ("authorization", None), ("a", b"x")), json.loads)
    assert after.headers == (("Authorization", b"***"), ("authorization", None), ("a", b"x"))
    assert read_masks(RULES).of("orders-eu").masked(stored(b"{}"), json.loads).key == b"***"
    assert read_masks(RULES).of("__consumer_offsets").paths == ()
    assert Masks().of("orders-1").paths == ()


def test_a_field_that_the_schema_of_a_value_does_not_know_is_masked_by_its_number() -> None:
    """A producer of a newer schema, or one that passes on what it does not know, writes the field all the same."""
    inner = {"name": "x", "3": b"a@b", "lines": [1]}
    known = {"4": 49151, "customer": [inner], "n": 1, "other": {"3": b"seen"}}
    after = read_masks(RULES).of("orders-1").masked(stored(b"\0..."), lambda raw: known).value
    assert json.loads(after or b"") == {
        "4": "***", "customer": [{"name": "x", "3": "***", "lines": [1]}], "n": 1, "other": {"3": "73 65 65 6e"}
    }  # fmt: skip
    assert masked_value({"customer": {"3": 5}, "4": 5}) == {"customer": {"3": 5}, "4": 5}, "JSON has only names"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("value.n == 1 && value.customer.name == 'x' && key == 'k' && headers.a == 1", ""),
        ("value.customer.email == 'a'", "value.customer.email"),
        ("value.customer.EMAIL[0].x", "value.customer.EMAIL[0].x"),
        ("value[3].customer[0].email", "value[3].customer[0].email"),
        ("value.customer == value.other", "value.customer"),
        ("value contains 'a@b'", "value"),
        ("value == null", "value"),
        ("value.lines[0].note == 1", "value.lines[0].note"),
        ("value.lines.a[0].note == 1", "value.lines.a[0].note"),
        ("value.lines.a.count == 1", ""),
        ("value['3'] == 1", "value['3']"),
        ("value.customer['3'] == 1", "value.customer['3']"),
        ("value['3'].count == 1", ""),
        ("headers.Authorization startsWith 'B'", "headers.Authorization"),
        ("headers contains 'authorization'", "headers"),
    ],
)
def test_a_filter_that_would_tell_what_is_masked_is_known(text: str, refused: str) -> None:
    assert read_masks(RULES).of("orders-1").touched(sorted(parse_filter(text).paths, key=str)) == refused


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no rule"),
        ("# nothing", "it has no rule"),
        ("orders", "line 1: it has a pattern of topics and a path"),
        ("\norders-* price", "line 2: character 1"),
        ("orders-* offset", "must be one part of key, value, headers"),
        ("orders-* value.a, key", "must be one part"),
        ("orders-* value[0]", "all items of a list are masked"),
        ("a/b value.a", "no pattern of topics' names"),
        ("__consumer_offsets value", "have no fields"),
        ("* key\n" * 1001, "there may be 1000 rules"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "masks"
    file.write_text(text)
    result = CliRunner().invoke(cli, ["console", "--mask", str(file)])
    assert result.exit_code == 2
    assert reason in " ".join(result.output.replace("│", " ").split())


@pytest.fixture(scope="module")
def topic(fleet: Fleet) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    Shell(fleet).run("topics", "create", name, "-p", "1")
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    for number in range(3):
        value = {"n": number, "customer": {"email": f"secret-{number}@x", "name": "Ada"}}
        producer.produce(name, json.dumps(value), "k", headers=[("authorization", b"Bearer secret-h"), ("a", b"1")])
    producer.produce(name, "no JSON, but secret-9@x")
    assert producer.flush(30) == 0
    return name


@pytest.fixture(scope="module")
def masking(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    file = tmp_path_factory.mktemp("masks") / "masks"
    file.write_text(RULES)
    console = Served(fleet.bootstrap, "--mask", str(file))
    yield Visitor(console)
    assert console.close() == 0


@pytest.mark.zookeeper
def test_what_is_masked_reaches_no_page_and_no_export(masking: Visitor, topic: str) -> None:
    columns = urlencode({"columns": "value.customer.email, value, headers, headers.authorization, value.customer.name"})
    pages = [f"messages?{columns}", "messages?value_as=hex&show=everything", "messages?value_as=base64&at=0:0"]
    pages += [f"record?partition=0&offset={n}&with=0:1" for n in range(4)]
    for path in [f"/topics/{topic}/{one}" for one in (*pages, "messages?from=end", "messages?from=beginning&count=1")]:
        for kind in ("text/html", "application/json"):
            got = masking.get(path, Accept=kind)
            assert got.status == 200, path
            for secret in ("secret", b"secret".hex(" "), "c2VjcmV0"):
                assert secret not in got.text, path
    shown = masking.json(f"/topics/{topic}/messages?{columns}&from=beginning")["messages"]
    assert shown[0]["columns"][0::4] == ["***", "Ada"]
    assert shown[0]["size"] < 100
    found = masking.json(f"/topics/{topic}/analysis")
    assert (found["most_frequent_keys"], found["record_bytes"], found["records"]) == ([], None, 4)
    assert "Fields are masked here" in masking.page(f"/topics/{topic}/analysis")
    one = masking.json(f"/topics/{topic}/messages?at=0:0&count=1")
    assert (len(one["messages"]), one["scanned_bytes"]) == (1, None), "what was read for one record is its length"
    assert "Masked here" in masking.page(f"/topics/{topic}/messages")
    for kind in ("ndjson", "csv"):
        text = masking.get(f"/topics/{topic}/export?to={kind}").text
        assert "Ada" in text
        assert "secret" not in text
    table = pq.read_table(io.BytesIO(masking.get(f"/topics/{topic}/export?to=parquet").body))
    assert b"secret" not in b"".join(table["value"].to_pylist())
    assert "secret" not in str(table["headers"].to_pylist())
    found = masking.json(f"/topics/{topic}/record?partition=0&offset=0&with=0:1")["differences"]
    assert [one["path"] for one in found if one["path"] != "time"] == ["value.n"]


@pytest.mark.zookeeper
def test_no_filter_and_no_copy_tells_what_is_masked(masking: Visitor, topic: str) -> None:
    for query in (
        {"filter": "value.customer.email startsWith 's'"}, {"filter": "value.n == 1 || value matches 'secret'"},
        {"filter": "headers.authorization"}, {"contains": "secret"}, {"contains": "s", "where": "value"},
        {"contains": "s", "where": "headers"},
    ):  # fmt: skip
        for page in ("messages", "export"):
            got = masking.get(f"/topics/{topic}/{page}?{urlencode(query)}", Accept="application/json")
            assert (got.status, "is masked here" in got.value["error"]) == (403, True), query
    assert len(masking.json(f"/topics/{topic}/messages?{urlencode({'filter': 'value.n == 1'})}")["messages"]) == 1
    assert len(masking.json(f"/topics/{topic}/messages?contains=k&where=key")["messages"]) == 3
    token = masking.token(masking.page("/topics"))
    form = {"form_token": token, "origin_topic": f" {topic} ", "origin_partition": "0", "origin_offset": "0"}
    assert masking.get(f"/topics/{topic}/write?like=last").status == 403
    assert masking.get(f"/topics/{topic}/write").status == 200
    for confirm in ("", "yes"):
        fields = {**form, "topic": topic, "confirm": confirm}
        got = masking.post("/change/copy-record", fields, Accept="application/json")
        assert (got.status, "copies none" in got.value["error"]) == (403, True)
