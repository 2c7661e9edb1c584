"""Tries PySpark's versions: ``python -m tests.spark.versions 4.0 3.5``, ``--all``, or one of them by ``--seed abc``.

Each version has a Python environment of its own (``environments``). There a driver reads a topic that grows and writes
it by every way that the version has; it is killed with SIGKILL inside micro-batches, and runs again. In the end every
target must have each record once, as it was: key, value, headers, time. Other queries, which begin at the end of a
partition, are killed while their first batch is under way, and more comes before they run again. A declarative pipeline
is killed and run again where the version has them, likewise in its first batch. With 4.0 docs/spark-versions.md is
followed, too; with ``--page`` nothing else is done, in an environment with nothing but PySpark.

The exit status is 0 when all passed, 1 when one did not, 3 when one could not be tried.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.spark.pipelines import Pipeline
from tests.spark.versions.environments import (
    PIPELINES,
    ROOT,
    VERSIONS,
    NoAnswer,
    Unfit,
    bare_environment,
    environment,
    installed,
)
from tests.spark.versions.page import PAGE, Walk, java_of, layered
from tests.spark.versions.trial import PARTITIONS, NoFault, Trial, committed_records
from tests.support.fleet import Fleet

LIMIT_S = 720.0
"""For one version, its environment's download included; 85 s are usual on two cores that have other work, too."""
PAGE_VERSION = "4.0"
PAGE_LIMIT_S = 240.0
"""For the page, a wheel included; 60 s are usual with one that is there."""
PIPELINE_RECORDS = 600
BARE_LIMIT_S = 1200.0
"""For an environment with nothing but PySpark, and for the page in it, by hand on any machine."""


def chosen(given: argparse.Namespace) -> list[str]:
    """The versions to try."""
    if given.seed:
        return [random.Random(given.seed).choice(VERSIONS)]
    return list(VERSIONS) if given.all else given.versions


def walked(python: Path, java: dict[str, str], wheels: Path | None, directory: Path, limit_s: float) -> str:
    """How long each step of the page took. Raises AssertionError, NoFault."""
    directory.mkdir()
    return Walk(python, java, directory, time.monotonic() + limit_s).run(wheels)


def killed_pipeline(bootstrap: str, directory: Path, python: Path) -> str:
    """That a pipeline's run, killed after its first batch counted and run again, wrote each record once.

    And one that was killed while its first batch was under way, which began at the end of the topic.
    """
    source, target = (f"pipeline-{side}-{directory.name}" for side in ("source", "target"))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (source, target)]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(PIPELINE_RECORDS):
        producer.produce(source, key=f"k{number}", value=f"v{number}")
    assert producer.flush(60) == 0
    pipeline = Pipeline(bootstrap, source, target, directory, str(python))
    pipeline.edit("transformations/orders.py", '.option("maxOffsetsPerTrigger", 1000)', "")  # which 4.1 has not
    pipeline.run_again_after_a_kill(0)
    found = Counter(message.value().decode() for message in committed_records(bootstrap, target))
    assert found == Counter(f"V{number}" for number in range(PIPELINE_RECORDS)), f"{found.total()} records"
    late = f"pipeline-late-{directory.name}"
    admin.create_topics([NewTopic(late, PARTITIONS, 1)])[late].result(30)
    first = Pipeline(bootstrap, source, late, directory / "late", str(python))
    first.edit("transformations/orders.py", '.option("maxOffsetsPerTrigger", 1000)', "")

    def more() -> None:
        for number in range(PIPELINE_RECORDS):
            producer.produce(source, key=f"k{number}", value=f"w{number}", partition=number % PARTITIONS)
        assert producer.flush(60) == 0

    old = Counter(
        message.value().decode().upper() for message in committed_records(bootstrap, source) if message.partition()
    )
    starts = {str(number): -2 if number else -1 for number in range(PARTITIONS)}
    first.run_again_after_a_kill_in_its_first_batch(starts, more)
    rows = Counter(message.value().decode() for message in committed_records(bootstrap, late))
    assert rows == old + Counter(f"W{number}" for number in range(PIPELINE_RECORDS)), f"{rows.total()} records"
    return f"; pipelines killed, {PIPELINE_RECORDS} records"


def judged(version: str, passes: Callable[[], str]) -> tuple[int, str]:
    """(exit status, what was found)."""
    try:
        return 0, f"passed: {passes()}"
    except (NoAnswer, NoFault) as problem:
        return 3, f"NOT TRIED: {'no environment: ' if isinstance(problem, NoAnswer) else ''}{problem}"
    except Exception as problem:
        if not isinstance(problem, Unfit):
            traceback.print_exc()
        return 1, f"FAILED {version} - {type(problem).__name__}: {str(problem)[:500]}"


def page_alone(version: str, directory: Path, wheels: Path | None) -> tuple[int, str]:
    """(exit status, what was found) of the page, as one follows it in an environment with nothing but PySpark."""

    def passes() -> str:
        python = bare_environment(version, directory / "python", time.monotonic() + BARE_LIMIT_S)
        return f"{installed(python)} ({walked(python, {}, wheels, directory / 'page', BARE_LIMIT_S)})"

    return judged(version, passes)


def attempt(version: str, directory: Path, limit_s: float = LIMIT_S, wheels: Path | None = None) -> tuple[int, str]:
    """(exit status, what was found) of one version, in ``limit_s`` seconds at the most, its environment's included.

    The page has ``PAGE_LIMIT_S`` more.
    """

    def passes() -> str:
        began = time.monotonic()
        python = environment(version, limit_s / 2)
        ready = time.monotonic()
        fleet = Fleet(directory / "fleet", brokers=1)
        try:
            bootstrap = fleet.start().bootstrap
            found = Trial(python, installed(python), bootstrap, directory, began + limit_s).run()
            if version in PIPELINES:
                found += killed_pipeline(bootstrap, directory, python)
        finally:
            fleet.close()
        found += f" ({ready - began:.0f} s environment, {time.monotonic() - ready:.0f} s)"
        if version == PAGE_VERSION:
            own = layered(python, directory / "python")
            found += f"; {PAGE}: {walked(own, java_of(python), wheels, directory / 'page', PAGE_LIMIT_S)}"
        return found

    return judged(version, passes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=[], choices=[*VERSIONS, []], metavar="VERSION")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", default="", help="one version, chosen by any text")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each (%(default)s)")
    parser.add_argument("--page", action="store_true", help=f"only {PAGE}, with nothing but PySpark")
    parser.add_argument("--wheels", type=Path, help=f"with a wheel for this Python, which {PAGE} makes otherwise")
    given = parser.parse_args()
    names = chosen(given)
    if not names:
        parser.error(f"name some of {', '.join(VERSIONS)}, or give --all or --seed")
    worst = 0
    for version in names:
        (ROOT / "build").mkdir(exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f"spark-{version}-", dir=ROOT / "build"))
        if given.page:
            status, text = page_alone(version, directory, given.wheels)
        else:
            status, text = attempt(version, directory, given.limit, given.wheels)
        print(f"PySpark {version}: {text}", flush=True)
        if status == 1:
            print(f"see {directory}", flush=True)
        else:
            shutil.rmtree(directory)
        worst = 1 if 1 in (worst, status) else max(worst, status)
    return worst


if __name__ == "__main__":
    sys.exit(main())
