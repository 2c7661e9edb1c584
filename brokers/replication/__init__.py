"""Partitions and their roles: leaders and their in-sync sets, followers and their fetchers."""
