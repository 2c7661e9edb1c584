"""Generators and counters that people and CI run; no part of the product."""
