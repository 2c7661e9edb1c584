"""Every codec: round trips, the framings of other writers, and refusal before memory is spent."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog.wire import compression
from fleetlog.wire.compression import CodecError
from tests.support.draw import examples

ALL = sorted(compression.NAMES)
REAL = [codec for codec in ALL if codec != compression.NONE]
PAYLOADS = [b"", b"x", b"hello " * 1000, bytes(range(256)) * 700, b"\x00" * 300_000]


@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("payload", PAYLOADS, ids=len)
def test_round_trip_at_the_exact_limit(codec, payload):
    packed = compression.compress(codec, payload)
    assert compression.decompress(codec, packed, len(payload)) == payload
    assert compression.decompress(codec, memoryview(bytearray(packed)), 10_000_000) == payload


@pytest.mark.parametrize("codec", ALL)
def test_one_byte_over_the_limit_is_refused(codec):
    payload = b"abcdefghij" * 1000
    with pytest.raises(CodecError, match="beyond"):
        compression.decompress(codec, compression.compress(codec, payload), len(payload) - 1)


@pytest.mark.parametrize("codec", REAL)
def test_a_bomb_costs_no_more_than_the_limit(codec):
    bomb = compression.compress(codec, b"\x00" * 200_000_000 if codec != compression.SNAPPY else b"\x00" * 20_000_000)
    limit = 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            compression.decompress(codec, bomb, limit)
        assert tracemalloc.get_traced_memory()[1] < 6 * limit + len(bomb)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", REAL)
def test_every_cut_is_refused(codec):
    packed = compression.compress(codec, b"some payload that is repeated, " * 20)
    whole = compression.decompress(codec, packed, 10_000)
    for end in range(len(packed)):
        try:
            got = compression.decompress(codec, packed[:end], 10_000)
        except CodecError:
            continue
        # Only xerial can end early without telling: at a block's border.
        assert codec == compression.SNAPPY, end
        assert len(got) < len(whole)


@pytest.mark.parametrize("codec", REAL)
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_damage_gives_a_result_or_a_codec_error(codec, data):
    packed = bytearray(compression.compress(codec, b"The quick brown fox. " * 30))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(compression.decompress(codec, bytes(packed), 5_000)) <= 5_000
    except CodecError:
        pass


@pytest.mark.parametrize("codec", REAL)
@given(noise=st.binary(max_size=200))
def test_noise_is_never_anything_but_a_codec_error(codec, noise):
    try:
        compression.decompress(codec, noise, 1_000)
    except CodecError:
        pass


def test_unknown_codec():
    with pytest.raises(CodecError, match="unknown"):
        compression.decompress(5, b"", 10)
    with pytest.raises(CodecError, match="unknown"):
        compression.compress(7, b"")


def test_raw_snappy_as_librdkafka_writes_it():
    assert compression.decompress(compression.SNAPPY, snappy.compress(b"abc" * 99), 297) == b"abc" * 99


def test_snappy_that_declares_more_than_it_can_hold():
    lie = b"\xff\xff\xff\xff\x07" + b"\x00a"
    with pytest.raises(CodecError, match="cannot hold"):
        compression.decompress(compression.SNAPPY, lie, 1 << 31)


def test_xerial_block_lengths_are_checked():
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for length in (-1, 5, 1 << 30):
        with pytest.raises(CodecError, match="does not fit"):
            compression.decompress(compression.SNAPPY, head + struct.pack(">i", length), 100)


def test_several_gzip_members_and_zstd_frames():
    gzip = compression.compress(compression.GZIP, b"one") + compression.compress(compression.GZIP, b"two")
    assert compression.decompress(compression.GZIP, gzip, 6) == b"onetwo"
    with pytest.raises(CodecError):
        compression.decompress(compression.GZIP, gzip, 5)
    zstd = zstandard.ZstdCompressor().compress(b"one") + zstandard.ZstdCompressor(write_checksum=True).compress(b"two")
    assert compression.decompress(compression.ZSTD, zstd, 6) == b"onetwo"
    with pytest.raises(CodecError):
        compression.decompress(compression.ZSTD, zstd, 5)


@pytest.mark.parametrize(("codec", "most", "what"), [
    (compression.GZIP, compression._MAX_GZIP_MEMBERS, "members"),
    (compression.SNAPPY, compression._MAX_XERIAL_BLOCKS, "blocks"),
    (compression.ZSTD, compression._MAX_ZSTD_FRAMES, "frames"),
])  # fmt: skip
def test_pieces_that_hold_little_are_bounded_by_their_number(codec, most, what):
    begin, piece = b"", compression.compress(codec, b"x")
    if codec == compression.SNAPPY:
        begin, piece = compression._XERIAL_HEADER, piece[len(compression._XERIAL_HEADER) :]
    assert compression.decompress(codec, begin + piece * most, most) == b"x" * most
    with pytest.raises(CodecError, match=f"more than {most} {what}"):
        compression.decompress(codec, begin + piece * (most + 1), 2 * most)


@pytest.mark.parametrize("codec", REAL)
def test_what_comes_out_is_held_once(codec):
    size = 20_000_000
    packed = compression.compress(codec, b"\x00" * size)
    tracemalloc.start()
    try:
        assert len(compression.decompress(codec, packed, size)) == size
        assert tracemalloc.get_traced_memory()[1] < 1.2 * size + 2 * len(packed) + 1_000_000
    finally:
        tracemalloc.stop()


def test_zstd_stream_without_content_size():
    stream = zstandard.ZstdCompressor().compressobj()
    packed = stream.compress(b"z" * 300_000) + stream.flush()
    assert zstandard.frame_content_size(packed) == -1
    assert compression.decompress(compression.ZSTD, packed, 300_000) == b"z" * 300_000


def test_zstd_window_larger_than_the_cap_is_refused():
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = stream.compress(b"z" * 300_000) + stream.flush()
    with pytest.raises(CodecError):
        compression.decompress(compression.ZSTD, packed, 1_000_000)


def test_lz4_with_linked_blocks_and_checksums():
    packed = lz4.frame.compress(b"linked" * 50_000, block_linked=True, content_checksum=True, block_checksum=True)
    assert compression.decompress(compression.LZ4, packed, 300_000) == b"linked" * 50_000


def test_zlib_that_is_not_gzip_is_refused():
    with pytest.raises(CodecError):
        compression.decompress(compression.GZIP, zlib.compress(b"no"), 100)


@pytest.mark.parametrize(
    ("codec", "levels"), [("gzip", (1, 9)), ("lz4", (1, 3, 17)), ("zstd", (-131_072, 1, 22))], ids=lambda one: one
)
def test_a_higher_level_compresses_better(codec, levels):
    payload = b"".join(b"record %d of %d\n" % (number * 7919 % 1000, number) for number in range(3000))
    sizes = []
    for level in levels:
        packed = compression.compress(compression.CODES[codec], payload, level)
        assert compression.decompress(compression.CODES[codec], packed, len(payload)) == payload
        sizes.append(len(packed))
    assert sizes[0] >= sizes[-1], "a higher level takes more time and fewer bytes"
    assert len(set(sizes)) > 1, "the level has no effect"


def test_a_snappy_block_holds_what_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits are checked by what a block declares, whatever the library makes of it."""
    data = snappy.compress(bytes(100))
    monkeypatch.setattr(compression.snappy, "decompress", lambda _data: bytes(101))
    with pytest.raises(CodecError, match="says"):
        compression.decompress(compression.SNAPPY, data, 1000)
