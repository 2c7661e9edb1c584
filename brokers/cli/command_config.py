"""``--command-config FILE``: how the commands connect, by the names of Kafka's Java clients."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from kafka.net.sasl.oauth import AbstractTokenProvider

from fleetlog.brokers.addresses import PLAINTEXT, SASL_PLAINTEXT
from fleetlog.brokers.cli.output import warn
from fleetlog.brokers.cli.tls_probe import TLS_CONTEXT
from fleetlog.brokers.logins.jaas import BadJaasLine, LoginModule, parse_jaas
from fleetlog.brokers.logins.mechanism_names import MECHANISMS
from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER
from fleetlog.brokers.logins.plain import PLAIN
from fleetlog.brokers.properties import parse_properties
from fleetlog.brokers.setting_kinds import HIDDEN, ConfigError, suggest
from fleetlog.brokers.tls.contexts import client_context
from fleetlog.brokers.tls.settings import TlsSettings

PROTOCOL: Final = "security.protocol"
MECHANISM: Final = "sasl.mechanism"
JAAS: Final = "sasl.jaas.config"

_SSL, _SASL_SSL = "SSL", "SASL_SSL"
_PROTOCOLS: Final = (PLAINTEXT, _SSL, SASL_PLAINTEXT, _SASL_SSL)


REGISTRY_USER: Final = "basic.auth.user.info"
"""USER:PASSWORD at a schema registry that does not take the fleet's logins; Confluent's name."""
_USED: Final = frozenset({PROTOCOL, MECHANISM, JAAS, REGISTRY_USER, "bootstrap.servers"})
"""The last is named beside --bootstrap, which counts, as with Kafka's tools."""
_KAFKA_NAMES: Final = frozenset((
    "acks", "allow.auto.create.topics", "auto.commit.interval.ms", "auto.include.jmx.reporter", "auto.offset.reset",
    "batch.size", "bootstrap.controllers", "bootstrap.servers", "buffer.memory", "check.crcs", "client.dns.lookup",
    "client.id", "client.rack", "compression.gzip.level", "compression.lz4.level", "compression.type",
    "compression.zstd.level", "config.providers", "connections.max.idle.ms", "default.api.timeout.ms",
    "delivery.timeout.ms", "enable.auto.commit", "enable.idempotence", "enable.metrics.push",
    "exclude.internal.topics", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "group.id",
    "group.instance.id", "group.protocol", "group.remote.assignor", "heartbeat.interval.ms", "interceptor.classes",
    "isolation.level", "key.deserializer", "key.serializer", "linger.ms", "max.block.ms",
    "max.in.flight.requests.per.connection", "max.partition.fetch.bytes", "max.poll.interval.ms",
    "max.poll.records", "max.request.size", "metadata.cluster.check.enable", "metadata.max.age.ms",
    "metadata.max.idle.ms", "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy",
    "metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
    "partition.assignment.strategy", "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms", "partitioner.class", "partitioner.ignore.keys", "receive.buffer.bytes",
    "reconnect.backoff.max.ms", "reconnect.backoff.ms", "request.timeout.ms", "retries", "retry.backoff.max.ms",
    "retry.backoff.ms", "sasl.client.callback.handler.class", "sasl.jaas.config", "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin", "sasl.kerberos.service.name", "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor", "sasl.login.callback.handler.class", "sasl.login.class",
    "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms", "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds", "sasl.login.refresh.window.factor", "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.max.ms", "sasl.login.retry.backoff.ms", "sasl.mechanism", "security.protocol",
    "security.providers", "send.buffer.bytes", "session.timeout.ms", "share.acknowledgement.mode",
    "share.acquire.mode", "socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms",
    "transaction.timeout.ms", "transaction.two.phase.commit.enable", "transactional.id", "value.deserializer",
    "value.serializer",
))  # fmt: skip
"""Settings of Kafka's producers, consumers and admin clients (4.4), but those of TLS."""
_PREFIXES: Final = ("ssl.", "sasl.oauthbearer.", "config.providers.", "metrics.context.")


_MODULES: Final = {PLAIN: LoginModule.PLAIN, OAUTHBEARER: LoginModule.OAUTHBEARER}


class FixedToken(AbstractTokenProvider):  # type: ignore[misc]
    """A token that was given, for kafka-python; it is not renewed."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        """By kafka-python."""
        return self._token


def read_command_config(path: Path) -> dict[str, str]:
    """The properties of the file; raises click.BadParameter, also for a name that no client has.

    The files are shared with Kafka's tools: what has no use here is named in one warning.
    """
    try:
        parsed = parse_properties(path.read_text("utf-8"), str(path))
        properties = {name: value for name, (value, _) in parsed.items()}
        for name, (_, where) in parsed.items():
            if name not in {*_KAFKA_NAMES, REGISTRY_USER} and not name.startswith(_PREFIXES):
                raise ConfigError(name, HIDDEN, f"is no setting of a client{suggest(name, _KAFKA_NAMES)}", where)
        client_security(properties)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--command-config") from None
    except (OSError, UnicodeDecodeError):
        raise click.BadParameter(f"{path} is not a text file in UTF-8", param_hint="--command-config") from None
    useless = sorted(name for name in properties.keys() - _USED if not name.startswith("ssl."))
    if useless:
        warn(f"{path}: without use here: {', '.join(useless)}")
    return properties


def client_security(properties: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of kafka-python's clients. Raises ConfigError, in which no password stands."""
    protocol = properties.get(PROTOCOL, PLAINTEXT)
    if protocol not in _PROTOCOLS:
        raise ConfigError(PROTOCOL, protocol, f"must be one of {', '.join(_PROTOCOLS)}")
    has_tls, logs_in = protocol in {_SSL, _SASL_SSL}, protocol in {SASL_PLAINTEXT, _SASL_SSL}
    if not logs_in and (MECHANISM in properties or JAAS in properties):
        wanted = _SASL_SSL if has_tls else SASL_PLAINTEXT
        raise ConfigError(PROTOCOL, protocol, f"does not log in: set {wanted}, or remove what begins sasl.")
    if not has_tls and any(name.startswith("ssl.") for name in properties):
        wanted = _SASL_SSL if logs_in else _SSL
        raise ConfigError(PROTOCOL, protocol, f"is without TLS: set {wanted}, or remove what begins ssl.")
    arguments = _login(properties) if logs_in else {}
    if has_tls:
        arguments[TLS_CONTEXT] = client_context(TlsSettings.of(properties), time.time()).context
    return {"security_protocol": protocol, **arguments} if arguments else {}  # as without a file


def _login(properties: Mapping[str, str]) -> dict[str, Any]:
    mechanism = properties.get(MECHANISM, "")
    if mechanism not in MECHANISMS:
        raise ConfigError(MECHANISM, mechanism, f"must be one of {', '.join(MECHANISMS)}")
    try:
        line = parse_jaas(properties.get(JAAS, ""))
    except BadJaasLine as error:
        raise ConfigError(JAAS, HIDDEN if properties.get(JAAS) else "", f"is no JAAS line: {error}") from None
    wanted = _MODULES.get(mechanism, LoginModule.SCRAM)
    if line.module is not wanted:
        raise ConfigError(JAAS, HIDDEN, f"has the login module of another mechanism: {mechanism} has {wanted.value}")
    if mechanism == OAUTHBEARER:
        token = line.options.get("token", "")
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", token):
            raise ConfigError(JAAS, HIDDEN, 'must have token="...", a token of the issuer')
        return {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": FixedToken(token)}
    if line.login is None:
        raise ConfigError(JAAS, HIDDEN, 'must have username="..." and password="..."')
    user, password = line.login
    return {"sasl_mechanism": mechanism, "sasl_plain_username": user, "sasl_plain_password": password}
