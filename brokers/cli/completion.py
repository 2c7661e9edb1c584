"""``fleetlog completion``: the shell completion script (click's own mechanism)."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_WHERE = {
    "bash": 'add to ~/.bashrc:  eval "$(fleetlog completion bash)"',
    "zsh": 'add to ~/.zshrc:  eval "$(fleetlog completion zsh)"',
    "fish": "fleetlog completion fish > ~/.config/fish/completions/fleetlog.fish",
}

_TAKEN = "COMPREPLY+=($value)\n"
_NO_SPACE = "            [[ $value == *= ]] && compopt -o nospace\n"
"""Of bash: behind a setting's name its value is typed."""


@click.command()
@click.argument("shell", type=click.Choice(sorted(_WHERE)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the shell completion script.

    \b
    bash: add to ~/.bashrc   eval "$(fleetlog completion bash)"
    zsh:  add to ~/.zshrc    eval "$(fleetlog completion zsh)"
    fish: fleetlog completion fish > ~/.config/fish/completions/fleetlog.fish
    """
    shell_class = get_completion_class(shell)
    assert shell_class is not None, "click knows these shells"
    complete = shell_class(ctx.find_root().command, {}, "fleetlog", "_FLEETLOG_COMPLETE")
    click.echo(f"# {_WHERE[shell]}")
    click.echo(complete.source().replace(_TAKEN, _TAKEN + _NO_SPACE))
