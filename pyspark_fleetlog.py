"""Spark looks for modules named ``pyspark_*`` and registers their ``DefaultSource``: no import, no jar, no setting."""

from spark_udfs.versions import require_data_sources

require_data_sources()

from spark_udfs.data_source import FleetlogSource as DefaultSource  # noqa: E402

__all__ = ["DefaultSource"]
