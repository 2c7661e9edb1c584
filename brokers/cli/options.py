"""Options that several commands share, without importing a client."""

from __future__ import annotations

import importlib.util
import ipaddress
import math
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from fleetlog import how_to_install
from fleetlog.brokers.cli.command_group import together
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.properties import parse_properties
from fleetlog.brokers.setting_kinds import ConfigError, suggest


class _Number(click.FloatRange):
    """Refuses what is no number: every comparison with it is false."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} must be a number", param, ctx)
        return number


class _BrokerId(click.IntRange):
    name = "broker id"


BROKER_ID = _BrokerId(0, 2**31 - 1)
PARTITION_COUNT = click.IntRange(1, 2**31 - 1)
REPLICA_COUNT = click.IntRange(1, 2**15 - 1)
EXPRESSION_BYTES = 1 << 20
"""What a compiled regular expression may take."""
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(i?)b?(?:/s)?", re.IGNORECASE)


def pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Callback of options that take NAME=VALUE several times."""
    by_name = {}
    for value in values:
        name, mark, rest = value.partition("=")
        if not mark or not name.strip():
            raise click.BadParameter(f"{value!r} must be NAME=VALUE")
        by_name[name.strip()] = rest
    return by_name


def rate(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Callback of options that take bytes per second: 5000000, 5M, 5MB/s, 4.5MiB."""
    if value is None:
        return None
    match = _RATE.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a rate like 5000000, 5M or 4.5MiB")
    number, unit, binary = match.groups()
    base = 1024 if binary else 1000
    speed = round(float(number) * {"": 1, "k": base, "m": base * base, "g": base * base * base}[unit.lower()])
    if speed < 1:
        raise click.BadParameter("the rate must be at least one byte per second")
    return speed


def numbers(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Callback of options that take a list like 1,2,3, each number once."""
    if value is None:
        return None
    items = [item.strip() for item in value.split(",")]
    if not all(item.isdecimal() for item in items) or len(set(items)) < len(items):
        raise click.BadParameter(f"{value!r} must be a list like 1,2,3, each broker once")
    return tuple(int(item) for item in items)


def regular_expression(text: str) -> Any:
    """RE2's, in bounded memory: it takes linear time. Raises ValueError."""
    import re2  # which few commands need

    options = re2.Options()
    options.log_errors = False
    options.max_mem = EXPRESSION_BYTES
    try:
        return re2.compile(text, options)
    except re2.error as problem:
        raise ValueError(
            f"{text[:100]!r} is no expression of RE2: {problem.args[0].decode(errors='replace')}"
        ) from None
    finally:
        re2.purge()  # the library keeps 128 of them for the next who has the same expression


def at_least(least: float, most: float | None = None) -> click.FloatRange:
    """The type of options that take a number, and no infinity."""
    return _Number(least, most)


def settings_text(path: Path) -> str:
    """The text of a properties file. Raises OSError, and UnicodeError that names the file."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UnicodeError(f"{path}: not a text file in UTF-8 (byte {error.start})") from None


def need_packages(who: str, names: Iterable[str], extra: str) -> None:
    """Raise CliError where some of these are not installed: ``who needs them``, and the extra that has them."""
    missing = [name for name in names if not _is_installed(name)]
    if missing:
        raise CliError(f"{who} {', '.join(missing)}: {how_to_install(extra)}")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def listen_address(host: str) -> Any:
    """The address of --listen. Raises click.BadParameter."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError:
        raise click.BadParameter(f"{host!r} is not an IP address", param_hint="--listen") from None


def host_of(authority: str) -> str:
    """The host in ``host:port``, in lower case and without brackets; empty if it is malformed."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").lower()
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether a host, without brackets and in lower case, is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ServiceCommand(click.Command):
    """A command that runs as a service: each line of the file of ``--config``, ``listen=0.0.0.0``, is an option of it.

    Those of the command line stand above the file's.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        kind = click.Path(exists=True, dir_okay=False, path_type=Path)
        text = "Options of this command, NAME=VALUE in a line each, without --; for services."
        self.params.append(click.Option(["--config"], type=kind, metavar="FILE", expose_value=False, help=text))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """By click. Raises click.UsageError."""
        files = [following for word, following in pairwise([*args, ""]) if word == "--config"]
        files += [word.removeprefix("--config=") for word in args if word.startswith("--config=")]
        for file in files:
            args = [*self._options_of(Path(file)), *args] if Path(file).is_file() else args
        return super().parse_args(ctx, args)

    def _options_of(self, file: Path) -> list[str]:
        options = {name[2:]: one for one in self.params for name in one.opts if name.startswith("--")}
        del options["config"]
        words = []
        try:
            for name, (value, where) in parse_properties(settings_text(file), str(file)).items():
                option = options.get(name)
                if not isinstance(option, click.Option):
                    raise ConfigError(name, "", f"is no option of {self.name}{suggest(name, options)}", where)
                if option.is_flag and value not in {"true", "false"}:
                    raise ConfigError(name, value, "must be true or false", where)
                values = [one.strip() for one in value.split(",")] if option.multiple else [value]
                words += [f"--{name}"] * (value == "true") if option.is_flag else [f"--{name}={one}" for one in values]
        except (ConfigError, OSError, UnicodeError) as error:
            raise click.UsageError(str(error)) from None
        return words


partition_option = click.option(
    "--partition", "-p", type=click.IntRange(0, 2**31 - 1), help="Write to this partition instead of the key's."
)
config_file_argument = click.argument("config_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
"""The properties file of what runs brokers."""
override_option = click.option(
    "--override",
    "-o",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="A setting that overrides CONFIG_FILE.",
)
log_level_option = click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
move_options = together(
    click.option(
        "--throttle", callback=rate, metavar="BYTES/S",
        help="Bytes per second that each broker may copy, such as 20MB; at a rate below the producers' a move never "
        "ends.",
    ),
    click.option(
        "--at-once", type=click.IntRange(min=1), default=50, show_default=True, help="Partitions that move at a time."
    ),
    yes_option,
)  # fmt: skip
"""How replicas are moved, as ``reassign.execute`` takes it."""
