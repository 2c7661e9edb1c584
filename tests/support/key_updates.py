"""Records of TLS 1.3 that have no data for the other side: new keys (RFC 8446, sections 4.6.3, 5.2, 7.1 and 7.2)."""

from __future__ import annotations

import hashlib
import hmac
import ssl
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SUITE = "TLS_AES_256_GCM_SHA384"
_HASH_BYTES = 48
_KEY_UPDATE = bytes.fromhex("1800000100")  # the other side need not answer
_HANDSHAKE, _DATA = b"\x16", b"\x17"


class KeyUpdates:
    """The sending side of a client whose handshake is done, and that has sent no data since.

    ``context`` is to be logged with :func:`logs_keys` before the handshake.
    """

    def __init__(self, log: Path) -> None:
        lines = [line.split() for line in log.read_text().splitlines()]
        self._take(bytes.fromhex(next(words[2] for words in lines if words[0] == "CLIENT_TRAFFIC_SECRET_0")))

    def _take(self, secret: bytes) -> None:
        self._secret, self._sent = secret, 0
        self._cipher = AESGCM(self._expanded("key", 32))
        self._nonce = int.from_bytes(self._expanded("iv", 12), "big")

    def _expanded(self, label: str, length: int) -> bytes:
        name = b"tls13 " + label.encode()
        info = length.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
        return hmac.digest(self._secret, info + b"\x01", hashlib.sha384)[:length]

    def data(self, plain: bytes, kind: bytes = _DATA) -> bytes:
        """A record; 16,384 bytes of plaintext at most."""
        head = b"\x17\x03\x03" + (len(plain) + 17).to_bytes(2, "big")
        nonce = (self._nonce ^ self._sent).to_bytes(12, "big")
        self._sent += 1
        return head + self._cipher.encrypt(nonce, plain + kind, head)

    def updates(self, length: int) -> bytes:
        """At least ``length`` bytes of records with new keys."""
        found = bytearray()
        while len(found) < length:
            found += self.data(_KEY_UPDATE, _HANDSHAKE)
            self._take(self._expanded("traffic upd", _HASH_BYTES))
        return bytes(found)


def logs_keys(context: ssl.SSLContext, log: Path) -> ssl.SSLContext:
    """Have the context write the keys of its connections there."""
    context.keylog_filename = str(log)
    return context
