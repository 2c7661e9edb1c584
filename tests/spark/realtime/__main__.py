"""Spark's stock Kafka sink in real-time mode, killed again and again, into a topic that drops what is repeated.

``python -m tests.spark.realtime --seconds 120 --rate 2000 --kills 10`` runs three brokers, a writer, a reader and the
query, each a process of its own. The first half is quiet: its end-to-end times are printed. In the second one the
query's process gets SIGKILL ``--kills`` times, each time at a random moment after new records have come, and the
leader of a partition of the target gets it once. At the end each output record must be there once: exit status 0.
``--plain`` is the control: a target like any other, in which duplicates are wanted.

It needs Java and Maven, which fetches Spark's connector; it takes minutes, so no test runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from array import array
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from harness.spark_connector import connector
from tests.spark.realtime.traffic import key_of
from tests.support.copies import Cluster
from tests.support.fleet import Fleet

ROOT = Path(__file__).parents[3]
PARTITIONS = 2
START_S = 300.0
"""How long a started query may take until records come, on a machine that does other things as well."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Part:
    """A process whose lines are kept; the last one is JSON or a number."""

    def __init__(self, module: str, *arguments: str, log: Path) -> None:
        command = [sys.executable, "-m", f"tests.spark.realtime.{module}", *arguments]
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, cwd=ROOT, text=True,
                start_new_session=True,
            )  # fmt: skip
        self.last = ""
        self.batches = 0
        self._log = log
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last = line.strip()
            self.batches += '"batch"' in line

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL for the process and for its Java."""
        if not self.ended:
            os.killpg(self._process.pid, 9)
        self._process.wait()

    def finish(self, timeout_s: float) -> None:
        """Standard input ends; AssertionError unless it ends well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout_s) == 0, self.said()
        self._reader.join()

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


class Seen(NamedTuple):
    records: int
    distinct: int
    errors: int


class Run:
    """One run with all its parts."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.options, self.directory = options, directory
        self.rng = random.Random(options.seed)
        self.jars, name = connector()
        say(name)
        self.fleet = Fleet(directory / "fleet")
        self.parts: list[Part] = []
        self.starts = 0

    def part(self, module: str, *arguments: str) -> Part:
        log = self.directory / f"{module}-{arguments[0] if module == 'traffic' else self.starts}.log"
        made = Part(module, *arguments, log=log)
        self.parts.append(made)
        return made

    def begin(self) -> None:
        self.cluster = Cluster(self.fleet.start())
        self.cluster.create("source", PARTITIONS, min_insync_replicas=2)
        dedup = {} if self.options.plain else {"fleetlog_dedup": "source"}
        self.cluster.create("target", PARTITIONS, min_insync_replicas=2, **dedup)
        bootstrap, self.figures = self.fleet.bootstrap, self.directory / "figures"
        self.reader = self.part("traffic", "read", bootstrap, "target", str(self.figures))
        self.start_query()
        self.writer = self.part("traffic", "write", bootstrap, "source", str(self.options.rate))

    def start_query(self) -> None:
        self.starts += 1
        given = {"bootstrap": self.fleet.bootstrap, "source": "source", "target": "target", "jars": self.jars,
                 "checkpoint": str(self.directory / "checkpoint"), "batch": self.options.batch}  # fmt: skip
        self.query = self.part("query", json.dumps(given))

    @property
    def seen(self) -> Seen:
        return Seen(**json.loads(self.reader.last)) if self.reader.last else Seen(0, 0, 0)

    def wait_new(self, beyond: int) -> None:
        """Until more distinct records are there than ``beyond``; a query that failed is started again."""
        until = time.monotonic() + START_S
        while self.seen.distinct <= beyond:
            assert time.monotonic() < until, f"no new record for {START_S} s: {self.seen}\n{self.query.said()}"
            assert not self.reader.ended, self.reader.said()
            assert not self.writer.ended, self.writer.said()
            self.revive()
            time.sleep(0.2)

    def revive(self) -> None:
        if self.query.ended:
            say(f"the query ended by itself: {self.query.said()[-600:]}")
            self.start_query()

    def rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.revive()
            time.sleep(0.2)

    def kills(self) -> None:
        broker_at = self.options.kills // 2
        for turn in range(self.options.kills):
            self.wait_new(self.seen.distinct)
            self.rest(self.rng.uniform(0, 1.5 * self.options.batch))
            victim = self.cluster.leader("target", 0) if turn == broker_at else None
            if victim is not None:
                victim.kill()
                say(f"broker {victim.id} killed, which led a partition of the target")
                self.rest(self.rng.uniform(0, 2))
            before, batches = self.seen, self.query.batches
            self.query.kill()
            say(f"kill {turn + 1}: {batches} batches since its start, {before.distinct} distinct records")
            if victim is not None:
                victim.start()
                victim.wait_ready()
            self.start_query()
            self.wait_new(self.seen.distinct)

    def end(self) -> int:
        """All that was sent must come; how many that was."""
        self.writer.finish(150)
        sent = int(self.writer.last)
        wanted = sum(len(outputs(number)) for number in range(sent))
        last, until = self.seen, time.monotonic() + START_S
        while last.distinct < wanted and time.monotonic() < until:
            self.revive()
            time.sleep(0.5)
            if self.seen.distinct > last.distinct:
                last, until = self.seen, time.monotonic() + 60
        time.sleep(3)  # for a record more than wanted
        self.query.kill()
        time.sleep(2)
        self.reader.finish(60)
        return sent

    def dropped(self) -> int:
        """Duplicates that the brokers dropped since they were started."""
        total = 0.0
        for broker in self.cluster.running:
            with urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            total += sum(float(one) for one in re.findall(r"^fleetlog_dedup_dropped_records\{.*\} (\S+)$", text, re.M))
        return int(total)

    def close(self) -> None:
        for part in self.parts:
            part.kill()
        self.fleet.close()


def outputs(number: int) -> range:
    """The ordinals that the query makes of a record: two of a fourth of the keys, one of the others."""
    return range(2 if zlib.crc32(key_of(number)) % 4 == 0 else 1)


def latencies(figures: Path, since: float, until: float) -> str:
    """Of the records that were sent between the two (seconds)."""
    rows = array("q", figures.read_bytes())
    took = sorted(
        (came - sent) / 1000
        for sent, came in zip(rows[2::4], rows[3::4], strict=True)
        if since * 1e6 <= sent < until * 1e6
    )
    if not took:
        return "no record"
    at = {name: took[min(len(took) - 1, int(len(took) * part))] for name, part in
          (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))}  # fmt: skip
    shown = ", ".join(f"{name} {value:.1f} ms" for name, value in at.items())
    return f"{len(took)} records: {shown}, longest {took[-1]:.0f} ms"


def count(figures: Path, sent: int) -> tuple[int, int, int]:
    """(duplicates, missing, never sent)."""
    rows = array("q", figures.read_bytes())
    found = Counter(zip(rows[0::4], rows[1::4], strict=True))
    wanted = {(number, ordinal) for number in range(sent) for ordinal in outputs(number)}
    return sum(found.values()) - len(found), len(wanted - found.keys()), len(found.keys() - wanted)


def run(options: argparse.Namespace, directory: Path) -> int:
    this = Run(options, directory)
    try:
        this.begin()
        this.wait_new(0)
        say("the first records came")
        this.rest(10)
        quiet_since = time.time()
        this.rest(options.seconds / 2)
        quiet_until = time.time()
        this.kills()
        this.rest(max(0.0, options.seconds - (time.time() - quiet_since)))
        sent = this.end()
        errors = this.seen.errors
        duplicates, missing, strange = count(this.figures, sent)
        dropped = this.dropped()
        mistakes = [] if options.plain else this.cluster.mistakes()
        say(f"end to end, while nothing was killed: {latencies(this.figures, quiet_since, quiet_until)}")
        say(f"{sent} records sent, the query started {this.starts} times; dropped as repeated: {dropped}; "
            f"duplicates: {duplicates}, missing: {missing}, never sent: {strange}; "
            f"errors that the reader was told: {errors}")  # fmt: skip
        for mistake in mistakes:
            say(mistake)
        if options.plain:
            return 0 if duplicates and not missing and not strange else 1
        if options.kills and not dropped:
            say("nothing was repeated, so nothing is proved")
            return 1
        return 1 if duplicates or missing or strange or errors or mistakes else 0
    finally:
        this.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.realtime", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long records are sent, at least")
    parser.add_argument("--rate", type=int, default=2000, help="records a second into the source")
    parser.add_argument("--kills", type=int, default=10, help="SIGKILLs of the query")
    parser.add_argument("--batch", type=int, default=10, help="seconds of a batch, 5 at least")
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which is killed")
    parser.add_argument("--plain", action="store_true", help="the control: a target that takes what is repeated")
    parser.add_argument("--directory", type=Path, help="an empty one for logs and data, which are left there")
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="realtime-"))
    status = run(options, directory)
    if status == 0 and options.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        say(f"what its processes said stands in {directory}")
    return status


if __name__ == "__main__":
    sys.exit(main())
