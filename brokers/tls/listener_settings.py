"""What the settings say about TLS of listeners: those of each, its own ones (``listener.name.NAME.ssl.``) first.

A listener with TLS that is configured by half ends the start, and so does TLS of a listener that has none: it would
look like protection. Files are not read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fleetlog.brokers.addresses import TLS_PROTOCOLS
from fleetlog.brokers.config import LISTENER_PREFIX, BrokerConfig
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.brokers.tls.settings import TlsSettings

_OF_TLS: Final = "ssl."
_CLIENT_AUTH: Final = "ssl.client.auth"


def listener_tls(config: BrokerConfig) -> dict[str, TlsSettings]:
    """TLS of all listeners with it, by name. Raises ConfigError.

    With SASL, ``ssl.client.auth`` counts only where it is the listener's own, as in Kafka (KIP-684).
    """
    secured = {end.listener: end.security_protocol for end in config.listener_endpoints()}
    secured = {name: protocol for name, protocol in secured.items() if protocol in TLS_PROTOCOLS}
    _check_prefixes(config, secured)
    common = {name: text for name, text in config.given if name.startswith(_OF_TLS)}
    settings = {}
    for listener, protocol in secured.items():
        own = {name: text for name, text in config.of_listener(listener).items() if name.startswith(_OF_TLS)}
        shared = dict(common)
        if protocol != "SSL":
            shared.pop(_CLIENT_AUTH, None)
        settings[listener] = TlsSettings.of(shared | own, f"{LISTENER_PREFIX}{listener.lower()}." if own else "")
    return settings


def ignored_client_auth(config: BrokerConfig) -> str | None:
    """A warning where a demand for certificates does not count for a listener with SASL; None: there is none."""
    if dict(config.given).get(_CLIENT_AUTH, "none").strip() == "none":
        return None
    ignored = [
        end.listener
        for end in config.listener_endpoints()
        if end.security_protocol == "SASL_SSL" and _CLIENT_AUTH not in config.of_listener(end.listener)
    ]
    if not ignored:
        return None
    own = ", ".join(f"{LISTENER_PREFIX}{name.lower()}.{_CLIENT_AUTH}" for name in ignored)
    return (
        f"{_CLIENT_AUTH} does not count for listeners with SASL, which ask for no certificate: set {own} to ask for one"
    )


def _check_prefixes(config: BrokerConfig, secured: Mapping[str, str]) -> None:
    protocols = {end.listener.lower(): end.security_protocol for end in config.listener_endpoints()}
    with_tls = {name.lower() for name in secured}
    for name, text in config.given:
        listener, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
        if not name.startswith(LISTENER_PREFIX) or not rest.startswith(_OF_TLS) or listener in with_tls:
            continue
        if listener not in protocols:
            listed = ", ".join(sorted(protocols))
            raise ConfigError(name, text, f"there is no listener {listener!r}; in lower case, there are {listed}")
        raise ConfigError(
            name, text, f"listener {listener} has security protocol {protocols[listener]}, which has no TLS: set "
            f"{' or '.join(TLS_PROTOCOLS)} in listener.security.protocol.map, or remove this setting",
        )  # fmt: skip
