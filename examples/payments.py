"""Orders are joined with their payments: two topics into a third, exactly once.

    python examples/payments.py --bootstrap 127.0.0.1:9092 --checkpoint checkpoints/payments

Reads ``orders`` and ``payments`` and writes one record for each order to ``settled-orders``: paid, as soon as a payment
of the hour after the order is there, whichever of the two arrives first; unpaid, when none can arrive any more. Both
may arrive up to an hour late.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from fleetlog.spark import spark_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

ORDER = "order BIGINT, customer STRING, at TIMESTAMP, cents BIGINT"
PAYMENT = "payment BIGINT, order BIGINT, at TIMESTAMP, cents BIGINT"
LATE = "1 hour"
IN_TIME = "paid_order = order AND paid_at >= at AND paid_at <= at + INTERVAL 1 HOUR"


def parsed(records: DataFrame, schema: str) -> DataFrame:
    """The fields of JSON values; what is no JSON is left out."""
    rows = records.select(f.from_json(f.col("value").cast("string"), schema).alias("row")).select("row.*")
    return rows.where("order IS NOT NULL AND at IS NOT NULL")


def settled(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """The query: records of orders and of payments to records of settled orders.

    The watermarks are the reason why an order without a payment leaves the join's state, and is written.
    """
    orders = parsed(orders, ORDER).withWatermark("at", LATE)
    payments = parsed(payments, PAYMENT).withWatermark("at", LATE)
    payments = payments.select("payment", f.col("order").alias("paid_order"), f.col("at").alias("paid_at"))
    joined = orders.join(payments, f.expr(IN_TIME), "left_outer")
    state = f.when(f.col("payment").isNull(), "unpaid").otherwise("paid").alias("state")
    value = f.to_json(f.struct("order", "customer", "at", "cents", state, "payment", "paid_at"), {"timeZone": "UTC"})
    return joined.select(f.col("order").cast("string").alias("key"), value.alias("value"))


def start(spark: SparkSession, given: argparse.Namespace) -> StreamingQuery:
    """Starts the query. It goes on where it stood when it is started with the same checkpoint and sink id."""
    spark.conf.set("spark.sql.shuffle.partitions", 2)  # parts of the state, for good; a cluster wants as many as cores

    def records(topic: str) -> DataFrame:
        return (
            spark.readStream.format("fleetlog")
            .option("kafka.bootstrap.servers", given.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", given.per_batch)
            .load()
        )

    return (
        settled(records(given.orders), records(given.payments))
        .writeStream.format("fleetlog")
        .option("kafka.bootstrap.servers", given.bootstrap)
        .option("topic", given.target)
        .option("sinkId", given.sink_id)
        .option("checkpointLocation", given.checkpoint)
        .trigger(**({"availableNow": True} if given.once else {"processingTime": "5 seconds"}))
        .start()
    )


def arguments(line: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--checkpoint", required=True, help="a directory that outlives the driver")
    parser.add_argument("--orders", default="orders")
    parser.add_argument("--payments", default="payments")
    parser.add_argument("--target", default="settled-orders")
    parser.add_argument("--sink-id", default="settled-orders-v1")
    parser.add_argument("--per-batch", type=int, default=10_000, help="records of a topic in a micro-batch at most")
    parser.add_argument("--once", action="store_true", help="end when all that is there now is read")
    return parser.parse_args(line)


def main() -> None:
    os.environ.update(spark_environment())  # a Java, and this Python for Spark's workers
    start(SparkSession.builder.appName("settled-orders").getOrCreate(), arguments()).awaitTermination()


if __name__ == "__main__":
    main()
