"""A group of commands that says which command was perhaps meant."""

from __future__ import annotations

import click


class CommandGroup(click.Group):
    """As click's, but a command that is not there is answered with the one that looks like it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """By click."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            from brokers.setting_kinds import suggest  # most commands are spelled right

            ctx.fail(f"there is no command {name!r}{suggest(name, self.list_commands(ctx))}; -h lists them")
        return super().resolve_command(ctx, args)
