"""``fleetlog profile``: fleets by name: create, use, list, show, edit, delete."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from fleetlog.brokers.cli.client import DEFAULT_BOOTSTRAP, complete_profiles, parse_bootstrap
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.output import CliError, Output
from fleetlog.brokers.cli.profiles import (
    Profile,
    Profiles,
    parse_profile,
    profiles_file,
    read_profiles,
    write_profiles,
)
from fleetlog.brokers.setting_kinds import HIDDEN, ConfigError, secret

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
name_argument = click.argument("name", shell_complete=complete_profiles)


@click.group(cls=CommandGroup)
def profile() -> None:
    """Fleets by name: create, use, list, show, edit, delete."""


@profile.command("create")
@click.argument("name")
@click.option("--bootstrap", "-b", default=DEFAULT_BOOTSTRAP, show_default=True, metavar="HOST:PORT[,...]",
              help="Brokers to connect to first.")  # fmt: skip
@click.option("--command-config", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Properties whose contents the profile keeps: security.protocol, sasl.*, ssl.*.")  # fmt: skip
@click.option("--console", default="", metavar="URL", help="Where the fleet's console is.")
@click.option("--registry", default="", metavar="URL", help="Where the fleet's schema registry is.")
@click.option("--use", "used", is_flag=True, help="Use it from now on.")
@json_option
def create_profile(*, name: str, file: Path | None, used: bool, as_json: bool, **addresses: str) -> None:
    """Make a profile.

    \b
      fleetlog profile create prod -b broker-1:9092,broker-2:9092 --command-config prod.properties --use
    """
    profiles = read_profiles()
    if name in profiles.by_name:
        raise CliError(f"there is a profile {name!r}; `fleetlog profile edit {name}` changes it")
    if not name or not name.isprintable() or name.startswith("-"):
        raise click.BadParameter("a name is not empty, has no control characters, and does not begin with -")
    security: dict[str, str] = {}
    if file is not None:
        from fleetlog.brokers.cli.command_config import read_command_config

        security = read_command_config(file)
    made = Profile(security=security, **addresses)
    _check_addresses(made)
    profiles.by_name[name] = made
    profiles.in_use = name if used else profiles.in_use
    write_profiles(profiles)
    Output(as_json).done(f"profile {name} is in {profiles_file()}", {"profile": name, "in_use": used})


def _check_addresses(one: Profile) -> None:
    """Raises click.BadParameter for what is no address."""
    parse_bootstrap(one.bootstrap)
    for option, url in (("--console", one.console), ("--registry", one.registry)):
        try:
            parts = urlsplit(url)
            is_one = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number, half of an IPv6 address
            is_one = False
        if url and not is_one:
            raise click.BadParameter(f"{url!r} is not like http://host:8081", param_hint=option)


@profile.command("use")
@name_argument
@json_option
def use_profile(name: str, as_json: bool) -> None:
    """Use a profile where nothing else says which fleet is meant."""
    profiles = read_profiles()
    profiles.named(name)
    profiles.in_use = name
    write_profiles(profiles)
    Output(as_json).done(f"profile {name} is in use", {"profile": name, "in_use": True})


@profile.command("list")
@json_option
def list_profiles(as_json: bool) -> None:
    """List profiles."""
    profiles = read_profiles()
    rows = [
        [name, one.bootstrap, one.security.get("security.protocol", "PLAINTEXT"), name == profiles.in_use]
        for name, one in sorted(profiles.by_name.items())
    ]
    if not as_json:
        rows = [[*row[:3], "yes" if row[3] else ""] for row in rows]
    Output(as_json).rows(["profile", "bootstrap", "protocol", "in use"], rows)


@profile.command("show")
@click.argument("name", required=False, shell_complete=complete_profiles)
def show_profile(name: str | None) -> None:
    """Show a profile, or the one in use, as JSON without its secrets."""
    name, _, one = _chosen(name)
    shown: dict[str, Any] = {"profile": name, **asdict(one)}
    shown["security"] = {key: HIDDEN if secret(key) or secret(value) else value for key, value in one.security.items()}
    Output(as_json=True).value(shown)


def _chosen(name: str | None) -> tuple[str, Profiles, Profile]:
    profiles = read_profiles()
    if not (name or profiles.in_use):
        raise CliError("no profile is in use: name one, or see `fleetlog profile list`")
    name = name or profiles.in_use
    return name, profiles, profiles.named(name)


@profile.command("edit")
@click.argument("name", required=False, shell_complete=complete_profiles)
def edit_profile(name: str | None) -> None:
    """Change a profile, or the one in use, as JSON in the editor of $VISUAL or $EDITOR."""
    name, profiles, one = _chosen(name)
    text = click.edit(json.dumps(asdict(one), indent=2) + "\n", extension=".json")
    if text is None:
        raise CliError("nothing was saved, so nothing was changed")
    from fleetlog.brokers.cli.command_config import client_security

    try:
        changed = parse_profile(json.loads(text))
        _check_addresses(changed)
        client_security(changed.security)
    except (ValueError, ConfigError, click.BadParameter) as error:
        raise CliError(f"nothing was changed: {error}") from None
    profiles.by_name[name] = changed
    write_profiles(profiles)
    click.echo(f"profile {name} is changed")


@profile.command("delete")
@name_argument
@json_option
def delete_profile(name: str, as_json: bool) -> None:
    """Forget a profile."""
    profiles = read_profiles()
    profiles.named(name)
    del profiles.by_name[name]
    profiles.in_use = "" if profiles.in_use == name else profiles.in_use
    write_profiles(profiles)
    Output(as_json).done(f"profile {name} is deleted", {"profile": name, "deleted": True})
