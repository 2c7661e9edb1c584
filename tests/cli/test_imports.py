"""What a command loads: nothing that it does not use. Most of a short command's time was imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from fleetlog.brokers.cli.main import cli
from tests.cli.shell import ROOT, Shell
from tests.support.fleet import Fleet

pytestmark = pytest.mark.zookeeper

BY_METAVAR = {"TOPIC": "t", "GROUP": "g", "BROKER": "1"}
"""What an argument that a command needs is given, by what its help calls it; a file or a name otherwise."""
MORE = {
    "acls add": "--allow --principal User:a --operation read --topic t",
    "acls set": "--allow --principal User:a --operation read --topic t --dry-run",
    "acls remove": "--topic t", "apply": "-f file.json",
    "brokers replace": "--with 2", "cluster config set": "log.retention.ms=1000000", "cluster rebalance": "--plan",
    "consume": "--to end", "dlq purge": "--to 0 --yes", "features upgrade": "--dry-run",
    "groups alter": "--set fleetlog.share.order=key",
    "groups reset": "--topic t --to-latest", "groups seek": "--topic t --to-latest", "quotas remove": "--user u",
    "records write": "--value one",
    "schemas check": '--text "int"', "schemas register": '--text "int"',
    "schemas show": "some", "topics alter": "--set retention.ms=1000000", "topics elect": "--preferred t",
    "topics reassign": "--replication-factor 1", "topics trim": "--before 0 --dry-run",
    "users add": "--password-stdin",
}  # fmt: skip
"""What a command is given besides."""
INSTEAD = {
    "dlq show": "t:0:0",
    "quotas set": "--user u producer_byte_rate=1000000",
    "bucket sweep": "nowhere://bucket",
    "bucket take": "nowhere://bucket",
    "records copy": "t:0:0 t",
    "schemas from-model": "some:Model",
}
SERVERS = {"console", "mcp", "registry"}
USAGE = 2
"""click's exit code of a command line that is wrong."""
MODULES = 315
"""The most that a command has loaded when it has asked the fleet, those of a bare Python included."""
LOADS_MORE = {
    "apply": 355, "bucket sweep": 350, "bucket take": 355, "consume": 345, "debug": 350, "dlq": 365, "produce": 330,
    "records": 330, "schemas": 350,
    "schemas from-model": 400, "topics analyze": 330,
}  # fmt: skip
HELP_MODULES = 325
HELP_OF = {"": 150, "topics": 312, "dev": 190, "broker": 230, "console": 380, "registry": 450}
UNUSED = {
    "rich", "asyncio", "uvloop", "kazoo", "confluent_kafka", "pydantic", "argparse", "email", "crc32c._cli",
    "starlette", "uvicorn", "jinja2", "yaml", "statistics", "kafka.consumer", "kafka.producer",
    "kafka.protocol.consumer.fetch", "kafka.protocol.producer.produce", "kafka.protocol.admin.acl",
    "kafka.protocol.admin.users", "fleetlog.brokers.app", "fleetlog.brokers.server", "fleetlog.brokers.api",
    "fleetlog.brokers.log", "fleetlog.brokers.metadata.cache", "fleetlog.brokers.metadata.image",
    "fleetlog.brokers.metadata.loading", "fleetlog.brokers.metadata.watcher", "fleetlog.brokers.coordinators",
    "fleetlog.brokers.replication", "fleetlog.brokers.tls", "fleetlog.brokers.cli.record_filter",
    "fleetlog.brokers.controller.balance",
}  # fmt: skip
"""Modules and packages that no command loads but those in USES."""
USES = {
    "acls": {"kafka.protocol.admin.acl"}, "apply": {"yaml"},
    "bucket": {"asyncio"}, "cluster rebalance": {"fleetlog.brokers.controller.balance"},
    "consume": {"kafka.consumer", "kafka.protocol.consumer.fetch"}, "debug": {"email"},
    "dlq": {"kafka.consumer", "kafka.protocol.consumer.fetch", "kafka.protocol.producer.produce"},
    "records": {"kafka.protocol.consumer.fetch", "kafka.protocol.producer.produce"},
    "schemas": {"email", "fleetlog.brokers.tls"}, "schemas from-model": {"email", "fleetlog.brokers.tls", "pydantic"},
    "topics analyze": {"kafka.protocol.consumer.fetch"},
    "users": {"kafka.protocol.admin.users"},
}  # fmt: skip
PLAIN = {"cluster config get", "groups describe", "groups list", "topics alter", "topics list", "topics trim"}
"""They send no request of ours, and need no codec for it."""
OWN_REQUESTS = {"fleetlog._native", "fleetlog.brokers.logins", "fleetlog.wire.messages", "re2"}
EACH = """
import json, os, sys
from fleetlog.brokers.cli.main import cli
for words in json.load(sys.stdin):
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(os.open("out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        code = 99
        try:
            cli(words, prog_name="fleetlog")
        except SystemExit as end:
            code = end.code or 0
        finally:
            with open(writer, "w") as pipe:
                json.dump([code, sorted(sys.modules)], pipe)
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        code, modules = json.load(pipe)
    os.waitpid(pid, 0)
    print(json.dumps([code, modules, open("out").read()]), flush=True)
"""
"""Runs commands, each in a process that has loaded what all load, and says how they ended and what was loaded then."""


class Loaded(NamedTuple):
    """How a command ended, the modules that it had then, and what it printed."""

    code: int
    modules: set[str]
    printed: str


def commands(command: click.Command = cli, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command by its name, ``topics list``."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, *path, name)


def asks_a_fleet(name: str, command: click.Command) -> bool:
    return name not in SERVERS and any(one.name == "bootstrap" for one in command.params)


def words_of(name: str, command: click.Command) -> list[str]:
    """A command line; a command that needs more than its arguments' names tell stands in MORE."""
    needed = [one for one in command.params if isinstance(one, click.Argument) and one.required]
    given = INSTEAD[name].split() if name in INSTEAD else [_value(one) for one in needed]
    return [*name.split(), *given, *MORE.get(name, "").split()]


def _value(argument: click.Argument) -> str:
    if isinstance(argument.type, click.Path | click.File):
        return "file.json"
    return BY_METAVAR.get((argument.metavar or "").rstrip(".").partition("[")[0], "some")


def loaded(folder: Path, lines: Sequence[Sequence[str]], bootstrap: str = "") -> list[Loaded]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder)}
    if bootstrap:
        environment["FLEETLOG_BOOTSTRAP"] = bootstrap
    done = subprocess.run(
        [sys.executable, "-c", EACH], input=json.dumps(lines), env=environment, cwd=folder, capture_output=True,
        text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [Loaded(code, set(modules), printed) for code, modules, printed in answers]


def of_command(table: Mapping[str, Any], name: str, otherwise: Any) -> Any:
    """What a table says of a command, or of the group that it is in."""
    return table.get(name, table.get(name.partition(" ")[0], otherwise))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("imports"), 1)
    try:
        fleet.start()
        shell = Shell(fleet)
        shell.run("topics", "create", "t")
        shell.run("produce", "t", stdin="one\n")
        shell.run("groups", "reset", "g", "--topic", "t", "--to-latest", "--execute")
        yield fleet
    finally:
        fleet.close()


def test_a_command_loads_nothing_that_it_does_not_use(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text("{}")
    asking = {name: words_of(name, command) for name, command in commands() if asks_a_fleet(name, command)}
    for name, ended in zip(asking, loaded(tmp_path, list(asking.values()), fleet.bootstrap), strict=True):
        assert ended.code != USAGE, f"{asking[name]}: MORE says what else it needs: {ended.printed}"
        assert "kafka.admin.client" in ended.modules, f"{asking[name]} asks nothing: {ended.printed}"
        most = of_command(LOADS_MORE, name, MODULES)
        assert len(ended.modules) <= most, f"{name} loads {len(ended.modules)} modules"
        packages = {".".join(one.split(".")[:depth]) for one in ended.modules for depth in range(1, 5)}
        unused = packages & (UNUSED | OWN_REQUESTS if name in PLAIN else UNUSED) - of_command(USES, name, set())
        assert not unused, f"{name} loads {unused}"


def test_help_loads_little(tmp_path: Path) -> None:
    names = [*(name for name, command in commands() if not asks_a_fleet(name, command)), "", "topics", "dev"]
    for name, ended in zip(names, loaded(tmp_path, [[*name.split(), "--help"] for name in names]), strict=True):
        assert ended.code == 0, (name, ended.printed)
        most = of_command(HELP_OF, name, HELP_MODULES)
        assert len(ended.modules) <= most, f"the help of {name} loads {len(ended.modules)} modules"
