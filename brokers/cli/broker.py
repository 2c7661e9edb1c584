"""``fleetlog broker`` runs one broker; ``fleetlog config`` prints the tables its settings come from."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

from brokers.cli.options import pairs
from brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS, ConfigError, load_config

EXIT_CONFIG = 2
EXIT_START = 1


@click.command()
@click.argument("config_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--override", "-o", multiple=True, callback=pairs, metavar="NAME=VALUE", help="A setting, on top of CONFIG_FILE."
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@click.option("--check", is_flag=True, help="Only check the configuration.")
def broker(config_file: Path, override: dict[str, str], log_level: str, check: bool) -> None:
    """Run one broker with the properties of CONFIG_FILE, until SIGTERM or Ctrl-C.

    Every setting may also come from the environment: log.dirs is FLEETLOG_CONFIG_LOG_DIRS.
    """
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    try:
        config = load_config(config_file.read_text(), str(config_file), os.environ, override)
    except ConfigError as error:
        click.echo(f"fleetlog: {error}", err=True)
        sys.exit(EXIT_CONFIG)
    if check:
        click.echo("the configuration is fine")
        return
    from brokers.app import StartError, run

    try:
        run(config)
    except StartError as error:
        click.echo(f"fleetlog: broker {config.broker_id} cannot start: {error}", err=True)
        sys.exit(EXIT_START)


@click.command()
@click.argument("kind", type=click.Choice(["broker", "topic"]), default="broker")
def config(kind: str) -> None:
    """Print every setting of a broker (or topic): name, type, default, what it does."""
    table = BROKER_SETTINGS if kind == "broker" else TOPIC_SETTINGS
    for row in sorted(table.values()):
        default = row.format(row.default)
        note = "; live" if row.live else ""
        note += "; no effect" if row.inert else ""
        click.echo(f"{row.name} = {default if default is not None else ''}  ({row.allowed()}{note})\n    {row.doc}")
