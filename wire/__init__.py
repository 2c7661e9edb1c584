"""What brokers and Spark share: messages, error codes, compression. Below both, above the kernels (ADR-0002)."""

from fleetlog.wire.deferred import defer

if __name__ != "fleetlog.wire":
    raise ImportError("wire is imported as fleetlog.wire")

defer("kafka")
for _package in ("admin", "consumer", "metadata", "producer"):
    defer(f"kafka.protocol.{_package}", classes=True)
