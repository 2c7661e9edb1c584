"""Crashes in the middle of the query: a broker that leads, and a Python worker of an executor, killed with SIGKILL."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from examples.access import FleetAccess
from examples.flights import fleet
from examples.flights.steps import Say, StepFailed

FAILOVER_S = 30.0
IN_SYNC_S = 60.0
POLL_S = 0.05
WORKER_S = 20.0
WORKER_POLL_S = 0.01
"""The kernel counts CPU in hundredths of a second, and a small batch takes a few of them."""
STANDS_S = 12.0
"""A batch that is not written by then, while its workers stand still, waits for one of them."""


class BrokerCrash:
    """One broker dies when ``batch`` is through, which is when the next one begins, and comes back a batch later.

    It is the broker that leads the first partition of ``topic``. Driven by the events of the query.
    """

    def __init__(self, directory: Path, access: FleetAccess, topic: str, batch: int, say: Say) -> None:
        self._directory = directory
        self._admin = AdminClient({**access.librdkafka(), "log_level": 3})
        self._topic = topic
        self._batch = batch
        self._say = say
        self._down = False
        self.broker_id = -1
        self.failover_s = -1.0
        self.batches_without: list[int] = []

    def on_event(self, event: dict[str, Any]) -> None:
        """What the query just did."""
        through = event["stage"] in ("committed", "skipped")
        if through and event["batch"] == self._batch and self.broker_id < 0:
            self._kill()
        elif through and self._down:
            self.batches_without.append(event["batch"])
            self._start()

    def _kill(self) -> None:
        led = self._leaders()
        self.broker_id = led[0]
        count = sum(leader == self.broker_id for leader in led.values())
        fleet.kill(self._directory, self.broker_id)
        self._down = True
        killed = time.monotonic()
        self._say(f"broker {self.broker_id}, which leads {count} of {len(led)} partitions, killed with SIGKILL")
        self._wait(
            lambda: all(leader not in (-1, self.broker_id) for leader in self._leaders().values()),
            FAILOVER_S,
            "not every partition has a new leader",
        )
        self.failover_s = time.monotonic() - killed
        self._say(f"other brokers lead after {self.failover_s:.1f} s")

    def _start(self) -> None:
        fleet.start(self._directory, self.broker_id)
        self._down = False
        self._say(f"broker {self.broker_id} is back")

    def settle(self) -> str:
        """Wait until every replica is in sync again; the evidence in words. Raises StepFailed."""
        if self.broker_id < 0:
            raise StepFailed("no broker was killed: the query did not come as far")
        if self._down:
            self._start()
        begun = time.monotonic()
        self._wait(self._in_sync, IN_SYNC_S, "not every replica is in sync again")
        waited = time.monotonic() - begun
        missed = ", ".join(map(str, self.batches_without)) or "none"
        return (
            f"broker {self.broker_id}: others led after {self.failover_s:.1f} s; committed without it: batch {missed}; "
            f"all replicas in sync {waited:.1f} s after the query's end"
        )

    def _partitions(self) -> dict[int, Any]:
        found = self._admin.list_topics(self._topic, timeout=10).topics[self._topic].partitions
        return dict(sorted(found.items()))

    def _leaders(self) -> dict[int, int]:
        return {number: partition.leader for number, partition in self._partitions().items()}

    def _in_sync(self) -> bool:
        return all(set(one.isrs) == set(one.replicas) for one in self._partitions().values())

    def _wait(self, ready: Callable[[], bool], timeout_s: float, complaint: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > deadline:
                raise StepFailed(f"{complaint} {timeout_s:.0f} s after broker {self.broker_id} was killed")
            time.sleep(POLL_S)


class WorkerCrash:
    """Executors' Python workers die in the midst of a task, in ``batch`` or after; Spark runs the task again.

    Driven by events, too. Whether a worker is in a task or between two cannot be seen from outside. So all are stopped
    first. Is the batch written all the same, then they were between two, go on, and the next batch is tried. Is it not,
    then it waits for one of them, and they are killed.
    """

    def __init__(self, batch: int, say: Say) -> None:
        self._from = batch
        self._say = say
        self._batch = -1
        self._stopped: list[int] = []
        self._killer: threading.Timer | None = None
        self.failed_tasks = 0
        self.rows = 0

    def on_event(self, event: dict[str, Any]) -> None:
        """What the query just did."""
        if event.get("batch", -1) < self._from or self.failed_tasks:
            return
        if event["stage"] == "begun":
            self._stop(event["pid"], event["batch"])
        elif event["stage"] == "written" and event["batch"] == self._batch:
            self._let_go()
            self.failed_tasks, self.rows = event["failed_tasks"], event["rows"]

    def _stop(self, driver: int, batch: int) -> None:
        """All workers stand still, as soon as one of them has been seen at work."""
        before = workers(driver)
        deadline = time.monotonic() + WORKER_S
        while time.monotonic() < deadline:
            now = workers(driver)
            if any(used > before.get(pid, 0) for pid, used in now.items()):
                self._batch, self._stopped = batch, sorted(now)
                _signal(self._stopped, signal.SIGSTOP)
                self._killer = threading.Timer(STANDS_S, self._kill)
                self._killer.start()
                return
            before = now
            time.sleep(WORKER_POLL_S)

    def _kill(self) -> None:
        _signal(self._stopped, signal.SIGKILL)
        pids = ", ".join(map(str, self._stopped))
        self._say(f"Python workers {pids}, in the midst of batch {self._batch}, killed with SIGKILL")

    def _let_go(self) -> None:
        """They were between two tasks, or are dead already."""
        if self._killer is not None:
            self._killer.cancel()
            self._killer.join()
            _signal(self._stopped, signal.SIGCONT)

    def evidence(self) -> str:
        """In words."""
        if self._batch < 0:
            return "no worker was seen at work"
        return f"{self.failed_tasks} failed tasks in batch {self._batch}, run again; {self.rows:,} rows written"


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # it ended meanwhile


def workers(driver: int) -> dict[int, int]:
    """The Python workers of a driver's tasks, by pid with their CPU so far: forks of the daemon that Spark keeps."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    daemons: set[int] = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"pyspark.daemon\0pyspark.worker" in (entry / "cmdline").read_bytes():
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                pid = int(entry.name)
                parents[pid], used[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
                if int(fields[3]) == driver:  # the session: this driver's, not another's
                    daemons.add(pid)
        except OSError:
            continue  # it ended meanwhile
    return {pid: used[pid] for pid in daemons if parents[pid] in daemons}
