"""``fleetlog dev``: a local fleet of broker processes with a ZooKeeper server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fleetlog.brokers.cli import dev_fleet as fleet
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.dev_security import (
    ADMIN,
    APP,
    SUBDIRECTORY,
    DevSecurity,
    SecurityError,
    is_secure,
    load_or_make,
)
from fleetlog.brokers.cli.dev_state import (
    BrokerState,
    DevError,
    FleetState,
    Process,
    default_directory,
    end_all,
    load,
    locked,
)
from fleetlog.brokers.cli.interrupts import Interrupted, interrupts
from fleetlog.brokers.cli.options import pairs
from fleetlog.brokers.cli.output import count_text, table, warn

if TYPE_CHECKING:
    from rich.console import Console

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_NOT_RUNNING = 3
REGISTRY_PORT = 8081
"""Confluent's; another one where it is taken."""


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=default_directory,
    help="Where the fleet keeps its data, logs and pids.  [default: $FLEETLOG_DEV_DIR or ~/.local/state/fleetlog/dev]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def _racks(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",")) if value is not None else ()
    if not all(names):
        raise click.BadParameter(f"{value!r} must be a list of racks like a,b,c")
    return names


@click.group(cls=CommandGroup)
def dev() -> None:
    """A local fleet with a ZooKeeper server: up, status, kill, start, add, down."""


@dev.command()
@click.option(
    "--brokers",
    "count",
    type=click.IntRange(1, 30),
    help="How many brokers.  [default: those in the directory, 3 in a new one]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65000),
    default=9092,
    show_default=True,
    help="Port of the first broker; the others use the next ones. 0: any free ports.",
)
@click.option("--detach", is_flag=True, help="Return when the fleet is ready; `dev down` stops it.")
@click.option(
    "--set", "settings", multiple=True, callback=pairs, metavar="NAME=VALUE", help="A setting for every broker."
)
@click.option(
    "--rack", "racks", callback=_racks, metavar="NAME[,NAME...]", help="Racks of the brokers, assigned in turn: a,b,c."
)
@click.option(
    "--secure", is_flag=True, help="TLS, logins, ACLs and audit; prints clients' settings. The directory stays so."
)
@click.option("--no-registry", is_flag=True, help="Without a schema registry.")
@click.option("--bucket", metavar="URL", help="Tiered storage in that bucket: file:///path, s3://name/folder.")
@directory_option
@json_option
def up(
    *,
    secure: bool,
    no_registry: bool,
    bucket: str | None,
    count: int | None,
    port: int,
    detach: bool,
    settings: dict[str, str],
    racks: tuple[str, ...],
    directory: Path,
    as_json: bool,
) -> None:
    """Start ZooKeeper, brokers and a schema registry, and wait until a stock client can use them.

    Without --detach it stays in the foreground; Ctrl-C stops everything. The data stays in the directory.
    """
    directory = directory.resolve()
    begun = time.monotonic()
    if bucket is not None:
        settings = {"remote.log.storage.system.enable": "true", "fleetlog.bucket.url": bucket, **settings}
    try:
        fleet.check_tools()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(directory):
            known = load(directory)
            if known is not None and known.running():
                raise DevError(f"a fleet runs there already ({known.bootstrap}): `fleetlog dev down --dir {directory}`")
            if known is not None:
                fleet.stop_all(directory)  # a schema registry may be left, which outlives brokers
            state = fleet.plan(directory, fleet.count_of(directory, count), port, detach, racks)
            security = _secured(directory, state, secure)
            fleet.check_settings(settings, state, security)
            interrupts.catch()
            with fleet.reserved([broker.port for broker in state.brokers] if port else []):
                try:
                    registry_port = None if no_registry else REGISTRY_PORT if port else 0
                    _bring_up(directory, state, settings, security, registry_port)
                except BaseException:
                    _bring_down(directory)
                    raise

        def announce() -> None:
            _print_ready(state, directory, time.monotonic() - begun, as_json)
            if security is not None and not as_json:
                _print_clients(security, state.bootstrap)

        if detach:
            announce()
        else:
            _stay(directory, announce)
    except Interrupted:
        sys.exit(EXIT_INTERRUPTED)
    except (DevError, OSError) as error:
        _fail(error)


def _secured(directory: Path, state: FleetState, secure: bool) -> DevSecurity | None:
    """What the fleet is secured with, if it is, or was before. Raises DevError."""
    if not secure and not is_secure(directory):
        return None
    state.secure = True
    try:
        security = load_or_make(directory)
    except SecurityError as error:
        raise DevError(str(error)) from error
    security.write_client_files(state.bootstrap)
    return security


def _bring_up(
    directory: Path,
    state: FleetState,
    settings: dict[str, str],
    security: DevSecurity | None,
    registry_port: int | None,
) -> None:
    """``registry_port``: 0 is any free one, None no schema registry."""
    if not state.detached:
        state.supervisor = Process.of(os.getpid())
    with _console().status("starting") as spinner:
        fleet.start_all(directory, state, settings, spinner.update, security)
        deadline = time.monotonic() + fleet.READY_TIMEOUT_S
        for broker in state.brokers:
            spinner.update(f"waiting for broker {broker.id}")
            fleet.wait_ready(broker, deadline)
        if security is not None:
            fleet.grant_programs(security.librdkafka(state.bootstrap, ADMIN))
        if registry_port is not None:
            fleet.start_registry(directory, state, security, registry_port)
        spinner.update("a stock client creates, produces, reads and commits")
        fleet.check_with_client(state, security)
        if registry_port is not None:
            spinner.update("waiting for the schema registry")
            why = fleet.wait_registry(directory, state, time.monotonic() + fleet.READY_TIMEOUT_S)
            if why:
                warn(f"there is no schema registry: {why}")
        interrupts.check()


def _bring_down(directory: Path, patience_s: float = fleet.BROKER_PATIENCE_S) -> None:
    """Stop all processes. A second Ctrl-C kills them at once; no process is left behind."""
    while True:
        interrupts.forget()
        try:
            with _console().status("stopping"):
                fleet.stop_all(directory, patience_s)
            return
        except Interrupted:
            patience_s = 0.0


def _stay(directory: Path, announce: Callable[[], None]) -> None:
    """Wait for Ctrl-C from the first word of ``announce`` on, or until all processes end; then stop what is left."""
    reported: set[int] = set()
    try:
        announce()
        while (state := load(directory)) is not None and state.running():
            for broker in state.brokers:
                dead = broker.process is None or not broker.process.alive()
                if dead and broker.id not in reported:
                    hint = f"`fleetlog dev start {broker.id}` starts it again"
                    _console().print(f"[yellow]broker {broker.id} has ended[/]; {hint}")
                    reported.add(broker.id)
                elif not dead:
                    reported.discard(broker.id)
            time.sleep(0.5)
    except Interrupted:
        pass
    _bring_down(directory)


@dev.command()
@directory_option
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Show the processes. Exit code 0 when all are ready, 3 otherwise."""
    directory = directory.resolve()
    try:
        state = load(directory)
    except DevError as error:
        _fail(error)
    report = _report(state, directory)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    elif state is None:
        click.echo(f"no fleet runs in {directory}; `fleetlog dev up --dir {directory}` starts one")
    else:
        _print_table(report)
        click.echo(f"bootstrap: {report['bootstrap']}")
        if report["registry"]:
            click.echo(f"schema registry: {report['registry']}")
        if report["bucket"]:
            click.echo(f"bucket: {report['bucket']}")
        if report["security"]:
            click.echo(f"secured: users, certificates and clients' settings are in {report['security']}")
    sys.exit(0 if report["running"] else EXIT_NOT_RUNNING)


@dev.command()
@click.option("--delete-data", is_flag=True, help="Also remove the directory with all records.")
@directory_option
def down(directory: Path, delete_data: bool) -> None:
    """Stop the fleet; no process is left behind."""
    directory = directory.resolve()
    try:
        state = load(directory) if directory.exists() else None
        if state is None:
            click.echo(f"no fleet runs in {directory}")
        else:
            if state.supervisor is not None and state.supervisor.alive():
                # The supervisor stops the fleet; processes that it leaves are stopped here.
                end_all([state.supervisor], 2 * fleet.BROKER_PATIENCE_S)
            with locked(directory):
                fleet.stop_all(directory)
            click.echo("the fleet is down")
        if delete_data and directory.exists():
            _delete_data(directory)
    except (DevError, OSError) as error:
        _fail(error)


def _delete_data(directory: Path) -> None:
    for path in (
        *fleet.homes(directory).values(),
        directory / "zookeeper",
        directory / "registry",
        directory / SUBDIRECTORY,
    ):
        if path.is_dir():
            shutil.rmtree(path)
    click.echo(f"the data in {directory} is deleted")


@dev.command()
@click.argument("broker_id", type=int)
@directory_option
def kill(broker_id: int, directory: Path) -> None:
    """SIGKILL broker BROKER_ID, as a crash would end it."""
    directory = directory.resolve()
    try:
        process = _running(directory).broker(broker_id).process
        if process is None or not process.send(signal.SIGKILL):
            raise DevError(f"broker {broker_id} does not run")
        process.wait(10)
        click.echo(f"broker {broker_id} (pid {process.pid}) is killed")
    except DevError as error:
        _fail(error)


@dev.command()
@click.argument("broker_id", type=int)
@directory_option
def start(broker_id: int, directory: Path) -> None:
    """Start broker BROKER_ID again after it was killed."""
    directory = directory.resolve()
    try:
        _running(directory)
        with locked(directory):
            state = _running(directory)
            broker = state.broker(broker_id)
            if broker.process is not None and broker.process.alive():
                raise DevError(f"broker {broker_id} runs")
            with _console().status(f"waiting for broker {broker_id}"):
                fleet.start_broker(directory, state, broker, die_with_parent=False)
                fleet.wait_ready(broker, time.monotonic() + fleet.READY_TIMEOUT_S)
        click.echo(f"broker {broker_id} is ready")
    except DevError as error:
        _fail(error)


@dev.command("add")
@click.option("--rack", default="", metavar="NAME", help="Its rack.")
@directory_option
def start_new_broker(rack: str, directory: Path) -> None:
    """Start one more broker. `fleetlog cluster rebalance` moves replicas to it."""
    directory = directory.resolve()
    try:
        _running(directory)
        with locked(directory):
            state = _running(directory)
            broker = fleet.add_broker(directory, state, rack)
            with _console().status(f"waiting for broker {broker.id}"):
                fleet.start_broker(directory, state, broker, die_with_parent=False)
                fleet.wait_ready(broker, time.monotonic() + fleet.READY_TIMEOUT_S)
        click.echo(f"broker {broker.id} is ready at {broker.address}")
    except DevError as error:
        _fail(error)


def _running(directory: Path) -> FleetState:
    state = load(directory) if directory.exists() else None
    if state is None:
        raise DevError(f"no fleet runs in {directory}; `fleetlog dev up --dir {directory}` starts one")
    return state


def _report(state: FleetState | None, directory: Path) -> dict[str, Any]:
    if state is None:
        return {"running": False, "directory": str(directory), "brokers": []}
    zookeeper = state.zookeeper is not None and state.zookeeper.alive()
    rows = [_broker_row(broker, zookeeper) for broker in state.brokers]
    return {
        "running": zookeeper and all(row["ready"] for row in rows),
        "directory": str(directory),
        "bootstrap": state.bootstrap,
        "detached": state.detached,
        "security": str(directory / SUBDIRECTORY) if state.secure else None,
        "bucket": fleet.bucket_of(state),
        "registry": state.registry_url if state.registry is not None and state.registry.alive() else None,
        "zookeeper": {
            "connect": state.zookeeper_connect,
            "pid": state.zookeeper.pid if state.zookeeper is not None else None,
            "running": zookeeper,
        },
        "brokers": rows,
    }


def _broker_row(broker: BrokerState, zookeeper: bool) -> dict[str, Any]:
    running = broker.process is not None and broker.process.alive()
    reason = fleet.not_ready(broker)
    ready = reason is None
    starts = reason == fleet.STARTING and zookeeper
    return {
        "id": broker.id,
        "address": broker.address,
        "pid": broker.process.pid if broker.process is not None else None,
        "running": running,
        "ready": ready,
        "state": "ready" if ready else "down" if not running else fleet.STARTING if starts else "not ready",
        "not_ready": reason if running and not starts else None,
        "admin": f"http://127.0.0.1:{broker.admin_port}",
        "config": str(Path(broker.directory) / fleet.CONFIG_FILE),
        "log": str(fleet.log_path(broker)),
    }


def _print_table(report: dict[str, Any]) -> None:
    zookeeper = report["zookeeper"]
    log = str(Path(report["directory"]) / "zookeeper" / "zookeeper.log")
    state = "ready" if zookeeper["running"] else "down"
    rows = [["zookeeper", zookeeper["connect"], zookeeper["pid"], state, log]]
    rows += [[f"broker {row['id']}", row["address"], row["pid"], row["state"], row["log"]] for row in report["brokers"]]
    table(["process", "address", "pid", "state", "log"], rows)
    for row in report["brokers"]:
        if row["not_ready"] is not None:
            click.echo(f"broker {row['id']} is not ready: {row['not_ready']}")
    if not zookeeper["running"]:
        where = f"--dir {report['directory']}"
        click.echo(f"no ZooKeeper runs: `fleetlog dev down {where}`, then `fleetlog dev up {where}` start all again")


def _print_ready(state: FleetState, directory: Path, seconds: float, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({**_report(state, directory), "seconds": round(seconds, 2)}, indent=2))
        return
    click.echo(f"ready after {seconds:.1f} s: {count_text(len(state.brokers), 'broker')} at {state.bootstrap}")
    click.echo(f"  export FLEETLOG_BOOTSTRAP={state.bootstrap}")
    if state.registry is not None:
        click.echo(f"  schema registry: {state.registry_url}")
    click.echo(f"  data and logs: {directory}")
    click.echo(f"  `fleetlog dev down --dir {directory}` ends it" if state.detached else "  Ctrl-C ends it")


def _print_clients(security: DevSecurity, bootstrap: str) -> None:
    """Settings to be pasted: of the user of programs, and of the operator for the commands."""
    conf, properties = security.client_file(APP, "librdkafka"), security.client_file(APP, "java")
    click.echo(f"\nlibrdkafka, also in {conf} (kcat -F {conf}):\n")
    _print_lines(f"{name}={value}" for name, value in security.librdkafka(bootstrap).items())
    click.echo(f"\nJava, also in {properties}:\n")
    _print_lines(f"{name}={value}" for name, value in security.java(bootstrap).items())
    click.echo("\nSpark:\n")
    _print_lines([f"options = {json.dumps(security.spark(bootstrap), indent=4)}"])
    click.echo("\nfleetlog, as the operator:\n")
    _print_lines([
        f"export FLEETLOG_BOOTSTRAP={bootstrap}",
        f"export FLEETLOG_COMMAND_CONFIG={security.client_file(ADMIN, 'java')}",
    ])  # fmt: skip


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _fail(error: Exception) -> NoReturn:
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    click.echo(f"fleetlog dev: {text}", err=True)
    sys.exit(EXIT_FAILED)
