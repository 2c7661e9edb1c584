"""What a consumer gets where a topic that drops duplicates has batches without records only.

librdkafka takes an answer whose batches have no record for one whose limit was too small: it doubles the limit, and
from 1 GiB on tells the application MSG_SIZE_TOO_LARGE. It does so for as long as the consumer lives. An answer with a
control record it passes over, as all clients do. So such batches leave as one control batch with a marker that ends
nothing, of no producer, from the first offset to the last one. The log, and what followers read, stay as they are.
"""

from __future__ import annotations

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, encode_batch, parse_header
from fleetlog._native.wire_tuples import HeldBytes
from fleetlog.brokers.log.markers import CONTROL, marker_of_nothing
from fleetlog.brokers.log.state import ReadResult

MOST_BATCHES = 256
"""Looked at for one answer: what follows is in the next one."""


def passed_over(found: ReadResult) -> HeldBytes | None:
    """The control batch for what was read, which is released, if its first slice, or the first 256 batches of that,
    have no record. None if it can leave as it is.

    Raises DiskFailed or CorruptBatch.
    """
    piece = found.slices[0]
    at, end = piece.position, piece.position + piece.length
    last: BatchHeader | None = None
    for _ in range(MOST_BATCHES):
        if at >= end:
            break
        header = parse_header(piece.file.read(at, HEADER_SIZE))
        if header.record_count:
            return None
        at, last = at + header.size, header
    assert last is not None, "a slice has a batch"
    found.release()
    marker, epoch = marker_of_nothing(last.max_timestamp), last.partition_leader_epoch
    return HeldBytes(encode_batch([marker], base_offset=last.last_offset, leader_epoch=epoch, attributes=CONTROL))
