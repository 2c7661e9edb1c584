"""Names whose bytes are not UTF-8 are looked up as what they become, and stored nowhere: nobody could type them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog._native.errors import LooseMessage
from fleetlog.brokers.api.acls import _binding
from fleetlog.brokers.api.client_quotas import _named
from fleetlog.brokers.api.scram import _fits
from fleetlog.brokers.quotas.entities import QuotaRequestRefused
from fleetlog.wire import hot
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from tests.support.coordinator_broker import Broker, play
from tests.support.filled import codes, filled
from tests.support.one_znode import OneZnode

NAME = "Jörg"
STORED = {
    8: ErrorCode.INVALID_GROUP_ID,
    11: ErrorCode.INVALID_GROUP_ID,
    22: ErrorCode.INVALID_REQUEST,
    24: ErrorCode.INVALID_REQUEST,
    25: ErrorCode.INVALID_REQUEST,
    28: ErrorCode.INVALID_GROUP_ID,
    12001: ErrorCode.INVALID_REQUEST,
    12003: ErrorCode.INVALID_REQUEST,
    12007: ErrorCode.INVALID_REQUEST,
}
"""By API, what a request gets whose group or transactional id is such a name."""


def not_utf_8(key: int, version: int, message: Any) -> Any:
    """The request as it is read where each ``ö`` comes as in Latin-1."""
    body = bytes(message.encode(version=version)).replace("ö".encode(), b"\xf6-")
    decode = hot.DECODERS.get(key)
    with pytest.raises(LooseMessage, match="not UTF-8") as loose:
        decode(version, memoryview(body)) if decode else m.decode_request(key, version, memoryview(body))
    return loose.value.message


@pytest.mark.parametrize("key", STORED)
def test_no_group_or_transactional_id_is_made_of_it(tmp_path: Path, key: int) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, OneZnode()).ready()
        version = 3 if key == 24 else APIS[key].max_version
        names = dict.fromkeys(("group_id", "transactional_id", "v3_and_below_transactional_id", "sink_id"), NAME)
        request = not_utf_8(
            key, version, filled(key, version, **names, name="t", topic_id=broker.metadata.topics["t"].id)
        )
        response = m.encode_response(await broker.outcome(key, version, request), key, version)
        assert set(codes(m.decode_response(key, version, response))) == {STORED[key]}
        await broker.stop()

    play(scenario)


def test_a_client_id_and_what_is_no_name_may_be_what_it_became(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, OneZnode()).ready()
        request = not_utf_8(
            8,
            2,
            filled(
                8, 2, group_id="g", name="t", member_id="", generation_id_or_member_epoch=-1, committed_metadata=NAME
            ),
        )
        (topic,) = (await broker.outcome(8, 2, request)).topics
        assert [part.error_code for part in topic.partitions] == [0]
        request = not_utf_8(9, 1, filled(9, 1, group_id=NAME))
        await broker.outcome(9, 1, request)
        await broker.stop()

    play(scenario)


def test_no_user_quota_or_acl_is_made_of_it() -> None:
    (creation,) = not_utf_8(30, 3, filled(30, 3, creations=[m.request_class(30).AclCreation(
        version=3, resource_type=2, resource_name="t", resource_pattern_type=3, principal=f"User:{NAME}", host="*",
        operation=3, permission_type=3,
    )])).creations  # fmt: skip
    no_context: Any = None  # what is refused by itself asks it for nothing
    assert "UTF-8" in (_binding(creation, no_context).message or "")
    (deletion,) = not_utf_8(51, 0, filled(51, 0, name=NAME, mechanism=1)).deletions
    assert not _fits(deletion.name)
    (entry,) = not_utf_8(49, 1, filled(49, 1, entity_type="user", entity_name=NAME)).entries
    with pytest.raises(QuotaRequestRefused, match="UTF-8"):
        _named([(one.entity_type, one.entity_name) for one in entry.entity])
