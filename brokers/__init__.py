"""The broker: from a socket's bytes to the log and back. docs/ARCHITECTURE.md is the map."""

from wire.deferred import defer

defer("prometheus_client")
