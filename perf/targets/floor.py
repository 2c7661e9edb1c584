"""The C program that does the least possible (``perf/floor/server.c``)."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

from perf import build
from perf.targets.base import Address, Cluster, TargetError

SOURCE = Path(__file__).parents[1] / "floor" / "server.c"
MAX_PARTITIONS = 64


class Floor(Cluster):
    """One process that appends to files and sends from files. Its topics are only names."""

    label = "floor"

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(1, directory)
        self._topics: dict[str, int] = {}

    def start(self) -> None:
        """Start it and wait until it listens."""
        (broker,) = self.brokers
        binary = build.program(SOURCE)
        (broker.directory / "data").mkdir(exist_ok=True)
        broker.launch([str(binary), str(broker.address.port), str(broker.directory / "data")])
        for _ in range(500):
            try:
                socket.create_connection(broker.address, timeout=1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return
        raise TargetError(f"the floor program does not listen:\n{broker.output()}")

    def create_topic(self, name: str, partitions: int = 1, replicas: int = 1, **config: object) -> None:
        """It has one topic at a time: a new one starts with a new process."""
        assert partitions <= MAX_PARTITIONS, "the floor program has 64 files"
        self._restart()
        self._topics[name] = partitions

    def delete_topic(self, name: str) -> None:
        """Drop the files."""
        del self._topics[name]
        self._restart()

    def _restart(self) -> None:
        (broker,) = self.brokers
        broker.end()
        shutil.rmtree(broker.directory / "data", ignore_errors=True)
        self.start()

    def leaders(self, topic: str) -> dict[int, Address]:
        """Itself."""
        return dict.fromkeys(range(self._topics[topic]), self.brokers[0].address)
