"""``fleetlog produce``: records from stdin or files."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import re
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import click

from fleetlog.brokers.cli.client import Target, admin, client_options, complete_topics
from fleetlog.brokers.cli.options import pairs, partition_option
from fleetlog.brokers.cli.output import CliError, Output, count_text, progress, warn
from fleetlog.brokers.cli.record_encoding import RecordEncoding, WrongValue, schema_options, wanted_encoding
from fleetlog.brokers.cli.record_format import Verb, parse_format
from fleetlog.brokers.cli.sender import InputRecord, Sender
from fleetlog.brokers.cli.times import parse_time
from fleetlog.wire.compression_codecs import CODES

CHUNK_BYTES = 4 * 1024 * 1024
PIPE_BYTES = 64 * 1024
EXIT_INTERRUPTED = 130
TOLD_MAX = 10
"""Wrong lines that are told of one input."""
_READ = "kvsphTd"


def _kind(_: click.Context, __: click.Parameter, text: str) -> str | _LineFormat:
    if text in {"raw", "json"}:
        return text
    try:
        return _LineFormat(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[FILE]...")
@click.option("--key-separator", "-K", metavar="TEXT", help="Text between key and value in a line; \\t is a tab.")
@click.option("--key", "-k", help="The same key for every record.")
@click.option(
    "--header", "-H", "headers", multiple=True, callback=pairs, metavar="NAME=VALUE", help="For every record."
)
@partition_option
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@click.option(
    "--compression",
    "-z",
    type=click.Choice(list(CODES)),
    default="none",
    show_default=True,
)
@click.option(
    "--format", "-f", "kind", default="raw", metavar="raw|json|TEXT", callback=_kind,
    help="A record is a line of text, of JSON as `consume --json` writes it, or of a format such as '%k,%v': %k key, %v"
    " value, %p partition, %h{name} a header, %T a time (ISO 8601 or ms); each ends where the text behind it begins.",
)  # fmt: skip
@click.option("--whole-file", is_flag=True, help="Each FILE is one record.")
@click.option("--null-value", metavar="TEXT", help="Lines with this value become tombstones.")
@schema_options
@click.option(
    "--skip-invalid", is_flag=True, help="With a schema: leave out what it does not take, and write the rest."
)
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
    """Write records to TOPIC, one per line, from FILEs or stdin.

    With --schema nothing is written of files in which a line is wrong; of a pipe the lines before it are.

    \b
      fleetlog produce orders --schema orders-value orders.ndjson
      fleetlog consume orders --json --to end | fleetlog produce copy -f json --schema orders-value:2
    """
    if shape["whole_file"] and not files:
        raise click.UsageError("--whole-file needs a FILE")
    if shape["key_separator"] == "":
        raise click.UsageError("--key-separator must not be empty")
    if shape["key_separator"] and shape["kind"] != "raw":
        raise click.UsageError("--format says where the key is: leave --key-separator out")
    if shape["key"] is not None and shape["key_separator"]:
        raise click.UsageError("--key and --key-separator exclude each other")
    reading = _Reading(files, shape, partition, wanted_encoding(target, shape))
    reading.check()
    sender: Sender | None = None
    # On SIGTERM, too, it reports what was written.
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        typed = not files and sys.stdin.isatty()
        with admin(target, f"topic {topic}") as client, progress(not typed) as bar:  # it would erase what is typed
            sender = Sender(client, topic, acks=acks, codec=compression, timeout_s=target.timeout_s)
            if partition is not None:
                sender.check_partition(partition)
            if typed:
                click.echo(f"each line is a record of {topic}; Ctrl-D at the beginning of a line ends", err=True)
            task = bar.add_task(f"producing to {topic}", total=None)
            try:
                for items in reading.chunks():
                    sender.send(items)
                    bar.update(task, completed=sender.written)
            except WrongLine as error:
                raise CliError(f"{error}; {sender.outcome()}, and none behind") from None
            sender.finish()
    except KeyboardInterrupt:
        outcome = sender.outcome() if sender is not None else "nothing was written"
        warn(f"topic {topic}: interrupted; {outcome}")
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)
    last = {str(p): offset for p, offset in sorted(sender.last.items())}
    left_out = f", {reading.left_out} left out" if reading.left_out else ""
    out.done(
        f"{count_text(sender.written, 'record')} to {topic}{left_out}",
        {"topic": topic, "records": sender.written, "last_offsets": last}
        | ({"left_out": reading.left_out} if reading.skips else {}),
    )


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


# --- input ------------------------------------------------------------------------------------------------------


class WrongLine(Exception):
    """Input that its schema does not take; the text names the line and says why."""


class _Reading:
    """The input as records. With an encoding each line is checked; without ``skips`` the first wrong one ends it."""

    def __init__(
        self, files: tuple[Path, ...], shape: dict[str, Any], partition: int | None, encoding: RecordEncoding | None
    ) -> None:
        self._files, self._shape, self._partition, self._encoding = files, shape, partition, encoding
        self.skips = bool(shape["skip_invalid"])
        if self.skips and encoding is None:
            raise click.UsageError("--skip-invalid goes with --schema or --key-schema")
        self._rewinds = os.lseek(0, 0, os.SEEK_CUR) if not files and _is_stored(sys.stdin) else None
        self._parse = _parser(shape, frozenset() if encoding is None else encoding.parts)
        self.left_out = 0

    def check(self) -> None:
        """Raise CliError where a schema does not take all of what can be read twice: files, also as stdin."""
        if self._encoding is None or self.skips or not (self._files or self._rewinds is not None):
            return
        wrong = [str(one) for items in self._checked(self._encoding) for one in items if isinstance(one, WrongLine)]
        if self._rewinds is not None:
            os.lseek(0, self._rewinds, os.SEEK_SET)
        if wrong:
            more = f"; {len(wrong) - TOLD_MAX} more are wrong" if len(wrong) > TOLD_MAX else ""
            raise CliError(f"nothing was written: {'; '.join(wrong[:TOLD_MAX])}{more}")

    def chunks(self) -> Iterator[list[InputRecord]]:
        """Records as they arrive: a typed line is sent at once, a file in large pieces. Raises WrongLine."""
        if self._encoding is None:
            yield from self._plain()
            return
        for items in self._checked(self._encoding):
            taken: list[InputRecord] = []
            for one in items:
                if not isinstance(one, WrongLine):
                    taken.append(one)
                elif self.skips:
                    self._leave_out(one)
                else:
                    yield taken
                    raise one
            yield taken

    def _leave_out(self, why: WrongLine) -> None:
        self.left_out += 1
        if self.left_out <= TOLD_MAX:
            warn(f"left out: {why}")
        elif self.left_out == TOLD_MAX + 1:
            warn("more is left out, without a word about each")

    def _plain(self) -> Iterator[list[InputRecord]]:
        shape = self._shape
        if shape["whole_file"]:
            for path in self._files:
                yield [self._completed(InputRecord(path.read_bytes()))]
            return
        number, alike = 0, shape["key"] is None and not shape["headers"] and self._partition is None
        for lines in _lines(self._files):
            items = [self._parse(line, number) for number, line in enumerate(lines, number + 1)]
            number += len(lines)
            yield items if alike else [self._completed(item) for item in items]

    def _checked(self, encoding: RecordEncoding) -> Iterator[list[InputRecord | WrongLine]]:
        """What is sent for each line, or what is wrong with it."""
        if self._shape["whole_file"]:
            for path in self._files:
                yield [self._tried(encoding, partial(InputRecord, path.read_bytes()), str(path))]
            return
        number = 0
        for lines in _lines(self._files):
            places = enumerate(lines, number + 1)
            yield [self._tried(encoding, partial(self._parse, line, at), f"line {at}") for at, line in places]
            number += len(lines)

    def _tried(self, encoding: RecordEncoding, item: Callable[[], InputRecord], place: str) -> InputRecord | WrongLine:
        try:
            return encoding.encoded(self._completed(item()))
        except WrongValue as error:
            return WrongLine(f"{place}: {error}")
        except CliError as error:  # which names the line
            return WrongLine(error.message)

    def _completed(self, item: InputRecord) -> InputRecord:
        """With the key, headers and partition of all records."""
        shape = self._shape
        return InputRecord(
            item.value,
            item.key if shape["key"] is None else shape["key"].encode(),
            item.headers + tuple((name, value.encode()) for name, value in shape["headers"].items()),
            item.partition if self._partition is None else self._partition,
            item.timestamp_ms,
        )


def _is_stored(stream: Any) -> bool:
    """Whether it can be read twice."""
    try:
        return bool(stream.fileno() == 0) and stat.S_ISREG(os.fstat(0).st_mode)
    except (OSError, ValueError):  # not a file: a test's
        return False


def _parser(shape: dict[str, Any], encoded: frozenset[str]) -> Callable[[bytes, int], InputRecord]:
    """``encoded``: the parts that a schema writes, which are taken as JSON."""
    separator = shape["key_separator"].replace("\\t", "\t").encode() if shape["key_separator"] else None
    marker = shape["null_value"].encode() if shape["null_value"] is not None else None
    if shape["kind"] == "json":
        return partial(parse_json, encoded=encoded)

    def parse(line: bytes, number: int) -> InputRecord:
        raw = shape["kind"] == "raw"
        item = parse_line(line, separator, number) if raw else shape["kind"].record(line, number)
        return item._replace(value=None) if marker is not None and item.value == marker else item

    return parse


def _lines(files: tuple[Path, ...]) -> Iterator[list[bytes]]:
    if not files:
        yield from whole_lines(_stdin())
    for path in files:
        with path.open("rb") as stream:
            yield from whole_lines(iter(partial(stream.read, CHUNK_BYTES), b""))


def _stdin() -> Iterator[bytes]:
    """The input since the last call: a typed line, or what a pipe delivered while the brokers worked."""
    try:
        number = sys.stdin.fileno()
    except (OSError, ValueError):  # not a file: a test's
        yield sys.stdin.buffer.read()
        return
    # A thread that reads sys.stdin would hold its lock when the interpreter ends; the descriptor has none.
    pieces: queue.Queue[bytes | OSError] = queue.Queue(CHUNK_BYTES // PIPE_BYTES)
    threading.Thread(target=_read, args=(number, pieces), daemon=True, name="stdin").start()
    while True:
        taken = [pieces.get()]
        with contextlib.suppress(queue.Empty):
            while len(taken) < CHUNK_BYTES // PIPE_BYTES and isinstance(taken[-1], bytes) and taken[-1]:
                taken.append(pieces.get_nowait())
        yield b"".join(piece for piece in taken if isinstance(piece, bytes))
        if isinstance(taken[-1], OSError):
            raise CliError(f"stdin: {taken[-1].strerror}")
        if not taken[-1]:
            return


def _read(number: int, pieces: queue.Queue[bytes | OSError]) -> None:
    piece = b"..."
    while piece:
        try:
            piece = os.read(number, PIPE_BYTES)
        except OSError as error:
            pieces.put(error)
            return
        pieces.put(piece)


class _LineFormat:
    """Reads records from lines: a part of the line ends where the text begins that stands behind it in the format."""

    def __init__(self, text: str) -> None:
        """Raises ValueError."""
        parts = parse_format(text)
        if parts and isinstance(parts[-1], bytes):
            parts[-1] = parts[-1].removesuffix(b"\n")
            parts = parts if parts[-1] else parts[:-1]
        if any(isinstance(part, bytes) and b"\n" in part for part in parts):
            raise ValueError("a record is a line: \\n stands at the end only")
        verbs = [part for part in parts if isinstance(part, Verb)]
        for verb in verbs:
            if verb.letter not in _READ or bool(verb.detail) != (verb.letter == "h"):
                raise ValueError(f"{verb} can only be written; lines have %k, %v, %p, %h{{name}} and %T")
        if len({"v" if verb.letter == "s" else str(verb) for verb in verbs}) < len(verbs):
            raise ValueError("a part of a record stands once in the format")
        for before, behind in pairwise(parts):
            if isinstance(before, Verb) and isinstance(behind, Verb):
                raise ValueError(f"between {before} and {behind} must be something that divides them")
        self._parts = parts

    def record(self, line: bytes, number: int) -> InputRecord:
        """The record of a line. Raises CliError naming the line."""
        values: list[tuple[Verb, bytes]] = []
        rest, waiting = line, None
        for at, part in enumerate(self._parts):
            if isinstance(part, Verb):
                waiting = part
                continue
            if at == len(self._parts) - 1:
                begin, mark, rest = rest.removesuffix(part), part if rest.endswith(part) else b"", b""
            else:
                begin, mark, rest = rest.partition(part)
            if not mark or (waiting is None and begin):
                raise CliError(f"line {number} is not of the format: it has no {part.decode(errors='replace')!r} there")
            if waiting is not None:
                values.append((waiting, begin))
            waiting = None
        if waiting is not None:
            values.append((waiting, rest))
        elif rest:
            raise CliError(f"line {number} is not of the format: it goes on behind its end")
        return _assembled(values, number)


def _assembled(values: list[tuple[Verb, bytes]], number: int) -> InputRecord:
    item = InputRecord(b"")
    for verb, raw in values:
        match verb.letter:
            case "k":
                item = item._replace(key=raw)
            case "v" | "s":
                item = item._replace(value=raw)
            case "h":
                item = item._replace(headers=(*item.headers, (verb.detail, raw)))
            case "p":
                if not re.fullmatch(b"[0-9]{1,10}", raw) or int(raw) >= 2**31:
                    raise CliError(f"line {number}: {raw.decode(errors='replace')[:40]!r} is no number of a partition")
                item = item._replace(partition=int(raw))
            case _:
                try:
                    text = raw.decode()
                    moment = int(text) if re.fullmatch("[0-9]{1,18}", text) else parse_time(text)
                except ValueError:
                    shown = raw.decode(errors="replace")[:40]
                    raise CliError(f"line {number}: {shown!r} is neither milliseconds nor a time") from None
                item = item._replace(timestamp_ms=moment)
    return item


def whole_lines(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines that have arrived so far, without their ends."""
    parts: list[bytes] = []
    for piece in pieces:
        head, mark, rest = piece.rpartition(b"\n")
        if not mark:
            parts.append(rest)
            continue
        whole = b"".join([*parts, head])
        parts = [rest]
        lines = whole.split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines] if b"\r" in whole else lines
    if rest := b"".join(parts):
        yield [rest]


def parse_line(line: bytes, separator: bytes | None, number: int) -> InputRecord:
    """A raw line; with a separator, key and value. Raises CliError naming the line."""
    if separator is None:
        return InputRecord(line)
    key, separated, value = line.partition(separator)
    if not separated:
        raise CliError(f"line {number} has no {separator.decode()!r} between key and value")
    return InputRecord(value, key)


def parse_json(line: bytes, number: int, encoded: frozenset[str] = frozenset()) -> InputRecord:
    """A line as ``consume --json`` writes it; offset and topic are ignored. Raises CliError naming the line.

    ``encoded``: which of key and value is a value of JSON that a schema writes, also if it is a text.
    """
    try:
        return _item(json.loads(line), encoded)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at column {error.colno}"
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except RecursionError:
        reason = "it is nested too deeply"
    except MalformedInput as error:
        reason = str(error)
    raise CliError(f"line {number} is not a record in JSON: {reason}")


class MalformedInput(ValueError):
    """JSON that is not a record; the message says why."""


def _item(data: Any, encoded: frozenset[str]) -> InputRecord:
    if not isinstance(data, dict):
        raise MalformedInput("it is not an object")
    listed = data.get("headers") or []
    if not isinstance(listed, list) or not all(isinstance(h, dict) and isinstance(h.get("name"), str) for h in listed):
        raise MalformedInput('headers must be a list of {"name": ..., "value": ...}')
    headers = tuple((h["name"], _bytes(h, "value")) for h in listed)
    partition = _whole(data, "partition", 2**31)
    key, value = (_part(data, name, encoded) for name in ("key", "value"))
    return InputRecord(value, key, headers, partition, _whole(data, "timestamp", 2**63))


def _whole(data: dict[str, Any], name: str, bound: int) -> int | None:
    value = data.get(name)
    if value is not None and (type(value) is not int or not 0 <= value < bound):
        raise MalformedInput(f"{name} is {json.dumps(value)}, it must be a number from 0 to {bound - 1}")
    return value


def _part(data: dict[str, Any], name: str, encoded: frozenset[str]) -> bytes | None:
    if name not in encoded:
        return _bytes(data, name)
    if f"{name}_base64" in data:
        raise MalformedInput(f"{name}_base64 is bytes, and its schema writes values of JSON")
    value = data.get(name)
    return None if value is None else json.dumps(value).encode()


def _bytes(data: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in data:
        try:
            return base64.b64decode(data[f"{name}_base64"], validate=True)
        except (ValueError, TypeError):
            raise MalformedInput(f"{name}_base64 is not base64") from None
    value = data.get(name)
    if value is None or isinstance(value, str):
        try:
            return None if value is None else value.encode()
        except UnicodeEncodeError:
            raise MalformedInput(f"{name} holds half of a surrogate pair") from None
    return json.dumps(value, ensure_ascii=False).encode()
