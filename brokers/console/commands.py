"""Runs ``fleetlog``'s own commands with a user's login: what a page does is by construction what the command does.

Values from forms are arguments only: options are written as ``--name=value``, and names stand behind ``--``. The
address and the login are those of the session, whatever the arguments say.
"""

from __future__ import annotations

import contextlib
import inspect
import shlex
from collections.abc import Iterable
from typing import Any, NamedTuple

import click

from fleetlog.brokers.cli.client import DEFAULT_BOOTSTRAP, Target
from fleetlog.brokers.cli.main import cli
from fleetlog.brokers.cli.output import Output

_CONNECTION = ("bootstrap", "profile", "timeout", "command_config", "as_json", "zookeeper", "tls_file", "registry")
_SCHEMAS = ("--schema=", "--key-schema=")


class _Collected(Output):
    """Keeps what a command puts out."""

    def __init__(self) -> None:
        super().__init__(as_json=True)
        self.found: Any = None
        self.text = ""

    def value(self, value: Any) -> None:
        self.found = value

    def done(self, text: str, value: Any) -> None:
        self.text, self.found = text, value


def _takes_target(function: Any) -> bool:
    """Whether that is the command, or what asks a registry for it: only the options of clients are above it."""
    return "target" in inspect.signature(function, follow_wrapped=False).parameters


class CommandLine(NamedTuple):
    """One command: subject and verb (``config set`` below ``cluster``), options, and what stands behind ``--``."""

    subject: str
    verb: str
    options: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def also(self, *options: str) -> CommandLine:
        """The same with more options."""
        return self._replace(options=self.options + options)

    def shown(self, target: Target) -> str:
        """As one types it."""
        where: tuple[str, ...] = () if target.bootstrap == DEFAULT_BOOTSTRAP else (f"--bootstrap={target.bootstrap}",)
        if target.registry and (self.subject == "schemas" or any(one.startswith(_SCHEMAS) for one in self.options)):
            where += (f"--registry={target.registry}",)
        words: Iterable[str] = ("fleetlog", self.subject, *self.verb.split(), *where, *self.options)
        return shlex.join([*words, *(("--", *self.names) if self.names else ())])

    def check(self) -> None:
        """Raise click.UsageError where the command would refuse its arguments; nothing is asked of the fleet."""
        command = self.command()
        with self._parsed(command):
            pass

    def run(self, target: Target, **unseen: Any) -> tuple[Any, str]:
        """Its JSON, and its text where it has one; ``unseen`` is what it would ask for. Raises CliError, UsageError."""
        command = self.command()
        assert command.callback is not None, self.verb
        with self._parsed(command) as context:
            given = {name: value for name, value in context.params.items() if name not in _CONNECTION}
            out = _Collected()
            with contextlib.suppress(click.exceptions.Exit):  # a verdict, which its answer says, too
                inspect.unwrap(command.callback, stop=_takes_target)(target=target, out=out, **given, **unseen)
        return out.found, out.text

    def command(self) -> click.Command:
        """As click has it."""
        command = cli.get_command(click.Context(cli), self.subject)
        for word in self.verb.split():
            assert isinstance(command, click.Group), self.subject
            command = command.get_command(click.Context(command), word)
        assert command is not None, self.verb
        return command

    def _parsed(self, command: click.Command) -> click.Context:
        return command.make_context(self.verb, [*self.options, *(("--", *self.names) if self.names else ())])


def choices(subject: str, verb: str, parameter: str) -> tuple[str, ...]:
    """What an option of a command may be."""
    (option,) = [one for one in CommandLine(subject, verb).command().params if one.name == parameter]
    assert isinstance(option.type, click.Choice), parameter
    return tuple(option.type.choices)


def listed(target: Target, subject: str, verb: str = "list", *options: str, names: tuple[str, ...] = ()) -> Any:
    """The JSON of a command that only reads."""
    return CommandLine(subject, verb, options, names).run(target)[0]
