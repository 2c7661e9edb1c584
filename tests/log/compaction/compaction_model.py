"""What a pass of compaction makes of a log, said with lists and dictionaries."""

from __future__ import annotations

from typing import NamedTuple

from fleetlog._native.batch import scan
from fleetlog.brokers.log.validation import batch_records, read_marker
from tests.support.logs import content

HORIZON_BIT = 0x40


class ModelBatch(NamedTuple):
    first: int
    last: int
    producer: tuple[int, int, int]
    """Id, epoch, first sequence."""
    transactional: bool
    end: str
    """Of a control batch: commit or abort."""
    horizon: int | None
    records: tuple[tuple[int, bytes | None, bytes | None, int], ...]
    """Offset, key, value, timestamp."""


def batches_of(log) -> list[ModelBatch]:
    """All of a log."""
    data, found = content(log), []
    for at, header in scan(data):
        end = ""
        if header.is_control:
            end = "commit" if read_marker(data, at, header).commit else "abort"
        records = batch_records(data, at, header, 1 << 30) if header.record_count else []
        found.append(
            ModelBatch(
                header.base_offset, header.last_offset,
                (header.producer_id, header.producer_epoch, header.base_sequence), header.is_transactional, end,
                header.base_timestamp if header.attributes & HORIZON_BIT else None,
                tuple((r.offset, r.key, r.value, r.timestamp) for r in records),
            )
        )  # fmt: skip
    return found


def fates_of(batches: list[ModelBatch]) -> dict[int, str]:
    """By the first offset of each transactional batch of data: how its transaction ended, "" if it has not."""
    fates: dict[int, str] = {}
    open_: dict[int, list[int]] = {}
    for batch in batches:
        if batch.end:
            fates.update(dict.fromkeys(open_.pop(batch.producer[0], []), batch.end))
        elif batch.transactional:
            open_.setdefault(batch.producer[0], []).append(batch.first)
            fates[batch.first] = ""
    return fates


def last_offsets(batches: list[ModelBatch], end: int) -> dict[bytes, int]:
    """The offset of each key's last record below ``end`` that is not aborted."""
    fates = fates_of(batches)
    found: dict[bytes, int] = {}
    for batch in batches:
        if not batch.end and fates.get(batch.first) != "abort":
            found.update({r[1]: r[0] for r in batch.records if r[1] is not None and r[0] < end})
    return found


def table_of(batches: list[ModelBatch]) -> dict[bytes, bytes]:
    """The last committed value of each key."""
    fates = fates_of(batches)
    table: dict[bytes, bytes] = {}
    for batch in batches:
        if batch.end or fates.get(batch.first, "commit") != "commit":
            continue
        for _, key, value, _ in batch.records:
            if value is None:
                table.pop(key, None)
            elif key is not None:
                table[key] = value
    return table


def cleaned(
    batches: list[ModelBatch],
    end: int,
    reach: int,
    ends: set[int],
    known: dict[int, tuple[int, int]],
    now_ms: int,
    retention_ms: int,
) -> list[ModelBatch]:
    """What a pass leaves that knows the keys below ``end``, and rewrites segments up to ``reach``.

    ``ends``: where segments end after it. ``known``: epoch and last offset with data (or -1) of each known producer.
    """
    fates, last = fates_of(batches), last_offsets(batches, end)
    found: list[ModelBatch] = []
    met: set[int] = set()
    for batch in batches:
        if batch.first >= reach:
            found.append(batch)
            continue
        pid, epoch, _ = batch.producer
        stays = batch.last + 1 in ends
        if pid in known:
            its_epoch, its_last = known[pid]
            stays = stays or (batch.last == its_last if its_last >= 0 else bool(batch.end) and epoch == its_epoch)
        if batch.end:
            has_data = pid in met
            met.discard(pid)
            if not has_data and batch.horizon is None:
                batch = batch._replace(horizon=now_ms + retention_ms)
            elif not has_data and batch.horizon <= now_ms and not stays:
                continue
            found.append(batch)
            continue
        if batch.transactional:
            met.add(pid)
        gone = batch.horizon is not None and batch.horizon <= now_ms
        aborted = fates.get(batch.first) == "abort"
        kept = tuple(r for r in batch.records if not aborted and (r[0] >= end or _stays(r, last, gone)))
        horizon = batch.horizon
        if batch.first < end and horizon is None and any(r[2] is None for r in kept):
            horizon = now_ms + retention_ms
        if kept:
            found.append(batch._replace(records=kept, horizon=horizon))
        elif stays:
            found.append(batch._replace(records=(), horizon=None))
    return found


def _stays(record: tuple[int, bytes | None, bytes | None, int], last: dict[bytes, int], gone: bool) -> bool:
    offset, key, value, _ = record
    return key is not None and last[key] == offset and not (gone and value is None)
