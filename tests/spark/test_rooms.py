"""What imports what on Spark's side, beyond the contracts of import-linter."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import fleetlog.spark

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "spark_udfs").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_for_types_alone_are_of_other_packages_or_of_the_client(path: Path) -> None:
    """The contracts leave imports for types alone out: one of these could close a cycle unseen.

    The client imports neither the sink nor the source, and functions import no sink, so that what these import of them
    closes none.
    """
    client, functions = "fleetlog.spark.client.", "fleetlog.spark.functions."
    allowed = {"sink": (client, functions), "source": (client,)}.get(path.parent.name, ())
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            names = [part.module for part in node.body if isinstance(part, ast.ImportFrom)]
            assert not [name for name in names if name and name.startswith("fleetlog") and not name.startswith(allowed)]


def test_public_names_are_there() -> None:
    for name in fleetlog.spark.__all__:
        assert getattr(fleetlog.spark, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'sinks'"):
        _ = fleetlog.spark.sinks


def test_a_worker_that_reads_loads_no_client_of_the_sink() -> None:
    check = "import pyspark_fleetlog, pyspark_fleetlog_segments, sys; print('confluent_kafka' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


def test_executor_mode_needs_no_librdkafka() -> None:
    check = """
import sys
sys.modules["confluent_kafka"] = None  # as where the package is not installed
from fleetlog.spark import SinkListener, exactly_once_batch, read_fence, write_stream
from fleetlog.spark.sink import executor_mode, writer
options = {"kafka.bootstrap.servers": "127.0.0.1:1", "sinkId": "s", "checkpointLocation": "/c", "topic": "t"}
made = exactly_once_batch(options)
from fleetlog.spark.sink.foreach_batch import _driver_mode
from fleetlog.spark.client.failures import OptionError
try:
    _driver_mode(made._options, made._report)
except OptionError as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "pip install confluent-kafka" in done.stdout


def test_what_transform_with_state_imports_is_installed() -> None:
    """PySpark imports protobuf for it, and its wheel requires none."""
    assert importlib.import_module("pyspark.sql.streaming.proto.StateMessage_pb2").StateRequest
