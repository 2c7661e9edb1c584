"""The source's options, and the columns that its rows have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.kafka_names import KAFKA_PREFIX, check_effect
from fleetlog.spark.client.numbers import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from fleetlog.spark.client.options import INT64_MAX, Option, OptionTable, boolean, lowered, one_of, whole_number
from fleetlog.spark.client.settings import CLIENT_NAMES, kafka_python_settings, kafka_settings
from fleetlog.spark.source import offsets
from fleetlog.spark.source.offsets import Bound
from fleetlog.spark.source.triggers import DEFAULT_MAX_DELAY_MS, duration_ms
from fleetlog.spark.versions import READ_LIMITS, require

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SCHEMA = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
HEADERS_SCHEMA = ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"

BROKERS, BUCKET = "brokers", "bucket"
STRATEGIES = ("assign", "subscribe", "subscribePattern")
INCLUDE_HEADERS = Option("includeHeaders", boolean, False)
ISOLATION_LEVEL = Option("kafka.isolation.level", one_of("read_committed", "read_uncommitted"), "read_committed")
_FETCH_BYTES = Option("kafka.max.partition.fetch.bytes", whole_number(1), 4 << 20)
_USED = CLIENT_NAMES | {option.name.removeprefix(KAFKA_PREFIX) for option in (ISOLATION_LEVEL, _FETCH_BYTES)}
_SOURCE = "the source"
_REPEATED = "a request that fails is repeated for a minute: leave it out"
_DECIDED_BY_THE_SOURCE = "the source decides it"  # Spark's own source refuses these, too
_TABLE = OptionTable(
    *map(Option, STRATEGIES),
    *(
        Option(side + name)
        for side in ("starting", "ending")
        for name in ("Offsets", "Timestamp", "OffsetsByTimestamp")
    ),
    Option("startingOffsetsByTimestampStrategy", one_of("error", "latest"), "error"),
    Option("maxOffsetsPerTrigger", whole_number(1, INT64_MAX)),
    Option("minOffsetsPerTrigger", whole_number(1, INT64_MAX)),
    Option("maxTriggerDelay", duration_ms, DEFAULT_MAX_DELAY_MS),
    Option("minPartitions", whole_number(1)),
    Option("maxRecordsPerPartition", whole_number(1, INT64_MAX)),
    Option("maxTasks", whole_number(1)),
    INCLUDE_HEADERS,
    Option("failOnDataLoss", boolean, True),
    Option("tieredRead", one_of(BROKERS, BUCKET), BROKERS),
    ISOLATION_LEVEL,
    _FETCH_BYTES,
    refused={
        "paths": "load() takes no list; topics are named by subscribe, subscribePattern or assign",
        "fetchOffset.numRetries": _REPEATED,
        "fetchOffset.retryIntervalMs": _REPEATED,
        "kafkaConsumer.pollTimeoutMs": f"{_REPEATED}; how long one may take is kafka.request.timeout.ms",
        "kafka.auto.offset.reset": _DECIDED_BY_THE_SOURCE,
        "kafka.enable.auto.commit": _DECIDED_BY_THE_SOURCE,
        "kafka.interceptor.classes": _DECIDED_BY_THE_SOURCE,
        "kafka.key.deserializer": _DECIDED_BY_THE_SOURCE,
        "kafka.value.deserializer": _DECIDED_BY_THE_SOURCE,
    },
    ignored={"groupIdPrefix": "no consumer group is used", "path": ""},  # load() without a path sets none
    user=_SOURCE,
)


@dataclass(frozen=True)
class ReadOptions:
    """The source's options, checked. ``strategy``: one of STRATEGIES, and ``wanted`` its text."""

    settings: dict[str, Any]
    strategy: str
    wanted: str
    starting: Bound
    ending: Bound
    latest_if_no_match: bool
    max_per_trigger: int | None
    min_per_trigger: int | None
    max_trigger_delay_ms: int
    max_records_per_partition: int | None
    min_partitions: int | None
    max_tasks: int | None
    headers: bool
    fail_on_data_loss: bool
    isolation: int
    fetch_bytes: int
    from_bucket: bool

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
        """Raises OptionError, which names the option and what is allowed.

        ``streaming`` of None: not known yet, and the options are read once more later, which says what has no effect.
        """
        values = _TABLE.parse(options, warn=streaming is not None)
        kafka = kafka_settings(options)
        check_effect(kafka, _USED, _SOURCE, warn=streaming is not None)
        chosen = [name for name in STRATEGIES if values[name] is not None]
        if len(chosen) != 1:
            raise OptionError("exactly one of the options assign, subscribe, subscribePattern is required")
        least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
        if least is not None and most is not None and least > most:
            raise OptionError(f"option minOffsetsPerTrigger: {least} is above maxOffsetsPerTrigger, which is {most}")
        if streaming:
            _check_limits(values)
        check_choice(chosen[0], values[chosen[0]])
        starting, ending = _bounds(values, streaming)
        return cls(
            settings=kafka_python_settings(kafka),
            strategy=chosen[0],
            wanted=values[chosen[0]],
            starting=starting,
            ending=ending,
            latest_if_no_match=values["startingOffsetsByTimestampStrategy"] == "latest",
            max_per_trigger=values["maxOffsetsPerTrigger"],
            min_per_trigger=values["minOffsetsPerTrigger"],
            max_trigger_delay_ms=values["maxTriggerDelay"],
            max_records_per_partition=values["maxRecordsPerPartition"],
            min_partitions=values["minPartitions"],
            max_tasks=values["maxTasks"],
            headers=values["includeHeaders"],
            fail_on_data_loss=values["failOnDataLoss"],
            isolation=READ_COMMITTED if values["kafka.isolation.level"] == "read_committed" else READ_UNCOMMITTED,
            fetch_bytes=values["kafka.max.partition.fetch.bytes"],
            from_bucket=values["tieredRead"] == BUCKET,
        )


def check_choice(option: str, text: str) -> None:
    """Raises OptionError where the option can choose no partition."""
    if option == "assign":
        offsets.parse_assign(text)
    elif option == "subscribePattern":
        try:
            re.compile(text)
        except re.error as problem:
            raise OptionError(f"option subscribePattern: {text!r} is no regular expression: {problem}") from None
    elif not any(part.strip() for part in text.split(",")):
        raise OptionError("option subscribe names no topic")


def _check_limits(values: Mapping[str, Any]) -> None:
    """Raises OptionError where Spark takes no limit of a source: it would end, with AvailableNow, after one batch."""
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"):
        if values[name] is not None:
            require(f"option {name}", READ_LIMITS, "leave it out, or read with Spark's own format('kafka')")


def _bounds(values: Mapping[str, Any], streaming: bool | None) -> tuple[Bound, Bound]:
    starting = offsets.parse_bound(values, "starting", LATEST if streaming else EARLIEST)
    ending = offsets.parse_bound(values, "ending", LATEST)
    given = sorted(name for name, value in values.items() if name.startswith("ending") and value is not None)
    if streaming and given:
        raise OptionError(f"option {given[0]} has no meaning in a stream: leave it out")
    if streaming is False and (starting.everywhere == LATEST or LATEST in (starting.offsets or {}).values()):
        raise OptionError("option startingOffsets: latest would read nothing in a batch")
    return starting, ending


def checked_schema(options: Mapping[str, str]) -> str:
    """The columns, where the options can be read: `load` refuses wrong ones, not the query. Raises OptionError."""
    refuse_table(options)
    ReadOptions.parse(options, streaming=None)
    return row_schema(options)


def refuse_table(options: Mapping[str, str], format_name: str = "fleetlog") -> None:
    """Raises OptionError for a table, which shows by what Spark adds to the options, or by the lack of any.

    Spark (seen in 4.1 and 4.3) gives a data source in Python the options of a table when the table is made, and none
    when it is read or written; one that is made with columns is made without asking.
    """
    if not options:
        raise OptionError(
            "no option is set. Spark hands a table's options to no data source in Python: read a topic by "
            f"spark.read.format('{format_name}').options(...).load() or CREATE TEMPORARY VIEW name USING {format_name} "
            "OPTIONS (...), and write one by df.write.format('fleetlog').options(...).mode('append').save()"
        )
    if "provider" in lowered(options):
        raise OptionError(
            "a table can't be created: Spark hands its options to no data source in Python when it is read. "
            "CREATE TEMPORARY VIEW name USING fleetlog OPTIONS (...) takes the same options, and can be read"
        )


def check_schema(options: Mapping[str, str], schema: StructType) -> None:
    """Raises OptionError for a schema of the user's own: rows have one, and a task would stumble over another."""
    named = [f"{name}:{kind.lower()}" for name, kind in (column.split() for column in SCHEMA.split(", "))]
    if INCLUDE_HEADERS.of(lowered(options)):
        named.append("headers:array<struct<key:string,value:binary>>")
    if schema.simpleString() != f"struct<{','.join(named)}>":
        raise OptionError(
            f"the rows have the columns {', '.join(named)}: leave .schema(...) out, and cast or parse them afterwards"
        )


def row_schema(options: Mapping[str, str]) -> str:
    """The columns of Spark's Kafka source; ``headers`` only with ``includeHeaders``. Raises OptionError."""
    return SCHEMA + (HEADERS_SCHEMA if INCLUDE_HEADERS.of(lowered(options)) else "")
