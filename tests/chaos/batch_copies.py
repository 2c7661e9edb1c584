"""A record that lies at two offsets: the batches that hold it, in each broker's log.

They tell a broker's fault from a client's act. Two copies with one producer id, epoch and sequence should never have
been appended twice; a copy with another epoch was sent again by a producer that began a new epoch, and no log can know
that it is there already (KIP-360).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fleetlog._native.batch import BatchHeader, scan
from fleetlog._native.errors import CorruptBatch
from tests.chaos.report import Report

SHOWN = 8


def batches_of_duplicates(directory: Path, report: Report) -> list[str]:
    """A line for each batch that holds a record found twice, of the logs kept in ``directory``/data-N.

    At most of eight records: a fault that doubles one record mostly doubles many.
    """
    doubled = [found for found in report.anomalies if found.offsets][:SHOWN]
    return [line for found in doubled for line in _lines(directory, found.key, found.offsets)]


def _lines(directory: Path, key: str, offsets: tuple[int, ...]) -> Iterator[str]:
    topic, _, partition = key.rpartition("/")
    for log in sorted(directory.glob(f"data-*/{topic}-{partition}")):
        for segment in sorted(log.glob("*.log")):
            try:
                headers = [header for _, header in scan(segment.read_bytes())]
            except CorruptBatch as problem:
                yield f"{log.parent.name} {key}: {segment.name} is damaged: {problem}"
                continue
            for header in headers:
                held = [offset for offset in offsets if header.base_offset <= offset <= header.last_offset]
                if held:
                    yield f"{log.parent.name} {key}: {_words(header)} holds {held}"


def _words(header: BatchHeader) -> str:
    return (
        f"batch {header.base_offset}..{header.last_offset} (leader epoch {header.partition_leader_epoch},"
        f" producer {header.producer_id}, epoch {header.producer_epoch}, sequence {header.base_sequence},"
        f" time {header.max_timestamp})"
    )
