"""The command line: ``fleetlog``."""
