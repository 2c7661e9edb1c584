"""What an append is asked for under: whose batches they are, what their request allows, and what came before them."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from fleetlog._native.batch import BatchHeader, parse_header
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.disk.files import Buffer
from fleetlog.brokers.log.door import Judging
from fleetlog.brokers.log.producers.state import Origin, VerificationGuard
from fleetlog.brokers.log.validation import MAX_EXPLAINED_RECORDS, Rejected
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode


class Terms:
    """What the appends of one request have in common, or those of several requests that are alike.

    ``client``: a client sent them. ``transactional``: the request has a transactional id. ``zstd``: its version
    knows that codec. ``whole_request``: each buffer is what a client sent for a partition, which must be exactly one
    batch. ``guards``: the verified producers' guards by producer id; None where nothing was verified yet, so that an
    append stops before a batch that must be. ``explain``: in batches of at most so many records the bad ones are named;
    the records of such batches are taken off it where ``shares`` says that the partitions of one request have it
    together. ``unpack``: the compressed ones may unpack to so many bytes in all; ``unpacked`` is what they did so far,
    ``work`` what it cost, in bytes that are unpacked in that time.
    ``transaction_version`` 2 on markers: their producer epochs were bumped for them (KIP-890). ``judging``: what must
    be asked of another process is asked through it; None: an append stops before a batch for which something is.
    """

    __slots__ = (
        "client", "explain", "guards", "judging", "origin", "shares", "transaction_version", "transactional", "unpack",
        "unpacked", "whole_request", "work", "zstd",
    )  # fmt: skip

    def __init__(
        self,
        origin: Origin,
        *,
        transactional: bool = True,
        zstd: bool = True,
        whole_request: bool = False,
        guards: Mapping[int, VerificationGuard] | None = None,
        explain: int = MAX_EXPLAINED_RECORDS,
        shares: bool = False,
        unpack: int = sys.maxsize,
        transaction_version: int = 0,
        judging: Judging | None = None,
    ) -> None:
        self.origin = origin
        self.client = origin is Origin.CLIENT
        self.transactional = transactional
        self.zstd = zstd
        self.whole_request = whole_request
        self.guards = guards
        self.explain = explain
        self.shares = shares
        self.unpack = unpack
        self.unpacked = self.work = 0
        self.transaction_version = transaction_version
        self.judging = judging

    @property
    def why_too_large(self) -> str:
        """Of a batch behind those that have reached the bound."""
        return (
            f"the request's batches before this one unpack to {self.unpacked} bytes; "
            "decompressed.request.max.bytes bounds that"
        )

    def unpack_more(self, size: int, work: int) -> None:
        """A batch was unpacked to so many bytes; as many as ``work`` take the time that it took."""
        self.unpacked += size
        self.work += work

    def explained(self, records: int) -> None:
        """A refused batch of so many records was looked at, record by record."""
        if self.shares:
            self.explain = max(0, self.explain - records)


def guards_of(records: Buffer, guard: object | None) -> Mapping[int, VerificationGuard]:
    """The guard that a batch came with, by its producer."""
    if not isinstance(guard, VerificationGuard):
        return {}
    try:
        return {parse_header(records).producer_id: guard}
    except CorruptBatch:
        return {}


def check_request(records: Buffer, terms: Terms) -> BatchHeader | Rejected:
    """The header of what a client sent for a partition: exactly one batch, of a kind that its request allows."""
    if not records:
        return Rejected(ErrorCode.INVALID_RECORD, "no record batch")
    try:
        header = parse_header(records)
    except CorruptBatch as wrong:
        return Rejected(ErrorCode.CORRUPT_MESSAGE, str(wrong))
    if header.size > len(records):
        return Rejected(ErrorCode.CORRUPT_MESSAGE, "the record batch is cut off")
    if header.size < len(records):
        return Rejected(ErrorCode.INVALID_RECORD, "exactly one record batch per partition")
    if header.codec == compression.ZSTD and not terms.zstd:
        return Rejected(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, None)
    if header.is_transactional and not terms.transactional:
        return Rejected(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None)
    return header


COORDINATOR = Terms(Origin.COORDINATOR)
