"""What is copied, what goes, and what counts."""

from __future__ import annotations

import uuid
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.tiering.decisions import (
    CopyLag,
    Listed,
    LocalLog,
    LocalSegment,
    TierLimits,
    agreed_until,
    chain,
    copy_lag,
    emptied,
    first_offset,
    fitted,
    local_start,
    next_copy,
    orphans,
    retained,
    unbroken,
)
from fleetlog.brokers.tiering.manifest import Manifest, ManifestEpoch, TieredSegment, manifest_name

E = ManifestEpoch
HOUR = 3_600_000


def manifest(*bounds: int, epochs: tuple[ManifestEpoch, ...] = (E(0, 0),), log_start: int = 0) -> Manifest:
    pairs = pairwise(bounds)
    segments = tuple(TieredSegment(uuid.UUID(int=first), first, last, 100, 5, 0, 0, first) for first, last in pairs)
    return Manifest(uuid.UUID(int=9), 0, 5, segments=segments, epochs=epochs, log_start=log_start)


def local(*bounds: int, stable: int = 1_000, epochs: tuple[ManifestEpoch, ...] = (E(0, 0),)) -> LocalLog:
    """The last bound but one is where the active segment begins, the last one its end."""
    closed = [LocalSegment(first, last, 100, first) for first, last in pairwise(bounds[:-1])]
    return LocalLog(bounds[0], bounds[-1], stable, 100 * len(closed) + 10, tuple(closed), epochs)


@pytest.mark.parametrize(
    ("known", "here", "copied"),
    [
        (manifest(), local(0, 10, 20, 25), (0, 10)),
        (manifest(0, 10), local(0, 10, 20, 25), (10, 20)),
        (manifest(0, 10, 20), local(0, 10, 20, 25), None),
        (manifest(0, 15), local(0, 10, 20, 25), (15, 20)),  # another replica's segments had other bounds
        (manifest(), local(0, 10, 20, 25, stable=9), None),  # a transaction is open, or it is not durable
        (manifest(0, 10), local(30, 40, 45), (30, 40)),  # a client has deleted what is between
        (manifest(log_start=10), local(0, 10, 20, 25), (10, 20)),
    ],
)
def test_what_is_copied(known: Manifest, here: LocalLog, copied: tuple[int, int] | None) -> None:
    part = next_copy(known, here, TierLimits(), 0)
    assert (part and part[:2]) == copied
    assert next_copy(known, here, TierLimits(copies=False), 0) is None
    assert copy_lag(known, here, TierLimits(copies=False), 0) == CopyLag()


@pytest.mark.parametrize(
    ("lags", "now_ms", "copied"),
    [
        ((0, -1), 0, True),
        ((-1, 0), 0, True),
        ((-1, -1), HOUR, False),  # neither check applies, as in Kafka
        ((50, -1), 49, False),
        ((50, -1), 50, True),  # the first segment's newest record is of 0 ms
        ((50, 211), 49, False),
        ((50, 210), 49, True),  # newer are two segments of 100 and one of 10 bytes
    ],
)
def test_a_lag_delays_copies(lags: tuple[int, int], now_ms: int, copied: bool) -> None:
    here = local(0, 10, 20, 30, 35)
    part = next_copy(manifest(), here, TierLimits(lag_ms=lags[0], lag_bytes=lags[1]), now_ms)
    assert (part is not None) is copied


def test_what_lags() -> None:
    here = local(0, 10, 20, 25, stable=15)
    assert copy_lag(manifest(0, 10), here, TierLimits(), 0) == CopyLag(1, 100, due=True, held=True)
    assert copy_lag(manifest(), here, TierLimits(), 0) == CopyLag(2, 200, due=True)
    assert copy_lag(manifest(0, 10), here, TierLimits(lag_ms=50), 0) == CopyLag(1, 100)
    assert copy_lag(manifest(0, 10, 20), here, TierLimits(), 0) == CopyLag()


def test_what_ends_before_the_log_begins_counts_for_nothing() -> None:
    gone_on = local(20, 30, 35)
    assert unbroken(manifest(0, 10, 20), gone_on) == manifest(0, 10, 20)
    assert first_offset(manifest(0, 10, 20), 20, -1) == 0
    assert first_offset(manifest(0, 10), 20, -1) == 20
    mended = unbroken(manifest(0, 10), gone_on)
    assert (mended.segments, mended.log_start) == ((), 20)
    assert unbroken(manifest(), gone_on) == manifest()


def test_a_tier_that_copies_no_more_or_ends() -> None:
    here, off = local(0, 10, 20, 25), TierLimits(local_ms=0, copies=False)
    assert local_start(manifest(0, 10), here, off, HOUR) == 10, "what is not copied stays while older is there"
    assert local_start(manifest(), here, off, HOUR) == 0, "a copy whose answer was lost may be counted still"
    assert retained(manifest(0, 10), here, off, -1, HOUR).log_start == 0
    assert retained(manifest(), here, off, -1, HOUR).log_start == 20, "the manifest says it first"
    assert local_start(manifest()._replace(log_start=20), here, off, HOUR) == 20
    assert local_start(manifest(), here, TierLimits(local_ms=0), HOUR) == 0
    ended = emptied(manifest(0, 10, 20), local(10, 20, 25))
    assert (ended.segments, ended.log_start) == ((), 10)


@pytest.mark.parametrize(
    ("known", "here", "until"),
    [
        (manifest(0, 10, 20), local(0, 10, 25), 20),
        (manifest(0, 10, 20), local(20, 25), 20),  # nothing to compare: it was deleted here because it counted
        (manifest(0, 10, 20), local(0, 10, 15), 15),  # an unclean election: this log ends earlier
        (manifest(0, 10, 20), local(0, 10, 25, epochs=(E(0, 0), E(2, 12))), 12),  # and goes on in another epoch
        (manifest(0, 10, 20, epochs=(E(0, 0), E(1, 12))), local(0, 10, 25), 12),
        (manifest(0, 10, 20, epochs=(E(0, 0), E(1, 5))), local(15, 25, epochs=(E(1, 15), E(2, 22))), 20),
        (manifest(), local(0, 10, 15), 0),
        (manifest(log_start=20), local(0, 10, 15), 15),  # retention had taken what was written again after that
        (manifest(log_start=20, epochs=(E(0, 0), E(1, 12))), local(0, 10, 25, epochs=(E(0, 0), E(2, 12))), 12),
    ],
)
def test_lineage(known: Manifest, here: LocalLog, until: int) -> None:
    assert agreed_until(known, here) == until
    assert fitted(known, here).end == (until if known.segments else -1)
    assert fitted(known, here).log_start == min(known.log_start, until)


def test_the_chain_keeps_where_epochs_really_began() -> None:
    assert chain((E(0, 0), E(1, 5)), (E(1, 15), E(2, 22)), 30) == (E(0, 0), E(1, 5), E(2, 22))
    assert chain((E(0, 0), E(1, 5), E(3, 9)), (E(1, 5), E(4, 8)), 20) == (E(0, 0), E(1, 5), E(4, 8))
    assert chain((E(0, 0),), (E(0, 0), E(2, 22)), 20) == (E(0, 0),)
    assert chain((E(0, 0),), (), 20) == (E(0, 0),)


def test_local_segments_go_once_they_count() -> None:
    here = local(0, 10, 20, 30, 35)
    for end, start in ((0, 0), (10, 10), (20, 20), (30, 30)):
        known = manifest(*range(0, end + 1, 10))
        assert local_start(known, here, TierLimits(local_bytes=0), HOUR) == start
        assert local_start(known, here, TierLimits(local_ms=0), HOUR) == start
        assert local_start(known, here, TierLimits(), HOUR) == 0
    whole = manifest(0, 10, 20, 30)
    assert local_start(whole, here, TierLimits(local_bytes=210), HOUR) == 10  # 310 bytes are here
    assert local_start(whole, here, TierLimits(local_ms=HOUR - 15), HOUR) == 20  # the third is from 20 ms
    assert local_start(manifest(0, 10)._replace(log_start=15), here, TierLimits(), HOUR) == 15


def test_retention_of_both() -> None:
    known, here = manifest(0, 10, 20), local(10, 20, 30, 35)
    assert retained(known, here, TierLimits(), -1, HOUR) == known
    assert retained(known, here, TierLimits(retention_bytes=310), -1, HOUR) == known  # 10 to 20 is in both places
    assert retained(known, here, TierLimits(retention_bytes=210), -1, HOUR).start == 10
    assert retained(known, here, TierLimits(retention_ms=HOUR - 5), -1, HOUR).start == 10
    assert retained(known, here, TierLimits(retention_ms=0), -1, HOUR)[-1] == ()
    deleted = retained(known, here, TierLimits(), 15, HOUR)
    assert (deleted.start, len(deleted.segments)) == (15, 1)
    assert retained(known, here, TierLimits(), 40, HOUR).log_start == 40


def test_a_deletion_stays_where_another_epoch_began_behind_all_copies() -> None:
    here = local(10, 20, 30, 45, epochs=(E(0, 0), E(2, 25)))
    deleted = retained(manifest(0, 10, 20), here, TierLimits(), 40, HOUR)
    assert (deleted.log_start, deleted.epochs) == (40, (E(0, 0), E(2, 25)))
    successor = local(40, 45, 50, epochs=(E(2, 25), E(3, 45)))
    assert fitted(deleted, successor).log_start == 40
    assert fitted(deleted, here).log_start == 40


@given(st.sets(st.integers(0, 60)), st.integers(-1, 700), st.integers(-1, 80))
def test_retention_takes_no_more_than_it_must(bounds: set[int], most: int, age_ms: int) -> None:
    known, here = manifest(*sorted(bounds)), local(70, 80, 85)
    kept = retained(known, here, TierLimits(retention_bytes=most, retention_ms=age_ms), -1, 90)
    gone = known.segments[: len(known.segments) - len(kept.segments)]
    assert known.segments == gone + kept.segments
    assert all(segment.end <= kept.log_start for segment in gone)
    for at, segment in enumerate(gone):
        behind = sum(later.size for later in known.segments[at + 1 :]) + here.size
        assert (age_ms >= 0 and 90 - segment.max_timestamp > age_ms) or (most >= 0 and behind >= most)


def test_orphans_are_old_and_named_by_no_manifest() -> None:
    known = manifest(0, 10)._replace(generation=9)
    named = [Listed(name, 1, 0) for name in known.names()]
    fresh, old = Listed("0-aa.log", 1, 95), Listed("0-bb.log", 1, 0)
    manifests = [Listed(manifest_name(generation), 1, 0) for generation in range(1, 10)]
    listed = [*named, fresh, old, *manifests]
    assert orphans(listed, known, 100, 10) == ["0-bb.log", *(entry.name for entry in manifests[:6])]
    young = [Listed(manifest_name(generation), 1, 95 if generation > 4 else 0) for generation in range(1, 10)]
    assert orphans(young, known, 100, 10) == [manifest_name(generation) for generation in (1, 2, 3)]
    assert orphans(listed, known, 100, 100) == []
