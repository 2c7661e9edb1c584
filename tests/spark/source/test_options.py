"""The source's options: what is refused, and what the message names."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.numbers import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from fleetlog.spark.source.offsets import Bound
from fleetlog.spark.source.options import ReadOptions
from fleetlog.spark.source.segments import SegmentsReader

READ = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
PAGES = [Path(__file__).parents[3] / "docs" / name for name in ("spark-connector.md", "spark.md")]

# Spark 4.3's KafkaSourceProvider: every option of its source
OF_SPARKS_OWN_SOURCE = {
    "assign": '{"t": [0]}',
    "subscribe": "t",
    "subscribePattern": "t",
    "failOnDataLoss": "false",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "10",
    "groupIdPrefix": "p",
    "includeHeaders": "true",
    "kafka.group.id": "g",
    "kafkaConsumer.pollTimeoutMs": "5",
    "maxOffsetsPerTrigger": "9",
    "maxRecordsPerPartition": "9",
    "maxTriggerDelay": "1m",
    "minOffsetsPerTrigger": "9",
    "minPartitions": "9",
    "startingOffsets": "earliest",
    "startingOffsetsByTimestamp": '{"t": {"0": 5}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "startingTimestamp": "5",
    "endingOffsets": "latest",
    "endingOffsetsByTimestamp": '{"t": {"0": 5}}',
    "endingTimestamp": "5",
}


def test_defaults_of_a_batch_and_of_a_stream() -> None:
    batch, stream = (ReadOptions.parse(READ, streaming=streaming) for streaming in (False, True))
    assert (batch.starting, batch.ending) == (Bound(everywhere=EARLIEST), Bound(everywhere=LATEST))
    assert stream.starting == Bound(everywhere=LATEST)
    assert (batch.isolation, batch.fetch_bytes, batch.headers, batch.fail_on_data_loss) == (
        READ_COMMITTED, 4 << 20, False, True,
    )  # fmt: skip
    assert (batch.strategy, batch.wanted, batch.max_per_trigger, batch.min_partitions) == ("subscribe", "t", None, None)


def test_names_are_read_as_spark_hands_them_over() -> None:
    given = {"subscribepattern": "t.*", "maxoffsetspertrigger": str(2**40), "includeheaders": "true",
             "kafka.isolation.level": "read_uncommitted", "groupidprefix": "x", "path": ""}  # fmt: skip
    found = ReadOptions.parse({"kafka.bootstrap.servers": "h:1", **given}, streaming=True)
    assert (found.strategy, found.max_per_trigger, found.headers) == ("subscribePattern", 2**40, True)
    assert found.isolation == READ_UNCOMMITTED


@pytest.mark.parametrize(
    ("change", "streaming", "message"),
    [
        ({"kafka.bootstrap.servers": " "}, False, "kafka.bootstrap.servers is required"),
        ({"subscribePattern": "t"}, False, "exactly one of the options assign, subscribe, subscribePattern"),
        ({"subscribe": " , "}, False, "option subscribe names no topic"),
        ({"subscribe": "", "subscribePattern": "x["}, True, r"option subscribePattern: 'x\[' is no regular expression"),
        ({"subscribe": "", "assign": "x"}, True, "option assign: expected JSON"),
        (
            {"startingOffsets": "earlist"},
            True,
            "startingOffsets: expected earliest, latest or JSON such as .*'earlist'",
        ),
        ({"endingOffsets": "newest"}, False, "endingOffsets: expected latest or JSON such as .*'newest'"),
        ({"speed": "high"}, False, r"option speed is unknown; known are kafka\.\*, assign, "),
        ({"kafka.auto.offset.reset": "latest"}, False, r"kafka\.auto\.offset\.reset can't be set: the source decides"),
        ({"kafka.isolation.level": "none"}, False, "'none' is not read_committed or read_uncommitted"),
        ({"startingOffsetsByTimestampStrategy": "x"}, False, "startingOffsetsByTimestampStrategy: 'x' is not error or"),
        ({"maxTasks": "0"}, False, "maxTasks: 0 is below 1"),
        ({"startingOffsets": "latest"}, False, "startingOffsets: latest would read nothing in a batch"),
        (
            {"kafkaConsumer.pollTimeoutMs": "5"},
            True,
            "pollTimeoutMs can't be set: .*kafka.request.timeout",
        ),
        ({"fetchOffset.numRetries": "5"}, True, "fetchOffset.numRetries can't be set: .*repeated for a minute"),
        ({"fetchOffset.retryIntervalMs": "5"}, True, "fetchOffset.retryIntervalMs can't be set: .*repeated"),
        ({"maxTriggerDelay": "soon"}, True, "maxTriggerDelay: 'soon' is not a duration such as 30s"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, True, "minOffsetsPerTrigger: 9 is above max"),
        ({"endingTimestamp": "5"}, True, "option endingTimestamp has no meaning in a stream"),
    ],
)
def test_the_source_refuses(change: dict[str, str], streaming: bool, message: str) -> None:
    given = {name: text for name, text in {**READ, **change}.items() if text}
    with pytest.raises(OptionError, match=message):
        ReadOptions.parse(given, streaming=streaming)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": ""}, r"option path is required: load\(path\)"),
        ({"kafka.bootstrap.servers": "h:1"}, r"option kafka\.bootstrap\.servers is unknown"),
        ({"subscribePattern": "x["}, "option subscribePattern: .* is no regular expression"),
        ({"subscribe": "a", "assign": "{}"}, "at most one of the options assign, subscribe, subscribePattern"),
        ({"until": "now"}, "until: 'now' is not highWatermark or end"),
    ],
)
def test_a_read_of_segments_refuses(change: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        SegmentsReader({"path": str(tmp_path), **change})


@pytest.mark.parametrize("name", OF_SPARKS_OWN_SOURCE)
def test_no_option_of_sparks_own_source_is_unknown(name: str) -> None:
    """It works, or the error says what to do instead; and the docs name it."""
    options = {"kafka.bootstrap.servers": "h:1", name: OF_SPARKS_OWN_SOURCE[name]}
    if name not in ("assign", "subscribe", "subscribePattern"):
        options["subscribe"] = "t"
    of_streams = name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
    refused = ""
    try:
        ReadOptions.parse(options, streaming=of_streams)
    except OptionError as problem:
        refused = str(problem)
    assert not refused or f"option {name} can't be set: " in refused
    assert any(f"`{name}`" in page.read_text() for page in PAGES), f"no page names {name}"
