"""One scenario's topics, sink and checkpoint; what it did, and the verdict."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec

from fleetlog.brokers.coordinators.runtime import java_string_hash
from fleetlog.spark.client.connections import Client
from fleetlog.spark.sink.batch_transactions import DESCRIBE, BatchTransactions
from fleetlog.spark.sink.fence import Fence
from tests.spark.matrix.fleet import SETTINGS, MatrixFleet
from tests.spark.matrix.reader import Seen, Watcher, judge, parse, read_all
from tests.spark.matrix.sessions import Query, Session, Sessions
from tests.spark.matrix.together import Together, took_place
from tests.spark.matrix.wire import PASS, REQUEST, Trap
from tests.support.waiting import eventually

SOURCE_PARTITIONS = 3
TARGET_PARTITIONS = 3
SETTLE_S = 60.0
PATIENCE_S = 55
"""How long a client of a group waits for an answer; the calls of the sink are given up after 60."""
COORDINATOR_PARTITIONS = int(SETTINGS["transaction.state.log.num.partitions"])


class Place(NamedTuple):
    """A run's place in its group. All runs of a group have the same leaders and the same coordinator.

    ``first``: the broker, from 0, that leads partition 0. ``slot``: the partition of the coordinator's topic.
    """

    group: Together
    member: int
    first: int
    slot: int


ALONE = Place(Together(), 0, 0, 0)


class Rig:
    """Everything a scenario needs. ``where``: local or cluster."""

    def __init__(
        self,
        fleet: MatrixFleet,
        sessions: Sessions,
        directory: Path,
        where: str = "local",
        place: Place = ALONE,
    ) -> None:
        self.fleet = fleet
        self.sessions = sessions
        self.where = where
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._place, self._turn = place, 0
        name = uuid.uuid4().hex[:8]
        while abs(java_string_hash(f"sink-{name}")) % COORDINATOR_PARTITIONS != place.slot:
            name = uuid.uuid4().hex[:8]
        self.source, self.target, self.sink_id = f"in-{name}", f"out-{name}", f"sink-{name}"
        self.queries: list[Query] = []
        self.checkpoint = directory / f"checkpoint-{name}"
        self.trace: list[str] = []
        self.say: Callable[[str], None] = lambda text: None
        self.shape: dict[str, Any] = {"shape": "plain", "per_batch": 300, "padding": 40}
        self.expected_from = 0
        self.rows = 0
        self.runs = 0
        self.errors: list[str] = []
        self.way = "format"
        self.query_id = ""
        self.earlier: dict[tuple[int, int], int] = {}
        """Batches of an earlier checkpoint, whose rows stay."""
        self._topics()
        self.watcher = Watcher(fleet.inner, self.target, TARGET_PARTITIONS)

    def _topics(self) -> None:
        admin = self.fleet.admin
        common = {"retention.ms": "-1", "min.insync.replicas": "2"}
        replicas = [[(self._place.first + p + n) % 3 + 1 for n in range(3)] for p in range(SOURCE_PARTITIONS)]
        names = (self.source, self.target)
        topics = [NewTopic(n, SOURCE_PARTITIONS, replica_assignment=replicas, config=common) for n in names]
        made = admin.create_topics(topics)
        for future in made.values():
            future.result(60)
        for topic in (self.source, self.target):
            eventually(lambda topic=topic: self.fleet.leader(topic, 0) >= 0, f"{topic} has a leader", 30)  # type: ignore[misc]

    def fill(self, rows: int = 900, keys: int = 97) -> None:
        """The source's rows, the same number in every partition."""
        producer = Producer({"bootstrap.servers": self.fleet.inner, "linger.ms": 5, "log_level": 0, "acks": "all"})
        for number in range(rows):
            producer.produce(self.source, b"s", f"k{number % keys}", number % SOURCE_PARTITIONS)
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0
        self.rows += rows

    def fill_more(self) -> None:
        """The same number of rows once more."""
        self.fill(self.rows)

    # ---- running ---------------------------------------------------------------------------------------------------

    def note(self, text: str) -> str:
        """Something that really happened."""
        self.trace.append(text)
        self.say(text)
        return text

    def driver(self, *but: Session) -> Session:
        """A healthy driver."""
        return self.sessions.get(self.where, but)

    def start(
        self, session: Session | None = None, way: str = "", checkpoint: Path | None = None, **more: Any
    ) -> Query:
        """Start the query; ``options``, ``stop_at`` and what shapes the query go into ``more``."""
        if not self.rows:
            self.fill()
        self.runs += 1
        given = {**self.shape, **more}
        # A frame that is held until all runs of a group stand at theirs must not be sent again meanwhile.
        patience = {"kafka.request.timeout.ms": str(PATIENCE_S * 1000)} if self._place.group.size > 1 else {}
        query = (session or self.driver()).start(
            way=way or self.way,
            source=self.source,
            target=self.target,
            sink_id=self.sink_id,
            checkpoint=str(checkpoint or self.checkpoint),
            bootstrap=self.fleet.bootstrap,
            run=f"run{self.runs}",
            options={**patience, **given.pop("options", {})},
            **given,
        )
        self.queries.append(query)
        return query

    def finish(self, query: Query | None = None, tries: int = 4, **more: Any) -> str:
        """Run to the end of what is there, again after a failure as a supervisor would; the query's id."""
        while True:
            query = query or self.start(**more)
            try:
                self.query_id = query.started()
                error = query.ended()
            except AssertionError as problem:
                if "'event': 'ended'" not in str(problem):
                    raise
                error = str(problem)
            if not error:
                return self.query_id
            self.errors.append(error)
            self.say(f"the query ended with {_short(error)}; once more")
            tries -= 1
            assert tries > 0, f"the query does not come to its end: {error}"
            query = None

    def batch_done(self, number: int, timeout_s: float = 240.0, checkpoint: Path | None = None) -> None:
        """Waits until Spark has noted this batch as done."""
        path = (checkpoint or self.checkpoint) / "commits" / str(number)
        eventually(lambda: path.exists() or self._nothing_runs(), f"batch {number} is done", timeout_s)
        assert path.exists(), f"all queries have ended, and batch {number} is not done"

    def is_done(self, number: int) -> bool:
        """Whether Spark has noted this batch as done."""
        return (self.checkpoint / "commits" / str(number)).exists()

    def trap(self, api: int, side: str, action: str, **more: Any) -> Trap:
        """A trap on the wire for this scenario's sink."""
        over = self._nothing_runs
        return self.fleet.wire.trap(api, side, action, contains=self.sink_id.encode(), over=over, **more)

    def count(self, api: int) -> Trap:
        """Counts the requests of this kind, from now on, in ``seen``."""
        return self.trap(api, REQUEST, PASS, times=1 << 30, find_process=False)

    def _nothing_runs(self) -> bool:
        """Whether all queries have ended."""
        return bool(self.queries) and all(query.over() for query in self.queries)

    # ---- what happens to all runs of a group at once ---------------------------------------------------------------

    def once(self, action: Callable[[Any], Any], wanted: Hashable = None, each: bool = False) -> Any:
        """``action(wanted)``, once for all runs of the group, when all have come here; its result."""
        self._turn += 1
        return self._place.group.once(self._place.member, self._turn, action, wanted, each)

    def kill(self, session: Session) -> None:
        """The driver dies, while what this run holds is still waited for."""
        self.note(self.once(lambda _: session.kill(), session.number))

        held = [hit.at for trap in self.fleet.wire.traps if trap.over == self._nothing_runs for hit in trap.held()]
        waited = time.monotonic() - min(held, default=time.monotonic())
        took_place(waited < PATIENCE_S, f"a frame was held for {waited:.0f} s, and may have been sent again")

    def stop(self, session: Session) -> None:
        """The driver stands still."""
        self.note(self.once(lambda _: session.stop(), session.number))

    def resume(self, session: Session) -> None:
        """The driver goes on."""
        self.note(self.once(lambda _: session.resume(), session.number))

    def revive(self) -> None:
        """All brokers live, and are in sync."""
        self.once(lambda _: self.fleet.revive())

    def copy_checkpoint(self, name: str) -> Path:
        """A copy of the checkpoint as it is now."""
        target = self.directory / name
        shutil.copytree(self.checkpoint, target)
        return target

    # ---- looking ---------------------------------------------------------------------------------------------------

    def fence(self) -> Fence | None:
        """The sink's fence."""
        client = Client({"bootstrap_servers": self.fleet.inner.split(",")})
        try:
            return BatchTransactions(client, self.sink_id).fence()
        finally:
            client.close()

    def state(self) -> str:
        """The state of the sink's transaction."""
        client = Client({"bootstrap_servers": self.fleet.inner.split(",")})
        try:
            return str(BatchTransactions(client, self.sink_id)._call(DESCRIBE, sink_ids=[self.sink_id]).state)
        finally:
            client.close()

    def written(self) -> int:
        """Rows in the log, committed or not."""
        return sum(
            len(rows)
            for rows in read_all(self.fleet.inner, self.target, TARGET_PARTITIONS, "read_uncommitted").values()
        )

    def aborted(self) -> int:
        """Rows in the log that no reader of committed data gets."""
        return self.written() - self.watcher.count()

    def ends(self, isolation: IsolationLevel) -> list[int]:
        """The partitions' ends, for readers of this isolation."""
        asked = {TopicPartition(self.target, n): OffsetSpec.latest() for n in range(TARGET_PARTITIONS)}
        found = self.fleet.admin.list_offsets(asked, isolation_level=isolation, request_timeout=20)
        return [found[tp].result(20).offset for tp in asked]

    def batches(self, checkpoint: Path | None = None) -> dict[tuple[int, int], int]:
        """The micro-batch of every source row, from Spark's own notes."""
        ends: dict[int, dict[int, int]] = {}
        for path in ((checkpoint or self.checkpoint) / "offsets").iterdir():
            if path.name.isdigit():
                offsets = json.loads(path.read_text().splitlines()[-1])[self.source]
                ends[int(path.name)] = {int(number): int(offset) for number, offset in offsets.items()}
        found = {place: batch - 1_000_000 for place, batch in self.earlier.items()}
        begin = {n: sum(place[0] == n for place in self.earlier) for n in range(SOURCE_PARTITIONS)}
        for batch, end in sorted(ends.items()):
            for number, offset in end.items():
                for one in range(begin[number], offset):
                    if one >= self.expected_from:
                        found[number, one] = batch
            begin = end
        return found

    def settle(self) -> list[str]:
        """Waits until nothing is open and the reader has everything; what is wrong with that."""
        deadline = time.monotonic() + SETTLE_S
        stable: Sequence[int] = ()
        while True:
            try:
                stable, high = self.ends(IsolationLevel.READ_COMMITTED), self.ends(IsolationLevel.READ_UNCOMMITTED)
                if stable == high and all(end >= 0 for end in stable):
                    break
            except Exception as problem:
                high = [repr(problem)]  # type: ignore[list-item]
            if time.monotonic() > deadline:
                return [f"HANGING: last stable offsets {stable}, ends {high}"]
            time.sleep(0.2)
        return []

    def verdict(self, checkpoint: Path | None = None, whole: bool = True) -> list[str]:
        """Everything that is wrong; empty when the sink was exact.

        Not ``whole``: the run was broken off. Then the batches that Spark had noted by now must be there, no more.
        """
        due = None if whole else self._noted(checkpoint)
        problems = self.settle()
        final = read_all(self.fleet.inner, self.target, TARGET_PARTITIONS)
        wanted = sum(len(rows) for rows in final.values())
        deadline = time.monotonic() + 30
        while self.watcher.count() < wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)  # one more look at each partition's end
        self.watcher.close()
        if self.watcher.problem:
            problems.append(f"READER: {self.watcher.problem}")
        if {n: list(rows) for n, rows in self.watcher.found.items()} != final:
            problems.append(
                f"CHANGED: read meanwhile {[len(r) for r in self.watcher.found.values()]} rows, "
                f"at the end {[len(r) for r in final.values()]}, not the same"
            )
        batches = self.batches(checkpoint)
        rows = self.rows - self.expected_from * SOURCE_PARTITIONS
        if len(batches) != rows:
            problems.append(f"UNFINISHED: Spark planned {len(batches)} of {rows} rows")
        found = {number: [parse(value) for _, value in rows] for number, rows in self.watcher.found.items()}
        problems += judge(batches, Seen(found, self.watcher.moments), due)
        return problems + self._fence_problems(checkpoint, due)

    def _noted(self, checkpoint: Path | None) -> set[int]:
        """The batches that Spark has noted as done, and those of an earlier checkpoint."""
        place = (checkpoint or self.checkpoint) / "commits"
        noted = {int(path.name) for path in place.iterdir() if path.name.isdigit()} if place.exists() else set()
        return noted | {batch - 1_000_000 for batch in self.earlier.values()}

    def _fence_problems(self, checkpoint: Path | None, due: set[int] | None) -> list[str]:
        fence = self.fence()
        if due is not None:
            last = max(due, default=-1)
            if last >= 0 and (fence is None or fence.batch_id < last):
                return [f"FENCE: {fence}, and Spark had noted batch {last}"]
            return []
        last = max(int(p.name) for p in ((checkpoint or self.checkpoint) / "commits").iterdir() if p.name.isdigit())
        if fence is None or fence.batch_id != last or (self.query_id and fence.query_id != self.query_id):
            return [f"FENCE: {fence}, and Spark's last batch is {last} of query {self.query_id}"]
        return []

    def close(self) -> None:
        """Leave nothing behind."""
        self.release()
        self.watcher.close()

    def release(self) -> None:
        """Nothing of this run is held, or caught, any more."""
        self.fleet.wire.clear(self.sink_id.encode())

    def clean(self) -> None:
        """Delete the topics: disks are small."""
        for future in self.fleet.admin.delete_topics([self.source, self.target], operation_timeout=20).values():
            future.result(30)


def _short(error: str) -> str:
    """The telling line of Spark's long errors."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Fence" in line or "Exception" in line]
    return (telling[-1] if telling else lines[0])[:240] if lines else error
