"""What is in the golden batches: the same records by every client."""

from __future__ import annotations

from fleetlog._native.batch_py import Record

RECORDS = (
    Record(0, 1_700_000_000_000, b"key", b"value", (("h1", b"x"), ("ü", None))),
    Record(1, 1_700_000_000_005, None, b"no key"),
    Record(2, 1_699_999_999_999, b"tombstone", None),
    Record(3, 1_700_000_000_010, b"", b"long " * 60),
)
PRODUCER = (4711, 3, 17)
"""Producer id, epoch and base sequence of the transactional batch."""
