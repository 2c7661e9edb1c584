"""The sender of ``fleetlog produce``: batches encoded by the kernels, one in flight for each partition.

kafka-python's producer looks at each record many times, and takes 40 microseconds for one. Here a chunk of records
becomes one batch per partition; with acks=all the sequence of a batch makes it safe to send it again.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from kafka.protocol.metadata import MetadataRequest

from fleetlog._native.batch import Record, encode_batch
from fleetlog._native.columns import partition_for_key
from fleetlog.brokers.cli.admin_client import GONE, AdminClient
from fleetlog.brokers.cli.client import explain, raise_for_code
from fleetlog.brokers.cli.output import CliError, count_text
from fleetlog.wire.compression import CODES, compress
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.messages import request_class

PRODUCE, INIT_PRODUCER_ID = 0, 22
BATCH_BYTES = 900_000
"""Below the default of max.message.bytes, before compression. Where a topic allows less, batches are cut in half."""
RECORD_OVERHEAD = 20
PAUSE_S = 0.1
LEAST_TRY_S = 1.0

_AGAIN = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
})  # fmt: skip
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class InputRecord(NamedTuple):
    """One record to write; without a timestamp it gets the current time."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class _Partition:
    """Batches for one partition. The first one is in flight; the others have no sequence yet."""

    __slots__ = ("deadline_s", "encoded", "sequence", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[list[Record]] = deque()
        self.encoded: bytes | None = None
        self.sequence = 0
        self.deadline_s = 0.0


class Sender:
    """Writes records to a topic, which is created if the brokers allow it. Raises CliError.

    ``written`` counts the records that are confirmed (with acks=0: sent).
    """

    def __init__(self, client: AdminClient, topic: str, *, acks: str, codec: str, timeout_s: float) -> None:
        self._client = client
        self._topic = topic
        self._acks = -1 if acks == "all" else int(acks)
        self._codec = CODES[codec]
        self._timeout_s = max(timeout_s, LEAST_TRY_S)
        self._leaders: list[int] = []
        self._partitions: dict[int, _Partition] = {}
        self._turn = 0
        self._producer = (-1, -1)
        self._failure: CliError | None = None
        self.written = 0
        self.last: dict[int, int] = {}
        deadline_s = time.monotonic() + self._timeout_s
        self._ask_leaders(deadline_s, whole=True)
        if self._acks < 0:
            self._producer = self._new_producer(deadline_s)

    # ---- partitions ------------------------------------------------------------------------------------------------

    def send(self, items: Sequence[InputRecord]) -> None:
        """Write the records and wait until they are confirmed."""
        for partition, records in self._spread(items, time.time_ns() // 1_000_000).items():
            state = self._partitions.setdefault(partition, _Partition())
            state.waiting.extend(_batches(records))
            state.deadline_s = time.monotonic() + self._timeout_s
        while waiting := {p: state for p, state in self._partitions.items() if state.waiting}:
            if self._round(waiting):
                time.sleep(PAUSE_S)
                with contextlib.suppress(*GONE):  # the batches have their deadlines
                    self._ask_leaders(min(state.deadline_s for state in waiting.values()))

    def check_partition(self, partition: int) -> None:
        """Raise CliError if the topic has no such partition."""
        if partition >= len(self._leaders):
            raise CliError(f"topic {self._topic} has partitions 0 to {len(self._leaders) - 1}, not {partition}")

    def _spread(self, items: Sequence[InputRecord], now_ms: int) -> dict[int, list[Record]]:
        """Records by partition: the one they name, their key's, or else runs of equal length, one per partition."""
        count = len(self._leaders)
        run = -(-len(items) // count)
        by_partition: dict[int, list[Record]] = {}
        for number, (value, key, headers, partition, timestamp_ms) in enumerate(items):
            if partition is None:
                partition = (self._turn + number // run) % count if key is None else partition_for_key(key, count)
            elif partition >= count:
                self.check_partition(partition)
            record = Record(-1, now_ms if timestamp_ms is None else timestamp_ms, key, value, headers)
            listed = by_partition.get(partition)
            if listed is None:
                by_partition[partition] = [record]
            else:
                listed.append(record)
        self._turn = (self._turn + 1) % count
        return by_partition

    # ---- sending ---------------------------------------------------------------------------------------------------

    def _round(self, waiting: dict[int, _Partition]) -> bool:
        """Send the first batch of each partition to its leader; True if one has to be sent again."""
        by_leader: dict[int, list[int]] = {}
        for partition in waiting:
            by_leader.setdefault(self._leaders[partition], []).append(partition)
        again = by_leader.pop(-1, None) is not None
        left_s = max(min(state.deadline_s for state in waiting.values()) - time.monotonic(), LEAST_TRY_S)
        # Half of the time left: by then a paused leader has a successor.
        try_s = max(left_s / 2, LEAST_TRY_S)
        requests = [(leader, self._request(partitions, left_s)) for leader, partitions in by_leader.items()]
        answers = self._client.ask_all(requests, try_s)
        for partitions, answer in zip(by_leader.values(), answers, strict=True):
            outcomes = {} if answer is None else {p.index: p for t in answer.responses for p in t.partition_responses}
            for partition in partitions:
                if self._acks == 0:
                    self._done(partition, -1)
                else:
                    again |= self._take(partition, outcomes.get(partition))
        if self._failure is not None:
            raise CliError(f"{self._failure.message}; {self.outcome()}")
        if again and time.monotonic() >= min(state.deadline_s for state in waiting.values()):
            raise CliError(f"topic {self._topic}: the brokers did not confirm in time; {self.outcome()}")
        return again

    def _request(self, partitions: Iterable[int], left_s: float) -> Any:
        rows = [{"index": partition, "records": self._encoded(self._partitions[partition])} for partition in partitions]
        kind = request_class(PRODUCE)
        topic = kind.TopicProduceData(
            name=self._topic, partition_data=[kind.TopicProduceData.PartitionProduceData(**row) for row in rows]
        )
        return kind(
            transactional_id=None, acks=self._acks, timeout_ms=int(left_s * 1000), topic_data=[topic], max_version=11
        )  # by names, not ids

    def _encoded(self, state: _Partition) -> bytes:
        if state.encoded is None:
            squeeze: Callable[[bytes], bytes] | None = partial(compress, self._codec) if self._codec else None
            state.encoded = encode_batch(
                state.waiting[0],
                attributes=self._codec,
                producer_id=self._producer[0],
                producer_epoch=self._producer[1],
                base_sequence=state.sequence if self._acks < 0 else -1,
                compress=squeeze,
            )
        return state.encoded

    def _take(self, partition: int, answer: Any) -> bool:
        """Take the outcome of a partition's batch; True if it has to be sent again."""
        if answer is None or answer.error_code in _AGAIN:
            return True
        code = answer.error_code
        state = self._partitions[partition]
        if code in _TOO_LARGE and len(state.waiting[0]) > 1:
            whole = state.waiting.popleft()
            state.waiting.extendleft([whole[len(whole) // 2 :], whole[: len(whole) // 2]])
            state.encoded = None
            return False
        if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            state.encoded = None  # the batch is certainly not in the log
            self._failure = self._failure or CliError(
                f"topic {self._topic}, partition {partition}: {explain(code, answer.error_message)}"
            )
            return False
        self._done(partition, answer.base_offset)
        return False

    def _done(self, partition: int, base_offset: int) -> None:
        state = self._partitions[partition]
        count = len(state.waiting.popleft())
        state.encoded = None
        state.sequence = (state.sequence + count) % 2**31
        state.deadline_s = time.monotonic() + self._timeout_s
        self.written += count
        if base_offset >= 0:
            self.last[partition] = base_offset + count - 1

    @property
    def pending(self) -> int:
        """Records that were sent and whose outcome is unknown."""
        return sum(len(state.waiting[0]) for state in self._partitions.values() if state.encoded is not None)

    def outcome(self) -> str:
        """How much was written, as text."""
        unsure = f", up to {self.pending} more may be" if self.pending else ""
        return f"{count_text(self.written, 'record', 'were')} written before{unsure}"

    def finish(self) -> None:
        """With acks=0: wait until the brokers that answer have read what was sent."""
        if self._acks == 0:
            leaders = {leader for leader in self._leaders if leader >= 0}
            self._client.ask_all([(leader, self._metadata()) for leader in leaders], self._timeout_s)

    # ---- metadata --------------------------------------------------------------------------------------------------

    def _metadata(self) -> Any:
        row = MetadataRequest.MetadataRequestTopic(name=self._topic)
        return MetadataRequest(topics=[row], allow_auto_topic_creation=True)

    def _ask_leaders(self, deadline_s: float, *, whole: bool = False) -> None:
        """Read the leaders; with ``whole`` until the topic exists and each partition has a leader."""
        while True:
            answer = self._client.ask_any(self._metadata())
            self._client.know(answer)
            (topic,) = answer.topics
            leaders = {p.partition_index: p.leader_id for p in topic.partitions}
            if not topic.error_code and len(leaders) >= len(self._leaders):
                self._leaders = [leaders[index] for index in sorted(leaders)]
                if not whole or -1 not in self._leaders:
                    return
            elif not whole:
                return  # the previous metadata may still be right; the batches have their deadlines
            if topic.error_code and (topic.error_code not in _AGAIN or time.monotonic() >= deadline_s):
                raise_for_code(f"topic {self._topic}", topic.error_code)
            if time.monotonic() >= deadline_s:
                return  # the partitions with a leader may be all that is needed
            time.sleep(PAUSE_S)

    def _new_producer(self, deadline_s: float) -> tuple[int, int]:
        request = request_class(INIT_PRODUCER_ID)(transactional_id=None, transaction_timeout_ms=60_000, max_version=4)
        while True:
            answer = self._client.ask_any(request)
            if answer.error_code not in _AGAIN or time.monotonic() >= deadline_s:
                raise_for_code(f"topic {self._topic}: no producer id", answer.error_code)
                return answer.producer_id, answer.producer_epoch
            time.sleep(PAUSE_S)


def _batches(records: list[Record]) -> list[list[Record]]:
    """Runs of records that fit into a batch; a record that is larger is sent alone."""
    batches, begin, size = [], 0, 0
    for number, (_, _, key, value, headers) in enumerate(records):
        more = RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
        if headers:
            more += sum(len(name) * 3 + len(data or b"") + RECORD_OVERHEAD for name, data in headers)
        if size and size + more > BATCH_BYTES:
            batches.append(records[begin:number])
            begin, size = number, 0
        size += more
    batches.append(records[begin:])
    return batches
