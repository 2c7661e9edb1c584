"""The sink's options: of the data source's writers, and of the functions for ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from spark_udfs.client.failures import OptionError
from spark_udfs.client.kafka_names import check_effect
from spark_udfs.client.options import Option, OptionTable, boolean, one_of, whole_number
from spark_udfs.client.producer import EXECUTOR_NAMES, WriteSettings
from spark_udfs.client.settings import CLIENT_NAMES, DRIVER_NAMES, kafka_python_settings, kafka_settings
from spark_udfs.sink.fence import check_sink_id

AUTO, EXECUTOR, DRIVER = "auto", "executor", "driver"
COLUMN_TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
"""A record's columns, and the Spark types that each may have."""

_RESTART = "without it a restarted query would not be recognised"
_ALL_ACKS, _BYTES, _FROM_SINK_ID = "exactly once needs all", "rows carry bytes", "it is made of sinkId"
_SINK_ID = Option("sinkId", check_sink_id, required=_RESTART)
_COMMON = (
    Option("topic"),
    Option("sink.transaction.timeout.ms", whole_number(1000), 300_000),
    Option("fence.onMissing", one_of("fail", "adopt"), "fail"),
)
_REFUSED = {
    "kafka.acks": _ALL_ACKS,
    "kafka.enable.idempotence": "exactly once needs it",
    "kafka.key.serializer": _BYTES,
    "kafka.transaction.timeout.ms": "use sink.transaction.timeout.ms",
    "kafka.transactional.id": _FROM_SINK_ID,
    "kafka.value.serializer": _BYTES,
}
_WRITER_TABLE = OptionTable(
    _SINK_ID, *_COMMON, Option("checkpointLocation"), Option("batchToken", default=""), refused=_REFUSED,
    ignored={"path": "", "queryName": ""},  # Spark adds the name of a query
)  # fmt: skip
_FUNCTION_TABLE = OptionTable(
    _SINK_ID,
    *_COMMON,
    Option("checkpointLocation", required=_RESTART),
    Option("sink.mode", one_of(AUTO, EXECUTOR, DRIVER), AUTO),
    Option("fence.takeover.queryId", default=""),
    Option("fence.enabled", boolean, True),
    Option("sink.repartition", one_of("none", "key"), "none"),
    Option("sink.small.batch.rows", whole_number(), 0),
    refused={
        **_REFUSED,
        "kafka.group.id": _FROM_SINK_ID,
        "kafka.isolation.level": "it belongs to readers",
        "kafka.request.required.acks": _ALL_ACKS,
    },
    ignored={"includeHeaders": "it is an option of sources; the column headers is written if it is there"},
    user="the sink",
)


@dataclass(frozen=True)
class WriteOptions:
    """What executors and their driver need to write. ``kafka``: settings under Kafka's names.

    ``token`` names a batch job's content: with the same token it is written once. ``adopt``: a batch that is not a
    query's first may find no fence.
    """

    settings: dict[str, Any]
    rows: WriteSettings
    sink_id: str
    transaction_timeout_ms: int
    kafka: dict[str, str]
    token: str = ""
    adopt: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType | None = None) -> WriteOptions:
        """The data source's options; with ``schema`` its columns are checked. Raises OptionError."""
        values = _WRITER_TABLE.parse(options)
        kafka = kafka_settings(options)
        _check_executors(kafka)
        parsed = cls(
            settings=kafka_python_settings(kafka),
            rows=WriteSettings.parse(kafka, values["topic"]),
            sink_id=values["sinkId"],
            transaction_timeout_ms=values["sink.transaction.timeout.ms"],
            kafka=kafka,
            token=values["batchToken"],
            adopt=values["fence.onMissing"] == "adopt",
        )
        if schema is not None:
            parsed._check_columns(schema)
        return parsed

    def _check_columns(self, schema: StructType) -> None:
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_required_columns(types, self.rows.topic)
        for name, kind in types.items():
            if name not in COLUMN_TYPES:
                raise OptionError(f"column {name} is unknown; a record has {', '.join(COLUMN_TYPES)}: drop it")
            check_column_type(name, kind)


@dataclass(frozen=True)
class SinkOptions:
    """The options of the functions for ``foreachBatch``, checked. ``kafka``: settings under Kafka's names.

    ``adopt``: a missing fence means that all batches before are written. ``takeover``: the query whose fence this one
    takes.
    """

    kafka: dict[str, str]
    topic: str | None
    sink_id: str
    checkpoint: str
    transaction_timeout_ms: int
    adopt: bool
    takeover: str
    fenced: bool
    mode: str
    repartition: bool
    small_rows: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Raises OptionError, which names the option and what is allowed."""
        values = _FUNCTION_TABLE.parse(options)
        if values["sink.mode"] == EXECUTOR and not values["fence.enabled"]:
            raise OptionError("option fence.enabled=false goes with sink.mode=driver: executors need the fence")
        if values["sink.repartition"] == "key" and values["topic"] is None:
            raise OptionError("option sink.repartition=key goes with option topic: several topics differ in partitions")
        kafka = kafka_settings(options)
        check_effect(kafka, EXECUTOR_NAMES | DRIVER_NAMES, "the sink")
        return cls(
            kafka=kafka,
            topic=values["topic"],
            sink_id=values["sinkId"],
            checkpoint=values["checkpointLocation"],
            transaction_timeout_ms=values["sink.transaction.timeout.ms"],
            adopt=values["fence.onMissing"] == "adopt",
            takeover=values["fence.takeover.queryId"],
            fenced=values["fence.enabled"],
            mode=values["sink.mode"],
            repartition=values["sink.repartition"] == "key",
            small_rows=values["sink.small.batch.rows"],
        )

    def for_executors(self) -> WriteOptions:
        """What executor mode needs of these options. Raises OptionError for its settings of the producer."""
        _check_executors(self.kafka)
        return WriteOptions(
            settings=kafka_python_settings(self.kafka),
            rows=WriteSettings.parse(self.kafka, self.topic),
            sink_id=self.sink_id,
            transaction_timeout_ms=self.transaction_timeout_ms,
            kafka=self.kafka,
            adopt=self.adopt,
        )


def _check_executors(kafka: Mapping[str, str]) -> None:
    check_effect(kafka, CLIENT_NAMES | EXECUTOR_NAMES, "a sink whose executors write")


def check_required_columns(names: Mapping[str, Any], topic: str | None) -> None:
    """Raises OptionError where the column value is missing, or neither a column nor an option names the topic."""
    if "value" not in names:
        raise OptionError(f"column value is required; there are {', '.join(names)}")
    if topic is None and "topic" not in names:
        raise OptionError("neither option topic nor column topic names the topic: set one of them")


def check_column_type(name: str, kind: str) -> None:
    """Raises OptionError where a record's column has a type that Kafka can't take."""
    if kind not in COLUMN_TYPES[name]:
        raise OptionError(f"column {name} is {kind}; it must be {' or '.join(COLUMN_TYPES[name])}")
