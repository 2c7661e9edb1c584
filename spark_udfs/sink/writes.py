"""Which write of a micro-batch a call is: a sink takes one write of each, and a fence tells batches apart, not writes.

What this run of the query has written into a sink is known here. After a restart the fence names the topic of the write
that set it. A repeated call (a function that tries again, a batch that Spark replays) is skipped; another write of the
same batch is refused: a replay could not tell the two apart, and would skip either of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetlog.spark.client.failures import FenceConflict
from fleetlog.spark.sink.fence import Decision

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SINKS_MAX = 1000
"""Sinks whose last write is remembered. Of others the fence alone tells."""
TOPICS_OF_ROWS = "*"
"""What a fence names as the topic of a write whose rows name theirs."""


def target_of(topic: str | None) -> str:
    """What a fence keeps of a write. ``topic`` of None: the rows name theirs."""
    return TOPICS_OF_ROWS if topic is None else topic


def refuse_other_target(what: str, committed: str, target: str) -> None:
    """Raises FenceConflict where ``what``, found in the fence, was committed by a write with another target.

    ``committed`` is empty in a fence that names no write, of an earlier version or of an operator.
    """
    if committed not in ("", target):
        raise FenceConflict(
            f"{what} was committed by a write {_to(committed)}, and this write goes {_to(target)}: a sinkId takes one "
            f"write. Give this one a sinkId of its own; where it is the same one, whose topic was changed, let it run "
            f"{_to(committed)} once more"
        )


_lock = threading.Lock()
_open: dict[tuple[str, str], Write] = {}
_last: OrderedDict[tuple[str, str], Write] = OrderedDict()


@dataclass(frozen=True, eq=False)
class Write:
    """A call of a function of foreachBatch. ``topic`` of None: the rows name theirs. ``cluster``: its id."""

    cluster: str
    sink_id: str
    query_id: str
    run_id: str
    batch_id: int
    topic: str | None
    rows: DataFrame

    @property
    def target(self) -> str:
        """What the fence keeps of the write."""
        return target_of(self.topic)

    @property
    def _sink(self) -> tuple[str, str]:
        return self.cluster, self.sink_id

    def _is_of_same_batch(self, other: Write) -> bool:
        return (self.query_id, self.run_id, self.batch_id) == (other.query_id, other.run_id, other.batch_id)

    def _repeats(self, other: Write) -> bool:
        """Whether it writes the same rows to the same topic: Spark compares the plans, and computes nothing."""
        return self.topic == other.topic and (self.rows is other.rows or self.rows.sameSemantics(other.rows))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While the write is made. Raises FenceConflict where another thread makes one of the same batch."""
        with _lock:
            other = _open.get(self._sink)
            if other is not None and self._is_of_same_batch(other):
                raise self._conflict(f"is being written {_to(other.target)} by another thread")
            _open[self._sink] = self
        try:
            yield
        finally:
            with _lock:
                if _open.get(self._sink) is self:
                    del _open[self._sink]

    def settle(self, decision: Decision, committed: str) -> None:
        """Before the batch is written, or skipped. ``committed``: the target in the fence, empty in one without.

        Raises FenceConflict where the batch would be skipped, and another write of it has set the fence.
        """
        with _lock:
            before = _last.get(self._sink)
        if decision is Decision.SKIP:
            if before is not None and self._is_of_same_batch(before) and not self._repeats(before):
                raise self._conflict(f"was written {_to(before.target)} before, with other rows or to another topic")
            if committed not in ("", self.target):
                raise self._conflict(
                    f"was committed by a write {_to(committed)}",
                    f". Where it is the same write, whose topic was changed: let the query run {_to(committed)} once "
                    "more, until its next batch is committed",
                )
        with _lock:
            _last[self._sink] = self
            _last.move_to_end(self._sink)
            if len(_last) > SINKS_MAX:
                _last.popitem(last=False)

    def _conflict(self, what: str, more: str = "") -> FenceConflict:
        own = f"'sinkId': '{self.sink_id}-2'" if self.topic is None else f"'sinkId': '{self.sink_id}-{self.topic}'"
        adopt = " and, as batches were written before, fence.onMissing=adopt for its first run" if self.batch_id else ""
        return FenceConflict(
            f"sink {self.sink_id}: batch {self.batch_id} of query {self.query_id} {what}, and this write goes "
            f"{_to(self.target)}: a sinkId takes one write of each micro-batch. Give this one a sinkId of its own, "
            f"exactly_once_batch({{..., {own}}}){adopt}; or write all rows by one call, with a column topic{more}"
        )


def _to(target: str) -> str:
    return "to the topics that its rows name" if target == TOPICS_OF_ROWS else f"to topic {target}"
