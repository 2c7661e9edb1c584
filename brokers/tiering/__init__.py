"""Tiered storage: closed segments in a bucket, the manifest that counts them, and reads from there."""
