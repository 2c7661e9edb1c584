"""One partition of ``__share_group_state`` as a pure state machine: the share partitions whose keys hash to it.

Implements :class:`txn.commands.Shard`. A share partition's leader names the partition's leader epoch and the state
epoch that it read: who comes with an older one is fenced. A leader that reads is known from then on, in the log too,
so that no earlier one can write after a failover of the coordinator either. The start of a state epoch never goes back.

A write may be part of a transaction, with the dead letters of what it archives. Until that ends, nothing else is done
to the state, so that what is committed later was made of what is there.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fleetlog.brokers.groups.records import BadRecord
from fleetlog.brokers.shares.state import (
    ENDS,
    NO_OFFSET,
    SNAPSHOT_KEY,
    ShareKey,
    ShareState,
    ShareUpdate,
    StateBatch,
    decode_share_snapshot,
    decode_share_update,
    decode_state_key,
    merged,
    snapshot_record,
    state_key,
    update_record,
    updated,
    wrong,
)
from fleetlog.txn.commands import CoordinatorRecord, Now, Result, Ticket
from fleetlog.wire.errors import ErrorCode

MAX_BATCHES = 20_000
"""The most batches of one state: its snapshot must fit into a record batch."""
MAX_STATES = 100_000
"""The most share partitions of one shard: whoever may create groups controls their number."""


class ShareWrite(NamedTuple):
    """What a share partition's leader wants to be persisted. ``start`` -1: as it is; ``complete`` as in ShareState."""

    key: ShareKey
    state_epoch: int
    leader_epoch: int
    start: int
    complete: int
    batches: tuple[StateBatch, ...]


class StateAnswer(NamedTuple):
    """The outcome of a command, with the state that a reader asked for."""

    error: ErrorCode
    state: ShareState = ShareState()
    message: str | None = None


_BUSY = Result(response=StateAnswer(ErrorCode.CONCURRENT_TRANSACTIONS))


def coordinator_key(key: ShareKey) -> str:
    """The name whose hash says which partition coordinates it, and which FindCoordinator is asked for (type 2)."""
    topic = base64.urlsafe_b64encode(key.topic_id).decode().rstrip("=")
    return f"{key.group_id}:{topic}:{key.partition}"


def parse_coordinator_key(name: str) -> ShareKey | None:
    """The share partition of such a name; None if it is none. A group's name may have colons."""
    group_id, _, rest = name.rpartition(":")
    group_id, _, topic = group_id.rpartition(":")
    try:
        topic_id = base64.b64decode(f"{topic}==".encode(), altchars=b"-_", validate=True)
        partition = int(rest)
    except ValueError:
        return None
    if not group_id or len(topic_id) != 16 or partition < 0:
        return None
    return ShareKey(group_id, topic_id, partition)


class ShareShard:
    """The share partitions of one partition. ``updates_per_snapshot`` 0: every write is a snapshot."""

    def __init__(self, partition: int, updates_per_snapshot: int = 0) -> None:
        self.partition = partition
        self.updates_per_snapshot = updates_per_snapshot
        self.states: dict[ShareKey, ShareState] = {}
        self.skipped: Counter[str] = Counter()
        """Skipped records by kind."""
        self._by_topic: dict[bytes, set[ShareKey]] = {}
        self._updates: dict[ShareKey, int] = {}
        self._open: dict[int, list[CoordinatorRecord]] = {}
        """Records of transactions that have not ended, by producer id."""
        self._held: dict[ShareKey, int] = {}
        """Share partitions that these are of, each with its producer id."""

    # --- commands -----------------------------------------------------------------------------------------------

    def initialize(self, key: ShareKey, state_epoch: int, start: int, now: Now, ticket: Ticket) -> Result:
        """A new state epoch, with this start and without batches (InitializeShareGroupState)."""
        known = self.states.get(key)
        if key in self._held:
            return _BUSY
        if known is not None and state_epoch < known.state_epoch:
            return Result(response=StateAnswer(ErrorCode.FENCED_STATE_EPOCH))
        if known is not None and (state_epoch, start) == (known.state_epoch, known.start):
            return Result(response=StateAnswer(ErrorCode.NONE))  # asked again
        if known is not None and state_epoch == known.state_epoch and known.start != NO_OFFSET:
            return Result(response=StateAnswer(ErrorCode.FENCED_STATE_EPOCH))
        if known is None and len(self.states) >= MAX_STATES:
            return Result(response=StateAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        epoch = 0 if known is None else known.snapshot_epoch + 1
        leader_epoch = -1 if known is None else known.leader_epoch
        state = ShareState(epoch, state_epoch, leader_epoch, start, -1, (), now.wall_ms, now.wall_ms)
        return Result(StateAnswer(ErrorCode.NONE), (snapshot_record(key, state),))

    def read(self, key: ShareKey, leader_epoch: int, now: Now, ticket: Ticket) -> Result:
        """The state for the leader of that epoch, who is the only one to write from now on (ReadShareGroupState)."""
        known = self.states.get(key)
        if key in self._held:
            return _BUSY
        if known is None:
            if len(self.states) >= MAX_STATES:
                return Result(response=StateAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            known = ShareState(created_ms=now.wall_ms, written_ms=now.wall_ms)
        elif leader_epoch == known.leader_epoch:
            return Result(response=StateAnswer(ErrorCode.NONE, known))
        elif leader_epoch < known.leader_epoch:
            return Result(response=StateAnswer(ErrorCode.FENCED_LEADER_EPOCH))
        answer = StateAnswer(ErrorCode.NONE, known._replace(leader_epoch=leader_epoch))
        write = ShareWrite(key, known.state_epoch, leader_epoch, NO_OFFSET, known.complete, ())
        return Result(answer, (self._record(write, now),))

    def write(self, write: ShareWrite, now: Now, ticket: Ticket, producer: tuple[int, int] | None = None) -> Result:
        """Merge what a leader has to persist (WriteShareGroupState).

        With a ``producer`` (id and epoch) once its transaction is committed.
        """
        known, held = self.states.get(write.key), self._held.get(write.key)
        if held is not None and (producer is None or held != producer[0]):
            return _BUSY
        if known is None:
            return Result(response=StateAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if write.leader_epoch < known.leader_epoch:
            return Result(response=StateAnswer(ErrorCode.FENCED_LEADER_EPOCH))
        if write.state_epoch != known.state_epoch:
            return Result(response=StateAnswer(ErrorCode.FENCED_STATE_EPOCH))
        problem = wrong(write.batches)
        if problem is None and len(write.batches) > MAX_BATCHES:
            problem = f"{len(write.batches)} batches"
        if problem is not None:
            return Result(response=StateAnswer(ErrorCode.INVALID_REQUEST, message=problem))
        start = max(known.start, write.start)
        if len(merged(known.batches, write.batches, start)) > MAX_BATCHES:
            return Result(response=StateAnswer(ErrorCode.INVALID_REQUEST, message="too many batches"))
        return Result(StateAnswer(ErrorCode.NONE), (self._record(write, now),), producer=producer)

    def delete(self, key: ShareKey, now: Now, ticket: Ticket) -> Result:
        """Forget a share partition (DeleteShareGroupState)."""
        if key in self._held:
            return _BUSY
        if key not in self.states:
            return Result(response=StateAnswer(ErrorCode.NONE))
        return Result(StateAnswer(ErrorCode.NONE), (CoordinatorRecord(state_key(SNAPSHOT_KEY, key), None),))

    def summary(self, key: ShareKey) -> ShareState:
        """The state, for those who do not lead it (ReadShareGroupStateSummary): a plain read. ``complete`` is known."""
        known = self.states.get(key, ShareState())
        if known.start == NO_OFFSET:
            return known
        return known._replace(complete=sum(b.last - b.first + 1 for b in known.batches if b.state in ENDS))

    def of_topic(self, topic_id: bytes) -> list[ShareKey]:
        """The share partitions of a topic."""
        return list(self._by_topic.get(topic_id, ()))

    def _record(self, write: ShareWrite, now: Now) -> CoordinatorRecord:
        known = self.states.get(write.key)
        batches = merged((), write.batches, write.start)
        if known is not None and self._updates.get(write.key, 0) < self.updates_per_snapshot:
            update = ShareUpdate(known.snapshot_epoch, write.leader_epoch, write.start, write.complete, batches)
            return update_record(write.key, update)
        before = ShareState(created_ms=now.wall_ms) if known is None else known
        update = ShareUpdate(0, write.leader_epoch, write.start, write.complete, batches)
        state = updated(before, update, now.wall_ms)
        return snapshot_record(
            write.key, state._replace(snapshot_epoch=0 if known is None else known.snapshot_epoch + 1)
        )

    # --- the log ------------------------------------------------------------------------------------------------

    def apply(self, record: CoordinatorRecord, producer: tuple[int, int] | None, now: Now) -> None:
        """Apply one record; newer versions and corrupt records are counted and skipped."""
        try:
            decoded = decode_state_key(record.key)
            if decoded is None:
                self.skipped["key"] += 1
                return
            kind, key = decoded
            if producer is not None:
                self._open.setdefault(producer[0], []).append(record)
                self._held[key] = producer[0]
            elif kind == SNAPSHOT_KEY:
                self._apply_snapshot(key, record.value)
            elif record.value is not None:
                self._apply_update(key, record.value, now)
        except BadRecord:
            self.skipped["damaged"] += 1

    def _apply_snapshot(self, key: ShareKey, value: bytes | None) -> None:
        self._updates.pop(key, None)
        if value is None:
            self.states.pop(key, None)
            keys = self._by_topic.get(key.topic_id, set())
            keys.discard(key)
            if not keys:
                self._by_topic.pop(key.topic_id, None)
            return
        state = decode_share_snapshot(value)
        if state is None:
            self.skipped["snapshot value"] += 1
        else:
            self.states[key] = state
            self._by_topic.setdefault(key.topic_id, set()).add(key)

    def _apply_update(self, key: ShareKey, value: bytes, now: Now) -> None:
        update, known = decode_share_update(value), self.states.get(key)
        if update is None:
            self.skipped["update value"] += 1
        elif known is not None and known.snapshot_epoch == update.snapshot_epoch:
            self.states[key] = updated(known, update, now.wall_ms)
            self._updates[key] = self._updates.get(key, 0) + 1
        else:
            self.skipped["update without its snapshot"] += 1

    def apply_marker(self, producer_id: int, producer_epoch: int, commit: bool, now: Now) -> Result | None:
        """End the producer's transaction: what it wrote counts, or was never there."""
        records = self._open.pop(producer_id, ())
        self._held = {key: held for key, held in self._held.items() if held != producer_id}
        for record in records if commit else ():
            self.apply(record, None, now)
        return None

    def loaded(self, now: Now) -> Result:
        """Nothing waits: leaders write what they have to."""
        return Result()

    def on_timer(self, name: str, now: Now) -> Result:
        """There are no timers."""
        return Result()

    def on_markers_written(self, transactional_id: str, producer_id: int, producer_epoch: int, now: Now) -> Result:
        """Never called: only transaction coordinators write markers."""
        raise AssertionError("a share coordinator has no transactions of its own")

    def timer_key(self, name: str) -> str:
        """There are no timers."""
        return name

    def metric_parts(self) -> Iterator[Mapping[str, float]]:
        """Share partitions and skipped records."""
        yield {"share_partitions": float(len(self.states)), "skipped_records": float(sum(self.skipped.values()))}
