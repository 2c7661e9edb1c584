"""What the settings say about TLS of listeners: those of each, its own ones (``listener.name.NAME.ssl.``) first.

A listener with TLS that is configured by half ends the start, and so does TLS of a listener that has none: it would
look like protection. Files are not read here.
"""

from __future__ import annotations

from typing import Final

from fleetlog.brokers.addresses import TLS_PROTOCOLS
from fleetlog.brokers.config import LISTENER_PREFIX, BrokerConfig
from fleetlog.brokers.tls.settings import TlsSettings

_OF_TLS: Final = "ssl."
_CLIENT_AUTH: Final = "ssl.client.auth"


def listener_tls(config: BrokerConfig) -> dict[str, TlsSettings]:
    """TLS of all listeners with it, by name. Raises ConfigError.

    With SASL, ``ssl.client.auth`` counts only where it is the listener's own, as in Kafka (KIP-684).
    """
    secured = {end.listener: end.security_protocol for end in config.listener_endpoints()}
    secured = {name: protocol for name, protocol in secured.items() if protocol in TLS_PROTOCOLS}
    for name, text in config.given:
        rest = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
        if name.startswith(LISTENER_PREFIX) and rest.startswith(_OF_TLS):
            config.check_of_listener(name, text, TLS_PROTOCOLS, "TLS")
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
