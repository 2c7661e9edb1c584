"""Batches without some of their records, as a leader appends them: rewritten as the cleaner rewrites one.

Same base offset, last offset and sequences, fewer records, none if need be. So the answer's offsets, the producer's
sequences, followers, recovery and consumers see nothing new.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from fleetlog._native.batch import BatchHeader, parse_header
from fleetlog._native.compact import leave_out
from fleetlog.brokers.log.disk.files import Buffer
from fleetlog.brokers.log.validation import CODEC_MASK, build_batch, pack_quickly
from fleetlog.wire.types import NO_TIMESTAMP


class Thinned(NamedTuple):
    """Batches one behind the other, their headers, and where each of them stands in the buffer."""

    buffer: bytearray
    headers: list[BatchHeader]
    places: list[int]


def without_records(
    buffer: Buffer,
    places: Sequence[int],
    headers: Sequence[BatchHeader],
    payloads: Sequence[Buffer],
    gone: Sequence[Set[int]],
    *,
    stamped: bool,
) -> Thinned:
    """Sound batches without the records whose indexes are in ``gone``; others keep their bytes.

    ``headers`` are final, offsets included; ``payloads`` are the batches' records, decompressed; ``stamped`` if their
    timestamps are the append's. Raises CorruptBatch.
    """
    out = Thinned(bytearray(), [], [])
    for at, header, payload, indexes in zip(places, headers, payloads, gone, strict=True):
        out.places.append(len(out.buffer))
        if indexes:
            batch = _without(payload, header, indexes, stamped)
            out.headers.append(parse_header(batch))
            out.buffer.extend(batch)
        else:
            out.headers.append(header)
            out.buffer.extend(memoryview(buffer)[at : at + header.size])
    return out


def _without(payload: Buffer, header: BatchHeader, gone: Set[int], stamped: bool) -> bytearray:
    if len(gone) == header.record_count:
        attributes = header.attributes & ~CODEC_MASK
        return build_batch(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")
    kept = leave_out(payload, header, set(gone))
    assert kept.payload is not None
    largest = header.max_timestamp if stamped else kept.max_timestamp
    after = header._replace(record_count=kept.record_count, max_timestamp=largest)
    return build_batch(after, pack_quickly(header.codec, kept.payload))
