"""``format("fleetlog_segments")``: Spark registers the ``DefaultSource`` of every module named ``pyspark_*``."""

from fleetlog.spark.versions import require_data_sources

require_data_sources()

from fleetlog.spark.data_source import SegmentsSource as DefaultSource  # noqa: E402

__all__ = ["DefaultSource"]
