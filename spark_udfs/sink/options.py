"""The sink's options: of the data source's writers, and of the functions for ``foreachBatch``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from fleetlog.spark.functions.registry import Schema


from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.kafka_names import check_effect
from fleetlog.spark.client.options import Option, OptionTable, boolean, lowered, one_of, whole_number
from fleetlog.spark.client.settings import CLIENT_NAMES, DRIVER_NAMES, kafka_python_settings, kafka_settings
from fleetlog.spark.client.write_settings import EXECUTOR_NAMES, REGISTRY_SETTINGS, WriteSettings
from fleetlog.spark.sink.fence import check_sink_id

AUTO, EXECUTOR, DRIVER = "auto", "executor", "driver"
REFUSE, APPEND, REPLACE = "refuse", "append", "replace"
COLUMN_TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
"""A record's columns, and the Spark types that each may have."""


_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _topic_name(name: str, text: str) -> str:
    """A reader of a topic's name. Raises OptionError for one that no topic can have."""
    if not _TOPIC.fullmatch(text) or text in (".", ".."):
        raise OptionError(f"option {name}: {text!r} is no topic's name: 1 to 249 letters, digits, '.', '_' and '-'")
    return text


_RESTART = "without it a restarted query would not be recognised"
_ALL_ACKS, _BYTES, _FROM_SINK_ID = "exactly once needs all", "rows carry bytes", "it is made of sinkId"
_SINK_ID = Option("sinkId", check_sink_id, required=_RESTART)
_SUBJECT, _REGISTRY = "schema.subject", "schema.registry."
_OF_REGISTRY = (Option(f"{_REGISTRY}url"), *(Option(_REGISTRY + name) for name in REGISTRY_SETTINGS))
_FULL_REFRESH = Option("sink.fullRefresh", one_of(REFUSE, APPEND, REPLACE))
_FLOW_CHECKPOINT = re.compile(r"/_checkpoints/.+/([^/]+)/(\d{1,9})/?$")
"""Where Spark's Declarative Pipelines (seen in 4.3) keep a flow's checkpoint; a full refresh counts its number up."""
_COMMON = (
    Option("topic", _topic_name),
    Option("sink.transaction.timeout.ms", whole_number(1000), 300_000),
    Option("fence.onMissing", one_of("fail", "adopt"), "fail"),
    Option(_SUBJECT),
    *_OF_REGISTRY,
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
    _SINK_ID, *_COMMON, Option("checkpointLocation"), Option("batchToken", default=""), _FULL_REFRESH, refused=_REFUSED,
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


class Subject(NamedTuple):
    """A subject of a registry, by whose newest schema values are written. ``settings``: of the registry's client."""

    name: str
    url: str
    settings: dict[str, str]

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Subject | None:
        """From the values of a table; None where no subject is named. Raises OptionError."""
        given = {option.name: values[option.name] for option in _OF_REGISTRY if values[option.name] is not None}
        name, url = values[_SUBJECT], given.pop(f"{_REGISTRY}url", None)
        if name is None:
            if given or url is not None:
                raise OptionError(f"option {next(iter(given), f'{_REGISTRY}url')} goes with {_SUBJECT}: set that, too")
            return None
        if url is None:
            raise OptionError(f"option {_SUBJECT} needs {_REGISTRY}url, the registry's address")
        return cls(name, url, {option.removeprefix(_REGISTRY): value for option, value in given.items()})

    def schema_for(self, kind: DataType) -> Schema:
        """Its newest schema, which takes values of this type. Raises OptionError, which names the field that differs;
        RegistryError."""
        from fleetlog.spark.functions.avro import misfit  # late: a sink without a subject needs no HTTP, no Arrow
        from fleetlog.spark.functions.registry import AVRO, shared_registry

        schema = shared_registry(self.url, self.settings).latest(self.name)
        what = f"schema {schema.id} of subject {self.name}"
        if schema.kind != AVRO:
            raise OptionError(f"{what} is {schema.kind}: a sink writes {AVRO}; for JSON there is to_confluent_json")
        why = misfit(kind, schema)
        if why:
            raise OptionError(f"column value does not fit {what}: {why}")
        return schema


class FlowRefresh(NamedTuple):
    """The full refresh of a pipeline's flow that a write belongs to; its rows have a sink id of their own.

    ``number``: how many full refreshes there were, this one included. ``sink_id``: of the flow before any of them.
    """

    flow: str
    number: int
    sink_id: str
    mode: str
    checkpoint: str

    def earlier_sink_ids(self) -> Iterator[str]:
        """Those that the flow may have written by, the newest first."""
        yield f"{self.sink_id}.{APPEND if self.mode == REPLACE else REPLACE}.{self.number}"
        for number in range(self.number - 1, 0, -1):
            yield from (f"{self.sink_id}.{mode}.{number}" for mode in (APPEND, REPLACE))
        yield self.sink_id


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
    refresh: FlowRefresh | None = None
    subject: Subject | None = None
    schema: Schema | None = None
    """By which tasks write the column value: the subject's newest when the batch began."""

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType | None = None) -> WriteOptions:
        """The data source's options; with ``schema`` its columns are checked. Raises OptionError.

        A flow of a pipeline has a sink id by its name.
        """
        given = lowered(options)
        flow = _FLOW_CHECKPOINT.search(given.get("checkpointlocation", "")) if "queryname" in given else None
        values = _WRITER_TABLE.parse(options if flow is None else {"sinkId": flow[1], **options})
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
            subject=Subject.parse(values),
        )
        if schema is not None:
            parsed._check_columns(schema)
        mode = values["sink.fullRefresh"]
        if flow is None and mode is not None:
            raise OptionError(
                "option sink.fullRefresh is for flows of spark-pipelines: a new checkpoint of another query takes "
                "another sinkId, or see fleetlog sinks reset"
            )
        if flow is None or int(flow[2]) == 0:
            return parsed
        return parsed._refreshed(
            FlowRefresh(flow[1], int(flow[2]), parsed.sink_id, mode or REFUSE, given["checkpointlocation"])
        )

    def _refreshed(self, refresh: FlowRefresh) -> WriteOptions:
        """The options by which a flow writes after a full refresh: a sink id, and with REPLACE a topic, of its own."""
        rows = self.rows
        if refresh.mode == REPLACE:
            if rows.topic is None:
                raise OptionError("option sink.fullRefresh=replace goes with option topic: it writes to TOPIC.NUMBER")
            rows = rows._replace(topic=f"{rows.topic}.{refresh.number}")
        kind = REPLACE if refresh.mode == REPLACE else APPEND
        sink_id = check_sink_id("sinkId", f"{refresh.sink_id}.{kind}.{refresh.number}")
        return replace(self, rows=rows, sink_id=sink_id, refresh=refresh)

    def _check_columns(self, schema: StructType) -> None:
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        for name in types:
            if name not in COLUMN_TYPES and name.lower() in COLUMN_TYPES:
                raise OptionError(f"column {name} is written {name.lower()}: rename it")
        check_required_columns(types, self.rows.topic)
        for name, kind in types.items():
            if name not in COLUMN_TYPES:
                raise OptionError(f"column {name} is unknown; a record has {', '.join(COLUMN_TYPES)}: drop it")
            check_column_type(name, kind, structs=self.subject is not None)

    def with_schema(self, columns: StructType) -> WriteOptions:
        """The options by which a batch of these columns is written; the registry's login does not travel to tasks.

        Raises OptionError, RegistryError.
        """
        if self.subject is None:
            return self
        return replace(self, subject=None, schema=self.subject.schema_for(columns["value"].dataType))


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
    subject: Subject | None

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
            subject=Subject.parse(values),
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


def check_column_type(name: str, kind: str, *, structs: bool = False) -> None:
    """Raises OptionError where a column has a type that Kafka can't take. ``structs``: values have a schema."""
    if structs and name == "value":
        if kind in COLUMN_TYPES[name]:
            raise OptionError(
                f"column value is {kind}, and option {_SUBJECT} writes values that are no bytes yet: "
                "struct('*') as value makes one of a row"
            )
    elif kind not in COLUMN_TYPES[name]:
        raise OptionError(f"column {name} is {kind}; it must be {' or '.join(COLUMN_TYPES[name])}")
