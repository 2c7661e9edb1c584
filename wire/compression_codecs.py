"""The numbers and names of Kafka's codecs, without the libraries of ``wire.compression``."""

from __future__ import annotations

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

NAMES: dict[int, str] = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
"""Codec number (the low three bits of a batch's attributes) to the name that ``compression.type`` uses."""

CODES: dict[str, int] = {name: code for code, name in NAMES.items()}
