"""What a broker tells of its disks fits into znodes, and is read again."""

from __future__ import annotations

import uuid

import pytest

from fleetlog.brokers.metadata import inventories
from fleetlog.brokers.metadata.inventories import Inventory, LogSummary, decode_inventory, encode_inventory
from fleetlog.brokers.metadata.marks import ClusterMarks
from fleetlog.brokers.metadata.znodes import BadZnode


def _inventory(logs: int) -> Inventory:
    summaries = [LogSummary(f"t{n}", n, uuid.uuid4(), n, 1, n + 5, n % 2 == 0, n % 3 == 0) for n in range(logs)]
    return Inventory(3, ClusterMarks(1, 2, 3, 4, 5), summaries, ["/a"], ["/b/x-0"], 77)


@pytest.mark.parametrize("logs", [0, 1, 500])
def test_it_is_read_again(logs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventories, "PART_BYTES", 1000)
    inventory = _inventory(logs)
    parts = dict(enumerate(encode_inventory(inventory)))
    assert (len(parts) > 5) == (logs == 500)
    assert decode_inventory("/x", parts) == inventory
    del parts[len(parts) - 1]
    with pytest.raises(BadZnode):
        decode_inventory("/x", parts)


@pytest.mark.parametrize("data", [b"", b"0/1 ", b"0/1 nonsense", b"x"])
def test_what_is_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(BadZnode):
        decode_inventory("/x", {0: data})
