"""What must be true of a sink (docs/protocol.md).

A batch counts once and whole, the fence never goes back, and a driver that was fenced commits nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.invariants import Oracle, Transaction

SINK = "sink"


@dataclass
class Attempt:
    """One driver's try at a batch. ``writes`` are (partition, producer id, base offset) of what was acknowledged."""

    batch_id: int
    epoch: int
    asked: int = 0
    """How often its commit was sent."""
    writes: list[tuple[TopicPartition, int, int]] = field(default_factory=list)


class Sinks:
    """The part of the oracle that knows of batches."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.fence = -1
        """The last batch of which a driver was told that it is committed."""
        self._newest = -1
        self._attempts: dict[Transaction, Attempt] = {}
        self._committed: dict[int, Transaction] = {}
        self._shown: dict[int, Transaction] = {}
        self._late: dict[Transaction, tuple[Transaction, int]] = {}

    def __contains__(self, transaction: Transaction) -> bool:
        return transaction in self._attempts

    # ---- drivers

    def began(self, client: str, epoch: int, fence: int, floor: int) -> None:
        """BeginBatch was answered. ``floor`` is what the fence was known to be when it was sent."""
        oracle = self._oracle
        oracle.checked["fences"] += 1
        if fence < floor:
            oracle.violate(f"{client} was told that batch {fence} is the sink's last one, after {floor}")
        if fence > max((attempt.batch_id for attempt in self._attempts.values() if attempt.asked), default=-1):
            oracle.violate(f"{client} was told that batch {fence} is the sink's last one, which was never committed")
        self.fence = max(self.fence, fence)
        self._newest = max(self._newest, epoch)
        for transaction, attempt in self._attempts.items():
            if attempt.epoch < epoch and not attempt.asked:
                oracle.transactions[transaction] = "aborted"

    def attempt(self, batch_id: int, epoch: int) -> Transaction:
        """A driver begins to write a batch."""
        transaction = f"{SINK}#{batch_id}", len(self._attempts)
        self._attempts[transaction] = Attempt(batch_id, epoch)
        self._oracle.transactions[transaction] = "aborted" if epoch < self._newest else "open"
        return transaction

    def wrote(self, transaction: Transaction, tp: TopicPartition, producer_id: int, offset: int) -> None:
        """A task's records were acknowledged."""
        if offset >= 0:
            self._attempts[transaction].writes.append((tp, producer_id, offset))

    def committing(self, transaction: Transaction) -> bool:
        """CommitBatch is about to be sent; whether its driver is fenced by then, which must not succeed."""
        attempt = self._attempts[transaction]
        attempt.asked += 1
        if attempt.epoch >= self._newest:
            self._oracle.transactions[transaction] = "committing"
        return attempt.epoch < self._newest

    def committed(self, client: str, transaction: Transaction, already: bool, late: bool) -> None:
        """CommitBatch was answered with success; ``already``: it had been committed before, by whomever."""
        oracle, attempt = self._oracle, self._attempts[transaction]
        oracle.checked["batches"] += 1
        self.fence = max(self.fence, attempt.batch_id)
        if already:
            if attempt.asked == 1:  # not by an earlier request of ours: then what we wrote now does not count
                oracle.transactions[transaction] = "aborted"
            return
        if late:
            oracle.violate(f"{client} committed batch {attempt.batch_id} after a newer driver had begun")
        other = self._committed.setdefault(attempt.batch_id, transaction)
        if other != transaction:
            oracle.violate(f"batch {attempt.batch_id} was committed by {transaction} and before by {other}")
        oracle.transactions[transaction] = "committed"

    def continues_late(self, late: Transaction, transaction: Transaction, producer_id: int) -> None:
        """A member continues to write after its batch was committed; what it writes has a name of its own."""
        self._late[late] = transaction, producer_id

    # ---- readers

    def came_before_its_marker(self, late: Transaction, tp: TopicPartition, offset: int) -> bool:
        """Whether a record of a member that wrote on belongs to its committed batch, as for any Kafka producer.

        A commit is answered before its markers are written. Until a partition has its marker, the leader cannot tell
        such a record from the batch's own: the transaction is open there, epoch and sequence are right.
        """
        transaction, producer_id = self._late.get(late, (late, -1))
        if transaction == late or self._oracle.transactions[transaction] != "committed":
            return False
        begun = [o for where, p, o in self._attempts[transaction].writes if (where, p) == (tp, producer_id)]
        markers = self._oracle.by_name[tp].markers.get(producer_id, ())
        return bool(begun) and min(begun) < offset and not any(min(begun) < o < offset for o in markers)

    def read(self, client: str, tp: TopicPartition, transactions: Iterable[Transaction]) -> None:
        """A read_committed consumer shows values of these transactions."""
        oracle = self._oracle
        for transaction in transactions:
            attempt = self._attempts.get(transaction)
            if attempt is None:
                continue
            oracle.checked["read of batches"] += 1
            other = self._shown.setdefault(attempt.batch_id, transaction)
            if other != transaction:
                oracle.violate(f"{client} read batch {attempt.batch_id} of {transaction} and before of {other}")
            marked = oracle.by_name[tp].marked
            for where, producer_id, offset in attempt.writes:
                if where == tp and marked.get(producer_id, -1) < offset:
                    oracle.violate(f"{client} read a part of {transaction} in {tp}: offset {offset} is not decided")

    def check_all(self, shown: Iterable[Transaction | None]) -> None:
        """At the end: each batch up to the fence is there, of one attempt, and none is missing in between."""
        found: dict[int, set[Transaction]] = {}
        for transaction in shown:
            if transaction is not None and transaction in self._attempts:
                found.setdefault(self._attempts[transaction].batch_id, set()).add(transaction)
        for batch_id in range(max([self.fence, *found]) + 1):
            if len(found.get(batch_id, ())) != 1:
                self._oracle.violate(
                    f"batch {batch_id} of {SINK} is there {len(found.get(batch_id, ()))} times: {found.get(batch_id)};"
                    f" the fence was at {self.fence}"
                )
