"""``fleetlog host``: all brokers of one machine as one unit."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import click

from fleetlog.brokers.addresses import address_text
from fleetlog.brokers.cli.host_plan import HostPlan, local_address, plan_host, with_registry
from fleetlog.brokers.cli.host_unit import EXIT_CONFIG, Unit, broker_command, lock, running_unit
from fleetlog.brokers.cli.options import (
    at_least,
    config_file_argument,
    log_level_option,
    override_option,
    settings_text,
)
from fleetlog.brokers.cli.output import CliError, count_text, number_text
from fleetlog.brokers.config import ConfigError
from fleetlog.brokers.server.service_manager import service_manager


class _RunFirst(click.Group):
    """``fleetlog host CONFIG`` is ``fleetlog host run CONFIG``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else "--help"
        if first not in self.commands and first not in ("-h", "--help"):
            if not first.startswith("-") and not Path(first).exists():
                known = ", ".join(sorted(self.commands))
                raise click.UsageError(f"{first!r} is neither a file nor one of the commands {known}", ctx)
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RunFirst)
def host() -> None:
    """All brokers of one machine as one unit: `fleetlog host CONFIG --brokers N`, restart, status."""


_brokers = click.option("--brokers", "count", type=int, required=True, help="How many; one for each core.")
_step = click.option(
    "--port-step", type=click.IntRange(1, 1000), default=1, show_default=True,
    help="By how much the ports of a broker's listeners differ from those of the one before.",
)  # fmt: skip


@host.command("run")
@config_file_argument
@_brokers
@override_option
@_step
@log_level_option
@click.option(
    "--registry", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Run a schema registry beside them, too, with the options in this file: `fleetlog registry --config FILE`.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Only derive and check the brokers, and print them.")
def run_unit(
    config_file: Path,
    count: int,
    override: dict[str, str],
    port_step: int,
    log_level: str,
    registry: Path | None,
    check: bool,
) -> None:
    """Run the brokers until SIGTERM or Ctrl-C. SIGHUP restarts them one at a time, with the file as it is then."""

    def read() -> HostPlan:
        plan = plan_host(settings_text(config_file), str(config_file), os.environ, override, count, port_step)
        return plan if registry is None else with_registry(plan, settings_text(registry), str(registry))

    try:
        plan = read()
        if check:
            _print(plan)
            return
        held = lock(plan)
    except (ConfigError, OSError, UnicodeError) as error:
        click.echo(f"fleetlog: {error}", err=True)
        sys.exit(EXIT_CONFIG)
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="[host] %(asctime)s %(levelname)s %(name)s %(message)s"
    )
    manager = service_manager(os.environ)
    unit: list[Unit] = []

    async def work() -> int:
        one = Unit(plan, broker_command(config_file, override, log_level), read, sys.stderr.buffer)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, one.stop)
        loop.add_signal_handler(signal.SIGHUP, one.roll)
        unit.append(one)
        return await one.run(manager)

    try:
        code = asyncio.run(work())
    except OSError as error:
        click.echo(f"fleetlog: cannot listen on {plan.admin[0]}:{plan.admin[1]}: {error}; see admin.listener", err=True)
        code = 1
    held.close()
    sys.exit(code)


def _print(plan: HostPlan) -> None:
    click.echo(f"pages of all: {plan.admin[0]}:{plan.admin[1]}")
    for broker in plan.brokers:
        click.echo(f"broker {broker.id}: " + " ".join(f"{name}={text}" for name, text in broker.overrides.items()))
    if plan.registry is not None:
        click.echo(f"registry: {'https' if plan.registry.tls else 'http'}://{address_text(*plan.registry.address)}")


def _running(config_file: Path, override: dict[str, str]) -> tuple[HostPlan, int]:
    """A plan of one broker, which has the unit's address and directory, and the unit's process. Raises CliError."""
    try:
        text = settings_text(config_file)
        plan = plan_host(text, str(config_file), os.environ, override, 1, check_directories=False)
    except (ConfigError, OSError, UnicodeError) as error:
        raise CliError(str(error)) from error
    process = running_unit(plan)
    if process is None:
        raise CliError(f"no `fleetlog host` runs on {plan.directory}")
    return plan, process


def _state(plan: HostPlan) -> dict[str, Any]:
    address = address_text(*local_address(*plan.admin))
    try:
        with urllib.request.urlopen(f"http://{address}/brokers", timeout=10) as answer:
            state: dict[str, Any] = json.load(answer)
            return state
    except (OSError, ValueError) as error:
        raise CliError(f"the unit does not answer at {plan.admin[0]}:{plan.admin[1]}: {error}") from error


@host.command("status")
@config_file_argument
@override_option
def unit_status(config_file: Path, override: dict[str, str]) -> None:
    """Print the brokers of the unit that runs with CONFIG_FILE."""
    plan, process = _running(config_file, override)
    state = _state(plan)
    click.echo(f"process {process}; last rolling restart: {state['last_rolling_restart']}")
    for row in state["brokers"]:
        said = str(row["said"]).replace("\n", "; ")
        click.echo(f"broker {row['id']}: process {row['process']}, {count_text(row['starts'], 'start')}, {said}")
    if row := state.get("registry"):
        click.echo(f"registry: process {row['process']}, {count_text(row['starts'], 'start')}, {row['said']}")


@host.command("restart")
@config_file_argument
@override_option
@click.option("--timeout", type=at_least(1), default=3600, show_default=True, help="Seconds to wait.")
def restart_unit(config_file: Path, override: dict[str, str], timeout: float) -> None:
    """Restart the brokers one at a time, and wait for the end.

    A broker stops when no partition falls below min.insync.replicas without it; the next one follows when it is back,
    and in sync with all its replicas. Restart one machine at a time.
    """
    plan, process = _running(config_file, override)
    before = _state(plan)
    if before["last_rolling_restart"] == "under way":
        raise CliError("a rolling restart is under way; see `fleetlog host status`")
    os.kill(process, signal.SIGHUP)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        time.sleep(0.5)
        state = _state(plan)
        said = str(state["last_rolling_restart"])
        if state["rolling_restarts"] > before["rolling_restarts"] and said != "under way":
            if said != "done":
                raise CliError(f"rolling restart {said}")
            click.echo(f"restarted {count_text(len(state['brokers']), 'broker')}")
            return
    raise CliError(f"the rolling restart goes on after {number_text(timeout)} s; see `fleetlog host status`")
