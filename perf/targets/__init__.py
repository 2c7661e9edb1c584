"""What is measured: clusters of fleetlog, of Apache Kafka, and the C programs that do the least possible."""

from perf.targets.base import Address, Cluster, TargetError

__all__ = ["Address", "Cluster", "TargetError"]
