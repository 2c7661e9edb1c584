"""The fence: its decision, its form as a committed offset, a coordinator that moves."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from fleetlog.spark.client.failures import FenceConflict, FenceError, FenceLost, OptionError
from fleetlog.spark.sink.driver_fence import begin_with_fence, within
from fleetlog.spark.sink.fence import Decision, Fence, decide, transactional_name


@pytest.mark.parametrize(
    ("fence", "batch_id", "outcome"),
    [
        (None, 0, Decision.WRITE),
        (None, 1, FenceLost),
        (Fence("q", 4), 5, Decision.WRITE),
        (Fence("q", 5), 5, Decision.SKIP),
        (Fence("q", 6), 5, FenceConflict),
        (Fence("q", 3), 5, FenceConflict),
        (Fence("other", 4), 5, FenceConflict),
        (Fence("other", 5), 5, FenceConflict),
        (Fence(None, -1), 5, Decision.WRITE),
    ],
)
def test_the_fence_decides_whether_a_batch_is_written(
    fence: Fence | None, batch_id: int, outcome: Decision | type[Exception]
) -> None:
    if isinstance(outcome, Decision):
        assert decide(fence, "q", batch_id) is outcome
    else:
        with pytest.raises(outcome):
            decide(fence, "q", batch_id)


def test_overrides_of_the_decision_are_narrow() -> None:
    assert decide(None, "q", 5, adopt=True) is Decision.WRITE
    assert decide(Fence("old", 9), "q", 0, takeover="old") is Decision.WRITE
    with pytest.raises(FenceConflict):
        decide(Fence("old", 9), "q", 0, takeover="older")
    with pytest.raises(FenceConflict):
        decide(Fence("old", 9), "q", 0, adopt=True)


def test_fence_is_kept_as_offset_and_metadata() -> None:
    for fence in (Fence("q", 0), Fence("q", 2**40), Fence(None, -1)):
        assert Fence.decode(*fence.encode()) == fence
    assert Fence.decode(-1001, None) is None
    for offset, metadata in ((5, ""), (5, "null"), (5, "{}"), (5, '{"v":1,"queryId":"q","batchId":5}'), (5, None)):
        with pytest.raises(FenceError):
            Fence.decode(offset, metadata)


class MovingCoordinator:
    """Stands in for a producer whose group coordinator is loading: a moment that can't be had on purpose."""

    def __init__(self, *errors: KafkaError) -> None:
        self.errors = list(errors)
        self.calls: list[str] = []

    def begin_transaction(self) -> None:
        self.calls.append("begin")

    def abort_transaction(self, _: float) -> None:
        self.calls.append("abort")

    def send_offsets_to_transaction(self, *_: object) -> None:
        self.calls.append("send")
        if self.errors:
            raise KafkaException(self.errors.pop(0))

    def consumer_group_metadata(self) -> None:
        return None


def test_moving_coordinator_is_waited_for() -> None:
    loading = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "loading", txn_requires_abort=True)
    stub = MovingCoordinator(loading, loading)
    begin_with_fence(stub, stub, Fence("q", 0))
    assert stub.calls == ["begin", "send", "abort"] * 2 + ["begin", "send"]
    for error in (
        KafkaError(KafkaError._FENCED, "fenced", fatal=True),
        KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "no", txn_requires_abort=True),
    ):
        stub = MovingCoordinator(error)
        with pytest.raises(KafkaException):
            begin_with_fence(stub, stub, Fence("q", 0))
        assert stub.calls == ["begin", "send"]


def test_a_call_that_waits_without_end_is_left_after_its_time() -> None:
    assert within(lambda: 5, 60) == 5
    with pytest.raises(ZeroDivisionError):
        within(lambda: 1 // 0, 60)
    never = threading.Event()
    with pytest.raises(FenceError, match=r"issue 5511.*start the query again"):
        within(never.wait, 0.05)
    never.set()


def test_sink_ids() -> None:
    assert transactional_name("orders-v1") == "spark-sink/orders-v1"
    for bad in ("", "a b", "a/b", "ü", "x" * 201):
        with pytest.raises(OptionError, match="sinkId"):
            transactional_name(bad)
