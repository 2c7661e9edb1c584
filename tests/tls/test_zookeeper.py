"""Settings of the connection to ZooKeeper: what they give, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fleetlog.brokers.config import load_config
from fleetlog.brokers.logins.users import LOGIN_SECRET
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.brokers.tls.zookeeper import ZookeeperSettings
from tests.support.certificates import Authority

ON = {"zookeeper.ssl.client.enable": "true"}


def test_nothing_is_on_by_itself() -> None:
    found = ZookeeperSettings.of({"zookeeper.connect": "127.0.0.1:2181", "ssl.keystore.location": "/x"})
    assert found == ZookeeperSettings(None, "", False)
    connection = found.connection(time.time)
    assert (connection.newest_context, connection.logins, connection.owns_znodes) == (None, (), False)


def test_the_kind_of_a_store_is_seen_in_its_name(tmp_path: Path) -> None:
    """As ZooKeeper finds it; and a PEM store's password is its key's."""
    authority = Authority(tmp_path, "authority")
    own = authority.pair("/CN=one", password="open").store(tmp_path / "own.pem")
    given = {
        **ON, "zookeeper.ssl.keystore.location": own, "zookeeper.ssl.keystore.password": "open",
        "zookeeper.ssl.truststore.location": authority.file, "zookeeper.ssl.protocol": "TLSv1.2",
    }  # fmt: skip
    found = ZookeeperSettings.of(given)
    assert found.tls is not None
    assert found.tls.checks_host
    connection = found.connection(time.time)
    assert connection.newest_context is not None
    assert connection.newest_context().check_hostname
    with pytest.raises(ConfigError, match=r"zookeeper.ssl.keystore.password='\[hidden\]': does not decrypt"):
        ZookeeperSettings.of({**given, "zookeeper.ssl.keystore.password": "shut"}).connection(time.time)
    off = ZookeeperSettings.of({**given, "zookeeper.ssl.endpoint.identification.algorithm": ""})
    assert off.tls is not None
    assert not off.tls.checks_host


def test_secrets_are_below_the_paths_of_kafka_and_one_of_ours() -> None:
    found = ZookeeperSettings.of({"zookeeper.set.acl": "true", "zookeeper.digest.credentials": "fleet:s3cret"})
    connection = found.connection(time.time)
    assert connection.owns_znodes
    assert connection.logins == (("digest", "fleet:s3cret"),)
    secret = {"/config/users", "/config/users/alice", "/config/brokers/1", "/delegation_token/tokens/x", LOGIN_SECRET}
    readable = {
        "/",
        "/fleetlog",
        "/config",
        "/config/usersx",
        "/config/topics/t",
        "/kafka-acl/Topic/t",
        "/brokers/ids/1",
    }
    assert {path for path in secret | readable if connection.is_secret(path)} == secret
    assert "s3cret" not in repr(found) + repr(connection)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"zookeeper.ssl.truststore.location": "/x"},
            "has no effect without TLS: set zookeeper.ssl.client",
        ),
        ({**ON, "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNIO"}, "is without TLS: set"),
        ({**ON, "zookeeper.ssl.crl.enable": "true"}, "revoked certificates are not looked up here"),
        ({**ON, "zookeeper.ssl.truststore.location": "/x/t.jks"}, "keytool -importkeystore -srckeystore /x/t.jks"),
        ({**ON, "zookeeper.ssl.truststore.location": "/x/t.store"}, "zookeeper.ssl.truststore.type=''"),
        ({**ON, "zookeeper.ssl.trustore.type": "PEM"}, "did you mean zookeeper.ssl.truststore.type?"),
        ({"zookeeper.ssl.client.enable": "yes"}, "must be true or false"),
        ({"zookeeper.set.acl": "true"}, "needs a login at ZooKeeper"),
        ({**ON, "zookeeper.set.acl": "true"}, "needs a login at ZooKeeper"),
        ({"zookeeper.digest.credentials": "secretword"}, "must be user:password"),
    ],
)
def test_what_is_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ZookeeperSettings.of(given)
    assert text in str(refused.value)
    assert "secretword" not in str(refused.value)


def test_a_missing_file_is_named() -> None:
    given = {**ON, "zookeeper.ssl.truststore.location": "/missing/t.pem"}
    with pytest.raises(ConfigError, match=r"zookeeper\.ssl\.truststore\.location='/missing/t.pem': cannot be read"):
        ZookeeperSettings.of(given).connection(time.time)


def test_a_brokers_file_may_have_them() -> None:
    config = load_config(
        "broker.id=1\nzookeeper.connect=a:1\nzookeeper.set.acl=true\nzookeeper.digest.credentials=fleet:s3cret\n"
    )
    assert ZookeeperSettings.of(dict(config.given)).sets_acls
    assert config.without_effect() == []
    assert "s3cret" not in repr(config)
