"""Windows of commits by Burrow's rules."""

from __future__ import annotations

import pytest

from fleetlog.brokers.groups.lag import WINDOW, LogPosition, PartitionWindow, Progress, SeenCommit, progress_of, worst

EVERY = 5_000
NOW = 1_000_000


def commits(*rows: tuple[int, int], last_ms: int = NOW, every_ms: int = EVERY) -> list[SeenCommit]:
    """(offset, lag), oldest first."""
    first_ms = last_ms - (len(rows) - 1) * every_ms
    return [SeenCommit(offset, first_ms + n * every_ms, lag) for n, (offset, lag) in enumerate(rows)]


def state(window: list[SeenCommit], lag: int, ends: tuple[int, ...] = (10_000,), waiting_ms: int = 10**6) -> Progress:
    return progress_of(window, ends, lag, waiting_ms, NOW, EVERY)


MOVING = [(n * 10, 100 + n) for n in range(WINDOW)]
STALLED = [(50, 100)] * WINDOW


@pytest.mark.parametrize(
    ("window", "lag", "expected"),
    [
        (commits(*MOVING), 0, Progress.OK),
        (commits(*MOVING), 110, Progress.WARN),
        (commits(*[(n * 10, 100) for n in range(WINDOW)]), 100, Progress.WARN),
        (commits(*[(n * 10, 100 - n) for n in range(WINDOW)]), 90, Progress.OK),
        (commits(*MOVING[:-1], (90, 90)), 90, Progress.OK),
        (commits(*MOVING[1:]), 110, Progress.OK),  # not a whole window
        (commits(*STALLED), 100, Progress.STALL),
        (commits(*STALLED[1:]), 100, Progress.OK),
        (commits(*STALLED), 0, Progress.OK),
        (commits((50, 0), *STALLED[1:]), 100, Progress.OK),  # its lag was zero in the window
        (commits(*MOVING[:-1], (20, 500)), 500, Progress.REWIND),
        (commits((90, 10), (20, 80)), 80, Progress.REWIND),
        (commits((90, 10), (20, 80), (95, 20)), 20, Progress.OK),  # it is back
        (commits(*MOVING, last_ms=NOW - (WINDOW - 1) * EVERY), 110, Progress.WARN),  # just as long as the window
        (commits(*MOVING, last_ms=NOW - (WINDOW - 1) * EVERY - 1), 110, Progress.STOP),
        (commits((50, 0), *MOVING[1:], last_ms=NOW - 10**5), 110, Progress.STOP),  # a zero before does not excuse it
        (commits((50, 5), last_ms=NOW - WINDOW * EVERY), 5, Progress.OK),
        (commits((50, 5), last_ms=NOW - WINDOW * EVERY - 1), 5, Progress.STOP),
        ([], 5, Progress.OK),
    ],
)
def test_commits_and_lag_say_how_a_group_proceeds(window: list[SeenCommit], lag: int, expected: Progress) -> None:
    assert state(window, lag) is expected


def test_a_consumer_that_was_at_the_end_a_moment_ago_has_not_stopped() -> None:
    idle = commits(*[(100, 0)] * WINDOW, last_ms=NOW - 10**6)
    assert state(idle, 7, ends=(100, 100, 107)) is Progress.OK
    assert state(idle, 7, ends=(101, 107)) is Progress.STOP


def test_a_group_that_was_idle_is_not_stopped_by_its_first_new_record() -> None:
    """After the coordinator moved only the last commit is known, of hours ago: the record has waited for a moment."""
    known = commits((100, 7), last_ms=NOW - 10**7)
    assert state(known, 7, ends=(107,), waiting_ms=400) is Progress.OK
    assert state(known, 7, ends=(107,), waiting_ms=WINDOW * EVERY + 1) is Progress.STOP


def test_a_window_counts_each_commit_once() -> None:
    window = PartitionWindow()
    position = LogPosition(0, 150, 140, NOW - 3_500)
    for _ in range(3):
        found = window.look(1, 100, NOW - 1_000, position, NOW, EVERY)
    assert (found.records, found.stable_records, found.seconds, found.progress) == (50, 40, 3.5, Progress.OK)
    assert window.seen == 1
    window.look(2, 100, NOW, position, NOW, EVERY)
    assert window.seen == 2


def test_no_lag_without_records() -> None:
    found = PartitionWindow().look(1, 100, NOW, LogPosition(0, 100, 100), NOW, EVERY)
    assert (found.records, found.seconds) == (0, 0.0)
    found = PartitionWindow().look(1, 100, NOW, LogPosition(0, 90, 90), NOW, EVERY)
    assert found.records == 0, "after an unclean election the log may end before the offset"


def test_records_that_are_deleted_are_no_lag() -> None:
    found = PartitionWindow().look(1, 100, NOW, LogPosition(400, 450, 450, NOW), NOW, EVERY)
    assert found.records == 50


def test_a_group_is_as_bad_as_its_worst_partition() -> None:
    assert worst([Progress.OK, Progress.STALL, Progress.WARN]) is Progress.STALL
    assert worst([]) is Progress.OK
    assert [one.group_status for one in Progress] == ["OK", "WARN", "ERR", "ERR", "ERR"]
