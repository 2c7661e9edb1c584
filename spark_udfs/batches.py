"""A sink's batch transactions from the client's side: begin, enlist, keep alive, commit, abort (docs/protocol.md).

Every call finds the coordinator, and asks again where asking again is safe: all of these calls are. An outcome that
is not known after the time-out is raised, and Spark's replay of the batch finds out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import kafka.errors

from spark_udfs.client import Client, ClientError
from spark_udfs.failures import FenceConflict, FenceError
from spark_udfs.producing import Member, TaskFenced
from wire.errors import ErrorCode
from wire.messages import request_class

BEGIN, ENLIST, COMMIT, HEARTBEAT, ABORT = 12001, 12002, 12003, 12004, 12005
FIND_COORDINATOR, TRANSACTION = 10, 1
PAUSE_S = 0.05

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
    """A begun batch: the sink's present producer, and the fence found then."""

    sink_id: str
    producer_id: int
    producer_epoch: int
    fence: Fence | None


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

    def begin(self, transaction_timeout_ms: int) -> Batch:
        """Begin a batch: whoever was writing for this sink is locked out from here on."""
        answer = self._call(BEGIN, timeout_ms=transaction_timeout_ms)
        return Batch(self._sink_id, answer.producer_id, answer.producer_epoch, _fence(answer.fence))

    def enlist(self, batch: Batch, count: int = 1) -> list[Member]:
        """Members for tasks. Raises TaskFenced when the batch is over."""
        answer = self._call(ENLIST, count=count, **_who(batch))
        return [Member(member.producer_id, member.producer_epoch) for member in answer.members]

    def commit(self, batch: Batch, query_id: str, batch_id: int, digest: str, winners: Iterable[Member]) -> bool:
        """Decide the batch; True if it was committed before. Raises FenceConflict, TaskFenced, FenceError."""
        kind = request_class(COMMIT)
        named = [kind.BatchMember(producer_id=m.producer_id, producer_epoch=m.epoch) for m in winners]
        answer = self._call(COMMIT, query_id=query_id, batch_id=batch_id, digest=digest, winners=named, **_who(batch))
        return bool(answer.already_committed)

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

    def _call(self, key: int, **fields: Any) -> Any:
        deadline = time.monotonic() + self._timeout_ms / 1000
        pause = PAUSE_S
        while True:
            code, text, answer = self._once(key, fields)
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

    def _once(self, key: int, fields: dict[str, Any]) -> tuple[ErrorCode, str, Any]:
        def attempt() -> tuple[ErrorCode, str, Any]:
            if self._coordinator is None:
                self._coordinator = self._find()
            request = request_class(key)(sink_id=self._sink_id, **fields)
            answer = self._client.wait(self._client.send(request, self._coordinator))
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


def retrying_begin(sink: Sink, timeout_ms: int) -> Callable[[], Batch]:
    """A function that begins the batch when first called, and answers the same ever after."""
    found: list[Batch] = []

    def begin() -> Batch:
        if not found:
            found.append(sink.begin(timeout_ms))
        return found[0]

    return begin


def _who(batch: Batch) -> dict[str, int]:
    return {"producer_id": batch.producer_id, "producer_epoch": batch.producer_epoch}


def _fence(found: Any) -> Fence | None:
    return None if found is None else Fence(found.query_id, found.batch_id, found.digest)
