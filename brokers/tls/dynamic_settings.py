"""Settings of TLS that change while a broker runs: the certificates of one listener, as in Kafka. Pure.

They are dynamic settings of one broker, behind the listener's prefix, and count before those of its file. Secrets are
none of them: the change log of the metadata would show them to all that read ZooKeeper.

Source: KIP-226; DynamicBrokerConfig.DynamicSecurityConfigs, SslConfigs.RECONFIGURABLE_CONFIGS.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from fleetlog.brokers.config import LISTENER_PREFIX, BrokerConfig

_DYNAMIC: Final = frozenset({
    "ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.certificate.chain",
    "ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.certificates",
})  # fmt: skip
_SECRET: Final = frozenset({
    "ssl.keystore.password", "ssl.keystore.key", "ssl.key.password", "ssl.truststore.password"
})  # fmt: skip


def of_tls(name: str) -> str:
    """The setting without its listener's prefix if it is one of TLS, else empty."""
    base = name
    if name.startswith(LISTENER_PREFIX):
        base = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    return base if base.startswith("ssl.") else ""


def refused_change(name: str, *, of_all_brokers: bool) -> str | None:
    """Why a setting of TLS cannot be given a value while brokers run; None if it can. For those with ``of_tls``."""
    base = of_tls(name)
    if base not in _DYNAMIC | _SECRET:
        return f"Cannot update these configs dynamically: {name}"
    if base == name:
        return (
            "These security configs can be dynamically updated only per-listener using the listener prefix:"
            f" {name}; set {LISTENER_PREFIX}NAME.{name} with the listener's name in lower case"
        )
    if of_all_brokers:
        return f"Cannot update these configs at default cluster level, broker id must be specified: {name}"
    if base in _SECRET:
        return (
            f"{name} is a secret, which is not kept in ZooKeeper: name a PEM file in"
            f" {name.removesuffix(base)}ssl.keystore.location, its password in the broker's own file"
        )
    return None


def tls_changes(own: Mapping[str, str]) -> dict[str, str]:
    """Those of a broker's dynamic settings that are TLS of a listener; others, as of another program, are left out."""
    return {
        name: text for name, text in own.items() if of_tls(name) in _DYNAMIC and name.startswith(LISTENER_PREFIX)
    }  # fmt: skip


def overridden(static: BrokerConfig, changes: Mapping[str, str]) -> BrokerConfig:
    """The broker's settings with the changes, for what reads TLS of listeners; ``given`` alone is another one."""
    return dataclasses.replace(static, given=tuple((dict(static.given) | dict(changes)).items()))
