"""Addresses in settings: ``host:port`` and ``NAME://host:port``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from fleetlog.brokers.model import Endpoint
from fleetlog.brokers.setting_kinds import ConfigError

PLAINTEXT: Final = "PLAINTEXT"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
TLS_PROTOCOLS: Final = ("SSL", "SASL_SSL")
SASL_PROTOCOLS: Final = (SASL_PLAINTEXT, "SASL_SSL")
SERVED_PROTOCOLS: Final = (PLAINTEXT, SASL_PLAINTEXT, *TLS_PROTOCOLS)

_PORT_MAX: Final = 65_535
_LISTENER_FORM: Final = "NAME://host:port, e.g. PLAINTEXT://127.0.0.1:9092"
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})|\[[0-9a-fA-F:.]+(%[A-Za-z0-9_.-]+)?\]|")


def parse_address(name: str, item: str, address: str, form: str, *, low: int) -> tuple[str, int]:
    """Host, without the brackets of IPv6, and port from ``low`` up; ``item`` is quoted where it is wrong.

    Raises ConfigError.
    """
    host, colon, port = address.rpartition(":")
    if not colon or _HOST.fullmatch(host) is None:
        raise ConfigError(name, item, f"must be {form} (a host's name, its IPv4 address, or its IPv6 address in [])")
    if re.fullmatch("[0-9]{1,9}", port) is None or not low <= int(port) <= _PORT_MAX:
        raise ConfigError(name, item, f"the port must be a number from {low} to {_PORT_MAX}")
    return host.strip("[]"), int(port)


def address_text(host: str, port: int) -> str:
    """``host:port`` as settings and URLs have it, with the brackets of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_listener(name: str, item: str, protocol_of: Callable[[str], str]) -> Endpoint:
    """One listener with its security protocol; raises ConfigError, also for protocols that are not served."""
    listener, mark, address = item.partition("://")
    if not mark or not listener:
        raise ConfigError(name, item, f"must be {_LISTENER_FORM}")
    protocol = protocol_of(listener)
    if protocol not in SERVED_PROTOCOLS:
        raise ConfigError(
            name, item, f"listener {listener} has security protocol {protocol}: give it one of "
            f"{', '.join(SERVED_PROTOCOLS)} in listener.security.protocol.map",
        )  # fmt: skip
    host, port = parse_address(name, item, address, _LISTENER_FORM, low=0)
    return Endpoint(listener, host, port, protocol)
