"""What a partition has in the bucket: its manifest, and the index beside each segment.

A manifest is never replaced: each change is another generation, written only if nobody has written that one, and the
highest counts. It has the chain of leader epochs (which epoch began at which offset) up to its end, and the segments in
order of their offsets. It names what is in the bucket: an object that no manifest names counts for nothing.

A segment's log is cut into chunks of whole batches, each of which is read, verified and cached by itself. The index has
a checksum for each chunk, the manifest one for each index, and its own.

Numbers are big-endian. Both formats begin with four letters and a version, and end with a CRC-32C of all before it.
"""

from __future__ import annotations

import struct
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fleetlog._native.batch import crc32c

FORMAT = 1
MANIFESTS = "manifest/"
"""The folder of a partition's manifests: listing them lists nothing else."""
MOST_BYTES = 64 * 1024 * 1024
"""Of a manifest or an index: some 900,000 segments, or 2,000,000 chunks."""
_MANIFEST, _INDEX = b"FLTM", b"FLTI"
_BEGIN = struct.Struct(">4sH")
_HEAD = struct.Struct(">16siQiiqqqII")
_EPOCH = struct.Struct(">iq")
_SEGMENT = struct.Struct(">16sqqqIIIq")
_COUNTS = struct.Struct(">II")
_CHUNK = struct.Struct(">qqIIq")
_ABORTED = struct.Struct(">qqqq")
_CRC = struct.Struct(">I")


class BadObject(Exception):
    """An object of the bucket is not what it must be: damaged, of another partition, or of a newer version."""


class ManifestEpoch(NamedTuple):
    """A leader epoch, and the first offset that it appended."""

    epoch: int
    start_offset: int


class TieredSegment(NamedTuple):
    """A segment in the bucket: offsets from ``start`` up to ``end`` (not included), sizes in bytes, time in ms."""

    id: uuid.UUID
    start: int
    end: int
    size: int
    index_size: int
    index_crc: int
    aborted: int
    """Aborted transactions in its index."""
    max_timestamp: int

    @property
    def log_name(self) -> str:
        """Of the object with the batches, below the partition's prefix."""
        return f"{self.start:020d}-{self.id.hex}.log"

    @property
    def index_name(self) -> str:
        """Of the object with the chunks and the aborted transactions."""
        return f"{self.start:020d}-{self.id.hex}.index"


class Manifest(NamedTuple):
    """One generation. ``writer`` is the leader: its epoch, broker id and incarnation; ``log_start`` the first offset
    that clients may read."""

    topic_id: uuid.UUID
    partition: int
    generation: int = 0
    leader_epoch: int = -1
    broker_id: int = -1
    incarnation: int = -1
    written_ms: int = 0
    log_start: int = 0
    epochs: tuple[ManifestEpoch, ...] = ()
    segments: tuple[TieredSegment, ...] = ()

    @property
    def end(self) -> int:
        """The offset behind all segments; -1 without any."""
        return self.segments[-1].end if self.segments else -1

    @property
    def size(self) -> int:
        """Bytes of the segments' logs."""
        return sum(segment.size for segment in self.segments)

    @property
    def start(self) -> int:
        """The first offset that can be read from here; -1 without segments."""
        return max(self.log_start, self.segments[0].start) if self.segments else -1

    @property
    def writer(self) -> tuple[int, int]:
        """By which a former leader is told from a later one."""
        return self.leader_epoch, self.incarnation

    def at(self, offset: int) -> int:
        """Index of the first segment that ends behind the offset."""
        return bisect_right(self.segments, offset, key=lambda segment: segment.end)

    def names(self) -> Iterator[str]:
        """Of all objects that it names."""
        for segment in self.segments:
            yield segment.log_name
            yield segment.index_name


def manifest_name(generation: int) -> str:
    """Of the object of a generation, below the partition's prefix."""
    return f"{MANIFESTS}{generation:020d}"


def generation_of(name: str) -> int:
    """Of a manifest's name; -1 if it is another object's."""
    digits = name.removeprefix(MANIFESTS)
    return int(digits) if digits != name and len(digits) == 20 and digits.isdecimal() else -1


def encode_manifest(manifest: Manifest) -> bytes:
    """As it stands in the bucket."""
    head = _HEAD.pack(
        manifest.topic_id.bytes, manifest.partition, manifest.generation, manifest.leader_epoch, manifest.broker_id,
        manifest.incarnation, manifest.written_ms, manifest.log_start, len(manifest.epochs), len(manifest.segments),
    )  # fmt: skip
    rows = [_EPOCH.pack(*entry) for entry in manifest.epochs]
    rows += [_SEGMENT.pack(segment.id.bytes, *segment[1:]) for segment in manifest.segments]
    return _sealed(_MANIFEST, b"".join((head, *rows)))


def decode_manifest(data: bytes, name: str) -> Manifest:
    """The manifest; raises BadObject, which has ``name``."""
    body = _opened(_MANIFEST, data, name)
    if len(body) < _HEAD.size:
        raise BadObject(f"{name}: a manifest is cut off")
    topic, *numbers, epoch_count, segment_count = _HEAD.unpack_from(body)
    at = _HEAD.size
    if len(body) - at != epoch_count * _EPOCH.size + segment_count * _SEGMENT.size:
        raise BadObject(f"{name}: {epoch_count} epochs and {segment_count} segments do not fill {len(body)} bytes")
    behind = at + epoch_count * _EPOCH.size
    epochs = tuple(map(ManifestEpoch._make, _EPOCH.iter_unpack(body[at:behind])))
    segments = tuple(TieredSegment(uuid.UUID(bytes=row[0]), *row[1:]) for row in _SEGMENT.iter_unpack(body[behind:]))
    manifest = Manifest(uuid.UUID(bytes=topic), *numbers)._replace(epochs=epochs, segments=segments)
    wrong = _disorder(manifest)
    if wrong:
        raise BadObject(f"{name}: {wrong}")
    return manifest


def _disorder(manifest: Manifest) -> str:
    """What no leader writes; '' if all is in order."""
    end = 0
    for segment in manifest.segments:
        if segment.start < end or segment.end <= segment.start:
            return f"segment {segment.start} to {segment.end} lies before {end}"
        end = segment.end
    last = ManifestEpoch(-1, -1)
    for entry in manifest.epochs:
        if entry.epoch <= last.epoch or entry.start_offset < max(0, last.start_offset):
            return f"epoch {entry.epoch} at {entry.start_offset} follows {last.epoch} at {last.start_offset}"
        last = entry
    return ""


class Chunk(NamedTuple):
    """Whole batches of a segment: the first offset, and where they lie in the object with the segment's log."""

    base_offset: int
    position: int
    size: int
    crc: int
    max_timestamp: int


class TieredAborted(NamedTuple):
    """An aborted transaction whose marker is in the segment, as the segment's transaction index has it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class SegmentIndex(NamedTuple):
    """What is known of a segment's inside."""

    chunks: tuple[Chunk, ...]
    aborted: tuple[TieredAborted, ...]

    def at(self, offset: int) -> int:
        """Index of the chunk that holds the offset if any does; 0 for those before all."""
        return max(0, bisect_right(self.chunks, offset, key=lambda chunk: chunk.base_offset) - 1)


def encode_index(chunks: Sequence[Chunk], aborted: Sequence[TieredAborted]) -> bytes:
    """As it stands in the bucket."""
    rows = [_CHUNK.pack(*chunk) for chunk in chunks] + [_ABORTED.pack(*entry) for entry in aborted]
    return _sealed(_INDEX, b"".join((_COUNTS.pack(len(chunks), len(aborted)), *rows)))


def decode_index(data: bytes, name: str) -> SegmentIndex:
    """The index; raises BadObject, which has ``name``."""
    body = _opened(_INDEX, data, name)
    if len(body) < _COUNTS.size:
        raise BadObject(f"{name}: an index is cut off")
    chunk_count, aborted_count = _COUNTS.unpack_from(body)
    behind = _COUNTS.size + chunk_count * _CHUNK.size
    if not chunk_count or len(body) != behind + aborted_count * _ABORTED.size:
        raise BadObject(f"{name}: {chunk_count} chunks and {aborted_count} transactions do not fill {len(body)} bytes")
    chunks = tuple(map(Chunk._make, _CHUNK.iter_unpack(body[_COUNTS.size : behind])))
    position, offset = 0, -1
    for chunk in chunks:
        if chunk.position != position or chunk.base_offset <= offset or not chunk.size:
            raise BadObject(f"{name}: a chunk of {chunk.base_offset} at {chunk.position} follows {offset}")
        position, offset = position + chunk.size, chunk.base_offset
    return SegmentIndex(chunks, tuple(map(TieredAborted._make, _ABORTED.iter_unpack(body[behind:]))))


def _sealed(kind: bytes, body: bytes) -> bytes:
    data = _BEGIN.pack(kind, FORMAT) + body
    return data + _CRC.pack(crc32c(data))


def _opened(kind: bytes, data: bytes, name: str) -> bytes:
    """What is between the version and the checksum. The version comes first: a newer one may end otherwise."""
    if len(data) > MOST_BYTES:
        raise BadObject(f"{name}: {len(data)} bytes, of which {MOST_BYTES} are read at most")
    if len(data) < _BEGIN.size + _CRC.size or data[:4] != kind:
        raise BadObject(f"{name}: no object of this kind, or cut off after {len(data)} bytes")
    version = _BEGIN.unpack_from(data)[1]
    if version != FORMAT:
        raise BadObject(f"{name}: format {version}, of which this version of fleetlog knows {FORMAT}: upgrade it")
    if crc32c(data[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
        raise BadObject(f"{name}: damaged, its checksum does not hold")
    return bytes(data[_BEGIN.size : -_CRC.size])
