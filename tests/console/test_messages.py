"""Messages of real topics over HTTP: each record once, page by page; transactions; filters; decoders; exports."""

from __future__ import annotations

import csv
import io
import json
import struct
import time
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from tests.cli.shell import Shell
from tests.console.served import Visitor
from tests.support.fleet import Fleet

pytestmark = pytest.mark.zookeeper
RECORDS = 120


@pytest.fixture(scope="module")
def shell(fleet: Fleet) -> Shell:
    return Shell(fleet)


@pytest.fixture(scope="module")
def filled(shell: Shell, fleet: Fleet) -> str:
    """Three partitions of numbered records, a second apart, of years ago: retention would delete them."""
    name = f"console-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "3", "-r", "3", "--config", "retention.ms=-1")
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "linger.ms": 20})
    for number in range(RECORDS):
        value = json.dumps({"number": number, "even": number % 2 == 0})
        producer.produce(
            name, value, f"key-{number}", partition=number % 3, timestamp=1_700_000_000_000 + number * 1000,
            headers=[("source", f"s{number % 5}".encode())],
        )  # fmt: skip
    assert producer.flush(30) == 0
    return name


@pytest.fixture(scope="module")
def transactional(shell: Shell, fleet: Fleet) -> Iterator[str]:
    """Committed, aborted, committed, and one that stays open until the tests are over."""
    name = f"console-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "1", "-r", "3")
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    for commits, value in ((True, "first"), (False, "lost"), (True, "second")):
        producer.begin_transaction()
        producer.produce(name, value)
        assert producer.flush(30) == 0
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(name, "open")
    assert producer.flush(30) == 0
    yield name
    producer.abort_transaction(30)


def numbers(messages: list[Any]) -> list[int]:
    return [json.loads(one["value"]["text"])["number"] for one in messages]


def pages(visitor: Visitor, topic: str, **query: Any) -> Iterator[dict[str, Any]]:
    while True:
        page = visitor.json(f"/topics/{topic}/messages?{urlencode(query)}")
        yield page
        if page["following"] is None:
            return
        query["cursor"] = page["following"]


@pytest.mark.parametrize("count", [1, 7, 50, 500])
def test_the_newest_come_first_and_older_pages_show_every_record_once(
    visitor: Visitor, filled: str, count: int
) -> None:
    found: list[int] = []
    for page in pages(visitor, filled, count=count):
        found += numbers(page["messages"])
        if count == 1 and len(found) == 10:
            break
    assert found == list(reversed(range(RECORDS)))[: len(found)]
    assert len(found) == (10 if count == 1 else RECORDS)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"from": "beginning"}, range(RECORDS)),
        ({"from": "offset", "offset": 30}, range(90, RECORDS)),
        ({"from": "time", "time": "@1700000100000"}, range(100, RECORDS)),
        ({"from": "time", "time": "2023-11-14T22:15:00"}, range(100, RECORDS)),
        ({"from": "time", "time": "@1800000000000"}, range(0)),
        ({"from": "beginning", "partitions": "0,2"}, [n for n in range(RECORDS) if n % 3 != 1]),
        ({"from": "beginning", "contains": "KEY-11"}, [11, *range(110, RECORDS)]),
        ({"from": "beginning", "contains": "key-11", "where": "value"}, range(0)),
        ({"from": "beginning", "contains": "source=s4", "where": "headers"}, range(4, RECORDS, 5)),
        ({"from": "newest", "contains": '"number": 3,'}, [3]),
        ({"at": "30"}, range(90, RECORDS)),
        ({"at": "1:38"}, [115, 118]),
        ({"at": "@1700000100000"}, range(100, RECORDS)),
        ({"at": "2023-11-14T22:15:00"}, range(100, RECORDS)),
        ({"at": "-1h"}, range(0)),
        ({"from": "beginning", "filter": "value.number >= 110 && value.even"}, range(110, RECORDS, 2)),
        ({"from": "newest", "filter": "key startsWith 'key-11' && partition == 0"}, [117, 114, 111]),
        ({"at": "1:0", "filter": "headers.source == 's4' && time < '@1700000040000'"}, [4, 19, 34]),
        ({"from": "beginning", "filter": "value.number < 30", "contains": "key-2"}, [2, *range(20, 30)]),
    ],
)
def test_a_start_and_a_filter_select(visitor: Visitor, filled: str, query: dict[str, Any], expected: Any) -> None:
    found = [n for page in pages(visitor, filled, count=13, **query) for n in numbers(page["messages"])]
    assert found == list(expected)


def test_a_text_beyond_ascii_finds_itself(visitor: Visitor, shell: Shell) -> None:
    name = f"console-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "1")
    shell.run("produce", name, stdin="Ärger\nAnger\n")
    for text, found in (("Ärger", 1), ("ÄRGER", 1), ("ärger", 0), ("anger", 1)):
        page = visitor.json(f"/topics/{name}/messages?{urlencode({'contains': text})}")
        assert len(page["messages"]) == found, text


def test_a_form_that_cannot_be_read_is_shown_again_with_the_reason(visitor: Visitor, filled: str) -> None:
    got = visitor.get(f"/topics/{filled}/messages?{urlencode({'filter': 'value.number > <3', 'count': 7})}")
    assert got.status == 400
    assert "filter: character 16: key, value, headers" in got.text
    assert 'value="value.number &gt; &lt;3"' in got.text
    assert 'name="count" inputmode="numeric" size="3" value="7"' in got.text


def test_a_filter_says_how_much_is_left_and_what_it_could_not_look_into(
    visitor: Visitor, shell: Shell, fleet: Fleet, filled: str
) -> None:
    query = {"from": "beginning", "filter": "value.number >= 0", "count": 50}
    page = visitor.json(f"/topics/{filled}/messages?{urlencode(query)}")
    assert (page["left"], page["cut_short"], page["undecoded"]) == (RECORDS - 50, False, [])
    page = visitor.json(f"/topics/{filled}/messages?{urlencode({**query, 'from': 'newest'})}")
    assert page["left"] == RECORDS - 50
    name = f"console-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "1")
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    for value in (b"\0\0\0\0\7abc", b'{"a": 1}', b"{", None, b"\xff"):
        producer.produce(name, value)
    assert producer.flush(30) == 0
    page = visitor.json(f"/topics/{name}/messages?{urlencode({'filter': 'value.a == 1'})}")
    assert [one["offset"] for one in page["messages"]] == [1]
    assert page["undecoded"] == [{"reason": "the console was started without --schema-registry", "records": 1}]


def test_columns_are_parts_of_records(visitor: Visitor, filled: str) -> None:
    query = {"at": "0:0", "count": 2, "columns": "value.number, headers.source,key , value.no[0].such, value"}
    page = visitor.json(f"/topics/{filled}/messages?{urlencode(query)}")
    assert page["columns"] == ["value.number", "headers.source", "key", "value.no[0].such", "value"]
    assert [one["columns"][:4] for one in page["messages"]] == [["0", "s0", "key-0", None], ["3", "s3", "key-3", None]]
    html = visitor.page(f"/topics/{filled}/messages?{urlencode(query)}")
    assert '<th class="path">headers.source</th>' in html
    for wrong in ("value.number,", "12", "value.number key", "price", ",".join(["key"] * 13)):
        got = visitor.get(f"/topics/{filled}/messages?{urlencode({'columns': wrong})}", Accept="application/json")
        assert (got.status, got.value["error"][:9]) == (400, "columns: ")


def test_a_record_is_shown_as_a_whole_and_compared_with_another(visitor: Visitor, shell: Shell, fleet: Fleet) -> None:
    name = f"console-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "2", "--config", "retention.ms=-1")
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    large = {"a": {"b c": "<b>'\\"}, "list": [1, None, True], "long": "x" * 20_000}
    for partition, value in ((0, large), (1, {**large, "list": [1, 2], "more": {}}), (1, large)):
        producer.produce(name, json.dumps(value), b"k\xff", partition=partition, timestamp=5, headers=[("h", b"1")])
    producer.produce(name, b"\0\1binary", b"k\xfe", partition=1, timestamp=6)
    assert producer.flush(30) == 0
    address = f"/topics/{name}/record?partition=0&offset=0"
    record = visitor.json(address)["record"]
    assert json.loads(record["value"]["text"]) == large
    page = visitor.page(address)
    assert "&lt;b&gt;" in page
    assert "<b>'" not in page
    condition = "value.a['b c'] == '<b>\\'\\\\'"
    assert f"/topics/{name}/messages?from=beginning&amp;filter={quote(condition, '')}" in page
    assert len(visitor.json(f"/topics/{name}/messages?filter={quote(condition, '')}")["messages"]) == 3
    found = visitor.json(f"{address}&with=1:0")["differences"]
    assert [(one["path"], one["this"], one["other"]) for one in found] == [
        ("value.list[1]", "null", "2"), ("value.list[2]", "true", None), ("value.more", None, "{}"),
    ]  # fmt: skip
    assert visitor.json(f"{address}&with=1:1")["differences"] == []
    assert "the same key, value, headers and time" in visitor.page(f"{address}&with=1:1")
    found = visitor.json(f"{address}&with=1:2")["differences"]
    assert [one["path"] for one in found if "." not in one["path"]] == ["value", "key", "time"]
    assert "000000  00 01 62 69 6e 61 72 79" in visitor.page(f"/topics/{name}/record?partition=1&offset=2")
    for wrong, status in (("1:9", 404), ("x", 400), ("7:0", 404)):
        assert visitor.get(f"{address}&with={wrong}").status == status


def test_uncommitted_records_are_shown_only_on_demand(visitor: Visitor, transactional: str) -> None:
    def shown(**query: str) -> list[tuple[str, str]]:
        found = visitor.json(f"/topics/{transactional}/messages?{urlencode({'from': 'beginning', **query})}")
        return [(one["value"]["text"], one["state"]) if not one["marker"] else ("", one["marker"])
                for one in found["messages"]]  # fmt: skip

    assert shown() == [("first", "committed"), ("second", "committed")]
    assert shown(show="everything") == [
        ("first", "committed"), ("", "commit marker"), ("lost", "aborted"), ("", "abort marker"),
        ("second", "committed"), ("", "commit marker"), ("open", "undecided"),
    ]  # fmt: skip
    newest = visitor.json(f"/topics/{transactional}/messages?count=1")["messages"]
    assert [one["value"]["text"] for one in newest] == ["second"]
    assert [one[0] for one in shown(show="everything", filter="value contains 'o' || key == null")] == [
        "first", "lost", "second", "open",
    ]  # fmt: skip
    html = visitor.page(f"/topics/{transactional}/messages?show=everything")
    assert 'class="unseen"' in html


def test_bytes_are_decoded_as_asked_and_always_escaped(visitor: Visitor, shell: Shell, fleet: Fleet) -> None:
    name = f"console-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "1")
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    script = "<script>alert(1)</script>"
    values = [b'{"a":[1,2]}', script.encode(), struct.pack(">q", 2**40), b"\xff\x00\x01", None, b"x" * 9000]
    for value in values:
        producer.produce(name, value, key=script, partition=0, headers=[(script, script.encode())])
        assert producer.flush(30) == 0

    def shown(how: str) -> list[tuple[str, str | None]]:
        found = visitor.json(f"/topics/{name}/messages?from=beginning&value_as={how}")["messages"]
        return [(one["value"]["kind"], one["value"]["text"]) for one in found]

    auto = shown("auto")
    assert [kind for kind, _ in auto] == ["json", "text", "hex", "hex", "null", "text"]
    assert json.loads(auto[0][1] or "") == {"a": [1, 2]}
    assert shown("number")[2] == ("number", str(2**40))
    assert shown("hex")[3] == ("hex", "ff 00 01")
    assert shown("base64")[3] == ("base64", "/wAB")
    assert len(auto[5][1] or "") == 4000
    html = visitor.page(f"/topics/{name}/messages?from=beginning&contains={script}")
    assert script not in html
    assert "&lt;script&gt;" in html


def test_internal_topics_are_shown_in_words(visitor: Visitor, shell: Shell, filled: str) -> None:
    group = f"console-{uuid.uuid4().hex[:8]}"
    shell.run("consume", filled, "-g", group, "-n", "5")
    found = visitor.json(f"/topics/__consumer_offsets/messages?count=500&contains={group}")["messages"]
    meanings = [json.loads(one["meaning"]) for one in found]
    assert any(one.get("group") == group and one.get("partition", "").startswith(filled) for one in meanings)


def test_exports_hold_what_the_browse_shows(visitor: Visitor, shell: Shell, filled: str) -> None:
    address = f"/topics/{filled}/export?from=beginning&contains=key-1"
    wanted = [n for n in range(RECORDS) if str(n).startswith("1")]
    got = visitor.get(f"{address}&to=ndjson")
    assert got.headers["content-disposition"] == f'attachment; filename="{filled}.ndjson"'
    assert [json.loads(json.loads(line)["value"])["number"] for line in got.text.splitlines()] == wanted
    rows = list(csv.DictReader(io.StringIO(visitor.get(f"{address}&to=csv").text)))
    assert [json.loads(row["value"])["number"] for row in rows] == wanted
    table = pq.read_table(io.BytesIO(visitor.get(f"{address}&to=parquet").body))
    assert [json.loads(value)["number"] for value in table["value"].to_pylist()] == wanted
    assert table["timestamp"].to_pylist()[0].timestamp() == 1_700_000_001
    copy = f"console-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", copy, "-p", "3")
    shell.run("produce", copy, "--format", "json", stdin=got.text)
    again = visitor.get(f"/topics/{copy}/export?from=beginning&to=ndjson").text
    assert [json.loads(line)["value"] for line in again.splitlines()] == [
        json.loads(line)["value"] for line in got.text.splitlines()
    ]


def test_a_page_of_ten_thousand_scanned_records_ends_in_time_and_goes_on(
    visitor: Visitor, shell: Shell, fleet: Fleet
) -> None:
    name = f"console-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "3")
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "linger.ms": 50})
    for number in range(12_000):
        producer.produce(name, b"%06d" % number + b"x" * 1000, partition=number % 3)
        producer.poll(0)
    assert producer.flush(60) == 0
    begun_s = time.monotonic()
    first = visitor.json(f"/topics/{name}/messages?from=beginning&contains=011999x")
    assert time.monotonic() - begun_s < 30, "a page ends after 10 s of reading"
    assert first["cut_short"] is True
    assert first["scanned"] >= 10_000
    second = visitor.json(f"/topics/{name}/messages?from=beginning&contains=011999x&cursor={first['following']}")
    # The record is on the first page if the leader of its partition answers much faster than the others.
    assert [one["value"]["text"][:6] for page in (first, second) for one in page["messages"]] == ["011999"]
    assert second["following"] is None


def test_a_pages_budget_counts_bytes_as_they_are_inflated(visitor: Visitor, shell: Shell, fleet: Fleet) -> None:
    name = f"console-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "2")
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "compression.type": "gzip", "linger.ms": 50})
    for number in range(60):
        producer.produce(name, b"%02d" % number + b"x" * 900_000, partition=number % 2)
        producer.poll(0)
    assert producer.flush(60) == 0
    for query in ({"from": "beginning"}, {"from": "newest"}):
        found, cut, largest = 0, 0, 0
        for page in pages(visitor, name, count=50, contains="absent", **query):
            found, cut, largest = found + page["scanned"], cut + page["cut_short"], max(largest, page["scanned_bytes"])
        assert found >= 60
        assert cut >= 2
        assert largest < 40_000_000
    newest = [one["value"]["text"][:2] for page in pages(visitor, name, count=50) for one in page["messages"]]
    assert sorted(newest) == [f"{number:02}" for number in range(60)]


@pytest.mark.parametrize(
    "query",
    ["count=0", "count=501", "at=soon", "at=7:1",
     "at=1:2:3", "at=-1", "filter=value.number+%3D+1", "filter=%28", "from=nowhere",
     "from=time&time=soon", "from=offset&offset=-1", "partitions=a",
     "partitions=9", "cursor=%00", "cursor=MC4x4", "value_as=groovy", "show=all"],
)  # fmt: skip
def test_what_cannot_be_asked_is_said(visitor: Visitor, filled: str, query: str) -> None:
    got = visitor.get(f"/topics/{filled}/messages?{query}", Accept="application/json")
    assert 400 <= got.status < 600
    assert got.status != 500
    assert got.value["error"]
