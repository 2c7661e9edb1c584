"""Spark looks for modules named ``pyspark_*`` and registers their ``DefaultSource``: no import, no jar, no setting."""

from fleetlog.spark.versions import require_data_sources

require_data_sources()

from fleetlog.spark.data_source import FleetlogSource as DefaultSource  # noqa: E402

__all__ = ["DefaultSource"]
