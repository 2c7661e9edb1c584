"""Spark Connect: what can't work says so, before anything is written. (Tried with a real server: docs/spark.md.)"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_udfs import exactly_once_batch, write_stream
from spark_udfs.client.failures import FenceError


class ConnectSession:
    """What a session of Spark Connect looks like from outside; its package needs gRPC to be imported."""


ConnectSession.__module__ = "pyspark.sql.connect.session"


def test_functions_refuse_a_session_without_a_jvm() -> None:
    df: Any = SimpleNamespace(sparkSession=ConnectSession())
    with pytest.raises(FenceError, match=r"classic Spark session.*writeStream\.format"):
        write_stream(df, bootstrap_servers="127.0.0.1:1", sink_id="s", checkpoint_location="/c", topic="t")
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "sinkId": "s", "checkpointLocation": "/c", "topic": "t"}
    with pytest.raises(FenceError, match="classic Spark session"):
        exactly_once_batch(options)(df, 0)
