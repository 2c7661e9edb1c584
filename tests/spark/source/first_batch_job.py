"""A query that reads from the end of a topic into a file; with ``hold`` it stays in its first batch.

    spark-submit first_batch_job.py '{"bootstrap": ..., "topic": ..., "checkpoint": ..., "hold": true, "file": ...,
    "trigger": {"availableNow": true}}'

With the address of a Spark Connect server before that, it is a client of it: ``python first_batch_job.py sc://...``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def main() -> None:
    *remote, told = sys.argv[1:]
    given = json.loads(told)

    def keep(df: Any, batch_id: int) -> None:
        values = [row.value.decode() for row in df.select("value").collect()]
        if given["hold"]:
            Path(given["file"] + ".held").write_text(f"batch {batch_id}")
            time.sleep(600)
        with Path(given["file"]).open("a") as file:
            file.writelines(f"{value}\n" for value in values)

    options = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": given["topic"]}  # startingOffsets: latest
    builder = SparkSession.builder.remote(*remote) if remote else SparkSession.builder
    rows = builder.getOrCreate().readStream.format("fleetlog").options(**options).load()
    writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", given["checkpoint"])
    query = writer.trigger(**given["trigger"]).start()
    if "availableNow" in given["trigger"]:
        query.awaitTermination()
    else:
        query.processAllAvailable()
        query.stop()


if __name__ == "__main__":
    main()
