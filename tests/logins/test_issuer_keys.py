"""Keys of an issuer: fetched over real sockets, followed, and bounded in size, time and number of fetches."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetlog.brokers.logins import issuer_keys
from fleetlog.brokers.logins.issuer_keys import IssuerKeys, KeysUnavailable, fetch_keys
from fleetlog.brokers.logins.oauthbearer import BadToken, TokenOutcome, VerifiedToken
from fleetlog.brokers.logins.oidc_settings import OidcSettings
from fleetlog.brokers.logins.token_claims import TokenRules
from tests.support.certificates import Authority
from tests.support.clocks import RealClock
from tests.support.issuer import AUDIENCE, Issuer, public_document, signed
from tests.support.waiting import eventually_async


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    found = Issuer()
    try:
        yield found
    finally:
        found.close()


def settings(issuer: Issuer, url: str = "", **more: Any) -> OidcSettings:
    rules = TokenRules(issuer.url, frozenset({AUDIENCE}))
    return OidcSettings(url or f"{issuer.url}/keys", rules, 3_600_000, 50, 200)._replace(**more)


async def outcome(keys: IssuerKeys, token: str) -> TokenOutcome:
    future: asyncio.Future[TokenOutcome] = asyncio.get_running_loop().create_future()
    keys.verify(token.encode(), future.set_result)
    async with asyncio.timeout(20):
        return await future


def run(keys: IssuerKeys, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        await keys.start()
        try:
            await body()
        finally:
            await keys.stop()

    asyncio.run(whole())


def test_a_token_of_a_new_key_waits_for_one_fetch(issuer: Issuer) -> None:
    clock = RealClock()
    keys = IssuerKeys(settings(issuer), clock)

    async def body() -> None:
        old = issuer.token()
        assert isinstance(await outcome(keys, old), VerifiedToken)
        issuer.rotate("key-2")
        assert isinstance(await outcome(keys, issuer.token()), BadToken)  # right after a fetch there is no other one
        assert issuer.fetches == 1
        clock.ahead_ms = issuer_keys.EARLY_INTERVAL_MS
        both = await asyncio.gather(outcome(keys, issuer.token()), outcome(keys, issuer.token(sub="bob")))
        assert [type(one) for one in both] == [VerifiedToken, VerifiedToken]
        assert issuer.fetches == 2
        assert isinstance(await outcome(keys, old), BadToken)  # its key was withdrawn

    run(keys, body)


def test_forged_key_ids_do_not_flood_the_issuer(issuer: Issuer) -> None:
    clock = RealClock()
    keys = IssuerKeys(settings(issuer), clock)

    async def body() -> None:
        clock.ahead_ms = issuer_keys.EARLY_INTERVAL_MS
        forged = Issuer()
        try:
            tokens = [_with_key_id(forged, number) for number in range(50)]
            found = await asyncio.gather(*(outcome(keys, token) for token in tokens))
        finally:
            forged.close()
        assert all(isinstance(one, BadToken) for one in found)
        assert issuer.fetches == 2

    run(keys, body)


def _with_key_id(issuer: Issuer, number: int) -> str:
    return signed(issuer.claims(), issuer.key, {"alg": issuer.algorithm, "kid": f"forged-{number}"})


def test_an_issuer_that_is_away_leaves_the_keys(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    keys = IssuerKeys(settings(issuer, refresh_ms=100), RealClock())

    async def body() -> None:
        token = issuer.token()
        issuer.status = 503
        fetched = issuer.fetches
        await eventually_async(lambda: issuer.fetches >= fetched + 3, "the issuer is asked again", 20)
        assert isinstance(await outcome(keys, token), VerifiedToken)
        issuer.status = 200
        issuer.rotate("key-2")
        fetched = issuer.fetches
        await eventually_async(lambda: issuer.fetches > fetched + 1, "the issuer's keys are fetched", 20)
        assert isinstance(await outcome(keys, token), BadToken)
        assert isinstance(await outcome(keys, issuer.token()), VerifiedToken)

    run(keys, body)
    assert "answers 503" in caplog.text


def test_a_long_token_is_checked_by_a_worker(issuer: Issuer) -> None:
    keys = IssuerKeys(settings(issuer), RealClock())

    async def body() -> None:
        found: list[TokenOutcome] = []
        keys.verify(issuer.token(groups="g" * 20_000).encode(), found.append)
        assert found == []
        await eventually_async(lambda: found, "the outcome of the long token", 20)
        assert isinstance(found[0], VerifiedToken)
        keys.verify(issuer.token().encode(), found.append)
        assert len(found) == 2

    run(keys, body)


def start_fails(keys: IssuerKeys) -> str:
    with pytest.raises(KeysUnavailable) as refused:
        asyncio.run(keys.start())
    return str(refused.value)


def test_a_start_without_keys(issuer: Issuer) -> None:
    issuer.status = 404
    assert "cannot be fetched: it answers 404" in start_fails(IssuerKeys(settings(issuer), RealClock()))
    assert issuer.fetches == issuer_keys.START_ATTEMPTS
    issuer.status = 302  # to itself: followed, it would be an answer
    assert "it answers 302" in start_fails(IssuerKeys(settings(issuer), RealClock()))
    issuer.status, issuer.document = 200, b"[]"
    assert "cannot be used: it has no list" in start_fails(IssuerKeys(settings(issuer), RealClock()))
    gone = IssuerKeys(settings(issuer, "http://127.0.0.1:1/keys"), RealClock())
    assert "Connection refused" in start_fails(gone)


def test_a_document_without_end(issuer: Issuer) -> None:
    issuer.document = b" " * (issuer_keys.DOCUMENT_BYTES_MAX + 1)
    with pytest.raises(OSError, match="more than 1048576 bytes"):
        fetch_keys(f"{issuer.url}/keys")


def test_a_document_that_comes_byte_by_byte(issuer: Issuer) -> None:
    issuer.drips = True
    began = time.monotonic()
    with pytest.raises(OSError, match="longer than 5 s"):
        fetch_keys(f"{issuer.url}/keys")
    assert time.monotonic() - began < 60


def test_keys_in_a_file(tmp_path: Path, issuer: Issuer) -> None:
    path = tmp_path / "keys of the issuer.json"
    path.write_bytes(public_document(issuer.key))
    assert fetch_keys(path.as_uri()) == path.read_bytes()
    with pytest.raises(OSError, match="it is no file"):
        fetch_keys(tmp_path.as_uri())
    with pytest.raises(FileNotFoundError):
        fetch_keys((tmp_path / "none").as_uri())
    path.write_bytes(b" " * (issuer_keys.DOCUMENT_BYTES_MAX + 1))
    with pytest.raises(OSError, match="more than"):
        fetch_keys(path.as_uri())


def test_https_of_an_authority_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trusted by SSL_CERT_FILE, for the name that it certifies; else not."""
    authority = Authority(tmp_path, "authority")
    with_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with_tls.load_cert_chain(authority.pair("/CN=issuer").store(tmp_path / "issuer.pem"))
    secured = Issuer(tls=with_tls)
    try:
        assert secured.url.startswith("https://127.0.0.1:")
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch_keys(f"{secured.url}/keys")
        monkeypatch.setenv("SSL_CERT_FILE", authority.file)
        assert fetch_keys(f"{secured.url}/keys") == secured.document
        with_tls.load_cert_chain(authority.pair("/CN=b", names="DNS:elsewhere").store(tmp_path / "elsewhere.pem"))
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch_keys(f"{secured.url}/keys")
    finally:
        secured.close()


def test_no_proxy_of_the_environment(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert fetch_keys(f"{issuer.url}/keys") == issuer.document
