"""The decoded messages of the wire kernel: plain tuples, the same for both twins."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Slice(Protocol):
    """A run of bytes in a file, sent unchanged."""

    position: int
    length: int

    def fileno(self) -> int:
        """The open file."""

    def release(self) -> None:
        """Release the slice: it is not sent any more."""


class NodeEndpoint(NamedTuple):
    """A broker's address: in responses that name another leader (KIP-951), and in Metadata."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class RequestHeader(NamedTuple):
    """The header of a request. ``body`` is the position of the body in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body: int


class ProducePart(NamedTuple):
    """One partition of a Produce; ``records`` is a view into the frame, None for null."""

    topic: str | None
    topic_id: uuid.UUID | None
    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    """A Produce, its partitions in one list in the order of the request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    parts: list[ProducePart]


class ProduceRun(NamedTuple):
    """Consecutive Produce requests of one batch each, which differ only in partition and records.

    ``transactional_id`` is that of all of them, None if they have none.

    ``parts`` are the partitions, ``batches`` what goes to each of them, in order. For each request ``groups`` has the
    number of its partition, ``correlation_ids`` the id of its response, ``ends`` the end of its frame.
    """

    version: int
    acks: int
    timeout_ms: int
    transactional_id: str | None
    parts: list[ProducePart]
    batches: list[list[memoryview]]
    groups: list[int]
    correlation_ids: list[int]
    ends: list[int]


class ProduceOutcome(NamedTuple):
    """One partition's answer. ``current_leader`` is (leader id, leader epoch)."""

    error: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None


class FetchPart(NamedTuple):
    """One partition of a Fetch."""

    topic: str | None
    topic_id: uuid.UUID | None
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int
    high_watermark: int


class FetchRequest(NamedTuple):
    """A Fetch; ``parts`` in the order of the request, which decides the partitions that get bytes first (KIP-74)."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    parts: list[FetchPart]
    forgotten: list[tuple[str | uuid.UUID, list[int]]]
    rack_id: str
    cluster_id: str | None


LARGEST_FETCH_RUN = 1024
"""Bytes of a Fetch that is executed where it was received: what it keeps while it waits is small."""


class FetchRun(NamedTuple):
    """A Fetch that lies where it was received: a run of one."""

    request: FetchRequest
    version: int
    correlation_ids: list[int]
    ends: list[int]


class HeldBytes(bytes):
    """Bytes in memory that stand where slices of files do."""

    __slots__ = ()

    def release(self) -> None:
        """Nothing is open."""


class FetchOutcome(NamedTuple):
    """One partition's answer. ``aborted`` is None for read_uncommitted; ``slices`` are sent unchanged."""

    error: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    slices: Sequence[Slice | HeldBytes] = ()
    size: int = 0
    diverging: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    preferred_read_replica: int = -1


class FetchAnswerPart(NamedTuple):
    """One partition of a Fetch response as a follower reads it; ``records`` is a view into the body.

    ``diverging`` is (epoch, end offset), ``current_leader`` (leader id, leader epoch); None where the answer has none.
    """

    topic_id: uuid.UUID
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    current_leader: tuple[int, int] | None
    preferred_read_replica: int
    records: memoryview


class FetchAnswer(NamedTuple):
    """A Fetch response as a follower reads it; ``error`` is that of the whole request."""

    throttle_ms: int
    error: int
    session_id: int
    parts: list[FetchAnswerPart]


class MetadataPartition(NamedTuple):
    """One partition in a Metadata answer."""

    error: int
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    offline: Sequence[int] = ()
