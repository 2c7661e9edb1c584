"""Login at an issuer: the code flow with PKCE, by which the user's token becomes the login at the brokers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from click.testing import CliRunner

from fleetlog.brokers.cli.main import cli
from fleetlog.brokers.console.asking import PageError
from fleetlog.brokers.console.logins import BrowserSessions
from fleetlog.brokers.console.oidc import LOGIN_S, IssuerError, IssuerOptions, OidcLogin
from tests.cli.shell import Shell
from tests.console.served import Served, Visitor, scram_config, sent_back
from tests.support.fleet import Fleet
from tests.support.issuer import CLIENT_ID, CLIENT_SECRET, Issuer
from tests.support.ports import free_port

REDIRECT = "http://127.0.0.1:9696/login/oidc/callback"


@pytest.fixture
def own_issuer() -> Iterator[Issuer]:
    found = Issuer("ES256")
    yield found
    found.close()


def login_at(issuer: Issuer, now_s: list[float] | None = None) -> OidcLogin:
    options = IssuerOptions(issuer.url, CLIENT_ID, CLIENT_SECRET, "openid")
    return OidcLogin(options, lambda: now_s[0]) if now_s is not None else OidcLogin(options)


def params_of(address: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(sent_back(address)).query))


def test_the_token_of_the_code_is_the_login(own_issuer: Issuer) -> None:
    oidc = login_at(own_issuer)
    cookie, address = oidc.begin("/topics?name=\u00e9", REDIRECT)
    found = oidc.finish(cookie, params_of(address), REDIRECT)
    assert (found.login.user, found.login.mechanism, found.onward) == ("alice", "OAUTHBEARER", "/topics?name=\u00e9")
    assert own_issuer.lifetime_s - 30 < found.lasts_s <= own_issuer.lifetime_s
    assert found.login.password not in repr(found)
    assert oidc._derived("proof", cookie) not in cookie + address, "the proof stays in the console"


def refused(oidc: OidcLogin, cookie: str, params: dict[str, str], redirect: str = REDIRECT) -> PageError:
    with pytest.raises(PageError) as caught:
        oidc.finish(cookie, params, redirect)
    return caught.value


def test_what_another_browser_or_site_sends_is_refused(own_issuer: Issuer) -> None:
    oidc = login_at(own_issuer)
    cookie, address = oidc.begin("/", REDIRECT)
    other, _ = oidc.begin("/", REDIRECT)
    params = params_of(address)
    for forged in ("", ".", "1.2.3.4", other, cookie[:-1], f"\u00e9{cookie}", "x" + cookie):
        assert refused(oidc, forged, params).status == 403, forged
    for wrong in ({"state": ""}, {"state": "\u00e9"}, {"iss": "https://evil.example"}, {"error": "access_denied"}):
        assert refused(oidc, cookie, params | wrong).status == 403, wrong
    assert refused(login_at(own_issuer), cookie, params).status == 403, "of another process"
    assert oidc.finish(cookie, params, REDIRECT).login.user == "alice", "the code was not spent"
    assert "invalid_grant" in str(refused(oidc, cookie, params)), "a code counts once"
    assert "invalid_grant" in str(refused(oidc, cookie, params_of(address), REDIRECT + "x"))


@pytest.mark.parametrize(
    "identity",
    [{"nonce": "another"}, {"nonce": None}, {"aud": "another"}, {"aud": [CLIENT_ID, "another"]}, {"exp": 1},
     {"exp": None}, {"iss": "https://evil.example"}],
)  # fmt: skip
def test_an_identity_that_is_not_for_this_login_is_refused(own_issuer: Issuer, identity: dict[str, Any]) -> None:
    oidc = login_at(own_issuer)
    cookie, address = oidc.begin("/", REDIRECT)
    own_issuer.identity = identity
    assert "ID token" in str(refused(oidc, cookie, params_of(address)))


def test_a_login_has_ten_minutes(own_issuer: Issuer) -> None:
    now_s = [1_000_000.0]
    oidc = login_at(own_issuer, now_s)
    cookie, address = oidc.begin("/", REDIRECT)
    now_s[0] += LOGIN_S + 1
    assert "too long" in str(refused(oidc, cookie, params_of(address)))


def test_a_session_ends_with_its_token() -> None:
    now_s = [0.0]
    sessions = BrowserSessions(lambda: now_s[0])
    session = sessions.begin(None, 10)
    now_s[0] = 9.9
    assert sessions.find(session.key) is session
    now_s[0] = 10
    assert sessions.find(session.key) is None


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ({"issuer": "https://evil.example"}, "says that it is the issuer"),
        ({"token_endpoint": "http://issuer.example/token"}, "https://"),
        ({"authorization_endpoint": ""}, "authorization_endpoint"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
    ],
)
def test_an_issuer_that_cannot_be_trusted_is_refused_at_the_start(
    own_issuer: Issuer, says: dict[str, Any], reason: str
) -> None:
    own_issuer.says = says
    with pytest.raises(IssuerError, match=reason):
        login_at(own_issuer)


@pytest.mark.zookeeper
def test_a_user_logs_in_at_the_issuer_and_sees_what_its_acls_let_it(
    guarded: Fleet, issuer: Issuer, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(CLIENT_SECRET + "\n")
    console = Served(
        guarded.bootstrap, "--login", "OAUTHBEARER", "--command-config", str(scram_config(tmp_path)),
        "--oidc-issuer", issuer.url, "--oidc-client-id", CLIENT_ID, "--oidc-client-secret-file", str(secret),
    )  # fmt: skip
    try:
        visitor = Visitor(console)
        assert visitor.get("/topics").headers["location"] == "/login?next=%2Ftopics"
        page = visitor.page("/login?next=/topics")
        assert "password" not in page
        (link,) = [unescape(part) for part in page.split('"') if part.startswith("/login/oidc")]
        assert visitor.post("/login", {"user": "a", "password": "b"}).status == 405

        issuer.user = "alice"
        got = visitor.get(link)
        callback = urlsplit(sent_back(got.headers["location"]))
        assert (got.status, callback.netloc) == (303, visitor.address)
        issuer.lifetime_s = -100  # brokers refuse an old token, and the console asks them
        issuer.identity = {"exp": int(time.time()) + 300}
        late = visitor.get(f"{callback.path}?{callback.query}")
        assert (late.status, "do not accept the token" in late.text) == (403, True), late.text
        issuer.lifetime_s, issuer.identity = 300.0, {}
        callback = urlsplit(sent_back(visitor.get(link).headers["location"]))
        done = visitor.get(f"{callback.path}?{callback.query}")
        assert done.status == 200
        assert '<meta http-equiv="refresh" content="0; url=/topics">' in done.text
        assert "samesite=strict" in done.headers["set-cookie"].lower() or any(
            name.startswith("fleetlog_console_") for name in visitor.cookies
        )
        assert "alice" in visitor.page("/topics")
        assert visitor.get("/connections", Accept="application/json").status == 403, "alice may not"

        issuer.user = "broker"  # the super user
        admin = Visitor(console)
        callback = urlsplit(sent_back(admin.get("/login/oidc?next=//evil.example/").headers["location"]))
        assert 'url=/">' in admin.page(f"{callback.path}?{callback.query}")
        mine = admin.json("/connections?contains=broker")["connections"]
        assert ("User:broker", "OAUTHBEARER") in {(one["principal"], one["mechanism"]) for one in mine}
        assert issuer.token().split(".")[1] not in admin.page("/connections")
    finally:
        issuer.user, issuer.lifetime_s, issuer.identity = "alice", 300.0, {}
        assert console.close() == 0
    token = tmp_path / "token.properties"
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    for good, text in ((True, issuer.token(sub="broker")), (False, issuer.token(sub="broker", exp=1))):
        line = f'sasl.jaas.config={module} required token="{text}";'
        token.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n{line}\n")
        result = Shell(guarded).run("topics", "list", "--command-config", str(token), code=0 if good else 1)
        assert good or "token" in result.stderr


@pytest.mark.zookeeper
def test_below_a_path_pages_files_and_the_issuer_s_way_back_are_below_it(
    guarded: Fleet, issuer: Issuer, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(CLIENT_SECRET)
    console = Served(
        guarded.bootstrap, "--login", "OAUTHBEARER", "--command-config", str(scram_config(tmp_path)),
        "--oidc-issuer", issuer.url, "--oidc-client-id", CLIENT_ID, "--oidc-client-secret-file", str(secret),
        "--path", "/ops/console/",
    )  # fmt: skip
    try:
        visitor, root = Visitor(console), "/ops/console"
        assert console.url.endswith(f"{root}/")
        assert visitor.get("/").headers["location"] == f"{root}/"
        assert visitor.get("/topics").status == 404
        assert visitor.get("/alive").status == 200
        login = visitor.get(f"{root}/topics").headers["location"]
        assert login == f"{root}/login?next=%2Fops%2Fconsole%2Ftopics"
        (link,) = [unescape(part) for part in visitor.page(login).split('"') if "/login/oidc" in part]
        assert link.startswith(f"{root}/login/oidc?")
        issuer.user = "broker"
        callback = urlsplit(sent_back(visitor.get(link).headers["location"]))
        assert callback.path == f"{root}/login/oidc/callback"
        done = visitor.get(f"{callback.path}?{callback.query}")
        assert f'content="0; url={root}/topics"' in done.text
        cookie = visitor.get(f"{root}/topics").headers["set-cookie"].lower()
        assert f"path={root}/;" in f"{cookie};", "no other program of the host gets it"
        for path in ("", "topics", "brokers/1", "partitions", "security", "find?q=b"):
            page = visitor.page(f"{root}/{path}")
            addresses = set(re.findall(r' (?:href|src|action|formaction|hx-get|data-tail)="(/[^"]*)', page))
            assert {one for one in addresses if not one.startswith(f"{root}/")} == set(), path
            assert {one for one in addresses if one.startswith(root * 2)} == set(), path
            files = {one for one in addresses if "/static/" in one}
            assert {visitor.get(one).status for one in files} == {200}
        assert "no-store" not in visitor.get(f"{root}/static/console.css").headers.get("cache-control", "")
        token = visitor.json(f"{root}/topics")["form_token"]
        asked = visitor.post(f"{root}/change/create-topic", {"topic": "below", "form_token": token})
        assert (asked.status, f'action="{root}/change/create-topic"' in asked.text) == (200, True)
        out = visitor.post(f"{root}/logout", {"form_token": token})
        assert (out.status, out.headers["location"]) == (303, f"{root}/")
        assert visitor.get(f"{root}/topics").status == 303
    finally:
        issuer.user = "alice"
        assert console.close() == 0


@pytest.mark.parametrize("path", ["console", "/con sole", "/../x", "//evil.example", "/a/b/c/d/e/f"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    done = CliRunner().invoke(cli, ["console", "--path", path])
    assert (done.exit_code, "it is /NAME" in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--login", "OAUTHBEARER"], "needs --oidc-issuer"),
        (["--login", "OAUTHBEARER", "--oidc-issuer", "https://a.example"], "needs --oidc-issuer"),
        (["--oidc-issuer", "https://a.example"], "go with --login OAUTHBEARER"),
        (["--login", "OAUTHBEARER", "--oidc-issuer", "http://a.example", "--oidc-client-id", "a"], "https://"),
        (["--login", "OAUTHBEARER", "--oidc-issuer", "http://127.0.0.1:PORT", "--oidc-client-id", "a"], "not answer"),
    ],
)
def test_half_an_issuer_does_not_start(tmp_path: Path, options: list[str], reason: str) -> None:
    words = [word.replace("PORT", str(free_port())) for word in options]
    words += ["--command-config", str(scram_config(tmp_path))] if "--login" in words else []
    result = CliRunner().invoke(cli, ["console", "--port", "0", *words])
    assert result.exit_code in {1, 2}
    assert reason in result.stderr
