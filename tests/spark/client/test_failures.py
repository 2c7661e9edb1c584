"""The one sentence in what Spark prints."""

from __future__ import annotations

from fleetlog.spark import OptionError, reason

SPARK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed to \
initialize Python data source writer: Traceback (most recent call last):
  File "/x/fleetlog/spark/client/connections.py", line 264, in _retry
kafka.errors.KafkaError: refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/fleetlog/spark/data_source.py", line 73, in streamWriter
    raise reason from None
fleetlog.spark.client.failures.FenceConflict: the fence belongs to query q: reset_fence() hands it over
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
"""


def test_the_reason_is_found_between_traceback_and_plan() -> None:
    assert reason(Exception(SPARK)) == "FenceConflict: the fence belongs to query q: reset_fence() hands it over"


def test_an_exception_of_the_package_is_its_own_reason() -> None:
    assert reason(OptionError("option x is unknown")) == "OptionError: option x is unknown"


def test_a_thread_without_a_session_is_told_what_to_do() -> None:
    """SparkClassNotFoundException, as Spark (4.3) words it."""
    said = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: fleetlog. Make sure the provider name is correct"
    assert "call fleetlog.spark.use_in_thread(spark) first" in str(reason(Exception(said)))
    assert reason(Exception(said.replace("fleetlog", "paimon"))) is None


def test_another_problem_has_none() -> None:
    assert reason(Exception("Job aborted due to stage failure")) is None
