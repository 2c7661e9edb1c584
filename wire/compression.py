"""Kafka's four codecs for record batches, each bounded before it inflates.

A peer chooses both the compressed bytes and the sizes written in front of them, so no function here trusts a declared
size: it is compared with the caller's limit first, and with what so few bytes can possibly hold, and the output is
produced under that limit. A few kilobytes can therefore never cost more memory than the caller allowed.

Framing, per codec, as Kafka's clients write it: gzip members; snappy either raw (librdkafka) or in the xerial stream
frame (Java); one lz4 frame; zstd frames.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import lz4.frame
import snappy
import zstandard

from fleetlog.wire.compression_codecs import CODES, GZIP, LZ4, NAMES, NONE, SNAPPY, ZSTD

Buffer = bytes | bytearray | memoryview

__all__ = ["CODES", "GZIP", "LZ4", "NAMES", "NONE", "SNAPPY", "ZSTD", "Buffer", "CodecError", "compress", "decompress"]

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = struct.Struct(">i")

# The densest snappy element is a copy of 64 bytes written in 3, so more than 22 times the input is impossible.
_SNAPPY_MAX_RATIO = 22
_ZSTD_MIN_WINDOW_BYTES = 8 * 1024 * 1024
_ZSTD_MAX_WINDOW_BYTES = 128 * 1024 * 1024
_ZSTD_SKIPPABLE_FIRST = 0x184D2A50
_ZSTD_SKIPPABLE_LAST = 0x184D2A5F
_ZSTD_RLE_BLOCK = 1
_CHUNK_BYTES = 256 * 1024

# Each has a cost of its own, however little it holds; clients write one member or frame, and blocks of 32 KiB.
_MAX_GZIP_MEMBERS = 1_000
_MAX_XERIAL_BLOCKS = 50_000
_MAX_ZSTD_FRAMES = 20_000
_MAX_ZSTD_BLOCKS = 100_000
_MEMBER_WORK, _BLOCK_WORK, _FRAME_WORK, _INNER_BLOCK_WORK = 10_000, 1_300, 1_400, 300
_FED_BYTES = 64 * 1024


class CodecError(ValueError):
    """The payload is not valid for its codec, or would inflate beyond the limit."""


def compress(codec: int, payload: bytes, level: int | None = None) -> bytes:
    """Compress ``payload`` the way Kafka's Java client frames it. Raises CodecError for an unknown codec.

    ``level`` is the codec's own (KIP-390: gzip 1-9, lz4 1-17, zstd up to 22), None for the default.
    """
    try:
        function = _COMPRESSORS[codec]
    except KeyError:
        raise CodecError(f"unknown compression codec {codec}") from None
    return function(payload, level)


def decompress(codec: int, payload: Buffer, limit: int, work: list[int] | None = None) -> bytes | bytearray:
    """Inflate ``payload`` to at most ``limit`` bytes.

    To ``work[0]`` is added what pieces that hold little cost beside their bytes, in bytes that inflate in that time.
    Raises CodecError when the output would pass the limit, when the payload is damaged or cut short, and for an
    unknown codec. Never allocates more than about ``limit`` bytes for the output.
    """
    try:
        function = _DECOMPRESSORS[codec]
    except KeyError:
        raise CodecError(f"unknown compression codec {codec}") from None
    return function(payload, limit, [0] if work is None else work)


def _too_large(codec: int, limit: int) -> CodecError:
    return CodecError(f"{NAMES[codec]} payload inflates beyond {limit} bytes")


def _too_many(codec: int, pieces: str, most: int) -> CodecError:
    return CodecError(f"{NAMES[codec]} payload of more than {most} {pieces}")


def _plain_compress(payload: bytes, _level: int | None) -> bytes:
    return payload


def _plain_decompress(payload: Buffer, limit: int, _work: list[int]) -> bytes:
    if len(payload) > limit:
        raise _too_large(NONE, limit)
    return bytes(payload)


def _gzip_compress(payload: bytes, level: int | None) -> bytes:
    deflater = zlib.compressobj(-1 if level is None else level, wbits=31)
    return deflater.compress(payload) + deflater.flush()


def _gzip_decompress(payload: Buffer, limit: int, work: list[int]) -> bytes | bytearray:
    inflated, members = bytearray(), 1
    view, at = memoryview(payload), 0
    rest: Buffer = b""
    inflater = zlib.decompressobj(wbits=31)
    while True:
        if not rest:
            rest = view[at : at + _FED_BYTES]  # what is not used of it is copied each time
            at += len(rest)
        try:
            part = inflater.decompress(rest, min(limit - len(inflated) + 1, _CHUNK_BYTES))
        except zlib.error as wrong:
            raise CodecError(f"damaged gzip payload: {wrong}") from wrong
        rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
        fed = not rest and at >= len(view)
        if inflater.eof and fed and not inflated and len(part) <= limit:
            return part
        inflated += part
        if len(inflated) > limit:
            raise _too_large(GZIP, limit)
        if inflater.eof:
            if fed:
                return inflated
            members += 1
            work[0] += _MEMBER_WORK
            if members > _MAX_GZIP_MEMBERS:
                raise _too_many(GZIP, "members", _MAX_GZIP_MEMBERS)
            inflater = zlib.decompressobj(wbits=31)
        elif fed and not part:
            raise CodecError("gzip payload is cut short")


def _snappy_compress(payload: bytes, _level: int | None) -> bytes:
    parts = [_XERIAL_HEADER]
    view = memoryview(payload)
    for start in range(0, len(payload), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(bytes(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _snappy_decompress(payload: Buffer, limit: int, work: list[int]) -> bytes | bytearray:
    data = bytes(payload)
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(data, limit)
    inflated, blocks = bytearray(), 0
    position = len(_XERIAL_HEADER)
    if len(data) < position:
        raise CodecError("xerial snappy header is cut short")
    while position < len(data):
        if len(data) - position < _INT32.size:
            raise CodecError("xerial snappy block length is cut short")
        (length,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if length < 0 or length > len(data) - position:
            raise CodecError(f"xerial snappy block of {length} bytes does not fit")
        inflated += _snappy_block(data[position : position + length], limit - len(inflated))
        position += length
        blocks += 1
        work[0] += _BLOCK_WORK
        if blocks > _MAX_XERIAL_BLOCKS:
            raise _too_many(SNAPPY, "blocks", _MAX_XERIAL_BLOCKS)
    return inflated


def _snappy_block(data: bytes, limit: int) -> bytes:
    declared = _snappy_declared_size(data)
    if declared > limit:
        raise _too_large(SNAPPY, limit)
    if declared > _SNAPPY_MAX_RATIO * len(data):
        raise CodecError(f"snappy block of {len(data)} bytes cannot hold {declared}")
    try:
        inflated: bytes = snappy.decompress(data)
    except Exception as wrong:  # the library has several names for the same thing across versions
        raise CodecError(f"damaged snappy payload: {wrong or type(wrong).__name__}") from wrong
    if len(inflated) != declared:
        raise CodecError("snappy payload is shorter than it says")
    return inflated


def _snappy_declared_size(data: bytes) -> int:
    size = 0
    for index, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if size >= 1 << 32:
                break
            return size
    raise CodecError("snappy length is not a 32-bit varint")


def _lz4_compress(payload: bytes, level: int | None) -> bytes:
    # Kafka's reader wants independent blocks and no content size; 64 KiB blocks is what its clients use.
    # A level means lz4's slow algorithm, as Kafka's Java library takes it; that has the levels 3 to 12.
    chosen = 0 if level is None else max(lz4.frame.COMPRESSIONLEVEL_MINHC, level)
    compressed: bytes = lz4.frame.compress(
        payload,
        compression_level=chosen,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return compressed


def _lz4_decompress(payload: Buffer, limit: int, _work: list[int]) -> bytes | bytearray:
    inflater = lz4.frame.LZ4FrameDecompressor()
    inflated = bytearray()
    rest: Buffer = payload
    try:
        while not inflater.eof:
            part: bytes = inflater.decompress(rest, max_length=min(limit - len(inflated) + 1, _CHUNK_BYTES))
            rest = b""
            if inflater.eof and not inflated and len(part) <= limit:
                return part
            inflated += part
            if len(inflated) > limit:
                raise _too_large(LZ4, limit)
            if not inflater.eof and inflater.needs_input:
                raise CodecError("lz4 payload is cut short")
    except (RuntimeError, ValueError, EOFError) as wrong:
        if isinstance(wrong, CodecError):
            raise
        raise CodecError(f"damaged lz4 payload: {wrong}") from wrong
    return inflated


def _zstd_compress(payload: bytes, level: int | None) -> bytes:
    return zstandard.ZstdCompressor(level=3 if level is None else level).compress(payload)


def _zstd_decompress(payload: Buffer, limit: int, work: list[int]) -> bytes | bytearray:
    # A frame may name a window that the decoder has to hold in memory: limit it to what the output may need.
    window = min(max(limit, _ZSTD_MIN_WINDOW_BYTES), _ZSTD_MAX_WINDOW_BYTES)
    inflater = zstandard.ZstdDecompressor(max_window_size=1 << (window - 1).bit_length())
    inflated = bytearray()
    try:
        declared = _zstd_check_frames(payload, work)
        if declared > limit:
            raise _too_large(ZSTD, limit)
        with inflater.stream_reader(payload, read_across_frames=True) as reader:
            while part := reader.read(min(limit - len(inflated) + 1, _CHUNK_BYTES)):
                inflated += part
                if len(inflated) > limit:
                    raise _too_large(ZSTD, limit)
    except zstandard.ZstdError as wrong:
        raise CodecError(f"damaged zstd payload: {wrong}") from wrong
    return inflated


def _zstd_check_frames(data: Buffer, work: list[int]) -> int:
    """Walk the block headers of all frames (RFC 8878), because the library's reader accepts a cut frame.

    Returns the sum of the content sizes that the frames declare.
    """
    declared = frames = blocks = 0
    position = 0
    if not len(data):
        raise CodecError("zstd payload is empty")
    while position < len(data):
        frames += 1
        work[0] += _FRAME_WORK
        if frames > _MAX_ZSTD_FRAMES:
            raise _too_many(ZSTD, "frames", _MAX_ZSTD_FRAMES)
        head = bytes(data[position : position + 18])
        if len(head) >= 8 and _ZSTD_SKIPPABLE_FIRST <= int.from_bytes(head[:4], "little") <= _ZSTD_SKIPPABLE_LAST:
            position += 8 + int.from_bytes(head[4:8], "little")
            continue
        declared += max(0, zstandard.frame_content_size(head))
        has_checksum = zstandard.get_frame_parameters(head).has_checksum
        position += zstandard.frame_header_size(head)
        last = False
        while not last:
            if position + 3 > len(data):
                raise CodecError("zstd payload is cut short")
            blocks += 1
            work[0] += _INNER_BLOCK_WORK
            if blocks > _MAX_ZSTD_BLOCKS:
                raise _too_many(ZSTD, "blocks", _MAX_ZSTD_BLOCKS)
            block = int.from_bytes(data[position : position + 3], "little")
            last = bool(block & 1)
            position += 3 + (1 if (block >> 1) & 3 == _ZSTD_RLE_BLOCK else block >> 3)
        position += 4 if has_checksum else 0
    if position != len(data):
        raise CodecError("zstd payload is cut short")
    return declared


_COMPRESSORS: dict[int, Callable[[bytes, int | None], bytes]] = {
    NONE: _plain_compress,
    GZIP: _gzip_compress,
    SNAPPY: _snappy_compress,
    LZ4: _lz4_compress,
    ZSTD: _zstd_compress,
}
_DECOMPRESSORS: dict[int, Callable[[Buffer, int, list[int]], bytes | bytearray]] = {
    NONE: _plain_decompress,
    GZIP: _gzip_decompress,
    SNAPPY: _snappy_decompress,
    LZ4: _lz4_decompress,
    ZSTD: _zstd_decompress,
}
