"""Each way that ``perf spark`` measures writes its rows; a micro-batch's figures have all that Spark says of it."""

from __future__ import annotations

from typing import Any

import pytest

from perf.spark import WAYS
from perf.spark_driver import Work
from tests.spark.conftest import Cluster
from tests.support.waiting import eventually

KINDS = sorted({way.kind for way in WAYS if way.ours})


@pytest.mark.parametrize("kind", KINDS)
def test_a_way_to_write_writes_every_row(spark: Any, cluster: Cluster, kind: str) -> None:
    topic = cluster.topic()
    given = {"kind": kind, "bootstrap": cluster.bootstrap, "topic": topic, "options": {}, "rows": 20, "size": 30}
    work = Work(spark)
    for _ in range(2):  # the second batch begins while Spark plans it
        work.write(given)
    eventually(lambda: len(cluster.read(topic)), "40 rows", good=lambda count: count == 40)


@pytest.mark.parametrize("kind", ["foreach", "fleetlog"])
def test_micro_batches_have_figures(spark: Any, cluster: Cluster, kind: str) -> None:
    given = {"kind": kind, "bootstrap": cluster.bootstrap, "topic": cluster.topic(), "options": {}}
    found = Work(spark).small_batches({**given, "batches": 3, "warmup": 1})
    assert found["batches"] >= 2
    assert {"triggerExecution", "addBatch", "commitOffsets"} <= found["phases"].keys()
    assert found["p50_ms"] == found["phases"]["triggerExecution"]
