"""``python -m perf.checked``: what full checks of payloads cost a topic, and the other topics of its broker, by hand.

One broker. A client produces 1 KiB to a plain topic every few ms: alone, then while a process writes to another topic
as fast as it can, without a check and with payloads of each kind of schema (ten fields, some 500 bytes, in batches of
16 KiB). Printed are its latencies, the records per second of the other, and the broker's CPU. The process that checks
payloads runs beside the broker and the two clients: with fewer than four processors that are idle, these compete.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from typing import Any

from fleetlog._native.batch import Record, encode_batch
from perf.generator.frames import Frame, batch_of, produce_frame
from perf.load import KIB
from perf.secure_client import Door, exchange, load
from perf.secured import cpu_s
from perf.targets.base import TargetError
from perf.targets.fleetlog import Fleetlog

PERIOD_S = 0.005
DEPTH = 4
BATCH_BYTES = 16 * KIB
TRIES = 200
FIELDS = [f"field{number}" for number in range(10)]
TEXT = "0123456789" * 8
AVRO = {"type": "record", "name": "Row", "fields": [{"name": name, "type": "string"} for name in FIELDS[:6]]
        + [{"name": name, "type": "long"} for name in FIELDS[6:]]}  # fmt: skip
JSON = {
    "type": "object", "required": FIELDS, "additionalProperties": False,
    "properties": {name: {"type": "string", "maxLength": 100} for name in FIELDS[:6]}
    | {name: {"type": "integer", "minimum": 0} for name in FIELDS[6:]},
}  # fmt: skip
ROWS = " ".join(f"{'string' if number < 6 else 'int64'} {name} = {number + 1};" for number, name in enumerate(FIELDS))
PROTOBUF = f'syntax = "proto3"; message Row {{ {ROWS} }}'


def payloads() -> dict[str, tuple[str, bytes]]:
    """By kind: a schema, and a payload of it."""
    text = TEXT.encode()
    avro = (b"\xa0\x01" + text) * 6 + b"\xf2\xc0\x01" * 4
    values: dict[str, Any] = dict.fromkeys(FIELDS[:6], TEXT) | dict.fromkeys(FIELDS[6:], 12345)
    message = b"".join(bytes([number << 3 | 2, len(text)]) + text for number in range(1, 7))
    message += b"".join(bytes([number << 3]) + b"\xb9\x60" for number in range(7, 11))
    return {
        "AVRO": (json.dumps(AVRO), avro), "JSON": (json.dumps(JSON), json.dumps(values).encode()),
        "PROTOBUF": (PROTOBUF, b"\0" + message),
    }  # fmt: skip


def frame_of(topic: str, value: bytes) -> tuple[Frame, int]:
    """A request of a batch of such values, and how many they are."""
    count = BATCH_BYTES // len(value)
    now_ms = time.time_ns() // 1_000_000
    return produce_frame(topic, 0, bytes(encode_batch([Record(-1, now_ms, None, value)] * count))), count


def registered(door: Door, number: int, topic: str, kind: str, schema: str) -> None:
    """Write a schema as a registry does."""
    key = {"keytype": "SCHEMA", "subject": f"{topic}-value", "version": 1, "magic": 1}
    value = {"subject": f"{topic}-value", "version": 1, "id": number, "schemaType": kind, "schema": schema}
    now_ms = time.time_ns() // 1_000_000
    row = Record(-1, now_ms, json.dumps(key).encode(), json.dumps(value).encode())
    with door.opened() as sock:
        exchange(sock, produce_frame("_schemas", 0, bytes(encode_batch([row]))))


def _loaded(door: Door, frame: Frame, seconds: float, answers: Any) -> None:
    answers.put(load(door, [frame], DEPTH, seconds))


def measured(what: str, cluster: Fleetlog, frame: Frame, other: tuple[Frame, int] | None, seconds: float) -> None:
    """Print the latencies of the plain topic's client while the other one is written to."""
    door = Door(cluster.brokers[0].address)
    answers: Any = multiprocessing.Queue()
    beside = None
    if other is not None:
        beside = multiprocessing.Process(target=_loaded, args=(door, other[0], seconds, answers))
        beside.start()
    before, began, latencies = cpu_s(cluster.pids), time.monotonic(), []
    with door.opened() as sock:
        while time.monotonic() < began + seconds:
            sent = time.perf_counter()
            exchange(sock, frame)
            latencies.append(time.perf_counter() - sent)
            time.sleep(PERIOD_S)
    cores = (cpu_s(cluster.pids) - before) / (time.monotonic() - began)
    rate = 0.0
    if beside is not None and other is not None:
        rate = answers.get(timeout=60) * other[1] / seconds
        beside.join()
    percentiles = statistics.quantiles(latencies, n=100, method="inclusive")
    print(
        f"{what:<24} p50 {percentiles[49] * 1e3:6.2f} ms  p99 {percentiles[98] * 1e3:6.2f} ms  {rate:9.0f} records/s"
        f"  broker {cores:.2f} cores", flush=True,
    )  # fmt: skip


def ready(door: Door, frame: Frame) -> None:
    """Wait until the broker knows the schema. Raises TargetError."""
    for _ in range(TRIES):
        try:
            with door.opened() as sock:
                exchange(sock, frame)
            return
        except TargetError:
            time.sleep(0.1)
    raise TargetError("the broker does not take what is of its schema")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m perf.checked", description="full checks of payloads")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each part is measured")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    cluster = Fleetlog(1)
    with cluster.running():
        door = Door(cluster.brokers[0].address)
        cluster.create_topic("plain")
        cluster.create_topic("_schemas", cleanup_policy="compact")
        frame = produce_frame("plain", 0, batch_of(KIB, KIB)[0])
        others: dict[str, tuple[Frame, int]] = {}
        for number, (kind, (schema, payload)) in enumerate(payloads().items(), start=1):
            value = b"\0" + number.to_bytes(4, "big") + payload
            topic = kind.lower()
            registered(door, number, topic, kind, schema)
            cluster.create_topic(topic, fleetlog_schema_validation="full")
            cluster.create_topic(f"{topic}-unchecked")
            others[f"{kind}, no check"] = frame_of(f"{topic}-unchecked", value)
            others[f"{kind}, full"] = frame_of(topic, value)
            ready(door, others[f"{kind}, full"][0])
        for _ in range(options.rounds):
            measured("alone", cluster, frame, None, options.seconds)
            for what, other in others.items():
                measured(what, cluster, frame, other, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
