"""ZooKeeper for fleetlog: the port, the real store, the lease, registration, elections and the change log."""
