"""``kafka.*`` options: from the names Spark's users write (those of Kafka's Java client) to two client libraries.

Spark hands options over with lower-cased names, so everything here compares lower-case. Names that neither library
knows are passed to librdkafka, which refuses what it does not know, and are left out of the reader's settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PREFIX = "kafka."
_SINK_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")

# Java's name -> librdkafka's, where they differ.
_LIBRDKAFKA_NAMES = {
    "sasl.mechanism": "sasl.mechanisms",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "buffer.memory": "queue.buffering.max.kbytes",
    "delivery.timeout.ms": "delivery.timeout.ms",
    "max.request.size": "message.max.bytes",
}

# librdkafka's or Java's name -> kafka-python's keyword, with the type it wants.
_READER_KEYWORDS: dict[str, tuple[str, type]] = {
    "bootstrap.servers": ("bootstrap_servers", str),
    "client.id": ("client_id", str),
    "security.protocol": ("security_protocol", str),
    "sasl.mechanism": ("sasl_mechanism", str),
    "sasl.mechanisms": ("sasl_mechanism", str),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
    "ssl.ca.location": ("ssl_cafile", str),
    "ssl.certificate.location": ("ssl_certfile", str),
    "ssl.key.location": ("ssl_keyfile", str),
    "ssl.key.password": ("ssl_password", str),
    "request.timeout.ms": ("request_timeout_ms", int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
}

_CLIENT_SETTINGS = ("bootstrap.", "security.", "sasl.", "ssl.", "client.", "socket.", "broker.", "reconnect.")


class OptionError(ValueError):
    """An option is missing, misspelt, or has a value that can't be used; the message names it."""


def check_sink_id(sink_id: str) -> str:
    """The id, if Kafka's names allow it; OptionError if not."""
    if not _SINK_ID.fullmatch(sink_id):
        raise OptionError(f"option sinkId: {sink_id!r} is not made of 1 to 200 letters, digits, '.', '_' and '-'")
    return sink_id


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """The options by lower-cased name, values as text."""
    return {name.lower(): str(value) for name, value in options.items()}


def kafka_settings(options: Mapping[str, str]) -> dict[str, str]:
    """What stands behind ``kafka.``, without the prefix and with a JAAS line taken apart.

    Raises OptionError without ``kafka.bootstrap.servers``.
    """
    settings = {name[len(PREFIX) :]: value for name, value in lowered(options).items() if name.startswith(PREFIX)}
    if not settings.get("bootstrap.servers", "").strip():
        raise OptionError("option kafka.bootstrap.servers is required, for instance 127.0.0.1:9092")
    jaas = settings.pop("sasl.jaas.config", None)
    if jaas is not None:
        for field in ("username", "password"):
            found = re.search(rf"\b{field}\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", jaas)
            if found is None:
                raise OptionError(f"option kafka.sasl.jaas.config has no {field}")
            settings.setdefault(f"sasl.{field}", found.group(1) if found.group(1) is not None else found.group(2))
    if settings.pop("ssl.truststore.type", "PEM").upper() != "PEM":
        raise OptionError("option kafka.ssl.truststore.type: only PEM can be read here")
    if "ssl.truststore.location" in settings:
        settings.setdefault("ssl.ca.location", settings.pop("ssl.truststore.location"))
    return settings


def librdkafka_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings under the names of confluent-kafka."""
    return {_LIBRDKAFKA_NAMES.get(name, name): value for name, value in settings.items()}


def client_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """What every client understands: librdkafka warns of a producer's settings in a consumer."""
    return {name: value for name, value in settings.items() if name.startswith(_CLIENT_SETTINGS)}


def reader_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings as keyword arguments of kafka-python's connections; others are left out."""
    keywords: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _READER_KEYWORDS:
            keyword, kind = _READER_KEYWORDS[name]
            keywords[keyword] = int_option(PREFIX + name, value) if kind is int else value
    keywords["bootstrap_servers"] = [part.strip() for part in settings["bootstrap.servers"].split(",") if part.strip()]
    if settings.get("ssl.endpoint.identification.algorithm", "https").lower() in ("", "none"):
        keywords["ssl_check_hostname"] = False
    return keywords


def int_option(name: str, value: str, low: int = 0) -> int:
    """``value`` as a whole number of at least ``low``; OptionError names the option."""
    try:
        number = int(value)
    except ValueError:
        raise OptionError(f"option {name}: {value!r} is not a whole number") from None
    if number < low:
        raise OptionError(f"option {name}: {number} is below {low}")
    return number


def bool_option(name: str, value: str) -> bool:
    """``true`` or ``false`` in any case; OptionError names the option."""
    if value.lower() not in ("true", "false"):
        raise OptionError(f"option {name}: {value!r} is neither true nor false")
    return value.lower() == "true"
