"""``fleetlog stamps``, a command that a test plants."""

from __future__ import annotations

import click


@click.command()
@click.argument("stamp", nargs=-1)
def stamps(stamp: tuple[str, ...]) -> None:
    """Count the stamps."""
    click.echo(len(stamp))
