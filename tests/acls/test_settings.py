"""What the settings of authorization mean, and how ACLs spell addresses."""

from __future__ import annotations

import pytest

from fleetlog.brokers.acls.hosts import host_as_acls_have_it, why_no_client_has
from fleetlog.brokers.acls.settings import (
    AuthorizerSettings,
    broker_principals,
    cannot_replicate,
    without_authorizer,
)
from fleetlog.brokers.config import BrokerConfig, load_config

ON = "authorizer.class.name=kafka.security.authorizer.AclAuthorizer\n"


def config(text: str) -> BrokerConfig:
    return load_config(f"broker.id=1\nzookeeper.connect=zk:2181\nlog.dirs=/d\nlisteners=PLAINTEXT://h:1\n{text}", "f")


def test_without_a_class_there_is_no_authorizer() -> None:
    assert AuthorizerSettings.of(config("")) is None
    assert AuthorizerSettings.of(config("authorizer.class.name=\nsuper.users=User:a\n")) is None


def test_either_of_kafkas_classes_means_this_one() -> None:
    assert AuthorizerSettings.of(config(ON)) == AuthorizerSettings(frozenset(), False)
    standard = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
    rest = "super.users=User:admin; User:CN=a,O=b;\nallow.everyone.if.no.acl.found=TRUE\n"
    assert AuthorizerSettings.of(config(standard + rest)) == AuthorizerSettings(
        frozenset({"User:admin", "User:CN=a,O=b"}), True
    )


def test_what_has_no_effect_is_said() -> None:
    assert without_authorizer(config("")) is None
    assert without_authorizer(config(ON + "super.users=User:a\n")) is None
    said = without_authorizer(config("super.users=User:a\nallow.everyone.if.no.acl.found=true\n"))
    assert said is not None
    assert "super.users and allow.everyone.if.no.acl.found have no effect without authorizer.class.name" in said


SASL = """broker.id=1
zookeeper.connect=z:1
log.dirs=/d
listeners=IN://127.0.0.1:2
listener.security.protocol.map=IN:SASL_PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-256
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-256
listener.name.in.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
 username="broker-1" password="p";
"""


def test_which_principals_are_brokers_without_an_authorizer() -> None:
    assert broker_principals(config("super.users=User:a\n")) == frozenset()
    assert broker_principals(load_config(SASL, "f")) == {"User:broker-1"}
    several = load_config(SASL + "super.users=User:broker-2;User:broker-3\n", "f")
    assert broker_principals(several) == {"User:broker-1", "User:broker-2", "User:broker-3"}
    assert without_authorizer(several) is None


def test_what_to_do_for_brokers_that_cannot_replicate() -> None:
    assert "--principal User:broker --operation ClusterAction --cluster" in cannot_replicate("User:broker")


@pytest.mark.parametrize(
    ("address", "spelled"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("*", "*"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:DB8::00a:0", "2001:db8:0:0:0:0:a:0"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("no:address", "no:address"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("2001:DB8:0::7/32", "2001:db8::/32"),
        ("10.0.0.0/33", "10.0.0.0/33"),
    ],
)
def test_addresses_are_spelled_as_java_does(address: str, spelled: str) -> None:
    assert host_as_acls_have_it(address) == spelled
    assert host_as_acls_have_it(spelled) == spelled


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("*", ""), ("10.0.0.1", ""), ("0:0:0:0:0:0:0:1", "listeners are IPv4"), ("::1", "write 0:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "write 10.0.0.1"), ("client.example.com", "no address"), ("10.0.0.1 ", "no address"),
        ("010.0.0.1", "no address"), ("10.1.2.3/8", ""), ("0.0.0.0/0", ""), ("0.0.0.0/8", "no host has"),
        ("224.1.0.0/16", "no host has"), ("240.0.0.0/4", "no host has"), ("2001:db8::/32", "range of IPv6"),
    ],
)  # fmt: skip
def test_hosts_that_no_client_has(host: str, reason: str) -> None:
    told = why_no_client_has(host, ["0.0.0.0", "broker-1"])
    assert (reason in told) if told is not None else not reason
    assert why_no_client_has("0:0:0:0:0:0:0:1", ["0.0.0.0", "::"]) is None
    assert why_no_client_has("::1/128", ["0.0.0.0", "::"]) is None
    assert why_no_client_has("ff00::/8", ["0.0.0.0", "::"]) == "is a range of addresses that no host has"
