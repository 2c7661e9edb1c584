"""``format("fleetlog_segments")``: Spark registers the ``DefaultSource`` of every module named ``pyspark_*``."""

from spark_udfs.versions import require_data_sources

require_data_sources()

from spark_udfs.data_source import SegmentsSource as DefaultSource  # noqa: E402

__all__ = ["DefaultSource"]
