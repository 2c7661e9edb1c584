"""A login by token: the options of Java and librdkafka, what is refused, and tokens of a test issuer."""

from __future__ import annotations

import json
import pickle
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog.spark.client import tokens
from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.kafka_names import check_effect
from fleetlog.spark.client.settings import CLIENT_NAMES, kafka_python_settings, kafka_settings, librdkafka_settings
from fleetlog.spark.client.tokens import TOKEN_KEYWORDS, TokenRefused, TokenSource, TokenUnavailable, with_tokens
from tests.support.issuer import CLIENT_ID, CLIENT_SECRET, Issuer, unsigned

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
LOGIN = {
    "kafka.bootstrap.servers": "a:1",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "OAUTHBEARER",
}
URL = "kafka.sasl.oauthbearer.token.endpoint.url"
HTTPS = {URL: "https://issuer.example/token"}
JAAS = {"kafka.sasl.jaas.config": f'{MODULE} clientId="app" clientSecret="a \\"secret\\"" scope="fleet";'}
IN_JAVA = "org.apache.kafka.common.security.oauthbearer."


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    found = Issuer()
    try:
        yield found
    finally:
        found.close()


def source_of(issuer: Issuer, **more: str) -> TokenSource:
    given = {URL: f"{issuer.url}/token", "kafka.sasl.oauthbearer.client.id": CLIENT_ID}
    secret = {"kafka.sasl.oauthbearer.client.secret": more.pop("secret", CLIENT_SECRET)}
    named = {f"kafka.sasl.oauthbearer.{name}": value for name, value in more.items()}
    keywords = kafka_python_settings(kafka_settings({**LOGIN, **given, **secret, **named}))
    return TokenSource({name: value for name, value in keywords.items() if name in TOKEN_KEYWORDS.values()})


@pytest.mark.parametrize(
    "spelling",
    [
        JAAS,
        {"kafka.sasl.jaas.config": f"{MODULE} clientId=app clientSecret='a \"secret\"' scope=fleet ;"},
        {
            "kafka.sasl.jaas.config": f"{MODULE};",
            "kafka.sasl.oauthbearer.client.credentials.client.id": "app",
            "kafka.sasl.oauthbearer.client.credentials.client.secret": 'a "secret"',
            "kafka.sasl.oauthbearer.scope": "fleet",
            "kafka.sasl.login.callback.handler.class": f"{IN_JAVA}secured.OAuthBearerLoginCallbackHandler",
            "kafka.sasl.oauthbearer.jwt.retriever.class": f"{IN_JAVA}ClientCredentialsJwtRetriever",
        },
        {
            "kafka.sasl.oauthbearer.method": "OIDC",
            "kafka.sasl.oauthbearer.client.id": "app",
            "kafka.sasl.oauthbearer.client.secret": 'a "secret"',
            "kafka.sasl.oauthbearer.scope": "fleet",
        },
    ],
    ids=["JAAS", "JAAS without quotes", "Kafka 4.1", "librdkafka"],
)
def test_every_spelling_means_the_same(spelling: dict[str, str]) -> None:
    settings = kafka_settings({**LOGIN, **HTTPS, **spelling})
    check_effect(settings, CLIENT_NAMES, "the source")
    keywords = pickle.loads(pickle.dumps(kafka_python_settings(settings)))  # as they travel to executors
    wanted = ("https://issuer.example/token", "app", 'a "secret"', "fleet")
    assert tuple(keywords[name] for name in list(TOKEN_KEYWORDS.values())[:4]) == wanted
    made = with_tokens(keywords)
    assert made["sasl_mechanism"] == "OAUTHBEARER"
    assert set(made) & set(TOKEN_KEYWORDS.values()) == set()
    stock = librdkafka_settings(settings)
    assert stock["oauth_cb"].__self__ is made["sasl_oauth_token_provider"]
    assert not [name for name in stock if name.startswith("sasl.oauthbearer.")]
    assert "secret" not in repr(made) + repr(stock)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, f"option {URL} is required"),
        ({**JAAS}, f"option {URL} is required"),
        (HTTPS, "client.id is missing"),
        ({**HTTPS, "kafka.sasl.jaas.config": f'{MODULE} clientId="app";'}, "client.secret is missing"),
        ({**HTTPS, "kafka.sasl.jaas.config": f'{MODULE} clientSecret="a-s3cret";'}, "client.id is missing"),
        ({**HTTPS, "kafka.sasl.jaas.config": 'x.ScramLoginModule required password="a-s3cret";'}, MODULE[:40]),
        ({**HTTPS, "kafka.sasl.jaas.config": f'{MODULE} unsecuredLogin_sub="a-s3cret";'}, "is not supported"),
        ({**HTTPS, "kafka.sasl.jaas.config": f'{MODULE} password="a-s3cret";'}, "password is not supported"),
        ({**JAAS, URL: "http://issuer.example/token"}, "use https"),
        ({**JAAS, URL: "ftp://issuer.example/token"}, "must be https://host/path"),
        ({**JAAS, URL: "https://app:a-s3cret@issuer.example/token"}, "without a user"),
        ({**JAAS, URL: "https://issuer.example:port/"}, "is not an address"),
        ({**JAAS, URL: "file:///etc/token"}, "a file has the token itself"),
        ({URL: "file://etc/token"}, "by its whole path"),
        ({**JAAS, **HTTPS, "kafka.security.protocol": "SSL"}, "SSL does not log in"),
        ({**JAAS, **HTTPS, "kafka.security.protocol": "plaintext"}, "PLAINTEXT does not log in"),
        ({**JAAS, **HTTPS, "kafka.sasl.oauthbearer.method": "default"}, "'default' is not supported"),
        ({**JAAS, **HTTPS, "kafka.sasl.login.callback.handler.class": "org.x.Own"}, "is not supported"),
        ({**JAAS, **HTTPS, "kafka.sasl.oauthbearer.extensions": "auth=a"}, "names of letters"),
        ({**JAAS, **HTTPS, "kafka.sasl.oauthbearer.header.urlencode": "1"}, "neither true nor false"),
        ({**HTTPS, "kafka.sasl.mechanism": "SCRAM-SHA-256"}, "goes with kafka.sasl.mechanism=OAUTHBEARER"),
    ],
)  # fmt: skip
def test_what_is_configured_by_half_is_refused(more: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=re.escape(reason)) as raised:
        kafka_settings({**LOGIN, **more})
    assert "s3cret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_other_ways_to_a_token_are_named() -> None:
    settings = kafka_settings({**LOGIN, **HTTPS, **JAAS, "kafka.sasl.oauthbearer.assertion.file": "/a"})
    with pytest.raises(
        OptionError, match=r"assertion\.file is not supported by the source; supported are .*token\.endp"
    ):
        check_effect(settings, CLIENT_NAMES, "the source")


def test_a_token_is_kept_for_most_of_its_lifetime(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.time()]
    clock = SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic)
    monkeypatch.setattr(tokens, "time", clock)  # the issuer's goes on
    source = source_of(issuer, scope="read write", extensions="logicalCluster=lkc-1,pool=p")
    first = source.current()
    assert source.token() == first.text
    assert issuer.asked == [{"grant_type": "client_credentials", "scope": "read write"}]
    assert source.extensions() == {"logicalCluster": "lkc-1", "pool": "p"}
    assert source.for_librdkafka("") == (first.text, first.expires_s, "", source.extensions())
    assert now[0] + issuer.lifetime_s - 5 < first.expires_s
    issuer.lifetime_s = 200.0
    source = source_of(issuer)
    short = source.current()
    now[0] = short.renewed_s + 1
    issuer.trouble = 503, b"{}"
    assert source.current() == short  # good until its end
    now[0] = short.expires_s + 1
    with pytest.raises(TokenUnavailable, match=r"refused client a-client: 503$"):
        source.current()
    issuer.trouble, issuer.lifetime_s = None, 900.0
    assert source.current().expires_s > short.expires_s


def test_an_opaque_token_ends_as_its_answer_says(issuer: Issuer) -> None:
    issuer.trouble = 200, json.dumps({"access_token": "opaque", "expires_in": 60}).encode()
    began = time.time()
    assert began + 60 <= source_of(issuer).current().expires_s <= time.time() + 60
    issuer.trouble = 200, b'{"access_token": "opaque"}'
    with pytest.raises(TokenRefused, match="a token without an end"):
        source_of(issuer).current()


@pytest.mark.parametrize(
    ("status", "body", "problem", "reason"),
    [
        (400, b'{"error": "invalid_scope", "error_description": "a-s3cret"}', TokenRefused, "400 invalid_scope$"),
        (403, b"a-s3cret", TokenRefused, "refused client a-client: 403$"),
        (302, b"", TokenRefused, "302$"),
        (429, b"[]", TokenUnavailable, "429$"),
        (200, b"no JSON", TokenRefused, "answers no token"),
        (200, b"[" * 100_000, TokenRefused, "answers no token"),
        (200, b'{"access_token": "a\\u0001auth=x"}', TokenRefused, "has no token"),
        (200, b" " * 1_100_000, TokenUnavailable, "more than 1048576 bytes"),
    ],
)
def test_what_an_issuer_should_not_answer(
    issuer: Issuer, status: int, body: bytes, problem: type[Exception], reason: str
) -> None:
    issuer.trouble = status, body
    with pytest.raises(problem, match=reason) as raised:
        source_of(issuer).current()
    assert "s3cret" not in str(raised.value)


def test_a_wrong_secret_and_an_issuer_that_is_away(issuer: Issuer) -> None:
    with pytest.raises(TokenRefused, match=r"refused client a-client: 401 invalid_client$"):
        source_of(issuer, secret="wrong").current()
    with pytest.raises(TokenUnavailable, match=r"cannot be reached: .*refused"):
        source_of(issuer, **{"token.endpoint.url": "http://127.0.0.1:1/token"}).current()


def test_a_token_of_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    settings = kafka_settings({**LOGIN, URL: path.as_uri(), "kafka.sasl.jaas.config": f"{MODULE};"})
    source: Any = with_tokens(kafka_python_settings(settings))["sasl_oauth_token_provider"]
    with pytest.raises(TokenRefused, match="cannot be read: No such file"):
        source.token()
    now = int(time.time())
    for token in (unsigned({"exp": now + 60}, {}), unsigned({"exp": now + 90}, {})):
        path.write_text(token + "\n")
        assert source.token() == token
    for text, reason in (("two words", "has no token"), (unsigned({"exp": now - 60}, {}), r"expired \d+ s ago")):
        path.write_text(text)
        with pytest.raises(TokenRefused, match=reason) as raised:
            source.token()
        assert text not in str(raised.value)
