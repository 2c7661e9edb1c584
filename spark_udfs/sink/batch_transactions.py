"""A sink's batch transactions from the client's side: begin, enlist, heartbeat, commit, abort (docs/protocol.md).

Every call finds the coordinator and is retried: all of these calls are idempotent. An outcome that is not known after
the timeout is raised, and Spark's replay of the batch reads it from the fence.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import kafka.errors

from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.failures import ClientError, FenceConflict, FenceError, TaskFenced
from fleetlog.spark.client.frames import CommitFrame
from fleetlog.spark.client.write_settings import TaskMember, WriteSettings
from fleetlog.spark.sink.fence import Fence
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.messages import request_class

if TYPE_CHECKING:
    from fleetlog.spark.client.producer import MemberProducer

BEGIN, ENLIST, COMMIT, HEARTBEAT, ABORT, DESCRIBE, RESET = range(12001, 12008)
FIND_COORDINATOR, TRANSACTION = 10, 1
PAUSE_S = 0.05
UNSUPPORTED = "these brokers have no batch transactions (a stock Kafka has none)"
HEARTBEATS_PER_TIMEOUT = 4

_RETRYABLE = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
_REFUSED = frozenset({ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.SASL_AUTHENTICATION_FAILED})

logger = logging.getLogger(__name__)


class OpenBatch(NamedTuple):
    """A begun batch: the sink's present producer, the fence found at the begin, and the id of its coordinator.

    ``digest``: the one that the fence's batch was committed with.
    """

    sink_id: str
    producer_id: int
    producer_epoch: int
    fence: Fence | None
    coordinator: int = -1
    digest: str = ""


class SentRequests(NamedTuple):
    """Requests that were sent before their answers are needed. None: not sent."""

    enlist: Any
    topic: Any


class BatchTransactions:
    """The batch transactions of one sink, over one client."""

    def __init__(self, client: Client, sink_id: str, timeout_ms: int = 60_000) -> None:
        self._client = client
        self._sink_id = sink_id
        self._timeout_ms = timeout_ms
        self._coordinator: int | None = None
        self._adopted: tuple[int, int] | None = None

    def supported(self) -> bool:
        """Whether the brokers have batch transactions; a stock Kafka has none. Raises ClientError."""
        return self._client.serves(BEGIN)

    def send_begin(self, transaction_timeout_ms: int) -> Any:
        """Send a BeginBatch; :meth:`begin` takes the answer. None where the coordinator is not known yet."""
        if self._coordinator is None:
            return None
        request = request_class(BEGIN)(sink_id=self._sink_id, timeout_ms=transaction_timeout_ms)
        return self._client.send(request, self._coordinator)

    def begin(self, transaction_timeout_ms: int, sent: Any = None) -> OpenBatch:
        """Begin a batch, which fences every older driver of the sink. ``sent``: by `send_begin`."""
        answer = self._call(BEGIN, sent, timeout_ms=transaction_timeout_ms)
        coordinator = -1 if self._coordinator is None else self._coordinator
        digest = "" if answer.fence is None else answer.fence.digest
        fence = _fence(answer.fence)
        return OpenBatch(self._sink_id, answer.producer_id, answer.producer_epoch, fence, coordinator, digest)

    def enlist(self, batch: OpenBatch, count: int = 1, sent: Any = None) -> list[TaskMember]:
        """Members for tasks. Raises TaskFenced when the batch is over. ``sent``: the request, if it was sent."""
        self._adopt_coordinator(batch)
        answer = self._call(ENLIST, sent, count=count, **_producer_fields(batch))
        return [TaskMember(member.producer_id, member.producer_epoch) for member in answer.members]

    def _adopt_coordinator(self, batch: OpenBatch) -> None:
        """Once for each batch: its driver has just found the coordinator, which may move while the batch is open."""
        named = batch.producer_id, batch.producer_epoch
        if named != self._adopted and self._client.lists_broker(batch.coordinator):
            self._coordinator, self._adopted = batch.coordinator, named

    def send_writer(self, batch: OpenBatch, settings: WriteSettings) -> SentRequests:
        """Send the requests whose answers :meth:`writer` needs."""
        self._adopt_coordinator(batch)
        enlist = None
        if self._coordinator is not None:
            request = request_class(ENLIST)(sink_id=self._sink_id, count=1, **_producer_fields(batch))
            enlist = self._client.send(request, self._coordinator)
        known = settings.topic is None or self._client.partition_count(settings.topic) is not None
        return SentRequests(enlist, None if known else self._client.send_topics([str(settings.topic)]))

    def writer(
        self, batch: OpenBatch, settings: WriteSettings, sent: SentRequests | None = None
    ) -> tuple[TaskMember, MemberProducer]:
        """A new member and its producer. The coordinator enlists it while another broker describes the topic.

        What this client was told of the topic some seconds ago serves, too.
        """
        from fleetlog.spark.client.producer import MemberProducer  # late: who begins and commits writes no rows

        sent = sent or self.send_writer(batch, settings)
        counts = {} if settings.topic is None else self._counts(settings.topic, sent.topic)
        (member,) = self.enlist(batch, sent=sent.enlist)
        return member, MemberProducer(self._client, self._sink_id, member, settings, counts)

    def _counts(self, topic: str, sent: Any) -> dict[str, int]:
        count = None if sent is not None else self._client.partition_count(topic)
        if count is None:
            count = len(self._client.topics([topic], sent).get(topic, ()))
        return {topic: count} if count else {}

    def commit(
        self, batch: OpenBatch, query_id: str, batch_id: int, digest: str, winners: Iterable[TaskMember]
    ) -> bool:
        """Decide the batch; True if it was committed before. Raises FenceConflict, TaskFenced, FenceError."""
        self._adopt_coordinator(batch)
        named = {"query_id": query_id, "batch_id": batch_id, "digest": digest, "winners": list(winners)}
        answer = self._call(COMMIT, **named, **_producer_fields(batch))
        return bool(answer.already_committed)

    def fence(self) -> Fence | None:
        """The last committed batch. It may move at any time unless this client has begun a batch."""
        answer = self._call(DESCRIBE, sink_ids=[self._sink_id])
        return _fence(answer.fence)

    def reset(self, expected_query_id: str, fence: Fence | None) -> None:
        """Set the fence, or remove it (None). Raises FenceConflict when it is of another query ("": there is none)."""
        moved = {} if fence is None else {"query_id": fence.query_id, "batch_id": fence.batch_id}
        self._call(RESET, expected_query_id=expected_query_id, **moved)

    def heartbeat(self, batch: OpenBatch) -> None:
        """Restart the transaction's timeout."""
        self._call(HEARTBEAT, **_producer_fields(batch))

    def abort(self, batch: OpenBatch) -> None:
        """Abort the batch; a batch that is over is left as it is."""
        try:
            self._call(ABORT, **_producer_fields(batch))
        except (TaskFenced, FenceError, ClientError) as problem:
            logger.info("sink %s: the batch could not be aborted: %s", self._sink_id, problem)

    # ---- retries -----------------------------------------------------------------------------------------------------

    def _call(self, key: int, sent: Any = None, /, **fields: Any) -> Any:
        deadline = time.monotonic() + self._timeout_ms / 1000
        pause = PAUSE_S
        while True:
            code, text, answer = self._once(key, fields, sent)
            sent = None
            if code is ErrorCode.NONE:
                return answer
            if code not in _RETRYABLE:
                raise self._failure(code, text)
            if time.monotonic() > deadline:
                raise ClientError(f"sink {self._sink_id}: {code.name} for {self._timeout_ms} ms; {text}", code)
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                self._coordinator = None
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _once(self, key: int, fields: dict[str, Any], sent: Any) -> tuple[ErrorCode, str, Any]:
        def attempt() -> tuple[ErrorCode, str, Any]:
            if self._coordinator is None:
                self._coordinator = self._find()
            named = {} if key == DESCRIBE else {"sink_id": self._sink_id}
            future = sent
            if future is None:
                kind: Any = CommitFrame if key == COMMIT else request_class(key)
                future = self._client.send(kind(**named, **fields), self._coordinator)
            answer = self._client.wait(future)
            if key == DESCRIBE and answer.error_code == ErrorCode.NONE:
                (answer,) = answer.sinks
                unknown = ErrorCode(answer.error_code) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
                return ErrorCode.NONE if unknown else ErrorCode(answer.error_code), "", answer
            return ErrorCode(answer.error_code), answer.error_message or "", answer

        try:
            return attempt()
        except (kafka.errors.KafkaError, ClientError) as problem:
            if isinstance(problem, kafka.errors.UnsupportedVersionError | kafka.errors.IncompatibleBrokerVersion):
                raise FenceError(f"{UNSUPPORTED}: use sink.mode=driver") from problem
            if isinstance(problem, ClientError) and problem.code in _REFUSED:
                return problem.code, str(problem), None
            self._client.forget_leaders()
            return ErrorCode.NETWORK_EXCEPTION, repr(problem), None

    def _find(self) -> int:
        kind = request_class(FIND_COORDINATOR)
        answer = self._client.request(
            kind(key_type=TRANSACTION, key=self._sink_id, coordinator_keys=[self._sink_id], min_version=4)
        )
        (coordinator,) = answer.coordinators
        code = ErrorCode(coordinator.error_code)
        if code is not ErrorCode.NONE:
            raise ClientError(f"no coordinator of sink {self._sink_id}: {code.name}", code)
        return int(coordinator.node_id)

    def _failure(self, code: ErrorCode, text: str) -> Exception:
        what = f"sink {self._sink_id}: {text or code.name}"
        if code is ErrorCode.FENCE_CONFLICT:
            return FenceConflict(what)
        if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE):
            return TaskFenced(what)
        return FenceError(what)


class Heartbeats:
    """Sends heartbeats while a batch is written, from a thread with its own connection.

    A task may wait for its rows longer than the transaction's timeout, and blocks meanwhile. Where a task takes less
    than a quarter of the timeout, it has no thread, nothing is sent and no connection made.
    """

    def __init__(self, settings: Mapping[str, Any], batch: OpenBatch, transaction_timeout_ms: int) -> None:
        self._settings = settings
        self._batch = batch
        self._every_s = transaction_timeout_ms / 1000 / HEARTBEATS_PER_TIMEOUT
        self._over = threading.Event()

    def __enter__(self) -> Heartbeats:
        _first_heartbeats.add(self, time.monotonic() + self._every_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        _first_heartbeats.remove(self)

    def start(self) -> None:
        """The first heartbeat is due."""
        name = f"heartbeat of sink {self._batch.sink_id}"
        try:
            threading.Thread(target=self._send_heartbeats, name=name, daemon=True).start()
        except RuntimeError as problem:  # the others' heartbeats must go on
            logger.warning("sink %s: no heartbeats: %s", self._batch.sink_id, problem)

    def _send_heartbeats(self) -> None:
        client: Client | None = None
        while not self._over.is_set():
            try:
                client = client or Client(self._settings)
                BatchTransactions(client, self._batch.sink_id, int(self._every_s * 1000)).heartbeat(self._batch)
            except (TaskFenced, FenceError) as problem:
                logger.info("sink %s: heartbeats end, the batch is over: %s", self._batch.sink_id, problem)
                break
            except Exception as problem:  # the writer's own requests fail, too, where it matters
                logger.warning("sink %s: a heartbeat failed: %s", self._batch.sink_id, problem)
            self._over.wait(self._every_s)
        if client is not None:
            client.close()


class _FirstHeartbeats:
    """One thread of the process waits for the first heartbeat of every batch: most batches end before theirs."""

    def __init__(self) -> None:
        self._due: dict[Heartbeats, float] = {}
        self._changed = threading.Condition()
        self._wakes_at: float | None = None
        self._pid = -1

    def add(self, heartbeats: Heartbeats, due: float) -> None:
        """Start them at a time of `time.monotonic`, unless they are removed before."""
        with self._changed:
            self._due[heartbeats] = due
            if self._pid != os.getpid():  # a fork has no threads
                self._pid, self._wakes_at = os.getpid(), None
                threading.Thread(target=self._wait, name="first heartbeats", daemon=True).start()
            elif self._wakes_at is None or due < self._wakes_at:
                self._changed.notify()

    def remove(self, heartbeats: Heartbeats) -> None:
        """The batch is over. The thread sleeps on: the next batch is due after this one."""
        with self._changed:
            self._due.pop(heartbeats, None)

    def _wait(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for heartbeats in [each for each, due in self._due.items() if due <= now]:
                    del self._due[heartbeats]
                    heartbeats.start()
                self._wakes_at = min(self._due.values(), default=None)
                self._changed.wait(None if self._wakes_at is None else self._wakes_at - now)


_first_heartbeats = _FirstHeartbeats()


def _producer_fields(batch: OpenBatch) -> dict[str, int]:
    return {"producer_id": batch.producer_id, "producer_epoch": batch.producer_epoch}


def _fence(found: Any) -> Fence | None:
    return None if found is None else Fence(found.query_id, found.batch_id)
