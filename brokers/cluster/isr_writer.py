"""Writes the states that partitions propose: compare-and-set of a state znode, and a change-log entry, in one multi.

Leaders propose in-sync sets, and whoever lost its log directory proposes to be counted on no more.

A proposal names the znode's version it builds on, so it meets the controller's writes there and the slower one loses.
The multi also checks the broker's own incarnation and those of members it adds: a broker that began a new life
meanwhile isn't counted on. Until the outcome is known the partition keeps the maximal in-sync set; a lost answer is
decided by reading again, after a sync, in a living session.

Source: KIP-497 for the states; DESIGN's rules of ZooKeeper for the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from brokers.cluster import isr, znodes
from brokers.cluster.znodes import Change, StatesChanged
from brokers.model import PartitionState
from coordination.changes import entry
from coordination.store import (
    Check,
    MultiFailed,
    NoNode,
    Operation,
    SessionExpired,
    SetData,
    Store,
    StoreError,
    UnknownOutcome,
)

if TYPE_CHECKING:
    from brokers.cluster.partition import Partition

log = logging.getLogger(__name__)

PROPOSALS_PER_MULTI = 100
RETRY_SECONDS = 0.1


class _Proposal(NamedTuple):
    partition: Partition
    base_epoch: int
    state: PartitionState


class ZooKeeperIsrWriter:
    """See the module; implements ``partition.IsrWriter``. One per broker, loop thread only."""

    def __init__(
        self,
        store: Store,
        broker_id: int,
        *,
        incarnation: Callable[[], int],
        topic_exists: Callable[[Partition], bool],
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._topic_exists = topic_exists
        self._waiting: list[_Proposal] = []
        self._task: asyncio.Task[None] | None = None

    def propose(self, partition: Partition, state: PartitionState) -> None:
        """Write it in the next multi."""
        self._waiting.append(_Proposal(partition, state.partition_epoch - 1, state))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="in-sync sets")

    async def stop(self) -> None:
        """Write no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:PROPOSALS_PER_MULTI], self._waiting[PROPOSALS_PER_MULTI:]
            try:
                await self._write(batch)
            except Exception:  # our bug; the proposals stay pending, which is safe, and the others go on
                log.exception("writing in-sync sets failed")
                await asyncio.sleep(RETRY_SECONDS)

    async def _write(self, batch: list[_Proposal]) -> None:
        while batch:
            current = [p for p in batch if self._wanted(p)]
            if not current:
                return
            if self._incarnation() < 0:
                self._refused(current)  # not registered: nothing is led in the end
                return
            lives, operations = self._operations(current)
            try:
                await self._store.multi(operations)
            except MultiFailed as failed:
                batch = await self._without_failed(current, lives, failed)
            except SessionExpired:
                self._refused(current)  # nothing was written, and the end of the session ends our leading
                return
            except UnknownOutcome:
                batch = await self._decide(current)
            except StoreError as problem:
                log.info("writing in-sync sets: %s; trying again", problem)
                await asyncio.sleep(RETRY_SECONDS)
                batch = current
            else:
                for proposal in current:
                    proposal.partition.proposal_written(proposal.state)
                return

    def _wanted(self, proposal: _Proposal) -> bool:
        """Whether the partition still waits for this proposal: a newer state or another leader ends it."""
        return proposal.partition.proposed is proposal.state

    def _operations(self, batch: Sequence[_Proposal]) -> tuple[int, list[Operation]]:
        lives: dict[int, int] = {self._broker_id: self._incarnation()}
        for proposal in batch:
            known = dict(isr.members(proposal.partition.state))
            lives |= {b: i for b, i in isr.members(proposal.state) if i >= 0 and known.get(b) != i}
        operations: list[Operation] = [Check(znodes.incarnation_path(b), i) for b, i in lives.items()]
        topics: dict[str, list[_Proposal]] = {}
        for proposal in batch:
            tp = proposal.partition.tp
            operations.append(SetData(znodes.state_path(tp), znodes.encode_state(proposal.state), proposal.base_epoch))
            topics.setdefault(tp.topic, []).append(proposal)
        changes: list[Change] = [
            StatesChanged(name, found[0].partition.topic_id, {p.partition.tp.partition: p.state for p in found})
            for name, found in topics.items()
        ]
        operations.append(entry(znodes.encode_changes(changes, f"broker {self._broker_id}")))
        return len(lives), operations

    async def _without_failed(self, batch: list[_Proposal], lives: int, failed: MultiFailed) -> list[_Proposal]:
        """Drop what made the multi fail: one partition whose state is another by now, or those that add a broker."""
        if failed.index >= lives + len(batch):
            raise failed  # the change log's parent is gone: nothing we could mend
        if failed.index >= lives:
            loser = batch[failed.index - lives]
            log.info(
                "%s: in-sync set %s is based on an old state (version %d): waiting for the newer one",
                loser.partition.tp, list(loser.state.isr), loser.base_epoch,
            )  # fmt: skip
            if not self._topic_exists(loser.partition):
                loser.partition.proposal_refused(loser.state)
            # else it stays pending, the maximal set: the view will bring the state that won
            return [p for p in batch if p is not loser]
        if failed.index == 0:
            self._refused(batch)  # our own life is over; the session will tell
            return []
        # a member to be added began a new life: whoever adds somebody tries again when the view has the news
        adding = [p for p in batch if len(p.state.isr) >= len(p.partition.state.isr)]
        self._refused(adding)
        return [p for p in batch if p not in adding]

    def _refused(self, batch: Sequence[_Proposal]) -> None:
        for proposal in batch:
            proposal.partition.proposal_refused(proposal.state)

    async def _decide(self, batch: list[_Proposal]) -> list[_Proposal]:
        """After a lost answer: read each state again. Returns those that surely are not written."""
        undecided: list[_Proposal] = []
        for proposal in batch:
            try:
                found = await self._read(proposal)
            except SessionExpired:
                return []  # whether it was written, the next reign over the partition finds in its state
            if found is None:
                proposal.partition.proposal_refused(proposal.state)
            elif found[1] == proposal.base_epoch:
                undecided.append(proposal)
            elif found == (znodes.encode_state(proposal.state), proposal.state.partition_epoch):
                proposal.partition.proposal_written(proposal.state)
            # else somebody wrote after us or before us: the view will bring it
        return undecided

    async def _read(self, proposal: _Proposal) -> tuple[bytes, int] | None:
        """The state's znode as it is now; None where it is gone or nobody wants to know. Raises SessionExpired."""
        path = znodes.state_path(proposal.partition.tp)
        while self._wanted(proposal):
            try:
                await self._store.sync(path)
                data, stat = await self._store.get(path)
                return data, stat.version
            except NoNode:
                return None
            except SessionExpired:
                raise
            except StoreError:
                await asyncio.sleep(RETRY_SECONDS)
        return None
