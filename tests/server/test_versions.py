"""ApiVersions says what the table says; every row of the table has a handler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import ClientConnection, Context
from fleetlog.brokers.api.versions import handle_api_versions
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode

SHARES = {77, 78, 79, 90, 91, 92, 12020}
TIERED = {12021}


def ask(
    version: int, features: dict[str, int], name: str = "client", software: str = "1.2-x", **meant: str | int | None
) -> Any:
    metadata = SimpleNamespace(features=features, features_epoch=3 if features else -1, cluster_id="ours")
    services: Any = SimpleNamespace(metadata=metadata, config=SimpleNamespace(broker_id=7))
    context = Context(services, ClientConnection(1, "PLAINTEXT", "h"), 18, version, 1, "c")
    request = m.ApiVersionsRequest(
        version=version, client_software_name=name, client_software_version=software, **meant
    )
    response = handle_api_versions(request, context).response
    return m.decode_response(18, version, m.encode_response(response, 18, version))


@pytest.mark.parametrize("version", range(6))
def test_the_table_is_advertised(version: int) -> None:
    answer = ask(version, {})
    assert {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys} == {
        key: (row.min_version, row.max_version)
        for key, row in APIS.items()
        if not row.internal and key not in SHARES | TIERED
    }
    for feature, keys in (("share.version", SHARES), ("fleetlog.tiering.version", TIERED)):
        finalized = {k.api_key for k in ask(version, {feature: 1}).api_keys}
        assert finalized - {k.api_key for k in answer.api_keys} == keys, "once they are finalized"
    assert 12000 not in {k.api_key for k in answer.api_keys}, "what only brokers say to each other is not advertised"
    assert APIS[0].min_version == 0, "librdkafka before 2.11 looks for Produce 0 (KAFKA-18659)"


def test_features_with_a_minimum_of_0_are_for_version_4_only() -> None:
    assert ask(3, {}).supported_features == []
    assert [(f.name, f.min_version, f.max_version) for f in ask(4, {}).supported_features] == [
        ("group.version", 0, 1),
        ("fleetlog.schema.version", 0, 3),
        ("share.version", 0, 2),
        ("fleetlog.tiering.version", 0, 2),
        ("transaction.version", 0, 2),
    ]


@pytest.mark.parametrize("version", [3, 4])
def test_only_features_of_the_cluster_are_finalized(version: int) -> None:
    assert ask(version, {}).finalized_features == []
    answer = ask(version, {"transaction.version": 2, "streams.version": 1})
    assert [(f.name, f.max_version_level) for f in answer.finalized_features] == [("transaction.version", 2)]
    assert answer.finalized_features_epoch == 3


@pytest.mark.parametrize(("name", "software"), [("", "1"), ("a b", "1"), ("a", "-"), ("a", "1\n")])
def test_a_software_name_that_is_no_word_is_refused(name: str, software: str) -> None:
    assert ask(4, {}, name, software).error_code == ErrorCode.INVALID_REQUEST
    assert ask(2, {}, name, software).error_code == 0


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "error"),
    [
        (None, -1, ErrorCode.NONE),
        ("ours", 7, ErrorCode.NONE),
        ("theirs", 7, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("ours", 8, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("ours", -1, ErrorCode.INVALID_REQUEST),
        (None, 7, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_client_that_means_another_cluster_or_node_must_bootstrap_again(
    cluster_id: str | None, node_id: int, error: ErrorCode
) -> None:
    """Of one that is alone Kafka 4.4 says INVALID_REQUEST, too."""
    answer = ask(5, {}, cluster_id=cluster_id, node_id=node_id)
    assert (answer.error_code, bool(answer.api_keys)) == (error, error is ErrorCode.NONE)
