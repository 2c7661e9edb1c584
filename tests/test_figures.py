"""What is counted by topic and partition, and how a scrape reads it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from fleetlog.brokers.api.fetch import handle_fetch
from fleetlog.brokers.groups.members import Group, GroupState
from fleetlog.brokers.groups.requests import GroupSettings
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.brokers.metrics.exposition import (
    LONG_SLICE,
    SLICE,
    Exposition,
    Rows,
    by_slices,
    exposition_text,
    in_weighed_slices,
)
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.metrics.topics import OTHER_TOPICS, TopicTable
from fleetlog.brokers.model import PartitionState, TopicInfo
from fleetlog.brokers.replication.figures import (
    bytes_from,
    dedup_rows,
    follower_families,
    partition_rows,
    replica_families,
    states_in_slices,
)
from fleetlog.txn.commands import METRIC_ROWS
from fleetlog.txn.coordinator import TransactionSettings, TransactionShard
from fleetlog.txn.states import TransactionState
from fleetlog.txn.transaction import Transaction
from fleetlog.wire.errors import ErrorCode
from tests.support.bytecodes import Bytecodes, in_steps
from tests.support.fetching import part, request
from tests.support.gauges import added_up
from tests.support.produce_runs import Broker, batch, frame
from tests.support.stage import ME, OTHER, Stage

BYTECODES_PER_SLICE = 50_000
"""Some 2 ms of a slow core."""


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """The text format read back: name and the labels' values, to the number."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def shown(*sources: Callable[[], Any]) -> dict[tuple[str, ...], float]:
    return samples(exposition_text(Exposition(list(sources)).collect_now()))


def test_what_producers_and_consumers_do_is_counted_by_topic(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    stage = broker.stage
    stage.topic("t", 2, replicas=(ME, OTHER))
    sizes = [len(batch(count)) for count in (1, 2, 3)]
    broker.ask(frame(batch(), 0, acks=1), 1)  # the first of a segment goes the slow path
    broker.ask(b"".join(frame(batch(count), count, acks=1) for count in (2, 3)), 2)
    stage.start(handle_fetch, 1, 12, request(part("t", 0), part("t", 99, 1), max_wait_ms=0))
    stage.start(handle_fetch, 1, 12, request(part("t", 0), max_wait_ms=0))
    topics = stage.counted
    found = shown(topics.collect)
    assert found["fleetlog_topic_produced_records_total", "t"] == 6
    assert found["fleetlog_topic_produced_bytes_total", "t"] == sum(sizes)
    assert found["fleetlog_topic_produced_batches_total", "t"] == 3
    assert found["fleetlog_topic_fetches_total", "t"] == 0, "nothing is committed while a replica lacks it"
    assert found["fleetlog_topic_failed_fetches_total", "t"] == 1
    assert stage.fetched("t", OTHER, 6) is ErrorCode.NONE
    stage.start(handle_fetch, 1, 12, request(part("t", 0), max_wait_ms=0))
    assert topics.of("t").fetches == 1
    assert topics.of("t").bytes_out == sum(sizes)
    metrics: Metrics = stage.services.metrics
    assert samples(metrics.render())["fleetlog_errors_total", "Fetch", "OFFSET_OUT_OF_RANGE"] == 1
    assert found["fleetlog_batch_bytes_count",] == 3
    assert found["fleetlog_batch_bytes_sum",] == sum(sizes)
    assert found["fleetlog_batch_bytes_bucket", "128"] == sum(size < 128 for size in sizes)
    broker.close()


def test_refused_batches_are_counted_by_topic_and_error(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.stage.topic("t")
    broker.ask(frame(batch(), 0), 1)
    damaged = bytearray(batch())
    damaged[-1] ^= 1
    broker.ask(frame(bytes(damaged), 1), 1)
    figures = broker.stage.counted.of("t")
    assert (figures.batches_in, figures.failed_produces, figures.damaged) == (1, 1, 1)
    assert broker.stage.services.metrics.errors == {("Produce", "CORRUPT_MESSAGE"): 1}
    broker.close()


def test_the_number_of_topics_with_names_is_bounded() -> None:
    table = TopicTable(2)
    for number, topic in enumerate("abcd"):
        table.of(topic).appended_records(10**number, 200)
    assert {label: figures.records_in for label, figures in table.all().items()} == {
        "a": 1, "b": 10, OTHER_TOPICS: 1100,
    }  # fmt: skip
    table.forget("a")
    table.of("e").appended_records(5, 100)
    assert {label: figures.records_in for label, figures in table.all().items()} == {
        "b": 10, "e": 5, OTHER_TOPICS: 1101,
    }, "what a deleted topic had stays in the sum"  # fmt: skip
    assert table.label("d") == OTHER_TOPICS
    assert (table.total("records_in"), table.total("batches_in")) == (1116, 5)


def test_replicas_are_shown_as_they_are(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.topic("led", 2, replicas=(OTHER, ME), isr=(ME,))
    stage.topic("followed", leader=OTHER, replicas=(OTHER, ME))
    stage.append("led", 3)
    found = shown(lambda: replica_families(stage.replicas, str), lambda: partition_rows(stage.replicas))
    assert found["fleetlog_partitions",] == 3
    assert found["fleetlog_leaders",] == 2
    assert found["fleetlog_preferred_leaders",] == 0
    assert found["fleetlog_under_replicated_partitions",] == 2
    assert found["fleetlog_missing_in_sync_replicas",] == 2
    assert found["fleetlog_under_min_isr_partitions",] == 0
    assert found["fleetlog_at_min_isr_partitions",] == 2
    assert found["fleetlog_topic_leaders", "led"] == 2
    assert found["fleetlog_topic_log_bytes", "led"] == stage.partition("led").log.size_bytes
    assert found["fleetlog_partition_log_end_offset", "led", "0"] == 3
    assert found["fleetlog_partition_in_sync_replicas", "led", "1"] == 1
    assert found["fleetlog_partition_leader", "followed", "0"] == 0
    assert ("fleetlog_partition_in_sync_replicas", "followed", "0") not in found, "only its leader knows"
    stage.close()


def bytecodes(source: Callable[[], Iterator[Any]]) -> list[int]:
    """How many bytecodes a source executes before each of its yields, and behind the last one."""
    counter = Bytecodes()
    assert list(in_steps(source(), counter))
    return counter.counted


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("many"))
    stage.topic("many", 3 * SLICE + 1)
    yield stage
    stage.close()


@pytest.mark.parametrize("name", ["broker", "partitions", "followers", "deduplication"])
def test_a_scrape_of_many_partitions_lets_the_loop_move(many: Stage, name: str) -> None:
    """Each slice is short; a fleet with more partitions has more of them: tests/system/test_scrape.py has 10,000."""
    sources: dict[str, Callable[[], Iterator[Metric | Rows | None]]] = {
        "broker": lambda: replica_families(many.replicas, str),
        "partitions": lambda: partition_rows(many.replicas),
        "followers": lambda: follower_families(many.replicas, many.clock),
        "deduplication": lambda: dedup_rows(many.replicas),
    }
    slices = bytecodes(sources[name])
    assert sum(count > SLICE for count in slices) >= (4 if name != "deduplication" else 1)
    assert max(slices) < BYTECODES_PER_SLICE, slices


def test_a_log_of_many_segments_weighs_more(many: Stage) -> None:
    """Their sizes are added up: a few logs with thousands of them are a slice."""
    weights = [1, 1, 70, 40, 1, 200, 1]
    assert [*in_weighed_slices(weights, int)] == [[1, 1, 70], [40, 1], [200], [1]]


def test_topics_with_many_or_few_partitions_are_read_in_even_slices() -> None:
    state = PartitionState((ME,), ME, 0, (ME,), 0, 1, 7, (7,))
    sizes = [1] * 600 + [3_000]
    topics = [TopicInfo(f"t{number}", uuid.uuid4(), (state,) * size, {}) for number, size in enumerate(sizes)]
    counter = Bytecodes()
    found = [len(some) for some in in_steps(states_in_slices(topics), counter)]
    assert (sum(found), max(found)) == (3_600, LONG_SLICE)
    assert max(counter.counted) < BYTECODES_PER_SLICE


def test_groups_and_transactions_are_counted_in_slices() -> None:
    shard = GroupShard(0, GroupSettings())
    for number in range(5 * METRIC_ROWS):
        shard.groups[f"g{number}"] = Group(f"g{number}")
    transactions = TransactionShard(0, TransactionSettings())
    one = Transaction(1, 0, 60_000, TransactionState.ONGOING, start_ms=1)
    transactions.transactions = {f"t{number}": one for number in range(5 * METRIC_ROWS)}
    for source in (shard.metric_parts, transactions.metric_parts, lambda: shard.longest_rebalances_ms(1)):
        slices = bytecodes(source)
        assert len(slices) >= 6
        assert max(slices) < BYTECODES_PER_SLICE / 5, "five of them are a turn"
    assert added_up(shard.metric_parts())[f"groups_{GroupState.EMPTY.value}"] == 5 * METRIC_ROWS
    assert added_up(transactions.metric_parts())["transactions_open"] == 5 * METRIC_ROWS


def test_topics_are_read_in_slices() -> None:
    table = TopicTable(3 * SLICE)
    for number in range(3 * SLICE):
        table.of(f"t{number}")
    slices = bytecodes(table.collect)
    assert max(slices) < BYTECODES_PER_SLICE, slices
    assert len(slices) == 10


def test_other_work_runs_between_two_slices() -> None:
    seen: list[str] = []

    def source() -> Iterator[Metric | None]:
        for some in by_slices(range(3), 1):
            seen.append(f"slice {some[0]}")
            yield None

    async def other() -> None:
        for number in range(3):
            seen.append(f"other {number}")
            await asyncio.sleep(0)

    async def run() -> None:
        await asyncio.gather(Exposition([source]).collect(), other())

    asyncio.run(run())
    assert seen == ["slice 0", "other 0", "slice 1", "other 1", "slice 2", "other 2"]


def test_labels_are_escaped() -> None:
    rows = Rows(("name",), (("a", "gauge", "A."),), [(('q"b\\s\nn',), (1,))])  # type: ignore[arg-type]
    assert samples(exposition_text([rows])) == {("a", 'q"b\\s\\nn'): 1}


def test_labels_show_what_a_screen_would_obey() -> None:
    """A group's id is what a client chooses: colours, a title, a line turned round, a name that looks like another."""
    names = ["\x1b[31mred\x9b0m", "a\u202eb", "pay\u00a0", "gr\u00fcn\u6f22"]
    rows = Rows(("name",), (("a", "gauge", "A."),), [((name,), (1,)) for name in names])  # type: ignore[arg-type]
    text = exposition_text([rows])
    assert all(line.isprintable() for line in text.decode().split("\n"))
    shown = [r"\x1b[31mred\x9b0m", r"a\u202eb", r"pay\xa0", "gr\u00fcn\u6f22"]
    assert samples(text) == {("a", name): 1 for name in shown}


def test_followers_are_shown_by_how_much_they_lack(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.topic("led", 2, replicas=(ME, OTHER))
    stage.topic("followed", leader=OTHER, replicas=(OTHER, ME))
    families = lambda: follower_families(stage.replicas, stage.clock)  # noqa: E731
    for index in (0, 1):
        stage.append("led", 4, index)
        assert stage.fetched("led", OTHER, 4, partition=index) is ErrorCode.NONE
    assert [*shown(families).values()] == [0, 0, 0]
    size = stage.partition("led").log.size_bytes
    stage.append("led", 12)
    stage.clock.now_ms += 7_000
    found = shown(families)
    assert found["fleetlog_follower_lag_records", str(OTHER)] == 12
    assert found["fleetlog_follower_lag_bytes", str(OTHER)] == pytest.approx(3 * size, rel=0.35)
    assert found["fleetlog_follower_lag_seconds", str(OTHER)] == 7
    assert stage.fetched("led", OTHER, 16) is ErrorCode.NONE
    assert [*shown(families).values()] == [0, 0, 0]
    stage.close()


def test_bytes_from_an_offset_are_those_of_all_segments_behind_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path, **{"log.segment.bytes": "300"})
    stage.topic("led", replicas=(ME,))
    for _ in range(20):
        stage.append("led", 1)
    log = stage.partition("led").log
    assert len(log.segments) > 3
    assert bytes_from(log, 0) == log.size_bytes
    assert bytes_from(log, 20) == 0
    half = log.segments[2].base_offset
    assert bytes_from(log, half) == sum(one.size for one in list(log.segments)[2:])
    assert bytes_from(log, -1) == log.size_bytes, "a follower that has not fetched yet may lack all"
    stage.close()
