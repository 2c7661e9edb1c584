"""The fence of driver mode, written by librdkafka and read without it."""

from __future__ import annotations

import uuid

import pytest

from fleetlog.spark.client.failures import FenceConflict
from fleetlog.spark.sink.driver_fence import begin_with_fence, fencing_producer
from fleetlog.spark.sink.fence import Fence
from fleetlog.spark.sink.fence_reader import read_driver_fence
from fleetlog.spark.sink.modes import refuse_driver_fence
from tests.support.waiting import eventually

pytestmark = pytest.mark.interop


def test_a_committed_fence_is_read_and_an_open_one_is_not_waited_for(bootstrap: str) -> None:
    settings, sink_id = {"bootstrap.servers": bootstrap}, f"sink-{uuid.uuid4().hex[:10]}"
    assert read_driver_fence(settings, sink_id) is None
    refuse_driver_fence(settings, sink_id)
    with fencing_producer(settings, sink_id) as (producer, consumer):
        begin_with_fence(producer, consumer, Fence("query", 4))
        assert read_driver_fence(settings, sink_id) is None
        producer.commit_transaction(30)
        # A commit is answered when it is decided; the group's coordinator has its marker a moment later.
        eventually(lambda: read_driver_fence(settings, sink_id) == Fence("query", 4), "the committed fence")
        begin_with_fence(producer, consumer, Fence("query", 5))
        assert read_driver_fence(settings, sink_id) == Fence("query", 4)
        producer.abort_transaction(30)
    with pytest.raises(FenceConflict, match="belongs to driver mode: its fence is at batch 4 of query query"):
        refuse_driver_fence(settings, sink_id)
