"""``fleetlog console``: a fleet in a browser. A process of its own, and a client like any other."""
