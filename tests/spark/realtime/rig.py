"""One run: three brokers, a writer, a reader, the query, and what is killed of them."""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from harness.spark_connector import connector
from tests.spark.realtime import figures
from tests.spark.realtime.parts import Part, Query, busy_s, cpu_s
from tests.spark.realtime.traffic import now_us
from tests.support.copies import Cluster
from tests.support.fleet import Broker, Fleet
from tests.support.waiting import eventually

PARTITIONS = 2
START_S = 200.0
"""How long a started query may take until records come, on a machine that does other things as well."""
DRAIN_S = 60.0
"""How long no new record may come at the end before the rest counts as missing."""
DEDUP = {"fleetlog_dedup": "source", "fleetlog_dedup_max_bytes": 64 << 20}
TURNS = (*["executor"] * 4, *["executor leader"] * 4, "executor executor", "executor executor leader",
         "broker", "driver", "driver leader")  # fmt: skip
"""What is killed together, drawn by the seed; the leader is that of a partition of the target."""
IN_SYNC_S = 120.0


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Run:
    """One run with all its parts."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.options, self.directory = options, directory
        self.rng = random.Random(options.seed)
        self.jars, self.connector = connector()
        self.fleet = Fleet(directory / "fleet")
        self.parts: list[Part] = []
        self.starts = self.forgotten = 0
        self.killed: Counter[str] = Counter()

    def begin(self) -> None:
        self.cluster = Cluster(self.fleet.start())
        self.cluster.create("source", PARTITIONS, min_insync_replicas=2)
        dedup = {} if self.options.control else DEDUP
        self.cluster.create("target", PARTITIONS, min_insync_replicas=2, **dedup)
        bootstrap, self.figures = self.fleet.bootstrap, self.directory / "figures"
        self.reader = self.traffic("read", bootstrap, "target", str(self.figures))
        self.start_query()
        eventually(lambda: self.query.runs or self.query.ended, "the query runs", START_S)
        self.writer = self.traffic("write", bootstrap, "source", str(self.options.rate), str(self.options.linger))

    def traffic(self, *arguments: str) -> Part:
        made = Part("traffic", *arguments, log=self.directory / f"{arguments[0]}.log")
        self.parts.append(made)
        return made

    def start_query(self) -> None:
        self.starts += 1
        given = {"bootstrap": self.fleet.bootstrap, "source": "source", "target": "target", "jars": self.jars,
                 "checkpoint": str(self.directory / "checkpoint"), "batch": self.options.batch,
                 "master": self.options.master, "directory": str(self.directory),
                 "reading": {f"kafka.{name}": value for name, value in self.options.reading},
                 "writing": {f"kafka.{name}": value for name, value in self.options.writing}}  # fmt: skip
        self.query = Query(json.dumps(given), log=self.directory / f"query-{self.starts}.log")
        self.parts.append(self.query)

    def seen(self, what: str = "distinct") -> int:
        return int(self.reader.last[what]) if self.reader.last else 0

    def wait_new(self, more: int = 1) -> None:
        """Until so many more distinct records are there than now; a driver that ended is started again."""
        wanted, until = self.seen() + more, time.monotonic() + START_S
        while self.seen() < wanted:
            assert time.monotonic() < until, f"no new record for {START_S} s: {self.seen()}\n{self.query.said()}"
            self.rest(0.2)

    def rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            assert not self.reader.ended, self.reader.said()
            assert not self.writer.ended, self.writer.said()
            self.revive()
            if time.monotonic() >= until:
                return
            time.sleep(0.1)

    def revive(self) -> None:
        if self.query.ended:
            say(f"the driver ended by itself: {self.query.said()[-600:]}")
            self.start_query()

    # ---- kills -----------------------------------------------------------------------------------------------------

    def kills(self, until: float) -> None:
        """Turn after turn, until the time (monotonic) or the number of kills is reached."""
        while self.killed.total() < self.options.kills and time.monotonic() < until:
            self.wait_new(self.options.rate // 2)
            if self.rng.random() < 0.4:
                self.wait_batch()
            self.rest(self.rng.uniform(0, self.options.batch))
            what = self.rng.choice(TURNS)
            before, batches = self.dropped(), self.query.batches
            self.turn(what.split())
            say(f"{self.killed.total()} kills: {what}; {batches} batches of this driver, {self.seen()} distinct "
                f"records, {before} dropped before")  # fmt: skip

    def wait_batch(self) -> None:
        """Until a batch of this driver ends, so that not everything is repeated from the start again and again."""
        until, batches, driver = time.monotonic() + 6 * self.options.batch, self.query.batches, self.starts
        while self.query.batches == batches and self.starts == driver and time.monotonic() < until:
            self.rest(0.1)

    def turn(self, what: list[str]) -> None:
        victim: Broker | None = None
        if what[-1] in ("broker", "leader"):
            self.wait_in_sync()
            leads = self.cluster.leader("target", self.rng.randrange(PARTITIONS))
            victim = leads if what[-1] == "leader" else self.rng.choice(self.cluster.running)
            self.forgotten += self.dropped_by(victim)
            victim.kill()
            self.killed["broker"] += 1
            self.rest(self.rng.choice((0, self.rng.uniform(0, 2))) if len(what) > 1 else 0)
        for _ in range(what.count("executor")):
            self.kill_executor()
        if "driver" in what:
            self.query.kill_driver()
            self.killed["driver"] += 1
            self.start_query()
        if victim is not None:
            self.rest(self.rng.uniform(0, 2))
            victim.start()
            victim.wait_ready()

    def kill_executor(self) -> None:
        """One of the driver's; none lives while the last one that was killed is being replaced."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            living = self.query.executors()
            if living and self.query.kill_executor(self.rng.choice(living)):
                self.killed["executor"] += 1
                return
            self.rest(0.1)
        raise AssertionError(f"no executor for {START_S} s: {self.query.said()}")

    def wait_in_sync(self) -> None:
        """A broker is killed while all others have everything, as more is not promised."""
        everyone = {broker.id for broker in self.cluster.running}
        for topic in ("source", "target"):
            for partition in range(PARTITIONS):
                self.cluster.wait_isr(topic, everyone, partition, IN_SYNC_S)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def end(self) -> int:
        """All that was sent must come; how many that was."""
        self.writer.finish(310)
        sent = int(self.writer.last)
        must, last, until = int(figures.wanted(sent).sum()), self.seen(), time.monotonic() + DRAIN_S
        while last < must and time.monotonic() < until:
            self.revive()
            time.sleep(0.2)
            if self.seen() > last:
                last, until = self.seen(), time.monotonic() + DRAIN_S
        time.sleep(3)  # for a record more than wanted
        self.query.kill()
        time.sleep(2)
        self.reader.finish(60)
        return sent

    def dropped(self) -> int:
        """Duplicates that brokers dropped; of a killed one, what it had last said."""
        return self.forgotten + sum(map(self.dropped_by, self.cluster.running))

    def dropped_by(self, broker: Broker) -> int:
        with urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return int(
            sum(float(one) for one in re.findall(r"^fleetlog_dedup_dropped_records\{.*\} (\S+)$", text, re.MULTILINE))
        )

    def cpu_s(self) -> dict[str, float]:
        """Processor time of what runs now, by part; without ZooKeeper, which has next to nothing to do."""
        executors = set(self.query.executors())
        groups = {
            "brokers": [broker.process.pid for broker in self.cluster.running if broker.process is not None],
            "writer": self.writer.processes(),
            "reader": self.reader.processes(),
            "executors": executors,
            "driver": set(self.query.processes()) - executors,
        }
        return {name: sum(map(cpu_s, group)) for name, group in groups.items()}

    def close(self) -> None:
        for part in self.parts:
            part.kill()
        self.fleet.close()

    def whole(self) -> dict[str, Any]:
        """The run from its begin to its end, and what was found."""
        options = self.options
        self.begin()
        self.wait_new()
        say(f"the first records came ({self.connector})")
        self.writer.begin()
        stop = time.monotonic() + options.seconds
        self.rest(options.warm)
        since, own, all_cores = now_us(), self.cpu_s(), busy_s()
        if options.kills:
            self.kills(stop)
        self.rest(stop - time.monotonic())
        until = now_us()
        seconds = (until - since) / 1e6
        cores = {name: round((used - own[name]) / seconds, 2) for name, used in self.cpu_s().items()}
        cores["machine"] = round((busy_s() - all_cores) / seconds, 2)
        ending = time.monotonic()
        sent = self.end()
        rows = figures.load(self.figures)
        verdict = figures.judge(rows, sent)
        return {
            "seed": options.seed, "rate": options.rate, "batch": options.batch, "control": options.control,
            "sent": sent, "killed": dict(self.killed), "drivers": self.starts, "dropped": self.dropped(),
            **verdict._asdict(), "errors": self.seen("errors"),
            "mistakes": [] if options.control else self.cluster.mistakes(),
            "drained_s": round(time.monotonic() - ending, 1), "quiet": not options.kills,
            "cores": {} if options.kills else cores, "p99_by_second": figures.by_second(rows, since, until, 0.99),
            "histogram": figures.histogram(rows, since, until),
        }  # fmt: skip
