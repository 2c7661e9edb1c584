"""A broker without one of its safeguards: ``python -m tests.spark.matrix.broken_broker NAME broker CONFIG``."""

from __future__ import annotations

import sys

from tests.simulation.mutations import Edit, Mutation, mutated

SAFEGUARDS = {
    "fence": Mutation(
        "CommitBatch does not compare the fence",
        (
            Edit(
                "txn.sinks:commit",
                "    if fence is not None and _names(fence, request):\n        return _already(",
                "    if False:\n        return _already(",
            ),
            Edit("txn.sinks:_conflict", "if fence is None:", "if True:"),
        ),
        0,
    ),
    "winners": Mutation(
        "every member of the batch counts",
        (Edit("txn.batches:Batch.markers", "m in winners)", "bool(winners))"),),
        0,
    ),
    "epoch bump": Mutation(
        "a member's epoch stays what it was",
        (
            Edit("txn.batches:Batch.markers", "m.epoch + 1", "m.epoch"),
            Edit("txn.batches:Batch.released", "Member(m.producer_id, m.epoch + 1)", "Member(m.producer_id, m.epoch)"),
            Edit("brokers.log.producers:ProducerState._marker", "epoch == entry.epoch and entry", "False and entry"),
            Edit(
                "brokers.log.producers:ProducerState._marker",
                "batches=entry.batches if epoch == entry.epoch else ()",
                "batches=()",
            ),
        ),
        0,
    ),
    "verification": Mutation(
        "the coordinator's word on a producer is not heeded",
        (
            Edit(
                "brokers.coordinators.verification:admit",
                "error, guard = errors.get(tp, ErrorCode.NONE), guards[tp]",
                "error, guard = ErrorCode.NONE, guards[tp]",
            ),
            Edit("brokers.log.producers:ProducerState._check_data", "if asked and (", "if False and ("),
        ),
        0,
    ),
}


def main() -> None:
    name = sys.argv.pop(1)
    from brokers.cli.main import main as fleetlog

    with mutated(SAFEGUARDS[name]):
        print(f"broken on purpose: {SAFEGUARDS[name].name}", flush=True)
        fleetlog()


if __name__ == "__main__":
    main()
