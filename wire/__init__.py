"""What brokers and Spark share: messages, error codes, compression. Below both, above the kernels (ADR-0002)."""

from wire.deferred import defer

defer("kafka")
