"""What brokers serve to consumers: all that they may show from the position asked for on, in order, and nothing else.

A consumer's answers are compared with the very replica that gave them. A leader that had committed records at a
position before it was asked for them must not answer with nothing; no replica may serve at or above its own high
watermark; and what comes begins at the position and has no gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.replication.partition import Partition
    from tests.simulation.clients import Batch
    from tests.simulation.invariants import Oracle
    from tests.simulation.world import World

INVARIANTS = ("contiguous reads", "served below the high watermark", "nothing withheld", "offsets by time")


class Pledge(NamedTuple):
    """What a replica was when it was asked. ``owes``: it leads and has something to show at the position."""

    broker_id: int
    starts: int
    partition: Partition
    leader_epoch: int
    owes: bool


class Serving:
    """The part of the oracle that knows what fetches and lookups must answer."""

    def __init__(self, oracle: Oracle, world: World) -> None:
        self._oracle = oracle
        self._world = world

    # ---- fetches

    def asked(self, broker_id: int, tp: TopicPartition, position: int, committed: bool) -> Pledge | None:
        """A fetch is about to be sent."""
        broker = self._world.fleet.brokers[broker_id]
        partition = broker.services.replicas.get(tp) if broker.services is not None else None
        if partition is None:
            return None
        log = partition.log
        limit = log.last_stable_offset if committed else log.high_watermark
        owes = partition.is_leader and log.log_start_offset <= position < limit
        return Pledge(broker_id, broker.starts, partition, partition.leader_epoch, owes)

    def answered(self, client: str, pledge: Pledge | None, position: int, batches: Sequence[Batch]) -> None:
        """The fetch was answered without an error; a session's answer leaves out what has nothing to tell."""
        if pledge is None:
            return
        broker, partition = self._world.fleet.brokers[pledge.broker_id], pledge.partition
        services = broker.services
        if services is None or broker.starts != pledge.starts or services.replicas.get(partition.tp) is not partition:
            return
        oracle, log = self._oracle, partition.log
        oracle.checked["nothing withheld"] += pledge.owes
        if batches:
            oracle.checked["served below the high watermark"] += 1
            if batches[-1].last_offset >= log.high_watermark:
                oracle.violate(
                    f"{client} read {partition.tp} up to {batches[-1].last_offset} from {broker.name}, whose high"
                    f" watermark is {log.high_watermark}"
                )
        elif (
            pledge.owes
            and partition.is_leader
            and partition.leader_epoch == pledge.leader_epoch
            and log.log_start_offset <= position
        ):
            oracle.violate(f"{client} asked {broker.name} for {partition.tp} at {position} and got nothing")

    def follows(self, client: str, tp: TopicPartition, position: int, batches: Sequence[Batch]) -> None:
        """What a consumer got begins where it asked, and has no gaps: logs of these topics are never compacted."""
        self._oracle.checked["contiguous reads"] += bool(batches)
        for batch in batches:
            if not batch.base_offset <= position <= batch.last_offset:
                self._oracle.violate(
                    f"{client} read {tp} offset {batch.base_offset} to {batch.last_offset} where {position} was due"
                )
            position = batch.last_offset + 1

    # ---- lookups by timestamp

    def first_since(self, tp: TopicPartition, timestamp: int, erased: int) -> tuple[int, int] | None:
        """The offsets of the first committed batch with such a record, of those that no deletion has touched."""
        truth = self._oracle.by_name[tp]
        for base_offset, stamp in truth.stamps.items():
            if stamp >= timestamp and base_offset >= erased:
                return base_offset, truth.batches[base_offset].last_offset
        return None

    def told_first_since(
        self, client: str, tp: TopicPartition, timestamp: int, answer: Any, before: tuple[int, int] | None
    ) -> None:
        """A lookup was answered; ``before`` is what was known when it was sent."""
        oracle, offset = self._oracle, int(answer.offset)
        oracle.checked["offsets by time"] += 1
        erased = oracle.erasing.get(tp, 0)
        due = self.first_since(tp, timestamp, erased)
        text = f"{client} was told offset {offset} ({answer.timestamp}) of {tp} for timestamp {timestamp}"
        if offset < 0:
            if before is not None and before[0] >= erased:
                oracle.violate(f"{text}, where {before} is committed")
        elif answer.timestamp < timestamp:
            oracle.violate(text)
        elif offset >= erased and not any(
            one and one[0] <= offset <= one[1] for one in (due, self._cut_at(tp, erased))
        ):
            oracle.violate(f"{text}, where {due} is committed")

    def _cut_at(self, tp: TopicPartition, erased: int) -> tuple[int, int] | None:
        """The offsets of the batch of which the first records may be deleted, which may be those that were meant."""
        truth = self._oracle.by_name[tp]
        return next(
            ((base, entry.last_offset) for base, entry in truth.batches.items() if base < erased <= entry.last_offset),
            None,
        )
