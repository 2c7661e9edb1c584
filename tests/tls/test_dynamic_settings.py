"""Which settings of TLS change while a broker runs, and what they come to."""

from __future__ import annotations

import pytest

from fleetlog.brokers.api.config_alterations import Alteration, Operation, Resource, Unknown, setting_of
from fleetlog.brokers.config import BROKER_SETTINGS, BrokerConfig
from fleetlog.brokers.controller.requests import Refused
from fleetlog.brokers.tls.dynamic_settings import of_tls, overridden, refused_change, tls_changes
from fleetlog.brokers.tls.listener_settings import listener_tls

LOCATION = "listener.name.outside.ssl.keystore.location"
GIVEN = (("ssl.keystore.type", "PEM"), ("ssl.keystore.location", "/of/the/file.pem"))


def static() -> BrokerConfig:
    return BrokerConfig(
        broker_id=1, listeners=("OUTSIDE://127.0.0.1:1",), listener_security_protocol_map=("OUTSIDE:SSL",),
        inter_broker_listener_name="OUTSIDE", given=GIVEN,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "base"),
    [
        (LOCATION, "ssl.keystore.location"),
        ("ssl.keystore.location", "ssl.keystore.location"),
        ("listener.name.outside.sasl.jaas.config", ""),
        ("listener.name.ssl", ""),
        ("admin.ssl.keystore.location", ""),
        ("num.io.threads", ""),
    ],
)
def test_what_is_a_setting_of_tls(name: str, base: str) -> None:
    assert of_tls(name) == base


@pytest.mark.parametrize(
    ("name", "all_brokers", "said"),
    [
        (LOCATION, False, None),
        ("listener.name.outside.ssl.truststore.certificates", False, None),
        (LOCATION, True, "at default cluster level, broker id must be specified"),
        ("ssl.truststore.location", False, "per-listener"),
        ("ssl.key.password", False, "per-listener"),
        ("listener.name.outside.ssl.key.password", False, "is a secret"),
        ("listener.name.outside.ssl.keystore.password", False, "is a secret"),
        ("listener.name.outside.ssl.truststore.password", False, "is a secret"),
        ("listener.name.outside.ssl.keystore.key", False, "is a secret"),
        ("listener.name.outside.ssl.principal.mapping.rules", False, "Cannot update these configs dynamically"),
        ("listener.name.outside.ssl.client.auth", False, "Cannot update these configs dynamically"),
        ("listener.name.outside.ssl.allow.dn.changes", False, "Cannot update these configs dynamically"),
        ("listener.name.outside.ssl.keystore.locatoin", False, "Cannot update these configs dynamically"),
    ],
)
def test_what_changes_while_brokers_run(name: str, all_brokers: bool, said: str | None) -> None:
    refusal = refused_change(name, of_all_brokers=all_brokers)
    assert (refusal is None) is (said is None)
    if said is not None:
        assert said in (refusal or "")
    alteration = Alteration(name, Operation.SET, "PEM")
    if said is None:
        assert setting_of(alteration, BROKER_SETTINGS, Resource.BROKER, Unknown()) is not None
    else:
        with pytest.raises(Refused, match=said):
            setting_of(alteration, BROKER_SETTINGS, Resource.BROKER, Unknown(), of_all_brokers=all_brokers)


def test_changes_count_before_the_file_and_leave_all_else() -> None:
    own = {LOCATION: "/new.pem", "listener.name.outside.ssl.client.auth": "required", "ssl.keystore.location": "/x.pem"}
    changes = tls_changes(own)
    assert changes == {LOCATION: "/new.pem"}
    assert tls_changes({"num.io.threads": "1", "listener.name.outside.sasl.jaas.config": "x"}) == {}

    def location(config: BrokerConfig) -> str:
        store = listener_tls(config)["OUTSIDE"].keystore
        assert store is not None
        return store.location

    assert location(static()) == "/of/the/file.pem"
    assert location(overridden(static(), changes)) == "/new.pem"
    assert overridden(static(), {}) == static()
