"""Options that several commands share, without the weight of a client."""

from __future__ import annotations

import click


def pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Callback of options that take NAME=VALUE several times."""
    found = {}
    for value in values:
        name, mark, rest = value.partition("=")
        if not mark or not name.strip():
            raise click.BadParameter(f"{value!r} must be NAME=VALUE")
        found[name.strip()] = rest
    return found
