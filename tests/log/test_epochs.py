"""Leader epochs: where each of them ends, and what a cut at either side leaves."""

from __future__ import annotations

import pytest

from fleetlog._native.batch import scan
from fleetlog.brokers.log.epochs import EpochCache
from tests.support.logs import (
    content,
    forty_batches,
)


@pytest.fixture
def log(tmp_path):
    return forty_batches(tmp_path / "events-0")


def test_epoch_ends(log):
    ends = {}
    for _, header in scan(content(log)):
        ends[header.partition_leader_epoch] = header.last_offset + 1
    assert [log.epoch_end_offset(epoch) for epoch in range(4)] == [(e, ends[e]) for e in range(4)]
    assert log.epoch_end_offset(4) == (-1, -1)
    assert log.epoch_end_offset(-1) == (-1, -1)
    log.assign_epoch(7)
    assert log.epochs.latest == 7
    assert log.epoch_end_offset(5) == (3, log.log_end_offset)
    assert log.epoch_end_offset(7) == (7, log.log_end_offset)


def test_where_an_epoch_ended_is_known_below_the_logs_start():
    """A follower that goes on in the epoch before differs there, though only in what is deleted."""
    cache = EpochCache()
    cache.assign(0, 0)
    cache.assign(1, 6)
    cache.truncate_from_start(7)
    assert cache.end_offset(0, 40) == (0, 6)
    again = EpochCache.from_bytes(cache.to_bytes(), "leader-epoch-checkpoint")
    again.truncate_from_start(7)
    assert again.end_offset(0, 40) == (0, 6)


def test_epoch_cache_truncations():
    cache = EpochCache()
    for epoch, start in ((2, 0), (4, 10), (5, 10), (9, 25)):
        cache.assign(epoch, start)
    assert cache.entries == [(2, 0), (5, 10), (9, 25)]
    assert cache.end_offset(4, 30) == (2, 10)
    assert cache.end_offset(1, 30) == (1, 0)
    assert cache.epoch_at(12) == 5
    cache.truncate_from_start(12)
    assert cache.entries == [(5, 10), (9, 25)]
    cache.truncate_from_start(25)
    assert cache.entries == [(9, 25)]
    cache.truncate_from_end(25)
    assert cache.entries == []
