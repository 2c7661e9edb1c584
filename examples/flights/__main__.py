"""``python -m examples.flights``: the main job from an empty directory to the verdict. Exit code 0: exactly once."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import __version__ as confluent_version
from rich.console import Console

from examples.access import FleetAccess
from examples.flights import fleet, report, steps
from examples.flights.crash import BrokerCrash, WorkerCrash
from examples.flights.steps import BATCHES, Query, Result, StepFailed
from fleetlog.spark import FenceError

KILL_1 = 2  # batch in the midst of whose transaction the driver is killed
KILL_WORKER = 3  # batch in the midst of which a Python worker of an executor is killed (or the next)
KILL_2 = 4  # batch after whose commit, and before Spark's note of it, the driver is killed; then a broker, after it
NEXT = """Try next:
  .venv/bin/fleetlog dev up --detach              three brokers that stay
  .venv/bin/fleetlog cluster describe             and `dev kill 2`, `dev start 2`, to see it fail over
  .venv/bin/python -m examples.flights --no-fence the same without the fence: duplicates, exit code 1
  examples/flights/job.py                         the query, about a hundred lines
  README.md, docs/ARCHITECTURE.md                 how to go on, and how it works"""

Evidence = list[tuple[str, str]]


class Progress:
    """Lines with the seconds since the start, on a terminal as in a log file."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()

    def title(self, text: str) -> None:
        """A new step."""
        self._console.print(f"[bold]{self.seconds:6.1f} s  {text}[/bold]")

    def say(self, text: str) -> None:
        """Something within a step."""
        self._console.print(f"{self.seconds:6.1f} s    {text}", markup=False, highlight=False)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start


def run_query(query: Query, progress: Progress, *, fence: bool, fleet_directory: Path | None) -> Evidence:
    """The query with its kills; evidence for each. Without the fence only the second driver's, which is its test.

    A broker is killed only where the fleet is our own.
    """
    evidence = []
    if fence:
        progress.title(f"Spark, first run: to be killed inside the transaction of batch {KILL_1}")
        query.run("driver-1", f"written:{KILL_1}", progress.say)
        still_open = steps.open_records(query.access, query.target)
        noted = query.fence_now()
        text = f"{still_open:,} uncommitted records of batch {KILL_1} in the log, "
        text += f"fence at batch {noted and noted.batch_id}"
        evidence.append(("kill 1, inside a transaction", text))
        progress.say(f"killed with SIGKILL: {text}")
    progress.title(f"Spark, next run: to be killed between the commit of batch {KILL_2} and Spark's note of it")
    worker = WorkerCrash(KILL_WORKER, progress.say)
    query.run("driver-2", f"committed:{KILL_2}", progress.say, worker.on_event if fence else None)
    if fence:
        evidence.append(("a Python worker, in a task", worker.evidence()))
    noted = query.fence_now()
    text = f"fence at batch {noted and noted.batch_id}, Spark's commit log at batch {query.committed_in_spark()}"
    evidence.append(("kill 2, after the commit", text))
    progress.say(f"killed with SIGKILL: {text}")
    crash = None
    if fleet_directory is not None:
        progress.title("Spark, last run: to the end, with a broker killed on the way")
        crash = BrokerCrash(fleet_directory, query.access, query.target, KILL_2, progress.say)
    else:
        progress.title("Spark, last run: to the end")
    last = query.run("driver-3", "", progress.say, crash.on_event if crash is not None else None)
    evidence.append(("last run", f"batches skipped by the fence: {last.batches('skipped') or 'none'}"))
    if crash is not None:
        evidence.append(("kill 3, a broker", crash.settle()))
        progress.say("all replicas are in sync")
    return evidence


def run(
    access: FleetAccess,
    directory: Path,
    progress: Progress,
    given: argparse.Namespace,
    fleet_directory: Path | None = None,
) -> tuple[Result, Evidence]:
    """All steps on a running fleet; ``fleet_directory`` if it is one of our own, whose brokers may be killed."""
    progress.title("Topics")
    source, target = f"{given.prefix}flights", f"{given.prefix}flights-enriched"
    steps.create_topics(access, source, target)
    progress.title(f"Sending the flights to {source} (confluent-kafka {confluent_version}, idempotent, zstd)")
    sent, keyless = steps.produce(access, source, given.flights, progress.say)
    progress.say(f"{sent:,} flights acknowledged, {keyless:,} without a key")
    query = Query(access, source, target, f"{given.prefix}flights", directory, -(-sent // BATCHES), not given.no_fence)
    evidence = run_query(query, progress, fence=not given.no_fence, fleet_directory=fleet_directory)
    progress.title(f"Reading {target} back and comparing with an independent join")
    result = steps.reconcile(access, target, given.flights)
    evidence.append(("log of the result", f"{result.skipped:,} aborted records that read_committed skipped"))
    return result, evidence


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--bootstrap", help="use this fleet (or any Kafka) instead of starting one")
    parser.add_argument("--command-config", type=Path, help="with --bootstrap: settings of a login, by Java's names")
    parser.add_argument(
        "--secure",
        action="store_true",
        help="start the fleet with TLS, logins, ACLs and an audit topic (dev up --secure)",
    )
    parser.add_argument("--prefix", default="", help="in front of the topics' names and the sink's id")
    parser.add_argument("--flights", type=int, help="only the first so many flights")
    parser.add_argument("--no-fence", action="store_true", help="negative control: leave the fence unchecked")
    parser.add_argument("--dir", type=Path, help="where to keep logs and checkpoints (default: a temporary directory)")
    given = parser.parse_args()
    if given.secure and given.bootstrap:
        parser.error("--secure starts a fleet: it goes without --bootstrap; --command-config has the login at a fleet")
    if given.command_config is not None and not given.bootstrap:
        parser.error("--command-config goes with --bootstrap")
    return given


def main() -> int:
    """Exit code 0 for exactly once, 1 for duplicates or missing, 2 when a step failed, 130 after Ctrl-C."""
    given = arguments()
    console = Console(soft_wrap=True) if sys.stdout.isatty() else Console(soft_wrap=True, width=100)
    progress = Progress(console)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = given.dir or Path(tempfile.mkdtemp(prefix="fleetlog-flights-"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise SystemExit(f"{directory} is not empty: an old checkpoint there would belong to other topics")
    verdict = 2
    try:
        if not given.bootstrap:
            progress.title(f"ZooKeeper and three brokers{', secured' if given.secure else ''}")
            access = fleet.up(directory / "fleet", fleet.free_port(), secure=given.secure)
        else:
            access = FleetAccess(given.bootstrap, given.command_config)
        if given.secure:
            progress.say(f"TLS, SCRAM-SHA-512, ACLs and an audit topic; all clients log in by {access.command_config}")
        own_fleet = None if given.bootstrap else directory / "fleet"
        result, evidence = run(access, directory, progress, given, own_fleet)
        report.print_reconciliation(console, result, evidence)
        report.print_findings(console, result.rows)
        verdict = 0 if result.exactly_once else 1
        word = "[green]exactly once[/green]" if verdict == 0 else "[red]NOT exactly once[/red]"
        kills = "1 killed driver" if given.no_fence else "2 killed drivers, 1 killed Python worker"
        kills += "" if given.bootstrap else ", 1 killed broker"
        console.print(f"[bold]{word}[/bold], {kills}, {progress.seconds:.0f} s")
        console.print(NEXT, markup=False, highlight=False)
    except (StepFailed, FenceError) as exc:
        console.print(f"failed: {exc}", markup=False, style="red")
    except subprocess.CalledProcessError:
        console.print("failed: the fleet did not start, see above", style="red")
    except KeyboardInterrupt:
        verdict = 130
        console.print("interrupted")
    finally:
        if not given.bootstrap:
            progress.title("Stopping the brokers")
            fleet.down(directory / "fleet")
        if verdict != 0:
            console.print(f"logs and checkpoints are kept in {directory}", markup=False)
        elif given.dir is None:
            shutil.rmtree(directory, ignore_errors=True)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
