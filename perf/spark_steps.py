"""``python -m perf spark_steps``: what Python does for a micro-batch of ten rows by the format, without Spark.

Spark's own programs for it run here one after the other, as its workers run them: the plan of the write (which begins
the batch), the task, the commit, each fed with what the JVM would send. Prints CPU and time of each, the requests, and
the CPU of the collection of garbage that a worker does after each step where ``keep_loaded`` was not called.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import statistics
import struct
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark import serializers
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from pyspark.sql.worker import python_streaming_sink_runner, write_into_data_source

from fleetlog.spark.client.connections import shared_client
from fleetlog.spark.data_source import FleetlogSource
from fleetlog.spark.sink import writer
from fleetlog.spark.sink.options import WriteOptions
from perf.targets import TargetError
from perf.targets.fleetlog import Fleetlog

SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", StringType())])
RESULT = StructType([StructField("message", BinaryType())])
ROWS = 10
WIRE: Any = serializers
"""It has no types."""
PICKLES = WIRE.CPickleSerializer()
STEPS = ("plan", "task", "commit")


class Steps:
    """The steps of one query's micro-batches."""

    def __init__(self, bootstrap: str) -> None:
        given = {"kafka.bootstrap.servers": bootstrap, "topic": "steps", "sinkId": f"steps-{uuid.uuid4().hex}"}
        self._options = {name.lower(): value for name, value in {**given, "checkpointLocation": "/none"}.items()}
        keys = pa.array([str(number).encode() for number in range(ROWS)])
        self._rows = pa.record_batch([keys, pa.array(["x" * 200] * ROWS)], ["key", "value"])
        self._number = 0
        self.cpu_s: dict[str, list[float]] = {step: [] for step in STEPS}
        self.wall_s: dict[str, list[float]] = {step: [] for step in STEPS}
        self.requests: Counter[str] = Counter()
        manager: Any = shared_client(WriteOptions.parse(self._options).settings)._manager
        send = manager.send

        def counted(request: Any, *more: Any, **named: Any) -> Any:
            self.requests[type(request).__name__] += 1
            return send(request, *more, **named)

        manager.send = counted

    def micro_batch(self) -> None:
        """All three, measured."""
        planned = self._measured("plan", self._plan)
        message = self._measured("task", lambda: self._task(planned))
        self._measured("commit", lambda: self._commit(message))
        self._number += 1

    def _measured(self, step: str, run: Callable[[], Any]) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        found = run()
        self.cpu_s[step].append(time.process_time() - cpu)
        self.wall_s[step].append(time.perf_counter() - wall)
        return found

    def _plan(self) -> bytes:
        given = io.BytesIO()
        PICKLES._write_with_length(FleetlogSource, given)
        for text in ("fleetlog", SCHEMA.json(), RESULT.json()):
            WIRE.write_with_length(text.encode(), given)
        WIRE.write_int(len(self._options), given)
        for text in (part for pair in self._options.items() for part in pair):
            WIRE.write_with_length(text.encode(), given)
        given.write(struct.pack("???", False, True, True))  # overwrite, streaming, binary as bytes
        return _ran(write_into_data_source, given)

    def _task(self, planned: bytes) -> Any:
        function, _ = PICKLES._read_with_length(io.BytesIO(planned))
        (found,) = function(iter([self._rows]))
        return PICKLES.loads(found.column(0)[0].as_py())

    def _commit(self, message: Any) -> None:
        given = io.BytesIO()
        PICKLES._write_with_length(FleetlogSource(self._options), given)
        WIRE.write_with_length(SCHEMA.json().encode(), given)
        given.write(struct.pack("?", False))  # overwrite
        WIRE.write_int(1, given)
        PICKLES._write_with_length(message, given)
        WIRE.write_long(self._number, given)
        given.write(struct.pack("?", False))  # abort
        _ran(python_streaming_sink_runner, given)


def _ran(program: Any, given: io.BytesIO) -> bytes:
    given.seek(0)
    answer = io.BytesIO()
    program._main(given, answer)
    return answer.getvalue()


def _property(name: str) -> str:
    """A task's properties: there is no task here."""
    return "query" if name == "sql.streaming.queryId" else ""


def main() -> int:
    """Measure and print; 1 when the broker did not start."""
    parser = argparse.ArgumentParser(prog="python -m perf spark_steps", description=__doc__)
    parser.add_argument("--batches", type=int, default=100, help="how many are measured")
    parser.add_argument("--warmup", type=int, default=20, help="how many come before")
    given = parser.parse_args()
    writer._local_property = _property
    try:
        with Fleetlog(1).running() as cluster:
            cluster.create_topic("steps", 6)
            steps = Steps(cluster.bootstrap)
            with contextlib.redirect_stderr(io.StringIO()):  # a line for each commit
                for number in range(given.warmup + given.batches):
                    if number == given.warmup:
                        steps.requests.clear()
                    steps.micro_batch()
    except TargetError as problem:
        print(f"perf spark_steps: {problem}", file=sys.stderr)
        return 1
    for step in STEPS:
        cpu, wall = steps.cpu_s[step][given.warmup :], steps.wall_s[step][given.warmup :]
        mean, median = 1e3 * statistics.mean(cpu), 1e3 * statistics.median(wall)
        print(f"{step:<8} CPU {mean:.2f} ms, median of the time {median:.2f} ms")
    began = time.process_time()
    gc.collect()
    print(f"a collection of what is loaded: CPU {1e3 * (time.process_time() - began):.1f} ms")
    print(", ".join(f"{name} {count / given.batches:.2f}" for name, count in sorted(steps.requests.items())), "a batch")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
