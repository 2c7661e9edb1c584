"""What Spark's Python processes import before they do anything: modules are counted, not seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

OF_SPARK = "import pyspark.worker, pyspark.sql.worker.create_data_source, pyspark.sql.streaming.datasource"
"""What such a process has imported itself by then."""
NO_ONES = ("http", "urllib.request", "email", "difflib")
"""What serves a token's endpoint and a misspelt name."""
OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}


def loaded(doing: str) -> set[str]:
    """The modules that come with it."""
    code = f"{OF_SPARK}\nimport sys\nbefore = set(sys.modules)\n{doing}\nprint(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("name", ["pyspark_fleetlog", "pyspark_fleetlog_segments"])
def test_a_format_is_found_without_its_clients(name: str) -> None:
    """Every process of Spark's that looks for any format imports both."""
    found = loaded(f"import {name}")
    assert not {"kafka.net", "kafka.protocol", "confluent_kafka", "pandas"} & found
    assert len(found) <= 35, sorted(found)


def test_the_schema_is_told_without_a_client() -> None:
    """`load` has a process of its own for it."""
    found = loaded(f"from pyspark_fleetlog import DefaultSource\nDefaultSource({OPTIONS}).schema()")
    assert not {"kafka.net", "kafka.protocol", "fleetlog._native.columns", "http.client"} & found
    assert len(found) <= 35, sorted(found)


@pytest.mark.parametrize("room", ["source.readers", "sink.writer", "sink.batch_transactions"])
def test_a_worker_that_imports_a_room_first_has_no_clients_of_kafka_python(room: str) -> None:
    """So does one that unpickles a reader or writer: Spark's workers import nothing of fleetlog before."""
    found = loaded(f"import fleetlog.spark.{room}")
    unneeded = ("kafka.admin", "kafka.consumer", "kafka.producer", "kafka.coordinator", "kafka.record", "kafka.codec")
    assert not {name for name in found if name.startswith(unneeded)}
    assert not {"kafka.protocol.admin.acl", "kafka.protocol.admin.users", "kafka.protocol.consumer.metadata"} & found


def test_what_plans_a_stream_has_no_kernels_of_columns_and_no_sink() -> None:
    found = loaded("import fleetlog.spark.source.readers")
    assert not {"pyarrow.compute", "fleetlog._native.columns", "fleetlog.spark.source.decode"} & found
    assert "kafka.net.selector" in found
    assert not {name for name in found if name.startswith("fleetlog.spark.sink") or name == "confluent_kafka"}


def test_what_begins_and_commits_a_write_has_no_arrow_no_codecs_and_no_http() -> None:
    """It writes no rows: Spark asks a process of its own for the writer and for each commit."""
    found = loaded("import fleetlog.spark.sink.options, fleetlog.spark.sink.writer")
    unneeded = ("pyarrow", "numpy", "lz4", "snappy", "zstandard", "confluent_kafka", *NO_ONES)
    assert not {name for name in found if name.startswith(unneeded)}
    assert not {"fleetlog._native.columns", "fleetlog._native.batch", "fleetlog.spark.client.producer"} & found
    assert "kafka.net.selector" in found
    assert len(found) <= 136, sorted(found)


def test_what_plans_a_stream_has_no_http() -> None:
    found = loaded("import pyarrow\nbefore = set(sys.modules)\nimport fleetlog.spark.source.readers")
    assert not {name for name in found if name.startswith(NO_ONES)}
    assert len(found) <= 128, sorted(found)


@pytest.mark.parametrize("frame", ["CommitFrame('s', 1, 0, 'q', 0, '', [])", "ProduceFrame(None, 1, {})"])
def test_the_library_finds_the_class_of_the_answer_to_a_frame(frame: str) -> None:
    """Nothing else in the process has asked for it."""
    loaded(
        "from fleetlog.spark.client import frames\n"
        "from kafka.protocol.api_message import ResponseClassRegistry\n"
        f"frame = frames.{frame}\n"
        "frame.with_header(7, 'c')\n"
        "assert ResponseClassRegistry.get_response_class(frame.header) is not None"
    )
