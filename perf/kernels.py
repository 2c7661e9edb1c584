"""``perf kernels``: Cython against pure; also ``python -m perf.kernels [--json] [--sizes 1,100] [--only decode]``.

Each operation runs on inputs of 1 to 10,000 items (records, partitions or batches) of about 100 bytes; the best of
several rounds counts, as the machine is never quiet. The pure checksum is already a C library, so its ratio is near 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
import uuid
from array import array
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from fleetlog._native.batch_py import Record, encode_batch, parse_header
from fleetlog._native.columns_py import Runs
from fleetlog._native.wire_py import (
    FetchOutcome,
    FetchPart,
    MetadataPartition,
    ProduceOutcome,
    ProducePart,
    encode_fetch_response,
)
from fleetlog.brokers.schema_programs import compile_avro
from perf.generator.frames import ORDER, checked_batch
from perf.options import Options
from perf.results import Results

SIZES = (1, 10, 100, 1000, 10_000)
VALUE = b"v" * 80
BUDGET_S = 0.15


class Measured(NamedTuple):
    """One row: best time per item in nanoseconds for both twins."""

    operation: str
    items: int
    pure_ns: float
    cython_ns: float

    @property
    def ratio(self) -> float:
        """How many times faster Cython is."""
        return self.pure_ns / self.cython_ns


def _best_ns(call: Callable[[], Any], items: int) -> float:
    """Nanoseconds per item, best of as many rounds as fit into the budget."""
    start = time.perf_counter_ns()
    call()
    first = max(1, time.perf_counter_ns() - start)
    repeat = max(1, min(20_000, int(2_000_000 / first)))
    best = float(first)
    deadline = time.perf_counter() + BUDGET_S
    while time.perf_counter() < deadline:
        start = time.perf_counter_ns()
        for _ in range(repeat):
            call()
        best = min(best, (time.perf_counter_ns() - start) / repeat)
    return best / items


def _records(count: int) -> list[Record]:
    return [Record(-1, 1_700_000_000_000 + n, b"key-%d" % n, VALUE) for n in range(count)]


def _runs(values: list[bytes]) -> Runs:
    offsets = array("i", [0])
    for value in values:
        offsets.append(offsets[-1] + len(value))
    return Runs(None, offsets.tobytes(), b"".join(values))


def _produce(partitions: int) -> bytes:
    body = b"\0" + b"\xff\xff\0\0\x75\x30" + b"\2\6topic"
    count = partitions + 1
    while count > 0x7F:
        body += bytes([count & 0x7F | 0x80])
        count >>= 7
    return body + bytes([count]) + (b"\0\0\0\1" + bytes([101]) + bytes(100) + b"\0") * partitions + b"\0\0"


Operation = tuple[str, str, Callable[[ModuleType], Callable[[], Any]]]


def batch_operations(items: int) -> Iterator[Operation]:
    """Record batches of ``items`` records."""
    records = _records(items)
    raw = encode_batch(records)
    header, payload = parse_header(raw), raw[61:]
    yield "batch", "crc32c", lambda k: lambda: k.crc32c(raw)
    yield "batch", "validate_batch", lambda k: lambda: k.validate_batch(raw)
    yield "batch", "validate_records", lambda k: lambda: k.validate_records(payload, header)
    yield "batch", "find_timestamp", lambda k: lambda: k.find_timestamp(payload, header, 2**62, 0)
    yield "batch", "decode_records", lambda k: lambda: k.decode_records(payload, header)
    yield "batch", "encode_batch", lambda k: lambda: k.encode_batch(records)
    run = encode_batch(records[:1]) * items
    yield "batch", "scan (batches)", lambda k: lambda: k.scan(run)
    yield "batch", "walk (batches)", lambda k: lambda: k.walk(run, len(run), 2**63 - 1)


def columns_operations(items: int) -> Iterator[Operation]:
    """Columns of ``items`` rows."""
    records = _records(items)
    raw = encode_batch(records)
    part = (raw[61:], parse_header(raw))
    keys, values = _runs([r.key or b"" for r in records]), _runs([r.value or b"" for r in records])
    times = array("q", [r.timestamp for r in records]).tobytes()
    yield "columns", "hash_runs (keys)", lambda k: lambda: k.hash_runs(keys, items, 12)
    yield "columns", "decode_columns", lambda k: lambda: k.decode_columns([part])
    yield "columns", "encode_columns", lambda k: lambda: k.encode_columns(keys, values, times, 0, items, 0)


def wire_operations(items: int) -> Iterator[Operation]:
    """Messages with ``items`` partitions."""
    body = memoryview(_produce(items))
    topic_id = uuid.UUID(int=7)
    written = [(ProducePart("topic", topic_id, n, None), ProduceOutcome(0, n)) for n in range(items)]
    read = [(FetchPart("topic", topic_id, n, 0, 0, 0, 0, 0, 0), FetchOutcome(0, n, n, 0)) for n in range(items)]
    asked = [part for part, _ in read]
    (answer,) = encode_fetch_response(17, read)

    def ask(kernel: ModuleType) -> Callable[[], Any]:
        return lambda: kernel.encode_fetch_request(
            17, replica_id=2, replica_epoch=9, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, session_id=5,
            session_epoch=7, parts=asked,
        )  # fmt: skip

    partitions = [MetadataPartition(0, n, 1, 3, (1, 2, 3), (1, 2, 3)) for n in range(items)]
    yield "wire", "decode_produce (partitions)", lambda k: lambda: k.decode_produce(9, body)
    yield "wire", "encode_produce_response", lambda k: lambda: k.encode_produce_response(10, written)
    yield "wire", "encode_fetch_response", lambda k: lambda: k.encode_fetch_response(13, read)
    yield "wire", "encode_fetch_request", ask
    yield "wire", "decode_fetch_response", lambda k: lambda: k.decode_fetch_response(17, answer)
    yield (
        "wire",
        "encode_metadata_topic",
        lambda k: lambda: k.encode_metadata_topic(12, 0, "topic", topic_id, False, partitions),
    )


def schemas_operations(items: int) -> Iterator[Operation]:
    """Batches of ``items`` records of 1 KiB, with ten fields each."""
    raw, number = checked_batch(items, 7, 0), (7).to_bytes(4, "big")
    header, payload = parse_header(raw), raw[61:]
    code = compile_avro(json.dumps(ORDER)).code
    name = b"__value_schema_id"
    yield "schemas", "misfits (ids)", lambda k: lambda: k.misfits(payload, header, name, False, number, b"", 1)
    yield (
        "schemas",
        "unfit (payloads)",
        lambda k: lambda: k.unfit(payload, header, name, False, number, b"", (code,), 1),
    )


def measure(sizes: tuple[int, ...], only: str) -> Iterator[Measured]:
    """Run everything whose name contains ``only``."""
    for make in (batch_operations, columns_operations, wire_operations, schemas_operations):
        for items in sizes:
            for kernel, name, call in make(items):
                if only in name:
                    pure, fast = (importlib.import_module(f"fleetlog._native.{kernel}_{twin}") for twin in ("py", "cy"))
                    yield Measured(name, items, _best_ns(call(pure), items), _best_ns(call(fast), items))


def run(options: Options) -> Results:
    """As a suite of ``python -m perf``: a row for each operation and size."""
    results = Results.begin("kernels")
    for row in measure((1, 100, 10_000) if options.short else SIZES, options.only):
        found = {"pure_ns": row.pure_ns, "cython_ns": row.cython_ns, "ratio": row.ratio}
        results.add(row.operation, f"{row.items:,} a call", found)
    return results


def main() -> None:
    """Print a table, or JSON lines with ``--json``."""
    parser = argparse.ArgumentParser(description="the kernels, Cython against pure, per item")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="items per call, with commas")
    parser.add_argument("--only", default="", help="only operations with this in their name")
    options = parser.parse_args()
    sizes = tuple(int(size) for size in options.sizes.split(","))
    if not options.json:
        print(f"{'operation':<30}{'items':>8}{'pure ns/item':>15}{'cython ns/item':>16}{'ratio':>9}")
    for row in measure(sizes, options.only):
        if options.json:
            print(json.dumps({**row._asdict(), "ratio": round(row.ratio, 2)}), flush=True)
        else:
            print(
                f"{row.operation:<30}{row.items:>8}{row.pure_ns:>15.1f}{row.cython_ns:>16.1f}{row.ratio:>8.1f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
