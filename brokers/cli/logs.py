"""``fleetlog log``: commands that read the files of log directories; no broker is needed."""

from __future__ import annotations

import click

from fleetlog.brokers.cli.command_group import CommandGroup


@click.group(
    cls=CommandGroup,
    later={
        "dump": ("fleetlog.brokers.cli.logdump", "dump"),
        "strays": ("fleetlog.brokers.cli.logstrays", "log_strays"),
        "verify": ("fleetlog.brokers.cli.logverify", "verify_logs"),
    },
)
def log() -> None:
    """Read the files of log directories."""
