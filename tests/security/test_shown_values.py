"""An error shows the value that cannot be used, and never one that may be a secret, whatever else is wrong with it."""

from __future__ import annotations

import time

import pytest

from fleetlog.brokers.config import BROKER_SETTINGS, ConfigError, load_config
from fleetlog.brokers.logins.listener_settings import login_settings
from fleetlog.brokers.server.admin import admin_contexts
from fleetlog.brokers.tls.listener_settings import listener_tls
from fleetlog.brokers.tls.settings import TlsSettings
from fleetlog.brokers.tls.zookeeper import ZookeeperSettings

MINIMAL = "broker.id=1\nzookeeper.connect=z:1\nlog.dirs=/d\ninter.broker.listener.name=IN\n"
MINIMAL += "listeners=IN://127.0.0.1:1,OUT://127.0.0.1:2,LOGIN://127.0.0.1:3\n"
MINIMAL += "listener.security.protocol.map=IN:PLAINTEXT,OUT:SSL,LOGIN:SASL_SSL\n"
MINIMAL += "sasl.enabled.mechanisms=SCRAM-SHA-256\nssl.keystore.type=PEM\nssl.keystore.location=/all.pem\n"
BAD = "no-such-thing"
PASSWORD = "hunter2-of-a-test"
PEM = f"-----BEGIN PRIVATE KEY-----{PASSWORD}-----END PRIVATE KEY-----"
SECRETS = {
    "key.password", "keystore.key", "keystore.password", "keystore.certificate.chain", "truststore.certificates",
    "truststore.password", "jaas.config", "client.secret", "private.key.passphrase",
}  # fmt: skip
"""How their names end. Certificates are PEM, among which a key may stand by mistake."""


def error_of(text: str) -> str:
    """What ends a start with these settings."""
    with pytest.raises(ConfigError) as caught:  # noqa: PT012
        config = load_config(MINIMAL + text + "\n", "f")
        listener_tls(config)
        login_settings(config)
        ZookeeperSettings.of(dict(config.given))
        admin_contexts(config, time.time)
    return str(caught.value)


def of_security() -> list[str]:
    """Settings of TLS and SASL."""
    parts = ("ssl.", "sasl.", "admin.ssl.", "zookeeper.ssl.")
    return [name for name in BROKER_SETTINGS if name.startswith(parts)]


@pytest.mark.parametrize("name", of_security())
def test_all_but_secrets_are_shown(name: str) -> None:
    is_secret = name.endswith(tuple(SECRETS))
    for full in (name, f"listener.name.out.{name}", f"listener.name.out.plain.{name}"):
        assert (BAD in str(ConfigError(full, BAD, "is bad"))) is not is_secret
        assert PASSWORD not in str(ConfigError(full, PEM, "is bad"))
        assert PASSWORD not in str(ConfigError(full, f"https://alice:{PASSWORD}@host/keys", "is bad"))
        assert PASSWORD not in str(ConfigError(full, f'password="{PASSWORD}"', "is bad"))
    assert "/etc/secrets/a.pem" in str(ConfigError("ssl.keystore.location", "/etc/secrets/a.pem", "is bad"))


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("listener.name.out.ssl.client.auth", None),
        ("listener.name.OUT.ssl.client.auth", "listener.name.OUT.ssl.key.password"),
        ("listener.name.other.ssl.client.auth", "listener.name.other.ssl.keystore.key"),
        ("listener.name.in.ssl.client.auth", "listener.name.in.ssl.keystore.certificate.chain"),
        ("listener.name.in.sasl.enabled.mechanisms", "listener.name.in.plain.sasl.jaas.config"),
        ("listener.name.other.sasl.enabled.mechanisms", "listener.name.other.plain.sasl.jaas.config"),
        ("listener.name.login.plain.connections.max.reauth.ms", "listener.name.login.plain.sasl.jaas.config"),
        ("listener.name.login.sasl.oauthbearer.expected.issuer", None),
        ("zookeeper.ssl.keystore.location", "zookeeper.ssl.keystore.password"),
        ("admin.ssl.client.auth", "admin.ssl.key.password"),
    ],
)
def test_what_ends_a_start_is_shown_unless_it_is_a_secret(name: str, secret: str | None) -> None:
    allowed = "required" if name == "admin.ssl.client.auth" else BAD
    assert f"{name}='{allowed}'" in error_of(f"{name}={allowed}")
    if secret is not None:
        found = error_of(f"{secret}={PASSWORD}")
        assert f"{secret}='[hidden]'" in found
        assert PASSWORD not in found


@pytest.mark.parametrize("of", [TlsSettings.of, ZookeeperSettings.of])
def test_the_value_of_a_misspelt_name_is_shown_unless_it_looks_like_a_secret(of: object) -> None:
    assert callable(of)
    prefix = "" if of == TlsSettings.of else "zookeeper."
    with pytest.raises(ConfigError, match=f"ssl.client.autth='{BAD}': there is no such setting"):
        of({f"{prefix}ssl.client.autth": BAD})
    for name in ("key.pasword", "key.passwd", "keystore.kye", "key.pwd", "keystore.certificates.chain"):
        with pytest.raises(ConfigError, match=r"='.hidden.': there is no such setting"):
            of({f"{prefix}ssl.{name}": PASSWORD})
