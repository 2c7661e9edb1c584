"""``format("fleetlog_segments")``: Spark registers the ``DefaultSource`` of every module named ``pyspark_*``."""

from spark_udfs.source.segments import SegmentsSource as DefaultSource

__all__ = ["DefaultSource"]
