"""The chaos run: ``python -m tests.chaos.run --minutes 10 --seed 1``, as root.

Four brokers and three ZooKeeper nodes under two dozen clients and random faults, by the seed; then everything is
healed, read and checked. Ends with 0 only when nothing was wrong and enough happened to say so, with 1 when something
was wrong, with 2 when the run did not start (something that it needs is missing, or the fleet did not come up), with 3
when too little happened to say anything, with 4 when the run broke off or its history could not be judged, and with 5
when the checker did not see a corruption that was planted. Only 2 and 3 say nothing about the product or the checker.
The directory with the history is printed; nothing in it is deleted except the disks of a clean run. ``--ci`` is the
short run with the least demands that still mean something.
"""

from __future__ import annotations

import argparse
import heapq
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fleetlog.brokers.cli.dev_security import ADMIN
from tests.chaos import bucket, corrupt, workload_shares
from tests.chaos.batch_copies import batches_of_duplicates
from tests.chaos.checker import check
from tests.chaos.checks_liveness import Demands
from tests.chaos.client import TOPICS
from tests.chaos.clocks import ClockError
from tests.chaos.cluster import CLIENT_HOSTS, MIN_INSYNC, REPLICATION, Cluster
from tests.chaos.faults import Fault, Grip, NoTarget, Stage
from tests.chaos.faults_data import BUCKET_FAULTS, FAULTS
from tests.chaos.history import COMPACTED, read, read_events
from tests.chaos.login import add_users, allow_programs, confluent
from tests.chaos.network import NetworkError
from tests.chaos.supervisor import Clients
from tests.chaos.tables import tables
from tests.chaos.workload_table import SETTINGS
from tests.chaos.workload_topics import TOPIC as AGAIN

CI_MINUTES = 3.5
CLEAN, NOT_CLEAN, NOT_STARTED, UNKNOWN, NOT_JUDGED, BLIND = range(6)
WARM_UP_S, RECOVERY_S = 8.0, 15.0
QUIET = 0.25
"""About one period in four has no fault."""
ROLES = (
    "plain", "idem", "idem-aio", "input", "txn", "txn", "txn-kp", "txn-raw", "sink", "worker", "worker", "reader-rc",
    "reader-ru", "reader-kp", "reader-rack", "member", "member-kp", "mover", "mover", "asker", "orders", "teller",
    "trimmed", "again", "table",
)  # fmt: skip
SHARERS = ("jobs", "sharer", "sharer", "sharer-raw")
"""In CI one run in two has them."""
WITHOUT_LOGIN = ("txn-raw", "sharer-raw")
"""Those that speak to a socket by themselves."""
logger = logging.getLogger("chaos")


class Missing(Exception):
    """Something that the run needs isn't there; the message says what."""


class NothingToTry(Exception):
    """The history holds nothing that a corruption could be tried on: too little happened."""


class Blind(Exception):
    """The checker did not see a planted corruption."""


class Director:
    """Runs the plan: which faults when, how they go on, and which processes are started again."""

    def __init__(self, stage: Stage, rng: random.Random, trace: Path, kinds: Sequence[str]) -> None:
        self._kinds = sorted(kinds)
        self._stage = stage
        self._rng = rng
        self._trace = trace.open("a", buffering=1)
        stage.write = self.write
        self._due: list[tuple[float, int, str, int, Fault, Grip]] = []
        self._number = 0
        self._deck: list[str] = []
        self._fired: Counter[str] = Counter()

    def write(self, **event: Any) -> None:
        """A line of the trace."""
        self._trace.write(json.dumps({"e": "ok", **event}) + "\n")

    def phase(self, name: str, seconds: float) -> None:
        """Nothing but clients for a while."""
        start = time.monotonic_ns()
        self._until(time.monotonic() + seconds)
        self.write(f="phase", name=name, t0=start, t=time.monotonic_ns())

    def faults(self, seconds: float, rounds: int) -> None:
        """Periods of faults until the time is over; the last ones end properly.

        Kinds that fired fewer than ``rounds`` times by then, because their targets were taken, have one and a half
        times as long again.
        """
        end = time.monotonic() + seconds
        start = time.monotonic_ns()
        while True:
            over = time.monotonic() > end
            missing = [kind for kind in self._kinds if self._fired[kind] < rounds]
            if over and (not missing or time.monotonic() > end + seconds * 1.5):
                break
            if over:
                self._deck = missing
            elif self._rng.random() < QUIET:
                self.phase("quiet", self._rng.uniform(4, 9))
                continue
            for name in self._draw(self._rng.choices((1, 2, 3), (5, 4, 1))[0]):
                self._until(time.monotonic() + self._rng.choice((0.0, self._rng.uniform(0, 4))))
                self._begin(name)
            while self._due:
                self._step()
            self._until(time.monotonic() + self._rng.uniform(1, 4))
        self.write(f="phase", name="faults", t0=start, t=time.monotonic_ns())

    def _draw(self, count: int) -> list[str]:
        """The next kinds: the whole deck comes before any kind comes again."""
        drawn: list[str] = []
        while len(drawn) < count:
            if not self._deck:
                self._deck = self._rng.sample(self._kinds, len(self._kinds))
            drawn.append(self._deck.pop())
        return drawn

    def _begin(self, name: str) -> None:
        grip = Grip(self._stage)
        fault = (FAULTS | BUCKET_FAULTS)[name](grip, random.Random(self._rng.random()))
        self._number += 1
        self._resume(name, time.monotonic_ns(), fault, grip)

    def _resume(self, name: str, start: int, fault: Fault, grip: Grip) -> None:
        try:
            wait = next(fault)
        except NoTarget:
            grip.release()
            self._deck.insert(0, name)  # at the bottom of the deck: its turn comes
        except StopIteration as over:
            grip.release()
            target, proof = over.value
            self._fired[name] += bool(proof)
            logger.info("%-18s %-30s %5.1f s %s", name, target, (time.monotonic_ns() - start) / 1e9, str(proof)[:100])
            self.write(f="fault", kind=name, target=target, t0=start, t=time.monotonic_ns(), proof=proof)
        else:
            self._number += 1
            heapq.heappush(self._due, (time.monotonic() + wait, self._number, name, start, fault, grip))

    def _until(self, end: float) -> None:
        while time.monotonic() < end:
            self._step()

    def _step(self) -> None:
        """Resume what is due, look after processes, wait a little."""
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, name, start, fault, grip = heapq.heappop(self._due)
            self._resume(name, start, fault, grip)
        self._stage.clients.look()
        for machine in self._stage.cluster.machines:
            if machine.wanted and machine.pid is None:
                machine.wanted = False
                status = machine.process.returncode if machine.process else None
                self._stage.problems.append(f"{machine.host} ended by itself with {status}, see {machine.log_file}")
                machine.start()
        time.sleep(0.05)


def set_up(cluster: Cluster) -> None:
    """Start everything and create the topics."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined,unused-ignore]

    for node in cluster.zookeepers:
        node.start()
    wait_for(cluster.zookeepers, 60)
    add_users(cluster.zookeeper_connect)
    for broker in cluster.brokers:
        broker.start()
    wait_for(cluster.brokers, 60)
    allow_programs(cluster.bootstrap)
    admin = AdminClient(confluent(cluster.bootstrap, ADMIN))
    config = {"min.insync.replicas": str(MIN_INSYNC)}
    others: dict[str, str] = {}
    if cluster.bucket is not None:
        bucket.finalize(cluster.bootstrap)
        others = bucket.SETTINGS
    made = admin.create_topics(
        [
            NewTopic(t, n, REPLICATION, config=config | (SETTINGS if t == COMPACTED else others))
            for t, n in TOPICS.items()
        ]
    )
    for result in made.values():
        result.result(30)
    workload_shares.set_up(cluster.bootstrap, config, REPLICATION)


def wait_for(machines: Sequence[Any], seconds: float) -> None:
    """Until all serve; raises Missing with what doesn't."""
    deadline = time.monotonic() + seconds
    while waiting := [machine for machine in machines if not machine.serves()]:
        if time.monotonic() > deadline:
            raise Missing("; ".join(f"{machine.host} does not serve, see {machine.log_file}" for machine in waiting))
        time.sleep(0.1)


def heal(stage: Stage) -> None:
    """Everything that isn't right is put right; a process that doesn't come back is a problem."""
    cluster = stage.cluster
    cluster.network.heal()
    if cluster.bucket is not None:
        cluster.bucket.heal()
    for machine in cluster.machines:
        machine.clock.jump(0)
        if machine.pid is None:
            machine.start()
    try:
        wait_for(cluster.machines, 120)
    except Missing as problem:
        stage.problems.append(str(problem))


def play(
    directory: Path,
    minutes: float,
    seed: int,
    kinds: Sequence[str],
    network: str,
    *,
    secure: bool,
    shares: bool,
    with_bucket: bool,
) -> tuple[list[str], Clients]:
    """The whole run up to the final reads; returns the problems that no client can see."""
    cluster = Cluster(directory, network, secure=secure, with_bucket=with_bucket)
    clients = Clients(cluster.network, cluster.bootstrap, directory, str(seed))
    stage = Stage(cluster, clients)
    try:
        try:
            set_up(cluster)
        except Exception as problem:
            raise Missing(f"the fleet did not come up: {type(problem).__name__}: {problem}") from problem
        seen: dict[str, int] = {}
        roles = (*ROLES, *SHARERS) if shares else ROLES
        for number, role in enumerate(role for role in roles if not (secure and role in WITHOUT_LOGIN)):
            seen[role] = seen.get(role, 0) + 1
            clients.add(f"{role}-{seen[role]}", role, CLIENT_HOSTS[number % len(CLIENT_HOSTS)])
        director = Director(stage, random.Random(seed), directory / "history" / "faults.jsonl", kinds)
        director.phase("warm-up", WARM_UP_S)
        director.faults(minutes * 60, rounds_of(minutes))
        heal(stage)
        director.phase("recovery", RECOVERY_S)
        late = clients.stop(60)
        if late:
            logger.info("had to be killed at the end: %s", ", ".join(late))
        for role, status in clients.run(("final", "finish-shares") if shares else ("final",), CLIENT_HOSTS[0], 300):
            if status:
                stage.problems.append(f"{role} ended with {status}, see {directory / 'clients.log'}")
        if cluster.bucket is not None:
            stage.problems += look_at_bucket(cluster, cluster.bucket)
        return stage.problems, clients
    finally:
        for broker in cluster.brokers:
            if broker.pid is not None:
                broker.kill()
            shutil.copytree(broker.disk / "data", directory / f"data-{broker.number}", dirs_exist_ok=True)
        disks = [broker.disk for broker in cluster.brokers]
        if cluster.bucket is not None:
            disks.append(cluster.bucket.disk)
            shutil.copytree(cluster.bucket.objects, directory / "data-bucket", dirs_exist_ok=True)
        cluster.close()
        subprocess.run(["umount", *map(str, disks)], check=False)
        for disk in disks:
            disk.with_suffix(".img").unlink(missing_ok=True)


def look_at_bucket(cluster: Cluster, held: bucket.ChaosBucket) -> list[str]:
    """What is wrong with it at the end: an object, a tier that rests, or nothing was read from there."""
    figures = Counter[str]()
    for broker in cluster.brokers:
        figures.update(broker.figures("fleetlog_tier_"))
    names = ('copied{what="segments"}', 'copied{what="read"}', "troubled_partitions")
    segments, size, troubled = (figures[f"fleetlog_tier_{name}"] for name in names)
    logger.info("the bucket: %d segments copied, %d bytes read, %d tiers rest", segments, size, troubled)
    problems = [*held.left(AGAIN), *held.problems()]
    if not size:
        problems.append("nothing was read from the bucket in the final reads")
    if troubled:
        problems.append(f"the tiers of {troubled:.0f} partitions rest, see the brokers' logs")
    return problems


def rounds_of(minutes: float) -> int:
    """How often each kind of fault must fire at least."""
    return max(1, int(minutes / 4))


def demands(minutes: float, kinds: Sequence[str], *, shares: bool) -> Demands:
    """The least that must have happened; a tenth of what an idle machine does."""
    return Demands(
        ok={
            "send ok": int(150 * minutes), "txn ok": int(15 * minutes), "txn fail": int(2 * minutes),
            "read-process-write ok": int(8 * minutes), "poll group": int(9 * minutes), "poll assign": int(60 * minutes),
            "commit ok": int(10 * minutes), "committed": int(10 * minutes), "ends rc": int(10 * minutes),
            "ends ru": int(10 * minutes), "rebalance": int(minutes), "batch ok": int(3 * minutes),
            "transfer ok": int(4 * minutes), "topic again": int(minutes), "record compacted": int(50 * minutes),
            **({"share accept ok": int(50 * minutes), "share release ok": int(5 * minutes),
                "share reject ok": int(2 * minutes), "dead letter": int(2 * minutes)} if shares else {}),
        },
        faults=dict.fromkeys(kinds, rounds_of(minutes)),
        during_faults=int(100 * minutes),
        final=True,
    )  # fmt: skip


TRIED = (
    "an_acknowledged_value_lost", "a_value_at_two_offsets", "values_swapped_in_a_poll", "committed_called_aborted",
)  # fmt: skip
TRIED_WITH_SHARERS = ("a_finished_job_is_given_again", "a_dead_letter_is_lost")


def prove_it_fails(directory: Path, seed: int, *, shares: bool) -> Iterator[tuple[str, set[str]]]:
    """Corrupt copies of the history: what was done and what the checker found.

    Raises Blind when it found nothing, NothingToTry when there was nothing to corrupt.
    """
    for name in (*TRIED, *TRIED_WITH_SHARERS) if shares else TRIED:
        events = list(read_events(directory / "history"))
        expected = corrupt.CORRUPTIONS[name](random.Random(seed), events)
        if expected is None:
            raise NothingToTry(f"nothing in this history to try {name} on")
        copy = directory / "corrupted" / name
        copy.mkdir(parents=True)
        by_process: dict[str, list[str]] = {}
        for event in events:
            by_process.setdefault(event.get("p", "faults"), []).append(json.dumps(event))
        for process, lines in by_process.items():
            (copy / f"{process}.jsonl").write_text("\n".join(lines) + "\n")
        found = check(read(copy)).kinds
        if not found & expected:
            raise Blind(f"the checker did not see {name} in {copy}: {sorted(found)}")
        shutil.rmtree(copy)
        yield name, found & expected


def judge(
    directory: Path, minutes: float, seed: int, kinds: Sequence[str], problems: list[str], *, shares: bool
) -> int:
    """Check the history, print and keep the report; the exit code."""
    history = read(directory / "history")
    report = check(history, demands(minutes, kinds, shares=shares))
    for problem in problems:
        report.bad("process", problem)
    strict = check(read(directory / "history", strict=True))
    only_strict = [found for found in strict.anomalies if found not in report.anomalies]
    for anomaly in only_strict:
        report.notes[f"by the client's word only: {anomaly.kind}"] += 1
    text = f"# Chaos, seed {seed}, {minutes} minutes of faults, replication {REPLICATION}\n\n"
    text += f"{tables(history, report)}\n\n```\n{report.render()}\n```\n"
    if batches := batches_of_duplicates(directory, report):
        text += "\n".join(["\nThe batches that hold what is there twice:\n", *(f"- {line}" for line in batches), ""])
    print(text, flush=True)
    if report.ok:
        seen = prove_it_fails(directory, seed, shares=shares)
        lines = [f"- {name.replace('_', ' ')}: {', '.join(sorted(found))}" for name, found in seen]
        proof = "\n".join(["Corrupted on purpose, the checker says:", "", *lines, ""])
        print(proof)
        text += "\n" + proof
    (directory / "report.md").write_text(text)
    return CLEAN if report.ok else NOT_CLEAN if report.anomalies else UNKNOWN


def tried(
    directory: Path,
    minutes: float,
    seed: int,
    kinds: Sequence[str],
    network: str,
    *,
    secure: bool,
    shares: bool,
    with_bucket: bool,
) -> tuple[int, str]:
    """Run and judge: the exit code, and what it means in words."""
    try:
        problems, clients = play(
            directory, minutes, seed, kinds, network, secure=secure, shares=shares, with_bucket=with_bucket
        )
    except (Missing, NetworkError, ClockError) as problem:
        return NOT_STARTED, f"NOT STARTED: {problem}"
    except (OSError, subprocess.SubprocessError) as problem:
        return NOT_JUDGED, f"BROKE OFF: {type(problem).__name__}: {problem}"
    logger.info("clients: %s", ", ".join(f"{what} {count}" for what, count in sorted(clients.ends.items())))
    try:
        outcome = judge(directory, minutes, seed, kinds, problems, shares=shares)
    except Blind as problem:
        return BLIND, f"THE CHECKER IS BLIND: {problem}"
    except NothingToTry as problem:
        return UNKNOWN, f"UNKNOWN: {problem}"
    except Exception as problem:
        traceback.print_exc()
        return NOT_JUDGED, f"NOT JUDGED: {type(problem).__name__}: {problem}"
    return outcome, {CLEAN: "clean", NOT_CLEAN: "NOT CLEAN", UNKNOWN: "UNKNOWN: too little happened"}[outcome]


def main() -> int:
    """The command line."""
    arguments = argparse.ArgumentParser(description="chaos on real processes")
    arguments.add_argument("--minutes", type=float, default=10.0, help="of faults")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--ci", action="store_true", help=f"{CI_MINUTES} minutes")
    arguments.add_argument("--directory", type=Path, help="where the run is kept; default: below build/chaos")
    arguments.add_argument("--faults", help="only these kinds, with commas: " + ", ".join(FAULTS))
    arguments.add_argument("--network", choices=("auto", "namespaces", "relays"), default="auto")
    arguments.add_argument("--secure", action="store_true", help="with TLS, logins, ACLs and the audit topic")
    arguments.add_argument("--bucket", action="store_true", help="topics are tiered; also: " + ", ".join(BUCKET_FAULTS))
    options = arguments.parse_args()
    if options.bucket and options.secure:
        arguments.error("--bucket and --secure are not for one run")
    known = FAULTS | BUCKET_FAULTS if options.bucket else FAULTS
    kinds = options.faults.split(",") if options.faults else list(known)
    if unknown := sorted(set(kinds) - set(known)):
        arguments.error(f"no such fault: {', '.join(unknown)}")
    minutes = CI_MINUTES if options.ci else options.minutes
    shares = not options.ci or random.Random(f"{options.seed}/shares").random() < 0.5
    default = Path("build/chaos") / f"seed-{options.seed}-{time.strftime('%m%d-%H%M%S')}"
    directory = (options.directory or default).resolve()
    directory.mkdir(parents=True)
    for library in ("kafka", "kazoo"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logger.info("seed %d, %s minutes of faults, kept in %s", options.seed, minutes, directory)
    if os.geteuid() != 0:
        print("chaos needs root: namespaces, mounts and TUN devices")
        return NOT_STARTED
    outcome, said = tried(
        directory,
        minutes,
        options.seed,
        kinds,
        options.network,
        secure=options.secure,
        shares=shares,
        with_bucket=options.bucket,
    )
    if outcome == CLEAN:
        for data in directory.glob("data-*"):
            shutil.rmtree(data)
    print(f"{said}; kept in {directory}")
    if outcome != CLEAN:  # in the words in which a suite of tests says it
        print(f"FAILED chaos, seed {options.seed} - {said}")
    return outcome


if __name__ == "__main__":
    sys.exit(main())
