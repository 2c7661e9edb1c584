"""Connections to the brokers: metadata, fetches, producing from an executor; what can fail."""
