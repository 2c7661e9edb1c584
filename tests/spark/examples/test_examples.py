"""An example, its driver killed with SIGKILL in the midst, against a computation in plain Python.

The first driver is the example's own command; the one after it runs in the Spark that the tests share. Each commit
tries another one of the three; ``FLEETLOG_EXAMPLES=all`` (or the name of one) chooses by hand.
``python -m tests.spark.examples`` kills more, by hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Cluster, run_to_end
from tests.spark.examples import expected
from tests.spark.examples.runs import Run, by_key, in_order
from tests.support.draw import drawn

Finish = Callable[[Run], None]


@pytest.fixture
def kill_and_finish(spark: Any) -> Finish:
    """Kills the first driver in the midst; lets a second one end."""

    def both(run: Run) -> None:
        run.kill_after(batch=1)
        killed = run.fence()
        given = run.module.arguments(run.arguments)
        run_to_end(lambda: run.module.start(spark.newSession(), given))
        ended = run.fence()
        assert ended.query_id == killed.query_id
        assert ended.batch_id > killed.batch_id >= 1

    return both


def sessions(cluster: Cluster, kill_and_finish: Finish, directory: Path) -> None:
    run = Run("sessions", {"source": "clicks"}, cluster, directory, per_batch=150)
    kill_and_finish(run)
    assert in_order(run.written()) == in_order(expected.sessions(per_batch=150))


def payments(cluster: Cluster, kill_and_finish: Finish, directory: Path) -> None:
    run = Run("payments", {"orders": "orders", "payments": "payments"}, cluster, directory, per_batch=65)
    kill_and_finish(run)
    assert in_order(run.written()) == in_order(expected.settled_orders(per_batch=65))


def changes(cluster: Cluster, kill_and_finish: Finish, directory: Path) -> None:
    run = Run("changes", {"source": "changes"}, cluster, directory, per_batch=140, parts=3)
    kill_and_finish(run)
    written = by_key(run.written())
    assert written == by_key(expected.customers(run.batches(run.sources["source"])))
    table = {key: values[-1] for key, values in written.items() if values[-1] is not None}
    assert table == expected.table()


JOBS = {job.__name__: job for job in (sessions, payments, changes)}


def test_every_job_takes_its_turn() -> None:
    assert {name for number in range(60) for name in drawn(JOBS, "", str(number))} == set(JOBS)
    assert drawn(JOBS, "all") == list(JOBS)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("name", drawn(JOBS, os.environ.get("FLEETLOG_EXAMPLES", "")))
def test_a_job_whose_driver_was_killed_is_exact(
    name: str, cluster: Cluster, kill_and_finish: Finish, tmp_path: Path
) -> None:
    JOBS[name](cluster, kill_and_finish, tmp_path)
