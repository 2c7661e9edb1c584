"""Signatures of tokens (JWS), by the keys that an issuer publishes (JWKS).

The header of a token chooses a key by its id, and nothing else: keys or addresses in it are ignored, and the key says
which algorithms may be used with it. There is neither ``none`` nor an algorithm with a shared secret, so that a public
key can never be taken for one. A signature of 2048-bit RSA costs 40 us, others up to 0.4 ms; a kilobyte of token 5 us.

Imports joserfc, of the extra ``oidc``: only where OAUTHBEARER is enabled.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey, import_key

from fleetlog.brokers.logins.oauthbearer import BadToken, TokenOutcome
from fleetlog.brokers.logins.token_claims import TokenRules, checked_claims

HEADER_CHARACTERS_MAX: Final = 8192
KEY_ID_CHARACTERS_MAX: Final = 1000
KEYS_MAX: Final = 200
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 8192

_RSA: Final = "RSA"
_FAMILIES: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), _RSA),
    "ES256": "P-256",
    "ES384": "P-384",
    "ES512": "P-521",
    "EdDSA": "Ed25519",
    "Ed25519": "Ed25519",
}
"""The algorithms that are accepted, with the kind of key: RSA, or the curve."""
_TOKEN: Final = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_PARAMETERS: Final = {_RSA: ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_TEXT_MAX: Final = 2048
"""The most characters of a key's parameter: the modulus of 8192 bits has 1366."""


class BadKeys(ValueError):
    """What the issuer publishes is not a set of keys that can be used; the text says why."""


class TokenHeader(NamedTuple):
    """What a token's header says about its signature; ``key_id`` is None where it names none."""

    algorithm: str
    key_id: str | None


class SigningKey(NamedTuple):
    """A public key. ``family`` is RSA or its curve; ``algorithm`` the only one it is for, where the issuer says so."""

    family: str
    algorithm: str | None
    public: RSAKey | ECKey | OKPKey

    def fits(self, algorithm: str) -> bool:
        """Whether a signature by that algorithm may be checked with it."""
        return _FAMILIES.get(algorithm) == self.family and self.algorithm in {None, algorithm}


class SigningKeys:
    """The keys of an issuer at one moment."""

    __slots__ = ("_by_id", "_every")

    def __init__(self, rows: list[tuple[str | None, SigningKey]]) -> None:
        self._every = [key for _, key in rows]
        self._by_id: dict[str, list[SigningKey]] = {}
        for key_id, key in rows:
            if key_id is not None:
                self._by_id.setdefault(key_id, []).append(key)

    def __len__(self) -> int:
        return len(self._every)

    def find(self, header: TokenHeader) -> SigningKey | None:
        """The key of a token; one that names none has the only key that fits its algorithm, if there is just one."""
        if header.key_id is None:
            fitting = [key for key in self._every if key.fits(header.algorithm)]
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in self._by_id.get(header.key_id, ()) if key.fits(header.algorithm)), None)


def parse_keys(document: bytes) -> SigningKeys:
    """The keys of a JWKS that are for signatures, and strong enough; others are left out. Raises BadKeys."""
    try:
        published = json.loads(document)
    except (ValueError, RecursionError):
        raise BadKeys("it is not JSON") from None
    rows = published.get("keys") if isinstance(published, dict) else None
    if not isinstance(rows, list) or len(rows) > KEYS_MAX:
        raise BadKeys(f'it has no list "keys" of at most {KEYS_MAX} keys')
    keys = []
    for row in rows:
        key = _key(row) if isinstance(row, dict) else None
        if key is not None:
            key_id = row.get("kid")
            keys.append((key_id if isinstance(key_id, str) else None, key))
    if not keys:
        raise BadKeys(f"it has no key for signatures: RSA of {RSA_BITS_MIN} bits or more, P-256, P-384, P-521, Ed25519")
    return SigningKeys(keys)


def _key(row: Mapping[str, Any]) -> SigningKey | None:
    kind, algorithm = row.get("kty"), row.get("alg")
    operations = row.get("key_ops", ["verify"])
    parameters = _PARAMETERS.get(kind) if isinstance(kind, str) else None
    if parameters is None or row.get("use", "sig") != "sig":
        return None
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    given = {name: row.get(name) for name in parameters}
    if not all(isinstance(text, str) and len(text) <= _TEXT_MAX for text in given.values()):
        return None
    try:
        public = import_key({"kty": kind, **given})  # type: ignore[dict-item]  # all of them are texts
    except (JoseError, ValueError, TypeError):
        return None
    family = _RSA if isinstance(public, RSAKey) else str(given["crv"])
    if family not in _FAMILIES.values() or not isinstance(public, RSAKey | ECKey | OKPKey):
        return None
    if isinstance(public, RSAKey) and not RSA_BITS_MIN <= public.raw_value.key_size <= RSA_BITS_MAX:
        return None
    return SigningKey(family, algorithm if isinstance(algorithm, str) else None, public)


def token_header(token: bytes) -> TokenHeader:
    """What the token says about its signature, before any of it is believed. Raises BadToken."""
    parts = _TOKEN.fullmatch(token)
    if parts is None or len(parts[1]) > HEADER_CHARACTERS_MAX:
        raise BadToken("it is not a signed JWT")
    try:
        header = json.loads(base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        raise BadToken("its header is not JSON") from None
    if not isinstance(header, dict):
        raise BadToken("its header is not a JSON object")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in _FAMILIES:
        raise BadToken(f"its algorithm is {str(algorithm)[:50]!r}: not one of {', '.join(_FAMILIES)}")
    if "crit" in header or "b64" in header:
        raise BadToken("its header asks for extensions of signatures, which are not supported")
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > KEY_ID_CHARACTERS_MAX):
        raise BadToken(f"its key id is no text of at most {KEY_ID_CHARACTERS_MAX} characters")
    return TokenHeader(algorithm, key_id)


class _Registry(jws.JWSRegistry):
    """joserfc's bounds and checks, for tokens as long as a login may be, without its warning of an older name."""

    max_header_length = HEADER_CHARACTERS_MAX
    max_payload_length = 600_000
    max_signature_length = 2048

    def get_alg(self, name: str) -> Any:
        if name not in _FAMILIES or self.allowed is None or name not in self.allowed:
            raise ValueError("not an algorithm of tokens")
        return self.algorithms[name]


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def checked_token(token: bytes, header: TokenHeader, key: SigningKey, rules: TokenRules, wall_ms: int) -> TokenOutcome:
    """What the token proves, or why it is refused. Milliseconds of CPU for tokens of hundreds of kilobytes."""
    try:
        registry = _Registry(algorithms=[header.algorithm], strict_check_header=False)
        payload = jws.deserialize_compact(token, key.public, registry=registry).payload
    except (JoseError, ValueError, TypeError, RecursionError):
        return BadToken("its signature is wrong")
    try:
        claims = json.loads(payload or b"", parse_constant=_no_constant)
        if not isinstance(claims, dict):
            raise ValueError
    except (ValueError, RecursionError):
        return BadToken("its claims are no JSON object")
    try:
        return checked_claims(claims, rules, wall_ms)
    except BadToken as refusal:
        return BadToken(str(refusal))  # that one refers to this call, and with it to the token
