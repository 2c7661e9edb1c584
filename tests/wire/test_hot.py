"""The hot codecs against the library: equal content from the same bytes, equal bytes from the same content."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.wire import hot
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from tests.support.samples import request

PRODUCE_VERSIONS = range(3, APIS[0].max_version + 1)
FETCH_VERSIONS = range(4, APIS[1].max_version + 1)
MIN_BYTES = 40


class Piece:
    """A file slice whose content the test knows."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.length = len(data)
        self.released = False

    def fileno(self) -> int:
        raise AssertionError("this must not be sent")

    def release(self) -> None:
        self.released = True


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_requests_decode_as_the_library_says(version: int) -> None:
    rng = random.Random(version)
    for _ in range(100):
        message = request(0, version, rng)
        found = hot.decode_produce(version, memoryview(bytes(message.encode(version=version))))
        assert (found.transactional_id, found.acks, found.timeout_ms) == (
            message.transactional_id, message.acks, message.timeout_ms,
        )  # fmt: skip
        expected = [
            (topic.topic_id if version >= 13 else topic.name, part.index, part.records)
            for topic in message.topic_data
            for part in topic.partition_data
        ]
        assert [
            (p.topic_id if version >= 13 else p.topic, p.partition, None if p.records is None else bytes(p.records))
            for p in found.parts
        ] == expected


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_requests_decode_as_the_library_says(version: int) -> None:
    rng = random.Random(version)
    for _ in range(100):
        body = bytes(request(1, version, rng).encode(version=version))
        reference = m.decode_request(1, version, memoryview(body))
        found = hot.decode_fetch(version, memoryview(body))
        state = reference.replica_state
        assert found.replica_id == (reference.replica_id if version < 15 else state.replica_id if state else -1)
        assert found.replica_epoch == (state.replica_epoch if state else -1)
        for name in ("max_wait_ms", "min_bytes", "max_bytes", "isolation_level", "session_id", "session_epoch"):
            assert getattr(found, name) == getattr(reference, name), name
        assert (found.rack_id, found.cluster_id) == (reference.rack_id, reference.cluster_id)
        expected = [
            (
                topic.topic_id or uuid.UUID(int=0) if version >= 13 else topic.topic, part.partition,
                part.current_leader_epoch, part.fetch_offset, part.last_fetched_epoch, part.log_start_offset,
                part.partition_max_bytes, part.high_watermark,
            )
            for topic in reference.topics
            for part in topic.partitions
        ]  # fmt: skip
        assert [(p.topic_id if version >= 13 else p.topic, *p[2:]) for p in found.parts] == expected
        assert [indexes for _, indexes in found.forgotten] == [t.partitions for t in reference.forgotten_topics_data]


def test_commits_decode_as_the_library_says() -> None:
    rng = random.Random(3)
    for count in (0, 1, 2, 500):
        message = request(12003, 0, rng)
        member = m.CommitBatchRequest.BatchMember
        named = [(rng.randrange(1 << 40), rng.randrange(1 << 15)) for _ in range(count)]
        message.winners = [member(version=0, producer_id=first, producer_epoch=second) for first, second in named]
        found = hot.decode_commit_batch(0, memoryview(bytes(message.encode(version=0))))
        for name in ("sink_id", "producer_id", "producer_epoch", "query_id", "batch_id", "digest"):
            assert getattr(found, name) == getattr(message, name), name
        assert found.winners == named


def test_a_winner_with_tagged_fields_is_read() -> None:
    message = request(12003, 0, random.Random(3))
    message.winners = [m.CommitBatchRequest.BatchMember(version=0, producer_id=9, producer_epoch=n) for n in range(3)]
    body = bytes(message.encode(version=0))
    second = len(body) - 1 - 2 * 11
    tagged = body[: second + 10] + b"\x01\x63\x03abc" + body[second + 11 :]
    assert hot.decode_commit_batch(0, memoryview(tagged)).winners == [(9, 0), (9, 1), (9, 2)]


@pytest.mark.parametrize(
    ("key", "decode"), [(0, hot.decode_produce), (1, hot.decode_fetch), (12003, hot.decode_commit_batch)]
)
def test_mutated_bytes_are_taken_or_refused_as_the_bounded_decoder_does(key: int, decode: Any) -> None:
    for version in range(APIS[key].lowest, APIS[key].max_version + 1):
        rng = random.Random(version)
        agreed = 0
        for _ in range(400):
            body = bytearray(request(key, version, rng).encode(version=version))
            for _ in range(rng.randrange(3)):
                body[rng.randrange(len(body))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            data = memoryview(bytes(body[: rng.randrange(len(body) + 1)] if rng.random() < 0.2 else body))
            try:
                m.decode_request(key, version, data)
                reference = True
            except m.MalformedRequest:
                reference = False
            try:
                decode(version, data)
                found = True
            except m.MalformedRequest:
                found = False
            assert found == reference, (version, bytes(data).hex())
            agreed += reference
        assert 0 < agreed < 400, "the mutations must give both outcomes"


def _topics(version: int, first_id_version: int) -> list[tuple[str | None, uuid.UUID | None]]:
    if version >= first_id_version:
        return [(None, uuid.UUID(int=5)), (None, uuid.UUID(int=6))]
    return [("first", None), ("zweites-ä", None)]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_answers_have_the_librarys_bytes(version: int) -> None:
    rng = random.Random(version)
    for _ in range(50):
        pairs: list[tuple[hot.ProducePart, hot.ProduceOutcome]] = []
        topics: list[Any] = []
        response = m.ProduceResponse
        for name, topic_id in _topics(version, 13):
            answers = []
            for index in range(rng.randrange(1, 4)):
                leader = (rng.randrange(5), rng.randrange(9)) if version >= 10 and rng.random() < 0.5 else None
                errors = [(i, rng.choice((None, "bad"))) for i in range(rng.randrange(3))] if version >= 8 else []
                outcome = hot.ProduceOutcome(
                    rng.choice((ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)), rng.randrange(1 << 40), 5, 6,
                    errors, rng.choice((None, "why")), leader,
                )  # fmt: skip
                pairs.append((hot.ProducePart(name, topic_id, index, None), outcome))
                part_type = response.TopicProduceResponse.PartitionProduceResponse
                answer = part_type(
                    index=index, error_code=outcome.error, base_offset=outcome.base_offset, log_append_time_ms=5,
                    log_start_offset=6, error_message=outcome.error_message,
                    record_errors=[
                        part_type.BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=text)
                        for i, text in errors
                    ],
                )  # fmt: skip
                if leader is not None:
                    answer.current_leader = part_type.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
                answers.append(answer)
            topics.append(response.TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=answers))
        endpoints = [hot.NodeEndpoint(1, "h", 9, None), hot.NodeEndpoint(2, "i", 10, "r")][: rng.randrange(3)]
        message = response(version=version, responses=topics, throttle_time_ms=3)
        if endpoints and version >= 10:
            message.node_endpoints = [
                response.NodeEndpoint(node_id=e.node_id, host=e.host, port=e.port, rack=e.rack) for e in endpoints
            ]
        expected = m.encode_response(message, 0, version)
        assert hot.encode_produce_response(version, pairs, 3, endpoints) == expected


def _fetch_outcome(version: int, rng: random.Random) -> tuple[hot.FetchOutcome, Any]:
    response = m.FetchResponse.FetchableTopicResponse.PartitionData
    aborted = None if rng.random() < 0.3 else [(i, i + 7) for i in range(rng.randrange(3))]
    data = [rng.randbytes(rng.randrange(1, 200)) for _ in range(rng.randrange(3))]
    diverging = (3, 77) if version >= 12 and rng.random() < 0.3 else None
    leader = (4, 5) if version >= 12 and rng.random() < 0.3 else None
    outcome = hot.FetchOutcome(
        ErrorCode.NONE, 11, 10, 2, aborted, tuple(Piece(d) for d in data), sum(map(len, data)), diverging, leader, -1
    )
    message = response(
        error_code=0, high_watermark=11, last_stable_offset=10, log_start_offset=2, preferred_read_replica=-1,
        aborted_transactions=None if aborted is None else [
            response.AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted
        ],
        records=b"".join(data),
    )  # fmt: skip
    if diverging is not None:
        message.diverging_epoch = response.EpochEndOffset(epoch=3, end_offset=77)
    if leader is not None:
        message.current_leader = response.LeaderIdAndEpoch(leader_id=4, leader_epoch=5)
    return outcome, message


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_answers_have_the_librarys_bytes(version: int) -> None:
    rng = random.Random(version)
    for _ in range(50):
        pairs, topics = [], []
        for name, topic_id in _topics(version, 13):
            answers = []
            for index in range(rng.randrange(1, 4)):
                outcome, message = _fetch_outcome(version, rng)
                message.partition_index = index
                answers.append(message)
                pairs.append((hot.FetchPart(name, topic_id, index, -1, 0, -1, -1, 1, -1), outcome))
            topics.append(m.FetchResponse.FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=answers))
        response = m.FetchResponse(version=version, throttle_time_ms=1, error_code=0, session_id=0, responses=topics)
        endpoints = [hot.NodeEndpoint(1, "h", 9, "r")][: rng.randrange(2)]
        if endpoints and version >= 16:
            response.node_endpoints = [m.FetchResponse.NodeEndpoint(node_id=1, host="h", port=9, rack="r")]
        found = hot.encode_fetch_response(version, pairs, throttle_ms=1, endpoints=endpoints)
        joined = b"".join(chunk if isinstance(chunk, bytes) else chunk.data for chunk in found.chunks)
        assert joined == m.encode_response(response, 1, version)


def test_an_answer_that_is_not_sent_lets_its_files_go() -> None:
    piece = Piece(b"x")
    part = hot.FetchPart("t", None, 0, -1, 0, -1, -1, 1, -1)
    hot.encode_fetch_response(4, [(part, hot.FetchOutcome(ErrorCode.NONE, slices=(piece,), size=1))]).release()
    assert piece.released


@pytest.mark.parametrize("version", range(13, 19))
def test_what_a_leader_answers_a_follower_reads(version: int) -> None:
    rng = random.Random(version)
    pairs = []
    for topic in (uuid.UUID(int=5), uuid.UUID(int=6)):
        for index in range(3):
            outcome, _ = _fetch_outcome(version, rng)
            pairs.append((hot.FetchPart(None, topic, index, 1, 2, 3, 4, 5, 6), outcome))
    endpoints = [hot.NodeEndpoint(1, "h", 9, "r")]
    answer = hot.encode_fetch_response(version, pairs, throttle_ms=7, session_id=8, endpoints=endpoints)
    body = b"".join(chunk if isinstance(chunk, bytes) else chunk.data for chunk in answer.chunks)
    found = hot.decode_fetch_response(version, body)
    assert (found.throttle_ms, found.error, found.session_id) == (7, 0, 8)
    assert found.parts == [
        hot.FetchAnswerPart(
            part.topic_id or uuid.UUID(int=0), part.partition, outcome.error, outcome.high_watermark,
            outcome.last_stable_offset, outcome.log_start_offset, outcome.diverging, outcome.current_leader, -1,
            memoryview(b"".join(piece.data for piece in outcome.slices if isinstance(piece, Piece))),
        )
        for part, outcome in pairs
    ]  # fmt: skip


@pytest.mark.parametrize("version", range(13, 19))
def test_what_a_follower_asks_its_leader_reads(version: int) -> None:
    parts = [hot.FetchPart(None, uuid.UUID(int=n), n, 1, 2, 3, 4, 5, hot.NO_HIGH_WATERMARK) for n in range(3)]
    body = hot.encode_fetch_request(
        version, replica_id=2, replica_epoch=77, max_wait_ms=500, min_bytes=1, max_bytes=9, session_id=5,
        session_epoch=6, parts=parts, forgotten=[(uuid.UUID(int=9), [1, 2])], rack_id="r",
    )  # fmt: skip
    found = hot.decode_fetch(version, memoryview(body))
    assert found == hot.FetchRequest(
        2, 77 if version >= 15 else -1, 500, 1, 9, 0, 5, 6, parts, [(uuid.UUID(int=9), [1, 2])], "r", None
    )
