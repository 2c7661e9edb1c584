"""Groups: of commands, which says which command was perhaps meant, and of options."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])


def together(*options: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    """One decorator of several, whose options stand in this order."""

    def add(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


class CommandGroup(click.Group):
    """As click's, but a command that is not there is answered with the one that looks like it.

    ``later`` are commands by name, as (module, attribute): each is imported when it is asked for.
    """

    def __init__(self, *given: Any, later: Mapping[str, tuple[str, str]] | None = None, **named: Any) -> None:
        super().__init__(*given, **named)
        self._later = dict(later or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """By click."""
        return sorted({*super().list_commands(ctx), *self._later})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """By click."""
        if cmd_name not in self._later:
            return super().get_command(ctx, cmd_name)
        module, attribute = self._later[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """By click."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            from fleetlog.brokers.setting_kinds import suggest  # most commands are spelled right

            ctx.fail(f"there is no command {name!r}{suggest(name, self.list_commands(ctx))}; -h lists them")
        return super().resolve_command(ctx, args)
