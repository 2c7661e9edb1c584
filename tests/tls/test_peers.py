"""TLS of brokers among themselves: whose principal a broker has there, and what would keep it from connecting."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fleetlog.brokers.acls.settings import broker_principals, inter_broker_principal
from fleetlog.brokers.app import SystemClock, tls_listeners
from fleetlog.brokers.config import BrokerConfig, load_config
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.brokers.tls.contexts import FollowedContexts
from fleetlog.brokers.tls.peers import inter_broker_contexts
from tests.support.certificates import Authority, Pair


class Files:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority, self.stranger = Authority(directory, "authority"), Authority(directory, "stranger")
        self.one = self.authority.pair("/O=fleet/CN=one")

    def config(self, pair: Pair, **more: str) -> BrokerConfig:
        """Of a broker whose only listener is SSL; ``more`` with underscores for dots."""
        named = {
            "broker.id": "1", "zookeeper.connect": "127.0.0.1:1", "listeners": "SSL://127.0.0.1:9092",
            "security.inter.broker.protocol": "SSL", "ssl.client.auth": "required",
            "ssl.keystore.type": "PEM", "ssl.keystore.location": pair.store(self.directory / "own.pem"),
            "ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority.file,
            **{name.replace("_", "."): text for name, text in more.items()},
        }  # fmt: skip
        return load_config("".join(f"{name}={text}\n" for name, text in named.items()))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


def contexts(config: BrokerConfig) -> FollowedContexts | None:
    return inter_broker_contexts(config, time.time)


def test_the_principal_is_that_of_the_own_certificate(files: Files) -> None:
    config = files.config(files.one)
    assert contexts(config) is not None
    assert inter_broker_principal(config) == "User:CN=one,O=fleet"
    mapped = files.config(files.one, ssl_principal_mapping_rules="RULE:^CN=([^,]+),.*$/$1/U,DEFAULT")
    assert inter_broker_principal(mapped) == "User:ONE"
    assert inter_broker_principal(files.config(files.one, ssl_client_auth="none")) == "User:ANONYMOUS"
    with pytest.raises(ConfigError, match=r"ssl.principal.mapping.rules='': has no rule for the broker's own"):
        inter_broker_principal(files.config(files.one, ssl_principal_mapping_rules="RULE:^CN=two$/$0/"))


def test_without_an_authorizer_what_brokers_do_is_for_their_certificates(files: Files) -> None:
    both = {"User:CN=one,O=fleet", "User:CN=two,O=fleet"}
    assert broker_principals(files.config(files.one, super_users="User:CN=two,O=fleet")) == both
    assert broker_principals(files.config(files.one)) == {"User:CN=one,O=fleet"}
    assert broker_principals(files.config(files.one, ssl_client_auth="none")) == frozenset()


def test_a_listener_without_tls_needs_none(files: Files) -> None:
    both = {
        "listeners": "INSIDE://127.0.0.1:9092,SSL://127.0.0.1:9093", "inter.broker.listener.name": "INSIDE",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,SSL:SSL",
    }  # fmt: skip
    text = "".join(f"{name}={value}\n" for name, value in both.items())
    store = files.one.store(files.directory / "own.pem")
    text += f"broker.id=1\nzookeeper.connect=a:1\nssl.keystore.type=PEM\nssl.keystore.location={store}\n"
    assert contexts(load_config(text)) is None


def test_a_broker_that_would_not_accept_itself_does_not_start(files: Files) -> None:
    told = "brokers would not accept each other at 127.0.0.1"
    elsewhere = files.authority.pair("/CN=one", names="DNS:one.example")
    for pair, reason in (
        (files.stranger.pair("/CN=one"), "unable to get local issuer certificate"),
        (elsewhere, "IP address mismatch"),
    ):
        with pytest.raises(ConfigError) as refused:
            contexts(files.config(pair))
        assert told in str(refused.value)
        assert reason in str(refused.value)
    assert contexts(files.config(elsewhere, ssl_endpoint_identification_algorithm="")) is not None


def test_a_certificate_that_others_would_not_accept_is_not_taken_over(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    config = files.config(files.one)
    found = contexts(config)
    assert found is not None
    before = found.newest()
    files.stranger.pair("/O=fleet/CN=one").store(files.directory / "own.pem")
    assert found.newest() is before
    assert "connections to other brokers go on with the certificates of before: ssl.truststore" in caplog.text
    files.authority.pair("/O=fleet/CN=one").store(files.directory / "own.pem")
    assert found.newest() is not before


def test_the_listener_that_brokers_use_does_not_take_it_over_either(files: Files) -> None:
    """Else the others would not connect any more, and nothing would say so."""
    config = files.config(files.one)
    listener = tls_listeners(config, SystemClock())["SSL"]
    before = listener.context
    files.stranger.pair("/O=fleet/CN=one").store(files.directory / "own.pem")
    told = listener.follow(time.time())
    assert told is not None
    assert told.startswith("listener SSL: the old certificate stays in use: ssl.truststore.location")
    assert "brokers would not accept each other at 127.0.0.1" in told
    assert listener.context is before
    assert listener.refusal is not None  # which the metric says as well
    files.authority.pair("/O=fleet/CN=one").store(files.directory / "own.pem")
    assert listener.follow(time.time()) == "listener SSL: the certificate was replaced"
    assert listener.context is not before
    assert listener.refusal is None


def test_a_listener_of_clients_only_may_have_any_certificate(files: Files) -> None:
    inside = {
        "listeners": "PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093", "ssl_allow_dn_changes": "true",
        "security_inter_broker_protocol": "PLAINTEXT",
    }  # fmt: skip
    config = files.config(files.one, **inside, ssl_client_auth="none")
    listener = tls_listeners(config, SystemClock())["SSL"]
    files.stranger.pair("/CN=else").store(files.directory / "own.pem")
    assert listener.follow(time.time()) == "listener SSL: the certificate was replaced"
