"""Ids that brokers make."""

from __future__ import annotations

import uuid

from fleetlog.brokers.model import id_text, random_id


def test_no_id_begins_with_a_dash() -> None:
    ids = [uuid.UUID(bytes=bytes([first]) + bytes(15)) for first in (0xF8, 0xFB, 0xFC)]
    assert [id_text(one)[0] for one in ids] == ["-", "-", "_"]
    drawn = iter(ids)
    assert id_text(random_id(lambda: next(drawn)))[0] == "_"
