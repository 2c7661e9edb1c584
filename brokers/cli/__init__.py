"""The command line: ``fleetlog``."""

from fleetlog.wire.deferred import defer

defer("kafka.protocol.admin", classes=True)
