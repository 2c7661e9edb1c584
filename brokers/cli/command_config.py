"""``--command-config FILE``: how the commands connect, by the names of Kafka's Java clients."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from kafka.net.sasl.oauth import AbstractTokenProvider

from brokers.addresses import PLAINTEXT, SASL_PLAINTEXT
from brokers.properties import parse_properties
from brokers.security.jaas import BadJaasLine, LoginModule, parse_jaas
from brokers.security.mechanism_names import MECHANISMS
from brokers.security.oauthbearer import OAUTHBEARER
from brokers.security.plain import PLAIN
from brokers.security.tls_contexts import client_context
from brokers.security.tls_settings import TlsSettings
from brokers.setting_kinds import HIDDEN, ConfigError

PROTOCOL: Final = "security.protocol"
MECHANISM: Final = "sasl.mechanism"
JAAS: Final = "sasl.jaas.config"
TLS_CONTEXT: Final = "ssl_context"
"""The argument of kafka-python's clients that holds all of TLS."""

_SSL, _SASL_SSL = "SSL", "SASL_SSL"
_PROTOCOLS: Final = (PLAINTEXT, _SSL, SASL_PLAINTEXT, _SASL_SSL)


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
    """The properties of the file; raises click.BadParameter. Those of other clients' settings are left alone."""
    try:
        found = parse_properties(path.read_text("utf-8"), str(path))
        properties = {name: value for name, (value, _) in found.items()}
        client_security(properties)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--command-config") from None
    except (OSError, UnicodeDecodeError):
        raise click.BadParameter(f"{path} is not a text file in UTF-8", param_hint="--command-config") from None
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
    found = _login(properties) if logs_in else {}
    if has_tls:
        found[TLS_CONTEXT] = client_context(TlsSettings.of(properties), time.time()).context
    return {"security_protocol": protocol, **found} if found else {}  # as without a file


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
