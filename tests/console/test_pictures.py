"""The console's charts over HTTP, on real brokers: what they show, to whom, and what is said where there are none."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleetlog.brokers.console.pictures import LAG_UNTOLD
from tests.cli.shell import Shell
from tests.console.served import Served, Visitor, log_in, scram_config
from tests.support.fleet import Fleet
from tests.support.secured import BROKER_PASSWORD, BROKER_USER, PASSWORD, USER, confluent
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(400)]
PATIENCE_S = 120.0


@pytest.fixture
def topic(fleet: Fleet) -> Iterator[str]:
    name = f"drawn-{uuid.uuid4().hex[:8]}"
    shell = Shell(fleet)
    shell.run("topics", "create", name, "-p", "3", "-r", "3")
    yield name
    shell.run("topics", "delete", name, "--yes", "--if-exists")


def figures(page: dict[str, Any], title: str, line: int = 0) -> list[float]:
    """What is known of a line; nothing where there is no such chart, as of a group that was not collected yet."""
    charts = [one for one in page["pictures"]["charts"] if one["title"] == title]
    return [one for chart in charts for one in chart["lines"][line]["values"] if one is not None]


def drawn(visitor: Visitor, path: str, good: Callable[[dict[str, Any]], object], meanwhile: Callable[[], None]) -> Any:
    def look() -> Any:
        meanwhile()
        return visitor.json(path)

    return eventually(look, f"figures at {path}", PATIENCE_S, good=good, pause_s=1.0)


def test_a_group_has_its_lag_and_its_rebalances(fleet: Fleet, topic: str) -> None:
    console, shell, group = Served(fleet.bootstrap), Shell(fleet), f"g-{topic}"
    try:
        visitor, path = Visitor(console), f"/group?name=g-{topic}&range=15m"
        shell.run("produce", topic, stdin="".join(f"{number}\n" for number in range(500)))

        def consume(*words: str) -> None:
            shell.run("consume", topic, "-g", group, "-n", "1", *words)

        consume("--from", "beginning")
        value = drawn(visitor, path, lambda page: max(figures(page, "Lag in records"), default=0) > 0, consume)
        assert max(figures(value, "Lag in records")) < 500
        value = drawn(visitor, path, lambda page: page["pictures"]["charts"][0]["marks"], consume)
        assert "rebalance" in value["pictures"]["charts"][0]["marks"][0][1]
        assert 'class="mark"' in visitor.page(path)
    finally:
        assert console.close() == 0
        shell.run("groups", "delete", group, "--yes")


def test_open_transactions_are_drawn_as_they_are_listed(fleet: Fleet, topic: str) -> None:
    console = Served(fleet.bootstrap)
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    try:
        producer.produce(topic, b"not committed yet")
        assert producer.flush(30) == 0
        visitor = Visitor(console)
        counted = partial(figures, title="Open transactions")
        page = drawn(visitor, "/transactions?range=15m", lambda page: max(counted(page), default=0) >= 1, lambda: None)
        assert topic in {row["transactional_id"] for row in page["open"]}
    finally:
        producer.abort_transaction()
        assert console.close() == 0


def test_a_console_that_is_killed_goes_on_with_its_figures_and_tells_what_is_damaged(
    fleet: Fleet, tmp_path: Path
) -> None:
    options, path = ("--figures-dir", str(tmp_path)), "/?range=15m"
    console = Served(fleet.bootstrap, *options)
    try:
        drawn(Visitor(console), path, lambda page: len(figures(page, "Connections")) >= 3, lambda: None)
    finally:
        console.process.kill()
        console.close()
    (rows,) = tmp_path.glob("*/10-*.rows")
    data = bytearray(rows.read_bytes())
    data[5] ^= 1  # the first row's count
    rows.write_bytes(data)
    console = Served(fleet.bootstrap, *options)
    try:
        visitor = Visitor(console)
        page = drawn(visitor, path, lambda page: "cannot be read" in str(page["pictures"]["notes"]), lambda: None)
        assert f"bytes of {rows} cannot be read" in page["pictures"]["notes"][0]
        assert len(figures(page, "Connections")) >= 2, "the older points, but for the damaged one"
        assert "cannot be read" in visitor.page("/")
    finally:
        assert console.close() == 0


def test_a_directory_that_cannot_be_written_costs_the_charts_and_is_named(fleet: Fleet) -> None:
    console = Served(fleet.bootstrap, "--figures-dir", "/proc/fleetlog")
    try:
        visitor = Visitor(console)
        eventually(
            lambda: visitor.json("/")["pictures"]["notes"], "the directory is named", PATIENCE_S,
            good=lambda notes: notes and "No figures are collected: /proc/fleetlog" in notes[0],
        )  # fmt: skip
        assert visitor.json("/topics")["count"] >= 0
    finally:
        assert console.close() == 0


def test_ranges_and_brokers_that_there_are_not(visitor: Visitor) -> None:
    for path, status in (
        ("/?range=1y", 400), ("/brokers/1?range=", 200), ("/brokers/99", 404), ("/brokers/x", 404),
        ("/brokers/-1", 404), ("/brokers/99999999999999", 404), ("/partitions?order=colour", 400),
        ("/partitions?start=-1", 400), ("/partitions?name=%3Cscript%3E", 200), ("/topics/no-such?range=3d", 404),
    ):  # fmt: skip
        assert visitor.get(path).status == status, path
    assert "<script>" not in visitor.page("/partitions?name=%3Cscript%3E").split("<main")[1]
    assert visitor.page("/?range=3d").count('aria-current="true"') == 1


def test_the_map_shows_which_replica_is_where_and_what_is_behind(own_fleet: Fleet) -> None:
    own_fleet.start()
    Shell(own_fleet).run("topics", "create", "mapped", "-p", "30", "-r", "3")
    console = Served(own_fleet.bootstrap)
    try:
        visitor = Visitor(console)
        value = visitor.json("/partitions?name=mapped")
        (row,) = value["topics"]
        states = [state for _, replicas in row["replicas"] for _, state in replicas]
        assert (states.count("leader"), states.count("follower")) == (30, 60)
        page = visitor.page("/partitions?name=mapped")
        assert page.count('<svg class="map"') == 4 + 3
        assert "broker 1: 10 leader, 20 follower" in page
        own_fleet.brokers[2].kill()

        def behind(page: dict[str, Any]) -> bool:
            return bool(page["counts"]["behind"] >= 30 and page["counts"]["offline"] == 0)

        value = eventually(lambda: visitor.json("/partitions"), "replicas out of sync", good=behind)
        assert value["topics"][0]["troubled"] > 0, "what has problems stands first"
        assert "Broker 3, down" in visitor.page("/partitions")
        assert visitor.json("/brokers/3")["state"] == "down"
        notes = visitor.json("/?range=15m")["pictures"]["notes"]
        assert not [note for note in notes if "Broker 1" in note], notes
    finally:
        assert console.close() == 0


def figures_config(directory: Path, user: str, password: str) -> Path:
    file = directory / f"{user}.properties"
    login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="{password}";'
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={login}\n", "utf-8"
    )
    return file


def test_a_viewer_sees_charts_of_what_it_may_describe(guarded: Fleet, tmp_path: Path) -> None:
    options = ("--login", "SCRAM-SHA-256", "--command-config", str(scram_config(tmp_path)))
    config = figures_config(tmp_path, BROKER_USER, BROKER_PASSWORD)
    console = Served(guarded.bootstrap, *options, "--figures-config", str(config))
    try:
        admin, alice = Visitor(console), Visitor(console)
        log_in(admin, BROKER_USER, BROKER_PASSWORD)
        log_in(alice, USER, PASSWORD)
        value = drawn(admin, "/?range=15m", lambda page: len(page["pictures"]["charts"]) > 0, lambda: None)
        assert value["pictures"]["small"]["1"]
        for path in ("/", "/brokers/1"):
            pictures = alice.json(path)["pictures"]
            assert (pictures["charts"], pictures["small"]) == ([], {})
            assert "need the right to describe the cluster" in pictures["notes"][0]
            assert "need the right to describe the cluster" in alice.page(path)
        assert alice.get("/topics/hidden").status in {403, 404}
        assert alice.get("/group?name=hidden").status in {403, 404}
        _a_sum_over_topics(guarded, admin, alice)
    finally:
        assert console.close() == 0


def _a_sum_over_topics(guarded: Fleet, admin: Visitor, alice: Visitor) -> None:
    """A group's lag is charted for who may describe all of its topics."""
    login = {"bootstrap.servers": guarded.bootstrap, **confluent("SCRAM-SHA-256", BROKER_USER, BROKER_PASSWORD)}
    client = AdminClient(login)
    topics = [NewTopic(name, 1, 1) for name in ("of-all", "of-some")]
    for one in client.create_topics(topics).values():
        one.result(30)
    producer = Producer(login)
    for topic in topics:
        producer.produce(topic.topic, b"a")
    assert producer.flush(30) == 0
    offsets = ConsumerGroupTopicPartitions("sums", [TopicPartition(one.topic, 0, 0) for one in topics])
    client.alter_consumer_group_offsets([offsets])["sums"].result(30)
    form = {"operation": "Describe", "permission": "allow", "principal": f"User:{USER}", "confirm": "yes"}
    for kind, name in (("group", "sums"), ("topic", "of-all")):
        token = {"form_token": admin.json("/topics")["form_token"]}
        got = admin.post(
            "/change/add-acl", {**token, **form, "resource": kind, "name": name}, Accept="application/json"
        )
        assert got.status == 200
    path = "/group?name=sums&range=15m"

    def titles(page: dict[str, Any]) -> set[str]:
        return {one["title"] for one in page["pictures"]["charts"]}

    drawn(admin, path, lambda page: "Lag in records" in titles(page) and figures(page, "Lag in records"), lambda: None)
    page = drawn(alice, path, lambda page: "Members" in titles(page), lambda: None)
    assert "Lag in records" not in titles(page)
    assert page["pictures"]["notes"] == [LAG_UNTOLD]


def test_without_a_login_of_its_own_there_are_no_charts_but_pages(guarded: Fleet, tmp_path: Path) -> None:
    options = ("--login", "SCRAM-SHA-256", "--command-config", str(scram_config(tmp_path)))
    console = Served(guarded.bootstrap, *options)
    try:
        admin = Visitor(console)
        log_in(admin, BROKER_USER, BROKER_PASSWORD)
        assert "Start it with --figures-config FILE" in admin.page("/")
        assert admin.json("/transactions")["pictures"]["charts"] == []
    finally:
        assert console.close() == 0
    config = figures_config(tmp_path, USER, "wrong")
    console = Served(guarded.bootstrap, *options, "--figures-config", str(config))
    try:
        admin = Visitor(console)
        log_in(admin, BROKER_USER, BROKER_PASSWORD)
        began_s = time.monotonic()
        eventually(
            lambda: admin.json("/")["pictures"]["notes"], "why there are no figures", PATIENCE_S,
            good=lambda notes: "No figures are collected" in notes[0] and "not been asked" not in notes[0],
        )  # fmt: skip
        assert time.monotonic() - began_s < PATIENCE_S
        assert "wrong" not in admin.page("/")
    finally:
        assert console.close() == 0
