"""The joined pieces of a long message equal the library's encoding."""

from __future__ import annotations

import random

import pytest

import fleetlog.wire.messages as m
from fleetlog.wire.pieces import PIECE_ELEMENTS, is_long, pieces
from tests.support.message_defaults import assert_defaults_untouched
from tests.support.samples import ALL_VERSIONS, response


@pytest.mark.parametrize("size", [2, 10])
def test_all_answers_in_pieces_are_what_the_library_encodes(size: int) -> None:
    rng = random.Random(20_261_122)
    for key, version in ALL_VERSIONS:
        sample = response(key, version, rng, size)
        assert b"".join(pieces(sample, version)) == m.encode_response(sample, key, version), (key, version)
    assert_defaults_untouched()


def test_a_long_answer_comes_in_pieces_of_some_dozens_of_elements() -> None:
    row = m.DeleteTopicsResponse.DeletableTopicResult
    rows = [row(version=6, name=f"topic-{i}", topic_id=None, error_code=3, error_message=None) for i in range(10_000)]
    answer = m.DeleteTopicsResponse(version=6, responses=rows)
    assert is_long(answer, 6)
    found = list(pieces(answer, 6))
    assert len(found) >= 10_000 // PIECE_ELEMENTS
    assert max(map(len, found)) < 100 * PIECE_ELEMENTS
    assert b"".join(found) == m.encode_response(answer, 20, 6)


def test_elements_of_one_long_element_come_in_pieces_too() -> None:
    topic = m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    ends = [topic.EpochEndOffset(partition=i, error_code=0, leader_epoch=1, end_offset=i) for i in range(5_000)]
    answer = m.OffsetForLeaderEpochResponse(version=4, topics=[topic(topic="t", partitions=ends)])
    assert is_long(answer, 4)
    assert len(list(pieces(answer, 4))) >= 5_000 // PIECE_ELEMENTS
    assert b"".join(pieces(answer, 4)) == m.encode_response(answer, 23, 4)


def test_elements_three_arrays_deep_count() -> None:
    marker = m.WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic = marker.WritableTxnMarkerTopicResult
    partitions = [topic.WritableTxnMarkerPartitionResult(partition_index=i, error_code=0) for i in range(5_000)]
    answer = m.WriteTxnMarkersResponse(
        version=1, markers=[marker(producer_id=1, topics=[topic(name="t", partitions=partitions)])]
    )
    assert is_long(answer, 1)
    found = list(pieces(answer, 1))
    assert len(found) >= 5_000 // PIECE_ELEMENTS
    assert b"".join(found) == m.encode_response(answer, 27, 1)


def test_a_short_answer_is_encoded_in_one_go() -> None:
    assert not is_long(m.HeartbeatResponse(version=4, error_code=0), 4)
    assert not is_long(m.DeleteTopicsResponse(version=6, responses=[]), 6)
