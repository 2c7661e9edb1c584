"""Old records of tiered topics read from the bucket itself, by URLs that a partition's leader signs.

The leader checks Read on the topic, names chunks of whole batches with their checksums, and the aborted transactions
among them; a task needs no key of the bucket. What cannot be read so is left to a Fetch: the rest of the range, where
brokers give out no URLs, the bucket cannot be reached from here, or a chunk is not what it must be.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa

from fleetlog._native.batch import crc32c
from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.numbers import READ_COMMITTED
from fleetlog.spark.source import decode
from fleetlog.spark.source.offsets import Range
from fleetlog.spark.source.options import ReadOptions
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

SIGNED_BYTES = 64 << 20
"""What is asked for at once: a quota counts it when it is asked for."""
PIECE_BYTES = 8 << 20
"""What a request to the bucket is for, at most, or one chunk. Two of them are in memory at a time."""
ATTEMPTS = 3
"""At one place, each with a new URL."""
AGAIN_S = 0.2
TIMEOUT_S = 10.0
REST_S = 60.0
"""How long this process reads from the brokers, after a bucket could not be reached."""
_OF_LIFETIME = 0.8
"""The part of a URL's lifetime after which another one is asked for."""
_said: set[str] = set()


class _NotRead(Exception):
    """A piece did not come, or is not what it must be; the message says why, and has no URL."""


class _Unreachable(_NotRead):
    """The bucket gave no answer at all."""


class _Piece(NamedTuple):
    """Chunks that lie one behind the other in one object, and the offset behind what counts of each."""

    url: str
    chunks: list[Any]
    ends: list[int]

    @property
    def size(self) -> int:
        return sum(chunk.size_in_bytes for chunk in self.chunks)


class SignedRange(NamedTuple):
    """The leader's answer: what to ask the bucket for, in order of offsets, until which monotonic time."""

    pieces: list[_Piece]
    aborted: list[tuple[int, int]]
    until: float


def read_from_bucket(
    client: Client, item: Range, options: ReadOptions, schema: pa.Schema
) -> Generator[pa.RecordBatch, None, int]:
    """The range's rows as far as they are read from the bucket; the offset from which a Fetch goes on.

    The next piece travels while the caller works on the rows of the last.
    """
    position, failures = item.start, 0
    if time.monotonic() < client.bucket_rests_until:
        return position
    with ThreadPoolExecutor(1, thread_name_prefix="bucket read") as ahead:
        while position < item.end:
            signed = _signed(client, item, position)
            if signed is None or not signed.pieces:
                return position
            began = position
            try:
                for batch, behind in _rows(ahead, signed, began, item, options, schema):
                    position = behind
                    if batch is not None:
                        yield batch
            except _NotRead as problem:
                failures = 1 if position > began else failures + 1
                if failures == ATTEMPTS:
                    if isinstance(problem, _Unreachable):
                        client.bucket_rests_until = time.monotonic() + REST_S
                    logger.warning("%s: read from the brokers from offset %d on: %s", item.tp, position, problem)
                    return position
                time.sleep(AGAIN_S)
            else:
                failures = 0
                if position == began:
                    return position
    return position


def _rows(
    ahead: ThreadPoolExecutor, signed: SignedRange, position: int, item: Range, options: ReadOptions, schema: pa.Schema
) -> Iterator[tuple[pa.RecordBatch | None, int]]:
    """Rows of each chunk, and the offset behind them; to the URLs' end. Raises _NotRead."""
    aborted = decode.AbortedTransactions(signed.aborted if options.isolation == READ_COMMITTED else ())
    coming: Future[bytes] | None = None
    try:
        for number, piece in enumerate(signed.pieces):
            data = memoryview((coming or ahead.submit(_read, piece)).result())
            coming = None
            if number + 1 < len(signed.pieces) and time.monotonic() < signed.until:
                coming = ahead.submit(_read, signed.pieces[number + 1])
            at = 0
            for chunk, end in zip(piece.chunks, piece.ends, strict=True):
                records = bytes(data[at : at + chunk.size_in_bytes])
                at += chunk.size_in_bytes
                if crc32c(records) != chunk.crc:
                    raise _NotRead(f"what the bucket has at {chunk.position} is damaged, its checksum does not hold")
                end = min(end, item.end)
                decoded = decode.decode_rows(
                    records, position, end, aborted=aborted, committed=options.isolation == READ_COMMITTED,
                    headers=options.headers, tp=item.tp,
                )  # fmt: skip
                position = max(position, end)
                yield decode.row_batch(decoded, item.tp, schema) if decoded.rows else None, position
            if coming is None:
                return
    finally:
        if coming is not None:
            coming.cancel()


def _signed(client: Client, item: Range, position: int) -> SignedRange | None:
    """What the leader says of the range from there on; None where it is to be read by Fetch. Waits for a quota."""
    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    while code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        asked = time.monotonic()
        answer = client.sign_segments(item.tp, position, item.end, SIGNED_BYTES)
        if answer is None:
            _say_once("the brokers know no signed URLs, or tiered storage is not finalized: records come from them")
            return None
        code = ErrorCode(answer.error_code)  # the broker reads nothing more from here until the quota allows it
    if code is not ErrorCode.NONE:
        _say_once(f"{item.topic}: records come from the brokers: {code.name} {answer.error_message or ''}")
        return None
    if item.topic_id not in (None, str(answer.topic_id)):
        return None  # a Fetch says what became of it
    pieces: list[_Piece] = []
    for segment in answer.segments:
        if not segment.url.startswith(("https://", "http://")):
            return None
        followers = [chunk.base_offset for chunk in segment.chunks[1:]]
        piece = None
        for chunk, end in zip(segment.chunks, [*followers, segment.end_offset], strict=True):
            if piece is None or piece.size + chunk.size_in_bytes > PIECE_BYTES:
                piece = _Piece(segment.url, [], [])
                pieces.append(piece)
            piece.chunks.append(chunk)
            piece.ends.append(end)
    aborted = [(one.producer_id, one.first_offset) for one in answer.aborted_transactions]
    return SignedRange(pieces, aborted, asked + _OF_LIFETIME * answer.lifetime_ms / 1000)


def _say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        logger.warning("%s", message)


def _read(piece: _Piece) -> bytes:
    """On a thread. Raises _NotRead."""
    first, size = piece.chunks[0].position, piece.size
    request = Request(piece.url, headers={"Range": f"bytes={first}-{first + size - 1}"})
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            data = bytes(answer.read(size)) if answer.status == 206 else b""
            status = answer.status
    except HTTPError as problem:
        problem.close()
        raise _NotRead(f"the bucket answers {problem.code} {problem.reason}") from None
    except (OSError, ValueError) as problem:
        raise _Unreachable(f"no answer from the bucket: {type(problem).__name__}: {problem}") from None
    if len(data) != size:
        raise _NotRead(f"the bucket answers {status} with {len(data)} of {size} bytes")
    return data
