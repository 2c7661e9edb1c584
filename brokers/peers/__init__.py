"""Calls to other brokers."""
