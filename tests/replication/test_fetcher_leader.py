"""What followers need of a leader beside records: its log's ends, deletions, and no long wait at the start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetlog.brokers.api import offsets
from fleetlog.brokers.api.base import Done
from fleetlog.brokers.api.fetch_sessions import EARLY_REPLY_INTERVAL_MS, EXPECT_MS
from fleetlog.brokers.model import BrokerId
from fleetlog.brokers.replication.fetcher import EARLIEST, LATEST, LIST_OFFSETS, LIST_OFFSETS_VERSION
from fleetlog.wire.messages import DeleteRecordsRequest, ListOffsetsRequest
from tests.support.fetching import Client, part
from tests.support.stage import ME, OTHER, Stage


def list_offset(stage: Stage, timestamp: int, replica_id: int) -> Any:
    part = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=timestamp
    )
    topics = [ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[part])]
    request = ListOffsetsRequest(version=LIST_OFFSETS_VERSION, replica_id=replica_id, isolation_level=0, topics=topics)
    outcome = stage.start(offsets.handle_list_offsets, LIST_OFFSETS, LIST_OFFSETS_VERSION, request)
    assert isinstance(outcome, Done)
    return outcome.response.topics[0].partitions[0].offset


def test_a_followers_latest_is_the_end_of_the_log(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.topic("t", replicas=(ME, OTHER))
    stage.append("t", 4)
    assert list_offset(stage, LATEST, OTHER) == 4
    assert list_offset(stage, LATEST, -1) == 0, "nothing is committed yet"
    assert list_offset(stage, EARLIEST, OTHER) == 0


def test_watchers_of_a_partition_are_notified_of_deleted_records(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.topic("t")
    stage.append("t", 4)
    heard: list[int] = []

    class Ear:
        def appended(self, partition: Any) -> None: ...

        def changed(self, partition: Any) -> None: ...

        def committed(self, partition: Any) -> None:
            heard.append(partition.log.log_start_offset)

    stage.partition("t").watch(Ear())
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    part = topic.DeleteRecordsPartition(partition_index=0, offset=3)
    request = DeleteRecordsRequest(version=2, topics=[topic(name="t", partitions=[part])], timeout_ms=1_000)
    stage.start(offsets.handle_delete_records, 21, 2, request)
    assert heard == [3]


def test_a_follower_that_waits_is_answered_when_we_begin_to_lead(tmp_path: Path) -> None:
    """It cannot ask for the new partition before its fetch of the others is answered."""
    third = BrokerId(3)
    stage = Stage(tmp_path)
    stage.metadata.brokers[third] = replace(stage.metadata.brokers[OTHER], id=third)
    sessions = stage.services.fetch_sessions
    stage.replicas.on_leader(
        lambda partition: sessions.expect(partition.state.replicas, stage.services.clock.mono_ms())
    )
    old = stage.topic("old", replicas=(ME, OTHER, third))
    stage.wait(EXPECT_MS)
    follower, stranger = Client(stage, replica=OTHER), Client(stage, replica=third)
    for client in (follower, stranger):
        client.fetch(part(old.id, 0))
    waits = [client.wait(max_wait_ms=5_000) for client in (follower, stranger)]
    stage.wait(2 * EARLY_REPLY_INTERVAL_MS)
    assert [delayed.done for delayed in waits] == [False, False]
    new = stage.topic("new", replicas=(ME, OTHER))
    stage.wait(10)
    assert [delayed.done for delayed in waits] == [True, False]
    follower.take(waits[0].response)  # before it heard of the new topic; so the next one doesn't wait long either
    again = follower.wait(max_wait_ms=5_000)
    stage.wait(EARLY_REPLY_INTERVAL_MS)
    assert again.done
    follower.take(again.response)
    assert (new.id, 0) in follower.fetch(part(new.id, 0)).parts
    stage.wait(EXPECT_MS)
    idle = follower.wait(max_wait_ms=5_000)
    stage.wait(EXPECT_MS)
    assert not idle.done
