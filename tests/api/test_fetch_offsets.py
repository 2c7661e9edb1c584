"""ListOffsets, DeleteRecords and OffsetForLeaderEpoch against real logs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api import offsets
from fleetlog.brokers.api.base import DelayedResponse, Done, InSlices, through
from fleetlog.brokers.log.disk.checkpoints import LOG_START_CHECKPOINT
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from tests.support.fetching import Client, part
from tests.support.stage import ME, OTHER, Stage

BOTH = (ME, OTHER)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


# -- ListOffsets ----------------------------------------------------------------------------------------------------


def ask_offsets(
    stage: Stage, timestamp: int, *, version: int = 11, isolation: int = 0, epoch: int = -1, replica: int = -1,
    timeout_ms: int = 0,
) -> Done | DelayedResponse:  # fmt: skip
    topic = m.ListOffsetsRequest.ListOffsetsTopic
    asked = topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=timestamp)
    message = m.ListOffsetsRequest(
        version=version, replica_id=replica, isolation_level=isolation, timeout_ms=timeout_ms,
        topics=[topic(name="t", partitions=[asked])],
    )  # fmt: skip
    return stage.start(offsets.handle_list_offsets, 2, version, message)


def offsets_of(response: Any, version: int = 11) -> Any:
    if isinstance(response, InSlices):  # as the server does it
        response = through(response.work)
    body = m.encode_response(response, 2, version)
    return m.decode_response(2, version, body).topics[0].partitions[0]


def list_offsets(stage: Stage, timestamp: int, *, version: int = 11, **fields: Any) -> Any:
    outcome = ask_offsets(stage, timestamp, version=version, **fields)
    assert isinstance(outcome, Done)
    return offsets_of(outcome.response, version)


def test_offsets_by_name_and_by_time(stage: Stage) -> None:
    stage.topic("t", epoch=3)
    now = stage.clock.now_ms
    for timestamp in (now - 500, now - 100, now - 300):
        stage.append("t", 2, timestamp=timestamp)
    answers = {
        -1: (6, -1, 3), -2: (0, -1, 3), -3: (3, now - 99, 3), -4: (0, -1, 3), -5: (-1, -1, -1),
        -6: (-1, -1, -1),
        0: (0, now - 500, 3), now - 499: (1, now - 499, 3), now - 498: (2, now - 100, 3), now: (-1, -1, -1),
    }  # fmt: skip
    for timestamp, expected in answers.items():
        found = list_offsets(stage, timestamp)
        assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (0, *expected), timestamp


def test_the_largest_timestamp_is_that_of_the_first_record_that_has_it(stage: Stage) -> None:
    """Records of one append have one time; a search for that time finds the same record."""
    stage.topic("t", epoch=3, **{"message.timestamp.type": "LogAppendTime"})
    stage.append("t", 2)
    stage.clock.now_ms += 10
    now = stage.clock.now_ms
    stage.append("t", 3)
    for start, offset in ((0, 2), (3, 3)):
        stage.partition("t").log.truncation.raise_start(start)
        for timestamp in (-3, now):
            found = list_offsets(stage, timestamp)
            assert (found.offset, found.timestamp) == (offset, now), (start, timestamp)


def test_no_record_has_the_largest_timestamp_where_none_has_one(stage: Stage) -> None:
    stage.topic("t", epoch=3)
    for _ in range(2):
        assert (found := list_offsets(stage, -3)).error_code == 0
        assert (found.offset, found.timestamp, found.leader_epoch) == (-1, -1, -1)
        stage.append("t", 1, timestamp=-1)
    stage.append("t", 1, timestamp=7)
    stage.append("t", 1, timestamp=-1)
    found = list_offsets(stage, -3)
    assert (found.offset, found.timestamp, found.leader_epoch) == (2, 7, 3)


@pytest.mark.parametrize(("timestamp", "first"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99), (-99, 99)])
def test_special_offsets_have_their_first_version(stage: Stage, timestamp: int, first: int) -> None:
    stage.topic("t")
    for version in range(1, APIS[2].max_version + 1):
        error = list_offsets(stage, timestamp, version=version).error_code
        assert error == (0 if version >= first else ErrorCode.UNSUPPORTED_VERSION)


def test_the_latest_offset_of_committed_reading_is_the_stable_one(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 2)
    stage.replicate("t", stage.batch(attributes=16, producer_id=7, producer_epoch=0, base_sequence=0))
    assert list_offsets(stage, -1).offset == 3
    assert list_offsets(stage, -1, isolation=1).offset == 2
    assert list_offsets(stage, stage.clock.now_ms - 1, isolation=1).offset == 0


def at_pause(stage: Stage, wanted: int, happens: Callable[[], object]) -> None:
    """Let it happen when paced work is interrupted for the ``wanted`` time."""
    pauses = count(1)
    stage.between = lambda: next(pauses) == wanted and happens()


def long_log(stage: Stage) -> None:
    """400 records of some 600 bytes, all of the time 1000 but one of 1500 and the last, of 3000, not committed."""
    stage.topic("t", replicas=BOTH, epoch=1)
    for number in range(400):
        stage.append("t", timestamp=1000 + 500 * (number == 350) + 2000 * (number == 399), size=500)
    stage.fetched("t", OTHER, 399)


def test_a_long_search_by_time_answers_as_of_its_begin(stage: Stage) -> None:
    long_log(stage)
    assert list_offsets(stage, 1200).offset == 350
    at_pause(stage, 6, lambda: stage.fetched("t", OTHER, 400))
    assert list_offsets(stage, 2000).offset == -1
    assert list_offsets(stage, 2000).offset == 399


def test_a_leader_that_goes_during_a_search_does_not_know_what_it_would_have_found(stage: Stage) -> None:
    long_log(stage)

    def deposed() -> None:
        stage.topic("t", replicas=BOTH, leader=OTHER, epoch=2)
        stage.partition("t").log.truncation.restart_at(340)

    at_pause(stage, 6, deposed)
    assert list_offsets(stage, 1200).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_during_a_search_harms_no_other(stage: Stage, again: bool) -> None:
    """Of the same name there may be another one already, which has no file of the second segment's name."""
    stage.topic("t", epoch=1, segment_bytes="300000")
    for number in range(1000):
        stage.append("t", timestamp=1000 + 500 * (number == 900), size=500)
    stage.topic("other")
    stage.append("other")

    def deleted() -> None:
        stage.topic("t", epoch=1, topic_id=uuid.uuid4()) if again else stage.delete("t")
        if again:
            stage.append("t", 5)

    at_pause(stage, 6, deleted)
    assert list_offsets(stage, 1200).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not stage.logs.offline_directories
    assert stage.partition("other").log.offline is False
    if again:
        assert list_offsets(stage, -1).offset == 5


def ask_of_both(stage: Stage, first: int, second: int) -> Done | DelayedResponse:
    """For the topics t and u in one request."""
    topic = m.ListOffsetsRequest.ListOffsetsTopic
    asked = [
        topic(
            name=name, partitions=[topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=at)]
        )
        for name, at in (("t", first), ("u", second))
    ]
    message = m.ListOffsetsRequest(version=10, replica_id=-1, isolation_level=0, timeout_ms=0, topics=asked)
    return stage.start(offsets.handle_list_offsets, 2, 10, message)


def found_of_both(response: Any) -> list[tuple[int, int]]:
    answer = m.decode_response(2, 10, m.encode_response(response, 2, 10))
    return [(part.error_code, part.offset) for one in answer.topics for part in one.partitions]


def test_a_lease_that_ends_during_a_search_is_not_used_for_the_next_partition(stage: Stage) -> None:
    long_log(stage)
    stage.topic("u", replicas=BOTH, epoch=1)
    stage.append("u", 5)
    stage.fetched("u", OTHER, 5)

    def ended() -> None:
        stage.lease = False

    at_pause(stage, 8, ended)
    outcome = ask_of_both(stage, 1200, -1)
    assert isinstance(outcome, Done)
    assert found_of_both(outcome.response) == [(0, 350), (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


def test_what_followers_confirmed_says_nothing_of_another_topic_of_that_name(stage: Stage) -> None:
    for topic in "tu":
        stage.topic(topic, replicas=BOTH, epoch=1)
        stage.append(topic, 5)
        stage.fetched(topic, OTHER, 5)
    stage.lease = False
    question = ask_of_both(stage, -1, -1)
    assert isinstance(question, DelayedResponse)
    answers: list[Any] = []
    question.on_done(answers.append)
    stage.lease = True
    for topic in "tu":
        stage.partition(topic).confirmations.check()
    assert answers
    at_pause(stage, 3, lambda: stage.topic("u", replicas=BOTH, epoch=1, topic_id=uuid.uuid4()))
    assert found_of_both(stage.made(answers[0])) == [(0, 5), (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


def test_what_list_offsets_refuses(stage: Stage) -> None:
    assert list_offsets(stage, -1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stage.topic("t", epoch=2)
    assert list_offsets(stage, -1, epoch=1).error_code == ErrorCode.FENCED_LEADER_EPOCH
    topic = m.ListOffsetsRequest.ListOffsetsTopic
    twice = [topic.ListOffsetsPartition(partition_index=0, timestamp=-1)] * 2
    message = m.ListOffsetsRequest(version=7, topics=[topic(name="t", partitions=twice)])
    outcome = stage.start(offsets.handle_list_offsets, 2, 7, message)
    assert isinstance(outcome, Done)
    assert [p.error_code for p in outcome.response.topics[0].partitions] == [ErrorCode.INVALID_REQUEST] * 2


def test_a_replica_gets_the_logs_end(stage: Stage) -> None:
    stage.topic("t", replicas=BOTH, epoch=2)
    for timestamp in (100, 200):
        stage.append("t", 2, timestamp=timestamp)
    stage.fetched("t", OTHER, 2)
    for replica, latest in ((-1, 2), (OTHER, 4), (-2, 4)):
        found = list_offsets(stage, -1, replica=replica, isolation=1)
        assert (found.error_code, found.offset, found.leader_epoch) == (0, latest, 2)
        assert list_offsets(stage, -2, replica=replica).offset == 0
        assert list_offsets(stage, 150, replica=replica).offset == (-1 if replica == -1 else 2)
    stage.lease = False
    assert list_offsets(stage, -1, replica=OTHER).offset == 4, "the epoch was checked, and that is enough for it"
    stage.topic("t", replicas=BOTH, epoch=3, leader=OTHER)
    assert list_offsets(stage, -1, replica=OTHER).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert list_offsets(stage, -1, replica=-2).offset == 4, "a debugging client may ask any replica"
    assert list_offsets(stage, -1, replica=-2, epoch=2).error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("version", [4, 5, 10])
def test_a_new_leader_does_not_know_yet_what_was_committed(stage: Stage, version: int) -> None:
    stage.topic("t", replicas=BOTH, epoch=1)
    for timestamp in (100, 200):
        stage.append("t", 2, timestamp=timestamp)
    stage.fetched("t", OTHER, 2)
    stage.topic("t", replicas=BOTH, epoch=2)
    unknown = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
    for timestamp in (-1, 150, 999):
        assert list_offsets(stage, timestamp, version=version).error_code == unknown
    assert list_offsets(stage, -2, version=version).offset == 0
    assert list_offsets(stage, 50, version=version).offset == 0
    stage.fetched("t", OTHER, 4)
    assert list_offsets(stage, -1, version=version).offset == 4
    assert list_offsets(stage, 150, version=version).offset == 2
    stage.append("t")
    assert list_offsets(stage, -1, version=version).offset == 4


def test_without_its_lease_a_leader_asks_its_followers(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH, epoch=1)
    stage.append("t")
    follower = Client(stage, replica=OTHER)
    follower.fetch(part(topic.id, 1))
    stage.lease = False
    delayed = follower.wait()
    stage.clock.now_ms += 100
    question = ask_offsets(stage, -1)
    assert isinstance(question, DelayedResponse)
    assert question.deadline_ms == offsets.CONFIRM_MS
    stage.wait(10)
    assert delayed.done, "the follower that is to confirm is not left to wait"
    follower.take(delayed.response)
    assert not question.done
    follower.start(max_wait_ms=500)
    assert offsets_of(question.response).offset == 1


def test_no_other_broker_can_lead_a_partition_of_one_replica(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t")
    stage.lease = False
    assert list_offsets(stage, -1).offset == 1


@pytest.mark.parametrize(("timeout_ms", "waits_ms"), [(0, 5000), (700, 700), (2**31 - 1, 30_000)])
def test_an_unconfirmed_lookup_is_refused_in_the_end(stage: Stage, timeout_ms: int, waits_ms: int) -> None:
    stage.topic("t", replicas=BOTH)
    stage.lease = False
    question = ask_offsets(stage, -1, timeout_ms=timeout_ms)
    assert isinstance(question, DelayedResponse)
    assert question.deadline_ms == waits_ms
    question.expire()
    assert offsets_of(question.response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_question_to_a_leader_that_steps_down_is_refused(stage: Stage) -> None:
    stage.topic("t", replicas=BOTH)
    stage.lease = False
    question = ask_offsets(stage, -1)
    assert isinstance(question, DelayedResponse)
    stage.topic("t", replicas=BOTH, leader=OTHER, epoch=1)
    assert offsets_of(question.response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- DeleteRecords and OffsetForLeaderEpoch -------------------------------------------------------------------------


def deletion(topic: str, offset: int, timeout_ms: int = 1000) -> m.DeleteRecordsRequest:
    kind = m.DeleteRecordsRequest.DeleteRecordsTopic
    asked = [kind.DeleteRecordsPartition(partition_index=0, offset=offset)]
    return m.DeleteRecordsRequest(version=2, timeout_ms=timeout_ms, topics=[kind(name=topic, partitions=asked)])


def delete_records(stage: Stage, topic: str, offset: int) -> tuple[int, int]:
    outcome = stage.start(offsets.handle_delete_records, 21, 2, deletion(topic, offset))
    return outcome_of_deletion(outcome)


def outcome_of_deletion(outcome: Any) -> tuple[int, int]:
    assert isinstance(outcome, Done)
    found = outcome.response.topics[0].partitions[0]
    return found.error_code, found.low_watermark


def test_records_are_deleted_up_to_an_offset(stage: Stage) -> None:
    stage.topic("t")
    for _ in range(4):
        stage.append("t")
    reader = Client(stage, version=12)
    reader.fetch(part("t", 1))
    assert delete_records(stage, "t", 2) == (0, 2)
    assert list_offsets(stage, -2).offset == 2
    assert reader.fetch().parts["t", 0].error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert reader.fetch(part("t", 2)).parts["t", 0].log_start_offset == 2
    assert delete_records(stage, "t", 5) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete_records(stage, "t", -1) == (0, 4)
    assert delete_records(stage, "t", 1) == (0, 4), "the start never goes back"


def test_deleted_records_stay_deleted_when_the_leader_is_killed(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 4)
    assert delete_records(stage, "t", 2) == (0, 2)
    directory = Path(stage.logs.directories[0].path)
    assert (directory / LOG_START_CHECKPOINT).read_text() == "0\n1\nt 0 2\n", "a killed process finds this again"


def test_a_deletion_that_cannot_be_saved_is_not_acknowledged(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 4)
    (Path(stage.logs.directories[0].path) / f"{LOG_START_CHECKPOINT}.tmp").mkdir()
    assert delete_records(stage, "t", 2) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


def test_the_leader_learns_a_start_that_a_killed_follower_finds_again(stage: Stage) -> None:
    stage.topic("t", replicas=BOTH)
    stage.append("t", 4)
    stage.topic("t", replicas=BOTH, leader=OTHER, epoch=1)
    partition = stage.partition("t")
    checkpoint = Path(stage.logs.directories[0].path) / LOG_START_CHECKPOINT
    assert partition.follower_role.replicate(1, memoryview(b""), 4, 2, 0) is ErrorCode.NONE
    assert partition.follower_role.fetch_position().log_start_offset == 2
    assert checkpoint.read_text() == "0\n1\nt 0 2\n"
    written = checkpoint.stat().st_ino
    partition.follower_role.fetch_position()
    assert checkpoint.stat().st_ino == written, "it is written when the start has moved"
    Path(f"{checkpoint}.tmp").mkdir()
    assert partition.follower_role.replicate(1, memoryview(b""), 4, 3, 0) is ErrorCode.NONE
    assert partition.follower_role.fetch_position().log_start_offset == 2, "it could not be saved"


def test_a_deletion_is_answered_once_the_followers_have_deleted(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    client = Client(stage, 17, replica=OTHER)
    client.fetch(part(topic.id, 0))
    stage.append("t", 3)
    client.fetch(part(topic.id, 3))

    async def deleted_late() -> tuple[int, int]:
        outcome = offsets.handle_delete_records(deletion("t", 2, 60_000), stage.context(21, 2))
        waiting = asyncio.ensure_future(through(outcome.work).coroutine)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        client.fetch(part(topic.id, 3, log_start_offset=2))
        return outcome_of_deletion(await waiting)

    assert outcome_of_deletion(stage.start(offsets.handle_delete_records, 21, 2, deletion("t", 2, 50))) == (
        ErrorCode.REQUEST_TIMED_OUT,
        -1,
    )
    assert asyncio.run(deleted_late()) == (0, 2)
    assert delete_records(stage, "t", 2) == (0, 2), "nothing is waited for any more"
    stage.metadata.brokers = {ME: stage.metadata.brokers[ME]}
    dead = stage.start(offsets.handle_delete_records, 21, 2, deletion("t", 3, 50))
    assert outcome_of_deletion(dead)[0] == ErrorCode.REQUEST_TIMED_OUT, "it is still in sync, and may lead"
    state = stage.partition("t").state
    stage.partition("t").state = replace(state, isr=(ME,), isr_incarnations=state.isr_incarnations[:1])
    assert delete_records(stage, "t", 3) == (0, 3), "nothing is waited for that is dead and will not lead"


def test_a_deletion_is_not_acknowledged_by_a_leader_that_gives_up_meanwhile(stage: Stage) -> None:
    topic = stage.topic("t", replicas=BOTH)
    client = Client(stage, 17, replica=OTHER)
    client.fetch(part(topic.id, 0))
    stage.append("t", 3)
    client.fetch(part(topic.id, 3))

    async def deleted() -> tuple[int, int]:
        outcome = offsets.handle_delete_records(deletion("t", 2, 60_000), stage.context(21, 2))
        waiting = asyncio.ensure_future(through(outcome.work).coroutine)
        await asyncio.sleep(0)
        stage.topic("t", replicas=BOTH, leader=OTHER, epoch=1)
        return outcome_of_deletion(await waiting)

    assert asyncio.run(deleted()) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1), "the new leader may begin before it"


def test_what_delete_records_refuses(stage: Stage) -> None:
    stage.topic("__consumer_offsets")
    stage.topic("c", cleanup_policy="compact")
    stage.topic("other", leader=OTHER)
    assert delete_records(stage, "__consumer_offsets", 0)[0] == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert delete_records(stage, "c", 0)[0] == ErrorCode.POLICY_VIOLATION
    assert delete_records(stage, "other", 0)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert delete_records(stage, "nope", 0)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def epoch_end(stage: Stage, epoch: int, *, version: int = 4, replica: int = -1) -> tuple[int, int, int]:
    kind = m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    asked = [kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)]
    message = m.OffsetForLeaderEpochRequest(version=version, topics=[kind(topic="t", partitions=asked)])
    if version >= 3:
        message.replica_id = replica
    outcome = stage.start(offsets.handle_offset_for_leader_epoch, 23, version, message)
    assert isinstance(outcome, Done)
    found = outcome.response.topics[0].partitions[0]
    return found.error_code, found.leader_epoch, found.end_offset


@pytest.mark.parametrize(("epoch", "expected"), [(0, (0, 0)), (1, (1, 3)), (3, (1, 3)), (4, (4, 5)), (9, (-1, -1))])
def test_where_an_epoch_ended(stage: Stage, epoch: int, expected: tuple[int, int]) -> None:
    stage.topic("t", epoch=1)
    stage.append("t", 3)
    stage.topic("t", epoch=4)
    stage.append("t", 2)
    for replica in (-1, -2, OTHER):
        assert epoch_end(stage, epoch, replica=replica) == (0, *expected)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_consumer_gets_committed_ends_only(stage: Stage, version: int) -> None:
    stage.topic("t", replicas=BOTH, epoch=1)
    stage.append("t", 3)
    stage.fetched("t", OTHER, 3)
    stage.append("t", 2)
    assert epoch_end(stage, 1, version=version) == (0, 1, 3)
    stage.topic("t", replicas=BOTH, epoch=4)
    stage.append("t")
    unknown = (ErrorCode.OFFSET_NOT_AVAILABLE, -1, -1)
    assert epoch_end(stage, 0, version=version) == (0, 0, 0)
    assert epoch_end(stage, 1, version=version) == epoch_end(stage, 4, version=version) == unknown
    stage.fetched("t", OTHER, 5)
    assert epoch_end(stage, 1, version=version) == (0, 1, 5)
    assert epoch_end(stage, 4, version=version) == (0, 4, 5)


def test_a_replica_gets_ends_that_are_not_committed(stage: Stage) -> None:
    stage.topic("t", replicas=BOTH, epoch=1)
    stage.append("t", 3)
    stage.topic("t", replicas=BOTH, epoch=4)
    stage.lease = False
    assert epoch_end(stage, 1)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    for replica in (-2, OTHER):
        assert epoch_end(stage, 1, replica=replica) == (0, 1, 3)
        assert epoch_end(stage, 4, replica=replica) == (0, 4, 3)
