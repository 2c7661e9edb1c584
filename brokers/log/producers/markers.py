"""Control batches: the markers that end a producer's transaction on a partition.

Source: KIP-98. Of a batch transaction the markers of all its producers are one run, and each says how many follow it:
fleetlog's, behind what Kafka reads of a marker.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from fleetlog._native.batch import Record, encode_batch

TRANSACTIONAL, CONTROL = 0x10, 0x20
"""Attributes of a batch."""
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_RUN_REMAINING = struct.Struct(">i")
_ABORT, _COMMIT = 0, 1


class Marker(NamedTuple):
    """What a control batch says about its producer's transaction.

    ``run_remaining`` markers of the same batch transaction follow it at once: what they end becomes stable together.
    """

    commit: bool
    coordinator_epoch: int
    run_remaining: int = 0


NO_MARKERS: Mapping[int, Marker | None] = MappingProxyType({})


def parse_marker(record: Record) -> Marker | None:
    """Read a control record; None if it is of a kind that is no end of a transaction. Raises ValueError if damaged."""
    key, value = record.key, record.value
    if key is None or len(key) < _MARKER_KEY.size:
        raise ValueError("a control record's key is too short")
    version, kind = _MARKER_KEY.unpack_from(key)
    if version < 0:
        raise ValueError(f"control record version {version}")
    if kind not in (_ABORT, _COMMIT):
        return None
    if value is None or len(value) < _MARKER_VALUE.size:
        raise ValueError("a transaction marker's value is too short")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    if version < 0:
        raise ValueError(f"transaction marker version {version}")
    remaining = 0
    if len(value) >= _MARKER_VALUE.size + _RUN_REMAINING.size:  # ours; Kafka reads no further
        (remaining,) = _RUN_REMAINING.unpack_from(value, _MARKER_VALUE.size)
    return Marker(kind == _COMMIT, coordinator_epoch, max(0, remaining))


def encode_marker_run(markers: Sequence[tuple[int, int, bool]], coordinator_epoch: int, timestamp: int) -> bytes:
    """Control batches that end the parts of several producers, as one run: (producer id, epoch, commit) each."""
    batches = []
    for index, (producer_id, epoch, commit) in enumerate(markers):
        value = _MARKER_VALUE.pack(0, coordinator_epoch)
        remaining = len(markers) - 1 - index
        if remaining:
            value += _RUN_REMAINING.pack(remaining)
        record = Record(-1, timestamp, _MARKER_KEY.pack(0, _COMMIT if commit else _ABORT), value)
        batches.append(
            encode_batch([record], attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id, producer_epoch=epoch)
        )
    return b"".join(batches)


def marker_of_nothing(timestamp: int) -> Record:
    """A control record that readers pass over: it is stored nowhere, and no producer's."""
    return Record(-1, timestamp, _MARKER_KEY.pack(0, _COMMIT), _MARKER_VALUE.pack(0, 0))
