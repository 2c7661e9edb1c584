"""``fleetlog users``: users that log in by SCRAM, kept in ZooKeeper.

The commands work on ZooKeeper itself, so they also work before a first broker runs, which needs a user of its own.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from brokers.cli.command_group import CommandGroup
from brokers.cli.output import CliError, Output, confirm
from brokers.config import ConfigError, parse_properties
from brokers.metadata.users import read_users, write_users
from brokers.metadata.znodes import BadZnode
from brokers.security.principals import has_outer_blanks
from brokers.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism, random_text, salted_password
from brokers.security.scram_users import Deletion, Upsertion, describe_users
from brokers.security.zookeeper_settings import ZookeeperSettings
from coordination.connect import ConnectionSecurity
from coordination.store import StoreError
from coordination.zookeeper import ZookeeperStore
from wire.errors import ErrorCode

MECHANISMS: Final = {mechanism.value: mechanism for mechanism in ScramMechanism}
_BY_CODE: Final = {mechanism.code: mechanism.value for mechanism in ScramMechanism}
_CONNECT_MS: Final = 10_000
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Value = TypeVar("_Value")


@click.group(cls=CommandGroup)
def users() -> None:
    """Users that log in by SCRAM: add, list, remove."""


def _zookeeper_options(function: _Function) -> _Function:
    @click.option(
        "--zookeeper", required=True, envvar="FLEETLOG_ZOOKEEPER", show_envvar=True, metavar="HOST:PORT[,...][/PATH]",
        help="The brokers' zookeeper.connect.",
    )  # fmt: skip
    @click.option(
        "--zk-tls-config-file", "tls_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Properties with the brokers' zookeeper.ssl.*, zookeeper.set.acl and zookeeper.digest.credentials;"
        " the brokers' own file will do.",
    )  # fmt: skip
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    @functools.wraps(function)
    def wrapped(*args: Any, zookeeper: str, tls_file: Path | None, as_json: bool, **kwargs: Any) -> Any:
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        ensemble = _Ensemble(zookeeper, _connection_security(tls_file))
        return function(*args, zookeeper=ensemble, out=Output(as_json), **kwargs)

    return wrapped  # type: ignore[return-value]


class _Ensemble(NamedTuple):
    """Where ZooKeeper is, and how to connect."""

    connect: str
    security: ConnectionSecurity


def _connection_security(file: Path | None) -> ConnectionSecurity:
    if file is None:
        return ConnectionSecurity()
    try:
        found = parse_properties(file.read_text("utf-8"), str(file))
        return ZookeeperSettings.of({name: text for name, (text, _) in found.items()}).connection(time.time)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--zk-tls-config-file") from None
    except (OSError, UnicodeDecodeError):
        raise click.BadParameter(f"{file} is not a text file in UTF-8", param_hint="--zk-tls-config-file") from None


def _name(_: click.Context, __: click.Parameter, value: str) -> str:
    if _NAME.fullmatch(value) is None:
        raise click.BadParameter("must have 1 to 200 characters, and no control characters")
    return value


def _new_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if has_outer_blanks(_name(context, parameter, value)):
        raise click.BadParameter(f"{value!r} begins or ends with a blank, and could not log in")
    return value


_mechanism = click.option(
    "--mechanism", "-m", "names", multiple=True, type=click.Choice(list(MECHANISMS)), help="Default: both."
)
_user = click.argument("name", callback=_name)


@users.command("add")
@click.argument("name", callback=_new_name)
@_mechanism
@click.option(
    "--iterations", type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX), default=ITERATIONS_MIN, show_default=True,
    help="Of the hash, at each login of the client.",
)  # fmt: skip
@click.option("--password-stdin", is_flag=True, help="Read the password from the first line of the standard input.")
@_zookeeper_options
def add(
    name: str, names: tuple[str, ...], iterations: int, password_stdin: bool, zookeeper: _Ensemble, out: Output
) -> None:  # fmt: skip
    """Add the user NAME, or give it another password; asks for the password."""
    password = sys.stdin.readline().rstrip("\r\n") if password_stdin else _asked()
    if not password or "\0" in password:
        raise CliError("the password must not be empty or contain NUL")
    add_users(zookeeper.connect, {name: password}, names, iterations, zookeeper.security)
    out.done(f"user {name} can log in", {"user": name, "mechanisms": list(names or MECHANISMS)})


def add_users(
    zookeeper: str,
    passwords: Mapping[str, str],
    names: Sequence[str] = (),
    iterations: int = ITERATIONS_MIN,
    security: ConnectionSecurity | None = None,
) -> None:
    """Let the users log in by the mechanisms of those names, by default by all. Raises CliError."""
    new = []
    for user, password in passwords.items():
        for mechanism in map(MECHANISMS.__getitem__, names or MECHANISMS):
            salt = random_text(secrets.randbits).encode()
            hashed = salted_password(mechanism, password, salt, iterations)
            new.append(Upsertion(user, mechanism.code, iterations, salt, hashed))
    ensemble = _Ensemble(zookeeper, security or ConnectionSecurity())
    for user, result in _with_store(ensemble, lambda store: write_users(store, [], new)).items():
        if result.error is not ErrorCode.NONE:
            raise CliError(f"user {user}: {result.message}")


def _asked() -> str:
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))


@users.command("list")
@_zookeeper_options
def list_users(zookeeper: _Ensemble, out: Output) -> None:
    """List the users, their mechanisms and iterations."""
    found = describe_users(_with_store(zookeeper, read_users), None)
    rows = [
        (user, _BY_CODE[code], iterations) for user in sorted(found) for code, iterations in found[user].credentials
    ]
    out.rows(["user", "mechanism", "iterations"], rows)


@users.command("remove")
@_user
@_mechanism
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_zookeeper_options
def remove(name: str, names: tuple[str, ...], yes: bool, zookeeper: _Ensemble, out: Output) -> None:
    """Remove the credentials of the user NAME: its next login fails, and its connections end."""
    confirm(f"Remove the user {name}?", yes)

    async def run(store: ZookeeperStore) -> str | None:
        config = (await read_users(store, [name])).get(name, {})
        gone = [Deletion(name, MECHANISMS[one].code) for one in names or MECHANISMS if one in config]
        if not gone:
            return f"user {name} has no such credential; see `fleetlog users list`"
        return (await write_users(store, gone, []))[name].message

    failed = _with_store(zookeeper, run)
    if failed is not None:
        raise CliError(failed)
    out.done(f"user {name} cannot log in any more", {"user": name})


def _with_store(zookeeper: _Ensemble, work: Callable[[ZookeeperStore], Awaitable[_Value]]) -> _Value:
    async def run() -> _Value:
        store = ZookeeperStore(zookeeper.connect, security=zookeeper.security)
        await store.start(_CONNECT_MS)
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except (StoreError, BadZnode, ValueError) as error:
        raise CliError(str(error)) from error
