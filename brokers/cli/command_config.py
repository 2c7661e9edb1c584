"""``--command-config FILE``: how the commands connect, by the names of Kafka's Java clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from brokers.addresses import PLAINTEXT, SASL_PLAINTEXT, TLS_PROTOCOLS
from brokers.config import ConfigError, parse_properties
from brokers.security.jaas import BadJaasLine, LoginModule, parse_jaas
from brokers.security.listener_logins import PASSWORD_MECHANISMS
from brokers.security.plain import PLAIN
from brokers.setting_kinds import HIDDEN

PROTOCOL: Final = "security.protocol"
MECHANISM: Final = "sasl.mechanism"
JAAS: Final = "sasl.jaas.config"


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
    if protocol in TLS_PROTOCOLS:
        raise ConfigError(PROTOCOL, protocol, f"TLS is not in this release: set {PLAINTEXT} or {SASL_PLAINTEXT}")
    if protocol == PLAINTEXT:
        if MECHANISM in properties or JAAS in properties:
            raise ConfigError(PROTOCOL, protocol, f"does not log in: set {SASL_PLAINTEXT}, or remove what begins sasl.")
        return {}
    if protocol != SASL_PLAINTEXT:
        raise ConfigError(PROTOCOL, protocol, f"set {PLAINTEXT} or {SASL_PLAINTEXT}")
    mechanism = properties.get(MECHANISM, "")
    if mechanism not in PASSWORD_MECHANISMS:
        raise ConfigError(MECHANISM, mechanism, f"must be one of {', '.join(PASSWORD_MECHANISMS)}")
    try:
        line = parse_jaas(properties.get(JAAS, ""))
    except BadJaasLine as error:
        raise ConfigError(JAAS, HIDDEN if properties.get(JAAS) else "", f"is no JAAS line: {error}") from None
    wanted = LoginModule.PLAIN if mechanism == PLAIN else LoginModule.SCRAM
    if line.module is not wanted:
        raise ConfigError(JAAS, HIDDEN, f"has the login module of another mechanism: {mechanism} has {wanted.value}")
    if line.login is None:
        raise ConfigError(JAAS, HIDDEN, 'must have username="..." and password="..."')
    user, password = line.login
    return {
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
