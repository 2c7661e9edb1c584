"""Spark's setting for kernels reaches the tasks of source and sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_udfs.client.kernels import NATIVE_CONF
from tests.spark.conftest import Cluster
from tests.spark.sink.job import FOREACH, FORMAT, Job, Read

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side


def test_the_setting_reaches_every_task(
    spark: Any, cluster: Cluster, read: Read, read_stream: Read, tmp_path: Path
) -> None:
    job = Job(cluster, read_stream, tmp_path)
    job.send("a")
    try:
        spark.conf.set(NATIVE_CONF, "requird")
        with pytest.raises(Exception, match="'requird' is not auto or required"):
            read(subscribe=job.source).count()
        for way in (FORMAT, FOREACH):
            with pytest.raises(Exception, match="'requird' is not auto or required"):
                job.run(spark.readStream.format("rate").load().selectExpr("string(value) as value"), way=way)
        spark.conf.set(NATIVE_CONF, "required")
        job.run()
        assert job.values(1) == ["a"]
    finally:
        spark.conf.unset(NATIVE_CONF)
