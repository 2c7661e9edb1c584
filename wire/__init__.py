"""What brokers and Spark share: messages, error codes, compression. Below both, above the kernels (ADR-0002)."""

from fleetlog.wire.deferred import defer, defer_classes

if __name__ != "fleetlog.wire":
    raise ImportError("wire is imported as fleetlog.wire")

defer("crc32c", names_of="_crc32c")
defer("kafka")
defer_classes(*(f"kafka.protocol.{name}" for name in ("admin", "consumer", "metadata", "producer")))
