"""Spark's side of fleetlog: a source, an exactly-once sink and column functions.

The names below are loaded when they are asked for, so that a worker that only reads does not load the sink's client.
"""

from __future__ import annotations

from typing import Any

_PLACES = {
    "exactly_once_batch": "sink",
    "write_stream": "sink",
    "SinkEvent": "sink",
    "move_sink": "modes",
    "read_fence": "fence",
    "reset_fence": "fence",
    "Fence": "fence",
    "FenceConflict": "failures",
    "FenceError": "failures",
    "FenceLost": "failures",
    "decode_record_batch": "columns",
    "headers_get": "columns",
    "headers_to_map": "columns",
    "kafka_murmur2": "columns",
    "kafka_partition": "columns",
    "spark_environment": "java",
    "OptionError": "settings",
    "repartition_by_key": "routing",
    "split_bad": "routing",
    "from_confluent_avro": "confluent",
    "from_confluent_json": "confluent",
    "to_confluent_avro": "confluent",
    "to_confluent_json": "confluent",
    "RegistryError": "registry",
    "lag": "listener",
    "BatchFigures": "listener",
    "SinkListener": "listener",
    "SinkProgress": "listener",
}

__all__ = sorted(_PLACES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
