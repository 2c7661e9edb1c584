"""``fleetlog users``: users that log in by SCRAM.

The commands ask the brokers (KIP-554). With ``--zookeeper`` they work on ZooKeeper itself, for a fleet that has no
broker yet, whose first one needs a user of its own, or no user who could log in.
"""

from __future__ import annotations

import functools
import logging
import re
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from fleetlog.brokers.cli.client import Target, admin, client_options, raise_for_code
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.output import CliError, Output, confirm
from fleetlog.brokers.logins.principals import has_outer_blanks
from fleetlog.brokers.logins.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISM_OF_CODE,
    ScramMechanism,
    random_text,
    salted_password,
)
from fleetlog.brokers.logins.scram_users import Deletion, Upsertion, describe_users
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:  # with asyncio: what only --zookeeper needs is imported where it is used
    from fleetlog.coordination.connect import ConnectionSecurity
    from fleetlog.coordination.store import Store

MECHANISMS: Final = {mechanism.value: mechanism for mechanism in ScramMechanism}
_CONNECT_MS: Final = 10_000
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Value = TypeVar("_Value")


@click.group(cls=CommandGroup)
def users() -> None:
    """Users that log in by SCRAM: add, list, remove."""


class _Ensemble(NamedTuple):
    """Where ZooKeeper is, and how to connect."""

    connect: str
    security: ConnectionSecurity


def _options(function: _Function) -> _Function:
    """The commands get ``target``, ``ensemble`` if ZooKeeper is to be written instead, and ``out``."""

    @click.option(
        "--zookeeper", envvar="FLEETLOG_ZOOKEEPER", show_envvar=True, metavar="HOST:PORT[,...][/PATH]",
        help="The brokers' zookeeper.connect: write there, not at the brokers. For a fleet without a broker, or without"
        " a user that may alter others.",
    )  # fmt: skip
    @click.option(
        "--zk-tls-config-file", "tls_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Properties with the brokers' zookeeper.ssl.*, zookeeper.set.acl and zookeeper.digest.credentials;"
        " the brokers' own file will do.",
    )  # fmt: skip
    @client_options
    @functools.wraps(function)
    def wrapped(*args: Any, zookeeper: str | None, tls_file: Path | None, **kwargs: Any) -> Any:
        if zookeeper is None:
            if tls_file is not None:
                raise click.UsageError("--zk-tls-config-file is for --zookeeper, which is missing")
            return function(*args, **kwargs)
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        return function(*args, ensemble=_Ensemble(zookeeper, _connection_security(tls_file)), **kwargs)

    return wrapped  # type: ignore[return-value]


def _connection_security(file: Path | None) -> ConnectionSecurity:
    from fleetlog.coordination.connect import ConnectionSecurity

    if file is None:
        return ConnectionSecurity()
    from fleetlog.brokers.config import ConfigError, parse_properties  # loads the settings of brokers
    from fleetlog.brokers.tls.zookeeper import ZookeeperSettings

    try:
        parsed = parse_properties(file.read_text("utf-8"), str(file))
        return ZookeeperSettings.of({name: text for name, (text, _) in parsed.items()}).connection(time.time)
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
@_options
def add(
    *,
    name: str,
    names: tuple[str, ...],
    iterations: int,
    password_stdin: bool,
    target: Target,
    out: Output,
    ensemble: _Ensemble | None = None,
    password: str = "",
) -> None:
    """Add the user NAME, or give it another password; asks for the password."""
    if not password:  # the console's is asked for by itself
        password = sys.stdin.readline().rstrip("\r\n") if password_stdin else _asked()
    if not password or "\0" in password:
        raise CliError("the password must not be empty or contain NUL")
    new = upsertions(name, password, names or MECHANISMS, iterations)
    if ensemble is None:
        with _asked_brokers(target) as client:
            alter_users_at(client, [], new)
    else:
        _write(ensemble, [], new)
    out.done(f"user {name} can log in", {"user": name, "mechanisms": list(names or MECHANISMS)})


def upsertions(user: str, password: str, names: Iterable[str], iterations: int = ITERATIONS_MIN) -> list[Upsertion]:
    """What lets the user log in by the mechanisms of those names; each has a salt of its own."""
    new = []
    for mechanism in map(MECHANISMS.__getitem__, names):
        salt = random_text(secrets.randbits).encode()
        hashed = salted_password(mechanism, password, salt, iterations)
        new.append(Upsertion(user, mechanism.code, iterations, salt, hashed))
    return new


def users_at(client: Any, names: Sequence[str] | None = None) -> dict[str, dict[str, int]]:
    """The iterations of each mechanism of those users that exist, or of all, as the brokers tell. Raises CliError."""
    kind = messages.DescribeUserScramCredentialsRequest
    answer = client.ask_any(kind(users=None if names is None else [kind.UserName(name=name) for name in names]))
    raise_for_code("users", answer.error_code, answer.error_message)
    users = {}
    for result in answer.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        raise_for_code(f"user {result.user}", result.error_code, result.error_message)
        users[result.user] = _by_mechanism((one.mechanism, one.iterations) for one in result.credential_infos)
    return users


def alter_users_at(client: Any, deletions: Sequence[Deletion], new: Sequence[Upsertion]) -> None:
    """Have the brokers change users. Raises CliError."""
    kind = messages.AlterUserScramCredentialsRequest
    request = kind(
        deletions=[kind.ScramCredentialDeletion(name=one.user, mechanism=one.mechanism) for one in deletions],
        upsertions=[
            kind.ScramCredentialUpsertion(
                name=one.user, mechanism=one.mechanism, iterations=one.iterations, salt=one.salt,
                salted_password=one.salted_password,
            )
            for one in new
        ],
    )  # fmt: skip
    for result in client.ask_any(request).results:
        raise_for_code(f"user {result.user}", result.error_code, result.error_message)


def add_users(zookeeper: str, passwords: Mapping[str, str], security: ConnectionSecurity) -> None:
    """Let the users log in by all mechanisms, before a first broker runs. Raises CliError."""
    new = [one for user, password in passwords.items() for one in upsertions(user, password, MECHANISMS)]
    _write(_Ensemble(zookeeper, security), [], new)


def _write(ensemble: _Ensemble, deletions: Sequence[Deletion], new: Sequence[Upsertion]) -> None:
    from fleetlog.brokers.logins.users import write_users

    for user, result in _with_store(ensemble, lambda store: write_users(store, deletions, new)).items():
        if result.error is not ErrorCode.NONE:
            raise CliError(f"user {user}: {result.message}")


@contextmanager
def _asked_brokers(target: Target) -> Iterator[Any]:
    try:
        with admin(target) as client:
            yield client
    except CliError as error:
        if not error.message.startswith("no broker answers"):
            raise
        raise CliError(f"{error.message}; for the users of a fleet before its first broker: --zookeeper") from error


def _by_mechanism(credentials: Iterable[tuple[int, int]]) -> dict[str, int]:
    known = MECHANISM_OF_CODE
    return {known[code].value: iterations for code, iterations in credentials if code in known}


def _asked() -> str:
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))


@users.command("list")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@_options
def list_users(names: tuple[str, ...], target: Target, out: Output, ensemble: _Ensemble | None = None) -> None:
    """List the users, or those of them that exist, with their mechanisms and iterations."""
    if ensemble is None:
        with _asked_brokers(target) as client:
            by_user = users_at(client, list(dict.fromkeys(names)) or None)
    else:
        configs = _stored_users(ensemble, names or None)
        by_user = {user: _by_mechanism(one.credentials) for user, one in describe_users(configs, None).items()}
    rows = [(user, *one) for user in sorted(by_user) for one in by_user[user].items()]
    out.rows(["user", "mechanism", "iterations"], rows)


@users.command("remove")
@_user
@_mechanism
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_options
def remove(
    *, name: str, names: tuple[str, ...], yes: bool, target: Target, out: Output, ensemble: _Ensemble | None = None
) -> None:
    """Remove the credentials of the user NAME: its next login fails, and its connections end."""
    confirm(f"Remove the user {name}?", yes)

    def gone(known: Collection[str]) -> list[Deletion]:
        deletions = [Deletion(name, MECHANISMS[one].code) for one in names or MECHANISMS if one in known]
        if not deletions:
            raise CliError(f"user {name} has no such credential; see `fleetlog users list` (RESOURCE_NOT_FOUND)")
        return deletions

    if ensemble is None:
        with _asked_brokers(target) as client:
            alter_users_at(client, gone(users_at(client, [name]).get(name, {})), [])
    else:
        _write(ensemble, gone(_stored_users(ensemble, [name]).get(name, {})), [])
    out.done(f"user {name} cannot log in any more", {"user": name})


def _stored_users(zookeeper: _Ensemble, names: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
    from fleetlog.brokers.logins.users import read_users

    return _with_store(zookeeper, lambda store: read_users(store, names))


def _with_store(zookeeper: _Ensemble, work: Callable[[Store], Awaitable[_Value]]) -> _Value:
    import asyncio

    from fleetlog.brokers.metadata.znodes import BadZnode
    from fleetlog.coordination.store import StoreError
    from fleetlog.coordination.zookeeper import ZookeeperStore

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
