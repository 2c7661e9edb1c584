"""``fleetlog console``: the command. It fails closed: on other addresses than loopback only with login and TLS."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from fleetlog.brokers.addresses import address_text
from fleetlog.brokers.cli.client import Target, client_options, complete_profiles
from fleetlog.brokers.cli.command_config import JAAS, MECHANISM, PROTOCOL, REGISTRY_USER, read_command_config
from fleetlog.brokers.cli.options import is_loopback, listen_address, need_packages
from fleetlog.brokers.cli.output import CliError, Output, warn
from fleetlog.brokers.cli.profiles import read_profiles
from fleetlog.brokers.cli.schema_values import SchemaRegistry
from fleetlog.brokers.console.masking import Masks, read_masks
from fleetlog.brokers.console.oidc import IssuerError, IssuerOptions, OidcLogin
from fleetlog.brokers.logins.mechanism_names import MECHANISMS
from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER
from fleetlog.brokers.properties import parse_properties
from fleetlog.brokers.setting_kinds import ConfigError

if TYPE_CHECKING:
    from fleetlog.brokers.console.web import FleetLink

DEFAULT_PORT: Final = 9696
NEEDED: Final = ("starlette", "jinja2", "uvicorn")
STOP_S: Final = 3


class TlsFiles(NamedTuple):
    """How those that ask reach a server by TLS."""

    pair: tuple[str, str] | None
    """Its certificate and key."""
    behind_proxy: bool

    @property
    def there(self) -> bool:
        """Whether there is TLS, its own or a proxy's."""
        return self.pair is not None or self.behind_proxy


def tls_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of TLS, which the function gets as ``tls``. Raises UsageError where they don't go together."""

    @click.option(
        "--tls-certificate", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
        help="The server's own certificate, in PEM.",
    )  # fmt: skip
    @click.option(
        "--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE", help="Its key."
    )
    @click.option("--behind-tls-proxy", is_flag=True, help="A proxy in front of the server has TLS.")
    @wraps(function)
    def wrapped(
        *given: Any, tls_certificate: Path | None, tls_key: Path | None, behind_tls_proxy: bool, **named: Any
    ) -> Any:
        if (tls_certificate is None) != (tls_key is None):
            raise click.UsageError("--tls-certificate and --tls-key go together")
        if tls_certificate is not None and behind_tls_proxy:
            raise click.UsageError("--behind-tls-proxy is for a server without --tls-certificate")
        pair = None if tls_certificate is None else (str(tls_certificate), str(tls_key))
        return function(*given, tls=TlsFiles(pair, behind_tls_proxy), **named)

    return wrapped


def _root(_context: click.Context, _option: click.Parameter, value: str) -> str:
    path = value.rstrip("/")
    if path and re.fullmatch("(/[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,60}){1,5}", path) is None:
        raise click.BadParameter("it is /NAME or /NAME/NAME, of letters, digits, '.', '_', '~' and '-'")
    return path


@click.command()
@click.option("--listen", "host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", "-p", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: any.")
@click.option(
    "--login", type=click.Choice(list(MECHANISMS)),
    help="Users log in with their user and password of the fleet, by this mechanism, and see what its ACLs let them. "
    "OAUTHBEARER: they log in at the issuer of --oidc-issuer.",
)  # fmt: skip
@click.option("--oidc-issuer", metavar="URL", help="The issuer whose tokens the brokers accept.")
@click.option("--oidc-client-id", metavar="ID", help="By which the issuer knows the console.")
@click.option(
    "--oidc-client-secret-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="A file with the console's secret at the issuer; without it the console is a public client.",
)  # fmt: skip
@click.option("--oidc-scope", default="openid", show_default=True, help="What is asked for, divided by spaces.")
@tls_options
@click.option(
    "--host-name", "names", multiple=True, metavar="NAME",
    help="A name by which browsers know the console, besides its address; may be repeated.",
)  # fmt: skip
@click.option(
    "--path", "root", default="", metavar="/PATH", callback=_root,
    help="Show the console below this path, as a proxy leads to it, which must leave the path as it is.",
)  # fmt: skip
@click.option(
    "--schema-registry", "registry_url", metavar="URL",
    help="A schema registry: values that carry the id of one of its schemas are shown by it.",
)  # fmt: skip
@click.option(
    "--schema-registry-config", "registry_config", metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Properties by which the console logs in there: basic.auth.user.info=USER:PASSWORD.",
)  # fmt: skip
@click.option(
    "--schema-registry-as-user", "registry_as_user", is_flag=True,
    help="With --login: pages of schemas, which ask the registry with each user's own login. It gets their passwords.",
)  # fmt: skip
@click.option(
    "--mask", "mask_file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Fields of records that no page shows, and no filter looks at: a pattern of topics and a path in a line each.",
)  # fmt: skip
@click.option(
    "--figures-config", "figures_configs", multiple=True, metavar="[NAME=]FILE",
    help="Properties of the login by which the console collects the figures of its charts, as --command-config has "
    "them; with the NAME of --fleet, of that fleet. Needed with --login; else --command-config is that login.",
)  # fmt: skip
@click.option(
    "--figures-dir", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
    help="Where the figures are kept.  [default: ~/.local/state/fleetlog/console]",
)  # fmt: skip
@click.option(
    "--fleet", "fleet_names", multiple=True, metavar="NAME", shell_complete=complete_profiles,
    help="Show the fleet of this profile, too, at /fleets/NAME/; may be repeated. With --login, users log in at each.",
)  # fmt: skip
@client_options
def console(
    *,
    target: Target,
    out: Output,
    host: str,
    port: int,
    login: str | None,
    tls: TlsFiles,
    names: tuple[str, ...],
    root: str,
    registry_url: str | None,
    registry_config: Path | None,
    registry_as_user: bool,
    mask_file: Path | None,
    figures_configs: tuple[str, ...],
    figures_dir: Path | None,
    fleet_names: tuple[str, ...],
    **oidc: Any,
) -> None:
    """Show the fleet in a browser, until Ctrl-C.

    Without --login any browser that reaches the address has the rights of --command-config: so it is on loopback only.
    """
    address = listen_address(host)
    _check(target, address, login, tls, names)
    if registry_as_user and login is None:
        raise click.UsageError("--schema-registry-as-user goes with --login")
    others = _others(fleet_names, target, login, registry_as_user)
    files = _figures_files(figures_configs, others)
    need_packages("the console needs", NEEDED, "console")
    from fleetlog.brokers.console.memory import settle
    from fleetlog.brokers.console.serving import serve
    from fleetlog.brokers.console.web import FLEETS, ConsoleSettings, create_console

    url, masks = registry_url or target.registry, _masks(mask_file)
    registry, user = _registry(url or None, registry_config)
    if registry is not None:  # the commands that it runs ask the same, as the console: no user's password goes there
        rest = {name: value for name, value in target.properties.items() if name != REGISTRY_USER}
        own = {} if registry_as_user else {REGISTRY_USER: user}
        target = replace(target, registry=url, properties={**rest, **own})
    issuer = _issuer(login, **oidc)
    hosts = {str(address), *(("localhost",) if address.is_loopback else ()), *(name.lower() for name in names)}

    def ready(at: int) -> None:
        url = f"{'https' if tls.pair is not None else 'http'}://{address_text(str(address), at)}{root}/"
        out.done(f"console of {target.bootstrap} at {url} (Ctrl-C ends it)", {"url": url})

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = ConsoleSettings(
        target, frozenset(hosts), login, tls.there, registry, issuer, masks, _figures(target, login, files.get("")),
        figures_dir, _links(target, "", others, root), root, root, registry_as_user,
    )  # fmt: skip
    below = [
        replace(
            settings, target=other,
            registry=_own_registry(name, other),
            figures=_figures(other, login, files.get(name)), fleets=_links(target, name, others, root),
            below=f"{root}{FLEETS}/{name}",
        )
        for name, other in others.items()
    ]  # fmt: skip
    app = create_console(settings, below)
    settle()
    serve(
        app=app,
        host=str(address),
        port=port,
        certificate=tls.pair,
        stop_s=STOP_S,
        ready=ready,
    )


def _figures(target: Target, login: str | None, file: Path | None) -> Target | None:
    """How the console collects figures; None where it has no login of its own. Raises CliError."""
    if file is not None:
        return replace(target, properties=read_command_config(file))
    return target if login is None else None


def _others(names: tuple[str, ...], target: Target, login: str | None, as_user: bool) -> dict[str, Target]:
    """The fleets of the profiles named, which the console shows, too. Raises CliError, click.UsageError."""
    others = {}
    for name in dict.fromkeys(names):
        if re.fullmatch("[A-Za-z0-9._-]{1,60}", name) is None or not name.strip("."):
            raise click.UsageError(
                f"--fleet {name!r}: its pages' path needs a name of letters, digits, '.', '_' and '-'"
            )
        profile = read_profiles().named(name)
        if login is not None and not profile.security.get(PROTOCOL, "").startswith("SASL_"):
            raise click.UsageError(
                f"--login needs brokers that know users, and profile {name} has no {PROTOCOL}=SASL_SSL"
            )
        own = {name: value for name, value in profile.security.items() if name != REGISTRY_USER}
        if profile.registry and not as_user:  # never a user's login
            own[REGISTRY_USER] = profile.security.get(REGISTRY_USER, "")
        others[name] = Target(profile.bootstrap, target.timeout_s, own, profile.registry)
    return others


def _own_registry(name: str, target: Target) -> SchemaRegistry | None:
    """The registry of a profile, with the profile's login there. Raises CliError."""
    if not target.registry:
        return None
    try:
        return SchemaRegistry(target.registry, read_profiles().named(name).security.get(REGISTRY_USER, ""))
    except ValueError as error:
        raise CliError(f"profile {name}: {error}") from None


def _figures_files(values: tuple[str, ...], others: Mapping[str, Target]) -> dict[str, Path]:
    """The files of --figures-config by the fleet's name, that of the one at the root empty. Raises click.UsageError."""
    files = {}
    for value in values:
        name, equals, rest = value.partition("=")
        name, path = (name, rest) if equals and name in others else ("", value)
        if not Path(path).is_file():
            raise click.BadParameter(f"there is no file {path}", param_hint="--figures-config")
        files[name] = Path(path)
    return files


def _links(target: Target, here: str, others: Mapping[str, Target], below: str) -> tuple[FleetLink, ...]:
    """The fleets that the header leads to from the one named ``here``: those of this console, and those of which the
    user's profiles name another one. The file of profiles is the user's own."""
    from fleetlog.brokers.console.web import FLEETS, FleetLink

    try:
        profiles = read_profiles().by_name
    except CliError as error:
        warn(f"other fleets are not shown: {error.format_message()}")
        return ()
    root = next((name for name, one in sorted(profiles.items()) if one.bootstrap == target.bootstrap), target.bootstrap)
    links = [FleetLink(name, f"{below}{FLEETS}/{name}/", name == here) for name in others]
    elsewhere = [
        FleetLink(name, one.console, False)
        for name, one in profiles.items()
        if one.console.startswith(("http://", "https://")) and name not in others and name != root
    ]
    if not links and not elsewhere:
        return ()
    return (FleetLink(root, f"{below}/", not here), *sorted((*links, *elsewhere)))


def _issuer(
    login: str | None,
    oidc_issuer: str | None,
    oidc_client_id: str | None,
    oidc_client_secret_file: Path | None,
    oidc_scope: str,
) -> OidcLogin | None:
    """The issuer of the options. Raises click.UsageError, and CliError where it cannot be used."""
    if login != OAUTHBEARER:
        if oidc_issuer or oidc_client_id or oidc_client_secret_file:
            raise click.UsageError("--oidc-issuer and the others go with --login OAUTHBEARER")
        return None
    if not oidc_issuer or not oidc_client_id:
        raise click.UsageError("--login OAUTHBEARER needs --oidc-issuer URL and --oidc-client-id ID")
    secret = ""
    if oidc_client_secret_file is not None:
        try:
            secret = oidc_client_secret_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            secret = ""
        if not secret:
            raise click.BadParameter("it has no text in UTF-8", param_hint="--oidc-client-secret-file")
    try:
        return OidcLogin(IssuerOptions(oidc_issuer, oidc_client_id, secret, oidc_scope))
    except IssuerError as error:
        raise CliError(str(error)) from None


def _registry(url: str | None, file: Path | None) -> tuple[SchemaRegistry | None, str]:
    """The registry of the options, and the login there; raises click.UsageError."""
    if url is None:
        if file is not None:
            raise click.UsageError("--schema-registry-config goes with --schema-registry URL")
        return None, ""
    user = ""
    if file is not None:
        try:
            given = {name: value for name, (value, _) in parse_properties(file.read_text("utf-8"), str(file)).items()}
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(str(error), param_hint="--schema-registry-config") from None
        user = given.pop(REGISTRY_USER, "")
        if given or ":" not in user:
            raise click.BadParameter(
                f"{file} must have {REGISTRY_USER}=USER:PASSWORD and nothing else",
                param_hint="--schema-registry-config",
            )
    try:
        return SchemaRegistry(url, user), user
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--schema-registry") from None


def _masks(file: Path | None) -> Masks:
    """The rules of the option; raises click.BadParameter."""
    if file is None:
        return Masks()
    try:
        return read_masks(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{file}: {error}", param_hint="--mask") from None


def _check(
    target: Target,
    address: Any,
    login: str | None,
    tls: TlsFiles,
    names: tuple[str, ...],
) -> None:
    """Raise UsageError where the console would be open."""
    if not address.is_loopback and login is None:
        raise click.UsageError(
            f"{address} is reached from other machines: give --login, by which users log in as themselves, "
            "or listen on 127.0.0.1"
        )
    others = ["--behind-tls-proxy"] if tls.behind_proxy else []
    others += [
        f"--host-name {name}"
        for name in names
        if not (is_loopback(name.lower().strip("[]")) or name.lower().endswith(".localhost"))
    ]
    if others and login is None:
        raise click.UsageError(
            f"{others[0]} says that browsers of other machines reach this console: give --login, by which users log "
            "in as themselves, or leave it out"
        )
    if not address.is_loopback and not tls.there:
        raise click.UsageError(
            f"{address} is reached from other machines, and passwords would cross the network as they are: "
            "give --tls-certificate and --tls-key, or --behind-tls-proxy"
        )
    protocol = target.properties.get(PROTOCOL, "")
    if login is not None and not protocol.startswith("SASL_"):
        raise click.UsageError(
            f"--login needs brokers that know users: --command-config with {PROTOCOL}=SASL_SSL, {MECHANISM} and {JAAS}"
        )
