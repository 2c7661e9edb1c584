"""The broker: from a socket's bytes to the log and back. docs/ARCHITECTURE.md is the map."""

from fleetlog.wire.deferred import defer

if __name__ != "fleetlog.brokers":
    raise ImportError("brokers is imported as fleetlog.brokers")

defer("prometheus_client")
