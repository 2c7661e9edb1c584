"""What a follower fetches next from one leader, and what it does with the answer. Pure: no I/O but the partitions' own.

One incremental fetch session per leader (KIP-227): after the first fetch a partition is named again only when its
position or epoch changed, so idle partitions cost nothing. A partition that can't go on (an error, the throttle) leaves
the session and comes back when its pause is over: the leader must not count on a follower that isn't reading.

An answer to a partition is used only if the partition still is what the request said: same replica, same leader epoch,
same position. Everything else that the answer holds is dropped and asked for again.

Source: KIP-227 (sessions), KIP-595 (diverging epochs), KIP-320 (epoch checks), KIP-73 (throttling).
"""

from __future__ import annotations

import heapq
import itertools
import logging
import uuid
from typing import Any, NamedTuple, Protocol

from brokers.model import PartitionState, TopicPartition
from wire.errors import ErrorCode
from wire.hot import FetchAnswer, FetchAnswerPart, FetchPart

logger = logging.getLogger(__name__)

Key = tuple[uuid.UUID, int]
"""A partition as fetches name it: topic id and index."""

LONGEST_PAUSE_MS = 10_000
"""Upper limit of the pause after repeated damage or refusals by the disk."""
SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
_WAITS_FOR_NEWS = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.STALE_BROKER_EPOCH,
)
"""One of the two knows an older state. The view's news ends it; until then asking again is all there is to do."""


class Followed(Protocol):
    """What the plan needs of a partition; see ``brokers.cluster.following``."""

    tp: TopicPartition
    topic_id: uuid.UUID
    state: PartitionState
    leader_epoch: int
    log: Any

    def fetch_position(self) -> tuple[int, int, int]:
        """Fetch offset, epoch of the record before it, log start offset."""
        ...

    def replicate(
        self, leader_epoch: int, records: memoryview, high_watermark: int, log_start_offset: int, now_ms: int, /
    ) -> ErrorCode:
        """Append, then follow high watermark and log start."""
        ...

    def diverged(self, leader_epoch: int, epoch: int, end_offset: int, /) -> ErrorCode:
        """Cut off what the leader doesn't have."""
        ...

    def out_of_range(self, leader_epoch: int, leader_start: int, leader_end: int, /) -> ErrorCode:
        """Go where the leader's log is."""
        ...


class Throttle(Protocol):
    """The follower's side of ``brokers.cluster.throttles``."""

    def applies(self, tp: TopicPartition) -> bool:
        """Whether the replica is named in its topic's setting."""
        ...

    def record(self, size: int, now_ms: int) -> None:
        """Bytes of a throttled replica came."""
        ...

    def wait_ms(self, now_ms: int) -> int:
        """0, or how long throttled replicas wait."""
        ...


class Counts:
    """What fetchers count; shared by all of a broker's plans. ``records`` are offsets, so compacted ones count, too."""

    __slots__ = ("corrupt", "errors", "fetched_bytes", "records", "truncations")

    def __init__(self) -> None:
        self.fetched_bytes = 0
        self.records = 0
        self.errors = 0
        self.corrupt = 0
        self.truncations = 0


class Limits(NamedTuple):
    """``partition_bytes`` is asked for per partition; ``pause_ms`` passes after an error."""

    partition_bytes: int
    pause_ms: int


class Request(NamedTuple):
    """What the next fetch says. ``forgotten`` is empty in a full one (session epoch 0)."""

    session_id: int
    session_epoch: int
    parts: list[FetchPart]
    forgotten: list[tuple[uuid.UUID, list[int]]]


class _Asked(NamedTuple):
    """What the leader's session holds of a partition."""

    leader_epoch: int
    fetch_offset: int
    last_epoch: int


class _Entry:
    __slots__ = ("asked", "due_ms", "failures", "high_watermark", "partition")

    def __init__(self, partition: Followed) -> None:
        self.partition = partition
        self.asked: _Asked | None = None  # None: an answer that is under way is no longer ours
        self.due_ms: int | None = None  # when its pause is over
        self.failures = 0
        self.high_watermark = 0

    @property
    def lag(self) -> int:
        reached: int = self.partition.log.log_end_offset
        return max(0, self.high_watermark - reached)


class FetchPlan:
    """The partitions followed from one leader. One request at a time: ``next_request``, then ``answered`` or
    ``failed``, then ``apply`` for each part, then the ``questions``, then the next request.
    """

    def __init__(
        self, broker_id: int, leader_id: int, limits: Limits, counts: Counts, throttle: Throttle | None = None
    ) -> None:
        self.leader_id = leader_id
        self._broker_id = broker_id
        self._limits = limits
        self.counts = counts
        self._throttle = throttle
        self._entries: dict[Key, _Entry] = {}
        self._active: dict[Key, _Entry] = {}  # neither pausing nor out
        self._to_name: dict[Key, None] = {}
        self._in_session: dict[Key, None] = {}
        self._to_forget: dict[Key, None] = {}
        self._throttled: dict[Key, None] = {}
        self._out_of_range: list[Key] = []
        self._pauses: list[tuple[int, int, Key]] = []
        self._numbers = itertools.count()
        self._session_id = 0
        self._session_epoch = 0
        self._broker_epoch = -1

    # ---- who is followed -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def follow(self, partition: Followed) -> None:
        """Fetch this partition; whatever was known of it before is forgotten."""
        key = (partition.topic_id, partition.tp.partition)
        entry = self._entries[key] = _Entry(partition)
        self._start(key, entry)

    def unfollow(self, key: Key) -> None:
        """Fetch it no more."""
        if self._entries.pop(key, None) is not None:
            self._stop(key)

    def max_lag(self) -> int:
        """Records by which the partition that is furthest behind is behind its leader's high watermark."""
        return max((entry.lag for entry in self._entries.values()), default=0)

    def _start(self, key: Key, entry: _Entry) -> None:
        entry.due_ms = None
        self._active[key] = entry
        self._to_name[key] = None
        self._to_forget.pop(key, None)

    def _stop(self, key: Key) -> None:
        self._active.pop(key, None)
        self._to_name.pop(key, None)
        self._throttled.pop(key, None)
        if key in self._in_session:
            self._to_forget[key] = None

    def _pause(self, key: Key, entry: _Entry, due_ms: int) -> None:
        self._stop(key)
        entry.asked = None
        entry.due_ms = due_ms
        heapq.heappush(self._pauses, (due_ms, next(self._numbers), key))

    def _wake(self, now_ms: int) -> None:
        while self._pauses and self._pauses[0][0] <= now_ms:
            due_ms, _, key = heapq.heappop(self._pauses)
            entry = self._entries.get(key)
            if entry is not None and entry.due_ms == due_ms:
                self._start(key, entry)

    # ---- the next request ------------------------------------------------------------------------------------------

    def next_request(self, broker_epoch: int, now_ms: int) -> Request | None:
        """The next fetch, or None while there is nothing to fetch. A new broker epoch is a new session."""
        self._wake(now_ms)
        self._hold_back(now_ms)
        if broker_epoch != self._broker_epoch:
            self._broker_epoch = broker_epoch
            self._session_epoch = 0
        if not self._active:
            self._session_epoch = 0
            return None
        full = self._session_epoch == 0
        if full:
            self._in_session.clear()
            self._to_forget.clear()
        parts = [self._name(key, self._active[key]) for key in (self._active if full else self._to_name)]
        forgotten: dict[uuid.UUID, list[int]] = {}
        for topic_id, index in self._to_forget:
            self._in_session.pop((topic_id, index), None)
            forgotten.setdefault(topic_id, []).append(index)
        self._to_name.clear()
        self._to_forget.clear()
        return Request(self._session_id, self._session_epoch, parts, list(forgotten.items()))

    def next_due_ms(self) -> int | None:
        """When ``next_request`` should be asked again though nothing else happens; None: no need."""
        while self._pauses:
            due_ms, _, key = self._pauses[0]
            entry = self._entries.get(key)
            if entry is not None and entry.due_ms == due_ms:
                return due_ms
            heapq.heappop(self._pauses)
        return None

    def _name(self, key: Key, entry: _Entry) -> FetchPart:
        partition = entry.partition
        fetch_offset, last_epoch, log_start = partition.fetch_position()
        entry.asked = _Asked(partition.leader_epoch, fetch_offset, last_epoch)
        self._in_session[key] = None
        return FetchPart(
            None, key[0], key[1], partition.leader_epoch, fetch_offset, last_epoch, log_start,
            self._limits.partition_bytes, partition.log.high_watermark,
        )  # fmt: skip

    def _hold_back(self, now_ms: int) -> None:
        """Let throttled replicas wait that are not in sync, when they had their bytes for now."""
        throttle = self._throttle
        if throttle is None:
            return
        for key in self._to_name:
            if throttle.applies(self._active[key].partition.tp):
                self._throttled[key] = None
        if not self._throttled:
            return
        wait_ms = throttle.wait_ms(now_ms)
        for key in list(self._throttled):
            entry = self._active[key]
            if not throttle.applies(entry.partition.tp):
                del self._throttled[key]
            elif wait_ms > 0 and self._broker_id not in entry.partition.state.isr:
                self._pause(key, entry, now_ms + wait_ms)

    # ---- answers ---------------------------------------------------------------------------------------------------

    def answered(self, answer: FetchAnswer) -> ErrorCode:
        """Take in the answer as a whole. NONE: ``apply`` its parts. Else the parts say nothing, and the next request
        begins a new session; session errors are no cause for a pause when they come once.
        """
        if answer.error == ErrorCode.NONE:
            if self._session_epoch == 0 or answer.session_id != self._session_id:
                self._session_epoch = 1 if answer.session_id > 0 and self._session_epoch == 0 else 0
                self._session_id = max(0, answer.session_id)
            else:
                self._session_epoch = 1 if self._session_epoch == 0x7FFF_FFFF else self._session_epoch + 1
            return ErrorCode.NONE
        error = _code(answer.error)
        if error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._session_id = 0
        self._session_epoch = 0
        if error not in SESSION_ERRORS:
            self.counts.errors += 1
        return error

    def failed(self) -> None:
        """No answer, or none that can be read: nobody knows what the leader's session holds, so begin a new one."""
        self._session_epoch = 0

    def apply(self, part: FetchAnswerPart, now_ms: int, wall_ms: int) -> None:
        """Do what the answer for one partition says. ``now_ms`` is for pauses, ``wall_ms`` for the log."""
        key = (part.topic_id, part.partition)
        entry = self._entries.get(key)
        asked = entry.asked if entry is not None else None
        if entry is None or asked is None:
            return  # no longer followed, or followed anew since the request
        partition = entry.partition
        if (partition.leader_epoch, *partition.fetch_position()[:2]) != asked:
            self._start(key, entry)
            return
        try:
            self._apply(key, entry, asked, part, now_ms, wall_ms)
        except Exception:
            # our own mistake: this partition stops until it is followed anew, the others go on
            logger.exception("%s: following leader %d failed; it stands still", partition.tp, self.leader_id)
            self.counts.errors += 1
            self._put_out(key, entry)

    def _apply(self, key: Key, entry: _Entry, asked: _Asked, part: FetchAnswerPart, now_ms: int, wall_ms: int) -> None:
        if part.error != ErrorCode.NONE:
            error = _code(part.error)
            if error is ErrorCode.OFFSET_OUT_OF_RANGE:
                self._out_of_range.append(key)
            else:
                self._refused(key, entry, error, now_ms)
            return
        if part.diverging is not None:
            self.counts.truncations += 1
            self._cut(key, entry, entry.partition.diverged(asked.leader_epoch, *part.diverging), now_ms)
            return
        self._replicate(key, entry, asked, part, now_ms, wall_ms)

    def _replicate(
        self, key: Key, entry: _Entry, asked: _Asked, part: FetchAnswerPart, now_ms: int, wall_ms: int
    ) -> None:
        partition, size = entry.partition, len(part.records)
        log_start = partition.log.log_start_offset
        error = partition.replicate(
            asked.leader_epoch, part.records, part.high_watermark, part.log_start_offset, wall_ms
        )
        reached = partition.log.log_end_offset
        if error is not ErrorCode.NONE:
            self._not_appended(key, entry, asked, error, now_ms)
            return
        entry.failures = 0
        entry.high_watermark = part.high_watermark
        if size:
            self.counts.fetched_bytes += size
            self.counts.records += max(0, reached - asked.fetch_offset)
            if self._throttle is not None and self._throttle.applies(partition.tp):
                self._throttle.record(size, now_ms)
                self._throttled[key] = None
            if reached == asked.fetch_offset:
                # not even one whole batch: this partition must come first in an answer, alone in the worst case
                self._pause(key, entry, now_ms + self._limits.pause_ms)
                return
        if reached != asked.fetch_offset or partition.log.log_start_offset != log_start:
            self._to_name[key] = None

    def _not_appended(self, key: Key, entry: _Entry, asked: _Asked, error: ErrorCode, now_ms: int) -> None:
        partition = entry.partition
        if error is ErrorCode.CORRUPT_MESSAGE:
            self.counts.corrupt += 1
            logger.error(
                "%s: damaged records from leader %d at offset %d (epoch %d) are not appended; they are fetched again",
                partition.tp, self.leader_id, asked.fetch_offset, asked.leader_epoch,
            )  # fmt: skip
        if error is ErrorCode.KAFKA_STORAGE_ERROR and partition.log.offline:
            logger.error("%s: its log directory is offline; it is followed no more", partition.tp)
            self.counts.errors += 1
            self._put_out(key, entry)
        elif error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.counts.errors += 1
            self._out_of_range.append(key)
        else:
            self._refused(key, entry, error, now_ms)

    def _refused(self, key: Key, entry: _Entry, error: ErrorCode, now_ms: int) -> None:
        """Try again after a pause that grows. Where one of the two only has to hear the news, it is short at first."""
        self.counts.errors += 1
        pause_ms = self._limits.pause_ms
        failures = min(entry.failures, 16)
        entry.failures += 1
        if error in _WAITS_FOR_NEWS:
            pause_ms = min(pause_ms, (1 + pause_ms // 16) << failures)
            logger.debug("%s: leader %d answers %s", entry.partition.tp, self.leader_id, error.name)
        else:
            pause_ms = min(pause_ms << failures, max(pause_ms, LONGEST_PAUSE_MS))
            logger.warning(
                "%s: fetching from leader %d: %s; again in %d ms",
                entry.partition.tp, self.leader_id, error.name, pause_ms,
            )  # fmt: skip
        self._pause(key, entry, now_ms + pause_ms)

    def _cut(self, key: Key, entry: _Entry, error: ErrorCode, now_ms: int) -> None:
        """After a truncation: fetch from the new position, or pause when nothing moved."""
        asked = entry.asked
        if error is ErrorCode.KAFKA_STORAGE_ERROR and entry.partition.log.offline:
            self._put_out(key, entry)
        elif error is not ErrorCode.NONE:
            self._refused(key, entry, error, now_ms)
        elif asked is not None and entry.partition.fetch_position()[:2] == asked[1:]:
            self._refused(key, entry, ErrorCode.OFFSET_OUT_OF_RANGE, now_ms)
        else:
            self._to_name[key] = None

    def _put_out(self, key: Key, entry: _Entry) -> None:
        self._stop(key)
        entry.asked = None
        entry.due_ms = None

    # ---- positions outside the leader's log ------------------------------------------------------------------------

    def questions(self) -> list[tuple[TopicPartition, int]]:
        """Partitions whose leader's first and last offset must be found out, with the epoch to ask in.

        The caller answers each by ``range_found`` or ``range_failed`` before the next request.
        """
        found = []
        for key in self._out_of_range:
            entry = self._entries.get(key)
            if entry is not None and entry.asked is not None:
                found.append((entry.partition.tp, entry.asked.leader_epoch))
        return found

    def range_found(self, tp: TopicPartition, leader_start: int, leader_end: int, now_ms: int) -> None:
        """The leader's log holds offsets from ``leader_start`` up to ``leader_end``."""
        for key, entry in self._questioned(tp):
            asked = entry.asked
            if asked is not None:
                error = entry.partition.out_of_range(asked.leader_epoch, leader_start, leader_end)
                self._cut(key, entry, error, now_ms)

    def range_failed(self, tp: TopicPartition, error: ErrorCode, now_ms: int) -> None:
        """The leader didn't say; the fetch is tried again after a pause."""
        for key, entry in self._questioned(tp):
            self._refused(key, entry, error, now_ms)

    def _questioned(self, tp: TopicPartition) -> list[tuple[Key, _Entry]]:
        asked = [(key, self._entries[key]) for key in self._out_of_range if key in self._entries]
        found = [(key, entry) for key, entry in asked if entry.partition.tp == tp and entry.asked is not None]
        self._out_of_range = [key for key, entry in asked if entry.partition.tp != tp]
        return found


def _code(error: int) -> ErrorCode:
    try:
        return ErrorCode(error)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
