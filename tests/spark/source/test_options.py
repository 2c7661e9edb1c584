"""The source's options: what is refused, and what the message names."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_udfs.client.connections import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from spark_udfs.client.failures import OptionError
from spark_udfs.source.offsets import Bound
from spark_udfs.source.options import ReadOptions
from spark_udfs.source.segments import SegmentsReader

READ = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


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
    with pytest.raises(OptionError, match=message):
        ReadOptions.parse({**READ, **change}, streaming=streaming)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": ""}, r"option path is required: load\(path\)"),
        ({"kafka.bootstrap.servers": "h:1"}, r"option kafka\.bootstrap\.servers is unknown"),
        ({"subscribe": "a", "assign": "{}"}, "at most one of the options assign, subscribe, subscribePattern"),
        ({"until": "now"}, "until: 'now' is not highWatermark or end"),
    ],
)
def test_a_read_of_segments_refuses(change: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        SegmentsReader({"path": str(tmp_path), **change})
