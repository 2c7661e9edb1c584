"""Bytes that stock clients made (tests/golden): read by both twins, and written again byte for byte."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fleetlog._native.batch_py import Record
from fleetlog.wire import compression
from tests.golden.content import PRODUCER, RECORDS

GOLDEN = Path(__file__).parents[1] / "golden"
KAFKA = GOLDEN / "kafka-clients-4.1.1"
BATCHES = sorted(GOLDEN.glob("*/batch-*.bin"))
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LONG_OF = {n: uuid.UUID(int=(n << 64) | (n + 1)) for n in (1, 3)}  # Java's Uuid(1, 2) and Uuid(3, 4)


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def test_every_client_is_there() -> None:
    assert len({path.parent.name.rsplit("-", 1)[0] for path in BATCHES}) == 4
    assert len(BATCHES) == 24


@pytest.mark.parametrize("path", BATCHES, ids=_name)
def test_batches_of_stock_clients(batch: ModuleType, path: Path) -> None:
    raw = path.read_bytes()
    header = batch.validate_batch(raw)
    assert header.size == len(raw)
    payload: Any = raw[61:]
    kind = path.stem.removeprefix("batch-")
    assert header.codec == CODECS.get(kind, 0)
    if header.codec:
        payload = compression.decompress(header.codec, payload, 1 << 20)
    appended = header.max_timestamp if header.is_log_append_time else None
    expected = [
        r._replace(offset=header.base_offset + r.offset, timestamp=r.timestamp if appended is None else appended)
        for r in RECORDS
    ]
    assert batch.decode_records(payload, header) == expected
    assert batch.validate_records(payload, header) == (RECORDS[3].timestamp, False)
    assert header.last_offset_delta == 3
    if kind == "log-append-time":
        assert appended == 1_700_000_009_999
        return
    if kind == "transactional":
        assert header.is_transactional
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == PRODUCER
    if header.codec == 0:
        again = batch.encode_batch(
            [r._replace(offset=-1) for r in RECORDS], base_offset=header.base_offset, attributes=header.attributes,
            leader_epoch=header.partition_leader_epoch, producer_id=header.producer_id,
            producer_epoch=header.producer_epoch, base_sequence=header.base_sequence,
        )  # fmt: skip
        assert again == raw


def test_stamping_gives_kafkas_log_append_time(batch: ModuleType) -> None:
    buffer = bytearray((KAFKA / "batch-none.bin").read_bytes())
    batch.stamp(buffer, 0, 42, 9, 1_700_000_009_999)
    header = batch.validate_batch(bytes(buffer))
    reference = batch.validate_batch((KAFKA / "batch-log-append-time.bin").read_bytes())
    assert header.max_timestamp == reference.max_timestamp
    assert header.attributes == reference.attributes


@pytest.mark.parametrize("commit", [True, False])
def test_markers_are_kafkas(batch: ModuleType, commit: bool) -> None:
    raw = (KAFKA / f"marker-{'commit' if commit else 'abort'}.bin").read_bytes()
    made = batch.control_batch(
        commit=commit, producer_id=4711, producer_epoch=3, coordinator_epoch=21, timestamp=1_700_000_000_000,
        base_offset=42, leader_epoch=9,
    )  # fmt: skip
    assert made == raw


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_requests_of_kafka(wire_kernel: ModuleType, version: int) -> None:
    found = wire_kernel.decode_produce(version, (KAFKA / f"produce-v{version}.bin").read_bytes())
    assert found[:3] == ("id", -1, 30_000)
    names = ("topic", None) if version < 13 else (None, LONG_OF[1])
    assert [part[:3] for part in found.parts] == [(*names, 7), (*names, 8)]
    assert bytes(found.parts[0].records) == (KAFKA / "batch-none.bin").read_bytes()
    assert found.parts[1].records is None


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_requests_of_kafka(wire_kernel: ModuleType, version: int) -> None:
    found = wire_kernel.decode_fetch(version, (KAFKA / f"fetch-v{version}.bin").read_bytes())
    assert (found.replica_id, found.replica_epoch) == ((6, 8) if version >= 15 else (-1, -1))
    assert (found.max_wait_ms, found.min_bytes, found.max_bytes, found.isolation_level) == (500, 1, 52_428_800, 1)
    assert (found.session_id, found.session_epoch) == ((11, 12) if version >= 7 else (0, -1))
    names = ("topic", None) if version < 13 else (None, LONG_OF[1])
    assert found.parts == [
        (
            *names, 3, 4 if version >= 9 else -1, 1_234_567_890_123, 2 if version >= 12 else -1,
            5 if version >= 5 else -1, 1_048_576, 77 if version >= 18 else 2**63 - 1,
        )
    ]  # fmt: skip
    gone = "gone" if version < 13 else LONG_OF[3]
    assert found.forgotten == ([(gone, [1, 2])] if version >= 7 else [])
    assert found.rack_id == ("rack" if version >= 11 else "")
    assert found.cluster_id == ("cluster" if version >= 12 else None)


def test_keys_go_where_kafka_sends_them(columns: ModuleType) -> None:
    for line in (KAFKA / "murmur2.tsv").read_text().splitlines():
        key, hashed, partition = line.split("\t")
        assert columns.murmur2(key.encode()) == int(hashed)
        assert columns.partition_for_key(key.encode(), 6) == int(partition)


def test_columns_of_kafkas_batch_are_its_records(columns: ModuleType, batch: ModuleType) -> None:
    raw = (KAFKA / "batch-none.bin").read_bytes()
    found = columns.decode_columns([(raw[61:], batch.parse_header(raw))], headers=True)
    keys = [b"key", None, b"tombstone", b""]
    assert found.rows == len(RECORDS)
    assert found.keys.data == b"".join(key or b"" for key in keys)
    assert [bool(found.keys.validity[0] & 1 << n) for n in range(4)] == [key is not None for key in keys]
    assert found.header_names.data == "h1ü".encode()
    assert isinstance(RECORDS[0], Record)
