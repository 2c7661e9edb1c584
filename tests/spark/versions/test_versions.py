"""What is done for each PySpark, as far as one installation shows it; ``python -m tests.spark.versions`` tries them."""

from __future__ import annotations

import argparse
import fcntl
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fleetlog.spark import versions
from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.source.options import ReadOptions
from fleetlog.spark.source.readers import StreamReader
from tests.readme import snippets as page_snippets
from tests.spark.conftest import Cluster
from tests.spark.matrix.sessions import command_line
from tests.spark.versions import environments
from tests.spark.versions.__main__ import attempt, chosen
from tests.spark.versions.environments import ROOT, VERSIONS, requirements
from tests.spark.versions.page import HEADING, ORDERS, PAGE

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}


def as_of(version: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a Python whose PySpark says that it is of this version."""
    code = f"import pyspark\npyspark.__version__ = {version!r}\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)


def test_one_that_is_too_old_says_so_in_a_sentence() -> None:
    done = as_of("3.4.4", "from fleetlog.spark import write_stream")
    assert done.returncode == 1
    said = "ImportError: fleetlog needs PySpark 3.5 or newer, and this is 3.4.4: pip install 'pyspark>=3.5,<4.4'"
    assert done.stderr.splitlines()[-1] == said
    assert not versions.too_old("3.5.0")


def test_without_data_sources_the_functions_work_and_the_format_says_what_to_do() -> None:
    code = """
from fleetlog.spark import SinkListener, exactly_once_batch, kafka_partition, with_source, write_stream
from fleetlog.spark.sink import driver_mode, executor_mode, writer
options = {"kafka.bootstrap.servers": "127.0.0.1:1", "sinkId": "s", "checkpointLocation": "/c", "topic": "t"}
exactly_once_batch(options)
try:
    write_stream(None, bootstrap_servers="b:1", sink_id="s", checkpoint_location="/c", by_format=True)
except Exception as problem:
    print(problem)
import pyspark_fleetlog
"""
    done = as_of("3.5.7", code)
    sentence = (
        "format('fleetlog') needs PySpark 4.0, and this is 3.5.7: write with write_stream(...), "
        "and read with Spark's own format('kafka')"
    )
    assert done.stdout == f"{sentence}\n", done.stderr
    assert done.stderr.splitlines()[-1] == f"fleetlog.spark.client.failures.OptionError: {sentence}"


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_a_limit_that_spark_would_not_ask_for_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**OPTIONS, name: "10"}
    assert ReadOptions.parse(options, streaming=True)
    monkeypatch.setattr(versions, "VERSION", (4, 1))
    assert ReadOptions.parse(options, streaming=False)
    with pytest.raises(OptionError, match=f"option {name} needs PySpark 4.2, and this is .*: leave it out"):
        ReadOptions.parse(options, streaming=True)


def test_a_reader_that_is_given_no_start_goes_on_where_it_was(cluster: Cluster) -> None:
    """As Spark asks before 4.2: without arguments, and after a restart for no range after the last one."""
    topic = cluster.topic(1)
    cluster.send(topic, [{"value": "a"}, {"value": "b"}])
    options = {**OPTIONS, "kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}

    def reader(**more: str) -> StreamReader:
        return StreamReader(ReadOptions.parse({**options, **more}, streaming=True))

    def offset(found: Any) -> int:
        return int(found[topic]["0"])

    first = reader(startingOffsets="earliest")
    assert offset(first.latestOffset()) == 2
    assert offset(first.initialOffset()) == 0
    late = reader(startingOffsets="latest")
    began = late.latestOffset()
    assert offset(began) == offset(late.initialOffset()) == 2
    cluster.send(topic, [{"value": "c"}])
    end = late.latestOffset()
    assert offset(end) == 3
    restarted = reader(startingOffsets="latest")
    position = {**end, "deleted": {"0": 7}}
    assert not restarted.partitions(position, position)
    with pytest.raises(RuntimeError, match="deleted-0 do not exist any more"):
        restarted.latestOffset()


def test_a_row_at_a_time_stands_in_for_arrow_functions() -> None:
    """The function that Spark would call for each row gives what the arrays give."""
    import pyarrow as pa
    from pyspark.sql.types import IntegerType

    from fleetlog.spark.functions.columns import _hashes, _partitions

    assert _hashes.func(pa.array([b"a", None])).to_pylist()[1] is None
    hashes = versions.by_row(_hashes.func, IntegerType())
    partitions = versions.by_row(_partitions.func, IntegerType())
    keys = [b"k1", b"k2", b"", None]
    assert [hashes.func(key) for key in keys] == _hashes.func(pa.array(keys)).to_pylist()
    assert [partitions.func(key, 7) for key in keys] == _partitions.func(pa.array(keys), pa.array([7] * 4)).to_pylist()


def test_every_version_of_the_extra_is_tried_and_documented() -> None:
    (pyspark,) = [one for one in requirements("4.0") if one.startswith("pyspark")]
    assert pyspark == "pyspark>=3.5,<4.4"
    assert VERSIONS == ("3.5", "4.0", "4.1", "4.2", "4.3")
    page = (ROOT / "docs" / "spark-versions.md").read_text()
    header = next(line for line in page.splitlines() if line.startswith("| PySpark |"))
    assert [cell.strip() for cell in header.split("|")[2:-1]] == list(VERSIONS)


def test_commits_take_turns() -> None:
    def of(seed: str) -> list[str]:
        return chosen(argparse.Namespace(seed=seed, all=False, versions=[]))

    assert of("4fe1") == of("4fe1")
    assert {name for number in range(60) for name in of(str(number))} == set(VERSIONS)


def processes_below(directory: Path) -> list[str]:
    """Command lines that name the directory."""
    found = (command_line(int(path.name)) for path in Path("/proc").glob("[0-9]*"))
    return [line for line in found if str(directory) in line]


@pytest.mark.parametrize("listens", [True, False])
def test_an_index_that_does_not_answer_means_that_nothing_was_tried(
    listens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes the connection and says nothing is given up in time; pip itself gives one up that refuses it."""
    monkeypatch.setenv("FLEETLOG_SPARK_ENVIRONMENTS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with socket.socket() as index:
        index.bind(("127.0.0.1", 0))
        if listens:
            index.listen()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}/simple")
        began = time.monotonic()
        status, said = attempt("4.0", tmp_path, 12.0 if listens else 120.0)
    assert status == 3, said
    assert said.startswith("NOT TRIED: no environment"), said
    assert time.monotonic() - began < (30 if listens else 60)
    assert not list(tmp_path.glob("*/ready"))
    assert not processes_below(tmp_path)


def test_an_environment_that_another_run_makes_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETLOG_SPARK_ENVIRONMENTS", str(tmp_path))
    with pytest.raises(environments.NoAnswer, match="not in time"):
        environments.environment("4.0", 0)
    (name,) = tmp_path.glob("*.lock")
    with name.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(environments.NoAnswer, match="another run has"):
            environments.environment("4.0", 0.3)


def test_the_page_has_the_steps_that_are_followed() -> None:
    build, install, brokers, run = page_snippets(HEADING, page=PAGE)
    (job,) = page_snippets(HEADING, "python", PAGE)
    assert build.startswith("bash deploy/wheels.sh ")
    assert "pip install 'fleetlog[spark]'" in install
    assert f"seq 1 {ORDERS} " in brokers
    assert run.startswith("python first.py; python first.py\n")
    compile(job, "first.py", "exec")


@pytest.mark.parametrize(
    ("said", "silent"),
    [
        ("ERROR: No matching distribution found for click==3.99.*", False),
        ("ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/", False),
        ("fleetlog 0.1 has requirement pandas<3, but you have pandas 3.0.1.", False),
        ("ERROR: Could not find a version that satisfies the requirement click (from versions: none)", True),
        ("ReadTimeoutError: HTTPSConnectionPool(host='files', port=443): Read timed out.", True),
        ("ERROR: HTTP error 503 while getting https://files/pyspark-4.0.5.tar.gz", True),
    ],
)
def test_a_silent_index_is_told_from_what_cannot_be_installed(said: str, silent: bool) -> None:
    command = [sys.executable, "-c", f"print({said!r}); raise SystemExit(1)"]
    with pytest.raises(environments.NoAnswer if silent else environments.Unfit, match=r"^-c "):
        environments._step(command, time.monotonic() + 60)
