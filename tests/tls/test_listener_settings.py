"""TLS of listeners by Kafka's names: what counts for which, and half configurations that end the start."""

from __future__ import annotations

import re

import pytest

from fleetlog.brokers.config import ConfigError, load_config
from fleetlog.brokers.tls.listener_settings import ignored_client_auth, listener_tls
from fleetlog.brokers.tls.settings import ClientCertificates, TlsSettings

MINIMAL = "broker.id=1\nzookeeper.connect=z:1\nlog.dirs=/d\n"
LISTENERS = "listeners=OUT://127.0.0.1:1,LOGIN://127.0.0.1:2,IN://127.0.0.1:3\ninter.broker.listener.name=IN\n"
LISTENERS += "listener.security.protocol.map=OUT:SSL,LOGIN:SASL_SSL,IN:PLAINTEXT\n"
STORE = "ssl.keystore.type=PEM\nssl.keystore.location=/all.pem\n"
TRUST = "ssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\n"
PASSWORD = "s3cr3t-of-a-test"


def settings(text: str) -> dict[str, TlsSettings]:
    return listener_tls(load_config(MINIMAL + text, "f"))


def test_a_listeners_own_settings_come_first() -> None:
    found = settings(LISTENERS + STORE + "listener.name.out.ssl.keystore.location=/out.pem\n")
    assert list(found) == ["OUT", "LOGIN"]
    stores = {name: one.keystore for name, one in found.items()}
    assert stores["OUT"] is not None
    assert stores["LOGIN"] is not None
    assert (stores["OUT"].location, stores["LOGIN"].location) == ("/out.pem", "/all.pem")
    assert found["OUT"].prefix == "listener.name.out."
    assert found["LOGIN"].prefix == ""


def test_with_sasl_only_the_listeners_own_demand_for_certificates_counts() -> None:
    text = LISTENERS + STORE + TRUST + "ssl.client.auth=required\n"
    found = settings(text)
    assert found["OUT"].client_certificates is ClientCertificates.REQUIRED
    assert found["LOGIN"].client_certificates is ClientCertificates.NONE
    told = ignored_client_auth(load_config(MINIMAL + text, "f"))
    assert told is not None
    assert "set listener.name.login.ssl.client.auth to ask for one" in told
    own = text + "listener.name.login.ssl.client.auth=requested\n"
    assert settings(own)["LOGIN"].client_certificates is ClientCertificates.REQUESTED
    assert ignored_client_auth(load_config(MINIMAL + own, "f")) is None
    assert ignored_client_auth(load_config(MINIMAL + LISTENERS + STORE, "f")) is None


def test_settings_of_tls_have_an_effect_where_a_listener_has_it() -> None:
    text = STORE + TRUST + "listener.name.out.ssl.client.auth=required\n"
    assert load_config(MINIMAL + LISTENERS + text, "f").without_effect() == []
    without = load_config(MINIMAL + STORE, "f").without_effect()
    assert without == ["ssl.keystore.location", "ssl.keystore.type"]
    assert settings(STORE) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LISTENERS + "listener.name.in.ssl.keystore.location=/x\n",
         r"^listener.name.in.ssl.keystore.location=.*security protocol PLAINTEXT, which has no TLS: set SSL or"),
        (LISTENERS + f"listener.name.owt.ssl.key.password={PASSWORD}\n",
         r"^listener.name.owt.ssl.key.password=.*there is no listener 'owt'; in lower case, there are in, login, out"),
        (LISTENERS + "ssl.keystore.location=/x.jks\n",
         r"^ssl.keystore.type='': Java keystores .also Kafka's default"),
        (LISTENERS + STORE + "ssl.client.auth=required\n",
         r"^ssl.truststore.location='': ssl.client.auth is required: name a PEM file"),
        (LISTENERS + STORE + f"listener.name.out.ssl.keystore.password={PASSWORD}\n",
         r"^listener.name.out.ssl.keystore.password='.hidden.': a PEM store has no password"),
        (LISTENERS + STORE + "listener.name.out.ssl.enabled.protocols=TLSv1.1\n",
         r"^listener.name.out.ssl.enabled.protocols='TLSv1.1': TLSv1.1 is not served: name some of TLSv1.2, TLSv1.3"),
        ("security.inter.broker.protocol=SASL_SSL\n", r"f:4: security.*none of listeners"),
    ],
)  # fmt: skip
def test_half_a_configuration_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(text)
    told = str(refused.value)
    assert re.search(message, told), told
    assert "\n" not in told
    assert PASSWORD not in told
