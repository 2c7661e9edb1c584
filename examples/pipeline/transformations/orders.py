"""A flow of a Spark Declarative Pipeline from one topic into another, exactly once (docs/spark-pipelines.md)."""

from __future__ import annotations

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
brokers = str(spark.conf.get("orders.brokers"))

pipelines.create_sink("orders_upper", "fleetlog", {"kafka.bootstrap.servers": brokers, "topic": "orders-upper"})


@pipelines.append_flow(target="orders_upper")
def to_orders_upper() -> DataFrame:
    """Its name is the sink's id."""
    orders = (
        spark.readStream.format("fleetlog")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1000)
        .load()
    )
    return orders.selectExpr("key", "upper(string(value)) AS value")
