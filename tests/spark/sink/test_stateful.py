"""Queries with state: what a batch that is replayed leaves in the state counts once, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleetlog.spark import Fence
from tests.spark.conftest import Cluster
from tests.spark.sink.job import FOREACH, FORMAT, Job, Read

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side


@pytest.mark.parametrize(
    ("way", "options"),
    [
        (FORMAT, {}),
        (FOREACH, {}),
        (FOREACH, {"sink__small__batch__rows": 1}),
        (FOREACH, {"sink__mode": "driver"}),
    ],
    ids=["format", "executors", "small batches", "driver"],
)
def test_state_goes_on_after_a_batch_that_was_committed_before(
    cluster: Cluster, read_stream: Read, tmp_path: Path, way: str, options: dict[str, Any]
) -> None:
    """Spark ends a query whose batch did not compute its state: a batch that is skipped is computed, not written."""
    job = Job(cluster, read_stream, tmp_path)
    rows = job.rows().dropDuplicates(["value"])
    job.send("a", "b")
    query = job.run(rows, way, **options)
    job.forget_commit(0)
    job.send("b", "c")
    job.run(rows, way, **options)
    job.send("a", "d")
    job.run(rows, way, **options)
    assert job.values(4) == ["a", "b", "c", "d"]
    assert job.fence() == Fence(query, 2)
    if way == FOREACH:
        assert ("skipped", 0, 0) in job.stages()
