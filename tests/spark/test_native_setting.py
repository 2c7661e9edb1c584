"""Spark's setting for kernels reaches the tasks of source and sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleetlog.spark.client.kernels import NATIVE_CONF
from tests.spark.conftest import Cluster
from tests.spark.sink.job import FOREACH, Job, Read

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side


def test_the_setting_reaches_every_task(
    spark: Any, cluster: Cluster, read: Read, read_stream: Read, tmp_path: Path
) -> None:
    job = Job(cluster, read_stream, tmp_path)
    job.send("a")
    try:
        spark.conf.set(NATIVE_CONF, "requird")
        named = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": job.target, "sinkId": f"{job.sink_id}-batch"}
        rows = spark.range(1).selectExpr("string(id) as value")
        for run in (
            read(subscribe=job.source).count,
            rows.write.format("fleetlog").options(**named).mode("append").save,
            lambda: job.run(way=FOREACH),
        ):
            with pytest.raises(Exception, match="'requird' is not auto or required"):
                run()
        spark.conf.set(NATIVE_CONF, "required")
        job.run(way=FOREACH)
        assert job.values(1) == ["a"]
    finally:
        spark.conf.unset(NATIVE_CONF)
