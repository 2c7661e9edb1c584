"""TLS contexts of a listener or a client, made of settings and their files; and a context that follows its files.

A context is made anew as a whole, never changed: what is wrong in a new file leaves the old context as it is. TLS 1.2
and 1.3 only, without compression and renegotiation.

Certificates and keys are the PEM blocks of a setting or a file. Nothing here checks a signature; that is the TLS
library's. PEM inside a setting may have spaces where a file has line ends, as Kafka allows it.

Files are read whole, told apart by what ``stat`` says, and lent to the TLS library. It takes a key by path only. It
gets the path of an anonymous file in memory, so that what was checked is what is loaded, and no key that stands in a
setting reaches a disk.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import logging
import os
import re
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from fleetlog.brokers.logins.principals import (
    DER_OID,
    DER_SEQUENCE,
    BadPrincipal,
    DerElement,
    certificate_fields,
    der_children,
    der_elements,
    subject_name,
)
from fleetlog.brokers.setting_kinds import HIDDEN, ConfigError
from fleetlog.brokers.tls.settings import CertificateStore, ClientCertificates, TlsSettings, pem_command

logger = logging.getLogger(__name__)

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


FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The longest store that is read: an operating system's list of authorities has a twentieth of it."""


class FileStamp(NamedTuple):
    """What changes when a file is replaced or written; a file that is not there has none."""

    mtime_ns: int
    size: int
    inode: int


def file_stamp(path: str) -> FileStamp | None:
    """The stamp of what the path leads to, through links; None where nothing is there or it may not be looked at."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return FileStamp(status.st_mtime_ns, status.st_size, status.st_ino)


def is_world_readable(path: str) -> bool:
    """Whether each user of the machine may read the file; False where it is not there."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except (OSError, ValueError):
        return False


def read_store(path: str) -> bytes:
    """A file's bytes. Raises OSError, also for what is no regular file or longer than FILE_BYTES_MAX."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:
        raise OSError("the path contains a NUL") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no regular file")
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise OSError(f"it has more than {FILE_BYTES_MAX} bytes")
    return data


@contextmanager
def in_memory_file(data: bytes) -> Iterator[str]:
    """A path under which the bytes can be read until the end of the block."""
    descriptor = os.memfd_create("fleetlog-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


_LEVEL: Final = "@SECLEVEL=2"  # no RSA key below 2,048 bits, no SHA-1
_CHAIN_MAX: Final = 10
_PASSWORD_BYTES_MAX: Final = 1024
_VERIFY_MODES: Final = {
    ClientCertificates.NONE: ssl.CERT_NONE,
    ClientCertificates.REQUESTED: ssl.CERT_OPTIONAL,
    ClientCertificates.REQUIRED: ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class TlsContext:
    """A context that is ready for use. ``certificate`` is its own, if it has one; ``warnings`` are for the log."""

    context: ssl.SSLContext
    certificate: CertificateFacts | None
    warnings: tuple[str, ...]


def server_context(settings: TlsSettings, now_s: float) -> TlsContext:
    """The context of a listener; ``now_s`` is the time in seconds since 1970. Raises ConfigError."""
    if settings.keystore is None:
        raise settings.error(
            "ssl.keystore.location", "", "a listener with TLS needs a certificate: name a PEM file with its private key"
            " and its chain, and set ssl.keystore.type=PEM",
        )  # fmt: skip
    context = _bare(ssl.PROTOCOL_TLS_SERVER, settings)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 1  # a client resumes one connection with it; each costs a tenth of a handshake
    facts, warnings = _load_own(context, settings, settings.keystore, now_s)
    if settings.client_certificates is not ClientCertificates.NONE and settings.truststore is not None:
        _load_trusted(context, settings, settings.truststore, now_s)
    elif settings.truststore is not None:
        _trusted(settings, settings.truststore, now_s)
    context.verify_mode = _VERIFY_MODES[settings.client_certificates]
    return TlsContext(context, facts, warnings)


def client_context(settings: TlsSettings, now_s: float) -> TlsContext:
    """The context of what connects: the system's authorities where there is no truststore. Raises ConfigError."""
    context = _bare(ssl.PROTOCOL_TLS_CLIENT, settings)
    context.check_hostname = settings.checks_host
    context.verify_mode = ssl.CERT_REQUIRED
    facts: CertificateFacts | None = None
    warnings: tuple[str, ...] = ()
    if settings.keystore is not None:
        facts, warnings = _load_own(context, settings, settings.keystore, now_s)
    if settings.truststore is not None:
        _load_trusted(context, settings, settings.truststore, now_s)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return TlsContext(context, facts, warnings)


def _bare(protocol: int, settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version, context.maximum_version = settings.oldest, settings.newest
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # a default of older Pythons: what is cut off looks like an end
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java, each certificate of the truststore is an anchor
    if settings.ciphers:
        context.set_ciphers(f"{_LEVEL}:{settings.ciphers}")
    return context


# ---------------------------------------------------------------- the own certificate


def _load_own(
    context: ssl.SSLContext, settings: TlsSettings, store: CertificateStore, now_s: float
) -> tuple[CertificateFacts, tuple[str, ...]]:
    chain, key = _own_pair(settings, store)
    facts = [_facts(settings, store, one) for one in chain]
    for one in facts:
        _check_dates(settings, store, one, now_s)
    if key.encrypted and not settings.key_password:
        raise settings.error("ssl.key.password", "", f"the private key of {store.key_setting} is encrypted: set it")
    if len(settings.key_password.encode()) > _PASSWORD_BYTES_MAX:
        raise settings.error("ssl.key.password", HIDDEN, f"must have at most {_PASSWORD_BYTES_MAX} bytes")
    text = "".join(pem_block("CERTIFICATE", one) for one in chain) + key.pem
    try:
        with in_memory_file(text.encode()) as path:
            # A password is always given, even an empty one: OpenSSL would ask for it at the terminal.
            context.load_cert_chain(path, password=settings.key_password)
    except ssl.SSLError as error:
        raise _refused_pair(settings, store, key, error) from None
    return facts[0], _warnings(settings, store)


def own_subject(settings: TlsSettings) -> str:
    """The subject of the own certificate as it is on disk now. Raises ConfigError."""
    if settings.keystore is None:
        raise settings.error("ssl.keystore.location", "", "there is no certificate: name one")
    chain, _ = _own_pair(settings, settings.keystore)
    return _facts(settings, settings.keystore, chain[0]).subject


def _own_pair(settings: TlsSettings, store: CertificateStore) -> tuple[list[bytes], PrivateKeyPem]:
    chain, keys = _content(settings, store)
    if not chain:
        raise settings.error(
            store.certificates_setting, _shown(store), "has no certificate: it must have the PEM of the own certificate"
            " first, then of those that sign it",
        )  # fmt: skip
    if len(chain) > _CHAIN_MAX:
        raise settings.error(
            store.certificates_setting, _shown(store), f"has {len(chain)} certificates, more than {_CHAIN_MAX}: leave"
            " only the chain of the own one",
        )  # fmt: skip
    if len(keys) != 1:
        advice = "has no private key: add its PEM" if not keys else "has several private keys: leave the one in use"
        raise settings.error(store.key_setting, _shown(store), advice)
    return chain, keys[0]


def _content(settings: TlsSettings, store: CertificateStore) -> tuple[list[bytes], list[PrivateKeyPem]]:
    """Certificates as DER, and private keys."""
    name, data = store.certificates_setting, b""
    if store.location:
        try:
            data = read_store(store.location)
        except OSError as error:
            raise settings.error(
                name, store.location, f"cannot be read ({error.strerror or error}): check the path and its permissions"
            ) from None
    if store.kind == "PKCS12":
        return _pkcs12(settings, store, data)
    text = data.decode("ascii", "replace") if store.location else store.certificates
    try:
        certificates = certificates_in_pem(text)
    except BadPem as error:
        raise settings.error(name, _shown(store), str(error)) from None
    if store.name != "ssl.keystore":
        return certificates, []
    try:
        return certificates, keys_in_pem(text if store.location else store.key)
    except BadPem as error:
        raise settings.error(store.key_setting, _shown(store), str(error)) from None


def _pkcs12(settings: TlsSettings, store: CertificateStore, data: bytes) -> tuple[list[bytes], list[PrivateKeyPem]]:
    try:
        pkcs12: Any = importlib.import_module("cryptography.hazmat.primitives.serialization.pkcs12")
        serialization: Any = importlib.import_module("cryptography.hazmat.primitives.serialization")
    except ImportError:
        pem = store.location.removesuffix(".p12").removesuffix(".pfx") + ".pem"
        raise settings.error(
            f"{store.name}.type", store.kind, "needs the package cryptography, which is not installed: install it, or"
            f" run {pem_command(store.name, store.location, pem)} and set {store.name}.type=PEM with the new location",
        ) from None  # fmt: skip
    try:
        contents = pkcs12.load_pkcs12(data, store.password.encode() if store.password else None)
    except (ValueError, TypeError):
        raise settings.error(
            f"{store.name}.password", HIDDEN if store.password else "",
            f"{store.name}.location is no PKCS12 store that this password opens: correct one of both",
        ) from None  # fmt: skip
    der = serialization.Encoding.DER
    own = [contents.cert] if contents.cert is not None else []
    certificates = [one.certificate.public_bytes(der) for one in [*own, *contents.additional_certs]]
    if contents.key is None:
        return certificates, []
    key = contents.key.private_bytes(der, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificates, [PrivateKeyPem(pem_block("PRIVATE KEY", key), encrypted=False)]


def _refused_pair(
    settings: TlsSettings, store: CertificateStore, key: PrivateKeyPem, error: ssl.SSLError
) -> ConfigError:
    reason = error.reason or ""
    if reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}:
        advice = "the private key does not belong to the first certificate: give the key of that one"
    elif reason in {"EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"}:
        advice = f"its certificate is too weak ({reason}): make one of at least RSA 2048 or P-256, and SHA-256"
        return settings.error(store.certificates_setting, _shown(store), advice)
    elif key.encrypted:
        return settings.error(
            "ssl.key.password", HIDDEN, f"does not decrypt the private key of {store.key_setting}: correct it"
        )
    else:
        advice = "the certificate or the private key cannot be read: both must be PEM, the key RSA, EC or Ed25519"
    return settings.error(store.key_setting, _shown(store), advice)


def _warnings(settings: TlsSettings, store: CertificateStore) -> tuple[str, ...]:
    if not store.location or not is_world_readable(store.location):
        return ()
    named = f"{settings.prefix}{store.key_setting}={store.location!r}"
    return (f"{named}: each user of this machine can read the private key: take the permission away (chmod o-r)",)


# ---------------------------------------------------------------- trusted certificates


def _trusted(settings: TlsSettings, store: CertificateStore, now_s: float) -> list[bytes]:
    certificates, _ = _content(settings, store)
    if not certificates:
        raise settings.error(
            store.certificates_setting, _shown(store), "has no certificate: it must have the PEM of those that sign the"
            " certificates of the other side",
        )  # fmt: skip
    facts = [_facts(settings, store, one) for one in certificates]
    if all(one.not_after_s < now_s for one in facts):
        raise settings.error(
            store.certificates_setting, _shown(store), f"has only expired certificates, the last since"
            f" {_day(max(one.not_after_s for one in facts))}: replace them",
        )  # fmt: skip
    return certificates


def _load_trusted(context: ssl.SSLContext, settings: TlsSettings, store: CertificateStore, now_s: float) -> None:
    certificates = _trusted(settings, store, now_s)
    try:
        context.load_verify_locations(cadata=b"".join(certificates))
    except ssl.SSLError:
        raise settings.error(
            store.certificates_setting, _shown(store), "has a certificate that OpenSSL cannot read: replace it"
        ) from None


def _facts(settings: TlsSettings, store: CertificateStore, certificate: bytes) -> CertificateFacts:
    try:
        return certificate_facts(certificate)
    except BadPem as error:
        raise settings.error(store.certificates_setting, _shown(store), str(error)) from None


def _check_dates(settings: TlsSettings, store: CertificateStore, facts: CertificateFacts, now_s: float) -> None:
    if facts.not_after_s < now_s:
        advice = f"its certificate {facts.subject!r} has expired on {_day(facts.not_after_s)}: replace the chain"
    elif facts.not_before_s > now_s:
        advice = f"its certificate {facts.subject!r} is valid from {_day(facts.not_before_s)} on: check the clock"
    else:
        return
    raise settings.error(store.certificates_setting, _shown(store), advice)


def _day(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _shown(store: CertificateStore) -> str:
    """What an error may show of a store: its path, never PEM."""
    return store.location or HIDDEN


# ---------------------------------------------------------------- reload


def _stamps(settings: TlsSettings) -> list[FileStamp | None]:
    """Of the files that the settings name."""
    stores = (settings.keystore, settings.truststore)
    return [file_stamp(store.location) for store in stores if store is not None and store.location]


class CertificateFiles:
    """A context and the files that it was made of. The owner asks from time to time whether they have changed.

    ``make`` is :func:`server_context` or :func:`client_context`. Connections keep the context that they began with.
    Raises ConfigError where the first context cannot be made.
    """

    def __init__(self, settings: TlsSettings, make: Callable[[TlsSettings, float], TlsContext], now_s: float) -> None:
        self._settings = self._wanted = settings
        self._make = make
        self._stamps = _stamps(settings)  # before reading: a file that changes meanwhile has changed since
        self.current = make(settings, now_s)

    def want(self, settings: TlsSettings) -> None:
        """Make the next context by these settings: the next ``reloaded`` tries them."""
        self._wanted = settings

    def changed(self) -> bool:
        """Whether the files are others than those in use; after a refused reload that stays so until it succeeds."""
        return self._wanted is not self._settings or _stamps(self._settings) != self._stamps

    def check(self, settings: TlsSettings, now_s: float) -> TlsContext:
        """Make a context by these settings, which is not used. Raises ConfigError where it would be refused."""
        made = self._make(settings, now_s)
        self._check_same_owner(made.certificate, settings)
        return made

    def reloaded(self, now_s: float) -> TlsContext | str:
        """Make a context of the files as they are now: that one, in use from now on; or why the old one stays."""
        wanted = self._wanted
        stamps = _stamps(wanted)
        try:
            made = self.check(wanted, now_s)
        except ConfigError as error:
            return str(error)
        self._settings, self._stamps, self.current = wanted, stamps, made
        return made

    def _check_same_owner(self, new: CertificateFacts | None, settings: TlsSettings) -> None:
        """Raises ConfigError where the new certificate is another broker's, unless that is allowed; as Kafka does."""
        old = self.current.certificate
        if old is None or new is None or settings.keystore is None:
            return
        setting, shown = settings.keystore.certificates_setting, _shown(settings.keystore)
        if new.subject != old.subject and not settings.allows_other_subject:
            raise settings.error(
                setting, shown, f"its subject is now {new.subject!r} instead of {old.subject!r}: set"
                " ssl.allow.dn.changes=true, or take one with the same subject",
            )  # fmt: skip
        if not new.names >= old.names and not settings.allows_fewer_names:
            raise settings.error(
                setting, shown, "it lacks alternative names that the one in use has: set ssl.allow.san.changes=true, or"
                " take one with the same names",
            )  # fmt: skip


class FollowedContexts:
    """The context of connections that are opened from now on: made anew when the files have changed."""

    def __init__(self, files: CertificateFiles, now_s: Callable[[], float], connections: str) -> None:
        """``now_s`` is the time in seconds since 1970; ``connections`` names them in the log."""
        self._files = files
        self._now_s = now_s
        self._connections = connections
        self._refused = ""

    def want(self, settings: TlsSettings) -> None:
        """Use these settings for the next connection, if they can be used."""
        self._files.want(settings)

    def newest(self) -> ssl.SSLContext:
        """Looks at the files, and reads them where they are others: for a worker. The old ones stay if they are bad."""
        if self._files.changed():
            made = self._files.reloaded(self._now_s())
            if not isinstance(made, str):
                self._refused = ""
                logger.info("%s use the new certificates from now on", self._connections)
            elif made != self._refused:  # each new connection fails alike
                self._refused = made
                logger.error("%s go on with the certificates of before: %s", self._connections, made)
        return self._files.current.context
