"""Manifests and indexes: there and back, and what is no such object."""

from __future__ import annotations

import uuid
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog._native.batch import crc32c
from fleetlog.brokers.tiering.manifest import (
    BadObject,
    Chunk,
    Manifest,
    ManifestEpoch,
    TieredAborted,
    TieredSegment,
    decode_index,
    decode_manifest,
    encode_index,
    encode_manifest,
    generation_of,
    manifest_name,
)

INT64 = st.integers(0, 2**62)
INT32 = st.integers(0, 2**32 - 1)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    bounds = sorted(draw(st.sets(INT64, max_size=12)))
    segments = tuple(
        TieredSegment(draw(st.uuids()), first, last, draw(INT64), draw(INT32), draw(INT32), draw(INT32), draw(INT64))
        for first, last in zip(bounds[::2], bounds[1::2], strict=False)
    )
    numbers = sorted(draw(st.sets(st.integers(0, 2**31 - 1), max_size=5)))
    starts = sorted(draw(st.lists(INT64, min_size=len(numbers), max_size=len(numbers))))
    epochs = tuple(map(ManifestEpoch, numbers, starts))
    return Manifest(
        draw(st.uuids()), draw(st.integers(0, 2**31 - 1)), draw(INT64), draw(st.integers(-1, 2**31 - 1)),
        draw(st.integers(-1, 2**31 - 1)), draw(st.integers(-1, 2**62)), draw(INT64), draw(INT64), epochs, segments,
    )  # fmt: skip


@given(manifests())
def test_there_and_back(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest), "m") == manifest


@given(manifests(), st.data())
def test_a_changed_byte_or_a_cut_is_named(manifest: Manifest, data: st.DataObject) -> None:
    whole = encode_manifest(manifest)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(damaged), whole[:at]):
        with pytest.raises(BadObject, match=r"^m: "):
            decode_manifest(wrong, "m")


@given(st.binary(max_size=400))
def test_anything_else_is_refused_in_words(data: bytes) -> None:
    sealed = b"FLTM\x00\x01" + data
    for wrong in (data, sealed + crc32c(sealed).to_bytes(4, "big")):
        with suppress(BadObject):
            decode_manifest(wrong, "m")


def test_a_newer_format_says_what_to_do() -> None:
    newer = encode_manifest(Manifest(uuid.UUID(int=1), 0)).replace(b"FLTM\x00\x01", b"FLTM\x00\x02")
    with pytest.raises(BadObject, match="format 2, of which this version of fleetlog knows 1: upgrade it"):
        decode_manifest(newer, "m")


def test_segments_out_of_order_are_refused() -> None:
    first, second = (TieredSegment(uuid.UUID(int=1), start, start + 10, 5, 5, 0, 0, 0) for start in (0, 5))
    with pytest.raises(BadObject, match="segment 5 to 15 lies before 10"):
        decode_manifest(encode_manifest(Manifest(uuid.UUID(int=1), 0, segments=(first, second))), "m")


def test_an_index_finds_chunks() -> None:
    chunks = [Chunk(10, 0, 100, 1, 7), Chunk(20, 100, 50, 2, 9)]
    aborted = [TieredAborted(1, 11, 12, 13)]
    data = encode_index(chunks, aborted)
    index = decode_index(data, "i")
    assert (list(index.chunks), list(index.aborted)) == (chunks, aborted)
    assert [index.at(offset) for offset in (5, 10, 19, 20, 99)] == [0, 0, 0, 1, 1]
    with pytest.raises(BadObject, match="i: a chunk of 20 at 100 follows -1"):
        decode_index(encode_index(list(reversed(chunks)), ()), "i")
    with pytest.raises(BadObject, match="no object of this kind"):
        decode_manifest(data, "i")


def test_names() -> None:
    assert generation_of(manifest_name(12)) == 12
    assert [generation_of(name) for name in ("manifest/12", "manifest/" + "x" * 20, "0.log")] == [-1, -1, -1]
