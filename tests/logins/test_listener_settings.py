"""Half configured logins end the start with one sentence that names the setting; no password is in it."""

from __future__ import annotations

import re

import pytest

from fleetlog.brokers.config import ConfigError, load_config
from fleetlog.brokers.logins import oidc_settings
from fleetlog.brokers.logins.listener_settings import ClientLogin, LoginSettings, login_settings
from fleetlog.brokers.logins.oidc_settings import OidcSettings
from fleetlog.brokers.logins.token_claims import TokenRules

MINIMAL = "broker.id=1\nzookeeper.connect=z:1\nlog.dirs=/d\n"
LISTENERS = "listeners=OUT://127.0.0.1:1,IN://127.0.0.1:2\ninter.broker.listener.name=IN\n"
LISTENERS += "listener.security.protocol.map=OUT:SASL_PLAINTEXT,IN:PLAINTEXT\n"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PASSWORD = "s3cr3t-of-a-test"
USERS = f'listener.name.out.plain.sasl.jaas.config={PLAIN} required user_alice="{PASSWORD}";\n'
INSIDE = (
    "listeners=IN://127.0.0.1:2\nlistener.security.protocol.map=IN:SASL_PLAINTEXT\nsasl.enabled.mechanisms=PLAIN\n"
    "inter.broker.listener.name=IN\n"
)


def settings(text: str) -> LoginSettings:
    return login_settings(load_config(MINIMAL + text, "f"))


def own(mechanism: str, line: str) -> str:
    return f"listener.name.in.{mechanism}.sasl.jaas.config={line}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listeners=X://127.0.0.1:1\nlistener.security.protocol.map=X:TLS\n", r"f:4: .*protocol TLS: give it one of"),
        (LISTENERS + "security.inter.broker.protocol=SASL_PLAINTEXT\n", r"f:7: security.*remove one of both"),
        ("security.inter.broker.protocol=SASL_PLAINTEXT\n", r"f:4: security.*none of listeners"),
        (LISTENERS, r"^sasl.enabled.mechanisms='GSSAPI': GSSAPI is not served: name some of PLAIN, SCRAM-SHA-256, "),
        (LISTENERS + "sasl.enabled.mechanisms=plain\n", r"^sasl.enabled.mechanisms='plain': plain is not served"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS.replace("user_alice", '"user_alice "'),
         r"the user 'alice ' begins or ends with a blank"),
        (LISTENERS + "sasl.enabled.mechanisms=\n", r"^sasl.enabled.mechanisms='': is empty: name some of PLAIN"),
        (LISTENERS + "listener.name.out.sasl.enabled.mechanisms=GSSAPI\n",
         r"^listener.name.out.sasl.enabled.mechanisms='GSSAPI': GSSAPI is not served"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n", r"^listener.name.out.plain.sasl.jaas.config='': must name the"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS.replace("user_alice", "username"),
         r"^listener.name.out.plain.sasl.jaas.config='.hidden.': must name the users of PLAIN"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS.replace(PLAIN, "com.sun.security.JndiLoginModule"),
         r"^listener.name.out.plain.sasl.jaas.config=.*the login module must be one of org.apache.kafka"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS.replace(PLAIN, SCRAM),
         r"login module of another mechanism: PLAIN has org.apache.kafka.common.security.plain"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS.replace(";", ""), r"is no JAAS line: it must end with"),
        (LISTENERS + "sasl.enabled.mechanisms=SCRAM-SHA-256\n" + USERS, r"PLAIN is not enabled there; enabled are SCR"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS.replace("name.out", "name.owt"),
         r"^listener.name.owt.plain.*there is no listener 'owt'; in lower case, there are in, out"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS.replace("name.out", "name.in"),
         r"^listener.name.in.plain.*security protocol PLAINTEXT, which has no login: set SASL_PLAINTEXT or SASL_SSL"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS.replace("plain.sasl", "sasl"),
         r"^listener.name.out.sasl.jaas.config=.*must name the mechanism: listener.name.out.plain.sasl.jaas.config"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS.replace(PASSWORD, ""), r"no name or no password"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS + "sasl.server.callback.handler.class=x.Y\n",
         r"^sasl.server.callback.handler.class='x.Y': cannot be loaded here"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS + "principal.builder.class=x.Y\n",
         r"^principal.builder.class='x.Y': cannot be loaded here"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS
         + "listener.name.out.scramsha256.connections.max.reauth.ms=5\n",
         r"^listener.name.out.scramsha256.connections.*SCRAMSHA256 is not enabled there; enabled are PLAIN"),
        (LISTENERS + "sasl.enabled.mechanisms=PLAIN\n" + USERS + "listener.name.out.connections.max.reauth.ms=1h\n",
         r"^listener.name.out.connections.max.reauth.ms='1h': must be a number of ms"),
        (INSIDE + own("plain", f'{PLAIN} required user_a="{PASSWORD}";'),
         r"^sasl.mechanism.inter.broker.protocol='GSSAPI': brokers use listener IN, whose mechanisms are PLAIN: set"),
        (INSIDE + "sasl.mechanism.inter.broker.protocol=PLAIN\n"
         + own("plain", f'{PLAIN} required user_a="{PASSWORD}";'),
         r"^listener.name.in.plain.sasl.jaas.config=.*must have the broker's own login"),
        (INSIDE + "sasl.mechanism.inter.broker.protocol=PLAIN\n"
         + own("plain", f'{PLAIN} required username="a" password="{PASSWORD}" user_a="another";'),
         r"the broker's own user must be one of the users with the same password"),
        (INSIDE.replace("=PLAIN", "=SCRAM-SHA-512") + "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512\n",
         r"^listener.name.in.scram-sha-512.sasl.jaas.config='': must have the broker's own login"),
        (f"listener.name.out.plain.sasl.jass.config={PASSWORD}\n", r"f:4: .*is no setting of a broker"),
        (f"listener.name.out.plain.sasl.jaas.conf={PASSWORD}\n", r"f:4: .*is no setting of a broker"),
        (f'password {PASSWORD}\n', r"f:4: .hidden.='': must be name=value"),
    ],
)  # fmt: skip
def test_half_a_configuration_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(text)
    told = str(refused.value)
    assert re.search(message, told), told
    assert "\n" not in told
    assert PASSWORD not in told


def test_a_listener_with_everything() -> None:
    both = LISTENERS + USERS + "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256\nconnections.max.reauth.ms=9000\n"
    both += "listener.name.out.plain.connections.max.reauth.ms=5000\n"
    found = settings(both)
    assert found.own is None
    assert list(found.listeners) == ["OUT"]
    logins = found.listeners["OUT"]
    assert logins.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert logins.passwords == {"alice": PASSWORD}
    assert logins.reauth_ms == {"PLAIN": 5000, "SCRAM-SHA-256": 9000}
    assert found.has_scram
    assert PASSWORD not in repr(found)
    assert load_config(MINIMAL + both, "f").without_effect() == []


def test_brokers_among_themselves() -> None:
    line = f'{PLAIN} required username="b" password="{PASSWORD}" user_b="{PASSWORD}" user_c="x";'
    found = settings(INSIDE + "sasl.mechanism.inter.broker.protocol=PLAIN\n" + own("plain", line))
    assert found.own == ClientLogin("PLAIN", "b", PASSWORD)
    assert PASSWORD not in repr(found)


def test_the_listener_of_a_protocol() -> None:
    text = "listeners=PLAINTEXT://127.0.0.1:1,SASL_PLAINTEXT://127.0.0.1:2\nsasl.enabled.mechanisms=SCRAM-SHA-256\n"
    text += "security.inter.broker.protocol=SASL_PLAINTEXT\nsasl.mechanism.inter.broker.protocol=SCRAM-SHA-256\n"
    text += f'listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config={SCRAM} required username="b" password="p";\n'
    found = settings(text)
    assert found.own == ClientLogin("SCRAM-SHA-256", "b", "p")
    assert load_config(MINIMAL + text, "f").inter_broker_listener() == "SASL_PLAINTEXT"


def test_plaintext_listeners_need_nothing() -> None:
    assert settings("") == LoginSettings({}, None)


# ---- tokens

OIDC = (
    "listener.name.out.sasl.enabled.mechanisms=OAUTHBEARER\n"
    "listener.name.out.oauthbearer.sasl.oauthbearer.jwks.endpoint.url=https://issuer/keys?v=1\n"
    "listener.name.out.sasl.oauthbearer.expected.issuer=https://issuer\n"
    "sasl.oauthbearer.expected.audience=fleet, b\n"
)
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KAFKAS = "org.apache.kafka.common.security.oauthbearer"
OUT_JAAS = "listener.name.out.oauthbearer.sasl.jaas.config="


def test_tokens_of_an_issuer() -> None:
    text = LISTENERS + OIDC + "sasl.oauthbearer.clock.skew.seconds=5\nsasl.oauthbearer.sub.claim.name=azp\n"
    text += "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms=20000\nsasl.oauthbearer.jwks.endpoint.refresh.ms=60000\n"
    found = settings(text).listeners["OUT"].oidc
    rules = TokenRules("https://issuer", frozenset({"fleet", "b"}), 5, "azp", "scope")
    assert found == OidcSettings("https://issuer/keys?v=1", rules, 60_000, 20_000, 20_000)
    assert settings(LISTENERS + OIDC).listeners["OUT"].oidc == found._replace(
        rules=rules._replace(skew_s=30, subject_claim="sub"), refresh_ms=3_600_000, retry_ms=100, retry_max_ms=10_000
    )
    assert load_config(MINIMAL + text, "f").without_effect() == []


def test_files_of_kafka_with_tokens() -> None:
    text = LISTENERS + OIDC + f"{OUT_JAAS}{OAUTH_MODULE} required;\n"
    for name in ("OAuthBearerValidatorCallbackHandler", "secured.OAuthBearerValidatorCallbackHandler"):
        handler = f"listener.name.out.oauthbearer.sasl.server.callback.handler.class={KAFKAS}.{name}\n"
        assert settings(text + handler).listeners["OUT"].mechanisms == ("OAUTHBEARER",)


def without(name: str) -> str:
    return LISTENERS + "".join(line for line in OIDC.splitlines(keepends=True) if name not in line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (without("jwks"), r"^listener.name.out.oauthbearer.sasl.oauthbearer.jwks.endpoint.url='': OAUTHBEARER needs"),
        (without("issuer="), r"^listener.name.out.oauthbearer.sasl.oauthbearer.expected.issuer='': OAUTHBEARER needs"),
        (without("audience"), r"^listener.name.out.oauthbearer.sasl.oauthbearer.expected.audience='': OAUTHBEARER ne"),
        (without("audience") + "sasl.oauthbearer.expected.audience=,\n", r"^sasl.*audience=',': names no audience"),
        (without("issuer=") + "sasl.oauthbearer.expected.issuer= \n", r"^sasl.*expected.issuer='': OAUTHBEARER needs"),
        *((without("jwks") + f"sasl.oauthbearer.jwks.endpoint.url={url}\n", reason) for url, reason in (
            ("http://issuer/keys", "http is for an issuer on this machine only"),
            ("http://127.0.0.1.example/keys", "http is for an issuer on this machine only"),
            ("ftp://issuer/keys", "must begin with https:// and a host, or with file:///"),
            ("issuer/keys", "must begin with https:"), ("https:///keys", "must begin with https:"),
            ("file://host/keys", "must begin with https:"), ("file:keys", "must begin with https:"),
            ("https://[::1/keys", "is no address"), ("https://issuer:port/keys", "is no address"),
            ("https://user:pass@issuer/keys", "must have neither a user"), ("https://issuer/#x", "must have neither a"),
        )),
        (LISTENERS + OIDC + "sasl.oauthbearer.clock.skew.seconds=4000\n", r"skew.seconds='4000': must be at most"),
        (LISTENERS + OIDC + "sasl.oauthbearer.jwks.endpoint.refresh.ms=1\n", r"refresh.ms='1': must be at least 1000"),
        (LISTENERS + OIDC + "listener.name.out.oauthbearer.sasl.oauthbearer.clock.skew.seconds=x\n",
         r"^listener.name.out.oauthbearer.sasl.oauthbearer.clock.skew.seconds='x': must be a number"),
        (LISTENERS + OIDC + "sasl.oauthbearer.sub.claim.name=\n", r"^sasl.oauthbearer.sub.claim.name='': OAUTHBEARER"),
        (LISTENERS + OIDC + f'{OUT_JAAS}{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="alice";\n',
         r"^listener.name.out.oauthbearer.sasl.jaas.config=.*tokens without a signature.*never accepted here"),
        (LISTENERS + OIDC + f'{OUT_JAAS}{OAUTH_MODULE} required clientId="a";\n',
         r"must have no options: brokers do not log in at each other by OAUTHBEARER"),
        (LISTENERS + OIDC + f'{OUT_JAAS}{PLAIN} required;\n', r"has the login module of another mechanism"),
        (LISTENERS + OIDC + "listener.name.out.oauthbearer.sasl.server.callback.handler.class="
         + f"{KAFKAS}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler\n",
         r"accepts tokens without a signature: such tokens are never accepted here; remove it, and set sasl.oauthb"),
        (LISTENERS + OIDC + f"sasl.login.callback.handler.class={KAFKAS}.OAuthBearerLoginCallbackHandler\n",
         r"cannot be loaded here: remove it"),
        (LISTENERS + OIDC.replace("=OAUTHBEARER", "=SCRAM-SHA-256"),
         r"^listener.name.out.oauthbearer.sasl.oauthbearer.jwks.*OAUTHBEARER is not enabled there; enabled are SCRAM"),
        (LISTENERS + "sasl.enabled.mechanisms=SCRAM-SHA-256\nlistener.name.out.sasl.oauthbearer.expected.issuer=x\n",
         r"^listener.name.out.sasl.oauthbearer.expected.issuer=.*OAUTHBEARER is not enabled there"),
        (LISTENERS + OIDC + "listener.name.in.oauthbearer.sasl.oauthbearer.expected.issuer=x\n",
         r"^listener.name.in.oauthbearer.*security protocol PLAINTEXT, which has no login"),
        (INSIDE.replace("=PLAIN", "=OAUTHBEARER") + OIDC.replace("name.out", "name.in")
         + "sasl.mechanism.inter.broker.protocol=OAUTHBEARER\n",
         r"^sasl.mechanism.inter.broker.protocol='OAUTHBEARER': brokers do not log in at each other by OAUTHBE"),
    ],
)  # fmt: skip
def test_half_a_configuration_of_tokens_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(text)
    assert re.search(message, str(refused.value)), str(refused.value)


def test_tokens_need_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc_settings, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"needs the package joserfc: pip install '\.\[oidc\]'"):
        settings(LISTENERS + OIDC)
