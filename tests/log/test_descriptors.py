"""A process without file descriptors: what is refused leaves no trace, and goes through once there are some again."""

from __future__ import annotations

import pytest

from tests.support.descriptors import descriptors_left
from tests.support.logs import NOW, append, append_txn, batch, content, end_txn, headers, open_log, produced
from wire.errors import ErrorCode


def _assert_whole(log, path) -> None:
    """The file holds what the log says, and a start after a kill finds the same."""
    expected = log.log_start_offset
    for segment in log.segments:
        for _, header in segment.headers():
            assert header.base_offset == expected
            expected = header.last_offset + 1
    assert expected == log.log_end_offset
    assert append(log, batch(1, value=b"acknowledged")).first_offset == expected
    log.flusher.flush()
    want = [content(log), log.reader.aborted_entries(), dict.fromkeys(log.producers.entries)]
    log.abandon()
    again = open_log(path, recovery_point=0)
    assert again.recovery_report.truncated_at is None
    again.appender.set_high_watermark(again.log_end_offset)
    assert [content(again), again.reader.aborted_entries(), dict.fromkeys(again.producers.entries)] == want
    again.abandon()


@pytest.mark.parametrize("left", range(4))
def test_an_abort_marker(tmp_path, left):
    """The index of aborted transactions is opened for the first of them."""
    log = open_log(tmp_path / "e-0")
    append_txn(log, 7, 0, 0, 2)
    log.close()
    log = open_log(tmp_path / "e-0", clean=True, recovery_point=2)
    append(log, batch(1))
    with descriptors_left(left):
        first = end_txn(log, 7, 0, commit=False)
    if first.error is not ErrorCode.NONE:
        assert end_txn(log, 7, 0, commit=False).error is ErrorCode.NONE
    assert [entry.producer_id for entry in log.reader.aborted_entries()] == [7]
    assert sum(header.is_control for header in headers(log)) == 1
    _assert_whole(log, tmp_path / "e-0")


@pytest.mark.parametrize("left", range(4))
def test_a_run_into_a_new_log(tmp_path, left):
    """A follower's first run makes index entries at once."""
    leader, log = open_log(tmp_path / "leader-0"), open_log(tmp_path / "e-0")
    for n in range(12):
        append(leader, produced(1, 0, n, value=b"x" * 1000, timestamp=NOW + n))
    run = content(leader)
    with descriptors_left(left):
        first = log.appender.append_as_follower(run)
    if first.error is not ErrorCode.NONE:
        assert log.appender.append_as_follower(run).error is ErrorCode.NONE
    log.appender.set_high_watermark(log.log_end_offset)
    assert content(log) == run
    _assert_whole(log, tmp_path / "e-0")
