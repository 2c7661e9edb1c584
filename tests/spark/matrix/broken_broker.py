"""A broker without one of its safeguards: ``python -m tests.spark.matrix.broken_broker NAME broker CONFIG``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from fleetlog.brokers.coordinators.transactions import verification
from fleetlog.brokers.log.producers import state as producers
from fleetlog.txn import sinks
from fleetlog.txn.batches import LAST_MEMBER_EPOCH, SinkBatch
from tests.simulation.mutations import without_fence
from tests.simulation.replacing import Mutation, instead, mutated


def _commits_without_fence(original: Any, shard: Any, sink_id: str, producer: Any, request: Any, now: Any) -> Any:
    t = shard.transactions.get(sink_id)
    if t is not None and sinks._is_retry(t, producer):
        return original(shard, sink_id, producer, request, now)
    with without_fence(shard, sink_id):
        return original(shard, sink_id, producer, request, now)


def _all_members_win(original: Any, self: Any) -> Any:
    return tuple(marker._replace(commit=bool(self.winners)) for marker in original(self))


def _markers_with_the_present_epoch(original: Any, self: Any) -> Any:
    return tuple(marker._replace(epoch=marker.epoch - 1) for marker in original(self))


def _releases_members_as_they_were(self: Any) -> Any:
    freed = [member for member in self.members if member.epoch < LAST_MEMBER_EPOCH]
    return replace(self, members=(), winners=(), slots=tuple(sorted((*self.slots, *freed))))


def _takes_markers_of_the_present_epoch(
    original: Any, entry: Any, header: Any, marker: Any, transaction_version: int
) -> Any:
    return original(entry, header, marker, 0)


def _forgets_batches(original: Any, known: Any, batch: Any, marker: Any, now_ms: int) -> Any:
    return original(known, batch, marker, now_ms)._replace(batches=())


async def _accepts_whatever_the_coordinator_answers(original: Any, self: Any, question: Any) -> Any:
    await original(self, question)
    return {}


SAFEGUARDS = {
    "fence": Mutation(
        "CommitBatch does not compare the fence", (instead(sinks.commit_batch, _commits_without_fence),), 0
    ),
    "winners": Mutation("every member of the batch counts", (instead(SinkBatch.markers, _all_members_win),), 0),
    "epoch bump": Mutation(
        "a member's epoch stays what it was",
        (
            instead(SinkBatch.markers, _markers_with_the_present_epoch),
            instead(SinkBatch.released, _releases_members_as_they_were),
            instead(producers._check_marker, _takes_markers_of_the_present_epoch),
            instead(producers._ended, _forgets_batches),
        ),
        0,
    ),
    "verification": Mutation(
        "the coordinator's answer about a producer does not count",
        (
            instead(verification.Verifier.ask, _accepts_whatever_the_coordinator_answers),
            instead(producers._is_verified, lambda verification, guard: True),
        ),
        0,
    ),
}


def main() -> None:
    name = sys.argv.pop(1)
    from fleetlog.brokers.cli.main import main as fleetlog

    with mutated(SAFEGUARDS[name]):
        print(f"broken on purpose: {SAFEGUARDS[name].name}", flush=True)
        fleetlog()


if __name__ == "__main__":
    main()
