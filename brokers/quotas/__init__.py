"""Quotas: what clients may use of a broker, as rates over values, and the znodes they stand in."""
