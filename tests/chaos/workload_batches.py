"""Batches as Spark's sink writes them, by the executors' own client: several members, losers, aborts, one fence."""

from __future__ import annotations

import pyarrow as pa

from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.failures import ClientError, FenceConflict, TaskFenced
from fleetlog.spark.client.producer import MemberProducer, TaskMember, WriteSettings
from fleetlog.spark.sink.batch_transactions import BatchTransactions, OpenBatch
from tests.chaos.login import python as python_login
from tests.chaos.outcomes import text_of
from tests.chaos.recorder import Recorder, RoleControl, pack

QUERY = "chaos"
TRANSACTION_TIMEOUT_MS = 10_000
CALL_MS = 20_000
ABORT = 1 / 10
LOSER = 1 / 3
"""How often a member writes that is not among the winners."""
DELAY_MAX_S = 0.5


class Driver:
    """One sink's driver and its tasks, in one process."""

    def __init__(
        self, recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, partitions: int, sink: str
    ) -> None:
        self._recorder, self._control = recorder, control
        self._topic, self._partitions, self._name = topic, partitions, sink
        self._client = Client(python_login(bootstrap), CALL_MS)
        self._sink = BatchTransactions(self._client, sink, CALL_MS)
        self._settings = WriteSettings(topic, delivery_timeout_ms=TRANSACTION_TIMEOUT_MS)

    def run(self) -> None:
        """One batch after the other; a failed one is tried again. Raises what ends this driver."""
        while self._control.on:
            start = self._recorder.now()
            batch = self._sink.begin(TRANSACTION_TIMEOUT_MS)
            last = -1 if batch.fence is None else batch.fence.batch_id
            self._recorder.single("fence", start, sink=self._name, id=last)
            self._write(batch, last + 1)
            self._control.pause(self._control.rng.random() * DELAY_MAX_S)

    def _write(self, batch: OpenBatch, batch_id: int) -> None:
        rng, recorder = self._control.rng, self._recorder
        name = recorder.begin("txn", batch=[self._name, batch_id])
        committing = False
        try:
            winners = [self._task(batch, name, task) for task in range(rng.randint(1, 3))]
            if rng.random() < LOSER:
                self._task(batch, recorder.begin("txn"), 0)  # never commits: it must not be seen
            if rng.random() < 0.3:
                self._control.pause(rng.random() * DELAY_MAX_S)
            if rng.random() < ABORT:
                self._sink.abort(batch)
                recorder.then(name, "fail", error="on purpose")
                return
            recorder.then(name, "committing")
            committing = True
            self._sink.commit(batch, QUERY, batch_id, "", winners)
        except (TaskFenced, FenceConflict, ClientError) as problem:
            recorder.then(name, "info" if committing else "fail", error=text_of(problem))
            return
        recorder.then(name, "ok")

    def _task(self, batch: OpenBatch, name: dict[str, object], task: int) -> TaskMember:
        """Rows for some partitions by a member of its own, acknowledged when this returns."""
        rng = self._control.rng
        (member,) = self._sink.enlist(batch)
        producer = MemberProducer(self._client, self._name, member, self._settings)
        for run in range(rng.randint(1, 2)):
            values, places = [], []
            for row in range(rng.randint(1, 4)):
                place = rng.randrange(self._partitions)
                value = f"{self._recorder.proc}.{name['n']}.{task}.{run}.{row}"
                self._recorder.then(name, "send", k=f"{self._topic}/{place}", v=value)
                values.append(pack(value))
                places.append(place)
            producer.write(pa.record_batch([pa.array(values), pa.array(places, pa.int32())], ["value", "partition"]))
            if rng.random() < 0.3:
                self._control.pause(rng.random() * DELAY_MAX_S)
        producer.flush()
        return member


def driver(recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, partitions: int, sink: str) -> None:
    """Play a driver of one sink, under the sink's name in all its processes."""
    Driver(recorder, control, bootstrap, topic, partitions, sink).run()
