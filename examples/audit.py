"""Find out who deleted a topic: a batch query over the audit topic.

    python -m examples.audit orders --bootstrap 127.0.0.1:9092 --command-config client.properties

The file has Java's names, as for Kafka's own tools; its user needs Read on ``__fleetlog_audit``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from examples.access import FleetAccess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

EVENT = (
    "time BIGINT, status_code STRING, metadata STRUCT<uid: STRING>, api STRUCT<operation: STRING>, "
    "actor STRUCT<user: STRUCT<name: STRING, type: STRING>>, src_endpoint STRUCT<ip: STRING, name: STRING>, "
    "resources ARRAY<STRUCT<name: STRING, type: STRING>>"
)


def deletions(spark: SparkSession, topic: str, options: Mapping[str, str]) -> DataFrame:
    """Each request to delete the topic, refused ones too: when, who, from where, by which client, with what result."""
    records = spark.read.format("fleetlog").options(subscribe="__fleetlog_audit", **options).load()
    events = records.select(f.from_json(f.col("value").cast("string"), EVENT).alias("event")).select("event.*")
    of_topic = (f.col("api.operation") == "DeleteTopics") & (f.col("resources")[0]["name"] == topic)
    return (
        events.where(of_topic)
        .dropDuplicates(["metadata"])  # an event may stand there twice after a change of leader
        .orderBy("time")
        .select(
            f.timestamp_millis("time").alias("time"),
            f.col("actor.user.name").alias("user"),
            f.col("src_endpoint.ip").alias("address"),
            f.col("src_endpoint.name").alias("client"),
            f.col("status_code").alias("result"),
        )
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("topic")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--command-config", type=Path)
    asked = parser.parse_args()
    options = FleetAccess(asked.bootstrap, asked.command_config).spark_options()
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    deletions(spark, asked.topic, options).show(truncate=False)


if __name__ == "__main__":
    main()
