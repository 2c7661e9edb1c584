"""``kafka.*`` options: from the names of Kafka's Java client to those of two client libraries.

Spark hands options over with lower-cased names, so names are compared in lower case. A name that no Kafka client has is
an error; what a library does not know is left out of its settings, after `check_effect` has named it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.kafka_names import FOR_LOGINS, KAFKA_PREFIX, LIBRDKAFKA, check_names
from fleetlog.spark.client.options import INT64_MAX, lowered, whole_number
from fleetlog.spark.client.tls import CA_PEM, CERTIFICATE_PEM, KEY_PEM, take_java_stores
from fleetlog.spark.client.token_settings import (
    OAUTHBEARER,
    TOKEN_KEYWORDS,
    refuse_token_settings,
    take_token_settings,
)

# Java's name -> librdkafka's, where they differ.
_LIBRDKAFKA_NAMES = {
    "sasl.mechanism": "sasl.mechanisms",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "max.request.size": "message.max.bytes",
}

# librdkafka's or Java's name -> kafka-python's keyword, with the type it wants.
_KAFKA_PYTHON_KEYWORDS: dict[str, tuple[str, type]] = {
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
    "ssl.truststore.certificates": (CA_PEM, str),
    "ssl.keystore.certificate.chain": (CERTIFICATE_PEM, str),
    "ssl.keystore.key": (KEY_PEM, str),
    "ssl.ca.pem": (CA_PEM, str),
    "ssl.certificate.pem": (CERTIFICATE_PEM, str),
    "ssl.key.pem": (KEY_PEM, str),
    "request.timeout.ms": ("request_timeout_ms", int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
    **{name: (keyword, str) for name, keyword in TOKEN_KEYWORDS.items()},
}

_SERVER = re.compile(r"(\w*://)?(\[[0-9A-Fa-f:.%\w]+\]|[^:\s\[\]]+):\d{1,5}")
_HOST_NAME_CHECK = "ssl.endpoint.identification.algorithm"
_BUFFER_MEMORY = "buffer.memory"

CLIENT_NAMES = frozenset({*_KAFKA_PYTHON_KEYWORDS, _HOST_NAME_CHECK})
"""The settings that have an effect on every connection, of `kafka_settings`."""

DRIVER_NAMES = CLIENT_NAMES | {
    name for name in {*LIBRDKAFKA, *_LIBRDKAFKA_NAMES, _BUFFER_MEMORY} if not name.startswith(FOR_LOGINS)
}
"""Those that have an effect on the producer of driver mode. Logins: its driver uses both libraries."""

_JAAS_ESCAPE = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}|.)")
_JAAS_CONTROLS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_TIME_MS = whole_number()
_POSITIVE = whole_number(1, INT64_MAX)
_CONNECTION_PREFIXES = (
    "bootstrap.", "security.", "sasl.", "ssl.", "enable.sasl.", "enable.ssl.", "client.", "socket.", "broker.",
    "reconnect.",
)  # fmt: skip


def kafka_settings(options: Mapping[str, str]) -> dict[str, str]:
    """The ``kafka.*`` options without the prefix, a JAAS line taken apart.

    Raises OptionError without ``kafka.bootstrap.servers``, and for a setting that no Kafka client has.
    """
    given = lowered(options)
    settings = {name.removeprefix(KAFKA_PREFIX): given[name] for name in given if name.startswith(KAFKA_PREFIX)}
    if not settings.get("bootstrap.servers", "").strip():
        raise OptionError("option kafka.bootstrap.servers is required, for instance 127.0.0.1:9092")
    for server in filter(None, map(str.strip, settings["bootstrap.servers"].split(","))):
        if not _SERVER.fullmatch(server):
            raise OptionError(
                f"option kafka.bootstrap.servers: {server!r} is not HOST:PORT, for instance broker-1:9092"
            )
    check_names(settings)
    jaas = settings.pop("sasl.jaas.config", None)
    if _logs_in_by_token(settings):
        take_token_settings(settings, jaas, _unescaped)
    else:
        refuse_token_settings(settings)
        if jaas is not None:
            _take_password(settings, jaas)
    take_java_stores(settings)
    return settings


def _logs_in_by_token(settings: Mapping[str, str]) -> bool:
    return OAUTHBEARER in (settings.get("sasl.mechanism"), settings.get("sasl.mechanisms"))


def _take_password(settings: dict[str, str], jaas: str) -> None:
    for field in ("username", "password"):
        match = re.search(rf"\b{field}\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)')", jaas)
        if match is None:
            raise OptionError(f"option kafka.sasl.jaas.config has no {field}")
        quoted = match.group(1) if match.group(1) is not None else match.group(2)
        settings.setdefault(f"sasl.{field}", _unescaped(quoted))


def _unescaped(quoted: str) -> str:
    return _JAAS_ESCAPE.sub(_jaas_character, quoted)


def _jaas_character(escape: re.Match[str]) -> str:
    """What stands for a backslash and what follows it in a JAAS line: as Java's tokenizer has it."""
    code = escape[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _JAAS_CONTROLS.get(code, code)


def librdkafka_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings under the names and in the units of librdkafka (confluent-kafka), those that it has.

    Tokens come by a callback, from where executors have theirs: librdkafka's own ``oidc`` reads no file, retries what
    was refused, and trusts other authorities. Raises OptionError.
    """
    tokens = {TOKEN_KEYWORDS[name]: value for name, value in settings.items() if name in TOKEN_KEYWORDS}
    renamed: dict[str, Any] = {
        _LIBRDKAFKA_NAMES.get(name, name): value for name, value in settings.items() if name not in TOKEN_KEYWORDS
    }
    memory = renamed.pop(_BUFFER_MEMORY, None)
    renamed = {name: value for name, value in renamed.items() if name in LIBRDKAFKA}
    if memory is not None:  # bytes; librdkafka counts in KiB
        kib = -(-_POSITIVE("kafka.buffer.memory", memory) // 1024)
        renamed.setdefault("queue.buffering.max.kbytes", str(kib))
    if tokens:
        from fleetlog.spark.client.tokens import token_source  # late: options are read where nothing logs in

        renamed["oauth_cb"] = token_source(tokens).for_librdkafka
    return renamed


def connection_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of connections alone: librdkafka warns of a producer's settings in a consumer."""
    return {name: value for name, value in settings.items() if name.startswith(_CONNECTION_PREFIXES)}


def kafka_python_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings as keyword arguments of kafka-python's connections; others are left out."""
    keywords: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _KAFKA_PYTHON_KEYWORDS:
            keyword, kind = _KAFKA_PYTHON_KEYWORDS[name]
            keywords[keyword] = _TIME_MS(KAFKA_PREFIX + name, value) if kind is int else value
    keywords["bootstrap_servers"] = [part.strip() for part in settings["bootstrap.servers"].split(",") if part.strip()]
    if settings.get(_HOST_NAME_CHECK, "https").lower() in ("", "none"):
        keywords["ssl_check_hostname"] = False
    return keywords
