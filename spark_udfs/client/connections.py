"""A blocking client: metadata, offsets, raw record batches, and requests that a writer sends by itself.

kafka-python does connections, version negotiation and login (TLS, SASL); the bytes of record batches come through it
untouched. One client serves one thread. It is kept per worker process (`shared_client`), because Spark reuses workers
and a new connection costs more than a small fetch.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import kafka.errors
from kafka.future import Future
from kafka.net.selector import NetworkSelector

from fleetlog.spark.client.failures import ClientError
from fleetlog.spark.client.logins import REFUSALS, Connections
from fleetlog.spark.client.tls import with_context
from fleetlog.spark.client.token_settings import CLIENT_ID, TOKEN_KEYWORDS
from fleetlog.spark.client.tokens import TokenRefused, with_tokens
from fleetlog.wire.api_keys import SIGN_SEGMENTS
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.messages import FetchRequest, ListOffsetsRequest, MetadataRequest, SignSegmentsRequest
from fleetlog.wire.types import TopicPartition

METADATA_AGE_S = 5.0
"""For so long a new task of a process takes a topic to have the partitions that the last one found."""

_RETRY_PAUSE_S = 0.1
_DEFAULT_API_TIMEOUT_MS = 60_000
_FETCH_MAX_WAIT_MS = 500

_RETRIABLE = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)

logger = logging.getLogger(__name__)
T = TypeVar("T")


class _RetryableError(Exception):
    """A leader moved, a connection was lost and the like: refresh the metadata and repeat."""


class Fetched(NamedTuple):
    """One partition's share of a fetch. ``records`` may end in a torn batch."""

    error: ErrorCode
    records: bytes
    aborted: list[tuple[int, int]]  # (producer id, first offset)


class Leader(NamedTuple):
    """The broker that leads a partition. A topic id of None: the brokers give none."""

    node_id: int
    topic_id: Any


class Client:
    """Blocking calls to the brokers. A call retries retryable errors until ``timeout_ms`` has passed: ClientError."""

    def __init__(self, settings: Mapping[str, Any], timeout_ms: int = _DEFAULT_API_TIMEOUT_MS) -> None:
        configs = {
            "client_id": "fleetlog-spark",
            "request_timeout_ms": 30_000,
            **with_tokens(with_context(dict(settings))),
        }
        # The library's bound on a frame is 1 MB, below what one fetch may bring.
        configs["receive_message_max_bytes"] = 2**31 - 1
        # Callers bound what they have in flight; the library refuses the sixth request at once.
        configs["max_in_flight_requests_per_connection"] = 1000
        configs["slow_task_threshold_secs"] = 0  # a send of megabytes on a busy machine is nothing to warn of
        self._timeout_ms = timeout_ms
        self._net = NetworkSelector(**configs)
        self._manager = Connections(self._net, **configs)
        self._leaders: dict[TopicPartition, Leader] = {}
        self._topic_ids: dict[str, str] = {}
        self._counts: dict[str, tuple[int, float]] = {}
        self.bucket_rests_until = 0.0
        """The monotonic time until which no bucket is asked, after one could not be reached from here."""
        self._servers = ",".join(settings["bootstrap_servers"])
        user = settings.get("sasl_plain_username") or settings.get(TOKEN_KEYWORDS[CLIENT_ID])
        self._as_user = f" of user {user}" if user else ""
        protocol = settings.get("security_protocol", "PLAINTEXT").upper()
        # The library logs the reason, and raises none.
        refused = f" (over {protocol} so does a refused password or certificate: see the log of this process)"
        self._hint = "" if protocol == "PLAINTEXT" else refused

    def close(self) -> None:
        """Closes the connections."""
        self._manager.close()
        if self._manager.bootstrapped:
            self._net.poll(timeout_ms=0)  # its background tasks end here; cancelled, they log errors
        self._net.close()

    # -- calls -----------------------------------------------------------------------------------------------------

    def send_topics(self, names: Iterable[str]) -> Any:
        """Send a metadata request; :meth:`topics` takes the answer. None while no broker is known."""
        return self._send(_metadata_request(sorted(names))) if self._manager.bootstrapped else None

    def topics(self, names: Iterable[str] | None, sent: Any = None) -> dict[str, list[int]]:
        """Partitions by topic; ``None`` asks for all topics. A topic that does not exist is left out.

        ``sent``: by `send_topics`, for the same names.
        """
        wanted = None if names is None else sorted(names)
        waiting = [sent]

        def attempt() -> dict[str, list[int]]:
            future, waiting[0] = waiting[0], None
            return {topic: sorted(partitions) for topic, partitions in self._refresh(wanted, future).items()}

        return self._retry("the topics", attempt)

    def topics_matching(self, pattern: str) -> dict[str, list[int]]:
        """Partitions of every topic, internal ones left out, whose whole name matches the regular expression."""
        compiled = re.compile(pattern)
        return {topic: parts for topic, parts in self.topics(None).items() if compiled.fullmatch(topic)}

    def topic_id(self, topic: str) -> str | None:
        """The topic's id as of the latest metadata; None when the brokers give none."""
        return self._topic_ids.get(topic)

    def offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, tuple[int, int]]:
        """(offset, timestamp) per partition for a timestamp in ms, EARLIEST or LATEST.

        With READ_COMMITTED, LATEST is the last stable offset. The offset is -1 where no record is as late.
        """
        done: dict[TopicPartition, tuple[int, int]] = {}

        def attempt() -> dict[TopicPartition, tuple[int, int]]:
            missing = {tp: timestamp for tp, timestamp in timestamps.items() if tp not in done}
            for node_id, parts in self._by_leader(missing).items():
                done.update(self._list_offsets(node_id, {tp: missing[tp] for tp in parts}, isolation))
            if len(done) < len(timestamps):
                raise _RetryableError(f"{len(timestamps) - len(done)} partitions have no answer yet")
            return done

        return self._retry("the offsets", attempt)

    def start_fetch(self, tp: TopicPartition, offset: int, isolation: int, max_bytes: int) -> Any:
        """Send a fetch and do not wait: the answer travels while the caller decodes the one before.

        None where the partition's leader is not known yet or not connected.
        """
        leader = self._leaders.get(tp)
        if leader is None:
            return None
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=tp.partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=max_bytes,
        )
        topic = FetchRequest.FetchTopic(topic=tp.topic, topic_id=leader.topic_id, partitions=[partition])
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=_FETCH_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation,
            session_id=0,
            session_epoch=-1,
            topics=[topic],
            forgotten_topics_data=[],
            rack_id="",
            min_version=4,
            max_version=18 if leader.topic_id is not None else 12,
        )
        try:
            future = self._manager.send(request, node_id=leader.node_id)
            self.progress()
        except kafka.errors.KafkaError:
            return None
        return future

    def finish_fetch(self, tp: TopicPartition, pending: Any, offset: int, isolation: int, max_bytes: int) -> Fetched:
        """Raw batches from ``offset`` on. ``pending``: by `start_fetch`; sent again after a change of leader.

        Empty after half a second without any. OFFSET_OUT_OF_RANGE is a result. Raises ClientError.
        """
        state = [pending]

        def attempt() -> Fetched:
            future, state[0] = state[0], None
            if future is None:
                self._by_leader({tp: 0})
                future = self.start_fetch(tp, offset, isolation, max_bytes)
            if future is None:
                raise _RetryableError(f"no connection to the leader of {tp}")
            response = self._wait(future)
            code = ErrorCode(response.error_code) if response.API_VERSION >= 7 else ErrorCode.NONE
            if code is not ErrorCode.NONE:
                self._check(code, tp)
            part = response.responses[0].partitions[0]
            code = ErrorCode(part.error_code)
            if code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                self._check(code, tp)
            aborted = [(item.producer_id, item.first_offset) for item in part.aborted_transactions or ()]
            return Fetched(code, bytes(part.records or b""), aborted)

        return self._retry(f"a fetch from {tp}", attempt)

    def sign_segments(self, tp: TopicPartition, start: int, end: int, max_bytes: int) -> Any:
        """What the partition's leader says of where a bucket has these offsets: its answer, also an error that stays.

        None of brokers that have no such API. A bucket that fails is not waited for: a Fetch says so, or has the
        records from a cache. Raises ClientError.
        """
        if not self.serves(SIGN_SEGMENTS):
            return None

        def attempt() -> Any:
            ((node_id, _),) = self._by_leader({tp: 0}).items()
            request = SignSegmentsRequest(
                topic=tp.topic, partition_index=tp.partition, start_offset=start, end_offset=end, max_bytes=max_bytes
            )
            try:
                answer = self._wait(self._manager.send(request, node_id=node_id))
            except kafka.errors.IncompatibleBrokerVersion:  # the leader is older than the broker that was asked first
                return None
            code = ErrorCode(answer.error_code)
            if code in _RETRIABLE and code is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise _RetryableError(f"{tp}: {code.name}")
            return answer

        return self._retry(f"the bucket's part of {tp}", attempt)

    # -- for writers, which retry by themselves ------------------------------------------------------------------------

    def serves(self, api_key: int) -> bool:
        """Whether the brokers announce an API. Raises ClientError when none can be reached."""

        def attempt() -> bool:
            version = self._manager.broker_version_data
            if version is None:
                raise _RetryableError("the brokers' versions are not known yet")
            return api_key in version.api_versions

        return self._retry("the brokers' versions", attempt)

    def cluster_id(self) -> str:
        """The cluster's id; where brokers have none, the servers that were named. Raises ClientError."""
        if self._manager.cluster.cluster_id is None:
            self._retry("the cluster's id", lambda: self._refresh([]))
        return self._manager.cluster.cluster_id or str(self._servers)

    def leaders_of(self, parts: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """The partitions by the id of their leader; those without one are left out. Raises ClientError."""
        wanted = list(parts)
        missing = sorted({tp.topic for tp in wanted if tp not in self._leaders})
        if missing:
            self._retry("the leaders", lambda: self._refresh(missing))
        grouped: dict[int, list[TopicPartition]] = defaultdict(list)
        for tp in wanted:
            if tp in self._leaders:
                grouped[self._leaders[tp].node_id].append(tp)
        return grouped

    def partition_count(self, topic: str) -> int | None:
        """A topic's partitions by metadata of at most METADATA_AGE_S, without a request; None where there is none."""
        count, since = self._counts.get(topic, (0, 0.0))
        return count if count and time.monotonic() - since <= METADATA_AGE_S else None

    def lists_broker(self, node_id: int) -> bool:
        """Whether the latest metadata lists a broker."""
        return self._manager.cluster.broker_metadata(node_id) is not None

    def forget_leaders(self) -> None:
        """Drop what is known of topics: the next call that needs a leader refreshes the metadata."""
        self._leaders.clear()
        self._counts.clear()

    def send(self, request: Any, node_id: int) -> Any:
        """Send a request; :meth:`wait` waits for what is returned. A failure to send shows there."""
        return self._send(request, node_id)

    def _send(self, request: Any, node_id: int | None = None) -> Any:
        try:
            future = self._manager.send(request, node_id=node_id)
        except kafka.errors.KafkaError as problem:  # a broker that the metadata no longer lists
            return Future().failure(problem)
        self.progress()
        return future

    def progress(self) -> None:
        """Write what the sockets accept and read what has arrived, without blocking."""
        self._net.poll(timeout_ms=0)  # the first poll only registers for writability
        self._net.poll(timeout_ms=0)

    def wait(self, future: Any) -> Any:
        """The answer to a request that was sent. Raises kafka.errors.KafkaError, or ClientError when there is none."""
        try:
            return self._wait(future)
        except _RetryableError as problem:
            raise ClientError(str(problem)) from problem

    def request(self, request: Any) -> Any:
        """Any broker's answer. Raises ClientError."""
        return self._retry(type(request).__name__, lambda: self._wait(self._manager.send(request)))

    # -- retries and metadata --------------------------------------------------------------------------------------

    def _retry(self, what: str, attempt: Callable[[], T]) -> T:
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                self._bootstrap(deadline)
                return attempt()
            except (_RetryableError, kafka.errors.KafkaConnectionError, kafka.errors.NodeNotReadyError) as exc:
                reason: Exception = exc
            except TokenRefused as exc:
                raise ClientError(f"login at {self._servers}: {exc}", ErrorCode.SASL_AUTHENTICATION_FAILED) from exc
            except REFUSALS as exc:
                text = f"{self._servers} refused the login{self._as_user}: {exc}"
                raise ClientError(text, ErrorCode.SASL_AUTHENTICATION_FAILED) from exc
            except kafka.errors.KafkaError as exc:
                if not getattr(exc, "retriable", False):
                    raise ClientError(f"asking {self._servers} for {what} failed: {exc!r}") from exc
                reason = exc
            if time.monotonic() > deadline:
                raise ClientError(
                    f"asking {self._servers} for {what} failed for {self._timeout_ms} ms: {reason!r}{self._hint}"
                )
            logger.info("retrying the request for %s: %r", what, reason)
            self.forget_leaders()
            time.sleep(_RETRY_PAUSE_S)

    def _bootstrap(self, deadline: float) -> None:
        if not self._manager.bootstrapped:
            self._manager.bootstrap(max(1000, int((deadline - time.monotonic()) * 1000)))

    def _wait(self, future: Any) -> Any:
        self._net.poll(timeout_ms=self._timeout_ms, future=future)
        if not future.is_done:
            raise _RetryableError("no answer in time")
        if future.exception is not None:
            raise future.exception
        return future.value

    @staticmethod
    def _check(code: ErrorCode, tp: TopicPartition) -> None:
        if code in _RETRIABLE:
            raise _RetryableError(f"{tp}: {code.name}")
        if code is not ErrorCode.NONE:
            raise ClientError(f"{tp}: {code.name}", code)

    def _refresh(self, names: list[str] | None, sent: Any = None) -> dict[str, list[int]]:
        response = self._wait(self._manager.send(_metadata_request(names)) if sent is None else sent)
        self._manager.cluster.update_metadata(response)  # the manager finds the brokers' addresses there
        topics: dict[str, list[int]] = {}
        for topic in response.topics:
            code = ErrorCode(topic.error_code)
            if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
                continue
            self._check(code, TopicPartition(topic.name, -1))
            if names is None and topic.is_internal:
                continue
            topic_id = topic.topic_id if response.API_VERSION >= 10 and topic.topic_id and topic.topic_id.int else None
            topics[topic.name] = [part.partition_index for part in topic.partitions]
            self._counts[topic.name] = len(topic.partitions), time.monotonic()
            if topic_id is not None:
                self._topic_ids[topic.name] = str(topic_id)
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                self._leaders.pop(tp, None)
                if part.leader_id >= 0:
                    self._leaders[tp] = Leader(part.leader_id, topic_id)
        return topics

    def _by_leader(self, parts: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        wanted = list(parts)
        if any(tp not in self._leaders for tp in wanted):
            partitions = self._refresh(sorted({tp.topic for tp in wanted}))
            absent = sorted(str(tp) for tp in wanted if tp.partition not in partitions.get(tp.topic, ()))
            if absent:
                raise _RetryableError(f"{', '.join(absent)} do not exist or are not known yet")
        grouped: dict[int, list[TopicPartition]] = defaultdict(list)
        for tp in wanted:
            if tp not in self._leaders:
                raise _RetryableError(f"{tp} has no leader")
            grouped[self._leaders[tp].node_id].append(tp)
        return grouped

    def _list_offsets(
        self, node_id: int, timestamps: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, tuple[int, int]]:
        topics: dict[str, list[Any]] = defaultdict(list)
        for tp, timestamp in timestamps.items():
            topics[tp.topic].append(
                ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                    partition_index=tp.partition, current_leader_epoch=-1, timestamp=timestamp
                )
            )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()],
            timeout_ms=self._timeout_ms,
            min_version=2,
        )
        response = self._wait(self._manager.send(request, node_id=node_id))
        listed: dict[TopicPartition, tuple[int, int]] = {}
        for topic in response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                self._check(ErrorCode(part.error_code), tp)
                listed[tp] = (part.offset, part.timestamp)
        return listed


def _metadata_request(names: list[str] | None) -> Any:
    return MetadataRequest(
        topics=None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=False,
        min_version=4,
    )


_shared: dict[tuple[tuple[str, str], ...], Client] = {}


def shared_client(settings: Mapping[str, Any]) -> Client:
    """The process's client for these settings, made at the first call. Not for use from two threads."""
    key = tuple(sorted((name, repr(value)) for name, value in settings.items()))
    client = _shared.get(key)
    if client is None:
        client = _shared[key] = Client(settings)
    return client
