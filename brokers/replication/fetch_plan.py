"""A follower's fetches from one leader: the next request, and the handling of the response. Pure, except for the
partitions' own I/O.

One incremental fetch session per leader (KIP-227): after the first fetch a partition is sent again only when its
position or epoch changed, so idle partitions cost nothing. A partition that cannot continue (an error, the throttle)
leaves the session and returns after its pause: the leader must not count on a follower that does not fetch.

A request names a bounded number of partitions, as its leader decodes no more; those that are left are named by the
next ones, which do not wait for records.

An answer to a partition is used only if the partition still is what the request said: same replica, same leader epoch,
same position. Everything else that the answer holds is dropped and asked for again.

Source: KIP-227 (sessions), KIP-595 (diverging epochs), KIP-320 (epoch checks), KIP-73 (throttling).
"""

from __future__ import annotations

import heapq
import itertools
import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from fleetlog.brokers.metrics.exposition import LONG_SLICE, by_slices
from fleetlog.brokers.model import TopicPartition
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import FetchAnswer, FetchAnswerPart, FetchPart

if TYPE_CHECKING:
    from fleetlog.brokers.replication.partition import Partition
    from fleetlog.brokers.replication.throttles import ReplicationThrottle

logger = logging.getLogger(__name__)

Key = tuple[uuid.UUID, int]
"""A partition in fetch requests: topic id and index."""

LONGEST_PAUSE_MS = 10_000
"""Upper limit of the pause after repeated damage or refusals by the disk."""
MOST_NAMED = 4_000
"""Partitions that one request names or forgets. The leader decodes ``_native.wire.MAX_ASKED`` objects at most; a
partition of a topic of its own is three. Naming so many holds the follower's loop for some 10 ms.
"""
SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
_WAITS_FOR_METADATA = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.STALE_BROKER_EPOCH,
)
"""Leader and follower know different states. A metadata update resolves it; until then the fetch is retried."""


class Counts:
    """The fetchers' counters, shared by all plans of a broker. ``records`` are offsets, compacted ones included."""

    __slots__ = ("corrupt", "errors", "fetched_bytes", "records", "truncations")

    def __init__(self) -> None:
        self.fetched_bytes = 0
        self.records = 0
        self.errors = 0
        self.corrupt = 0
        self.truncations = 0


class Limits(NamedTuple):
    """``partition_bytes`` is the limit per partition of a fetch; ``pause_ms`` the pause after an error."""

    partition_bytes: int
    pause_ms: int


class Request(NamedTuple):
    """What the next fetch says. ``forgotten`` is empty in a full one (session epoch 0).

    ``more`` partitions are to be named or forgotten: the answer must not wait for records, unless the leader keeps no
    session, for then there is always more to name.
    """

    session_id: int
    session_epoch: int
    parts: list[FetchPart]
    forgotten: list[tuple[uuid.UUID, list[int]]]
    more: bool = False


class LackingReplica(NamedTuple):
    """A replica that does not know what its topic has accepted before ``offset``, in this leader epoch."""

    key: Key
    tp: TopicPartition
    leader_epoch: int
    offset: int


class _Asked(NamedTuple):
    """A partition as the leader's fetch session has it."""

    leader_epoch: int
    fetch_offset: int
    last_epoch: int


class _Entry:
    __slots__ = ("asked", "due_ms", "failures", "high_watermark", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.asked: _Asked | None = None  # None: a response in flight is ignored
        self.due_ms: int | None = None  # the end of its pause
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
        self,
        broker_id: int,
        leader_id: int,
        limits: Limits,
        counts: Counts,
        throttle: ReplicationThrottle | None = None,
    ) -> None:
        self.leader_id = leader_id
        self._broker_id = broker_id
        self._limits = limits
        self.counts = counts
        self._throttle = throttle
        self._entries: dict[Key, _Entry] = {}
        self._active: dict[Key, _Entry] = {}  # neither pausing nor stopped
        self._to_name: dict[Key, None] = {}
        self._in_session: dict[Key, None] = {}
        self._to_forget: dict[Key, None] = {}
        self._outdated: dict[Key, None] = {}
        """What the session has of an epoch that is over. A fetch proves that at the last answer we followed the leader
        in all that the session has: so the next request corrects all of these, or begins a new session."""
        self._throttled: dict[Key, None] = {}
        self._out_of_range: list[Key] = []
        self._lacking: dict[Key, None] = {}
        self._pauses: list[tuple[int, int, Key]] = []
        self._numbers = itertools.count()
        self._session_id = 0
        self._session_epoch = 0
        self._broker_epoch = -1
        self._refused_session = False  # the leader answered without one

    # ---- the followed partitions -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def follow(self, partition: Partition) -> None:
        """Fetch this partition, with fresh state."""
        key = (partition.topic_id, partition.tp.partition)
        entry = self._entries[key] = _Entry(partition)
        self._end(key)
        self._start(key, entry)

    def unfollow(self, key: Key) -> None:
        """Stop fetching the partition."""
        if self._entries.pop(key, None) is not None:
            self._end(key)
            self._stop(key)

    def _end(self, key: Key) -> None:
        if key in self._in_session:
            self._outdated[key] = None

    def largest_lags(self) -> Iterator[int]:
        """The largest lags behind the leader's high watermark, in records: one of each slice of the partitions.

        What is followed may change between two of them.
        """
        for some in by_slices(self._entries.values(), LONG_SLICE):
            yield max(entry.lag for entry in some)

    def _start(self, key: Key, entry: _Entry) -> None:
        entry.due_ms = None
        if entry.partition.follower_role.positions_from is not None:
            self._stop(key)
            entry.asked = None
            self._lacking[key] = None
            return
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
        """The next fetch, or None while there is nothing to fetch. A new broker epoch starts a new session."""
        self._wake(now_ms)
        if broker_epoch != self._broker_epoch:
            self._broker_epoch = broker_epoch
            self._session_epoch = 0
        if len(self._outdated) > MOST_NAMED:
            self._session_epoch = 0
        full = self._session_epoch == 0
        if full:
            self._in_session.clear()
            self._to_forget.clear()
            self._outdated.clear()
            self._to_name = dict.fromkeys(self._active)
        portion = list(itertools.islice(self._outdated_first(self._to_name), MOST_NAMED))
        self._hold_back(portion, now_ms)
        portion = [key for key in portion if key in self._to_name]
        if not self._active:
            self._session_epoch = 0
            return None
        forgotten, count = self._forget()
        parts = []
        for key in portion[: MOST_NAMED - count]:
            del self._to_name[key]
            parts.append(self._name(key, self._active[key]))
        if full and self._to_name:
            # if the leader has no room for a session, the next request is full again and names others first
            for key in [key for key in portion if key in self._in_session]:
                self._active[key] = self._active.pop(key)
        more = bool(self._to_name or self._to_forget) and not (full and self._refused_session)
        return Request(self._session_id, self._session_epoch, parts, list(forgotten.items()), more)

    def _forget(self) -> tuple[dict[uuid.UUID, list[int]], int]:
        """What leaves the session with the next request, and how many partitions that is."""
        room = MOST_NAMED - sum(key in self._to_name for key in self._outdated)
        portion = list(itertools.islice(self._outdated_first(self._to_forget), room))
        forgotten: dict[uuid.UUID, list[int]] = {}
        for key in portion:
            del self._to_forget[key]
            self._in_session.pop(key, None)
            self._outdated.pop(key, None)
            forgotten.setdefault(key[0], []).append(key[1])
        return forgotten, len(portion)

    def _outdated_first(self, keys: dict[Key, None]) -> Iterator[Key]:
        if not self._outdated:
            return iter(keys)
        outdated = self._outdated
        return itertools.chain((key for key in outdated if key in keys), (key for key in keys if key not in outdated))

    def next_due_ms(self) -> int | None:
        """The time of the next call of ``next_request`` without other events; None: not needed."""
        while self._pauses:
            due_ms, _, key = self._pauses[0]
            entry = self._entries.get(key)
            if entry is not None and entry.due_ms == due_ms:
                return due_ms
            heapq.heappop(self._pauses)
        return None

    def _name(self, key: Key, entry: _Entry) -> FetchPart:
        partition = entry.partition
        fetch_offset, last_epoch, log_start = partition.follower_role.fetch_position()
        entry.asked = _Asked(partition.leader_epoch, fetch_offset, last_epoch)
        self._in_session[key] = None
        self._outdated.pop(key, None)
        return FetchPart(
            None, key[0], key[1], partition.leader_epoch, fetch_offset, last_epoch, log_start,
            self._limits.partition_bytes, partition.log.high_watermark,
        )  # fmt: skip

    def _hold_back(self, portion: list[Key], now_ms: int) -> None:
        """Let throttled replicas wait that are not in sync, when they had their bytes for now.

        ``portion`` would be named next.
        """
        throttle = self._throttle
        if throttle is None:
            return
        for key in portion:
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
        """Handle the response's own error. NONE: ``apply`` its parts. Else ignore the parts; the next request starts a
        new session. A single session error needs no pause.
        """
        if answer.error == ErrorCode.NONE:
            self._refused_session = answer.session_id <= 0
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
        """No readable response came: the state of the leader's session is unknown, so start a new one."""
        self._session_epoch = 0

    def apply(self, part: FetchAnswerPart, now_ms: int, wall_ms: int) -> None:
        """Apply the response for one partition. ``now_ms`` is for pauses, ``wall_ms`` for the log."""
        key = (part.topic_id, part.partition)
        entry = self._entries.get(key)
        asked = entry.asked if entry is not None else None
        if entry is None or asked is None:
            return  # unfollowed, or unfollowed and followed again, since the request
        partition = entry.partition
        if (partition.leader_epoch, *partition.follower_role.fetch_position()[:2]) != asked:
            self._start(key, entry)
            return
        try:
            self._apply(key, entry, asked, part, now_ms, wall_ms)
        except Exception:
            # a bug: this partition stops until it is followed again, the others continue
            logger.exception(
                "%s: replication from leader %d stopped by an unexpected error", partition.tp, self.leader_id
            )
            self.counts.errors += 1
            self._put_out(key, entry)

    def _apply(self, key: Key, entry: _Entry, asked: _Asked, part: FetchAnswerPart, now_ms: int, wall_ms: int) -> None:
        if part.error != ErrorCode.NONE:
            error = _code(part.error)
            if error in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE):
                self._out_of_range.append(key)
            else:
                self._refused(key, entry, error, now_ms)
            return
        if part.diverging is not None:
            self.counts.truncations += 1
            self._cut(key, entry, entry.partition.follower_role.diverged(asked.leader_epoch, *part.diverging), now_ms)
            return
        self._replicate(key, entry, asked, part, now_ms, wall_ms)

    def _replicate(
        self, key: Key, entry: _Entry, asked: _Asked, part: FetchAnswerPart, now_ms: int, wall_ms: int
    ) -> None:
        partition, size = entry.partition, len(part.records)
        log_start = partition.log.log_start_offset
        error = partition.follower_role.replicate(
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
                # not one whole batch: after the pause this partition comes first in the response
                self._pause(key, entry, now_ms + self._limits.pause_ms)
                return
        if reached != asked.fetch_offset or partition.log.log_start_offset != log_start:
            self._to_name[key] = None

    def _not_appended(self, key: Key, entry: _Entry, asked: _Asked, error: ErrorCode, now_ms: int) -> None:
        partition = entry.partition
        if error is ErrorCode.CORRUPT_MESSAGE:
            self.counts.corrupt += 1
            logger.error(
                "%s: corrupt records from leader %d at offset %d (epoch %d) not appended; fetching them again",
                partition.tp, self.leader_id, asked.fetch_offset, asked.leader_epoch,
            )  # fmt: skip
        if error is ErrorCode.KAFKA_STORAGE_ERROR and partition.log.offline:
            logger.error("%s: replication stopped: log directory offline", partition.tp)
            self.counts.errors += 1
            self._put_out(key, entry)
        elif error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.counts.errors += 1
            self._out_of_range.append(key)
        else:
            self._refused(key, entry, error, now_ms)

    def _refused(self, key: Key, entry: _Entry, error: ErrorCode, now_ms: int) -> None:
        """Retry after a pause that grows. While a metadata update is pending the first pauses are short."""
        self.counts.errors += 1
        pause_ms = self._limits.pause_ms
        failures = min(entry.failures, 16)
        entry.failures += 1
        if error in _WAITS_FOR_METADATA:
            pause_ms = min(pause_ms, (1 + pause_ms // 16) << failures)
            logger.debug("%s: fetch from leader %d failed with %s", entry.partition.tp, self.leader_id, error.name)
        else:
            pause_ms = min(pause_ms << failures, max(pause_ms, LONGEST_PAUSE_MS))
            logger.warning(
                "%s: fetch from leader %d failed with %s; retrying in %d ms",
                entry.partition.tp, self.leader_id, error.name, pause_ms,
            )  # fmt: skip
        self._pause(key, entry, now_ms + pause_ms)

    def _cut(self, key: Key, entry: _Entry, error: ErrorCode, now_ms: int) -> None:
        """After a truncation: fetch from the new position, or pause if the position did not move."""
        asked = entry.asked
        if error is ErrorCode.KAFKA_STORAGE_ERROR and entry.partition.log.offline:
            self._put_out(key, entry)
        elif error is not ErrorCode.NONE:
            self._refused(key, entry, error, now_ms)
        elif asked is not None and entry.partition.follower_role.fetch_position()[:2] == asked[1:]:
            self._refused(key, entry, ErrorCode.OFFSET_OUT_OF_RANGE, now_ms)
        else:
            self._start(key, entry)

    def _put_out(self, key: Key, entry: _Entry) -> None:
        self._stop(key)
        entry.asked = None
        entry.due_ms = None

    # ---- positions outside the leader's log ------------------------------------------------------------------------

    def questions(self) -> list[tuple[TopicPartition, int]]:
        """Partitions whose leader's first and last offset are needed, with the leader epoch of the request.

        The caller answers each with ``range_found`` or ``range_failed`` before the next request.
        """
        questions = []
        for key in self._out_of_range:
            entry = self._entries.get(key)
            if entry is not None and entry.asked is not None:
                questions.append((entry.partition.tp, entry.asked.leader_epoch))
        return questions

    def range_found(self, tp: TopicPartition, leader_start: int, leader_end: int, now_ms: int) -> None:
        """Take the leader's log range: from ``leader_start`` up to ``leader_end``."""
        for key, entry in self._questioned(tp):
            asked = entry.asked
            if asked is not None:
                error = entry.partition.follower_role.out_of_range(asked.leader_epoch, leader_start, leader_end)
                self._cut(key, entry, error, now_ms)

    def range_failed(self, tp: TopicPartition, error: ErrorCode, now_ms: int) -> None:
        """The leader's log range is unknown: retry the fetch after a pause."""
        for key, entry in self._questioned(tp):
            self._refused(key, entry, error, now_ms)

    # ---- what was accepted before a log's first record

    def lacking(self) -> list[LackingReplica]:
        """Replicas that fetch nothing until they know what their topic has accepted before.

        The caller answers each with ``positions_told``.
        """
        lacking, self._lacking = self._lacking, {}
        rows = []
        for key in lacking:
            entry = self._entries.get(key)
            offset = entry.partition.follower_role.positions_from if entry is not None else None
            if entry is not None and offset is not None:
                rows.append(LackingReplica(key, entry.partition.tp, entry.partition.leader_epoch, offset))
            elif entry is not None:
                self._start(key, entry)
        return rows

    def positions_told(self, asked: LackingReplica, told: memoryview | ErrorCode | None, now_ms: int) -> None:
        """What the leader answered: positions, an error, or None if it is of a version that cannot tell."""
        entry = self._entries.get(asked.key)
        if entry is None:
            return
        error = told if isinstance(told, ErrorCode) else ErrorCode.NONE
        if not isinstance(told, ErrorCode):
            error = entry.partition.follower_role.take_positions(asked.leader_epoch, told)
        if error is ErrorCode.NONE:
            entry.failures = 0
            self._start(asked.key, entry)
        elif entry.partition.log.offline:
            self._put_out(asked.key, entry)
        else:
            self._refused(asked.key, entry, error, now_ms)

    def _questioned(self, tp: TopicPartition) -> list[tuple[Key, _Entry]]:
        asked = [(key, self._entries[key]) for key in self._out_of_range if key in self._entries]
        entries = [(key, entry) for key, entry in asked if entry.partition.tp == tp and entry.asked is not None]
        self._out_of_range = [key for key, entry in asked if entry.partition.tp != tp]
        return entries


def _code(error: int) -> ErrorCode:
    try:
        return ErrorCode(error)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
