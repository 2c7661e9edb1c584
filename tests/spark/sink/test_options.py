"""The sink's options: what is refused, and what the message names."""

from __future__ import annotations

import pytest

from fleetlog.spark.client import write_settings
from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.sink.options import SinkOptions, WriteOptions
from fleetlog.wire import compression

SINK = {"kafka.bootstrap.servers": "h:1", "sinkId": "s", "checkpointLocation": "/c"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sinkId": ""}, "sinkId is required"),
        ({"checkpointLocation": " "}, "checkpointLocation is required"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is required"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id can't be set"),
        ({"kafka.acks": "1"}, "kafka.acks can't be set"),
        ({"kafka.enable.idempotence": "false"}, "kafka.enable.idempotence can't be set"),
        ({"sinkID2": "x"}, "option sinkID2 is unknown"),
        ({"fence.onMissing": "ignore"}, "fence.onMissing"),
        ({"sink.mode": "member"}, "sink.mode"),
        ({"sink.repartition": "hash"}, "sink.repartition: 'hash' is not none or key"),
        ({"sink.repartition": "key"}, "sink.repartition=key goes with option topic"),
        ({"sink.transaction.timeout.ms": "soon"}, "sink.transaction.timeout.ms: 'soon' is not a whole number"),
    ],
)
def test_sink_refuses(change: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SinkOptions.parse({**SINK, **change})


def test_sink_options_ignore_case() -> None:
    parsed = SinkOptions.parse({name.upper(): value for name, value in SINK.items()})
    assert (parsed.sink_id, parsed.checkpoint, parsed.kafka) == ("s", "/c", {"bootstrap.servers": "h:1"})


WRITER = {"kafka.bootstrap.servers": "h:1", "sinkId": "s", "topic": "t"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sinkId": ""}, "sinkId is required"),
        ({"sinkId": "no spaces"}, "option sinkId: 'no spaces' is not made of"),
        ({"sink.mode": "driver"}, "option sink.mode is unknown; known are kafka.\\*, batchToken"),
        ({"kafka.acks": "1"}, "kafka.acks can't be set: exactly once needs all"),
        ({"kafka.compression.type": "rar"}, "kafka.compression.type: 'rar' is not none, gzip, snappy, lz4 or zstd"),
        ({"kafka.bootstrap.servers": "h:1,broker-2"}, "'broker-2' is not HOST:PORT, for instance broker-1:9092"),
        ({"topic": ""}, "option topic: '' is no topic's name"),
        ({"topic": "a b"}, "option topic: 'a b' is no topic's name"),
        ({"kafka.batch.size": "0"}, "kafka.batch.size: 0 is below 1"),
        ({"kafka.buffer.memory": "1"}, "kafka.buffer.memory: 1 is below 1048576"),
        ({"sink.transaction.timeout.ms": "9999999999"}, "sink.transaction.timeout.ms: 9999999999 is above 2147483647"),
    ],
)
def test_a_writer_refuses(change: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        WriteOptions.parse({**WRITER, **change})


def test_executors_take_their_settings_from_either_set_of_options() -> None:
    tuned = {"kafka.compression.type": "LZ4", "kafka.batch.size": "1000", "fence.onMissing": "adopt"}
    written = WriteOptions.parse({**WRITER, **tuned})
    assert written.rows == write_settings.WriteSettings("t", compression.CODES["lz4"], 1000)
    assert SinkOptions.parse({**SINK, **tuned, "topic": "t"}).for_executors() == written


def test_settings_that_only_executors_refuse_are_left_to_driver_mode() -> None:
    parsed = SinkOptions.parse({**SINK, "sink.mode": "driver", "kafka.delivery.timeout.ms": "0"})
    assert parsed.kafka["delivery.timeout.ms"] == "0"
    with pytest.raises(OptionError, match=r"kafka\.delivery\.timeout\.ms: 0 is below 1000"):
        parsed.for_executors()
