"""Batches without some of their records: who has them knows what who has all of it knows, but for those records."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleetlog._native.batch import HEADER_SIZE, Record, encode_batch, scan
from fleetlog.brokers.log import Log
from fleetlog.brokers.log.rewrite import Thinned, without_records
from fleetlog.brokers.log.validation import records_of
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode
from tests.support.logs import (
    NOW,
    aborted_entries,
    append,
    append_txn,
    assert_every_time_is_found,
    batch,
    config,
    content,
    end_txn,
    open_log,
    produced,
    records,
)

CODECS = [0, 0, compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD]
PLAIN, IDEMPOTENT, TRANSACTIONAL, COMMIT, ABORT = range(5)
STEPS = st.lists(
    st.tuples(st.integers(PLAIN, ABORT), st.lists(st.booleans(), min_size=1, max_size=4), st.sampled_from(CODECS)),
    min_size=1,
    max_size=12,
)


def written(log: Log, steps: list[tuple[int, list[bool], int]]) -> dict[int, set[int]]:
    """Write them, with idempotent producer 7 and transactional producer 8; which records are to go, by base offset."""
    gone: dict[int, set[int]] = {}
    sequences = {7: 0, 8: 0}
    for kind, leaving, codec in steps:
        base, count = log.log_end_offset, len(leaving)
        if kind in (COMMIT, ABORT):
            if log.producers.open:
                assert end_txn(log, 8, 0, commit=kind == COMMIT).error is ErrorCode.NONE
            continue
        if kind == PLAIN:
            info = append(log, batch(count, codec=codec))
        elif kind == IDEMPOTENT:
            info = append(log, produced(7, 0, sequences[7], count, codec=codec))
            sequences[7] += count
        else:
            info = append_txn(log, 8, 0, sequences[8], count, codec=codec)
            sequences[8] += count
        assert info.error is ErrorCode.NONE
        gone[base] = {index for index, leaves in enumerate(leaving) if leaves}
    return gone


def thinned(data: bytes, gone: dict[int, set[int]]) -> Thinned:
    """All batches without those records."""
    rows = list(scan(data))
    payloads = [records_of(data, at, header, 1 << 30) for at, header in rows]
    sets = [gone.get(header.base_offset, set()) for _, header in rows]
    return without_records(data, [at for at, _ in rows], [one for _, one in rows], payloads, sets, stamped=False)


def known(log: Log) -> dict[str, Any]:
    """What becomes of producers and readers, without the times of batches."""
    producers = {
        entry.producer_id: (
            entry.epoch,
            entry.txn_first_offset,
            [(one.last_sequence, one.last_offset, one.offset_delta) for one in entry.batches],
        )
        for entry in log.producers.active()
    }
    return {
        "producers": producers,
        "open": dict(log.producers.open),
        "stable": log.last_stable_offset,
        "aborted": aborted_entries(log),
        "end": log.log_end_offset,
    }


@given(STEPS)
def test_followers_and_recovery_know_what_the_whole_log_knows(steps: list[tuple[int, list[bool], int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        whole, thin = (open_log(Path(name) / f"{one}-0", config=config()) for one in ("whole", "thin"))
        gone = written(whole, steps)
        data = content(whole)
        kept = thinned(data, gone)
        assert [header for _, header in scan(bytes(kept.buffer))] == kept.headers
        assert [at for at, _ in scan(bytes(kept.buffer))] == kept.places
        if kept.buffer:
            assert thin.appender.append_as_follower(bytes(kept.buffer), now_ms=NOW).error is ErrorCode.NONE
        thin.appender.set_high_watermark(thin.log_end_offset)
        lost = {base + index for base, indexes in gone.items() for index in indexes}
        staying = [record for record in records(whole) if record.offset not in lost]
        assert records(thin) == staying
        assert known(thin) == known(whole)
        assert_every_time_is_found(thin)
        thin.abandon()
        again = open_log(Path(name) / "thin-0", config=config())
        again.appender.set_high_watermark(again.log_end_offset)
        assert known(again) == known(whole)
        assert records(again) == staying


def test_a_batch_without_any_record_is_repeated_and_followed_as_a_whole_one(tmp_path: Path) -> None:
    whole, thin = (open_log(tmp_path / name) for name in ("whole-0", "thin-0"))
    append(whole, produced(7, 0, 0, 3, codec=compression.ZSTD))
    (header,) = (kept := thinned(content(whole), {0: {0, 1, 2}})).headers
    assert (header.record_count, header.size, header.last_offset, header.last_sequence) == (0, HEADER_SIZE, 2, 2)
    thin.appender.append_as_follower(bytes(kept.buffer), now_ms=NOW)
    repeated = append(thin, produced(7, 0, 0, 3))
    assert (repeated.duplicate, repeated.first_offset, repeated.last_offset) == (True, 0, 2)
    assert append(thin, produced(7, 0, 4)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(thin, produced(7, 0, 3)).first_offset == 3


def test_the_largest_time_is_that_of_what_stays_unless_it_is_the_appends(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events-0")
    append(log, encode_batch([Record(-1, NOW + late, b"k", b"v", ()) for late in (5, 9, 1)]))
    data = content(log)
    ((at, header),) = scan(data)
    payloads = [records_of(data, at, header, 1 << 30)]
    for stamped, largest in ((False, NOW + 5), (True, NOW + 9)):
        kept = without_records(data, [at], [header], payloads, [{1}], stamped=stamped)
        assert kept.headers[0].max_timestamp == largest
