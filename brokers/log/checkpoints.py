"""Kafka's small text files: the checkpoints of a log directory, ``partition.metadata`` and ``meta.properties``.

All are pure: text in, values out. A damaged file raises :class:`DamagedFile`; its reader decides what that means (for a
checkpoint: start from nothing and scan).
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wire.types import TopicPartition

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

_VERSION = 0


class DamagedFile(ValueError):
    """A small file doesn't read as what it should be."""


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of the first record it may have appended."""

    epoch: int
    start_offset: int


def _frame(lines: list[str]) -> bytes:
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()


def _unframe(data: bytes, name: str) -> list[str]:
    try:
        lines = data.decode().splitlines()
        version, count = int(lines[0]), int(lines[1])
    except (ValueError, IndexError) as wrong:
        raise DamagedFile(f"{name}: no version and count") from wrong
    if version != _VERSION:
        raise DamagedFile(f"{name}: version {version} is not known")
    body = [line for line in lines[2:] if line.strip()]
    if len(body) != count:
        raise DamagedFile(f"{name}: {count} entries announced, {len(body)} found")
    return body


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """A checkpoint of one offset per partition."""
    return _frame([f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())])


def decode_offsets(data: bytes, name: str) -> dict[TopicPartition, int]:
    """Read such a checkpoint; raises DamagedFile."""
    offsets = {}
    for line in _unframe(data, name):
        try:
            topic, partition, offset = line.split()
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError as wrong:
            raise DamagedFile(f"{name}: no topic, partition and offset in {line!r}") from wrong
    return offsets


def encode_epochs(entries: Iterable[EpochEntry]) -> bytes:
    """A partition's ``leader-epoch-checkpoint``."""
    return _frame([f"{entry.epoch} {entry.start_offset}" for entry in entries])


def decode_epochs(data: bytes, name: str) -> list[EpochEntry]:
    """Read a ``leader-epoch-checkpoint``; raises DamagedFile, also when epochs or offsets go back."""
    entries: list[EpochEntry] = []
    for line in _unframe(data, name):
        try:
            epoch, start = line.split()
            entry = EpochEntry(int(epoch), int(start))
        except ValueError as wrong:
            raise DamagedFile(f"{name}: no epoch and offset in {line!r}") from wrong
        if entries and (entry.epoch <= entries[-1].epoch or entry.start_offset < entries[-1].start_offset):
            raise DamagedFile(f"{name}: {line!r} goes back")
        entries.append(entry)
    return entries


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """Kafka's spelling of an id: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def decode_topic_id(text: str) -> uuid.UUID:
    """Read such an id; raises DamagedFile."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError as wrong:
        raise DamagedFile(f"{text!r} is no topic id") from wrong


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """``partition.metadata``: which incarnation of the topic the directory belongs to."""
    return f"version: 0\ntopic_id: {encode_topic_id(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> uuid.UUID:
    """Read ``partition.metadata``; raises DamagedFile."""
    fields = {}
    for line in data.decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise DamagedFile("partition.metadata has no version 0 and topic_id")
    return decode_topic_id(fields["topic_id"])


def encode_properties(values: Mapping[str, str]) -> bytes:
    """A Java properties file, as ``meta.properties`` is."""
    return "".join(f"{name}={value}\n" for name, value in values.items()).encode()


def decode_properties(data: bytes) -> dict[str, str]:
    """Read a simple Java properties file."""
    values = {}
    for line in data.decode(errors="replace").splitlines():
        line = line.strip()
        if line and line[0] not in "#!":
            name, _, value = line.partition("=")
            values[name.strip()] = value.strip()
    return values


def encode_clean_shutdown(broker_epoch: int, incarnation: int = -1, intact_since: int = -1) -> bytes:
    """The marker that a broker writes last when it stops in good order. The last two fields are ours."""
    document = {"version": 0, "brokerEpoch": broker_epoch}
    if incarnation >= 0:
        document |= {"incarnation": incarnation, "intactSince": intact_since}
    return json.dumps(document, separators=(",", ":")).encode()


def decode_clean_shutdown(data: bytes) -> int:
    """The broker epoch in the marker; -1 if it has none (Kafka's first form of the file was empty)."""
    return _clean_shutdown_field(data, "brokerEpoch")


def decode_intact_since(data: bytes) -> int:
    """The first incarnation since which the broker that wrote the marker had lost nothing; -1 if it doesn't say."""
    return _clean_shutdown_field(data, "intactSince")


def _clean_shutdown_field(data: bytes, name: str) -> int:
    try:
        return int(json.loads(data)[name])
    except (ValueError, KeyError, TypeError):
        return -1
