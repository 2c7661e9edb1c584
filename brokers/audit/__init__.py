"""The audit: which of a client's acts become events, and which are counted."""
