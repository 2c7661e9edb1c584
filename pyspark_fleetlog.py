"""Spark looks for modules named ``pyspark_*`` and registers their ``DefaultSource``: no import, no jar, no setting."""

from spark_udfs.data_source import FleetlogSource as DefaultSource

__all__ = ["DefaultSource"]
