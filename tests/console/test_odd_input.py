"""Input that makes no sense: one clear sentence, the status that says the same, and no wait."""

from __future__ import annotations

import base64
import json
import socket
import uuid
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer

from tests.cli.shell import Shell
from tests.console.served import Served, Visitor
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper
ODD = "".join(one for one in map(chr, range(0x21, 0x11A)) if one != "/")[:249]


@pytest.fixture(scope="module")
def topic(fleet: Fleet) -> Iterator[str]:
    name = f"odd-{uuid.uuid4().hex[:8]}"
    Shell(fleet).run("topics", "create", name, "-p", "2", "-r", "1")
    yield name
    Shell(fleet).run("topics", "delete", name, "--yes")


def _cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/topics/{}/messages?cursor=%25%25%25", 400, "the cursor is malformed"),
        ("/topics/{}/messages?cursor=" + _cursor("0"), 400, "the cursor is malformed"),
        ("/topics/{}/messages?cursor=" + "A" * 60_000, 400, "the cursor is malformed"),
        ("/topics/{}/messages?from=offset&offset=-5", 400, "offset must be a whole number from 0"),
        ("/topics/{}/messages?from=time&time=yesterday", 400, "'yesterday' is not a time"),
        ("/topics/{}/messages?partitions=99", 404, "has partitions 0 to 1, not 99"),
        ("/topics/{}/messages?count=1000000000", 400, "count must be a whole number from 1 to 500"),
        ("/topics/{}/record?partition=77", 404, "has partitions 0 to 1, not 77"),
        ("/topics/{}/record?partition=0&offset=99999999", 404, "there is no committed record at"),
        ("/topics/{}/export?to=exe", 400, "to must be one of ndjson"),
        ("/topics/" + quote(ODD, ""), 404, "the name may have 1 to 249 letters"),
        ("/topics/" + quote(ODD, "") + "/messages", 404, "the name may have 1 to 249 letters"),
        ("/topics/" + "a" * 40_000, 404, "a topic's name has 1 to 249 letters"),
        ("/topics/%00", 404, "the name may have 1 to 249 letters"),
        ("/topics/a%2Fb", 404, "there is no such page"),
        ("/group?name=" + "g" * 40_000, 404, "a group's name has 32767 bytes at most"),
        ("/group?name=no-such", 404, "there is no such group"),
        ("/topics/{}/analysis?seconds=60", 400, "seconds must be a whole number from 1 to 10"),
        ("/topics/no-such/analysis", 404, "there is no such topic"),
        ("/topics/{}/setting?name=" + "x" * 4_000, 404, "there is no setting"),
        ("/topics/no-such/setting?name=retention.ms", 404, "there is no such topic"),
        ("/brokers/99/setting?name=a", 404, "there is no broker 99"),
        ("/brokers/99", 404, "there is no broker 99"),
        ("/brokers/x", 404, "there is no broker x"),
        ("/doctor?lag_s=nan", 400, "lag_s must be a number"),
        ("/doctor?clock_ms=-1", 400, "clock_ms must be a whole number from 1"),
        ("/change/create-topic", 405, "this address is not for that method"),
    ],
)
def test_it_is_said_what_is_wrong(visitor: Visitor, topic: str, path: str, status: int, words: str) -> None:
    address = path.replace("{}", topic)
    told = visitor.get(address, Accept="application/json")
    assert (told.status, told.value["status"]) == (status, status), told.text
    assert words in told.value["error"]
    assert "\n" not in told.value["error"]
    page = visitor.get(address)
    assert page.status == status
    assert 'role="alert"' in page.text
    assert "Traceback" not in page.text


@pytest.mark.parametrize("query", [_cursor("0.9999999999999999999"), _cursor("99.5")])
@pytest.mark.parametrize("mode", ["newest", "beginning"])
def test_a_cursor_beyond_what_there_is_shows_nothing(visitor: Visitor, topic: str, query: str, mode: str) -> None:
    assert visitor.json(f"/topics/{topic}/messages?from={mode}&cursor={query}")["messages"] == []


def test_a_form_with_a_name_that_nothing_can_have_is_refused(visitor: Visitor) -> None:
    fields = {"form_token": visitor.token(visitor.page("/topics")), "topic": "t" * 40_000}
    got = visitor.post("/change/create-topic", fields, Accept="application/json")
    assert (got.status, got.value["error"]) == (400, "topic may have 32767 bytes")


@pytest.mark.parametrize("head", ["GET /topics/t/messages?contains={} HTTP/1.1", "GET / HTTP/1.1\r\nX: {}"])
def test_a_head_of_ten_megabytes_is_answered(served: Served, head: str) -> None:
    answer = _answer(served, head.replace("{}", "x" * 10_000_000).encode() + b"\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 "), answer
    assert answer.endswith(b"may have 64 KiB; shorten the filter\n")


def test_what_is_no_request_is_answered(served: Served) -> None:
    answer = _answer(served, b"\x16\x03\x01\x00hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request"), answer
    assert answer.endswith(b"this is no request of HTTP\n")


UNSEEN = "\u202egnp.exe\x07\x1b[31m\u2028\u00a0end"
"""Turns round what follows, rings, becomes red, and breaks the line."""
SHOWN = r"\u202egnp.exe\u0007\u001b[31m\u2028\u00a0end"


class _Read(HTMLParser):
    """What a page shows, and the fields of its forms."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: set[str] = set()
        self.fields: set[tuple[str, str]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.texts += [given.get(name, "") for name in ("title", "aria-label")]
        self.links.add(given.get("href", ""))
        self.fields.add((given.get("name", ""), given.get("value", "")))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def unseen(fleet: Fleet, topic: str) -> Iterator[str]:
    """Ends the names of a group, its client, a transactional id, and is in records and headers."""
    name = f"{topic}-{uuid.uuid4().hex[:8]}{UNSEEN}"
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "transactional.id": name, "client.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in (name, json.dumps({name: name}, ensure_ascii=False)):
        producer.produce(topic, value, key=name, headers={name: name}, partition=0)
    producer.commit_transaction(60)
    Shell(fleet).run("topics", "alter", topic, "--set", f"message.format.version={UNSEEN}")
    consumer = Consumer({
        "bootstrap.servers": fleet.bootstrap, "group.id": name, "client.id": name, "auto.offset.reset": "earliest"
    })  # fmt: skip
    consumer.subscribe([topic])
    eventually(lambda: consumer.poll(1), "it reads", 60)
    consumer.commit(asynchronous=False)
    yield name
    consumer.close()


def test_what_clients_chose_is_shown_and_not_obeyed(visitor: Visitor, unseen: str, topic: str) -> None:
    group = f"/group?name={quote(unseen, '')}"
    pages = {
        path: _Read(visitor.page(path))
        for path in (
            "/", "/groups", group, "/transactions", "/connections", f"/topics/{topic}", f"/topics/{topic}/clients",
            f"/topics/{topic}/messages?from=beginning", f"/topics/{topic}/record?partition=0&offset=1",
            f"/topics/{topic}/setting?name=message.format.version", f"/find?q={quote(unseen, '')}",
        )
    }  # fmt: skip
    for path, page in pages.items():
        raw = [text for text in page.texts if not text.replace("\n", "").replace("\t", "").isprintable()]
        assert not raw, (path, raw)
    for path in ("/groups", group, f"/topics/{topic}", f"/topics/{topic}/messages?from=beginning"):
        assert any(SHOWN in text for text in pages[path].texts), path
    assert group in pages["/groups"].links
    assert ("group", unseen) in pages[group].fields
    twin = visitor.get(group, Accept="application/json")
    assert twin.value["group"] == unseen
    assert twin.text.isprintable()
    fields = {"form_token": visitor.token(visitor.page("/topics")), "group": unseen}
    asked = _Read(visitor.post("/change/delete-group", fields).text)
    assert any(SHOWN in text for text in asked.texts)
    assert ("group", unseen) in asked.fields


def _answer(served: Served, sent: bytes) -> bytes:
    """All that the console sends until it has no more to say."""
    host, _, port = Visitor(served).address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as connection:
        connection.sendall(sent)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer
