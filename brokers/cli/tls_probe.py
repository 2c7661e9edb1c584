"""One TLS handshake by hand before a command begins: clients try a refused one again until their timeout, silently."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from fleetlog.brokers.addresses import address_text

TLS_CONTEXT: Final = "ssl_context"
"""The argument of kafka-python's clients that holds all of TLS."""

_SETTINGS: Final = "in the file of --command-config"
_UNTRUSTED_CODES: Final = frozenset({2, 18, 19, 20, 21, 26})
"""OpenSSL's X509_V_ERR codes of a chain that ends at no trusted certificate, or at one that may not sign."""
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAME_CODES: Final = frozenset({62, 64})
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL"})
_ALERT: Final = b"\x15"


class TlsRefused(OSError):
    """TLS with an address failed, or is missing on one side; the text names the address and says what to do."""


def tls_connection(connection: socket.socket, address: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
    """The connection after a handshake. Raises TlsRefused, TimeoutError where nothing is answered."""
    try:
        return context.wrap_socket(connection, server_hostname=address[0].rstrip("."))
    except ssl.SSLError as error:
        raise tls_refusal(error, address) from None
    except ValueError:  # a name that no certificate can have
        raise TlsRefused(f"{address_text(*address)} cannot be checked: connect by a host's name or address") from None
    except TimeoutError:
        raise
    except OSError:  # an end within the handshake
        raise TlsRefused(_ended(address)) from None


def tls_refusal(error: ssl.SSLError, address: tuple[str, int]) -> TlsRefused:
    """What an error of TLS means, also one of the first read: TLS 1.3 refuses a client's certificate only then."""
    return TlsRefused(_explained(error, address))


def without_tls(first: bytes, address: tuple[str, int]) -> TlsRefused | None:
    """What it means that the first byte of an answer over a connection without TLS is an alert of TLS; else None."""
    if first != _ALERT:
        return None
    return TlsRefused(f"{address_text(*address)} speaks TLS: set security.protocol=SSL, or SASL_SSL, {_SETTINGS}")


def _explained(error: ssl.SSLError, address: tuple[str, int]) -> str:
    from fleetlog.brokers.tls.machine import is_cut_off  # with it comes more than a handshake that succeeds needs

    where, reason = address_text(*address), error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {where} {_rejected(error, address[0])}"
    if is_cut_off(error) or isinstance(error, ssl.SSLZeroReturnError):
        return _ended(address)
    if reason in _NOT_TLS:
        return f"{where} does not speak TLS: connect to a listener with TLS, or set security.protocol=PLAINTEXT"
    if "CERTIFICATE_REQUIRED" in reason:
        return f"{where} asks for a client certificate: set ssl.keystore.type=PEM and ssl.keystore.location {_SETTINGS}"
    if "UNKNOWN_CA" in reason or "CERTIFICATE" in reason:
        return f"{where} refused this client's certificate ({reason}): take one that its ssl.truststore.* signs"
    if "VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        return f"{where} has no version of TLS that is enabled here: see ssl.enabled.protocols of both sides"
    if "HANDSHAKE_FAILURE" in reason:
        return (
            f"{where} refused the handshake: it asks for a client certificate (ssl.keystore.location), {_SETTINGS},"
            " or no cipher suite is enabled on both sides (ssl.cipher.suites)"
        )
    return f"TLS with {where} failed ({reason or error}): compare the ssl.* settings of both sides"


def _rejected(error: ssl.SSLCertVerificationError, host: str) -> str:
    if error.verify_code in _UNTRUSTED_CODES:
        return (
            "is signed by no authority that is trusted here: set ssl.truststore.type=PEM and ssl.truststore.location to"
            f" the certificate of the authority that signs it, {_SETTINGS}"
        )
    if error.verify_code in _OTHER_NAME_CODES:
        return (
            f"has not the name {host}: connect by a name that it has (its subjectAltName), or have it issued with this"
            " name as well"
        )
    if error.verify_code == _EXPIRED:
        return "has expired: renew it at the broker (ssl.keystore.location), which reads new files while it runs"
    if error.verify_code == _NOT_YET_VALID:
        return "is not valid yet: check the clocks of both machines"
    return f"is not accepted: {error.verify_message}"


def _ended(address: tuple[str, int]) -> str:
    return (
        f"{address_text(*address)} ended the connection within the TLS handshake, as a listener without TLS does: "
        "connect to one with TLS, or set security.protocol=PLAINTEXT, or SASL_PLAINTEXT"
    )
