"""The crash of a broker in the middle of the query: killed with SIGKILL while it leads, back while Spark goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from examples.flights import fleet
from examples.flights.steps import Say, StepFailed

FAILOVER_S = 30.0
IN_SYNC_S = 60.0
POLL_S = 0.05


class BrokerCrash:
    """One broker dies when ``batch`` is through, which is when the next one begins, and comes back a batch later.

    It is the broker that leads the first partition of ``topic``. Driven by the events of the query.
    """

    def __init__(self, directory: Path, bootstrap: str, topic: str, batch: int, say: Say) -> None:
        self._directory = directory
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
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
