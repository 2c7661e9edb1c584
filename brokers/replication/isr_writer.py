"""Writes the states that partitions propose: compare-and-set of a state znode, and a change-log entry, in one multi.

Leaders propose in-sync sets. A replica whose log directory failed proposes that it no longer counts.

A proposal has the version of the znode that it builds on: of it and a concurrent write of the controller one fails. The
multi also checks the incarnations of the broker itself and of added members, so a broker that registered again
meanwhile does not count. Until the outcome is known the partition keeps the maximal in-sync set. The outcome of an
unanswered write is decided by reading again, after a sync, in a live session.

A topic that was deleted and created again has the same versions. While this broker is registered the next topic of a
name waits until it knows of the deletion; so what was written before it registered is read first.

Source: KIP-497 for the states; ADR 0003 for the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.znodes import Change, StatesChanged
from fleetlog.brokers.model import PartitionState, TopicPartition
from fleetlog.brokers.replication import isr
from fleetlog.coordination.changes import entry
from fleetlog.coordination.registration import incarnation_path
from fleetlog.coordination.store import (
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
    import uuid

logger = logging.getLogger(__name__)

PROPOSALS_PER_MULTI = 100
RETRY_SECONDS = 0.1
READ_MS = 1_000


class Proposer(Protocol):
    """What a replica proposes states by, as their writer sees it."""

    tp: TopicPartition
    topic_id: uuid.UUID

    @property
    def state(self) -> PartitionState:
        """The known state, which a proposal changes."""

    @property
    def proposed(self) -> PartitionState | None:
        """The state whose write is in flight."""

    def proposal_written(self, state: PartitionState) -> None:
        """The state is written."""

    def proposal_refused(self, state: PartitionState) -> None:
        """The state certainly is not written and never will be."""


class _Proposal(NamedTuple):
    partition: Proposer
    base_epoch: int
    state: PartitionState


class IsrWriter:
    """See the module. One per broker, loop thread only."""

    def __init__(
        self,
        store: Store,
        broker_id: int,
        *,
        incarnation: Callable[[], int],
        topic_exists: Callable[[Proposer], bool],
        refreshed: Callable[[int], Awaitable[bool]],
    ) -> None:
        """``refreshed``: see :meth:`MetadataCache.refreshed`; ``topic_exists`` asks the same cache."""
        self._store = store
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._topic_exists = topic_exists
        self._refreshed = refreshed
        self._read_in = -1
        """The incarnation in which all is known that was written before it."""
        self._waiting: list[_Proposal] = []
        self._task: asyncio.Task[None] | None = None

    def propose(self, partition: Proposer, state: PartitionState) -> None:
        """Queue the state for the next multi."""
        self._waiting.append(_Proposal(partition, state.partition_epoch - 1, state))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="in-sync sets")

    async def stop(self) -> None:
        """Cancel all writes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:PROPOSALS_PER_MULTI], self._waiting[PROPOSALS_PER_MULTI:]
            try:
                await self._write(batch)
            except Exception:  # a bug; the proposals stay pending, which is safe, and the others continue
                logger.exception("writing in-sync sets failed with an unexpected error")
                await asyncio.sleep(RETRY_SECONDS)

    async def _write(self, batch: list[_Proposal]) -> None:
        while batch:
            current = [p for p in batch if self._wanted(p)]
            if not current:
                return
            if self._incarnation() < 0:
                self._refused(current)  # not registered: this broker leads no partition
                return
            if self._read_in != self._incarnation():
                await self._read_all(self._incarnation())
                batch = current
                continue
            gone = [p for p in current if not self._topic_exists(p.partition)]
            self._refused(gone)
            current = [p for p in current if p not in gone]
            if not current:
                return
            live_brokers, operations = self._operations(current)
            try:
                await self._store.multi(operations)
            except MultiFailed as failed:
                batch = await self._without_failed(current, live_brokers, failed)
            except SessionExpired:
                self._refused(current)  # nothing was written, and with the session the leadership ends
                return
            except UnknownOutcome:
                batch = await self._decide(current)
            except StoreError as problem:
                logger.info("writing in-sync sets failed, retrying: %s", problem)
                await asyncio.sleep(RETRY_SECONDS)
                batch = current
            else:
                for proposal in current:
                    proposal.partition.proposal_written(proposal.state)
                return

    async def _read_all(self, incarnation: int) -> None:
        """Let the metadata cache read what was written before this incarnation registered."""
        try:
            if await self._refreshed(READ_MS):
                self._read_in = incarnation
        except StoreError as problem:
            logger.info("reading the metadata before in-sync sets are written failed, retrying: %s", problem)
            await asyncio.sleep(RETRY_SECONDS)

    def _wanted(self, proposal: _Proposal) -> bool:
        """Whether the partition still waits for this proposal: a newer state or leader ends it."""
        return proposal.partition.proposed is proposal.state

    def _operations(self, batch: Sequence[_Proposal]) -> tuple[int, list[Operation]]:
        live_brokers: dict[int, int] = {self._broker_id: self._incarnation()}
        for proposal in batch:
            known = dict(isr.members(proposal.partition.state))
            live_brokers |= {b: i for b, i in isr.members(proposal.state) if i >= 0 and known.get(b) != i}
        operations: list[Operation] = [Check(incarnation_path(b), i) for b, i in live_brokers.items()]
        topics: dict[str, list[_Proposal]] = {}
        for proposal in batch:
            tp = proposal.partition.tp
            operations.append(SetData(znodes.state_path(tp), znodes.encode_state(proposal.state), proposal.base_epoch))
            topics.setdefault(tp.topic, []).append(proposal)
        changes: list[Change] = [
            StatesChanged(name, proposed[0].partition.topic_id, {p.partition.tp.partition: p.state for p in proposed})
            for name, proposed in topics.items()
        ]
        operations.append(entry(znodes.encode_changes(changes, f"broker {self._broker_id}")))
        return len(live_brokers), operations

    async def _without_failed(self, batch: list[_Proposal], live_brokers: int, failed: MultiFailed) -> list[_Proposal]:
        """Drop the proposals that made the multi fail: one with an outdated version, or those that add a broker."""
        if failed.index >= live_brokers + len(batch):
            raise failed  # the change log's parent znode is missing: no retry can help
        if failed.index >= live_brokers:
            loser = batch[failed.index - live_brokers]
            logger.info(
                "%s: in-sync set %s not written: its base version %d is outdated; waiting for the newer state",
                loser.partition.tp, list(loser.state.isr), loser.base_epoch,
            )  # fmt: skip
            if not self._topic_exists(loser.partition):
                loser.partition.proposal_refused(loser.state)
            # else it stays pending, with the maximal set, until the metadata cache has the winning state
            return [p for p in batch if p is not loser]
        if failed.index == 0:
            self._refused(batch)  # this broker's incarnation is over; the session handler reacts
            return []
        # an added member registered again: its partition proposes again once the metadata cache has the registration
        adding = [p for p in batch if len(p.state.isr) >= len(p.partition.state.isr)]
        self._refused(adding)
        return [p for p in batch if p not in adding]

    def _refused(self, batch: Sequence[_Proposal]) -> None:
        for proposal in batch:
            proposal.partition.proposal_refused(proposal.state)

    async def _decide(self, batch: list[_Proposal]) -> list[_Proposal]:
        """After a lost answer: read each state again. Returns the proposals that are certainly not written."""
        undecided: list[_Proposal] = []
        for proposal in batch:
            try:
                row = await self._read(proposal)
            except SessionExpired:
                return []  # the next leader reads the outcome from the partition's state
            if row is None:
                proposal.partition.proposal_refused(proposal.state)
            elif row[1] == proposal.base_epoch:
                undecided.append(proposal)
            elif row == (znodes.encode_state(proposal.state), proposal.state.partition_epoch):
                proposal.partition.proposal_written(proposal.state)
            # else another write came first or last: the metadata cache brings its state
        return undecided

    async def _read(self, proposal: _Proposal) -> tuple[bytes, int] | None:
        """The state's znode now; None if it does not exist or the proposal is outdated. Raises SessionExpired."""
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
