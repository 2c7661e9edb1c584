"""Numbers of Kafka's protocol that options are read into, where no client is loaded."""

EARLIEST, LATEST = -2, -1
"""Timestamps of ListOffsets that ask for a log's start and end."""

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation levels of Fetch and ListOffsets."""
