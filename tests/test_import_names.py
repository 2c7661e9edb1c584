"""One name to import: a room's bare name is an error, and an old name is the same modules as the new one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

OLD = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("default")
    import spark_udfs.sink.fence
    import spark_udfs
    from spark_udfs.client import options
    from spark_udfs import write_stream
import fleetlog.spark.client.options, fleetlog.spark.sink.fence, pickle, sys
assert spark_udfs is fleetlog.spark
assert options is fleetlog.spark.client.options
assert spark_udfs.sink.fence is sys.modules["spark_udfs.sink.fence"] is fleetlog.spark.sink.fence
assert fleetlog.spark.sink.fence.__spec__.name == fleetlog.spark.sink.fence.__name__ == "fleetlog.spark.sink.fence"
assert pickle.loads(pickle.dumps(spark_udfs.Fence)) is fleetlog.spark.Fence
for warning in caught:
    if "spark_udfs" in str(warning.message):
        print(warning.filename, warning.message)
"""


def ran(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("room", ["brokers", "wire", "txn", "coordination", "_native"])
@pytest.mark.parametrize("before", ["", "import fleetlog.brokers.app; "])
def test_the_bare_name_of_a_room_is_an_error(room: str, before: str) -> None:
    done = ran(f"{before}import {room}")
    assert done.returncode == 1
    assert done.stderr.endswith(f"ImportError: {room} is imported as fleetlog.{room}\n")


def test_the_old_name_of_sparks_side_is_the_same_modules_with_one_warning() -> None:
    done = ran(OLD)
    assert done.returncode == 0, done.stderr
    said = "spark_udfs is now fleetlog.spark; the old name goes with the next release"
    assert done.stdout == f"<string> {said}\n"


def test_the_old_name_of_the_container_is_the_new_one() -> None:
    code = "import fleetlog_testcontainers, fleetlog.testing; print(fleetlog_testcontainers is fleetlog.testing)"
    done = ran(code)
    assert done.stdout == "True\n", done.stderr
    assert done.stderr.count("FutureWarning: fleetlog_testcontainers is now fleetlog.testing") == 1


def test_a_module_that_is_not_there_is_called_by_the_name_that_was_asked_for() -> None:
    done = ran("import spark_udfs.sinks")
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'fleetlog.spark.sinks'\n")
