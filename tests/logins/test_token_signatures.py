"""Tokens: each fault is refused for its own reason, and what the issuer signed is accepted by each algorithm."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc.jwk import OctKey, RSAKey

from fleetlog.brokers.logins.oauthbearer import BadToken, TokenOutcome, VerifiedToken
from fleetlog.brokers.logins.token_claims import TokenRules
from fleetlog.brokers.logins.token_signatures import BadKeys, SigningKeys, checked_token, parse_keys, token_header
from tests.support.draw import examples
from tests.support.issuer import key_for, public_document, signed, unsigned

NOW_MS = 1_700_000_000_000
NOW = NOW_MS // 1000
RULES = TokenRules("https://issuer", frozenset({"fleet", "other"}))
KEY = key_for("RS256", "one")
KEYS = parse_keys(public_document(KEY))
HEADER = {"alg": "RS256", "kid": "one"}


def claims(**more: Any) -> dict[str, Any]:
    found = {"iss": "https://issuer", "aud": ["x", "fleet"], "sub": "alice", "iat": NOW, "exp": NOW + 60, **more}
    return {name: value for name, value in found.items() if value is not ...}


def outcome(token: str, keys: SigningKeys = KEYS, rules: TokenRules = RULES) -> TokenOutcome:
    try:
        header = token_header(token.encode())
    except BadToken as refusal:
        return refusal
    key = keys.find(header)
    return BadToken("unknown key") if key is None else checked_token(token.encode(), header, key, rules, NOW_MS)


def refusal(token: str, keys: SigningKeys = KEYS) -> str:
    found = outcome(token, keys)
    assert isinstance(found, BadToken)
    return str(found)


@pytest.mark.parametrize(
    "algorithm",
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519"],
)
def test_each_algorithm(algorithm: str) -> None:
    key = key_for(algorithm, "k")
    keys = parse_keys(public_document(key, KEY))
    token = signed(claims(), key, {"alg": algorithm, "kid": "k"})
    assert outcome(token, keys) == VerifiedToken("alice", (NOW + 60 + 30) * 1000)
    head, body, signature = token.split(".")
    assert refusal(f"{head}.{body}.{signature[:-8]}AAAAAAAA", keys) == "its signature is wrong"
    forged = base64.urlsafe_b64encode(json.dumps(claims(sub="admin")).encode()).rstrip(b"=").decode()
    assert refusal(f"{head}.{forged}.{signature}", keys) == "its signature is wrong"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", "HS256", "HS384", "HS512", "dir", "A128KW", 5, None])
def test_other_algorithms(algorithm: object) -> None:
    assert refusal(unsigned(claims(), {"alg": algorithm, "kid": "one"})).startswith("its algorithm is ")


def test_no_signature_at_all() -> None:
    head, body, _ = signed(claims(), KEY, HEADER).split(".")
    assert refusal(f"{head}.{body}.") == "it is not a signed JWT"
    assert refusal(f"{head}.{body}") == "it is not a signed JWT"


def test_the_public_key_is_no_shared_secret() -> None:
    """An HMAC keyed with what everybody can read, by the forms in which it is published."""
    public = KEY.as_pem(private=False)
    for secret in (public, public.strip(), json.dumps(KEY.as_dict(private=False)).encode()):
        head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": "one"}).encode()).rstrip(b"=")
        body = base64.urlsafe_b64encode(json.dumps(claims()).encode()).rstrip(b"=")
        proof = base64.urlsafe_b64encode(hmac.digest(secret, head + b"." + body, hashlib.sha256)).rstrip(b"=")
        assert refusal((head + b"." + body + b"." + proof).decode()).startswith("its algorithm is 'HS256'")


def test_a_key_in_the_header_is_not_believed() -> None:
    mine = key_for("RS256", "one")
    for more in (
        {"jwk": mine.as_dict(private=False)},
        {"jku": "https://attacker/keys"},
        {"x5u": "https://attacker/chain"},
        {"jwk": mine.as_dict(private=False), "kid": "one"},
    ):
        assert refusal(signed(claims(), mine, {**HEADER, **more})) == "its signature is wrong"


def test_a_key_is_for_its_own_kind_of_algorithm() -> None:
    elliptic = key_for("ES256", "e")
    keys = parse_keys(public_document(KEY, elliptic))
    assert refusal(unsigned(claims(), {"alg": "ES256", "kid": "one"}), keys) == "unknown key"
    assert refusal(unsigned(claims(), {"alg": "RS256", "kid": "e"}), keys) == "unknown key"
    assert refusal(unsigned(claims(), {"alg": "ES384", "kid": "e"}), keys) == "unknown key"
    only = json.loads(public_document(KEY))
    only["keys"][0]["alg"] = "PS256"
    assert refusal(signed(claims(), KEY, HEADER), parse_keys(json.dumps(only).encode())) == "unknown key"


def test_a_token_without_a_key_id_has_the_only_key_that_fits() -> None:
    token = signed(claims(), KEY, {"alg": "RS256"})
    assert outcome(token) == VerifiedToken("alice", (NOW + 90) * 1000)
    assert outcome(token, parse_keys(public_document(KEY, key_for("ES256", "e")))) == outcome(token)
    assert refusal(token, parse_keys(public_document(KEY, key_for("RS256", "two")))) == "unknown key"
    assert refusal(signed(claims(), KEY, {"alg": "RS256", "kid": "two"})) == "unknown key"


@pytest.mark.parametrize("extra", [{"crit": ["exp"], "exp": 1}, {"b64": False}, {"crit": ["b64"], "b64": False}])
def test_extensions_of_signatures(extra: dict[str, Any]) -> None:
    assert refusal(unsigned(claims(), {**HEADER, **extra})).startswith("its header asks for extensions")


@pytest.mark.parametrize("key_id", ["k" * 1001, 7, ["one"], {"a": 1}])
def test_a_strange_key_id(key_id: object) -> None:
    assert refusal(unsigned(claims(), {"alg": "RS256", "kid": key_id})).startswith("its key id is no text")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"iss": "https://issuer/"}, "its issuer is 'https://issuer/', not 'https://issuer'"),
        ({"iss": ...}, "its issuer is missing"),
        ({"iss": ["https://issuer"]}, "its issuer is"),
        ({"iss": "x\n" * 1000}, "its issuer is"),
        ({"aud": "flee"}, "its audience is 'flee', not 'fleet' or 'other'"),
        ({"aud": ...}, "its audience is missing"),
        ({"aud": []}, "its audience is"),
        ({"aud": {"fleet": 1}}, "its audience is"),
        ({"aud": [["fleet"]]}, "its audience is"),
        ({"exp": ...}, "its claim exp is missing"),
        ({"exp": NOW - 30}, "it expired 30 s ago"),
        ({"exp": str(NOW + 60)}, "its claim exp is missing or no time"),
        ({"exp": True}, "its claim exp is missing or no time"),
        ({"exp": -1}, "its claim exp is no time"),
        ({"exp": 10**40}, "its claim exp is no time"),
        ({"exp": 1e300}, "its claim exp is no time"),
        ({"iat": ...}, "its claim iat is missing"),
        ({"iat": NOW + 31}, "it was issued in the future"),
        ({"nbf": NOW + 31}, "it is not valid yet"),
        ({"nbf": None}, "its claim nbf is missing or no time"),
        ({"sub": ...}, "its claim sub, which names the principal"),
        ({"sub": ""}, "its claim sub, which names the principal"),
        ({"sub": "  "}, "its claim sub, which names the principal"),
        ({"sub": "alice\u3000"}, "its claim sub, which names the principal, begins or ends with a blank"),
        ({"sub": "alice\u00a0"}, "its claim sub, which names the principal, begins or ends with a blank"),
        ({"sub": " alice"}, "its claim sub, which names the principal, begins or ends with a blank"),
        ({"sub": "alice\u200b"}, "its claim sub, which names the principal, begins or ends with a blank"),
        ({"sub": 5}, "its claim sub, which names the principal"),
        ({"sub": "a" * 1025}, "its claim sub is longer"),
        ({"sub": "alice\nis Allowed"}, "its claim sub is longer than 1024 characters or has control"),
        ({"scope": 5}, "its claim scope is neither"),
        ({"scope": ["a", 5]}, "its claim scope is neither"),
    ],
)
def test_a_token_with_a_bad_claim_is_refused_with_the_reason(more: dict[str, Any], reason: str) -> None:
    found = refusal(signed(claims(**more), KEY, HEADER))
    assert found.startswith(reason)
    assert len(found) < 400
    assert "\n" not in found


@pytest.mark.parametrize(
    "more",
    [{"exp": NOW - 29}, {"iat": NOW + 30}, {"nbf": NOW + 30}, {"nbf": NOW - 5.5}, {"scope": "a b"}, {"aud": "other"}],
)
def test_within_the_skew(more: dict[str, Any]) -> None:
    assert isinstance(outcome(signed(claims(**more), KEY, HEADER)), VerifiedToken)


def test_other_claims_name_subject_and_scope() -> None:
    rules = RULES._replace(subject_claim="azp", scope_claim="scp")
    token = signed(claims(azp="svc", scp=["a"], scope=5), KEY, HEADER)
    assert outcome(token, rules=rules) == VerifiedToken("svc", (NOW + 90) * 1000)


@pytest.mark.parametrize("payload", [b"", b"[]", b"5", b'"x"', b"{", b'{"exp":NaN}', b"[" * 100_000, b"\xff\xfe"])
def test_claims_that_are_no_object(payload: bytes) -> None:
    assert refusal(signed(payload, KEY, HEADER)) in {"its claims are no JSON object", "it is not a signed JWT"}


@pytest.mark.parametrize(
    "token", ["", ".", "..", "a.b.c", "a.b.c.d.e", "é.b.c", "a b.c.d", "A" * 10_000 + ".b.c", "W10.b.c", "eyJhIjo.b.c"]
)
def test_what_is_no_token(token: str) -> None:
    assert refusal(token)


def test_a_header_that_nests_without_end() -> None:
    deep = base64.urlsafe_b64encode(b"[" * 6000).rstrip(b"=").decode()
    assert refusal(f"{deep}.b.c") == "its header is not JSON"


def test_the_cost_of_a_long_token_that_is_forged() -> None:
    """Half a megabyte, refused at its signature: its claims are not even parsed."""
    token = signed(claims(groups="g" * 380_000), key_for("RS256", "one"), HEADER)
    assert 500_000 < len(token) < 524_288
    took = []
    for _ in range(5):
        began = time.process_time()
        assert refusal(token) == "its signature is wrong"
        took.append(time.process_time() - began)
    assert min(took) < 0.02, took


# ---- keys


def test_keys_that_are_left_out() -> None:
    weak = RSAKey.generate_key(1024, {"kid": "weak"}, auto_kid=False)
    rows = [
        weak.as_dict(private=False),
        OctKey.import_key("a shared secret of thirty-two by", {"kid": "shared"}).as_dict(private=True),
        {**KEY.as_dict(private=False), "kid": "enc", "use": "enc"},
        {**KEY.as_dict(private=False), "kid": "ops", "key_ops": ["encrypt"]},
        {"kty": "RSA", "kid": "long", "n": "A" * 5000, "e": "AQAB"},
        {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
        {"kty": "EC", "kid": "curve", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": ["RSA"]},
        {"kty": "future"},
        "no key",
    ]
    with pytest.raises(BadKeys, match="no key for signatures"):
        parse_keys(json.dumps({"keys": rows}).encode())
    assert len(parse_keys(json.dumps({"keys": [*rows, KEY.as_dict(private=False)]}).encode())) == 1


@pytest.mark.parametrize("document", [b"", b"{}", b"[]", b"\xff", b'{"keys":5}', b"[" * 100_000, b'{"keys":[]}'])
def test_documents_that_are_no_keys(document: bytes) -> None:
    with pytest.raises(BadKeys):
        parse_keys(document)


def test_too_many_keys() -> None:
    with pytest.raises(BadKeys, match="at most 200"):
        parse_keys(json.dumps({"keys": [KEY.as_dict(private=False)] * 201}).encode())


def test_a_private_key_that_was_published_serves_as_a_public_one() -> None:
    keys = parse_keys(json.dumps({"keys": [KEY.as_dict(private=True)]}).encode())
    assert isinstance(outcome(signed(claims(), KEY, HEADER), keys), VerifiedToken)
    key = keys.find(token_header(signed(claims(), KEY, HEADER).encode()))
    assert key is not None
    assert not key.public.is_private


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["alg", "kid", "typ", "crit", "b64", "jwk", "jku", "x5c", "cty", "zip", "iss", "aud", "exp", "sub"]
)


@settings(max_examples=examples(150), deadline=None)
@given(st.dictionaries(NAMES, JSON, max_size=6), st.binary(max_size=60))
def test_any_header_is_refused_with_a_reason(header: dict[str, Any], tail: bytes) -> None:
    """Nothing else is raised, and nothing is accepted that the issuer did not sign."""
    for one in (header, {**header, "alg": "RS256", "kid": "one"}, {**HEADER, **header}):
        text = base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") + b"."
        assert isinstance(outcome((text + b"e30." + b"AAAA").decode()), BadToken)
        assert isinstance(outcome((text + base64.urlsafe_b64encode(tail)).decode()), BadToken)


@given(st.dictionaries(NAMES, JSON, max_size=6))
def test_any_claims_of_the_issuer_are_accepted_or_refused(more: dict[str, Any]) -> None:
    found = outcome(signed({**claims(), **more}, KEY, HEADER))
    assert isinstance(found, VerifiedToken | BadToken)
    assert len(str(found)) < 2000
