"""Ids that brokers make."""

from __future__ import annotations

import uuid

import pytest

from brokers.log.checkpoints import encode_topic_id
from brokers.model import random_id


def test_no_id_begins_with_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [uuid.UUID(bytes=bytes([first]) + bytes(15)) for first in (0xF8, 0xFB, 0xFC)]
    assert [encode_topic_id(one)[0] for one in ids] == ["-", "-", "_"]
    drawn = iter(ids)
    monkeypatch.setattr(uuid, "uuid4", lambda: next(drawn))
    assert encode_topic_id(random_id())[0] == "_"
