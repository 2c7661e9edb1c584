"""Replays a partition of an internal topic into a shard, in slices that do not block the loop."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from fleetlog._native.batch import BatchHeader, decode_records, scan, validate_batch
from fleetlog.brokers.coordinators.ports import LogPort, LoopPort
from fleetlog.brokers.model import Clock
from fleetlog.txn.commands import CoordinatorRecord, Now, Shard
from fleetlog.wire.compression import decompress

READ_BYTES = 1 << 20
RECORDS_PER_SLICE = 2_000
SLICE_MS = 5
MAX_DECOMPRESSED_BYTES = 64 << 20
_CONTROL_KEY = struct.Struct(">hh")
_ABORT, _COMMIT = 0, 1


class Loader:
    """Reads a log from its start to its end at election. Calls ``on_done(None)`` or ``on_done(error)`` at the end."""

    def __init__(
        self,
        log: LogPort,
        shard: Shard,
        loop: LoopPort,
        clock: Clock,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        self._log = log
        self._shard = shard
        self._loop = loop
        self._clock = clock
        self._on_done = on_done
        self._cancelled = False
        self.end_offset = log.log_end_offset
        self.records = 0
        self._steps = self._replay()

    def start(self) -> None:
        """Start in the next iteration of the loop."""
        self._loop.call_soon(self._slice)

    def cancel(self) -> None:
        """Stop without a callback."""
        self._cancelled = True

    def _slice(self) -> None:
        if self._cancelled:
            return
        deadline_ms = self._clock.mono_ms() + SLICE_MS
        try:
            for count, _ in enumerate(self._steps, 1):
                if count >= RECORDS_PER_SLICE or self._clock.mono_ms() >= deadline_ms:
                    self._loop.call_soon(self._slice)
                    return
        except Exception as error:
            # An error of the log or the shard fails this partition only.
            self._on_done(error)
            return
        self._on_done(None)

    def _now(self) -> Now:
        return Now(self._clock.wall_ms(), self._clock.mono_ms())

    def _replay(self) -> Iterator[None]:
        offset = self._log.log_start_offset
        while offset < self.end_offset:
            result = self._log.reader.read(offset, READ_BYTES, end_offset=self.end_offset)
            chunks = []
            for piece in result.slices:
                chunks.append(piece.read())
                piece.release()
            run = b"".join(chunks)
            if result.next_offset <= offset:  # an empty read alone is no error: compaction leaves gaps
                raise LoadError(f"nothing to read at offset {offset}, although the log ends at {self.end_offset}")
            yield
            for position, header in scan(run):
                yield from self._batch(run, position, header, offset)
            offset = result.next_offset

    def _batch(self, run: bytes, position: int, header: BatchHeader, from_offset: int) -> Iterator[None]:
        validate_batch(run, position)
        payload: bytes | bytearray | memoryview = memoryview(run)[position + 61 : position + header.size]
        if header.codec:
            payload = decompress(header.codec, payload, MAX_DECOMPRESSED_BYTES)
        producer = (header.producer_id, header.producer_epoch) if header.is_transactional else None
        for record in decode_records(payload, header):
            if record.offset < from_offset or record.offset >= self.end_offset:
                continue
            self.records += 1
            if header.is_control:
                self._control(record.key, header)
            elif record.key is not None:
                self._shard.apply(CoordinatorRecord(record.key, record.value), producer, self._now())
            yield

    def _control(self, key: bytes | None, header: BatchHeader) -> None:
        if key is None or len(key) < _CONTROL_KEY.size:
            raise LoadError("a control record without a type")
        kind = _CONTROL_KEY.unpack_from(key)[1]
        if kind in (_ABORT, _COMMIT):
            self._shard.apply_marker(header.producer_id, header.producer_epoch, kind == _COMMIT, self._now())


class LoadError(Exception):
    """The partition of the internal topic cannot be replayed."""
