"""Which schema registry a command asks, and as whom."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from fleetlog.brokers.cli.client import Target, parse_bootstrap
from fleetlog.brokers.cli.options import host_of, is_loopback
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.cli.tls_probe import TLS_CONTEXT

if TYPE_CHECKING:
    import urllib.request

CONTENT: Final = "application/vnd.schemaregistry.v1+json"
BY_SCHEMA: Final = ("avro", "protobuf")
"""Ways to decode that are nothing without a registry."""

registry_option = click.option(
    "--registry", envvar="FLEETLOG_REGISTRY", show_envvar=True, metavar="URL",
    help="The schema registry.  [default: that of the profile, or of `fleetlog dev up`]",
)  # fmt: skip


class RegistryAccess(NamedTuple):
    """How a registry is asked. ``opener`` has its TLS."""

    url: str
    headers: Mapping[str, str]
    opener: urllib.request.OpenerDirector


def known_registry(given: str | None, target: Target) -> str:
    """The address that is given, the profile's, or that of the local fleet which is meant; empty if none is known."""
    return given or target.registry or _of_local_fleet(target)


def _of_local_fleet(target: Target) -> str:
    from fleetlog.brokers.cli.dev_state import DevError, default_directory, load

    asked = parse_bootstrap(target.bootstrap.replace("localhost", "127.0.0.1"))
    try:
        state = load(default_directory())
    except DevError:
        return ""
    if state is None or state.registry is None or not any(("127.0.0.1", one.port) in asked for one in state.brokers):
        return ""
    return state.registry_url if state.registry.alive() else ""


def registry_access(url: str, target: Target) -> RegistryAccess:
    """With the login of the target's properties. Raises click.BadParameter, and CliError where it would be read."""
    from fleetlog.brokers.cli.command_config import client_security  # with all that logins and TLS need
    from fleetlog.brokers.cli.outside import direct_opener

    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None or parts.query:
        raise click.BadParameter(f"{url!r} is not like http://registry:8081", param_hint="--registry")
    security = client_security(target.properties)
    headers = {"Accept": CONTENT} | _login(target.properties, security)
    if "Authorization" in headers and parts.scheme == "http" and not is_loopback(host_of(parts.netloc)):
        raise CliError(f"{url} is without TLS, and the password would cross the network as it is: use https")
    context = security.get(TLS_CONTEXT) if parts.scheme == "https" else None
    handlers = []
    if isinstance(context, ssl.SSLContext):
        import urllib.request

        handlers.append(urllib.request.HTTPSHandler(context=context))
    return RegistryAccess(url.rstrip("/"), headers, direct_opener(*handlers))


def _login(properties: Mapping[str, str], security: Mapping[str, Any]) -> dict[str, str]:
    """Its own, which may be empty: none; or else that of the fleet."""
    from fleetlog.brokers.cli.command_config import REGISTRY_USER

    pair = properties.get(REGISTRY_USER, "")
    has_own = REGISTRY_USER in properties
    if not has_own and "sasl_oauth_token_provider" in security:
        return {"Authorization": f"Bearer {security['sasl_oauth_token_provider'].token()}"}
    if not has_own and "sasl_plain_username" in security:
        pair = f"{security['sasl_plain_username']}:{security['sasl_plain_password']}"
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()} if pair else {}
