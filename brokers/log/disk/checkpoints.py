"""Kafka's small text files: the checkpoints of a log directory, ``partition.metadata`` and ``meta.properties``.

All are pure: text in, values out. A damaged file raises :class:`DamagedFile`; its reader decides what that means (for a
checkpoint: start from nothing and scan).
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fleetlog.brokers.model import id_text
from fleetlog.wire.types import TopicPartition

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


def decode_topic_id(text: str) -> uuid.UUID:
    """Read such an id; raises DamagedFile."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError as wrong:
        raise DamagedFile(f"{text!r} is no topic id") from wrong


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """``partition.metadata``: which incarnation of the topic the directory belongs to."""
    return f"version: 0\ntopic_id: {id_text(topic_id)}".encode()


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


class CleanStop(NamedTuple):
    """What a broker writes into each log directory last, when it stops in good order; -1 where the file doesn't say.

    ``broker_epoch`` and ``incarnation`` are those of its last registration, ``intact_since`` is the first incarnation
    since which its logs had lost nothing. ``directories`` are all log directories that the broker had, each by its id
    and path: a directory that is gone at the next start cannot say so itself. All but the broker epoch is ours; Kafka's
    first form of the file was empty.
    """

    broker_epoch: int = -1
    incarnation: int = -1
    intact_since: int = -1
    directories: tuple[tuple[str, str], ...] = ()


def encode_clean_stop(stop: CleanStop) -> bytes:
    """The file :data:`CLEAN_SHUTDOWN`."""
    document: dict[str, Any] = {"version": 0, "brokerEpoch": stop.broker_epoch}
    if stop.incarnation >= 0:
        document |= {"incarnation": stop.incarnation, "intactSince": stop.intact_since}
    if stop.directories:
        document["directories"] = dict(stop.directories)
    return json.dumps(document, separators=(",", ":")).encode()


def decode_clean_stop(data: bytes) -> CleanStop:
    """Read it; what is missing or damaged is -1, or none."""
    try:
        document = json.loads(data)
        epoch, incarnation, since = (int(document.get(n, -1)) for n in ("brokerEpoch", "incarnation", "intactSince"))
        directories = tuple((str(one), str(path)) for one, path in document.get("directories", {}).items())
        return CleanStop(epoch, incarnation, since, directories)
    except (ValueError, TypeError, AttributeError):
        return CleanStop()
