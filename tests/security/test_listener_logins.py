"""Half configured logins end the start with one sentence that names the setting; no password is in it."""

from __future__ import annotations

import re

import pytest

from brokers.config import ConfigError, load_config
from brokers.security.listener_logins import ClientLogin, LoginSettings, login_settings

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
        (LISTENERS + "sasl.enabled.mechanisms=\n", r"^sasl.enabled.mechanisms='': is empty: name some of PLAIN"),
        (LISTENERS + "listener.name.out.sasl.enabled.mechanisms=OAUTHBEARER\n",
         r"^listener.name.out.sasl.enabled.mechanisms='OAUTHBEARER': OAUTHBEARER is not served"),
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
