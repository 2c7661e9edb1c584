"""``fleetlog cluster config``: the settings of the fleet's brokers: get, set, diff."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import click
from kafka.admin import AlterConfigOp, ConfigResourceType
from kafka.protocol.admin import IncrementalAlterConfigsRequest

from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.client import Target, admin, client_options, complete_broker_settings, raise_for_code
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.options import BROKER_ID, pairs
from fleetlog.brokers.cli.output import CliError, Output, warn
from fleetlog.brokers.cli.overview import settings_told
from fleetlog.brokers.setting_kinds import HIDDEN, secret, suggest

DEFAULT: Final = 5
OF_A_LISTENER: Final = "listener.name."
SOURCES: Final = {2: "this broker, at run time", 3: "all brokers, at run time", 4: "properties", DEFAULT: "default"}
"""Kafka's ConfigSource, as far as settings of brokers have it."""
OF_ONE: Final = frozenset({
    "broker.id", "node.id", "broker.rack", "listeners", "advertised.listeners", "log.dir", "log.dirs", "admin.listener",
})  # fmt: skip
"""Settings that differ because brokers do."""
everything_option = click.option("--all", "everything", is_flag=True, help="Also settings that have their defaults.")
name_argument = click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=complete_broker_settings)


@click.group("config", cls=CommandGroup)
def cluster_config() -> None:
    """Settings of the brokers: get, set, diff."""


def settings_of_brokers(
    client: AdminClient, names: Collection[str], broker_id: int | None
) -> dict[str, dict[int, Any]]:
    """Rows of DescribeConfigs by setting and broker, of brokers that answer; none of them has a secret's value.

    Raises CliError for a name that no broker knows, and where no broker answers.
    """
    brokers = [one.node_id for one in client._manager.cluster.brokers()] if broker_id is None else [broker_id]
    told = settings_told(client, brokers, list(names) or None)
    silent = [b for b in brokers if b not in told]
    rows: dict[str, dict[int, Any]] = {}
    for b, result in told.items():
        raise_for_code(f"broker {b}", result.error_code, result.error_message)
        for one in result.configs:
            rows.setdefault(one.name, {})[b] = one
    if len(silent) == len(brokers):
        raise CliError(f"broker {silent[0]} does not answer; fleetlog cluster describe shows the brokers")
    if silent:
        warn(f"broker {', '.join(map(str, sorted(silent)))} does not answer, and is left out")
    for name in names:
        if name not in rows:
            from fleetlog.brokers.config import BROKER_SETTINGS

            raise CliError(f"no broker has a setting {name}{suggest(name, BROKER_SETTINGS)}")
    return rows


def shown_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Without secrets: what a command prints stays in logs of others."""
    return {name: HIDDEN if secret(name) else value for name, value in settings.items()}


def _listed(out: Output, rows: dict[str, dict[int, Any]]) -> None:
    """A line for each value that a setting has, and where."""
    lines = []
    for name, by_broker in sorted(rows.items()):
        alike: dict[tuple[str | None, str], list[int]] = {}
        for broker_id, one in sorted(by_broker.items()):
            value = HIDDEN if one.is_sensitive else one.value
            alike.setdefault((value, SOURCES.get(one.config_source, "")), []).append(broker_id)
        lines += [[name, *key, brokers] for key, brokers in alike.items()]
    out.rows(["setting", "value", "from", "brokers"], lines)


@cluster_config.command("get")
@name_argument
@click.option("--broker", "broker_id", type=BROKER_ID, help="Only of this broker.")
@everything_option
@client_options
def get_settings(target: Target, out: Output, names: tuple[str, ...], broker_id: int | None, everything: bool) -> None:
    """Show settings of the brokers and where they come from; without names those that are not at their defaults."""
    show_settings(target, out, names, broker_id, everything)


def show_settings(target: Target, out: Output, names: tuple[str, ...], broker_id: int | None, everything: bool) -> None:
    """Of one broker, or all: those named, or those that are not at their defaults, or everything. Raises CliError."""
    with admin(target) as client:
        rows = settings_of_brokers(client, names, broker_id)
    if not (names or everything):
        rows = {
            name: by_broker
            for name, by_broker in rows.items()
            if any(one.config_source != DEFAULT for one in by_broker.values())
        }
    _listed(out, rows)


@cluster_config.command("diff")
@name_argument
@click.option("--all", "everything", is_flag=True, help=f"Also {', '.join(sorted(OF_ONE))}.")
@client_options
def compare_settings(target: Target, out: Output, names: tuple[str, ...], everything: bool) -> None:
    """Show settings that brokers have differently. Exit code: 0 if there is none, 3 if there are some."""
    with admin(target) as client:
        rows = settings_of_brokers(client, names, None)
    rows = {
        name: by_broker
        for name, by_broker in rows.items()
        if len({(one.value, one.is_sensitive) for one in by_broker.values()}) > 1
        and (everything or names or name not in OF_ONE)
    }
    _listed(out, rows)
    if rows:
        click.get_current_context().exit(3)


def _refuse_unknown(client: AdminClient, names: Iterable[str]) -> None:
    """Brokers keep any name, as Kafka's do for plugins of theirs. Raises CliError for one that none of them has."""
    usual = [name for name in names if not name.startswith(OF_A_LISTENER)]
    if usual:
        settings_of_brokers(client, usual, None)


@cluster_config.command("set")
@click.argument(
    "settings", nargs=-1, callback=pairs, metavar="[NAME=VALUE...]", shell_complete=complete_broker_settings
)
@click.option("--unset", "-u", multiple=True, metavar="NAME", shell_complete=complete_broker_settings,
              help="Back to what the properties say, or the default.")  # fmt: skip
@click.option("--broker", "broker_id", type=BROKER_ID, help="Only for this broker.  [default: all]")
@click.option("--dry-run", is_flag=True, help="Only let the broker check the request.")
@client_options
def set_settings(
    *,
    target: Target,
    out: Output,
    settings: dict[str, str],
    unset: tuple[str, ...],
    broker_id: int | None,
    dry_run: bool,
) -> None:
    """Change settings of all brokers, or of one, while they run.

    \b
      fleetlog cluster config set log.retention.ms=86400000
      fleetlog cluster config set --broker 2 --unset log.retention.ms
    """
    if not settings and not unset:
        raise click.UsageError("nothing to change: give NAME=VALUE or --unset")
    changes: list[Any] = [(name, AlterConfigOp.SET.value, value) for name, value in settings.items()]
    changes += [(name, AlterConfigOp.DELETE.value, None) for name in unset]
    resource = ConfigResourceType.BROKER.value, "" if broker_id is None else str(broker_id), changes
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry_run)
    where = "all brokers" if broker_id is None else f"broker {broker_id}"
    with admin(target, where) as client:
        _refuse_unknown(client, settings)
        for row in client.ask_any(request).responses:
            raise_for_code(where, row.error_code, row.error_message)
        if broker_id is not None and all(row["broker_id"] != broker_id for row in client.describe_cluster()["brokers"]):
            warn(f"broker {broker_id} is not there: what it is told counts once it is")
    shown = shown_settings(settings)
    done = [f"{key}={value}" for key, value in shown.items()] + [f"no {key} of run time" for key in unset]
    verb = "would have" if dry_run else "have now" if broker_id is None else "has now"
    out.done(
        f"{where} {verb} {', '.join(done)}",
        {"broker": broker_id, "set": shown, "unset": list(unset), "dry_run": dry_run},
    )
