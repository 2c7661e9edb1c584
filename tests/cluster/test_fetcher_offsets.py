"""What a leader answers the followers' fetchers beside fetches: the ends of its log, and that records were deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brokers.api import offsets
from brokers.api.base import Done
from brokers.cluster.fetcher import EARLIEST, LATEST, LIST_OFFSETS, LIST_OFFSETS_VERSION
from tests.server.stage import ME, OTHER, Stage
from wire.messages import DeleteRecordsRequest, ListOffsetsRequest


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


def test_who_watches_a_partition_hears_of_deleted_records(tmp_path: Path) -> None:
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
