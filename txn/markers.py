"""Which transaction markers go to which broker, and what is left to write. No I/O.

A job is one ended transaction: its partitions still without a marker. ``plan`` says what to send now, given the
leaders; ``answered`` and ``unreachable`` take what came back; a job without partitions left is done. One request per
broker is under way at a time, so that markers of many transactions share the next one.

Source: KIP-98 (WriteTxnMarkers), KIP-890 (transaction version in the marker).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from txn.batches import MemberMarker
from txn.commands import WriteMarkers
from wire.errors import ErrorCode
from wire.types import TopicPartition

MAX_MARKERS_PER_REQUEST = 5_000
"""When so many are in a request, nothing more goes into it; one partition's markers are never split."""


class Fate(Enum):
    """What an error for one partition's marker means."""

    WRITTEN = "written"
    RETRY = "retry"
    ABANDON = "abandon"


_FATES = {
    ErrorCode.NONE: Fate.WRITTEN,
    # A leader that has seen a newer coordinator: ours is over, the newer one writes the markers.
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: Fate.ABANDON,
    # The producer's epoch on that partition is beyond the marker's: its transaction was ended there by another hand
    # (an operator's abort), for an open one takes no newer epoch.
    ErrorCode.INVALID_PRODUCER_EPOCH: Fate.WRITTEN,
    # A message format without transactions can't hold an open one.
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Fate.WRITTEN,
}


def fate(error: ErrorCode) -> Fate:
    """What becomes of a marker that was answered so. Whatever is not final is tried again, for ever."""
    return _FATES.get(error, Fate.RETRY)


class Gone(Enum):
    """The answer of ``leader_of`` for a partition that does not exist any more."""

    GONE = "gone"


LeaderOf = Callable[[TopicPartition], "int | Gone | None"]
"""A partition's leader, None when it has none just now, ``Gone.GONE`` when the topic was deleted."""


class JobId(NamedTuple):
    """One end of one transaction, as one coordinator (in one leader epoch) saw it."""

    shard: int
    coordinator_epoch: int
    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class Job:
    """A decided transaction and its partitions that have no marker yet.

    ``sent`` are under way. ``refused`` said no and wait for the next wake, whatever else is sent of the job meanwhile:
    a leader on this very broker answers at once, and would be asked again and again.
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
    """All markers one broker's coordinators still have to write.

    A job is *ready* (something may be sent), *under way*, or *delayed* (a leader is missing or said no) until
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
        """Take a job on. Adding it twice changes nothing."""
        job_id = JobId(
            shard, effect.coordinator_epoch, effect.transactional_id, effect.producer_id, effect.producer_epoch
        )
        if job_id not in self._jobs:
            self._jobs[job_id] = Job(job_id, effect, set(effect.partitions))
            self._ready[job_id] = None
        return job_id

    def drop_shard(self, shard: int) -> None:
        """The coordinator of that partition moved away: whoever has it now writes its markers."""
        for job_id in [job_id for job_id in self._jobs if job_id.shard == shard]:
            self._drop(job_id)

    def _drop(self, job_id: JobId) -> None:
        self._jobs.pop(job_id, None)
        self._ready.pop(job_id, None)
        self._delayed.pop(job_id, None)

    def wake(self) -> None:
        """Try again what was put off."""
        for job_id in self._delayed:
            self._jobs[job_id].refused.clear()
        self._ready.update(self._delayed)
        self._delayed.clear()

    def plan(self, leader_of: LeaderOf) -> dict[int, tuple[MarkerToSend, ...]]:
        """What to send to which broker now; these count as under way until answered. Skips brokers still busy."""
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
        """The job's unsent partitions by leader, and whether some have to wait for a busy one."""
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
        """The broker answered, one error for all of a job's markers on a partition; what it left out is sent again."""
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

    def unreachable(self, broker: int) -> None:
        """No answer: the markers may or may not be written. Writing one twice does no harm."""
        self.answered(broker, {})

    def _finish(self, job: Job) -> None:
        if not job.missing and job.id in self._jobs:
            self._drop(job.id)
            self._done.append(job)

    def finished(self) -> list[Job]:
        """Jobs whose last marker is written; each is returned once."""
        done, self._done = self._done, []
        return done

    def waiting(self) -> Iterable[Job]:
        """Jobs with something left to write, for people to look at."""
        return self._jobs.values()
