"""What the settings say about TLS, by Kafka's names (``ssl.*``): checked as a whole, before a file is opened.

A mapping of one listener's settings gives a :class:`TlsSettings`, or a ConfigError that names one setting and what to
do. What would look like protection and be none is refused. No PEM and no password is in an error.
"""

from __future__ import annotations

import re
import shlex
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from fleetlog.brokers.inert_settings import TLS_SETTINGS
from fleetlog.brokers.logins.principals import BadPrincipal, PrincipalMapper
from fleetlog.brokers.setting_kinds import HIDDEN, ConfigError, suggest

_KINDS: Final = ("PEM", "PKCS12", "JKS")
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_SUITES_OF_1_3: Final = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
_SUITES_OF_1_2: Final = {
    f"TLS_{exchange}_WITH_{java}": f"{exchange.replace('_', '-')}-{name}"
    for exchange in ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
    for java, name in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
"""Java's names of those with forward secrecy and authenticated encryption, and OpenSSL's."""
_OWN_CODE: Final = ("ssl.engine.factory.class", "ssl.provider")


class ClientCertificates(Enum):
    """``ssl.client.auth``: whether a listener asks clients for a certificate; one that is shown must be trusted."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class CertificateStore:
    """A keystore or truststore: a file, or PEM inside settings. ``name`` is ``ssl.keystore`` or ``ssl.truststore``."""

    name: str
    kind: str
    location: str = ""
    certificates: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def certificates_setting(self) -> str:
        """The setting that certificates come from."""
        if self.location:
            return f"{self.name}.location"
        return f"{self.name}.certificate.chain" if self.name == "ssl.keystore" else f"{self.name}.certificates"

    @property
    def key_setting(self) -> str:
        """The setting that the private key comes from."""
        return f"{self.name}.location" if self.location else f"{self.name}.key"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS of one listener, or of one client. ``prefix`` stands before the names of settings in errors.

    ``ciphers`` are OpenSSL's names for TLS 1.2, empty for the default ones.
    """

    keystore: CertificateStore | None
    truststore: CertificateStore | None
    key_password: str = field(repr=False)
    client_certificates: ClientCertificates
    oldest: ssl.TLSVersion
    newest: ssl.TLSVersion
    ciphers: str
    mapper: PrincipalMapper
    checks_host: bool
    """Whether a client compares the server's name with its certificate."""
    allows_other_subject: bool
    allows_fewer_names: bool
    prefix: str = ""

    def error(self, name: str, value: str, advice: str) -> ConfigError:
        """A ConfigError about a setting of these."""
        return ConfigError(self.prefix + name, value, advice)

    @classmethod
    def of(cls, given: Mapping[str, str], prefix: str = "") -> TlsSettings:
        """From settings by their names without the listener's prefix; those that are not ``ssl.*`` are left alone.

        Raises ConfigError.
        """
        reader = _Reader({name: text for name, text in given.items() if name.startswith("ssl.")}, prefix)
        reader.check_names()
        keystore, truststore = reader.keystore(), reader.truststore()
        certificates = ClientCertificates(reader.choice("ssl.client.auth", [one.value for one in ClientCertificates]))
        if certificates is not ClientCertificates.NONE and truststore is None:
            raise reader.error(
                "ssl.truststore.location", "", f"ssl.client.auth is {certificates.value}: name a PEM file with the"
                " certificates of the authorities that sign those of clients, or set ssl.client.auth=none",
            )  # fmt: skip
        if reader.text("ssl.key.password") and keystore is None:
            raise reader.error("ssl.key.password", HIDDEN, "there is no key for it: set ssl.keystore.location")
        oldest, newest, ciphers = reader.versions_and_ciphers()
        identification = reader.text("ssl.endpoint.identification.algorithm", "https")
        if identification.lower() not in {"https", ""}:
            raise reader.error(
                "ssl.endpoint.identification.algorithm", identification, "must be https, or empty for no check of names"
            )
        return cls(
            keystore, truststore, reader.given.get("ssl.key.password", ""), certificates, oldest, newest, ciphers,
            reader.mapper(), bool(identification),
            reader.choice("ssl.allow.dn.changes", ["false", "true"]) == "true",
            reader.choice("ssl.allow.san.changes", ["false", "true"]) == "true", prefix,
        )  # fmt: skip


class _Reader:
    """Settings, and the errors about them."""

    def __init__(self, given: Mapping[str, str], prefix: str) -> None:
        self.given = given
        self._prefix = prefix

    def text(self, name: str, default: str = "") -> str:
        return self.given.get(name, default).strip()

    def error(self, name: str, value: str, advice: str) -> ConfigError:
        return ConfigError(self._prefix + name, value, advice)

    def items(self, name: str) -> list[str]:
        return [item.strip() for item in self.text(name).split(",") if item.strip()]

    def choice(self, name: str, allowed: list[str]) -> str:
        """The first of those allowed where nothing is given."""
        text = self.text(name, allowed[0])
        if text not in allowed:
            raise self.error(name, text, f"must be one of {', '.join(allowed)}")
        return text

    def check_names(self) -> None:
        for name in self.given:
            if name not in TLS_SETTINGS:
                raise self.error(name, self.text(name), f"there is no such setting{suggest(name, TLS_SETTINGS)}")
        for name in _OWN_CODE:
            if self.text(name):
                raise self.error(name, self.text(name), "cannot be loaded here: remove it; OpenSSL serves TLS")
        protocol = self.text("ssl.protocol", "TLSv1.3")
        if protocol not in {"TLS", *_VERSIONS}:
            raise self.error("ssl.protocol", protocol, "must be one of TLS, TLSv1.2, TLSv1.3")

    def keystore(self) -> CertificateStore | None:
        location, chain = self.text("ssl.keystore.location"), self.text("ssl.keystore.certificate.chain")
        key, password = self.text("ssl.keystore.key"), self.given.get("ssl.keystore.password", "")
        if location and (chain or key):
            name = "ssl.keystore.certificate.chain" if chain else "ssl.keystore.key"
            raise self.error(name, HIDDEN, "stands beside ssl.keystore.location: remove one of both")
        if chain and not key:
            raise self.error("ssl.keystore.key", "", "ssl.keystore.certificate.chain needs its private key: set both")
        if key and not chain:
            raise self.error(
                "ssl.keystore.certificate.chain", "", "ssl.keystore.key needs the certificate of that key: set both"
            )
        return self._store("ssl.keystore", location, chain, key, password)

    def truststore(self) -> CertificateStore | None:
        location, certificates = self.text("ssl.truststore.location"), self.text("ssl.truststore.certificates")
        if location and certificates:
            raise self.error(
                "ssl.truststore.certificates", HIDDEN, "stands beside ssl.truststore.location: remove one of both"
            )
        if "ssl.truststore.certificates" in self.given and not certificates and not location:
            raise self.error("ssl.truststore.certificates", "", "is empty: give PEM certificates, or remove it")
        return self._store("ssl.truststore", location, certificates, "", self.given.get("ssl.truststore.password", ""))

    def _store(self, name: str, location: str, pem: str, key: str, password: str) -> CertificateStore | None:
        kind = self.text(f"{name}.type")
        if kind and kind.upper() not in _KINDS:
            raise self.error(f"{name}.type", kind, f"must be one of {', '.join(_KINDS[:2])}")
        if not location and not pem:
            if password:
                raise self.error(f"{name}.password", HIDDEN, f"there is no store for it: set {name}.location")
            if kind and kind.upper() != "JKS":
                raise self.error(f"{name}.location", "", f"{name}.type is {kind}: name its file, or remove the type")
            return None
        store = CertificateStore(name, kind.upper() or "JKS", location, pem, key, password)
        if pem and kind.upper() != "PEM":
            raise self.error(f"{name}.type", kind, f"must be PEM, because {store.certificates_setting} is set")
        if store.kind == "JKS":
            raise self.error(f"{name}.type", kind, _jks_advice(store))
        if store.kind == "PEM" and password:
            raise self.error(
                f"{name}.password", HIDDEN, "a PEM store has no password: remove it; the one of an encrypted key is"
                " ssl.key.password",
            )  # fmt: skip
        return store

    def versions_and_ciphers(self) -> tuple[ssl.TLSVersion, ssl.TLSVersion, str]:
        name, listed = "ssl.enabled.protocols", ", ".join(_VERSIONS)
        enabled = self.items(name) if name in self.given else list(_VERSIONS)
        for one in enabled:
            if one not in _VERSIONS:
                raise self.error(name, self.text(name), f"{one} is not served: name some of {listed}")
        if not enabled:
            raise self.error(name, "", f"is empty: name some of {listed}")
        versions = {_VERSIONS[one] for one in enabled}
        suites = self.items("ssl.cipher.suites")
        if suites:
            versions &= self._versions_of_suites(suites)
        if not versions:
            raise self.error(
                "ssl.cipher.suites", self.text("ssl.cipher.suites"),
                f"has no suite for {', '.join(enabled)}, which ssl.enabled.protocols names: add some",
            )  # fmt: skip
        ciphers = [_SUITES_OF_1_2[suite] for suite in suites if suite in _SUITES_OF_1_2]
        return min(versions), max(versions), ":".join(ciphers)

    def _versions_of_suites(self, suites: list[str]) -> set[ssl.TLSVersion]:
        name, text = "ssl.cipher.suites", self.text("ssl.cipher.suites")
        for suite in suites:
            if suite not in _SUITES_OF_1_3 and suite not in _SUITES_OF_1_2:
                allowed = ", ".join([*sorted(_SUITES_OF_1_3), *_SUITES_OF_1_2])
                raise self.error(name, text, f"{suite[:80]} is not served: name some of {allowed}")
        missing = _SUITES_OF_1_3 - set(suites)
        if missing and len(missing) < len(_SUITES_OF_1_3):
            raise self.error(
                name, text, f"the suites of TLS 1.3 are enabled together: add {', '.join(sorted(missing))}, or name"
                " none of the three, which leaves TLS 1.2",
            )  # fmt: skip
        newer = set() if missing else {ssl.TLSVersion.TLSv1_3}
        return newer | ({ssl.TLSVersion.TLSv1_2} if any(suite in _SUITES_OF_1_2 for suite in suites) else set())

    def mapper(self) -> PrincipalMapper:
        name = "ssl.principal.mapping.rules"
        try:
            return PrincipalMapper(self.text(name, "DEFAULT"))
        except BadPrincipal as error:
            raise self.error(name, self.text(name), str(error)) from None


def _jks_advice(store: CertificateStore) -> str:
    """How a Java keystore becomes PEM. Passwords are asked for by the tools."""
    stem = re.sub(r"\.(jks|keystore|truststore)$", "", store.location)
    between = shlex.quote(stem + ".p12")
    return (
        f"Java keystores (also Kafka's default where no type is set) are not read: run keytool -importkeystore"
        f" -srckeystore {shlex.quote(store.location)} -destkeystore {between} -deststoretype PKCS12, then"
        f" {pem_command(store.name, stem + '.p12', stem + '.pem')}, and set {store.name}.type=PEM with the new"
        " location; for a file that is PEM already, only the type"
    )


def pem_command(name: str, source: str, target: str) -> str:
    """The command that makes PEM of a PKCS12 store."""
    keys = " -nokeys" if name == "ssl.truststore" else ""
    return f"openssl pkcs12 -in {shlex.quote(source)}{keys} -out {shlex.quote(target)}"
