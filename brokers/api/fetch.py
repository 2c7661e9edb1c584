"""Fetch (key 1): records as slices of the log's files, waiting for them if there are too few.

No fetch sessions yet: whoever asks for one gets a whole answer with session id 0, which every client takes as "no
session". No followers yet either: a fetch with a replica id is refused.
"""

from __future__ import annotations

from typing import Any

from brokers.api.base import Context, Done, Outcome, Park
from brokers.api.leaders import current_leader, endpoints_of
from brokers.cluster.partition import DataWaiter, Partition, Serve
from brokers.log import DiskError, LogOffline, OffsetOutOfRange
from brokers.model import TopicPartition
from wire.errors import ErrorCode
from wire.hot import Encoded, FetchOutcome, FetchPart, FetchRequest, encode_fetch_response

READ_COMMITTED = 1
ZSTD_VERSION = 10
DEBUGGING_REPLICA = -2
_TELL_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def handle_fetch(request: FetchRequest, context: Context) -> Outcome:
    """Answer at once with enough bytes, an error, or nothing to wait for; else park until one of these."""
    error = _session_error(request, context)
    if error is not ErrorCode.NONE:
        return Done(encode_fetch_response(context.api_version, [], error=error))
    fetch = _Fetch(request, context)
    if fetch.attempt() or request.max_wait_ms <= 0 or not request.parts:
        return Done(fetch.answer())
    return fetch.park()


def _session_error(request: FetchRequest, context: Context) -> ErrorCode:
    """We never hand out a session, so a request that names one is mistaken (KIP-227)."""
    if context.api_version < 7 or request.session_epoch in (0, -1):
        return ErrorCode.NONE
    return ErrorCode.INVALID_FETCH_SESSION_EPOCH if request.session_id == 0 else ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class _Fetch:
    """One Fetch, possibly tried several times while it waits."""

    def __init__(self, request: FetchRequest, context: Context) -> None:
        self._request = request
        self._context = context
        self._committed_only = request.isolation_level == READ_COMMITTED
        self._max_bytes = min(max(0, request.max_bytes), context.services.config.fetch_max_bytes)
        self._outcomes: list[tuple[FetchPart, FetchOutcome]] = []
        self._waiters: list[DataWaiter] = []
        self._partitions: list[Partition] = []
        self._scheduled = False
        self._park: Park | None = None

    def attempt(self) -> bool:
        """Read every partition once. True if the answer is worth sending now."""
        self._drop()
        left, total, urgent = self._max_bytes, 0, False
        partitions: list[Partition] = []
        seen: set[tuple[Any, Any, int]] = set()
        for part in self._request.parts:
            name = (part.topic, part.topic_id, part.partition)
            if name in seen:  # reading one partition thousands of times in one request would hold the loop
                self._outcomes.append((part, FetchOutcome(ErrorCode.INVALID_REQUEST)))
                urgent = True
                continue
            seen.add(name)
            outcome, partition = self._read(part, left, first=total == 0)
            if partition is not None:
                partitions.append(partition)
            total += outcome.size
            left = max(0, left - outcome.size)
            urgent = urgent or outcome.error != ErrorCode.NONE or outcome.diverging is not None
            self._outcomes.append((part, outcome))
        self._partitions = partitions
        return urgent or total >= self._request.min_bytes

    def answer(self) -> Encoded:
        """The answer with what the last attempt found; the slices go with it."""
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters = []
        outcomes, self._outcomes = self._outcomes, []
        leaders = [outcome.current_leader for _, outcome in outcomes]
        return encode_fetch_response(
            self._context.api_version, outcomes, endpoints=endpoints_of(self._context, leaders)
        )  # fmt: skip

    def park(self) -> Park:
        """Wait for data, a lost leadership, or ``max_wait_ms``."""
        self._park = Park(self._request.max_wait_ms, self._expired, self._dropped)
        self._waiters = [partition.on_data(self._woken) for partition in self._partitions]
        self._drop()  # a waiting fetch pins no files; it reads again when it is woken
        return self._park

    def _woken(self) -> None:
        # many appends of one turn of the loop are one look
        if not self._scheduled:
            self._scheduled = True
            self._context.services.loop.call_soon(self._look)

    def _look(self) -> None:
        self._scheduled = False
        if self._park is None or self._park.done:
            return
        if self.attempt():
            self._park.complete(self.answer())
        else:
            self._drop()

    def _expired(self) -> Encoded:
        self.attempt()  # what came meanwhile, though it is less than min_bytes
        return self.answer()

    def _dropped(self) -> None:
        for waiter in self._waiters:
            waiter.cancel()
        self._drop()

    def _drop(self) -> None:
        for _, outcome in self._outcomes:
            for piece in outcome.slices:
                piece.release()
        self._outcomes = []

    def _read(self, part: FetchPart, left: int, first: bool) -> tuple[FetchOutcome, Partition | None]:
        services = self._context.services
        topic = part.topic
        if part.topic_id is not None:
            topic = services.view.topic_names.get(part.topic_id)
            if topic is None:
                return FetchOutcome(ErrorCode.UNKNOWN_TOPIC_ID), None
        assert topic is not None, "a Fetch names its topic by name or by id"
        tp = TopicPartition(topic, part.partition)
        if self._request.replica_id >= 0:
            return self._error(ErrorCode.NOT_LEADER_OR_FOLLOWER, tp), None
        partition = services.replicas.leader(tp, part.current_leader_epoch)
        if isinstance(partition, ErrorCode):
            return self._error(partition, tp), None
        error = partition.may_serve(Serve.FETCH)
        if error is not ErrorCode.NONE:
            return self._error(error, tp), None
        log = partition.log
        if log.config.compression_type == "zstd" and self._context.api_version < ZSTD_VERSION:
            return FetchOutcome(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), None
        try:
            return self._read_log(part, log, left, first), partition
        except OffsetOutOfRange:
            return FetchOutcome(ErrorCode.OFFSET_OUT_OF_RANGE), None
        except (LogOffline, DiskError):
            return FetchOutcome(ErrorCode.KAFKA_STORAGE_ERROR), None

    def _read_log(self, part: FetchPart, log: Any, left: int, first: bool) -> FetchOutcome:
        offset, start, end = part.fetch_offset, log.log_start_offset, log.log_end_offset
        if part.last_fetched_epoch >= 0:
            diverging = _diverging(log, part)
            if diverging is not None:
                return self._outcome(log, diverging=diverging)
        if not start <= offset <= end:
            raise OffsetOutOfRange(offset, start, end)
        limit = log.last_stable_offset if self._committed_only else log.high_watermark
        if offset >= limit or (left <= 0 and not first):
            return self._outcome(log)
        max_bytes = min(left, max(0, part.max_bytes))
        result = log.read(offset, max_bytes, end_offset=limit, min_one_batch=first)
        aborted: list[tuple[int, int]] = []
        if self._committed_only and result.size:
            aborted = [
                (transaction.producer_id, transaction.first_offset)
                for transaction in log.aborted_transactions(result.first_offset, result.next_offset)
            ]
        return self._outcome(log, aborted, result.slices, result.size)

    def _outcome(
        self,
        log: Any,
        aborted: list[tuple[int, int]] | None = None,
        slices: tuple[Any, ...] = (),
        size: int = 0,
        diverging: tuple[int, int] | None = None,
    ) -> FetchOutcome:
        return FetchOutcome(
            ErrorCode.NONE, log.high_watermark, log.last_stable_offset, log.log_start_offset,
            (aborted or []) if self._committed_only else None, slices, size, diverging,
        )  # fmt: skip

    def _error(self, error: ErrorCode, tp: TopicPartition) -> FetchOutcome:
        leader = current_leader(self._context, tp) if error in _TELL_LEADER else None
        return FetchOutcome(error, current_leader=leader)


def _diverging(log: Any, part: FetchPart) -> tuple[int, int] | None:
    """Where the client's log leaves ours, if it does (KIP-595): the epoch it should go back to and its end."""
    epoch, end_offset = log.epoch_end_offset(part.last_fetched_epoch)
    if end_offset < 0:
        raise OffsetOutOfRange(part.fetch_offset, log.log_start_offset, log.log_end_offset)
    if epoch < part.last_fetched_epoch or end_offset < part.fetch_offset:
        return epoch, end_offset
    return None
