"""Logins: principals, the mechanisms of SASL, users with passwords, and tokens of an issuer."""
