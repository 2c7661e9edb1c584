"""What the largest pages compute, in bytecodes: the map of 10,000 partitions, and searches through records."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.admin.topics import DescribeTopicPartitionsResponse

from fleetlog._native.batch import Record, encode_batch, scan
from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.cli.topic_reader import FetchedPart, PartitionBounds, PassesOver, decode_part
from fleetlog.brokers.console import pages
from fleetlog.brokers.console.asking import Asking
from fleetlog.brokers.console.message_pages import Browse, ScanBudget, Search
from tests.support.bytecodes import Bytecodes

TARGET = Target("localhost:1", 1.0, {})
TOPICS, PARTITIONS = 10, 1_000
MAP_BUDGET = 205
"""Bytecodes for each partition of three replicas, all in sync, once an answer has been seen before."""
FILTER_BUDGET, OTHER_PYTHONS = 365, 1.3
"""Bytecodes for each record of which a filter looks at one field."""
PASSED_BUDGET = 360
"""Bytecodes for each batch that has nothing of what is looked for."""


class LargeFleet:
    """Three brokers that all answer the same: it takes minutes to make so many partitions."""

    def __init__(self) -> None:
        kind = DescribeTopicPartitionsResponse
        topic = kind.DescribeTopicPartitionsResponseTopic
        rows = [
            topic.DescribeTopicPartitionsResponsePartition(
                error_code=0, partition_index=index, leader_id=1 + index % 3, leader_epoch=0,
                replica_nodes=[1 + (index + one) % 3 for one in range(3)], isr_nodes=[1, 2, 3],
                eligible_leader_replicas=[], last_known_elr=[], offline_replicas=[],
            )
            for index in range(PARTITIONS)
        ]  # fmt: skip
        topics = [topic(error_code=0, name=f"t{n}", is_internal=False, partitions=rows) for n in range(TOPICS)]
        self.answer = kind(topics=topics, next_cursor=None)

    def describe_cluster(self) -> dict[str, Any]:
        brokers = [{"broker_id": number, "host": "h", "port": 1, "rack": None} for number in (1, 2, 3)]
        return {"cluster_id": "c", "controller_id": 1, "brokers": brokers}

    def ask_any(self, _: Any) -> Any:
        return self.answer

    def list_partition_reassignments(self) -> dict[Any, Any]:
        return {}


def test_the_map_of_many_partitions_costs_little_for_each() -> None:
    asking, counter = Asking(LargeFleet(), TARGET), Bytecodes()
    pages.partitions_page(asking)
    page = counter.of(lambda: pages.partitions_page(asking))
    assert (page["partitions"], page["counts"]["leader"], page["counts"]["follower"]) == (10_000, 10_000, 20_000)
    each = counter.counted[0] / (TOPICS * PARTITIONS)
    assert each < MAP_BUDGET * OTHER_PYTHONS, f"{each:.0f} bytecodes for each partition"


class StoredTopic:
    """One partition of plain and compressed batches, read as from a leader."""

    def __init__(self, batches: list[list[Record]]) -> None:
        self.parts, self.end = [], 0
        for number, rows in enumerate(batches):
            rows = [row._replace(offset=self.end + at) for at, row in enumerate(rows)]
            how: dict[str, Any] = {"attributes": 1, "compress": gzip.compress} if number % 2 else {}
            self.parts.append((self.end, encode_batch(rows, base_offset=self.end, **how)))
            self.end += len(rows)

    def fetch(
        self,
        at: dict[int, int],
        isolation: int,
        records_max: int,
        bytes_max: int,
        passes_over: PassesOver | None = None,
    ) -> dict[int, FetchedPart]:
        data = b"".join(raw for _, raw in self.parts if next(iter(scan(raw)))[1].last_offset >= at[0])
        return {0: decode_part(data, 0, at[0], isolation, (), records_max, bytes_max, passes_over)} if data else {}

    def browse(self, params: dict[str, str], count: int = 10_000, *, passing: bool = True) -> Browse:
        search, bounds = Search(Asking(None, TARGET, params, "t")), {0: PartitionBounds(0, self.end, self.end)}
        source: Any = self
        holds_none = search.holds_none if passing else None
        budget = ScanBudget(now_s=lambda: 0.0)
        return Browse(source, bounds, count=count, matches=search.matches, budget=budget, holds_none=holds_none)


def _json_records(count: int) -> list[Record]:
    return [Record(n, n, b"key", json.dumps({"number": n, "text": "x" * 900}).encode(), ()) for n in range(count)]


@pytest.mark.parametrize(("params", "batches", "budget"), [
    ({"filter": "value.number < 0"}, 10, FILTER_BUDGET * 1_000), ({"contains": "absent"}, 10, PASSED_BUDGET * 10),
    ({"contains": "ABSENT", "where": "value"}, 100, PASSED_BUDGET * 100),
], ids=["filter", "text", "text of values"])  # fmt: skip
def test_a_search_costs_little_for_what_it_does_not_find(params: dict[str, str], batches: int, budget: int) -> None:
    each = 1_000 // batches
    topic, counter = StoredTopic([_json_records(each)] * batches), Bytecodes()
    topic.browse(params).onward({0: 0})
    browse = topic.browse(params)
    page = counter.of(lambda: browse.onward({0: 0}))
    assert (page.records, page.following, browse.budget.scanned) == ([], None, 1_000)
    assert counter.counted[0] < budget * OTHER_PYTHONS, counter.counted


WORDS = [b"Amsterdam", b"BERLIN", b"cairo", b"a=b", b"", None]


def _any_record(rng: random.Random) -> Record:
    headers = tuple((rng.choice(["from", "Berlin"]), rng.choice(WORDS)) for _ in range(rng.randrange(3)))
    return Record(0, rng.randrange(1_000), rng.choice(WORDS), rng.choice(WORDS), headers)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_passed_over_holds_nothing_that_is_looked_for(seed: int) -> None:
    """The same records, cursors and counts as by looking at each record, in both directions, a few at a time."""
    rng = random.Random(seed)
    batches = [[_any_record(rng) for _ in range(rng.randint(1, 12))] for _ in range(12)]
    topic, count = StoredTopic(batches), rng.randint(1, 9)
    word = rng.choice(["berlin", "CAIRO", "from=a", "a=", "am", "nowhere", "berlin=", "roa"])
    params = {"contains": word, "where": rng.choice(["anywhere", "key", "value", "headers"])}

    def pages_of(step: Callable[[Browse, Any], Any], *, passing: bool = True) -> list[Any]:
        seen: list[Any] = []
        at = {0: 0} if step is Browse.onward else None
        while True:
            browse = topic.browse(params, count, passing=passing)
            page = step(browse, at)
            seen.append((page.records, page.following, browse.budget.scanned))
            if page.following is None:
                return seen
            at = page.following

    for step in (Browse.onward, Browse.newest):
        assert pages_of(step) == pages_of(step, passing=False)
