"""``python -m tests.spark.examples``: every example on a fleet of its own, killed again and again, by hand.

Drivers are killed with SIGKILL at moments of chance, a broker after each; the last driver ends. Exit code 0: the
results are exact. ``--kills``: drivers of each example; ``--seed``: of the moments.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.spark.conftest import Cluster
from tests.spark.examples import expected
from tests.spark.examples.runs import Run, by_key, in_order
from tests.support.fleet import Fleet

PER_BATCH = 25
START_S = 6.0
"""A driver has hardly begun before."""


def kill_and_finish(run: Run, fleet: Fleet, rng: random.Random, kills: int) -> int:
    """Kills a driver and a broker so often, lets the last driver end; the number of batches."""
    for number in range(kills):
        driver = run.driver()
        moment = START_S + rng.random() * 12
        time.sleep(moment)
        driver.kill()
        broker = fleet.brokers[number % len(fleet.brokers)]
        broker.kill()
        broker.start()
        broker.wait_ready()
        print(f"  driver {number + 1} killed after {moment:.1f} s, broker {broker.id} too", flush=True)
    for _ in range(5):
        driver = run.driver()
        try:
            driver.wait()
        finally:
            driver.kill()
        if driver.exit_code == 0:
            return run.fence().batch_id + 1
        print(f"  ended with {driver.exit_code}, see {driver.log_file}", flush=True)
    raise SystemExit(f"{run.module.__name__} does not come to its end, see {run.directory}")


def sessions(run: Run) -> bool:
    """Whether its result is right."""
    return in_order(run.written()) == in_order(expected.sessions(PER_BATCH))


def payments(run: Run) -> bool:
    """Whether its result is right."""
    return in_order(run.written()) == in_order(expected.settled_orders(PER_BATCH))


def changes(run: Run) -> bool:
    """Whether its result is right."""
    return by_key(run.written()) == by_key(expected.customers(run.batches(run.sources["source"])))


JOBS: dict[Callable[[Run], bool], dict[str, str]] = {
    sessions: {"source": "clicks"},
    payments: {"orders": "orders", "payments": "payments"},
    changes: {"source": "changes"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    directory = Path(tempfile.mkdtemp(prefix="fleetlog-examples-"))
    fleet = Fleet(directory / "fleet")
    try:
        fleet.start()
        for judge, inputs in JOBS.items():
            own = directory / judge.__name__
            own.mkdir()
            run = Run(judge.__name__, inputs, Cluster(fleet.bootstrap), own, PER_BATCH)
            batches = kill_and_finish(run, fleet, rng, given.kills)
            assert judge(run), f"{judge.__name__}: the result is wrong, see {directory}"
            print(f"{judge.__name__}: exact, {batches} batches, {given.kills} drivers and brokers killed", flush=True)
    finally:
        fleet.close()


if __name__ == "__main__":
    main()
