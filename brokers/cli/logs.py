"""``fleetlog log``: commands that read the files of log directories; no broker is needed."""

from __future__ import annotations

import click

from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.logdump import dump
from fleetlog.brokers.cli.logstrays import log_strays
from fleetlog.brokers.cli.logverify import verify_logs


@click.group(cls=CommandGroup)
def log() -> None:
    """Read the files of log directories."""


log.add_command(dump)
log.add_command(verify_logs)
log.add_command(log_strays)
