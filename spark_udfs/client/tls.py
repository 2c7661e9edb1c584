"""TLS from the names of Kafka's Java client: PEM files, or PEM inside options, for two client libraries.

Executors need what the driver has: PEM inside options reaches them with the options, files must be there on each.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import ssl
from collections.abc import Iterator
from typing import Any, Final

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.kafka_names import KAFKA_PREFIX

CA_PEM: Final = "ssl_ca_pem"
CERTIFICATE_PEM: Final = "ssl_certificate_pem"
KEY_PEM: Final = "ssl_key_pem"
"""Keywords of this package, which :func:`with_context` turns into a context of kafka-python's."""

_KEYSTORE, _TRUSTSTORE = "ssl.keystore", "ssl.truststore"
_CHAIN, _KEY, _TRUSTED = "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.truststore.certificates"
_BLOCK: Final = re.compile(r"(-----BEGIN [A-Z0-9 ]+-----)(.*?)(-----END [A-Z0-9 ]+-----)", re.DOTALL)


def take_java_stores(settings: dict[str, str]) -> None:
    """Replace Java's keystore and truststore by the names of librdkafka, in place. Raises OptionError."""
    for store in (_KEYSTORE, _TRUSTSTORE):
        _check_kind(store, settings)
    if "ssl.truststore.location" in settings:
        settings.setdefault("ssl.ca.location", settings.pop("ssl.truststore.location"))
    if "ssl.keystore.location" in settings:
        own = settings.pop("ssl.keystore.location")
        settings.setdefault("ssl.certificate.location", own)
        settings.setdefault("ssl.key.location", own)
    if (_CHAIN in settings) != (_KEY in settings):
        there, missing = (_CHAIN, _KEY) if _CHAIN in settings else (_KEY, _CHAIN)
        raise OptionError(f"option {KAFKA_PREFIX}{there} needs {KAFKA_PREFIX}{missing}: set both, or a file")
    for name in (_CHAIN, _KEY, _TRUSTED):
        if name in settings:
            settings[name] = _lines(name, settings[name])


def _check_kind(store: str, settings: dict[str, str]) -> None:
    location = settings.get(f"{store}.location", "")
    kind = settings.pop(f"{store}.type", "PEM").upper()
    if kind == "PEM" and location.lower().endswith((".jks", ".p12", ".pfx")):
        kind = "JKS" if location.lower().endswith(".jks") else "PKCS12"
    if kind != "PEM":
        raise OptionError(
            f"option {KAFKA_PREFIX}{store}.type: {kind} cannot be read; {_conversion(store, kind, location)} and set"
            f" {KAFKA_PREFIX}{store}.type to PEM, with the location of that file"
        )
    if settings.get(f"{store}.password"):
        raise OptionError(
            f"option {KAFKA_PREFIX}{store}.password: a PEM store has none; that of an encrypted key is"
            f" {KAFKA_PREFIX}ssl.key.password"
        )
    settings.pop(f"{store}.password", None)


def _conversion(store: str, kind: str, location: str) -> str:
    source = location or "store"
    stem = re.sub(r"\.(jks|p12|pfx)$", "", source)
    keys = "" if store == _KEYSTORE else " -nokeys"
    first = ""
    if kind == "JKS":
        between = shlex.quote(stem + ".p12")
        first = f"keytool -importkeystore -srckeystore {shlex.quote(source)} -destkeystore {between}"
        first, source = f"{first} -deststoretype PKCS12, then ", stem + ".p12"
    return f"run {first}openssl pkcs12 -in {shlex.quote(source)}{keys} -nodes -out {shlex.quote(stem + '.pem')}"


def _lines(name: str, text: str) -> str:
    """PEM with its line ends: in an option they may be spaces, or written as a backslash and an n."""
    blocks = _BLOCK.findall(text.replace("\\n", "\n"))
    if not blocks:
        raise OptionError(f"option {KAFKA_PREFIX}{name}: must be PEM, -----BEGIN ... to -----END ...")
    return "".join("\n".join((begin, *body.split(), end, "")) for begin, body, end in blocks)


def with_context(keywords: dict[str, Any]) -> dict[str, Any]:
    """kafka-python's keywords, with a context where PEM came inside options. Raises OptionError."""
    given = dict(keywords)
    ca, chain, key = (given.pop(name, None) for name in (CA_PEM, CERTIFICATE_PEM, KEY_PEM))
    if ca is None and chain is None:
        return given
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = given.get("ssl_check_hostname", True)
    try:
        if ca is not None or given.get("ssl_cafile"):
            context.load_verify_locations(cafile=given.get("ssl_cafile"), cadata=ca)
        else:
            context.load_default_certs()
        if chain is not None:
            with _in_memory_file(chain + key) as path:
                # A password is always given, even an empty one: OpenSSL would ask for it at the terminal.
                context.load_cert_chain(path, password=given.get("ssl_password") or "")
        elif given.get("ssl_certfile"):
            context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"), given.get("ssl_password") or "")
    except (OSError, ValueError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise OptionError(
            f"the options kafka.ssl.*: certificates or key cannot be used ({reason}): they must be PEM, and the key"
            " that of the first certificate"
        ) from None
    given["ssl_context"] = context
    return given


@contextlib.contextmanager
def _in_memory_file(text: str) -> Iterator[str]:
    """A path under which the text can be read until the end of the block; no key reaches a disk."""
    descriptor = os.memfd_create("fleetlog-spark", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
