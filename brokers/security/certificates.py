"""Certificates and keys as text: the PEM blocks of a setting or a file, and what a certificate says of itself.

Nothing here checks a signature; that is the TLS library's. PEM inside a setting may have spaces where a file has line
ends, as Kafka allows it.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

from fleetlog.brokers.security.principals import (
    DER_OID,
    DER_SEQUENCE,
    BadPrincipal,
    DerElement,
    certificate_fields,
    der_children,
    der_elements,
    subject_name,
)

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----(.*?)-----END \1-----", re.DOTALL)
_CERTIFICATE_LABELS: Final = frozenset({"CERTIFICATE", "X509 CERTIFICATE"})
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_EXTENSIONS: Final = 0xA3
_ALTERNATIVE_NAMES: Final = bytes.fromhex("551d11")


class BadPem(ValueError):
    """Text that is no PEM, or a certificate that cannot be read; the message quotes nothing of it."""


class CertificateFacts(NamedTuple):
    """What a certificate says. Times are seconds since 1970; ``names`` are the DER of its alternative names."""

    subject: str
    not_before_s: float
    not_after_s: float
    names: frozenset[bytes]


class PrivateKeyPem(NamedTuple):
    """A private key as PEM, and whether it needs a password."""

    pem: str
    encrypted: bool

    def __repr__(self) -> str:
        return f"PrivateKeyPem(encrypted={self.encrypted})"


def certificates_in_pem(text: str) -> list[bytes]:
    """The DER of each certificate, in order. Raises BadPem where a block is no base64."""
    return [_der(match[2]) for match in _BLOCK.finditer(text) if match[1] in _CERTIFICATE_LABELS]


def keys_in_pem(text: str) -> list[PrivateKeyPem]:
    """The private keys in order. Raises BadPem where a block is no base64."""
    return [_key(match[1], match[2]) for match in _BLOCK.finditer(text) if match[1].endswith("PRIVATE KEY")]


def pem_block(label: str, der: bytes) -> str:
    """PEM with lines of 64 characters."""
    body = base64.b64encode(der).decode()
    lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


def _der(body: str) -> bytes:
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError):
        raise BadPem("a PEM block is damaged: between its BEGIN and END lines there must be base64 only") from None


def _key(label: str, body: str) -> PrivateKeyPem:
    if ":" not in body:
        return PrivateKeyPem(pem_block(label, _der(body)), label.startswith("ENCRYPTED"))
    # RFC 1421: headers, an empty line, base64. The password's cipher stands in the headers.
    return PrivateKeyPem(f"-----BEGIN {label}-----{body}-----END {label}-----\n", "ENCRYPTED" in body)


def certificate_facts(certificate: bytes) -> CertificateFacts:
    """What a certificate's DER says. Raises BadPem."""
    try:
        fields = certificate_fields(certificate)
        times = der_children(fields[3], DER_SEQUENCE)
        if len(times) != 2:
            raise BadPem("a certificate has no period of validity")
        return CertificateFacts(
            subject_name(fields[4].whole), _time_s(times[0]), _time_s(times[1]), _alternative_names(fields)
        )
    except BadPrincipal as error:
        raise BadPem(f"a certificate cannot be read: {error}") from None


def _time_s(element: DerElement) -> float:
    text = element.content.decode("ascii", "replace")
    if element.tag == _UTC_TIME and re.fullmatch(r"[0-9]{12}Z", text):
        text = ("20" if text[:2] < "50" else "19") + text
    elif element.tag != _GENERALIZED_TIME or not re.fullmatch(r"[0-9]{14}Z", text):
        raise BadPem("a certificate has a period of validity that is not spelled as RFC 5280 demands")
    try:
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise BadPem("a certificate has a date that does not exist") from None


def _alternative_names(fields: list[DerElement]) -> frozenset[bytes]:
    for holder in fields[5:]:
        if holder.tag != _EXTENSIONS:
            continue
        for extension in [one for outer in der_elements(holder.content) for one in der_children(outer, DER_SEQUENCE)]:
            parts = der_children(extension, DER_SEQUENCE)
            if parts and parts[0].tag == DER_OID and parts[0].content == _ALTERNATIVE_NAMES:
                lists = der_elements(parts[-1].content)
                return frozenset(name.whole for one in lists for name in der_children(one, DER_SEQUENCE))
    return frozenset()
