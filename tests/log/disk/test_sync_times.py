"""How slow fsync was lately: what a disk that becomes slow shows first."""

from __future__ import annotations

import threading

from fleetlog.brokers.log.disk.sync_times import KEPT, RECENT_S, RecentSyncs


def synced(recent: RecentSyncs, at_s: float, took_s: float) -> None:
    recent.begin(at_s - took_s)
    recent.end(at_s)


def test_all_but_one_in_a_hundred() -> None:
    recent = RecentSyncs()
    assert recent.slow_s(0.0) == -1
    synced(recent, 1.0, 0.25)
    assert recent.slow_s(1.0) == 0.25
    for _ in range(99):
        synced(recent, 2.0, 0.125)
    assert recent.slow_s(2.0) == 0.125, "one in a hundred does not count"
    synced(recent, 2.0, 0.25)
    assert recent.slow_s(2.0) == 0.25


def test_what_is_long_past_does_not_count() -> None:
    recent = RecentSyncs()
    synced(recent, 100.0, 0.5)
    synced(recent, 100.0 + RECENT_S, 0.25)
    assert recent.slow_s(100.0 + RECENT_S) == 0.5
    assert recent.slow_s(100.0 + 2 * RECENT_S) == 0.25
    assert recent.slow_s(100.0 + 5 * RECENT_S) == -1


def test_one_that_does_not_end_counts() -> None:
    recent = RecentSyncs()
    synced(recent, 10.0, 0.25)
    thread = threading.Thread(target=recent.begin, args=(10.0,))
    thread.start()
    thread.join()
    assert recent.slow_s(17.0) == 7.0


def test_a_minute_keeps_so_many() -> None:
    recent = RecentSyncs()
    for _ in range(KEPT + 10):
        synced(recent, 1.0, 0.5)
    assert len(recent._now) == KEPT
