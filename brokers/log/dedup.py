"""Dropping duplicates from the batches of a topic with ``fleetlog.dedup=source``: what a leader appends of a batch, and
what follows for the partition's accepted positions from batches that are in its log.

A batch with duplicates is rewritten (:mod:`brokers.log.rewrite`). ADR 0021.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, parse_header
from fleetlog._native.compact import (
    PAGE_BITS,
    Gathered,
    PagePositions,
    Position,
    gather_positions,
    page_positions,
    read_positions,
)
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.disk.files import Buffer
from fleetlog.brokers.log.positions import BelowFloor, NoRoom, PositionSets
from fleetlog.brokers.log.rewrite import without_records
from fleetlog.brokers.log.validation import MAX_EXPLAINED_RECORDS, Rejected, records_of
from fleetlog.wire.errors import ErrorCode

SOURCE_HEADER = b"fleetlog.source"
"""Name of the header with ``source:position:ordinal``."""
_INFLATE_LIMIT = 2**31 - 1
"""Of batches that a leader has taken: its limit was another one, perhaps."""
_MAX_RECORDS = 50_000
"""Of what a client appends at once: a record takes a microsecond or more, in which nothing else is served."""
_MAX_PAGES = 256
"""Of a batch whose positions are gathered by page; if there are more, each record is looked at by itself."""
_NAME = SOURCE_HEADER.decode()
_FORM = f"a header {_NAME} with source:position:ordinal, as in orders-3:1234:0"


class Kept(NamedTuple):
    """What a leader appends: the batches with their final headers, and the positions that are new, by batch offset."""

    buffer: bytearray | memoryview
    headers: list[BatchHeader]
    places: list[int]
    """Where each batch stands in the buffer."""
    fresh: list[tuple[int, list[PagePositions]]]
    dropped: int = 0
    repeated: frozenset[tuple[bytes, int]] = frozenset()
    """Where the dropped ones are known: source and page."""
    going: tuple[bytes, ...] = ()
    """What the accepted positions forget for these: see ``PositionSets.forget``."""


def refused_transaction() -> Rejected:
    """The answer to a transactional batch: whether its records count is decided after its duplicates are dropped."""
    return Rejected(
        ErrorCode.INVALID_RECORD,
        "a topic with fleetlog.dedup=source takes no transactional batches: write without a transactional id",
    )


def positions_of(records: Buffer, at: int, header: BatchHeader) -> list[PagePositions]:
    """What records of a batch that a leader has appended say of their sources; none of a control batch.

    Records without a position are from before their topic dropped duplicates. Raises CorruptBatch or CodecError.
    """
    if header.is_control or not header.record_count:
        return []
    payload = records_of(records, at, header, _INFLATE_LIMIT)
    gathered = gather_positions(payload, header, SOURCE_HEADER, _MAX_PAGES)
    if gathered is not None:
        return gathered.pages
    return page_positions(one for one in read_positions(payload, header, SOURCE_HEADER) if one is not None)


def all_new(sets: PositionSets, batches: Sequence[Buffer], now_ms: int) -> list[Gathered]:
    """What the first batches have of positions, as long as none was accepted before; the others need a closer look.

    Their records are sound; the batches may not be. The sets stay as they are.
    """
    gathered_all: list[Gathered] = []

    def gathered() -> Iterator[list[PagePositions]]:
        """Up to the first batch that is not as most are: without codec and flags, and each position once."""
        for batch in batches:
            try:
                header = parse_header(batch)
                if header.attributes or header.base_offset or header.record_count > _MAX_RECORDS:
                    return
                one = gather_positions(memoryview(batch)[HEADER_SIZE:], header, SOURCE_HEADER, _MAX_PAGES)
            except CorruptBatch:
                return
            if one is None:
                return
            gathered_all.append(one)
            yield one.pages

    return gathered_all[: sets.takes(gathered(), now_ms)]


def keep_new(
    sets: PositionSets,
    buffer: bytearray | memoryview,
    places: Sequence[int],
    headers: Sequence[BatchHeader],
    payloads: Sequence[Buffer],
    now_ms: int,
    *,
    stamped: bool,
    explain: int = MAX_EXPLAINED_RECORDS,
) -> Kept | Rejected:
    """Leave out of sound batches what was accepted before; the sets stay as they are.

    ``headers`` are final, offsets included; ``payloads`` are the batches' records, decompressed; ``stamped`` if their
    timestamps are the append's. Raises CorruptBatch.
    """
    records = sum(header.record_count for header in headers)
    if records > _MAX_RECORDS:
        return Rejected(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a topic with fleetlog.dedup=source takes {_MAX_RECORDS} records in a batch, not {records}: set the "
            "producer's batch.size lower",
        )
    if any(header.is_transactional for header in headers):
        return refused_transaction()
    gathered = [
        gather_positions(payload, header, SOURCE_HEADER, _MAX_PAGES)
        for payload, header in zip(payloads, headers, strict=True)
    ]
    pages = [one.pages for one in gathered if one is not None]
    if len(pages) == len(headers) == sets.takes(pages, now_ms):
        offsets = (header.base_offset for header in headers)
        return Kept(buffer, list(headers), list(places), list(zip(offsets, pages, strict=True)))
    if not sets.known:
        return Rejected(
            ErrorCode.KAFKA_STORAGE_ERROR,
            "what was accepted before this log's first record, or in a damaged one, is unknown",
        )
    by_batch: list[list[Position]] = []
    for payload, header in zip(payloads, headers, strict=True):
        mine = read_positions(payload, header, SOURCE_HEADER)
        missing = [index for index, position in enumerate(mine) if position is None]
        if missing:
            return _without_position(missing, header, explain)
        by_batch.append([position for position in mine if position is not None])
    positions = [position for mine in by_batch for position in mine]
    sifted = sets.sift(positions, now_ms)
    if isinstance(sifted, BelowFloor):
        return _below_floor(sifted, sets)
    if isinstance(sifted, NoRoom):
        return Rejected(
            ErrorCode.POLICY_VIOLATION,
            f"the accepted positions of this partition would take {sifted.needed} bytes of {sifted.limit}: set "
            "fleetlog.dedup.max.bytes higher or fleetlog.dedup.window.ms lower, or write denser positions of fewer "
            "sources",
        )
    if not sifted.duplicates:
        fresh = [(header.base_offset, page_positions(mine)) for header, mine in zip(headers, by_batch, strict=True)]
        return Kept(buffer, list(headers), list(places), fresh, going=sifted.going)
    kept = _rewritten(buffer, places, headers, payloads, by_batch, set(sifted.duplicates), stamped)
    repeated = {(positions[index][0], positions[index][1] >> PAGE_BITS) for index in sifted.duplicates}
    return kept._replace(repeated=frozenset(repeated), going=sifted.going)


def _rewritten(
    buffer: bytearray | memoryview,
    places: Sequence[int],
    headers: Sequence[BatchHeader],
    payloads: Sequence[Buffer],
    found: Sequence[list[Position]],
    duplicates: set[int],
    stamped: bool,
) -> Kept:
    gone: list[set[int]] = []
    fresh: list[tuple[int, list[PagePositions]]] = []
    before = 0
    for header, mine in zip(headers, found, strict=True):
        indexes = {index for index in range(len(mine)) if before + index in duplicates}
        before += len(mine)
        gone.append(indexes)
        new = page_positions(one for index, one in enumerate(mine) if index not in indexes)
        fresh.append((header.base_offset, new))
    out = without_records(buffer, places, headers, payloads, gone, stamped=stamped)
    return Kept(out.buffer, out.headers, out.places, fresh, len(duplicates))


def _without_position(missing: Sequence[int], header: BatchHeader, explain: int) -> Rejected:
    why = f"a topic with fleetlog.dedup=source takes no record without {_FORM}"
    if header.record_count > explain:
        return Rejected(ErrorCode.INVALID_RECORD, why)
    return Rejected(ErrorCode.INVALID_RECORD, why, tuple((index, None) for index in missing))


def _below_floor(wrong: BelowFloor, sets: PositionSets) -> Rejected:
    source, position, _ = wrong.position
    return Rejected(
        ErrorCode.INVALID_RECORD,
        f"position {position} of source {source.decode(errors='replace')} is below {wrong.floor}: what was accepted "
        f"there is not known any more (fleetlog.dedup.window.ms {sets.window_ms}); write again under another source",
    )


def accept(sets: PositionSets | None, kept: Kept, now_ms: int) -> None:
    """What a leader kept of its batches is in the log now."""
    assert sets is not None, "its batches were sifted"
    sets.dropped += kept.dropped
    sets.touch(kept.repeated, now_ms)
    sets.forget(kept.going, {page.source for _, pages in kept.fresh for page in pages})
    for offset, pages in kept.fresh:
        sets.accept(pages, offset, now_ms, exact=True)


def note(sets: PositionSets, records: Buffer, at: int, header: BatchHeader, now_ms: int) -> None:
    """The batch at ``at`` is in the log, and was not appended now. Raises CorruptBatch or CodecError."""
    positions = positions_of(records, at, header)
    if positions:
        sets.accept(positions, header.base_offset, now_ms, exact=False)
