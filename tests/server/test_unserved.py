"""What is not served yet is refused in words that clients understand: ACLs, SASL, new group protocols.

The answers about ACLs and SASL were compared with a Kafka 4.1.1 that has PLAINTEXT listeners and no authorizer.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import Access
from fleetlog.brokers.api.base import ClientConnection, Context, InSlices, InTask, through
from fleetlog.brokers.api.rows import api_table
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode


def ask(name: str, version: int, request: dict[str, Any]) -> Any:
    """The answer of an API's handler, by way of the wire."""
    api = next(row for row in APIS.values() if row.name == name)
    services: Any = SimpleNamespace(access=Access(), acls=None, audit=None, metadata=SimpleNamespace(features={}))
    context = Context(services, ClientConnection(1, "PLAINTEXT", "h"), api.key, version, 1, "c")
    sent = m.request_class(api.key)(version=version, **request)
    decoded = m.decode_request(api.key, version, memoryview(sent.encode(version=version)))
    outcome = api_table()[api.key].handler(decoded, context)
    if isinstance(outcome, InTask):
        outcome = asyncio.run(outcome.coroutine)
    answer = (through(outcome.work) if isinstance(outcome, InSlices) else outcome).response
    return m.decode_response(api.key, version, m.encode_response(answer, api.key, version))


def versions(name: str) -> list[int]:
    api = next(row for row in APIS.values() if row.name == name)
    return list(range(api.min_version, api.max_version + 1))


FILTER = {"resource_type_filter": 2, "operation": 1, "permission_type": 1, "pattern_type_filter": 3}


@pytest.mark.parametrize("version", versions("DescribeAcls"))
def test_acls_are_disabled(version: int) -> None:
    answer = ask("DescribeAcls", version, dict(FILTER))
    assert (answer.error_code, answer.resources) == (ErrorCode.SECURITY_DISABLED, [])
    assert "No Authorizer" in answer.error_message
    creation = m.request_class(30).AclCreation
    acl = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*"}
    acls = [creation(version=version, operation=3, permission_type=3, **acl) for _ in range(2)]
    answer = ask("CreateAcls", version, {"creations": acls})
    assert [r.error_code for r in answer.results] == [ErrorCode.SECURITY_DISABLED] * 2
    filters = [m.request_class(31).DeleteAclsFilter(version=version, **FILTER) for _ in range(2)]
    answer = ask("DeleteAcls", version, {"filters": filters})
    assert [(r.error_code, r.matching_acls) for r in answer.filter_results] == [(ErrorCode.SECURITY_DISABLED, [])] * 2


@pytest.mark.parametrize("version", versions("SaslAuthenticate"))
def test_a_plaintext_listener_has_no_sasl(version: int) -> None:
    answer = ask("SaslHandshake", min(version, 1), {"mechanism": "PLAIN"})
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    answer = ask("SaslAuthenticate", version, {"auth_bytes": b"\0a\0b"})
    assert (answer.error_code, answer.auth_bytes) == (ErrorCode.ILLEGAL_SASL_STATE, b"")


@pytest.mark.parametrize("name", ["ConsumerGroupHeartbeat", "ShareGroupHeartbeat"])
def test_new_group_protocols_are_refused_and_not_ignored(name: str) -> None:
    for version in versions(name):
        answer = ask(name, version, {"group_id": "g", "member_id": "m", "member_epoch": 0})
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert answer.error_message
        assert answer.assignment is None
