"""A sink's batch transactions from the client's side: begin, enlist, keep alive, commit, abort (docs/protocol.md).

Every call finds the coordinator, and asks again where asking again is safe: all of these calls are. An outcome that
is not known after the time-out is raised, and Spark's replay of the batch finds out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import kafka.errors

from spark_udfs.client import Client, ClientError
from spark_udfs.failures import FenceConflict, FenceError
from spark_udfs.frames import CommitFrame
from spark_udfs.producing import Member, MemberProducer, TaskFenced, WriteSettings
from wire.errors import ErrorCode
from wire.messages import request_class

BEGIN, ENLIST, COMMIT, HEARTBEAT, ABORT, DESCRIBE, RESET = range(12001, 12008)
FIND_COORDINATOR, TRANSACTION = 10, 1
PAUSE_S = 0.05
HEARTBEATS_PER_TIMEOUT = 4

_AGAIN = frozenset(
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

log = logging.getLogger(__name__)


class Fence(NamedTuple):
    """The last batch that a sink committed."""

    query_id: str
    batch_id: int
    digest: str


class Batch(NamedTuple):
    """A begun batch: the sink's present producer, the fence found then, and the broker that coordinates it."""

    sink_id: str
    producer_id: int
    producer_epoch: int
    fence: Fence | None
    coordinator: int = -1


class Ahead(NamedTuple):
    """Requests that were sent before their answers are needed. None: not sent."""

    enlist: Any
    topic: Any


class Sink:
    """Calls for one sink over one client."""

    def __init__(self, client: Client, sink_id: str, timeout_ms: int = 60_000) -> None:
        self._client = client
        self._sink_id = sink_id
        self._timeout_ms = timeout_ms
        self._coordinator: int | None = None

    def supported(self) -> bool:
        """Whether the brokers know batch transactions; a stock Kafka does not."""
        return self._client.serves(BEGIN)

    def send_begin(self, transaction_timeout_ms: int) -> Any:
        """Send a BeginBatch and go on; :meth:`begin` takes the answer. None where the coordinator is not known yet."""
        if self._coordinator is None:
            return None
        request = request_class(BEGIN)(sink_id=self._sink_id, timeout_ms=transaction_timeout_ms)
        return self._client.send(request, self._coordinator)

    def begin(self, transaction_timeout_ms: int, sent: Any = None) -> Batch:
        """Begin a batch: whoever was writing for this sink is locked out from here on. ``sent``: by `send_begin`."""
        answer = self._call(BEGIN, sent, timeout_ms=transaction_timeout_ms)
        coordinator = -1 if self._coordinator is None else self._coordinator
        return Batch(self._sink_id, answer.producer_id, answer.producer_epoch, _fence(answer.fence), coordinator)

    def enlist(self, batch: Batch, count: int = 1, sent: Any = None) -> list[Member]:
        """Members for tasks. Raises TaskFenced when the batch is over. ``sent``: the request, where it is under way."""
        self._take_hint(batch)
        answer = self._call(ENLIST, sent, count=count, **_who(batch))
        return [Member(member.producer_id, member.producer_epoch) for member in answer.members]

    def _take_hint(self, batch: Batch) -> None:
        if self._coordinator is None and self._client.knows(batch.coordinator):
            self._coordinator = batch.coordinator

    def send_writer(self, batch: Batch, settings: WriteSettings) -> Ahead:
        """Send what :meth:`writer` asks for, and go on."""
        self._take_hint(batch)
        enlist = None
        if self._coordinator is not None:
            request = request_class(ENLIST)(sink_id=self._sink_id, count=1, **_who(batch))
            enlist = self._client.send(request, self._coordinator)
        return Ahead(enlist, None if settings.topic is None else self._client.send_topics([settings.topic]))

    def writer(self, batch: Batch, settings: WriteSettings, sent: Ahead | None = None) -> tuple[Member, MemberProducer]:
        """A new member and its producer. The coordinator enlists it while another broker is asked for its topic."""
        sent = sent or self.send_writer(batch, settings)
        found = {} if settings.topic is None else self._client.topics([settings.topic], sent.topic)
        (member,) = self.enlist(batch, sent=sent.enlist)
        counts = {topic: len(parts) for topic, parts in found.items() if parts}
        return member, MemberProducer(self._client, self._sink_id, member, settings, counts)

    def commit(self, batch: Batch, query_id: str, batch_id: int, digest: str, winners: Iterable[Member]) -> bool:
        """Decide the batch; True if it was committed before. Raises FenceConflict, TaskFenced, FenceError."""
        named = {"query_id": query_id, "batch_id": batch_id, "digest": digest, "winners": list(winners)}
        answer = self._call(COMMIT, **named, **_who(batch))
        return bool(answer.already_committed)

    def fence(self) -> Fence | None:
        """The last committed batch, as the coordinator knows it now. It may change unless a batch was begun here."""
        answer = self._call(DESCRIBE, sink_ids=[self._sink_id])
        return _fence(answer.fence)

    def reset(self, expected_query_id: str, fence: Fence | None) -> None:
        """Move the fence to another batch, or away. Raises FenceConflict when it is of another query ("": none yet)."""
        moved = {} if fence is None else {"query_id": fence.query_id, "batch_id": fence.batch_id}
        self._call(RESET, expected_query_id=expected_query_id, **moved)

    def heartbeat(self, batch: Batch) -> None:
        """The batch is still being written: its time starts anew."""
        self._call(HEARTBEAT, **_who(batch))

    def abort(self, batch: Batch) -> None:
        """Give the batch up. A batch that is over already is fine."""
        try:
            self._call(ABORT, **_who(batch))
        except (TaskFenced, FenceError, ClientError) as problem:
            log.info("sink %s: not aborted from here: %s", self._sink_id, problem)

    # ---- how -------------------------------------------------------------------------------------------------------

    def _call(self, key: int, sent: Any = None, /, **fields: Any) -> Any:
        deadline = time.monotonic() + self._timeout_ms / 1000
        pause = PAUSE_S
        while True:
            code, text, answer = self._once(key, fields, sent)
            sent = None
            if code is ErrorCode.NONE:
                return answer
            if code not in _AGAIN:
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
                raise FenceError("these brokers know no batch transactions; use sink.mode=driver") from problem
            self._client.forget_leaders()
            return ErrorCode.NETWORK_EXCEPTION, repr(problem), None

    def _find(self) -> int:
        kind = request_class(FIND_COORDINATOR)
        answer = self._client.ask(
            kind(key_type=TRANSACTION, key=self._sink_id, coordinator_keys=[self._sink_id], min_version=4)
        )
        (found,) = answer.coordinators
        if ErrorCode(found.error_code) is not ErrorCode.NONE:
            raise ClientError(f"no coordinator of sink {self._sink_id}: {ErrorCode(found.error_code).name}")
        return int(found.node_id)

    def _failure(self, code: ErrorCode, text: str) -> Exception:
        what = f"sink {self._sink_id}: {text or code.name}"
        if code is ErrorCode.FENCE_CONFLICT:
            return FenceConflict(what)
        if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE):
            return TaskFenced(what)
        return FenceError(what)


class KeptAlive:
    """Sends heartbeats while a batch is written, from a thread and over a connection of its own.

    A task may wait for its rows longer than the batch's timeout: only a thread can speak meanwhile. Where every task
    is quicker than a quarter of the timeout, nothing is sent and no connection made.
    """

    def __init__(self, settings: Mapping[str, Any], batch: Batch, transaction_timeout_ms: int) -> None:
        self._settings = settings
        self._batch = batch
        self._every_s = transaction_timeout_ms / 1000 / HEARTBEATS_PER_TIMEOUT
        self._over = threading.Event()

    def __enter__(self) -> KeptAlive:
        threading.Thread(target=self._beat, name=f"heartbeat of sink {self._batch.sink_id}", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _beat(self) -> None:
        client: Client | None = None
        while not self._over.wait(self._every_s):
            try:
                client = client or Client(self._settings)
                Sink(client, self._batch.sink_id, int(self._every_s * 1000)).heartbeat(self._batch)
            except (TaskFenced, FenceError) as problem:
                log.info("sink %s: the batch needs no heartbeats any more: %s", self._batch.sink_id, problem)
                break
            except Exception as problem:  # the writer hears of what matters by itself
                log.warning("sink %s: no heartbeat this time: %s", self._batch.sink_id, problem)
        if client is not None:
            client.close()


def _who(batch: Batch) -> dict[str, int]:
    return {"producer_id": batch.producer_id, "producer_epoch": batch.producer_epoch}


def _fence(found: Any) -> Fence | None:
    return None if found is None else Fence(found.query_id, found.batch_id, found.digest)
