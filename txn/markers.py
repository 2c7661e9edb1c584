"""The planning of transaction markers: requests per broker, and the markers still to write. No I/O.

A job is one ended transaction with its partitions that have no marker yet. ``plan`` returns the requests for now, given
the leaders; ``answered`` and ``unreachable`` take the outcomes; a job without partitions is done. One request per
broker is in flight at a time, so that markers of many transactions share the next one.

Source: KIP-98 (WriteTxnMarkers), KIP-890 (transaction version in the marker).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from fleetlog.txn.batches import MemberMarker
from fleetlog.txn.commands import WriteMarkers
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

MAX_MARKERS_PER_REQUEST = 5_000
"""A request with this many markers is full; one partition's markers are never split."""


class Fate(Enum):
    """The meaning of an error for one partition's marker."""

    WRITTEN = "written"
    RETRY = "retry"
    ABANDON = "abandon"


_FATES = {
    ErrorCode.NONE: Fate.WRITTEN,
    # The leader knows a newer coordinator, which writes the markers.
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: Fate.ABANDON,
    # The producer's epoch on that partition is newer than the marker's: its transaction was already ended there (an
    # operator's abort), because an open one accepts no newer epoch.
    ErrorCode.INVALID_PRODUCER_EPOCH: Fate.WRITTEN,
    # A message format without transactions cannot contain an open one.
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Fate.WRITTEN,
}


def fate(error: ErrorCode) -> Fate:
    """The meaning of a marker's error. Errors that are not final are retried without limit."""
    return _FATES.get(error, Fate.RETRY)


class Gone(Enum):
    """The result of ``leader_of`` for a partition that does not exist any more."""

    GONE = "gone"


class SentBy(NamedTuple):
    """The broker that sent a request of markers, its registration, and the number of the request among its own.

    A broker sends the next one to a leader once the one before is answered or given up.
    """

    broker_id: int
    incarnation: int
    number: int


class Senders:
    """What a leader knows of the brokers that send it markers: their newest requests.

    With protocol 1 all transactions of a producer have one epoch, so a marker says nothing about which of them it
    ends. A request that was given up with its connection may come after all, behind the one that was sent instead, and
    would then end the next transaction. ``incarnation_of`` gives a broker's present registration, None without one.
    """

    def __init__(self, incarnation_of: Callable[[int], int | None]) -> None:
        self._incarnation_of = incarnation_of
        self._newest: dict[int, SentBy] = {}

    def admits(self, sender: SentBy) -> bool:
        """Whether no request that the broker sent later was admitted. One of another registration never is."""
        if sender.incarnation != self._incarnation_of(sender.broker_id):
            return False
        if self._newest.get(sender.broker_id, sender) > sender:
            return False
        self._newest[sender.broker_id] = sender
        return True


LeaderOf = Callable[[TopicPartition], "int | Gone | None"]
"""A partition's leader, None if it has none now, ``Gone.GONE`` if the topic was deleted."""


class JobId(NamedTuple):
    """One end of one transaction, by one coordinator in one leader epoch."""

    shard: int
    coordinator_epoch: int
    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class Job:
    """A decided transaction and its partitions that have no marker yet.

    ``sent`` are in flight. ``refused`` failed and wait for the next wake, whatever else of the job is sent meanwhile: a
    leader on this broker answers immediately, and would be retried in a tight loop.
    """

    id: JobId
    effect: WriteMarkers
    missing: set[TopicPartition]
    sent: set[TopicPartition] = field(default_factory=set)
    refused: set[TopicPartition] = field(default_factory=set)


class MarkerToSend(NamedTuple):
    """One job's part of a WriteTxnMarkers request: all its markers for these partitions."""

    job: JobId
    markers: tuple[MemberMarker, ...]
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class Markers:
    """All markers that one broker's coordinators still have to write.

    A job is *ready* (something may be sent), *in flight*, or *delayed* (a leader is missing or failed) until
    :meth:`wake` is called after a pause or a change of the cluster.
    """

    def __init__(self) -> None:
        self._jobs: dict[JobId, Job] = {}
        self._ready: dict[JobId, None] = {}
        self._delayed: dict[JobId, None] = {}
        self._busy: dict[int, tuple[MarkerToSend, ...]] = {}
        self._done: list[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def delayed(self) -> bool:
        """Whether something waits for :meth:`wake`."""
        return bool(self._delayed)

    def add(self, shard: int, effect: WriteMarkers) -> JobId:
        """Add a job. Adding it twice has no effect."""
        job_id = JobId(
            shard, effect.coordinator_epoch, effect.transactional_id, effect.producer_id, effect.producer_epoch
        )
        if job_id not in self._jobs:
            self._jobs[job_id] = Job(job_id, effect, set(effect.partitions))
            self._ready[job_id] = None
        return job_id

    def drop_shard(self, shard: int) -> None:
        """Drop the jobs of a shard that was unloaded: its next coordinator writes the markers."""
        for job_id in [job_id for job_id in self._jobs if job_id.shard == shard]:
            self._drop(job_id)

    def _drop(self, job_id: JobId) -> None:
        self._jobs.pop(job_id, None)
        self._ready.pop(job_id, None)
        self._delayed.pop(job_id, None)

    def wake(self) -> None:
        """Retry delayed jobs."""
        for job_id in self._delayed:
            self._jobs[job_id].refused.clear()
        self._ready.update(self._delayed)
        self._delayed.clear()

    def plan(self, leader_of: LeaderOf) -> dict[int, tuple[MarkerToSend, ...]]:
        """The requests for now, by broker; they are in flight until answered. Skips brokers with one in flight."""
        routed: dict[int, list[MarkerToSend]] = {}
        room: dict[int, int] = {}
        for job_id in list(self._ready):
            job = self._jobs[job_id]
            by_broker, later = self._route(job, leader_of, room)
            for broker, partitions in by_broker.items():
                job.sent.update(partitions)
                entry = MarkerToSend(job_id, job.effect.markers, job.effect.transaction_version, tuple(partitions))
                routed.setdefault(broker, []).append(entry)
            if not later:
                del self._ready[job_id]
            self._finish(job)
        plan = {broker: tuple(entries) for broker, entries in sorted(routed.items())}
        self._busy.update(plan)
        return plan

    def _route(
        self, job: Job, leader_of: LeaderOf, room: dict[int, int]
    ) -> tuple[dict[int, list[TopicPartition]], bool]:
        """The job's unsent partitions by leader, and whether some wait for a leader with a request in flight."""
        by_broker: dict[int, list[TopicPartition]] = {}
        later = False
        for tp in sorted(job.missing - job.sent - job.refused):
            leader = leader_of(tp)
            if isinstance(leader, Gone):
                job.missing.discard(tp)
            elif leader is None:
                self._delayed[job.id] = None
            elif leader in self._busy or room.setdefault(leader, MAX_MARKERS_PER_REQUEST) <= 0:
                later = True
            else:
                room[leader] -= max(1, len(job.effect.markers))
                by_broker.setdefault(leader, []).append(tp)
        return by_broker, later

    def answered(self, broker: int, errors: Mapping[tuple[JobId, TopicPartition], ErrorCode]) -> None:
        """Take a broker's answer, one error for all of a job's markers on a partition; missing ones are retried."""
        for entry in self._busy.pop(broker, ()):
            job = self._jobs.get(entry.job)
            if job is None:
                continue
            for tp in entry.partitions:
                job.sent.discard(tp)
                match fate(errors.get((entry.job, tp), ErrorCode.UNKNOWN_SERVER_ERROR)):
                    case Fate.WRITTEN:
                        job.missing.discard(tp)
                    case Fate.RETRY:
                        job.refused.add(tp)
                        self._delayed[entry.job] = None
                    case Fate.ABANDON:
                        self._drop(entry.job)
                        break
            self._finish(job)

    def _finish(self, job: Job) -> None:
        if not job.missing and job.id in self._jobs:
            self._drop(job.id)
            self._done.append(job)

    def finished(self) -> list[Job]:
        """Jobs whose last marker is written; each is returned once."""
        done, self._done = self._done, []
        return done

    def waiting(self) -> Iterable[Job]:
        """Jobs with markers left to write, for inspection."""
        return self._jobs.values()
