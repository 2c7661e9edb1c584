"""The batches that hold a record found twice are told, of each broker's log."""

from __future__ import annotations

from fleetlog.wire.types import TopicPartition
from tests.chaos.batch_copies import batches_of_duplicates
from tests.chaos.report import Report
from tests.support.logs import append, open_log, produced


def test_a_copy_in_another_epoch_of_the_producer_is_told_apart(tmp_path):
    with_copies = tmp_path / "data-2" / "table-1"
    with_copies.mkdir(parents=True)
    log = open_log(with_copies, topic=TopicPartition("table", 1))
    for epoch, sequence in ((0, 0), (0, 1), (1, 0)):
        append(log, produced(7, epoch, sequence))
    log.close()
    report = Report()
    report.bad("duplicate", "table/1 x lies at offsets [1, 2]", "table/1", (1, 2))
    report.bad("lost-write", "of another kind")
    first, second = batches_of_duplicates(tmp_path, report)
    assert "data-2 table/1: batch 1..1 " in first
    assert "producer 7, epoch 0, sequence 1," in first
    assert "data-2 table/1: batch 2..2 " in second
    assert "producer 7, epoch 1, sequence 0," in second


def test_a_damaged_log_is_said(tmp_path):
    place = tmp_path / "data-1" / "table-1"
    place.mkdir(parents=True)
    (place / "00000000000000000000.log").write_bytes(b"\xff" * 200)
    report = Report()
    report.bad("duplicate", "table/1 x lies at offsets [1, 2]", "table/1", (1, 2))
    (line,) = batches_of_duplicates(tmp_path, report)
    assert "00000000000000000000.log is damaged" in line
