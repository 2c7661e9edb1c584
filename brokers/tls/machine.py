"""TLS of one connection, without its socket: bytes of the network in and out, plaintext out and in.

The owner of a socket feeds what it has received and sends what :meth:`TlsEngine.take` returns. Nothing here waits: each
call does what the bytes at hand allow. Handshakes take the most time and may run in a worker, as long as nothing else
uses the engine meanwhile.
"""

from __future__ import annotations

import ssl
from enum import Enum
from typing import Final, cast

from fleetlog.brokers.logins.principals import subject_name, subject_of_certificate

HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""The most bytes that a peer may send for a handshake; a chain of client certificates has a fifth of it."""
RECORD_HEAD_BYTES: Final = 5
RECORD_BYTES_MAX: Final = RECORD_HEAD_BYTES + 16 * 1024 + 2048
"""The longest record of the network, with its head (RFC 5246, section 6.2.3)."""
FED_BYTES_MAX: Final = 1024 * 1024
"""The most bytes of the network that wait to be read."""
OUTGOING_BYTES_MAX: Final = 1024 * 1024
"""From here on, :meth:`TlsEngine.write` accepts nothing until bytes are taken."""
WRITE_BYTES_MAX: Final = 256 * 1024
"""The most plaintext that one call of :meth:`TlsEngine.write` encrypts."""

_HANDSHAKE_RECORD: Final = 0x16
_ALERT_RECORD: Final = 0x15
_VERSION_MAJOR: Final = 0x03
NO_TLS_ALERT: Final = bytes.fromhex("15030300020246")  # fatal, protocol_version
NO_HELLO_ALERT: Final = bytes.fromhex("1503030002020a")  # fatal, unexpected_message
_CLIENT_HELLO: Final = b"\x01"
_HELLO_HEAD_BYTES: Final = 4 + 2 + 32 + 1
"""Kind and size of the message, version, random bytes, the length of the session's id."""
_SESSION_ID_BYTES_MAX: Final = 32


class TlsState(Enum):
    """Where a connection's TLS stands."""

    HANDSHAKE = "handshake"
    OPEN = "open"
    ENDED = "ended"
    """The peer has ended its direction; this side may still write."""
    CLOSED = "closed"
    """This side has sent its end."""
    FAILED = "failed"


class TlsProblem(Enum):
    """Why TLS failed, for a metric's label."""

    NOT_TLS = "not_tls"
    VERSION = "version"
    CIPHER = "cipher"
    NO_CERTIFICATE = "no_certificate"
    CERTIFICATE = "certificate"
    REFUSED_BY_PEER = "refused_by_peer"
    TOO_LONG = "too_long"
    CUT_OFF = "cut_off"
    OTHER = "other"


class TlsFailure(Exception):
    """TLS with this peer has ended. What is left to :meth:`TlsEngine.take` is the alert for the peer."""

    def __init__(self, problem: TlsProblem, text: str) -> None:
        super().__init__(text)
        self.problem = problem


_PROBLEMS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (TlsProblem.NO_CERTIFICATE, "the client showed no certificate"),
    "NO_SHARED_CIPHER": (TlsProblem.CIPHER, "the peer offers no cipher suite that is enabled here"),
    **dict.fromkeys(
        ("UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "NO_PROTOCOLS_AVAILABLE"),
        (TlsProblem.VERSION, "the peer offers no version of TLS that is enabled here"),
    ),
    **dict.fromkeys(
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL"),
        (TlsProblem.NOT_TLS, "the peer does not speak TLS"),
    ),
}


def is_cut_off(error: ssl.SSLError) -> bool:
    """Whether the connection ended without an alert that says so. Python 3.11.2 has no class for it."""
    return isinstance(error, ssl.SSLEOFError | ssl.SSLSyscallError) or error.reason == "UNEXPECTED_EOF_WHILE_READING"


def _failure(error: ssl.SSLError) -> TlsFailure:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailure(TlsProblem.CERTIFICATE, f"the peer's certificate is not accepted: {error.verify_message}")
    reason = error.reason or "of an unknown kind"
    if reason in _PROBLEMS:
        return TlsFailure(*_PROBLEMS[reason])
    if "ALERT" in reason:
        return TlsFailure(TlsProblem.REFUSED_BY_PEER, f"the peer refused TLS: {reason}")
    return TlsFailure(TlsProblem.OTHER, f"error of TLS: {reason}")


def begins_tls(first: bytes | bytearray | memoryview) -> bool:
    """Whether the first bytes of a client may be those of TLS; two of them decide."""
    return first[:1] in (b"", b"\x16") and first[1:2] in (b"", b"\x03")


def begins_hello(first: bytes | bytearray) -> bool:
    """Whether the first bytes of a client, which begin TLS, may be those of a ClientHello, as far as they are there.

    A ClientHello may have several records, but no record has more than the message (RFC 8446, sections 4.1.2 and 5.1).
    """
    record_bytes = int.from_bytes(first[3:5], "big")
    message = first[RECORD_HEAD_BYTES : RECORD_HEAD_BYTES + record_bytes]
    if len(message) < _HELLO_HEAD_BYTES:
        return message[:1] in (b"", _CLIENT_HELLO)
    return (
        message[0] == _CLIENT_HELLO[0]
        and record_bytes - 4 <= int.from_bytes(message[1:4], "big") <= HANDSHAKE_BYTES_MAX
        and message[4] == _VERSION_MAJOR
        and message[_HELLO_HEAD_BYTES - 1] <= _SESSION_ID_BYTES_MAX
    )


def not_tls() -> TlsFailure:
    """The failure of a peer that does not speak TLS."""
    return TlsFailure(TlsProblem.NOT_TLS, "the peer does not speak TLS")


def first_record_bytes(data: bytes | bytearray | memoryview) -> int | None:
    """How long the first record of the network is, with its head; None before the head is there."""
    return None if len(data) < RECORD_HEAD_BYTES else RECORD_HEAD_BYTES + int.from_bytes(data[3:5], "big")


def whole_records(data: bytes | bytearray | memoryview, start: int = 0) -> int:
    """How many bytes the whole records from there on have, ``RECORD_BYTES_MAX`` at most; 0: none is whole.

    All bytes that are there where a head names a longer record than there may be: the engine refuses it.
    """
    end, limit = start, min(len(data), start + RECORD_BYTES_MAX)
    while limit - end >= RECORD_HEAD_BYTES:
        size = RECORD_HEAD_BYTES + (data[end + 3] << 8 | data[end + 4])
        if size > RECORD_BYTES_MAX and end == start:
            return limit - start
        if end + size > limit:
            break
        end += size
    return end - start


class TlsEngine:
    """One side of a TLS connection.

    ``server_name`` is the host that a client connects to, for the check of names and for SNI.
    """

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_name: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_name
        )
        self._server_side = server_side
        self._first = b""
        self._fed_bytes = 0
        self._failure: tuple[TlsProblem, str] | None = None  # the exception itself would hold the engine in a circle
        self.state = TlsState.HANDSHAKE
        self.was_cut_off = False
        """Whether the peer's connection ended without the end of TLS; Kafka's clients end so."""

    # ---------------------------------------------------------------- the network's side

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes of the network. Raises TlsFailure where they begin no TLS.

        Raises BufferError where FED_BYTES_MAX would wait to be read: the owner must read first.
        """
        if self._failure is not None:
            raise TlsFailure(*self._failure)
        if self._incoming.pending + len(data) > FED_BYTES_MAX:
            raise BufferError(f"more than {FED_BYTES_MAX} bytes wait to be read")
        if len(self._first) < 2:
            self._first += bytes(data[: 2 - len(self._first)])
            self._check_first()
        self._incoming.write(data)
        self._fed_bytes += len(data)

    def feed_eof(self) -> None:
        """The peer's connection has ended; what was fed can still be read."""
        self._incoming.write_eof()

    def take(self, limit: int = -1) -> bytes:
        """What is to be sent to the peer, ``limit`` bytes at most; empty where there is nothing."""
        return self._outgoing.read(limit)

    @property
    def outgoing_bytes(self) -> int:
        """How many bytes :meth:`take` has. Reading may add some (TLS 1.3's keys change), so send before reading on."""
        return self._outgoing.pending

    def _check_first(self) -> None:
        kinds = (_HANDSHAKE_RECORD,) if self._server_side else (_HANDSHAKE_RECORD, _ALERT_RECORD)
        bad_kind = bool(self._first) and self._first[0] not in kinds
        if bad_kind or (len(self._first) == 2 and self._first[1] != _VERSION_MAJOR):
            self._outgoing.write(NO_TLS_ALERT)
            raise self._failed(not_tls())

    def _failed(self, failure: TlsFailure) -> TlsFailure:
        self.state = TlsState.FAILED
        self._failure = (failure.problem, str(failure))
        return failure

    # ---------------------------------------------------------------- handshake

    def handshake(self) -> bool:
        """Go on with the handshake as far as the bytes at hand allow; True when it is done. Raises TlsFailure."""
        if self._failure is not None:
            raise TlsFailure(*self._failure)
        if self.state is not TlsState.HANDSHAKE:
            return True
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            if self._fed_bytes > HANDSHAKE_BYTES_MAX:
                text = f"the peer's handshake has more than {HANDSHAKE_BYTES_MAX} bytes"
                raise self._failed(TlsFailure(TlsProblem.TOO_LONG, text)) from None
            return False
        except ssl.SSLError as error:
            if is_cut_off(error) or isinstance(error, ssl.SSLZeroReturnError):
                text = "the connection ended within the handshake"
                raise self._failed(TlsFailure(TlsProblem.CUT_OFF, text)) from None
            raise self._failed(_failure(error)) from None
        self.state = TlsState.OPEN
        return True

    @property
    def version(self) -> str | None:
        """``TLSv1.2`` or ``TLSv1.3``; None before the handshake is done."""
        return None if self.state is TlsState.HANDSHAKE else self._object.version()

    @property
    def cipher(self) -> str | None:
        """OpenSSL's name of the cipher suite; None before the handshake is done."""
        cipher = None if self.state is TlsState.HANDSHAKE else self._object.cipher()
        return cipher[0] if cipher else None

    def peer_subject(self) -> str | None:
        """The distinguished name of the peer's verified certificate, as Java spells it; None: it showed none.

        None also before the handshake is done and where certificates are not verified. Raises BadPrincipal.
        """
        if self.state in {TlsState.HANDSHAKE, TlsState.FAILED} or self._object.context.verify_mode is ssl.CERT_NONE:
            return None
        certificate = self._object.getpeercert(binary_form=True)
        return subject_name(subject_of_certificate(certificate)) if certificate else None

    # ---------------------------------------------------------------- plaintext

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt into the buffer until it is full or nothing is at hand; how many bytes. Raises TlsFailure.

        What was decrypted before a failure is returned; the next call raises it.
        """
        self._must_have_shaken_hands()
        filled = 0
        while filled < len(buffer) and self.state is not TlsState.ENDED:
            try:
                count = cast("int", self._object.read(len(buffer) - filled, buffer[filled:]))
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                self._end(cut_off=False)
            except ssl.SSLError as error:
                if is_cut_off(error):
                    self._end(cut_off=True)
                elif filled:
                    self._failed(_failure(error))
                    break
                else:
                    raise self._failed(_failure(error)) from None
            else:
                if count == 0:
                    self._end(cut_off=False)
                filled += count
                if not self._incoming.pending and not self._object.pending():
                    break  # to be told by OpenSSL costs more than to decrypt a record
        return filled

    def read(self, limit: int) -> bytes:
        """Up to ``limit`` bytes of plaintext; empty where nothing is at hand (``state`` tells an end). As read_into."""
        buffer = bytearray(limit)
        with memoryview(buffer) as view:
            count = self.read_into(view)
        del buffer[count:]
        return bytes(buffer)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypt up to WRITE_BYTES_MAX bytes of the data; how many, fewer where much is not yet taken.

        Raises TlsFailure, and ValueError before the handshake is done or after :meth:`close_notify`.
        """
        self._must_have_shaken_hands()
        written = 0
        with memoryview(data) as whole, whole.cast("B") as view:
            end = min(len(view), WRITE_BYTES_MAX)
            while written < end and self._outgoing.pending < OUTGOING_BYTES_MAX:
                try:
                    written += self._object.write(view[written:end])
                except ssl.SSLWantReadError:
                    break
                except ssl.SSLError as error:
                    raise self._failed(_failure(error)) from None
        return written

    def sealed(self, record: memoryview) -> bytes:
        """Encrypt a record's plaintext, which is to be sent at once. Raises as :meth:`write`."""
        self._must_have_shaken_hands()
        try:
            self._object.write(record)
        except ssl.SSLError as error:
            raise self._failed(_failure(error)) from None
        return self._outgoing.read()

    def close_notify(self) -> None:
        """End this direction. The peer's end is not waited for: after the last :meth:`take`, the socket is closed."""
        if self.state in {TlsState.OPEN, TlsState.ENDED}:
            try:
                self._object.unwrap()
            except ssl.SSLError:
                pass  # the end is in what is to be sent; it is the peer's end that is missing
        if self.state is not TlsState.FAILED:
            self.state = TlsState.CLOSED

    def _end(self, *, cut_off: bool) -> None:
        self.was_cut_off = cut_off
        self.state = TlsState.ENDED

    def _must_have_shaken_hands(self) -> None:
        if self._failure is not None:
            raise TlsFailure(*self._failure)
        if self.state in {TlsState.HANDSHAKE, TlsState.CLOSED}:
            raise ValueError(f"nothing can be read or written in the state {self.state.value}")
