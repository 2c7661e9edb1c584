"""The brokers that coordinate a sink's transactions are killed, stopped and started again while Spark commits."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.spark.sink.fence import transactional_name
from tests.spark.conftest import Cluster
from tests.spark.sink.job import FOREACH, FORMAT, Job, replicated
from tests.support.fleet import Broker, Fleet
from tests.support.raw_transactions import Wire
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side

MOVES = 4
ROWS = 12
"""Sent while the coordinator is there, and again while it is away."""
STAGES = ("begun", "written", "committed")
"""Of a batch, at which a function's coordinator is struck; that of the format is at any moment."""
STEP_S = 150.0
STARTS_MAX = 12


class Supervised:
    """A query that is started again when it has ended, as a job's supervisor does."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self.problems: list[str] = []
        self._query: Any = None

    def look_after(self) -> None:
        try:
            if self._query is None:
                self._query = self._start()
            self._query.awaitTermination(0.05)  # raises what it ended with
        except Exception as problem:
            self.problems.append(str(problem))
            assert len(self.problems) < STARTS_MAX, self.problems
            self._query = None

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()


@pytest.fixture
def fleet(tmp_path: Path) -> Any:
    fleet = Fleet(tmp_path / "fleet", min_insync_replicas=2, default_replication_factor=3)
    try:
        yield fleet.start()
    finally:
        fleet.close()


GROUP, TRANSACTION = 0, 1


def coordinator(fleet: Fleet, name: str, kind: int) -> Broker | None:
    """As a broker that is there knows it; None while there is none."""
    asked = next(broker for broker in fleet.brokers if broker.process is not None and broker.process.poll() is None)
    wire = Wire("127.0.0.1", asked.port, 30)
    try:
        number = wire.ask(m.FindCoordinatorRequest(key=name, key_type=kind), 1).node_id
    finally:
        wire.close()
    return next((broker for broker in fleet.brokers if broker.id == number), None)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("way", "mode"), [(FORMAT, "executor"), (FOREACH, "executor"), (FOREACH, "driver")])
def test_rows_count_once_while_the_coordinator_moves(
    fleet: Fleet, spark: Any, tmp_path: Path, way: str, mode: str
) -> None:
    """In driver mode that of the group, too: the fence is its offset."""
    cluster = Cluster(fleet.bootstrap)

    def read_stream(**options: Any) -> Any:
        given = {"kafka.bootstrap.servers": fleet.bootstrap, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 5}
        return spark.readStream.format("fleetlog").options(**given, **options).load()

    job = Job(cluster, read_stream, tmp_path)
    job.source = replicated(cluster, 2)
    options = {} if way == FORMAT else {"sink__mode": mode}
    query = Supervised(lambda: job.start(way=way, once=False, **options))
    name = transactional_name(job.sink_id) if mode == "driver" else job.sink_id
    kinds = [GROUP if mode == "driver" and number >= MOVES // 2 else TRANSACTION for number in range(MOVES)]
    numbers = itertools.count()
    sent: list[str] = []
    struck: list[Broker] = []

    def strike(number: int) -> bool:
        """Once for each number: every second time with SIGKILL."""
        if len(struck) == number and (found := coordinator(fleet, name, kinds[number])) is not None:
            found.kill() if number % 2 else found.stop(60)
            struck.append(found)
        return len(struck) > number

    def send() -> None:
        values = [str(next(numbers)) for _ in range(ROWS)]
        cluster.send(job.source, [{"key": value, "value": value} for value in values], enable_idempotence=True)
        sent.extend(values)

    def until(look: Callable[[], Any], what: str) -> Any:
        def looked() -> Any:
            query.look_after()
            return look()

        return eventually(looked, what, STEP_S)

    def written(count: int) -> None:
        until(lambda: len(job.values()) >= count, f"{count} rows are committed")

    try:
        send()
        written(1)
        for number in range(MOVES):
            stage = STAGES[number % len(STAGES)]
            job.on_event = lambda event, number=number, stage=stage: event.stage == stage and strike(number)
            send()
            until(lambda number=number: strike(number) if way == FORMAT else len(struck) > number, f"strike {number}")
            send()
            written(len(sent))
            struck[-1].start()
            until(lambda: all(broker.caught_up() for broker in fleet.brokers), "all replicas are in sync")
    finally:
        query.stop()
    assert Counter(job.values()) == Counter(sent), query.problems
    assert len({broker.id for broker in struck}) > 1, "it did not move"
