"""Transactions as pure state machines: tables, commands, records. No I/O, no clock, no loop."""

if __name__ != "fleetlog.txn":
    raise ImportError("txn is imported as fleetlog.txn")
