"""The command line without a fleet: parsing, formats, messages, exit codes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

from fleetlog.brokers.cli import client, consume, options, output, produce, times
from fleetlog.brokers.cli.main import cli
from fleetlog.wire.errors import ErrorCode
from tests.support.ports import free_port

CLIENTS = ["cluster", "topics", "groups", "produce", "consume", "sinks", "transactions"]


def run(*arguments: str, **kw: object) -> object:
    return CliRunner().invoke(cli, list(arguments), prog_name="fleetlog", **kw)  # type: ignore[arg-type]


def leaves(command: click.Command | None, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], click.Command]]:
    assert command is not None, path
    if not isinstance(command, click.Group):
        return [(path, command)]
    return [leaf for name, sub in sorted(command.commands.items()) for leaf in leaves(sub, (*path, name))]


ALL = [
    leaf
    for name in CLIENTS
    for leaf in leaves(cli.get_command(click.Context(cli), name), (name,))
    if leaf[0] != ("cluster", "repair")  # it talks to ZooKeeper: no broker serves then
]


@pytest.mark.parametrize(("path", "command"), ALL, ids=lambda x: " ".join(x) if isinstance(x, tuple) else "")
def test_every_command_explains_itself_and_takes_the_common_options(
    path: tuple[str, ...], command: click.Command
) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    for word in ("--bootstrap", "FLEETLOG_BOOTSTRAP", "--timeout", "--json"):
        assert word in result.output
    assert command.help


@pytest.mark.parametrize("path", [path for path, _ in ALL], ids=" ".join)
def test_every_command_says_in_one_line_that_no_broker_answers(path: tuple[str, ...]) -> None:
    address = f"127.0.0.1:{free_port()}"
    needs = [] if path[-1] == "list" or path[0] == "cluster" else ["x"]
    extra = {
        "alter": ["--partitions", "3"] if path[0] == "topics" else ["--set", "fleetlog.share.order=key"],
        "reset": ["--to-latest"] if path[0] == "groups" else ["query"],
        "delete": ["--yes"],
        "rebalance": ["--plan"],
        "reassign": ["--verify"],
        "elect": ["--preferred"],
    }.get(path[-1], [])
    result = run(*path, *needs, *extra, env={"FLEETLOG_BOOTSTRAP": address}, input="a line\n")
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("fleetlog: ")
    assert address in line
    assert "is this the fleet's address?" in line


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        "localhost:",
        ":9092",
        "localhost:http",
        "localhost:70000",
        "a:1,,b:2",
        "a..b:1",
        "h:²",
        "x" * 64 + ":1",
    ],
)  # fmt: skip
def test_a_malformed_address_is_a_usage_error(address: str) -> None:
    result = run("topics", "list", "--bootstrap", address)
    assert result.exit_code == 2
    assert "--bootstrap" in result.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [(("topic", "list"), "did you mean topics?"), (("topics", "lst"), "did you mean list?"), (("xyzzy",), "-h lists")],
)
def test_a_command_that_is_not_there_names_the_one_that_is(words: tuple[str, ...], hint: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert f"there is no command '{words[-1] if words[0] == 'topics' else words[0]}'" in result.stderr
    assert hint in result.stderr


def test_an_address_of_ipv6_and_of_several_brokers() -> None:
    assert client.parse_bootstrap("[::1]:9092, b:1") == [("::1", 9092), ("b", 1)]


def test_something_else_that_listens_there_is_not_waited_for_longer_than_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        result = run("topics", "list", "-b", address, "--timeout", "0.5")
    assert result.exit_code == 1
    assert address in result.stderr
    assert "--timeout" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "create"],
        ["topics", "create", "t", "--partitions", "0"],
        ["topics", "create", "t", "--partitions", "2147483648"],
        ["topics", "create", "t", "-r", "32768"],
        ["topics", "alter", "t", "-p", "2147483648"],
        ["topics", "list", "--timeout", "nan"],
        ["topics", "list", "--timeout", "inf"],
        ["topics", "list", "--timeout", "1e300"],
        ["consume", "t:²"],
        ["consume", "t:0", "--from", "@99999999999999999999"],
        ["consume", "t:0", "--from", "99999999999999999999"],
        ["consume", "t:0", "-n", "9223372036854775808"],
        ["consume", "t", "-g", ""],
        ["groups", "reset", "g", "--to-offset", "9223372036854775808"],
        ["groups", "reset", "g", "--by-duration", "P99999999999D"],
        ["produce", "t", "-p", "2147483648"],
        ["produce", "t", "-K", ""],
        ["dev", "up", "--rack", ","],
        ["topics", "create", "t", "--config", "retention"],
        ["topics", "alter", "t"],
        ["topics", "reassign", "t"],
        ["topics", "reassign", "t", "--cancel", "--verify"],
        ["topics", "reassign", "t", "--replicas", "1,1"],
        ["topics", "reassign", "t", "--replicas", "1;2"],
        ["topics", "reassign", "t", "-r", "2", "--throttle", "fast"],
        ["topics", "reassign", "t", "-r", "2", "--throttle", "0"],
        ["cluster", "rebalance"],
        ["cluster", "rebalance", "--plan", "--brokers", "one"],
        ["topics", "elect", "t"],
        ["topics", "elect", "--unclean"],
        ["topics", "elect", "t", "u", "-p", "0", "--preferred"],
        ["groups", "reset", "g"],
        ["groups", "reset", "g", "--to-latest", "--to-offset", "5"],
        ["groups", "reset", "g", "--to-datetime", "yesterday"],
        ["groups", "reset", "g", "--by-duration", "5 minutes"],
        ["groups", "reset", "g", "--to-latest", "--topic", "t:x"],
        ["consume"],
        ["consume", "t", "--from", "begin"],
        ["consume", "t", "--group", "g", "--from", "5"],
        ["consume", "t:0", "--group", "g"],
        ["produce", "t", "--whole-file"],
        ["produce", "t", "--key", "k", "--key-separator", ":"],
        ["produce", "t", "/no/such/file"],
        ["produce", "t", "--acks", "2"],
        ["transactions", "list", "--state", "Sleeping"],
        ["completion", "tcsh"],
        ["nothing"],
    ],
    ids=" ".join,
)
def test_mistakes_in_the_command_line_are_exit_code_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_a_completion_script(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_FLEETLOG_COMPLETE" in result.output


def test_bash_types_no_space_behind_the_name_of_a_setting(tmp_path: Path) -> None:
    program = tmp_path / "fleetlog"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fleetlog.brokers.cli.main "$@"\n')
    program.chmod(0o755)
    script = f"""
        compopt() {{ echo "compopt $*"; }}
        {run("completion", "bash").stdout}
        COMP_WORDS=(fleetlog topics alter t --set retention.m) COMP_CWORD=5
        _fleetlog_completion {program}
        COMP_WORDS=(fleetlog topics alter t --par) COMP_CWORD=4
        _fleetlog_completion {program}
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["compopt", "-o", "nospace", "retention.ms=", "--partitions"], done.stderr


def test_completion_completes() -> None:
    env = {"_FLEETLOG_COMPLETE": "bash_complete", "COMP_WORDS": "fleetlog topics cr", "COMP_CWORD": "2"}
    result = run(env=env)
    assert "create" in result.output


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("5000000", 5_000_000),
        ("5M", 5_000_000),
        ("5 MB/s", 5_000_000),
        ("4.5MiB", 4_718_592),
        ("2k", 2_000),
        ("1g", 10**9),
    ],
)
def test_rates_are_read_in_bytes_per_second(text: str, bytes_per_second: int) -> None:
    assert options.rate(cast(Any, None), cast(Any, None), text) == bytes_per_second


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_940, "99.9 kB"), (99_960, "100 kB"), (999_600, "1.0 MB"),
     (1_234_567, "1.2 MB"), (3 * 10**12, "3.0 TB")],
)  # fmt: skip
def test_sizes_for_people(size: int, text: str) -> None:
    assert output.bytes_text(size) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((1, "topic"), "1 topic"), ((0, "topic"), "0 topics"), ((2, "topic"), "2 topics"),
        ((1, "copy"), "1 copy"), ((3, "copy"), "3 copies"), ((3, "key"), "3 keys"), ((2, "batch"), "2 batches"),
        ((1, "partition", "have"), "1 partition has"), ((2, "partition", "have"), "2 partitions have"),
        ((1, "internal one", "take"), "1 internal one takes"), ((2, "record", "were"), "2 records were"),
    ],
)  # fmt: skip
def test_a_count_and_what_is_counted_agree(given: tuple[Any, ...], text: str) -> None:
    assert output.count_text(*given) == text


# --- points and times -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "text"),
    [(10_485_760.0, "10485760"), (5, "5"), (0.25, "0.25"), (1e22, "1" + 22 * "0"), (1e-7, "0.0000001")],
)
def test_numbers_have_all_digits_and_no_exponent(number: float, text: str) -> None:
    assert output.number_text(number) == text


def test_points_are_positions_offsets_or_times() -> None:
    convert = times.PointType().convert
    assert convert("beginning", None, None) == times.Point("beginning")
    assert convert("12", None, None) == times.Point("offset", 12)
    assert convert("@000000000012", None, None) == times.Point("timestamp", 12)
    assert convert("1970-01-01T00:00:01", None, None) == times.Point("timestamp", 1_000)
    assert convert("1970-01-01T02:00:00+02:00", None, None) == times.Point("timestamp", 0)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
        ("250ms", 250),
        ("PT1H30M", 5_400_000),
        ("P1DT1S", 86_401_000),
    ],
)
def test_durations_are_read_in_milliseconds(text: str, ms: int) -> None:
    assert times.parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "5", "5x", "m5", "1h junk"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        times.parse_duration(text)


# --- records in and out -----------------------------------------------------------------------------------------


def record(**kw: object) -> SimpleNamespace:
    base = {"topic": "t", "partition": 1, "offset": 2, "timestamp": 3, "key": None, "value": b"v", "headers": []}
    return SimpleNamespace(**(base | kw))


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"k", b"v", []),
        (None, None, []),
        ("ключ".encode(), b"\xff\x00", [("h", b"1"), ("h", None), ("bin", b"\xfe")]),
        (b"", b"", []),
    ],
)
def test_what_consume_writes_produce_reads(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    line = consume.json_line(record(key=key, value=value, headers=headers))
    item = produce.parse_json(line, 1)
    assert (item.key, item.value, list(item.headers)) == (key, value, headers)
    assert (item.partition, item.timestamp_ms) == (1, 3)


def test_json_values_that_are_no_text_are_written_as_json() -> None:
    assert produce.parse_json(b'{"value": {"a": [1]}}', 1).value == b'{"a": [1]}'


@pytest.mark.parametrize(
    "line",
    [
        b"", b"5", b'{"value_base64": "?"}', b'{"key_base64": 5}', b'{"partition": "x"}', b'{"partition": 2147483648}',
        b'{"timestamp": -1}', b'{"timestamp": 9223372036854775808}', b'{"timestamp": true}', b'{"headers": [1]}',
        b'{"headers": [{}]}', b'{"headers": 1}', b'{"key": "\\ud800"}', b"\xff", b"[" * 100_000,
    ],
    ids=range(15),
)  # fmt: skip
def test_a_bad_json_line_is_named(line: bytes) -> None:
    with pytest.raises(output.CliError, match=r"^line 7 is not a record in JSON: ") as raised:
        produce.parse_json(line, 7)
    for raw in ("codec", "char ", "subscriptable", "KeyError", "padding", "recursion"):
        assert raw not in str(raised.value)


def test_dev_says_that_there_is_no_fleet() -> None:
    for words in (["add"], ["start", "1"], ["kill", "1"]):
        result = CliRunner().invoke(cli, ["dev", *words, "--dir", "/no/such/directory"])
        assert result.exit_code == 1
        assert result.stderr.startswith("fleetlog dev: no fleet runs in /no/such/directory")


def test_lines_with_keys() -> None:
    assert produce.parse_line(b"k:v:w", b":", 1) == produce.InputRecord(b"v:w", b"k")
    assert produce.parse_line(b"k:v", None, 1) == produce.InputRecord(b"k:v")
    with pytest.raises(output.CliError, match="line 3"):
        produce.parse_line(b"kv", b":", 3)


# --- errors and tables ------------------------------------------------------------------------------------------


def test_error_codes_in_words() -> None:
    assert client.explain(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == (
        "there is no such topic or partition; see `fleetlog topics list` (UNKNOWN_TOPIC_OR_PARTITION)"
    )
    assert client.explain(ErrorCode.INVALID_CONFIG, "retention.ms must be a number") == (
        "retention.ms must be a number (INVALID_CONFIG)"
    )
    assert client.explain(ErrorCode.SECURITY_DISABLED) == "security features are disabled (SECURITY_DISABLED)"
    assert client.explain(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.") == (
        client.explain(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    )
    assert client.reworded("[Error 40] InvalidConfigurationError: no 'x'") == "no 'x' (INVALID_CONFIG)"
    assert client.reworded("[Error 69] GroupIdNotFoundError") == client.explain(ErrorCode.GROUP_ID_NOT_FOUND)
    assert client.reworded("no answer") == "no answer"
    assert client.explain(9999, "odd") == "error 9999: odd"


def test_nothing_that_a_client_chose_reaches_the_terminal_raw(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "g\x1b]0;title\x07\x9b2J\u202egpj\u2066\u00a0\nforged  line"
    shown = r"g\x1b]0;title\x07\x9b2J\u202egpj\u2066\xa0\nforged  line"
    output.Output(False).rows(["group", "members"], [[hostile, [hostile, 1]]], title=hostile)
    out = capsys.readouterr().out
    assert out.count(shown) == 3
    assert len(out.splitlines()) == 3
    output.Output(True).value({"group": hostile})
    out = capsys.readouterr().out
    assert json.loads(out) == {"group": hostile}
    output.Output(False).done(f"group {hostile} is gone", {})
    output.warn(hostile)
    output.CliError(f"group {hostile}: gone").show()
    captured = capsys.readouterr()
    printed = out + captured.out + captured.err
    assert all(line.isprintable() for line in printed.split("\n")), printed
    assert output.visible("gr\u00fcn \u6f22") == "gr\u00fcn \u6f22"


def test_tables_are_whole_when_piped_and_json_is_one_value(capsys: pytest.CaptureFixture[str]) -> None:
    name = "x" * 300
    output.Output(False).rows(["topic", "is-r"], [[name, [1, 2]], ["[bold]", None]])
    text = capsys.readouterr().out
    assert name in text
    assert "1,2" in text
    assert "[bold]" in text
    output.Output(True).rows(["topic", "is-r"], [[name, [1, 2]]])
    assert json.loads(capsys.readouterr().out) == [{"topic": name, "is_r": [1, 2]}]


def test_times_for_people() -> None:
    assert output.iso(-1) is None
    assert output.iso(0) == "1970-01-01T00:00:00.000+00:00"
    assert output.iso(2**62) == str(2**62)
