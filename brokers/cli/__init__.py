"""The command line: ``fleetlog``."""

from wire.deferred import defer

defer("kafka.protocol.admin", classes=True)
