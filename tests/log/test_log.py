"""What a log holds as an object: attributes and descriptors."""

from __future__ import annotations

import gc

import pytest

from fleetlog._native.batch import scan
from fleetlog.brokers.log import RealDisk
from tests.support.logs import (
    TP,
    append,
    batch,
    config,
    forty_batches,
    open_log,
    records,
)


@pytest.fixture
def log(tmp_path):
    return forty_batches(tmp_path / "events-0")


def test_its_attributes_are_found_without_a_dictionary(log):
    """CPython finds up to 29 beside the object; with more each look takes longer, and a Produce 1 % more."""
    assert not hasattr(log, "__dict__")


def test_forgotten_slices_give_their_descriptor_back(log):
    result = log.reader.read(0, 100, end_offset=log.log_end_offset)
    file = result.slices[0].file
    assert file.pinned
    del result
    gc.collect()
    assert not file.pinned


def test_few_descriptors_for_many_segments(tmp_path):
    disk = RealDisk(max_open=5)
    log = open_log(tmp_path / "e-0", disk, config=config(segment_bytes=200))
    for i in range(100):
        append(log, batch(1, value=b"%d" % i))
    assert len(log.segments) > 30
    pinned = [log.reader.read(i, 1, end_offset=100) for i in range(0, 12, 3)]
    assert [r.value for r in records(log)] == [b"%d" % i for i in range(100)]
    append(open_log(tmp_path / "f-0", disk), batch(1))
    assert len(disk.opened) <= 5 + len(pinned)
    for i, result in enumerate(pinned):
        assert scan(result.slices[0].read())[0][1].base_offset == 3 * i
        result.release()


def test_an_idle_log_holds_no_descriptor(tmp_path):
    disk = RealDisk()
    logs = [open_log(tmp_path / f"e-{i}", disk, TP._replace(partition=i), clean=True) for i in range(50)]
    assert len(disk.opened) == 0
    assert sorted(p.name for p in (tmp_path / "e-0").iterdir()) == [f"{0:020d}.log"]
    append(logs[0], batch(1))
    assert len(disk.opened) <= 2
