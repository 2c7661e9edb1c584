"""Runs the pure coordinators (groups, transactions) on the partitions of internal topics."""
