"""TLS with which brokers connect to one another: the settings of their listener, the own pair as client certificate.

What is made of the files is tried by a handshake with itself before it is used, as Kafka does: a broker whose
certificate the others would not accept does not start, and goes on with its old one where the files change.
"""

from __future__ import annotations

from collections.abc import Callable

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.logins.principals import USER, NoRuleMatches, Principal
from fleetlog.brokers.tls.contexts import (
    CertificateFiles,
    FollowedContexts,
    TlsContext,
    client_context,
    own_subject,
    server_context,
)
from fleetlog.brokers.tls.listener_settings import listener_tls
from fleetlog.brokers.tls.machine import TlsEngine, TlsFailure
from fleetlog.brokers.tls.settings import ClientCertificates, TlsSettings

_STEPS_MAX = 10


def inter_broker_tls(config: BrokerConfig) -> TlsSettings | None:
    """The settings of the listener that brokers use; None where it is without TLS. Raises ConfigError."""
    return listener_tls(config).get(config.inter_broker_listener())


def inter_broker_contexts(config: BrokerConfig, now_s: Callable[[], float]) -> FollowedContexts | None:
    """The contexts of connections to other brokers; None without TLS. Raises ConfigError.

    ``now_s`` is the time in seconds since 1970.
    """
    settings = inter_broker_tls(config)
    if settings is None:
        return None
    host = _own_host(config)

    def make(settings: TlsSettings, at_s: float) -> TlsContext:
        return peer_context(settings, host, at_s)

    return FollowedContexts(CertificateFiles(settings, make, now_s()), now_s, "connections to other brokers")


def inter_broker_server_context(config: BrokerConfig) -> Callable[[TlsSettings, float], TlsContext]:
    """What makes the context of the listener that brokers use: as ``server_context``, of files that they accept."""
    host = _own_host(config)

    def make(settings: TlsSettings, at_s: float) -> TlsContext:
        made = server_context(settings, at_s)
        peer_context(settings, host, at_s)
        return made

    return make


def _own_host(config: BrokerConfig) -> str:
    inside = config.inter_broker_listener()
    return next(end.host for end in config.advertised_endpoints() if end.listener == inside)


def peer_context(settings: TlsSettings, host: str, now_s: float) -> TlsContext:
    """The context of connections to brokers that have the same settings, each at a host as this one's.

    Raises ConfigError, also where this broker would not accept itself.
    """
    made = client_context(settings, now_s)
    client = TlsEngine(made.context, server_side=False, server_name=host)
    server = TlsEngine(server_context(settings, now_s).context, server_side=True)
    try:
        for _ in range(_STEPS_MAX):
            done = client.handshake()
            server.feed(client.take())
            if server.handshake() and done:
                break
            client.feed(server.take())
    except TlsFailure as failure:
        trusted = "ssl.truststore.location" if settings.truststore is None else settings.truststore.certificates_setting
        location = "" if settings.truststore is None else settings.truststore.location
        raise settings.error(
            trusted, location, f"brokers would not accept each other at {host} ({failure}): it must have the authority"
            " of the brokers' certificates, and these the names of advertised.listeners (or set"
            " ssl.endpoint.identification.algorithm to nothing)",
        ) from None  # fmt: skip
    return made


def certificate_principal(config: BrokerConfig) -> Principal | None:
    """The principal that the other brokers take from this one's certificate; None where they ask for none.

    Reads the certificate's file. Raises ConfigError.
    """
    settings = inter_broker_tls(config)
    if settings is None or settings.client_certificates is ClientCertificates.NONE:
        return None
    subject = own_subject(settings)
    try:
        return Principal(USER, settings.mapper.principal_name(subject))
    except NoRuleMatches:
        raise settings.error(
            "ssl.principal.mapping.rules", "", f"has no rule for the broker's own certificate {subject!r}: end it with"
            " DEFAULT",
        ) from None  # fmt: skip
