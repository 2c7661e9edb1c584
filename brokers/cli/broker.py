"""``fleetlog broker`` runs one broker; ``fleetlog config`` prints the tables of its settings."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from fleetlog.brokers.cli.log_lines import start_logging
from fleetlog.brokers.cli.options import config_file_argument, log_level_option, override_option, settings_text
from fleetlog.brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS, ConfigError, Setting, load_config

logger = logging.getLogger(__name__)

EXIT_CONFIG = 2
EXIT_START = 1


@click.command()
@config_file_argument
@override_option
@log_level_option
@click.option("--check", is_flag=True, help="Only check what a start needs; change nothing.")
@click.option(
    "--new-directory", metavar="PATH", help="Only make this empty entry of log.dirs usable, in place of a lost disk."
)
def broker(config_file: Path, override: dict[str, str], log_level: str, check: bool, new_directory: str | None) -> None:
    """Run one broker with the properties of CONFIG_FILE, until SIGTERM or Ctrl-C.

    Every setting may also come from the environment: log.dirs is FLEETLOG_CONFIG_LOG_DIRS.
    """
    try:
        config = load_config(settings_text(config_file), str(config_file), os.environ, override)
    except (ConfigError, UnicodeError) as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"{config_file}: {error.strerror}")
    start_logging(config.log_format, config.broker_id, log_level)
    from fleetlog.brokers import app
    from fleetlog.brokers.app import StartError

    try:
        if check:
            app.check_start(config)
            click.echo("the configuration is fine")
        elif new_directory is not None:
            app.accept_directory(config, new_directory)
            click.echo(f"the next start of broker {config.broker_id} uses {new_directory} as an empty log directory")
        else:
            app.run(config)
    except StartError as error:
        if config.log_format == "json":
            logger.critical("broker %d cannot start: %s", config.broker_id, error)
        else:
            click.echo(f"fleetlog: broker {config.broker_id} cannot start: {error}", err=True)
        sys.exit(EXIT_START)


def _refuse(text: str) -> NoReturn:
    click.echo(f"fleetlog: {text}", err=True)
    sys.exit(EXIT_CONFIG)


@click.command()
@click.argument("kind", type=click.Choice(["broker", "topic"]), default="broker")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def config(kind: str, as_json: bool) -> None:
    """Print every setting of a broker (or topic): name, type, default, meaning."""
    table = BROKER_SETTINGS if kind == "broker" else TOPIC_SETTINGS
    if as_json:
        click.echo(json.dumps([_as_value(row) for row in sorted(table.values())], indent=2))
        return
    for row in sorted(table.values()):
        default = row.format(row.default)
        note = "; live" if row.live else ""
        note += "; no effect" if row.inert else ""
        click.echo(f"{row.name} = {default if default is not None else ''}  ({row.allowed()}{note})\n    {row.doc}")


def _as_value(row: Setting) -> dict[str, Any]:
    return {
        "name": row.name,
        "type": row.type.name.lower(),
        "default": row.format(row.default),
        "allowed": row.allowed(),
        "low": row.low,
        "high": row.high,
        "choices": list(row.choices),
        "live": row.live,
        "no_effect": row.inert,
        "broker_setting": row.synonym or None,
        "doc": row.doc,
    }
