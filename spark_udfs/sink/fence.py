"""The fence: which batch of which query a sink has committed last. Pure.

Spark replays a batch whose commit it has not logged, with the same query and batch id. The fence moves in the
transaction that commits a batch's rows, so it shows whether a replayed batch was committed.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import NamedTuple

from fleetlog.spark.client.failures import FenceConflict, FenceError, FenceLost, OptionError

FENCE_TOPIC = "__spark_sink_fence"
"""The topic without records, of whose partition 0 driver mode commits an offset: the fence."""

_SINK_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")


def check_sink_id(name: str, text: str) -> str:
    """A reader of option ``sinkId``: the id, if Kafka's names allow it. Raises OptionError."""
    if not _SINK_ID.fullmatch(text):
        raise OptionError(f"option {name}: {text!r} is not made of 1 to 200 letters, digits, '.', '_' and '-'")
    return text


def transactional_name(sink_id: str) -> str:
    """The group and the transactional id of a sink in driver mode. OptionError for an id that Kafka does not allow."""
    return f"spark-sink/{check_sink_id('sinkId', sink_id)}"


class Decision(Enum):
    """WRITE a batch, or SKIP it because it was committed before."""

    WRITE = "write"
    SKIP = "skip"


class Fence(NamedTuple):
    """The last batch that was committed. ``query_id`` of None: the fence was reset, the next query takes it over."""

    query_id: str | None
    batch_id: int

    def encode(self, target: str = "") -> tuple[int, str]:
        """As the (offset, metadata) of a committed offset, where driver mode keeps it, with its write's ``target``."""
        fields = {"v": 1, "queryId": self.query_id, "batchId": self.batch_id, **({"target": target} if target else {})}
        return self.batch_id + 1, json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, offset: int, metadata: str | None) -> Fence | None:
        """None where no offset is committed. Raises FenceError for metadata that is no fence."""
        if offset < 0:
            return None
        try:
            fields = json.loads(metadata or "")
            fence = cls(fields["queryId"], int(fields["batchId"]))
            known = fields["v"] == 1 and fence.batch_id + 1 == offset
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise FenceError(
                f"the fence's offset {offset} carries metadata {metadata!r}, which is no fence of version 1: "
                "another program commits offsets of this group"
            )
        return fence


def target_in(metadata: str | None) -> str:
    """The target of the write that set a fence, of its offset's metadata; empty where that names none."""
    try:
        return str(json.loads(metadata or "").get("target", ""))
    except (ValueError, AttributeError):
        return ""


def decide(fence: Fence | None, query_id: str, batch_id: int, *, adopt: bool = False, takeover: str = "") -> Decision:
    """Whether to write ``batch_id``. Raises FenceConflict or FenceLost where neither answer is safe.

    ``adopt``: a missing fence means that all batches before are written. ``takeover``: the query whose fence this one
    takes.
    """
    if fence is None:
        if batch_id == 0 or adopt:
            return Decision.WRITE
        raise FenceLost(
            f"batch {batch_id} of query {query_id} finds no fence: it was reset or has expired, or sinkId or "
            "cluster changed. If the last batch is known to be complete, set fence.onMissing=adopt for one run"
        )
    if fence.query_id is None:
        return Decision.WRITE
    if fence.query_id != query_id:
        if takeover and takeover == fence.query_id:
            return Decision.WRITE
        raise FenceConflict(
            f"the fence belongs to query {fence.query_id} (batch {fence.batch_id}), this is query {query_id}: the "
            "checkpoint is new, or two queries share a sinkId. reset_fence() or the option fence.takeover.queryId "
            "hands it over"
        )
    if fence.batch_id == batch_id:
        return Decision.SKIP
    if fence.batch_id == batch_id - 1:
        return Decision.WRITE
    raise FenceConflict(
        f"query {query_id} brings batch {batch_id}, and the last one committed is {fence.batch_id}: the checkpoint was "
        "rolled back or belongs to another run"
    )
