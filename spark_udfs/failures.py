"""What can stop a sink, apart from wrong options and an unreachable fleet."""

from __future__ import annotations


class FenceError(RuntimeError):
    """The sink can't tell safely whether a batch was written; the message says what to do."""


class FenceConflict(FenceError):
    """The fence belongs to another query, or to another place in this query's history."""


class FenceLost(FenceError):
    """There is no fence although the query has written before."""
