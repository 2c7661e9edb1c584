"""Transactions as pure state machines: tables, commands, records. No I/O, no clock, no loop."""
