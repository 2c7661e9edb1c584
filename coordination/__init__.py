"""ZooKeeper for fleetlog: the port, the real store, the lease, registration, elections and the change log."""

if __name__ != "fleetlog.coordination":
    raise ImportError("coordination is imported as fleetlog.coordination")
