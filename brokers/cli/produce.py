"""``fleetlog produce``: records from stdin or files."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click
import kafka.errors as kafka_errors

from brokers.cli.client import (
    PartitionsOf,
    Target,
    admin,
    client_options,
    code_of,
    complete_topics,
    explain,
    first_line,
    known_partitions,
    producer,
)
from brokers.cli.options import pairs
from brokers.cli.output import CliError, Output, progress

IN_FLIGHT_RECORDS = 20_000
"""The client library buffers without bound; we don't."""


class Item(NamedTuple):
    """One record to write."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@click.command()
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[FILE]...")
@click.option(
    "--key-separator", "-K", metavar="TEXT", help="What stands between key and value in a line; \\t is a tab."
)
@click.option("--key", "-k", help="The same key for every record.")
@click.option(
    "--header", "-H", "headers", multiple=True, callback=pairs, metavar="NAME=VALUE", help="For every record."
)
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Instead of the key's partition.")
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@click.option(
    "--compression",
    "-z",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["raw", "json"]),
    default="raw",
    help="A record is a line of text, or of JSON as `consume --json` writes it.",
)
@click.option("--whole-file", is_flag=True, help="Each FILE is one record.")
@click.option("--null-value", metavar="TEXT", help="Lines with this value become tombstones.")
@client_options
def produce(
    *,
    target: Target,
    out: Output,
    topic: str,
    files: tuple[Path, ...],
    acks: str,
    compression: str,
    partition: int | None,
    **shape: Any,
) -> None:
    """Write records to TOPIC, one a line, from FILEs or stdin."""
    if shape["whole_file"] and not files:
        raise click.UsageError("--whole-file needs a FILE")
    if shape["key"] is not None and shape["key_separator"]:
        raise click.UsageError("--key and --key-separator exclude each other")
    if partition is not None:
        with admin(target, f"topic {topic}") as client:
            known_partitions(client, [PartitionsOf(topic, (partition,))])
    config = {
        "acks": acks if acks == "all" else int(acks),
        "enable_idempotence": acks == "all",
        "compression_type": None if compression == "none" else compression,
        "linger_ms": 5,
        "delivery_timeout_ms": max(target.timeout_ms, 1_000) + 1_000,
        "request_timeout_ms": max(target.timeout_ms, 1_000),
        # A typing user wants to see an error now; a pipe wants throughput.
        "batch_size": 256 * 1024,
    }
    with producer(target, f"topic {topic}", **config) as client, progress() as bar:
        sending = _Sending(client, topic, partition)
        task = bar.add_task(f"producing to {topic}", total=None)
        for count, item in enumerate(_items(files, shape), 1):
            sending.send(item)
            if count % 1_000 == 0:
                bar.update(task, completed=count)
        sending.finish(target.timeout_s)
    out.done(
        f"{sending.sent} records to {topic}",
        {"topic": topic, "records": sending.sent, "last_offsets": {str(p): o for p, o in sorted(sending.last.items())}},
    )


class _Sending:
    """Bounds what is on its way, and remembers the first failure."""

    def __init__(self, client: Any, topic: str, partition: int | None) -> None:
        self._client = client
        self._topic = topic
        self._partition = partition
        self._room = threading.Semaphore(IN_FLIGHT_RECORDS)
        self._failure: BaseException | None = None
        self.sent = 0
        self.last: dict[int, int] = {}

    def send(self, item: Item) -> None:
        self._raise()
        self._room.acquire()
        partition = self._partition if self._partition is not None else item.partition
        try:
            future = self._client.send(
                self._topic,
                value=item.value,
                key=item.key,
                headers=list(item.headers) or None,
                partition=partition,
                timestamp_ms=item.timestamp_ms,
            )
        except (AssertionError, ValueError, TypeError) as error:
            raise CliError(f"topic {self._topic}: {first_line(error)}") from error
        future.add_callback(self._delivered)
        future.add_errback(self._failed)

    def _delivered(self, metadata: Any) -> None:
        self.sent += 1
        if metadata.offset >= 0:
            self.last[metadata.partition] = max(metadata.offset, self.last.get(metadata.partition, -1))
        self._room.release()

    def _failed(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._room.release()

    def finish(self, timeout_s: float) -> None:
        self._client.flush(timeout=timeout_s)
        self._raise()

    def _raise(self) -> None:
        if self._failure is None:
            return
        failure = self._failure
        code = code_of(failure) if isinstance(failure, Exception) else None
        done = f"{self.sent} records were written before"
        if code is not None:
            raise CliError(f"topic {self._topic}: {explain(code)}; {done}")
        if isinstance(failure, kafka_errors.KafkaTimeoutError):
            raise CliError(f"topic {self._topic}: the brokers did not confirm in time; {done}")
        raise CliError(f"topic {self._topic}: {failure}; {done}")


# --- where records come from ------------------------------------------------------------------------------------


def _items(files: tuple[Path, ...], shape: dict[str, Any]) -> Iterator[Item]:
    key = None if shape["key"] is None else shape["key"].encode()
    headers = tuple((name, value.encode()) for name, value in shape["headers"].items())
    if shape["whole_file"]:
        for path in files:
            yield Item(path.read_bytes(), key, headers)
        return
    separator = shape["key_separator"]
    marker = shape["null_value"].encode() if shape["null_value"] is not None else None
    for number, line in enumerate(_lines(files), 1):
        if shape["kind"] == "json":
            item = parse_json(line, number)
        else:
            item = parse_line(line, separator.replace("\\t", "\t").encode() if separator else None, number)
            if marker is not None and item.value == marker:
                item = item._replace(value=None)
        if key is not None:
            item = item._replace(key=key)
        yield item._replace(headers=item.headers + headers)


def _lines(files: tuple[Path, ...]) -> Iterator[bytes]:
    if not files:
        yield from _chomped(sys.stdin.buffer)
    for path in files:
        with path.open("rb") as stream:
            yield from _chomped(stream)


def _chomped(stream: BinaryIO | Iterable[bytes]) -> Iterator[bytes]:
    for line in stream:
        yield line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")


def parse_line(line: bytes, separator: bytes | None, number: int) -> Item:
    """A raw line; with a separator, key and value. Raises CliError naming the line."""
    if separator is None:
        return Item(line)
    key, found, value = line.partition(separator)
    if not found:
        raise CliError(f"line {number} has no {separator.decode()!r} between key and value")
    return Item(value, key)


def parse_json(line: bytes, number: int) -> Item:
    """A line as ``consume --json`` writes it; offset and topic are ignored. Raises CliError naming the line."""
    try:
        data = json.loads(line)
        if not isinstance(data, dict):
            raise ValueError("it is no object")
        headers = tuple((str(h["name"]), _bytes(h, "value")) for h in data.get("headers") or ())
        partition, timestamp = data.get("partition"), data.get("timestamp")
        if not isinstance(partition, int | None) or not isinstance(timestamp, int | None):
            raise ValueError("partition and timestamp are numbers")
        return Item(_bytes(data, "value"), _bytes(data, "key"), headers, partition, timestamp)
    except (ValueError, KeyError, TypeError) as error:
        raise CliError(f"line {number} is no record in JSON: {error}") from error


def _bytes(data: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in data:
        return base64.b64decode(data[f"{name}_base64"], validate=True)
    value = data.get(name)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return json.dumps(value, ensure_ascii=False).encode()
