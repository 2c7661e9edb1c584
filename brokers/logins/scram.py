"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677) without channel binding: both sides, and stored credentials.

The server's side costs a handful of HMACs. The client's side runs PBKDF2, milliseconds of CPU. Passwords are their
UTF-8, without SASLprep, as Java's and most other clients take them.

A user without a credential gets a salt that is always the same for the name, in a form that the fleet's credentials
have (their tools make salts of different lengths and alphabets), as often as they have it, and fails at the proof like
a wrong password, so that an answer doesn't tell which users exist.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from fleetlog.brokers.logins.mechanisms import Authenticated, AuthenticationFailed, LoginStep
from fleetlog.brokers.logins.principals import USER, Principal, has_outer_blanks

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
"""The most that a credential may be stored with: each login costs its client as many."""
SERVER_ITERATIONS_MAX: Final = 1_000_000
"""The most that a client of ours computes for a server."""
MESSAGE_BYTES_MAX: Final = 8192

_RANDOM_BITS: Final = 130
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class ScramMechanism(Enum):
    """The mechanisms; values are their names in SASL."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        """The hash as hashlib calls it."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def code(self) -> int:
        """Its number in the SCRAM credential requests."""
        return 1 if self is ScramMechanism.SHA_256 else 2

    @property
    def key_bytes(self) -> int:
        """The size of its keys and proofs."""
        return 32 if self is ScramMechanism.SHA_256 else 64

    def digest(self, data: bytes) -> bytes:
        """H."""
        return hashlib.new(self.hash_name, data).digest()

    def mac(self, key: bytes, data: bytes) -> bytes:
        """HMAC."""
        return hmac.digest(key, data, self.hash_name)


MECHANISM_OF_CODE: Final = {mechanism.code: mechanism for mechanism in ScramMechanism}


def random_text(random_bits: Callable[[int], int]) -> str:
    """130 random bits in base 36: a nonce, or (as bytes) a salt like those of Kafka's tools."""
    number = random_bits(_RANDOM_BITS)
    digits: list[str] = []
    while number or not digits:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


# ---------------------------------------------------------------- credentials


@dataclass(frozen=True, slots=True, repr=False)
class ScramCredential:
    """What a server keeps about a password. Not shown by ``repr``: the keys allow a server to be impersonated."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """PBKDF2 of a password: about 0.3 us for each iteration."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a salted password, which is what AlterUserScramCredentials carries."""
    stored_key = mechanism.digest(mechanism.mac(salted, b"Client Key"))
    return ScramCredential(salt, stored_key, mechanism.mac(salted, b"Server Key"), iterations)


def credential_text(credential: ScramCredential) -> str:
    """The value in a user's configuration, under the mechanism's name."""
    keys = (_encoded(part) for part in (credential.salt, credential.stored_key, credential.server_key))
    return "salt={},stored_key={},server_key={},iterations={}".format(*keys, credential.iterations)


def credential_from(mechanism: ScramMechanism, text: str) -> ScramCredential:
    """Inverse of :func:`credential_text`; raises ValueError, whose text holds nothing of the credential."""
    try:
        parts = dict(part.split("=", 1) for part in text.split(","))
        if parts.keys() != {"salt", "stored_key", "server_key", "iterations"}:
            raise ValueError
        salt, stored_key, server_key = (_decoded(parts[name]) for name in ("salt", "stored_key", "server_key"))
        iterations = int(parts["iterations"])
        if not salt or {len(stored_key), len(server_key)} != {mechanism.key_bytes} or iterations < 1:
            raise ValueError
    except ValueError:
        raise ValueError(f"not a credential of {mechanism.value}") from None
    return ScramCredential(salt, stored_key, server_key, iterations)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    """Raises ValueError (binascii.Error is one)."""
    return base64.b64decode(text.encode(), validate=True)


# ---------------------------------------------------------------- credentials that do not exist


class CredentialForm(NamedTuple):
    """What tells the credentials of one tool from those of another: all that an answer shows of one but its bytes."""

    iterations: int
    alphabet: bytes = b""
    """The bytes that a salt has; empty for :func:`random_text`, whose salts also differ in length."""
    length: int = 0


_ALPHABETS: Final = (
    b"0123456789", b"0123456789abcdef", _DIGITS.encode(), (_DIGITS + _DIGITS[10:].upper()).encode(),
    bytes(range(33, 127)), bytes(range(256)),
)  # fmt: skip
USUAL_FORM: Final = CredentialForm(ITERATIONS_MIN)
_LONGEST_TEXT: Final = len(random_text(lambda bits: (1 << bits) - 1))


def form_of(credential: ScramCredential) -> CredentialForm:
    """The form of a credential, for :func:`fake_credential`."""
    salt = credential.salt
    alphabet = next(one for one in _ALPHABETS if not set(salt) - set(one))
    # 130 bits have 26 digits, the first of them 1, or 25, seldom 24
    shorter = _LONGEST_TEXT - 2 <= len(salt) < _LONGEST_TEXT
    if alphabet == _DIGITS.encode() and (shorter or (len(salt) == _LONGEST_TEXT and salt.startswith(b"1"))):
        return CredentialForm(credential.iterations)
    return CredentialForm(credential.iterations, alphabet, len(salt))


def fake_credential(
    mechanism: ScramMechanism, user: str, key: bytes, forms: Mapping[CredentialForm, int]
) -> ScramCredential:
    """What is answered for a user that does not exist: for a name always the same, with the fleet's secret as ``key``.

    ``forms`` says how many credentials have each form. A name's form is drawn in these proportions by weighted
    rendezvous hashing: when they change by a few credentials, few names get another one.
    """

    def derived(label: str) -> bytes:
        return hmac.digest(key, f"{label}:{mechanism.value}:{user}".encode(), "sha512")

    def distance(form: CredentialForm) -> float:
        drawn = int.from_bytes(derived(f"form {form!r}")[:8], "big")
        return -math.log((drawn + 1) / 2**64) / forms[form]

    form = min(forms, key=distance, default=USUAL_FORM)
    if form.alphabet:
        drawn = hashlib.shake_256(derived("salt")).digest(2 * form.length)
        salt = bytes(
            form.alphabet[int.from_bytes(drawn[at : at + 2], "big") % len(form.alphabet)]
            for at in range(0, len(drawn), 2)
        )
    else:
        salt = random_text(lambda bits: int.from_bytes(derived("salt"), "big") >> (512 - bits)).encode()
    size = mechanism.key_bytes
    return ScramCredential(salt, derived("stored")[:size], derived("server")[:size], form.iterations)


# ---------------------------------------------------------------- names


def encode_saslname(name: str) -> str:
    """Comma and equals sign as RFC 5802 writes them."""
    return name.replace("=", "=3D").replace(",", "=2C")


def decode_saslname(text: str) -> str:
    """Inverse; raises ValueError for an empty name, NUL, or another escape."""
    if not text or "\0" in text or re.search("=(?!2C|3D)", text):
        raise ValueError("not a saslname")
    return text.replace("=2C", ",").replace("=3D", "=")


_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_EXTENSION: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9]*=[^,\0]+")


class _ClientFirst(NamedTuple):
    header: str
    authorization: str
    user: str
    nonce: str
    extensions: dict[str, str]
    bare: str


class _ClientFinal(NamedTuple):
    binding: bytes
    nonce: str
    proof: bytes
    without_proof: str


def _client_first(text: str) -> _ClientFirst:
    """Raises ValueError."""
    flag, authorization, bare = text.split(",", 2)
    if flag != "n":
        raise ValueError("channel binding is not supported")
    if authorization:
        if not authorization.startswith("a="):
            raise ValueError("not an authorization id")
        authorization = decode_saslname(authorization[2:])
    user, nonce, *extensions = bare.split(",")
    if not user.startswith("n=") or not nonce.startswith("r=") or not _NONCE.fullmatch(nonce[2:]):
        raise ValueError("no name or no nonce")  # m= (mandatory extensions) ends here, too
    if not all(_EXTENSION.fullmatch(one) for one in extensions):
        raise ValueError("not an extension")
    return _ClientFirst(
        header=text[: len(text) - len(bare)],
        authorization=authorization,
        user=decode_saslname(user[2:]),
        nonce=nonce[2:],
        extensions=dict(one.split("=", 1) for one in extensions),
        bare=bare,
    )


def _client_final(text: str) -> _ClientFinal:
    """Raises ValueError."""
    without_proof, separator, proof = text.rpartition(",p=")
    binding, nonce, *extensions = without_proof.split(",")
    if not separator or not binding.startswith("c=") or not nonce.startswith("r="):
        raise ValueError("no channel binding, nonce or proof")
    if not all(_EXTENSION.fullmatch(one) for one in extensions):
        raise ValueError("not an extension")
    return _ClientFinal(_decoded(binding[2:]), nonce[2:], _decoded(proof), without_proof)


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


# ---------------------------------------------------------------- the server's side


class ScramServer:
    """One login. ``credentials(user)`` gives what is stored, ``nonce()`` unpredictable text (:func:`random_text`).

    ``fake_key`` is a secret of the fleet, so that all brokers give an unknown user the same salt; ``forms`` are those
    of its credentials. A credential with fewer than 4096 iterations counts as none, as does that of a name that begins
    or ends with a blank.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        credentials: Callable[[str], ScramCredential | None],
        nonce: Callable[[], str],
        fake_key: bytes,
        forms: Mapping[CredentialForm, int] = MappingProxyType({}),
    ) -> None:
        self._mechanism = mechanism
        self._forms = forms
        self._credentials = credentials
        self._server_nonce = nonce
        self._fake_key = fake_key
        self._first: _ClientFirst | None = None
        self._credential: ScramCredential | None = None
        self._reason = ""
        self._server_first = ""
        self._nonce = ""
        self._spent = False

    def evaluate(self, token: bytes) -> LoginStep:
        """The server's next message; raises AuthenticationFailed."""
        if self._spent:
            raise self._failed("a message after the end of the exchange")
        self._spent = True
        if len(token) > MESSAGE_BYTES_MAX:
            raise self._failed(f"a message of {len(token)} bytes")
        try:
            text = token.decode()
            step = self._challenge(_client_first(text)) if self._first is None else self._verdict(_client_final(text))
        except ValueError:  # UnicodeDecodeError and binascii.Error, too
            raise self._failed("a malformed message") from None
        self._spent = step.authenticated is not None
        return step

    def _failed(self, detail: str) -> AuthenticationFailed:
        message = (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{self._mechanism.value}"
        )
        return AuthenticationFailed(message, detail)

    def _challenge(self, first: _ClientFirst) -> LoginStep:
        if first.authorization and first.authorization != first.user:
            raise self._failed("an authorization id that is not the user")
        stored = self._credentials(first.user)
        fake = fake_credential(self._mechanism, first.user, self._fake_key, self._forms)  # so that both take as long
        if stored is None:
            self._reason = f"user {first.user[:100]!r} has no credential for {self._mechanism.value}"
        elif stored.iterations < ITERATIONS_MIN:
            self._reason = f"the credential of {first.user[:100]!r} has fewer than {ITERATIONS_MIN} iterations"
        elif has_outer_blanks(first.user):
            self._reason = f"the name {first.user[:100]!r} begins or ends with a blank"
        elif first.extensions.get("tokenauth", "").lower() == "true":
            self._reason = "delegation tokens are not supported"
        credential = fake if self._reason or stored is None else stored
        self._first, self._credential = first, credential
        self._nonce = first.nonce + self._server_nonce()
        self._server_first = f"r={self._nonce},s={_encoded(credential.salt)},i={credential.iterations}"
        return LoginStep(self._server_first.encode())

    def _verdict(self, final: _ClientFinal) -> LoginStep:
        first, credential, mechanism = self._first, self._credential, self._mechanism
        assert first is not None
        assert credential is not None
        # Both were missing in servers before: CVE-2024-56128.
        # librdkafka before 2.6.1 puts its own part before the whole once more.
        nonce = final.nonce.removeprefix(first.nonce) if len(final.nonce) > len(self._nonce) else final.nonce
        same_nonce = hmac.compare_digest(nonce.encode(), self._nonce.encode())
        same_header = hmac.compare_digest(final.binding, first.header.encode())
        if not same_nonce or not same_header or len(final.proof) != mechanism.key_bytes:
            raise self._failed("the final message has another nonce, another header or no proof")
        message = f"{first.bare},{self._server_first},{final.without_proof}".encode()
        client_key = _xor(final.proof, mechanism.mac(credential.stored_key, message))
        proven = hmac.compare_digest(mechanism.digest(client_key), credential.stored_key)
        if not self._reason and self._credentials(first.user) != credential:
            self._reason = f"the credential of user {first.user[:100]!r} was changed during the login"
        if not proven or self._reason:
            raise self._failed(self._reason or f"user {first.user[:100]!r} gave a wrong password")
        signature = _encoded(mechanism.mac(credential.server_key, message))
        return LoginStep(f"v={signature}".encode(), Authenticated(Principal(USER, first.user)))


# ---------------------------------------------------------------- the client's side


class ScramClient:
    """One login as a client: :meth:`first`, :meth:`final`, :meth:`check`, in this order.

    ``nonce`` is unpredictable text without commas (:func:`random_text`).
    """

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str) -> None:
        if not user or not password or not _NONCE.fullmatch(nonce):
            raise ValueError("SCRAM needs a user, a password and a nonce")
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={encode_saslname(user)},r={nonce}"
        self._signature: bytes | None = None

    def first(self) -> bytes:
        """The first message."""
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The message with the proof. Runs PBKDF2; raises AuthenticationFailed where the challenge is unacceptable."""
        try:
            nonce, salt, iterations = self._challenge_parts(server_first)
        except ValueError:
            raise AuthenticationFailed("the server's SCRAM challenge is malformed") from None
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationFailed("the server's SCRAM challenge is not for this login: another nonce")
        if not ITERATIONS_MIN <= iterations <= SERVER_ITERATIONS_MAX:
            limits = f"between {ITERATIONS_MIN} and {SERVER_ITERATIONS_MAX}"
            raise AuthenticationFailed(f"the server asks for {iterations} SCRAM iterations: not {limits}")
        mechanism = self._mechanism
        salted = salted_password(mechanism, self._password, salt, iterations)
        client_key = mechanism.mac(salted, b"Client Key")
        without_proof = f"c={_encoded(b'n,,')},r={nonce}"
        message = b",".join((self._bare.encode(), server_first, without_proof.encode()))
        self._signature = mechanism.mac(mechanism.mac(salted, b"Server Key"), message)
        proof = _xor(client_key, mechanism.mac(mechanism.digest(client_key), message))
        return f"{without_proof},p={_encoded(proof)}".encode()

    @staticmethod
    def _challenge_parts(server_first: bytes) -> tuple[str, bytes, int]:
        if len(server_first) > MESSAGE_BYTES_MAX:
            raise ValueError
        nonce, salt, iterations, *_ = server_first.decode().split(",")
        if not (nonce.startswith("r=") and salt.startswith("s=") and re.fullmatch("i=[0-9]{1,9}", iterations)):
            raise ValueError
        return nonce[2:], _decoded(salt[2:]), int(iterations[2:])

    def check(self, server_final: bytes) -> None:
        """Whether the server knows the credential, too; raises AuthenticationFailed if not."""
        expected = b"v=" + base64.b64encode(self._signature) if self._signature is not None else b""
        given = server_final.split(b",", 1)[0]
        if not expected or not hmac.compare_digest(given, expected):
            raise AuthenticationFailed("the server did not prove that it knows the SCRAM credential")
