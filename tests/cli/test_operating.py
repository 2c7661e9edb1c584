"""Health, settings of brokers, trimmed and analyzed topics, positions of groups: what operators have of rpk."""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from fleetlog.brokers.cli.cluster_config import shown_settings
from fleetlog.brokers.cli.main import cli
from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("operated"))
    try:
        yield fleet.start()
    finally:
        fleet.close()


@pytest.fixture
def shell(own: Fleet) -> Shell:
    return Shell(own)


@pytest.fixture
def topic(shell: Shell) -> str:
    name = f"operated-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "2", "-r", "3")
    return name


def test_health_is_an_exit_code_and_is_waited_for(own: Fleet, shell: Shell, topic: str) -> None:
    dead = own.brokers[2]
    dead.kill()

    def health() -> tuple[int, dict[str, object]]:
        done = CliRunner().invoke(cli, ["cluster", "health", "--json"], env=shell.environment, catch_exceptions=False)
        return done.exit_code, json.loads(done.stdout)

    code, value = eventually(health, "it is known to be dead", good=lambda look: "broker 3" in str(look[1]["words"]))
    assert (code, value["level"]) in {(3, "warning"), (4, "bad")}
    watching = shell.start("cluster", "health", "--watch", "--exit-when-healthy")
    try:
        assert watching.stdout is not None
        first = watching.stdout.readline()
        assert first.startswith(f"{value['level']}: ")
        assert watching.poll() is None
        dead.start()
        dead.wait_ready()
        rest, _ = watching.communicate(timeout=240)
    finally:
        watching.kill()
    assert (watching.returncode, rest.splitlines()[-1].split(":")[0]) == (0, "good")
    assert "goes with --watch" in shell.run("cluster", "health", "-e", code=2).stderr
    watching = shell.start("cluster", "health", "--watch")
    try:
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith("good: ")
        watching.send_signal(signal.SIGINT)
        rest, _ = watching.communicate(timeout=60)
    finally:
        watching.kill()
    assert (watching.returncode, rest) == (0, ""), "Ctrl-C is how it ends"


def test_what_a_change_prints_has_no_secret() -> None:
    given = {"ssl.keystore.password": "s3cret", "log.retention.ms": "5", "listener.name.x.plain.sasl.jaas.config": "y"}
    assert shown_settings(given) == {name: "5" if name == "log.retention.ms" else "[hidden]" for name in given}


def test_settings_of_brokers_are_shown_changed_and_compared(shell: Shell) -> None:
    def rows(*words: str) -> list[dict[str, object]]:
        return list(shell.json("cluster", "config", "get", *words))

    (row,) = rows("log.retention.ms")
    before = row["value"]
    assert (row["brokers"], row["from"]) in [([1, 2, 3], "default"), ([1, 2, 3], "properties")]
    assert {one["setting"] for one in rows()} > {"broker.id", "log.dirs"}
    assert len(rows("--all")) > len(rows())
    shell.run("cluster", "config", "set", "log.retention.ms=987654321", "--dry-run")
    assert rows("log.retention.ms") == [row]
    shell.run("cluster", "config", "set", "log.retention.ms=987654321")
    changed = {"setting": "log.retention.ms", "value": "987654321", "from": "all brokers, at run time"}
    eventually(lambda: rows("log.retention.ms") == [{**changed, "brokers": [1, 2, 3]}], "all brokers have read it")
    assert shell.json("cluster", "config", "diff") == []
    shell.run("cluster", "config", "set", "--broker", "2", "log.retention.ms=5000000")
    different = eventually(
        lambda: json.loads(
            CliRunner().invoke(cli, ["cluster", "config", "diff", "--json"], env=shell.environment).stdout
        ),
        "broker 2 has read it",
    )
    assert [(one["value"], one["brokers"]) for one in different] == [("987654321", [1, 3]), ("5000000", [2])]
    shell.run("cluster", "config", "diff", code=3)
    shell.run("cluster", "config", "set", "--broker", "2", "-u", "log.retention.ms")
    shell.run("cluster", "config", "set", "-u", "log.retention.ms")
    eventually(lambda: [one["value"] for one in rows("log.retention.ms")] == [before], "it is as it was")
    assert "did you mean log.retention.ms?" in shell.fails("cluster", "config", "get", "log.retention.m")
    assert "broker.id" in shell.fails("cluster", "config", "set", "broker.id=7")
    typo = shell.fails("cluster", "config", "set", "log.retentoin.ms=1")
    assert "no broker has a setting log.retentoin.ms; did you mean log.retention.ms?" in typo
    away = shell.run("cluster", "config", "set", "--broker", "9", "log.retention.ms=5000000")
    assert "broker 9 is not there" in away.stderr
    shell.run("cluster", "config", "set", "--broker", "9", "-u", "log.retention.ms")
    assert "broker 77" in shell.fails("cluster", "config", "get", "--broker", "77")


def test_a_topic_is_trimmed_and_a_group_is_moved(own: Fleet, shell: Shell, topic: str) -> None:
    now = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": own.bootstrap})
    for number in range(20):
        producer.produce(topic, str(number), partition=number % 2, timestamp=now - (20 - number) * HOUR_MS)
    assert producer.flush(60) == 0

    def committed() -> list[int]:
        return [row["committed"] for row in shell.json("groups", "describe", "g")[0]["offsets"]]

    for position, wanted in (
        ("end-3", [7, 7]),
        ("beginning", [0, 0]),
        ("-630m", [5, 5]),
        ("4", [4, 4]),
        ("end", [10, 10]),
    ):
        shell.run("groups", "seek", "g", "--topic", topic, "--to", position, "--execute")
        assert committed() == wanted, position
    rows = shell.json("topics", "trim", topic, "--before", "end-4", "--dry-run")
    assert [(row["first_offset"], row["new_first_offset"], row["offsets"]) for row in rows] == [(0, 6, 6), (0, 6, 6)]
    assert "--yes" in shell.fails("topics", "trim", topic, "--before", "end-4")
    assert len(shell.lines("consume", topic, "--to", "end")) == 20
    beyond = shell.fails("topics", "trim", topic, "--before", "11", "--yes")
    assert f"partition 0 of {topic} ends at 10, before 11: nothing was deleted" in beyond
    assert len(shell.lines("consume", topic, "--to", "end")) == 20, "a number too large does not empty the topic"
    shell.run("topics", "trim", f"{topic}:1", "--before", "3", "--yes")
    shell.run("topics", "trim", topic, "--before", "-930m", "--yes")
    assert sorted(map(int, shell.lines("consume", topic, "--to", "end"))) == list(range(6, 20))
    assert {row["offsets"] for row in shell.json("topics", "trim", topic, "--before", "0", "--yes")} == {0}
    shell.run("topics", "trim", topic, "--before", "end", "--yes")
    assert shell.lines("consume", topic, "--to", "end") == []


def test_what_the_records_of_a_topic_are_like(own: Fleet, shell: Shell, topic: str) -> None:
    settings = {"bootstrap.servers": own.bootstrap, "compression.type": "zstd", "linger.ms": 1000}
    producer = Producer(settings | {"transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(400):
        producer.produce(topic, b"x" * 1000, b"k%d" % (number % 7), partition=number % 2)
    producer.produce(topic, None, b"often", partition=0)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.produce(topic, b"never seen" * 1000, partition=0)
    assert producer.flush(60) == 0
    producer.abort_transaction()
    value = shell.json("topics", "analyze", topic)
    assert (value["records"], value["tombstones"], value["without_key"], value["distinct_keys"]) == (401, 1, 0, 8)
    assert value["partitions"] == {"0": 201, "1": 200}
    assert value["record_bytes"]["p50"] == value["record_bytes"]["largest"] == 1002
    assert value["compression_ratio"] > 10
    assert set(value["codecs"]) == {"zstd"}
    assert value["batch_records"]["mean"] > 1
    assert value["cut_short"] is False
    assert len(value["most_frequent_keys"]) == 5
    assert [one["records"] for one in value["producers"]] == [402], "what was aborted was sent, too"
    few = shell.json("topics", "analyze", topic, "--records", "20")
    assert 0 < few["records"] < 401
    text = shell.run("topics", "analyze", topic).stdout
    assert "401 newest records" in text
    assert "compression ratio" in text
    empty = f"{topic}-empty"
    shell.run("topics", "create", empty)
    assert shell.json("topics", "analyze", empty)["records"] == 0
    assert "0 newest records" in shell.run("topics", "analyze", empty).stdout


def test_the_settings_of_one_broker(shell: Shell) -> None:
    rows = {row["setting"]: row for row in shell.json("brokers", "config", "2")}
    assert (rows["broker.id"]["value"], rows["broker.id"]["brokers"]) == ("2", [2])
    assert "log.retention.hours" not in rows, "it has its default"
    (one,) = shell.json("brokers", "config", "2", "log.retention.hours")
    assert (one["value"], one["from"]) == ("168", "default")
    assert len(shell.json("brokers", "config", "1", "--all")) > 100
    assert "did you mean log.retention.hours" in shell.fails("brokers", "config", "1", "log.retention.hour")
    assert "77" in shell.fails("brokers", "config", "77")


@pytest.mark.parametrize(
    ("words", "incomplete", "wanted"),
    [
        ("fleetlog topics alter t --set", "retention.b", "retention.bytes="),
        ("fleetlog topics alter t --unset", "retention.b", "retention.bytes"),
        ("fleetlog cluster config set", "log.retention.m", "log.retention.ms="),
        ("fleetlog cluster config get", "log.retention.ms", "log.retention.ms"),
    ],
)
def test_names_of_settings_are_completed(words: str, incomplete: str, wanted: str) -> None:
    env = {
        "_FLEETLOG_COMPLETE": "bash_complete",
        "COMP_WORDS": f"{words} {incomplete}",
        "COMP_CWORD": str(len(words.split())),
    }
    lines = CliRunner().invoke(cli, [], env=env, prog_name="fleetlog").output.splitlines()
    assert f"plain,{wanted}" in lines


def test_topics_and_groups_are_completed(shell: Shell, topic: str) -> None:
    group = f"group-{topic}"
    shell.run("groups", "reset", group, "--topic", topic, "--to-latest", "--execute")
    asked = (("topics analyze", topic), ("groups seek", group), ("consume t --group", group))
    for words, wanted in ((f"fleetlog {words}", wanted) for words, wanted in asked):
        env = {
            **shell.environment,
            "_FLEETLOG_COMPLETE": "bash_complete",
            "COMP_WORDS": f"{words} {wanted[:-2]}",
            "COMP_CWORD": str(len(words.split())),
        }
        assert f"plain,{wanted}" in CliRunner().invoke(cli, [], env=env, prog_name="fleetlog").output


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("topics", "list", "--bootstrp", "x"), "--bootstrap"),
        (("consume", "t", "--ofset", "1"), "--offset"),
        (("cluster", "helth"), "did you mean health?"),
        (("cluster", "config", "gets"), "did you mean get?"),
        (("consum", "t"), "did you mean consume?"),
    ],
)
def test_the_nearest_command_or_option_is_named(words: tuple[str, ...], hint: str) -> None:
    done = CliRunner().invoke(cli, list(words), prog_name="fleetlog")
    assert done.exit_code == 2
    assert hint in done.stderr
