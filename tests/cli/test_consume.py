"""What ``consume`` and ``produce`` share with kcat and rpk: formats, positions, topics by expression."""

from __future__ import annotations

import subprocess
import time
import uuid
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from fleetlog.brokers.cli.record_format import RecordText
from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.needs import needs

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def shell(fleet: Fleet) -> Shell:
    return Shell(fleet)


@pytest.fixture
def topic(shell: Shell) -> str:
    name = f"consume-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "1")
    return name


HOUR_MS = 3_600_000


@needs("kcat")
def test_a_format_writes_what_kcat_writes(fleet: Fleet, shell: Shell, topic: str) -> None:
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    producer.produce(topic, b"one", b"k", timestamp=1_000_000_000_000, headers=[("a", b"1"), ("b", b"x")])
    producer.produce(topic, None, None, timestamp=1_000_000_000_001)
    producer.produce(topic, b"\xff\n", b"", timestamp=1_000_000_000_002)
    assert producer.flush(30) == 0
    text = r"%t %p %o %k(%K) %s(%S) %T [%h] \x41%%\n"
    words = ["kcat", "-C", "-b", fleet.bootstrap, "-t", topic, "-o", "beginning", "-e", "-q", "-f", text]
    theirs = subprocess.run(words, capture_output=True, check=True, timeout=60).stdout
    ours = shell.run("consume", topic, "--to", "end", "-f", text).stdout_bytes
    assert ours == theirs
    assert ours.startswith(f"{topic} 0 0 k(1) one(3) 1000000000000 [a=1,b=x] A%\n".encode())


def test_the_parts_that_only_rpk_has_or_none() -> None:
    record = SimpleNamespace(
        topic="t", partition=1, offset=2, timestamp=0, key=b"\xff", value=b'say "x"', leader_epoch=7,
        headers=[("a", b"old"), ("b", None), ("a", b"new")],
    )  # fmt: skip
    text = RecordText(r"%v{json} %k{hex} %k{base64} %d{iso} %h{a} %h{b} %h{none} %H %e %%{x}\\\t")
    assert text.of(record) == b'"say \\"x\\"" ff /w== 1970-01-01T00:00:00.000+00:00 new   3 7 %{x}\\\t'


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("consume", "t", "-f", "%q"), "%q is none of"),
        (("consume", "t", "-f", "%k{rot13}"), "%k{rot13}"),
        (("consume", "t", "-f", "%p{x}"), "takes no braces"),
        (("consume", "t", "-f", "%v %k{json"), "the brace behind %k is not closed"),
        (("consume", "t", "-f", ""), "the format is empty"),
        (("produce", "t", "-f", ""), "the format is empty"),
        (("consume", "t", "-f", "%d{%Y}"), "braces may have iso"),
        (("consume", "t", "-f", "50%"), "ends with a single %"),
        (("consume", "t", "-f", "\\q"), "\\q is none of"),
        (("consume", "t", "-f", "%v", "--json"), "leave --json"),
        (("produce", "t", "-f", "%o %v"), "%o can only be written"),
        (("produce", "t", "-f", "%k%v"), "between %k and %v"),
        (("produce", "t", "-f", "%v %v"), "stands once"),
        (("produce", "t", "-f", "%k\\n%v"), "a record is a line"),
        (("produce", "t", "-f", "%h %v"), "%h can only be written"),
        (("produce", "t", "-f", "%k %v", "-K", ":"), "leave --key-separator"),
        (("consume", "--regex", "a("), "is no expression of RE2"),
        (("consume", "t", "--from", "-1y"), "end-10"),
    ],
)  # fmt: skip
def test_a_format_or_position_that_is_none_is_refused_with_the_reason(words: tuple[str, ...], reason: str) -> None:
    assert reason in Shell(SimpleNamespace(bootstrap="127.0.0.1:1")).run(*words, code=2).stderr  # type: ignore[arg-type]


def test_a_format_reads_what_it_has_written(shell: Shell, topic: str) -> None:
    text = "%k|%h{trace}|%T{iso}|%v\\n"
    stdin = "a|t1|2001-09-09T01:46:40.000+00:00|one, two|three\nb||2001-09-09T01:46:41.000+00:00|-\n"
    shell.run("produce", topic, "-f", text.replace("{iso}", ""), "--null-value", "-", stdin=stdin)
    assert shell.run("consume", topic, "--to", "end", "-f", text).stdout == stdin.replace("|-\n", "|\n")
    assert shell.json("consume", topic, "--from", "1", "--to", "end")["value"] is None
    assert "line 2 is not of the format: it has no '|' there" in shell.fails(
        "produce", topic, "-f", "%k|%v", stdin="a|b\nc\n"
    )
    assert "'x' is neither milliseconds" in shell.fails("produce", topic, "-f", "%T %v", stdin="x y\n")
    assert "is no number of a partition" in shell.fails("produce", topic, "-f", "%p %v", stdin="-1 y\n")
    assert "no '>' there" in shell.fails("produce", topic, "-f", "<%v>", stdin="<a> \n")


def test_positions_before_the_end_and_before_now(fleet: Fleet, shell: Shell, topic: str) -> None:
    now = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    for number, hours in enumerate((30, 20, 2, 0)):
        producer.produce(topic, str(number), timestamp=now - hours * HOUR_MS)
    assert producer.flush(30) == 0

    def read(*words: str) -> list[str]:
        return shell.lines("consume", topic, "--to", "end", *words)

    assert read("--from", "end-1") == read("-o", "-1") == ["3"]
    assert read("--offset", "end-99") == ["0", "1", "2", "3"]
    assert shell.lines("consume", topic, "--to", "end-2") == ["0", "1"]
    assert read("--from", "-1h") == read("--from", "@-1h") == ["3"]
    assert read("--from", "-1d") == ["1", "2", "3"]
    assert shell.lines("consume", topic, "--from", "@1970-01-01", "--to", "-1d") == ["0"]


def test_topics_by_an_expression(shell: Shell, topic: str) -> None:
    for name in ("orders.eu", "orders.us", "orders"):
        shell.run("topics", "create", f"{topic}.{name}", "-p", "1")
        shell.run("produce", f"{topic}.{name}", stdin=f"{name}\n")
    expression = f"{topic}\\.orders\\..*"
    assert sorted(shell.lines("consume", "--regex", expression, "--to", "end")) == ["orders.eu", "orders.us"]
    lines = shell.lines("consume", "-r", f"{topic}[.]orders", expression, "--to", "end", "-g", f"group-{topic}")
    assert sorted(lines) == ["orders", "orders.eu", "orders.us"]
    assert "no topic has such a name" in shell.fails("consume", "--regex", "__consumer_offset.", "--to", "end")


def test_a_filter_leaves_out_what_does_not_match(shell: Shell, topic: str) -> None:
    lines = "".join(f'eu-{i}|{{"price": {i}}}\n' for i in range(200))
    shell.run("produce", topic, "-f", "%k|%v", stdin=lines)
    words = ("consume", topic, "--filter", "value.price >= 150 && key endsWith '7'", "-f", "%o ")
    assert shell.run(*words, "--to", "end").stdout == "157 167 177 187 197 "
    assert shell.run(*words, "-n", "2").stdout == "157 167 "
    group = f"group-{topic}"
    assert shell.run(*words, "-n", "1", "-g", group).stdout == "157 "
    assert shell.json("groups", "describe", group)[0]["offsets"][0]["committed"] == 158
    assert shell.run(*words, "--to", "end", "-g", group).stdout == "167 177 187 197 "
    refused = shell.run("consume", topic, "--filter", "value.price = 1", code=2).stderr
    assert "character 13" in refused
