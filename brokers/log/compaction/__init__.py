"""Compaction: which log is next, what of it is kept, and the passes over it."""
