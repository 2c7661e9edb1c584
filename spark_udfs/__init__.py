"""Spark's side of fleetlog: a source, an exactly-once sink and column functions.

A name is imported at its first use: a worker that only reads does not load the sink's client library.
"""

from __future__ import annotations

from typing import Any

import fleetlog.wire  # noqa: F401 - before all rooms, which then import kafka-python without its clients

if __name__ != "fleetlog.spark":
    from fleetlog.renamed import rename

    rename(__name__, "fleetlog.spark")

_MODULES = {
    "client.failures": ("FenceConflict", "FenceError", "FenceLost", "OptionError", "RegistryError", "reason"),
    "functions.columns": (
        "decode_record_batch",
        "headers_get",
        "headers_to_map",
        "kafka_murmur2",
        "kafka_partition",
    ),
    "functions.confluent": (
        "from_confluent_avro",
        "from_confluent_json",
        "to_confluent_avro",
        "to_confluent_json",
    ),
    "functions.routing": ("repartition_by_key", "split_bad"),
    "functions.sources": ("with_source",),
    "java": ("spark_environment",),
    "sink.administration": ("move_sink", "read_fence", "reset_fence"),
    "sink.events": ("BatchFigures", "SinkEvent"),
    "sink.fence": ("Fence",),
    "sink.foreach_batch": ("exactly_once_batch",),
    "sink.listener": ("SinkListener", "SinkProgress", "lag", "offsets_behind_latest"),
    "sink.starting": ("use_in_thread", "write_stream"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
