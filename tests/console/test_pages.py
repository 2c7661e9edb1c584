"""The console's pages over HTTP, on three brokers: HTML and its JSON twin."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer

import fleetlog.wire.messages as m
from tests.cli.shell import Shell
from tests.console.served import Served, Visitor
from tests.support.fleet import Fleet
from tests.support.harness import Client
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper
ROOT = Path(__file__).parents[2]


@pytest.fixture
def topic(fleet: Fleet) -> Iterator[str]:
    name = f"console-{uuid.uuid4().hex[:8]}"
    shell = Shell(fleet)
    shell.run("topics", "create", name, "-p", "3", "-r", "3", "-c", "retention.ms=3600000")
    shell.run("produce", name, stdin="one\ntwo\nthree\n")
    yield name
    shell.run("topics", "delete", name, "--yes", "--if-exists")


def test_the_fleet_page_and_its_twin_say_the_same(visitor: Visitor, topic: str) -> None:
    value = eventually(lambda: visitor.json("/"), "health", good=lambda found: found["health"]["level"] == "good")
    assert [broker["state"] for broker in value["brokers"]] == ["up"] * 3
    assert value["controller"] in {1, 2, 3}
    assert all(0 <= broker["loop_lag_ms"] <= broker["loop_lag_max_ms"] < 60_000 for broker in value["brokers"])
    html = eventually(lambda: visitor.page("/"), "health", good=lambda page: "Healthy" in page)
    assert html.split("<h2>Loops</h2>")[1].split("</table>")[0].count(" ms</td>") >= 3
    assert value["cluster_id"] in html
    assert visitor.get("/?format=json").value["cluster_id"] == value["cluster_id"]
    assert all(broker["log_dirs"][0]["path"] in html for broker in value["brokers"])


def test_topics_are_found_by_a_part_of_their_name(visitor: Visitor, topic: str) -> None:
    value = visitor.json(f"/topics?name={topic[:-1].upper()}")
    (row,) = value["topics"]
    assert (row["topic"], row["partitions"], row["replication"]) == (topic, 3, 3)
    assert row["bytes"] > 0
    assert f'href="/topics/{topic}"' in visitor.page(f"/topics?name={topic}")
    assert topic not in visitor.page("/topics?name=no-topic-has-this")


def test_a_topic_shows_its_partitions_and_where_its_settings_come_from(visitor: Visitor, topic: str) -> None:
    value = visitor.json(f"/topics/{topic}")
    assert [p["partition"] for p in value["partitions"]] == [0, 1, 2]
    assert sum(p["end_offset"] for p in value["partitions"]) == 3
    assert all(p["leader"] in p["isr"] and len(p["replicas"]) == 3 for p in value["partitions"])
    settings = {row["name"]: row for row in value["settings"]}
    assert (settings["retention.ms"]["value"], settings["retention.ms"]["origin"]) == ("3600000", "this topic")
    assert settings["retention.ms"]["synonyms"][0]["origin"] == "this topic"
    assert settings["segment.ms"]["origin"] == "default"
    html = visitor.page(f"/topics/{topic}")
    assert "retention.ms" in html
    assert "3600000" in html


def test_a_broker_has_a_page(visitor: Visitor, topic: str) -> None:
    value = visitor.json("/brokers/2")
    assert (value["id"], value["state"], value["connections"]["error"]) == (2, "up", None)
    assert {"topic": topic, "partition": 0}.items() <= next(
        p for p in value["partitions"] if p["topic"] == topic
    ).items()
    assert value["replicas"] >= value["leads"] >= 1
    settings = {row["name"]: row for row in value["settings"]["rows"]}
    assert (settings["broker.id"]["value"], settings["broker.id"]["origin"]) == ("2", "properties")
    assert settings["num.partitions"]["origin"] == "default"
    page = visitor.page("/brokers/2")
    assert value["log_dirs"][0]["path"] in page
    assert 'href="/brokers/2"' in visitor.page("/")
    assert ("broker", "/brokers/2") in {
        (one["kind"], one["address"]) for one in visitor.json("/find?q=broker+2")["results"]
    }


def test_who_uses_a_topic(visitor: Visitor, fleet: Fleet, topic: str) -> None:
    shell, group = Shell(fleet), f"uses-{uuid.uuid4().hex[:6]}"
    shell.run("consume", topic, "-g", group, "-n", "3")
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "transactional.id": group})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce(topic, b"open", partition=partition)
    assert producer.flush(30) == 0

    def behind() -> list[dict[str, Any]]:
        rows = visitor.json(f"/topics/{topic}/clients")["consumers"]
        return [one for one in rows if one["group"] == group and one["lag"] > 0]

    (one,) = eventually(behind, "the group's coordinator has computed its lag")
    page = visitor.page(f"/topics/{topic}/clients")
    assert f"/topics/{topic}/messages?at={one['at_partition']}%3A{one['at_offset']}" in page
    rows = {one["transactional_id"]: one for one in visitor.json(f"/topics/{topic}/clients")["producers"]["rows"]}
    assert (rows[group]["open"], rows[group]["partitions"]) == (True, 3)
    producer.abort_transaction(30)
    assert f'hx-get="/topics/{topic}/clients"' in visitor.page(f"/topics/{topic}")
    assert visitor.get("/topics/no-such/clients").status == 404


def test_what_is_in_a_topic_is_analysed_within_a_budget(visitor: Visitor, topic: str) -> None:
    value = visitor.json(f"/topics/{topic}/analysis")
    assert (value["records"], value["without_key"], value["cut_short"], value["remarks"]) == (3, 3, False, [])
    assert sum(one["records"] for one in value["producers"]) == 3
    page = visitor.page(f"/topics/{topic}/analysis?records=3&megabytes=1")
    assert "records of a batch" in page
    assert f'href="/topics/{topic}/analysis"' in visitor.page(f"/topics/{topic}")


def test_the_fleets_of_the_profiles_lead_to_each_other_and_keep_their_sessions(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    other = {"bootstrap": "other:9092", "console": "https://other.example/"}
    here = {"bootstrap": fleet.bootstrap, "console": "http://127.0.0.1:1/"}
    odd = {"bootstrap": "a:1", "console": "javascript:alert(1)"}
    profiles = {"here": here, "prod": other, "odd": odd, "none": {"bootstrap": "a:1"}}
    (tmp_path / "fleetlog").mkdir()
    file = tmp_path / "fleetlog" / "profiles.json"
    file.write_text(json.dumps({"in_use": "", "profiles": profiles}))
    file.chmod(0o600)
    console, second = Served(fleet.bootstrap), Served(f"{fleet.bootstrap},{fleet.bootstrap}")
    try:
        page = Visitor(console).page("/topics")
        assert "<summary>here</summary>" in page
        assert "<a href='https://other.example/'>prod</a>" in page
        assert "javascript" not in page
        assert "alert(1)" not in page
        visitor = Visitor(console)
        token = visitor.json("/topics")["form_token"]
        for served in (second, console):
            visitor.address = urlsplit(served.url).netloc
            visitor.page("/topics")
        assert visitor.json("/topics")["form_token"] == token, "the other console has a cookie of its own"
    finally:
        assert (console.close(), second.close()) == (0, 0)


def test_records_are_counted_if_one_asks(visitor: Visitor, topic: str) -> None:
    assert visitor.json(f"/topics?name={topic}")["topics"][0]["records"] is None
    assert visitor.json(f"/topics?name={topic}&records=yes")["topics"][0]["records"] == 3
    page = visitor.page(f"/topics?name={topic}&records=yes")
    assert '<td class="n" data-records>3</td>' in page
    assert f"/topics?name={topic}&amp;internal=&amp;records=yes&amp;sort=-bytes" in page
    rows = visitor.json("/topics?sort=-records")["topics"]
    counts = [-1 if row["records"] is None else row["records"] for row in rows]
    assert counts == sorted(counts, reverse=True)
    assert topic in [row["topic"] for row in rows if row["records"] == 3]


def test_topics_are_sorted_by_each_column(visitor: Visitor, topic: str) -> None:
    for column in ("topic", "partitions", "replication", "bytes"):
        rows = visitor.json(f"/topics?sort={column}")["topics"]
        values = [row[column] if row[column] is not None else -1 for row in rows]
        assert values == sorted(values)
        rows = visitor.json(f"/topics?sort=-{column}")["topics"]
        assert [row[column] if row[column] is not None else -1 for row in rows] == values[::-1]
    assert topic in {row["topic"] for row in visitor.json("/topics?sort=-state")["topics"]}
    assert 'aria-sort="descending"' in visitor.page("/topics?sort=-bytes")
    assert visitor.get("/topics?sort=colour").status == 400


def test_what_has_a_name_is_found_by_a_part_of_it(visitor: Visitor, topic: str) -> None:
    found = visitor.json(f"/find?q={topic[2:].upper()}")
    address = f"/topics/{topic}"
    assert [(one["kind"], one["address"]) for one in found["results"]] == [
        ("topic", address), ("messages", f"{address}/messages"),
    ]  # fmt: skip
    assert found["untold"] == []
    assert visitor.json("/find")["results"] == []
    page = visitor.page("/find?q=trans")
    assert '<a href="/transactions"><span class="tag">page</span>' in page
    assert "Nothing has that in its name" in visitor.page("/find?q=%3Cscript%3E")


def test_the_controller_page_counts_led_partitions(visitor: Visitor, topic: str) -> None:
    value = visitor.json("/controller")
    assert sum(row["partitions"] for row in value["leads"]) >= 3
    assert "Partitions led" in visitor.page("/controller")


def test_connections_are_shown_with_their_software_and_what_they_carried(
    visitor: Visitor, fleet: Fleet, topic: str
) -> None:
    name = f"producer-of-{topic}"
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "client.id": name})
    for _ in range(20):
        producer.produce(topic, b"x" * 50_000, partition=0)
    assert producer.flush(30) == 0
    value = visitor.json(f"/connections?contains={name}")
    rows = value["connections"]
    assert {row["software"] for row in rows} == {"confluent-kafka-python"}
    assert {(row["client_id"], row["principal"], row["mechanism"]) for row in rows} == {(name, "User:ANONYMOUS", "")}
    largest = max(rows, key=lambda row: row["bytes_in"])
    assert 1_000_000 <= largest["bytes_in"] < 1_200_000
    assert 0 < largest["bytes_out"] < largest["bytes_in"]
    assert rows[0] == largest
    assert 0 <= largest["idle_ms"] <= largest["age_ms"] < 300_000
    assert value["software"][0]["connections"] == value["matching"] == len(rows)
    assert value["total"] > len(rows), "those of the console, and of the brokers"
    everyone = {row["software"] for row in visitor.json("/connections")["connections"]}
    assert {"confluent-kafka-python", "kafka-python"} <= everyone
    between = eventually(
        lambda: visitor.json("/connections?contains=replica-")["connections"],
        "a connection of each broker's replicas",
        good=lambda rows: {1, 2, 3} <= {int(row["client_id"][-1]) for row in rows},
    )
    assert {(row["client_id"], row["software"]) for row in between} == {
        (f"replica-{n}", f"broker {n}") for n in (1, 2, 3)
    }
    page = visitor.page(f"/connections?contains={name}&order=idle")
    assert name in page
    assert "confluent-kafka-python" in page
    del producer


def test_connections_are_told_in_parts(fleet: Fleet) -> None:
    client, kind = Client(fleet.brokers[0].port), m.DescribeConnectionsRequest
    try:
        whole = client.ask(kind(version=0), 0)
        assert whole.total == len(whole.connections) >= 1
        ids, after = [], -1
        while part := client.ask(kind(version=0, after_id=after, limit=1), 0).connections:
            assert len(part) == 1
            ids.append(part[0].id)
            after = part[0].id
        assert {row.id for row in whole.connections} & set(ids)
        assert ids == sorted(set(ids))
        seen = client.ask(m.DescribeElectionsRequest(version=0, topic="no-such", limit=2**31 - 1), 0)
        assert (seen.error_code, seen.elections) == (0, [])
        assert 0 < seen.since_ms <= time.time() * 1000
    finally:
        client.close()


def test_the_doctor_page_has_the_findings_of_the_command(visitor: Visitor, topic: str) -> None:
    value = visitor.json("/doctor")
    assert value["brokers"] == 3
    for one in value["findings"]:
        assert {"severity", "check", "where", "what", "why", "todo"} <= one.keys()
        assert one["todo"]
    domain = [one for one in value["findings"] if one["where"] == "failure.domain"]
    assert [one["severity"] for one in domain] == ["note"], "all brokers of a test are on one host"
    html = visitor.page("/doctor")
    assert "all brokers share one failure domain" in html
    assert 'href="/doctor" aria-current="page"' in html


def test_what_is_not_there_is_said_in_both_forms(visitor: Visitor) -> None:
    for path in ("/topics/no-such-topic", "/topics/%22%3E%3Cscript%3E", "/nowhere"):
        got = visitor.get(path)
        assert got.status == 404, path
        assert "<script>" not in got.text
        assert visitor.get(path, Accept="application/json").value["status"] == 404
    assert visitor.get("/topics?start=x").status == 400


def test_no_address_of_a_page_that_is_not_there_leads_to_another_host(visitor: Visitor) -> None:
    for path in ("//evil.example/", "/%2Fevil.example/", "/%5Cevil.example/", "/%09/evil.example/"):
        got = visitor.get(path)
        addresses = [unescape(one) for one in re.findall(r'(?:href|action)="([^"]*)"', got.text)]
        assert any("format=json" in one for one in addresses), path
        assert not [one for one in addresses if re.match(r"/[/\\\s]", one)], path


def test_headers_are_strict_and_static_files_are_there(visitor: Visitor) -> None:
    got = visitor.get("/")
    policy = got.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert " style=" not in got.text
    assert (got.headers["x-content-type-options"], got.headers["cache-control"]) == ("nosniff", "no-store")
    (cookie,) = [v for k, v in got.headers.items() if k == "set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    for name in ("htmx.min.js", "console.js", "console.css", "icon.svg", "htmx.LICENSE.txt"):
        assert visitor.get(f"/static/{name}").status == 200, name
    assert visitor.get("/static/../web.py").status == 404


def test_another_name_for_loopback_and_another_sites_forms_are_refused(visitor: Visitor) -> None:
    port = visitor.address.rpartition(":")[2]
    assert visitor.get("/", Host=f"evil.example:{port}").status == 403
    assert visitor.get("/", Host=f"localhost:{port}").status == 200
    token = visitor.json("/")["form_token"]
    assert visitor.post("/logout", {"form_token": token}, Origin="http://evil.example").status == 403
    assert visitor.post("/logout", {"form_token": token}, Sec_Fetch_Site="cross-site").status == 403
    assert visitor.post("/logout", {"form_token": "0" * 64}).status == 403
    assert visitor.post("/logout", {}).status == 403
    assert visitor.post("/logout", {"form_token": token}, Origin=f"http://{visitor.address}").status == 303


@pytest.mark.slow
def test_a_partition_whose_leader_is_away_is_gone_on_with_when_it_is_back(own_fleet: Fleet) -> None:
    shell, name = Shell(own_fleet.start()), "away"
    shell.run("topics", "create", name, "-p", "3", "-r", "1", "--config", "retention.ms=-1")
    producer = Producer({"bootstrap.servers": own_fleet.bootstrap})
    for number in range(9):
        producer.produce(name, str(number), partition=number % 3, timestamp=number + 1)
    assert producer.flush(30) == 0
    console = Served(own_fleet.bootstrap)
    try:
        visitor = Visitor(console)

        def page(cursor: str) -> Any:
            return visitor.json(f"/topics/{name}/messages?from=beginning&count={50 if cursor else 2}&cursor={cursor}")

        def texts(messages: list[Any]) -> list[str]:
            return [one["value"]["text"] for one in messages]

        first = page("")
        leader = own_fleet.brokers[visitor.json(f"/topics/{name}")["partitions"][2]["leader"] - 1]
        leader.kill()
        rest = eventually(lambda: page(first["reached"]), "a page without it", good=lambda got: got["silent"] == [2])
        assert texts(first["messages"] + rest["messages"]) == ["0", "1", "3", "4", "6", "7"]
        leader.start()
        leader.wait_ready()
        last = eventually(lambda: page(rest["reached"]), "a page with it", good=lambda got: not got["silent"])
        assert texts(last["messages"]) == ["2", "5", "8"]
    finally:
        assert console.close() == 0


def test_a_fleet_that_is_gone_is_said_at_once_and_a_broker_that_is_down_by_its_number(own_fleet: Fleet) -> None:
    own_fleet.start()
    console = Served(own_fleet.bootstrap)
    try:
        visitor = Visitor(console)
        eventually(lambda: visitor.json("/")["health"]["level"], "health", good=lambda level: level == "good")
        Shell(own_fleet).run("topics", "create", "watched", "-p", "3", "-r", "3")
        own_fleet.brokers[0].signal(signal.SIGSTOP)
        time.sleep(1.2)
        own_fleet.brokers[0].signal(signal.SIGCONT)
        loops = eventually(
            lambda: visitor.json("/")["brokers"], "the loop that stood still",
            good=lambda rows: (rows[0]["loop_lag_max_ms"] or 0) >= 1000,
        )  # fmt: skip
        assert 0 <= loops[0]["loop_lag_ms"] <= loops[0]["loop_lag_max_ms"]
        assert ">stood still</span>" in visitor.page("/") or ">late</span>" in visitor.page("/")
        own_fleet.brokers[1].kill()
        value = eventually(
            lambda: visitor.json("/"), "a broker down",
            good=lambda found: any("broker 2" in text for text in found["health"]["words"]) and found["problems"],
        )  # fmt: skip
        assert value["health"]["level"] in {"warning", "bad"}
        assert [broker["id"] for broker in value["brokers"] if broker["loop_lag_ms"] is None] == [2]
        led = eventually(
            lambda: visitor.json("/topics/watched")["timeline"]["elections"], "elections",
            good=lambda rows: any(row["previous"] == 2 and row["leader"] in {1, 3} for row in rows),
        )  # fmt: skip
        assert not any(row["unclean"] for row in led)
        assert len({(row["partition"], row["leader_epoch"]) for row in led}) == len(led), "three brokers, one timeline"
        shown = eventually(
            lambda: visitor.json("/controller"), "both brokers answer",
            good=lambda found: len(found["timeline"]["since"]) == 2 and found["timeline"]["work"],
        )  # fmt: skip
        assert shown["timeline"]["work"]["epoch"] >= 1
        assert {one["broker"] for one in shown["timeline"]["since"]} == {1, 3}
        assert "broker 2 was gone" in [one["text"] for one in shown["events"]]
        everywhere = {
            (row["topic"], row["partition"], row["leader_epoch"]) for row in shown["timeline"]["elections"]
        }  # fmt: skip
        assert {("watched", row["partition"], row["leader_epoch"]) for row in led} <= everywhere
        assert "broker 2 was gone" in visitor.page("/controller")
        assert "2 →" in visitor.page("/topics/watched")
        assert "Healthy" not in visitor.page("/")
        for broker in own_fleet.brokers:
            broker.kill()
        assert visitor.get("/").status == 502
        got = eventually(lambda: visitor.get("/"), "a new client", good=lambda found: "no broker answers" in found.text)
        assert got.status == 502
    finally:
        assert console.close() == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--listen", "0.0.0.0"], "give --login"),
        (["--listen", "0.0.0.0", "--behind-tls-proxy"], "give --login"),
        (["--behind-tls-proxy"], "give --login"),
        (["--host-name", "localhost", "--host-name", "fleet.example"], "--host-name fleet.example"),
        (["--listen", "0.0.0.0", "--login", "PLAIN"], "--tls-certificate"),
        (["--listen", "0.0.0.0", "--login", "PLAIN", "--behind-tls-proxy"], "--command-config"),
        (["--login", "SCRAM-SHA-512"], "--command-config"),
        (["--listen", "somewhere"], "is not an IP address"),
        (["--tls-key", "pyproject.toml"], "go together"),
    ],
)
def test_half_a_configuration_does_not_start(options: list[str], reason: str) -> None:
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "console", "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert reason in done.stderr
