"""Histories of a streaming query that is killed at any point, against a pure model of logs and of Spark's checkpoint.

The reader is the source's own; topics, Spark's offset log and its commit log are models. Between any two calls records
arrive or are deleted, topics are created again or get partitions. Each attempt at a batch has to read the records that
were planned for it first, or say which are gone. `python -m tests.spark.source.restarts --histories 1000000` runs many.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetlog.spark.client.failures import DataLoss, OptionError
from fleetlog.spark.client.numbers import EARLIEST, LATEST
from fleetlog.spark.source.offsets import Json, Range
from fleetlog.spark.source.options import ReadOptions
from fleetlog.spark.source.planner import Planner, RangePartition, report_loss
from fleetlog.spark.source.readers import BatchReader, StreamReader
from fleetlog.spark.versions import ReadAllAvailable, ReadMaxRows
from fleetlog.wire.types import TopicPartition

Record = tuple[str, int, int]
"""The topic's id, the partition, the offset."""


class Killed(Exception):
    """The driver ended at this point."""


@dataclass
class Topic:
    """Logs of a topic; ``times[partition][offset]`` is when a record came, ``starts`` the first that is left."""

    topic_id: str
    times: list[list[int]]
    starts: list[int]


@dataclass
class Logs:
    """The topics of a fleet; what the source's client is asked. ``isolation`` makes no difference: none is open."""

    topics_now: dict[str, Topic] = field(default_factory=dict)
    clock: int = 100
    ids: int = 0

    def create(self, name: str, partitions: int) -> None:
        """Also again, with another id."""
        self.ids += 1
        self.topics_now[name] = Topic(f"id{self.ids}", [[] for _ in range(partitions)], [0] * partitions)

    def topics(self, names: Any) -> dict[str, list[int]]:
        """The partitions of those that exist."""
        return {
            name: list(range(len(self.topics_now[name].times))) for name in sorted(names) if name in self.topics_now
        }

    def topics_matching(self, pattern: str) -> dict[str, list[int]]:
        """All of them: the pattern is one that fits all."""
        return self.topics(self.topics_now)

    def topic_id(self, name: str) -> str | None:
        """Its present id."""
        return self.topics_now[name].topic_id if name in self.topics_now else None

    def offsets(self, times: Mapping[TopicPartition, int], isolation: int) -> dict[TopicPartition, tuple[int, int]]:
        """Start, end, or the first record of a time."""
        return {tp: (self.offset(tp, time), -1) for tp, time in times.items()}

    def offset(self, tp: TopicPartition, time: int) -> int:
        """One partition's."""
        topic = self.topics_now[tp.topic]
        came, start = topic.times[tp.partition], topic.starts[tp.partition]
        if time == EARLIEST:
            return start
        if time == LATEST:
            return len(came)
        assert time >= 0, "to a broker that is another question, or none"
        return next((offset for offset in range(start, len(came)) if came[offset] >= time), -1)

    def change(self, draw: random.Random) -> None:
        """Something happens to a partition, or nothing does."""
        self.clock += 1
        name = draw.choice(sorted(self.topics_now))
        topic = self.topics_now[name]
        number = draw.randrange(len(topic.times))
        match draw.choices(("nothing", "records", "delete", "again", "partition", "topic"), (6, 8, 2, 1, 1, 1))[0]:
            case "records":
                topic.times[number] += [self.clock] * draw.randint(1, 5)
            case "delete":
                topic.starts[number] = draw.randint(topic.starts[number], len(topic.times[number]))
            case "again":
                self.create(name, len(topic.times))
            case "partition" if len(topic.times) < 4:
                topic.times.append([])
                topic.starts.append(0)
            case "topic" if len(self.topics_now) < 3:
                self.create(f"t{len(self.topics_now)}", 1)


class ModelPlanner(Planner):
    """The source's planner, which asks the model."""

    def __init__(self, options: ReadOptions, logs: Logs) -> None:
        super().__init__(options)
        self._logs = logs

    @property
    def client(self) -> Any:
        """The logs."""
        return self._logs


class ModelBatchReader(BatchReader):
    """The source's reader of a batch, which asks the model."""

    def __init__(self, options: ReadOptions, logs: Logs) -> None:
        super().__init__(options)
        self._logs = logs

    def _planner(self) -> Planner:
        return ModelPlanner(self._options, self._logs)


class ModelReader(StreamReader):
    """The source's reader of a stream, which asks the model."""

    def __init__(self, options: ReadOptions, logs: Logs) -> None:
        super().__init__(options)
        self._logs = logs

    def _planner(self) -> Planner:
        return ModelPlanner(self._options, self._logs)


def _options(draw: random.Random) -> dict[str, str]:
    chosen = draw.choice(("latest", "earliest", "time", "time of each start", "time, or an error"))
    options = {
        "kafka.bootstrap.servers": "model:1",
        "failOnDataLoss": draw.choice(("true", "false")),
        **draw.choice(({"subscribe": "t0"}, {"subscribePattern": ".*"})),
    }
    if chosen in ("latest", "earliest"):
        return {**options, "startingOffsets": chosen}
    if chosen == "time, or an error":
        return {**options, "startingTimestamp": "101"}
    start = {"startingOffsetsByTimestampStrategy": "latest", "startingTimestamp": "0" if "each" in chosen else "103"}
    return {**options, **start}


class History:
    """A query from its first start on, over its kills and restarts, with one seed."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.logs = Logs()
        self.logs.create("t0", draw.randint(1, 3))
        for _ in range(draw.randint(0, 6)):
            self.logs.change(draw)
        self.given = _options(draw)
        self.options = ReadOptions.parse(self.given, streaming=True)
        if draw.random() < 0.2:
            self.options = dataclasses.replace(self.options, min_per_trigger=draw.randint(1, 6))
        self.limit: Any = ReadMaxRows(draw.randint(1, 8)) if draw.random() < 0.4 else ReadAllAvailable()
        self.before_4_2 = draw.random() < 0.2  # Spark gives latestOffset no start
        self.unnoted = draw.random() < 0.15  # ends as an older version wrote them
        self.available_now = draw.random() < 0.3 and not self.before_4_2
        self.ends: list[str] = []  # Spark's offset log
        self.planned: list[dict[TopicPartition, list[Record]]] = []  # what its batches had when they were planned
        self.committed = 0
        self.written: list[Record] = []
        self.losses = 0

    def run(self, starts: int = 6) -> None:
        """Start it so often; raises AssertionError where a batch is another than it was."""
        for _ in range(starts):
            try:
                self._query()
            except Killed:
                pass
            except DataLoss:
                self.losses += 1
                assert self.options.fail_on_data_loss, "a loss that is accepted stops no query"
                if self.committed < len(self.ends):
                    assert self.unnoted or self._is_harmed(), "nothing of the planned batch is lost"
                else:
                    assert self.logs.ids > len(self.logs.topics_now), "no topic was created again"
            except OptionError:
                assert not self.ends or self.unnoted, "a planned batch needs no starting offsets"
                assert self.given.get("startingTimestamp") == "101"

    def _point(self, *, kill: bool = True) -> None:
        if kill and self.draw.random() < 0.12:
            raise Killed
        for _ in range(self.draw.randint(0, 2)):
            self.logs.change(self.draw)

    def _query(self) -> None:
        """MicroBatchExecution: a batch that is in the offset log and not in the commit log is the next one."""
        options = self.options
        if self.given.get("startingTimestamp") == "0":
            options = dataclasses.replace(
                options, starting=options.starting._replace(timestamp_ms=max(0, self.logs.clock - 1))
            )
        reader = ModelReader(options, self.logs)
        if self.available_now:
            reader.prepareForTriggerAvailableNow()
        if self.ends and self.before_4_2:
            last = json.loads(self.ends[-1])
            reader.partitions(last, json.loads(self.ends[-1]))  # setLatestSeenOffset
        for _ in range(self.draw.randint(1, 4)):
            self._point()
            if self.committed == len(self.ends) and not self._plan(reader):
                continue
            self._point()
            start = self._start(reader)
            self._point()
            tasks = reader.partitions(start, json.loads(self.ends[-1]))
            assert all(isinstance(task, RangePartition) for task in tasks)
            self._point()
            rows = [record for task in tasks for item in task.ranges for record in self._read(item)]  # type: ignore[attr-defined]
            self._compare(rows)
            self._point()
            self.committed = len(self.ends)
            self.written += rows

    def _start(self, reader: ModelReader) -> Json:
        start: Json = json.loads(
            self.ends[self.committed - 1] if self.committed else json.dumps(reader.initialOffset())
        )
        return start

    def _plan(self, reader: ModelReader) -> bool:
        """Whether there is a batch; its end is in the offset log then."""
        start = self._start(reader)
        self._point()
        end = reader.latestOffset() if self.before_4_2 else reader.latestOffset(start, self.limit)
        if self.committed and json.dumps(end) == self.ends[-1]:
            return False
        assert not self.ends or self._positions(end) != self._positions(json.loads(self.ends[-1])), "an empty batch"
        self.planned.append(self._contents(start, end))
        self._point(kill=False)
        if self.unnoted:
            end = json.loads(json.dumps(end))
            end.get("topic ids", {}).pop("planned from", None)
        self.ends.append(json.dumps(end))
        return True

    @staticmethod
    def _positions(end: Json) -> Json:
        return {**end, "topic ids": {**end.get("topic ids", {}), "planned from": None}}

    def _contents(self, start: Json, end: Json) -> dict[TopicPartition, list[Record]]:
        """What a batch between the two has: nothing happened since its end was asked for."""
        found = {}
        ids = end.get("topic ids", {})
        for name in end.keys() - {"topic ids"}:
            exists = self.logs.topic_id(name) == ids[name]  # else a target of AvailableNow names the one before
            same = start.get("topic ids", {}).get(name) == ids[name]
            for number, last in end[name].items():
                tp = TopicPartition(name, int(number))
                first = start.get(name, {}).get(number) if same else None
                if not exists and (first is None or last < first):
                    first = last  # whatever it is: none of these records is there
                elif first is None:
                    first = self.logs.offset(tp, EARLIEST)
                assert last >= first, f"{tp}: the end {last} is below {first}"
                found[tp] = [(ids[name], tp.partition, offset) for offset in range(first, last)]
        return found

    def _read(self, item: Range) -> Iterator[Record]:
        """`readers.read_range`, of the model."""
        topic = self.logs.topics_now[item.topic]
        position = item.start
        if position >= item.end:
            return
        if item.topic_id not in (None, topic.topic_id):
            report_loss(f"{item.tp}: created again", self.options)
            return
        if position < topic.starts[item.partition]:
            report_loss(f"{item.tp}: offset {position} is gone", self.options)
            position = min(topic.starts[item.partition], item.end)
        for offset in range(position, item.end):
            yield topic.topic_id, item.partition, offset

    def _planned(self) -> set[Record]:
        return {record for records in self.planned[-1].values() for record in records}

    def _is_harmed(self) -> bool:
        ids = json.loads(self.ends[-1]).get("topic ids", {})
        recreated = any(self.logs.topic_id(name) != ids[name] for name in ids.keys() - {"planned from"})
        return recreated or self._left() < self._planned()

    def _left(self) -> set[Record]:
        """Of the newest batch, what is still there."""
        return {
            (topic_id, number, offset)
            for (name, number), records in self.planned[-1].items()
            for topic_id, _, offset in records
            if (topic := self.logs.topics_now[name]).topic_id == topic_id and offset >= topic.starts[number]
        }

    def _compare(self, rows: list[Record]) -> None:
        assert len(set(rows)) == len(rows), "a record is read twice in a batch"
        assert not set(rows) & set(self.written), "a record is in two batches"
        wanted = self._planned() if self.options.fail_on_data_loss else self._left()
        if self.unnoted:  # where the first batch started is not known
            wanted &= set(rows)
        assert set(rows) == wanted, f"batch {self.committed} is {sorted(rows)} in place of {sorted(wanted)}"


def main() -> None:
    """Run histories from a seed on; the first that is wrong is raised with its seed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    batches = losses = replayed = 0
    for seed in range(asked.seed, asked.seed + asked.histories):
        history = History(seed)
        try:
            history.run()
        except Exception:
            print(f"seed {seed}: {history.given}", file=sys.stderr)
            raise
        batches += history.committed
        losses += history.losses
        replayed += not history.committed and bool(history.ends)
    print(f"{asked.histories} histories: {batches} batches, {losses} losses said, {replayed} without a committed batch")


if __name__ == "__main__":
    main()
