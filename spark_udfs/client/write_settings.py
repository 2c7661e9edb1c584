"""How a producer of ours writes, and as whom: what also processes need that write nothing, and so load no kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fleetlog.spark.client.kafka_names import KAFKA_PREFIX
from fleetlog.spark.client.options import INT64_MAX, Option, one_of, whole_number
from fleetlog.wire.compression_codecs import CODES, NONE

_COMPRESSION = Option("kafka.compression.type", one_of(*CODES), "none")
_BATCH_BYTES = Option("kafka.batch.size", whole_number(1), 512 << 10)
_BUFFER_BYTES = Option("kafka.buffer.memory", whole_number(1 << 20, INT64_MAX), 32 << 20)
_DELIVERY_TIMEOUT_MS = Option("kafka.delivery.timeout.ms", whole_number(1000), 120_000)


EXECUTOR_NAMES = frozenset(
    option.name.removeprefix(KAFKA_PREFIX)
    for option in (_COMPRESSION, _BATCH_BYTES, _BUFFER_BYTES, _DELIVERY_TIMEOUT_MS)
)
"""The settings of a producer that have an effect here."""

REGISTRY_SETTINGS = ("basic.auth.user.info", "bearer.auth.token", "ssl.ca.location")
"""Of a client of a schema registry, by the names of Confluent's: ``user:password``, a token, a file of certificates."""


class WriteSettings(NamedTuple):
    """How rows are written. Sizes in bytes; ``delivery_timeout_ms`` bounds how long a record batch may take."""

    topic: str | None
    codec: int = NONE
    batch_bytes: int = _BATCH_BYTES.default
    buffer_bytes: int = _BUFFER_BYTES.default
    delivery_timeout_ms: int = _DELIVERY_TIMEOUT_MS.default

    @classmethod
    def parse(cls, settings: Mapping[str, str], topic: str | None) -> WriteSettings:
        """From settings under Kafka's names, without the prefix ``kafka.``. Raises OptionError."""
        given = {KAFKA_PREFIX + name: value for name, value in settings.items()}
        return cls(
            topic,
            CODES[_COMPRESSION.of(given)],
            _BATCH_BYTES.of(given),
            _BUFFER_BYTES.of(given),
            _DELIVERY_TIMEOUT_MS.of(given),
        )


class TaskMember(NamedTuple):
    """The producer of one task attempt: its member of the batch transaction."""

    producer_id: int
    epoch: int
