"""``perf console``: what the console takes on a fleet of 1,000 topics: pages, searches, figures, memory, followers.

Three brokers and one ``fleetlog console`` that collects figures. Times are those of a client until the first byte; CPU
is that of the processes, which a busy machine changes less. The goals: 150 ms for any page, 100 ms for a search through
10,000 records of 1 KB and 800 ms with a filter that decodes, 100 MB resident, and 2 % of a core at all brokers together
while ten people follow a topic.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from fleetlog.brokers.console.web import PAGES as ROUTES
from perf.targets.fleetlog import Fleetlog

ROOT = Path(__file__).parents[1]
TOPICS, RECORDS, RECORD_BYTES, GROUPS, PEOPLE = 1_000, 10_000, 1_000, 20, 10
FOLLOW_S = 20.0
TIMES = 5
PAUSE_S = 0.4
"""Between two pages: doctor's page measures growth since the last look at sizes."""
IDLE_S = 60.0
FILLED = {
    "/brokers/{name}": "/brokers/1", "/brokers/{name}/setting": "/brokers/1/setting?name=log.retention.ms",
    "/topics/{name}/setting": "/topics/records/setting?name=retention.ms",
    "/topics/{name}/record": "/topics/records/record?partition=0&offset=5",
    "/find": "/find?q=topic-00", "/group": "/group?name=group-01",
    "/group/setting": "/group/setting?group=group-01&name=share.auto.offset.reset",
}  # fmt: skip
"""The routes that need a parameter, beside the topic's name."""
OF_A_REGISTRY = {"/schemas", "/schema", "/refused"}
"""What these take is the registry's, and none runs here."""
PAGES = {
    **{
        route: FILLED.get(route, route.replace("/topics/{name}", "/topics/records"))
        for route, _, _ in ROUTES if route not in OF_A_REGISTRY
    },
    "topics by records": "/topics?sort=-records",
    "search": "/topics/records/messages?from=beginning&contains=absent",
    "filter": "/topics/records/messages?from=beginning&filter=value.number%20%3C%200",
}  # fmt: skip
"""Every page that the console has, and what else is done on some."""
GOALS = {
    "any page, ms": 150, "search, ms": 100, "filter, ms": 800, "resident, MB": 100, "following, % of a core": 2,
}  # fmt: skip
_WHOLE_PROCESS: Final = 2
"""Which of a process's clocks: that of all its threads' CPU, to the nanosecond (``CPUCLOCK_SCHED`` of Linux)."""


class Taken(NamedTuple):
    """Seconds on the clock, and of the console's CPU."""

    wall_s: float
    cpu_s: float


def cpu_s(pids: Iterable[int]) -> float:
    """CPU that the processes have used."""
    return sum(time.clock_gettime(~pid << 3 | _WHOLE_PROCESS) for pid in pids)


def memory_mb(pid: int, name: str) -> float:
    """``VmRSS`` or ``VmHWM`` of a process."""
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith(name))
    return int(line.split()[1]) * 1024 / 1e6


class ConsoleProcess:
    """``fleetlog console`` at any free port."""

    def __init__(self, bootstrap: str, figures: str) -> None:
        command = [
            sys.executable, "-m", "fleetlog.brokers.cli.main", "console", "--port", "0", "--json", "-b", bootstrap,
            "--figures-dir", figures,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        assert self.process.stdout is not None
        head = b""
        while not head.rstrip().endswith(b"}"):
            head += self.process.stdout.readline()
        self.address = urlsplit(json.loads(head)["url"]).netloc

    def get(self, path: str, as_json: bool = False) -> bytes:
        """A page. Raises RuntimeError for any answer but 200."""
        connection = http.client.HTTPConnection(self.address, timeout=120)
        try:
            connection.request("GET", path, headers={"Accept": "application/json"} if as_json else {})
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:300]!r}")
        return body

    def timed(self, path: str) -> Taken:
        """One page, which is sent when it is made as a whole."""
        time.sleep(PAUSE_S)
        begun_s, begun_cpu_s = time.perf_counter(), cpu_s([self.process.pid])
        self.get(path)
        return Taken(time.perf_counter() - begun_s, cpu_s([self.process.pid]) - begun_cpu_s)

    def close(self) -> None:
        """SIGTERM."""
        self.process.terminate()
        self.process.wait(20)


def fill(fleet: Fleetlog, topics: int) -> None:
    """Topics of one partition, one of three with the records, and groups that have read some."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    names = [f"topic-{number:04}" for number in range(topics - 1)]
    for begin in range(0, len(names), 200):
        some = [NewTopic(name, 1, 3) for name in names[begin : begin + 200]]
        for done in fleet.admin.create_topics(some, request_timeout=120).values():
            done.result(120)
    fleet.create_topic("records", 3, 3)
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "linger.ms": 20})
    for number in range(RECORDS):
        value = b'{"number": %d, "text": "' % number
        producer.produce("records", value + b"x" * (RECORD_BYTES - len(value) - 2) + b'"}', partition=number % 3)
        producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("not all records were written")
    for number in range(GROUPS):
        consumer = Consumer({"bootstrap.servers": fleet.bootstrap, "group.id": f"group-{number:02}"})
        consumer.commit(offsets=[TopicPartition("records", one, number) for one in range(3)], asynchronous=False)
        consumer.close()


def following(console: ConsoleProcess, fleet: Fleetlog, seconds: float) -> tuple[float, float]:
    """The brokers' CPU as a share of a core: while nothing happens, and while ten people follow a topic."""
    pids = [broker.pid for broker in fleet.brokers]

    def share(work: Callable[[], None]) -> float:
        begun_s, begun_cpu_s = time.perf_counter(), cpu_s(pids)
        work()
        return (cpu_s(pids) - begun_cpu_s) / (time.perf_counter() - begun_s)

    def one_person() -> None:
        cursor, end_s = "", time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            path = f"/topics/records/messages?from=end&count=50&format=json&cursor={cursor}"
            page: dict[str, Any] = json.loads(console.get(path))
            cursor = "" if page["following"] else page["reached"]
            time.sleep(1)

    def ten_people() -> None:
        people = [threading.Thread(target=one_person) for _ in range(PEOPLE)]
        for one in people:
            one.start()
        for one in people:
            one.join()

    return share(lambda: time.sleep(seconds)), share(ten_people)


def main() -> int:
    """Measure and print; nothing is kept."""
    parser = argparse.ArgumentParser(prog="python -m perf console", description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS)
    parser.add_argument("--seconds", type=float, default=FOLLOW_S, help="how long the topic is followed")
    found = parser.parse_args()
    with Fleetlog(3).running() as fleet, TemporaryDirectory() as figures:
        fill(fleet, found.topics)
        console = ConsoleProcess(fleet.bootstrap, figures)
        try:
            pid = console.process.pid
            first = console.timed("/")
            print(f"{'page':<26}{'median ms':>10}{'worst ms':>10}{'CPU ms':>10}")
            print(f"{'the very first':<26}{first.wall_s * 1000:>10.0f}{'':>10}{first.cpu_s * 1000:>10.0f}")
            for name, path in PAGES.items():
                taken = [console.timed(path) for _ in range(TIMES)]
                median = statistics.median(one.wall_s for one in taken)
                worst, cpu = max(one.wall_s for one in taken), statistics.median(one.cpu_s for one in taken)
                print(f"{name:<26}{median * 1000:>10.0f}{worst * 1000:>10.0f}{cpu * 1000:>10.0f}", flush=True)
            quiet, followed = following(console, fleet, found.seconds)
            begun_cpu_s = cpu_s([pid])
            time.sleep(IDLE_S)
            print(f"figures: {(cpu_s([pid]) - begun_cpu_s) / IDLE_S:.1%} of a core")
            print(f"resident {memory_mb(pid, 'VmRSS'):.0f} MB, at most {memory_mb(pid, 'VmHWM'):.0f} MB")
            print(f"brokers' CPU: {quiet:.1%} of a core idle, {followed:.1%} while {PEOPLE} people follow a topic")
        finally:
            console.close()
    print("goals: " + ", ".join(f"{name} {goal}" for name, goal in GOALS.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
