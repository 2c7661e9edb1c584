"""What the memory checker runs: the compiled kernels on valid, cut and mutated bytes in buffers of exactly their size.

Each result (or error) must equal the pure twin's, and the checker must stay silent. Run by ``sanitize.sh``; alone it is
a quick fuzzer: ``python tests/native/memory.py [rounds] [seed]``.
"""

from __future__ import annotations

import gc
import os
import random
import select
import socket
import sys
import tempfile
import uuid
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fleetlog._native.batch_cy as batch_cy
import fleetlog._native.batch_py as batch_py
import fleetlog._native.columns_cy as columns_cy
import fleetlog._native.columns_py as columns_py
import fleetlog._native.files_cy as files_cy
import fleetlog._native.files_py as files_py
import fleetlog._native.io_cy as io_cy
import fleetlog._native.wire_cy as wire_cy
import fleetlog._native.wire_py as wire_py
from fleetlog._native.batch_py import BatchHeader, Record
from fleetlog._native.columns_py import Headers, Runs
from fleetlog._native.errors import CorruptBatch
from fleetlog._native.files_py import SliceGone
from fleetlog._native.io_py import FilePart, Stop
from fleetlog._native.wire_tuples import FetchOutcome, FetchPart, NodeEndpoint

NASTY = (0, 1, 2, 0x3F, 0x40, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
BYTE = array("B", [0])


def exactly(data: bytes) -> memoryview:
    """The bytes in an allocation of just their size, so that reading one more is seen."""
    block = BYTE * len(data)
    view = memoryview(block)
    view[:] = data
    return view


def outcome(call: Callable[[], Any]) -> Any:
    """Result or error, in a form that can be compared."""
    try:
        return "ok", call()
    except CorruptBatch as error:
        return "corrupt", error.reason, error.position
    except ValueError as error:
        return type(error).__name__, str(error)


class Fuzz:
    """One seed's worth of inputs."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.calls = 0

    def same(self, pure: Any, fast: Any, name: str, *arguments: Any) -> Any:
        """Call both twins, each argument of bytes in an exact buffer of its own."""
        found = [
            outcome(lambda twin=twin: getattr(twin, name)(*[self.placed(argument) for argument in arguments]))
            for twin in (pure, fast)
        ]
        assert found[0] == found[1], f"{name}{arguments!r}\npure   {found[0]!r}\ncython {found[1]!r}"
        self.calls += 1
        return found[0]

    def placed(self, argument: Any) -> Any:
        """``argument``, moved into exact buffers."""
        if isinstance(argument, bytes):
            return exactly(argument)
        if isinstance(argument, Runs):
            return Runs(*[None if part is None else exactly(part) for part in argument])
        if isinstance(argument, Headers):
            return Headers(*[exactly(part) if isinstance(part, bytes) else self.placed(part) for part in argument])
        if isinstance(argument, list):
            return [(self.placed(first), second) for first, second in argument]
        return argument

    def mutated(self, data: bytes) -> bytes:
        """The data, or something near it."""
        out = bytearray(data)
        for _ in range(self.rng.choice((0, 1, 1, 2, 4))):
            if out:
                at = self.rng.randrange(len(out))
                out[at] = self.rng.choice(NASTY) if self.rng.random() < 0.7 else self.rng.randrange(256)
        if self.rng.random() < 0.3:
            del out[self.rng.randrange(len(out) + 1) :]
        if self.rng.random() < 0.1:
            out += self.rng.randbytes(self.rng.randrange(4))
        return bytes(out)

    def blob(self, longest: int = 24) -> bytes | None:
        """A nullable run of bytes."""
        return None if self.rng.random() < 0.2 else self.rng.randbytes(self.rng.randrange(longest))

    def records(self) -> list[Record]:
        """A few records with headers."""
        return [
            Record(-1, 1000 + self.rng.randrange(1 << self.rng.randrange(1, 50)), self.blob(), self.blob(90),
                   tuple(("h" * self.rng.randrange(3), self.blob(5)) for _ in range(self.rng.choice((0, 0, 1, 2)))))
            for _ in range(self.rng.randrange(1, 9))
        ]  # fmt: skip

    def batches(self) -> None:
        """The batch kernel and the reading half of columns."""
        rng = self.rng
        raw = batch_py.encode_batch(
            self.records(), base_offset=rng.choice((0, 7, 2**63 - 20)) if rng.random() < 0.3 else 0
        )
        data = self.mutated(raw)
        for name in ("parse_header", "validate_batch"):
            self.same(batch_py, batch_cy, name, data, rng.choice((0, 0, 0, 1, -1, len(data))))
        run = self.mutated(raw * rng.randrange(1, 4))
        self.same(
            batch_py,
            batch_cy,
            "scan",
            run,
            rng.choice((0, 0, -1, 3)),
            rng.choice((-1, -1, rng.randrange(len(run) + 2))),
        )
        self.same(batch_py, batch_cy, "crc32c", data)
        stamps: list[bytes] = []
        for twin in (batch_py, batch_cy):
            view = exactly(data)
            outcome(lambda t=twin, v=view: t.stamp(v, 0, 5, 6, 7))
            stamps.append(bytes(view))
        assert stamps[0] == stamps[1]
        producer = {"producer_id": 7, "producer_epoch": 1, "base_sequence": rng.choice((4, 5))}
        plain = self.mutated(batch_py.encode_batch(self.records(), **rng.choice(({}, producer))))
        known = SimpleNamespace(epoch=1, batches=(SimpleNamespace(last_sequence=4),), txn_first_offset=-1)
        producers = rng.choice(({7: known}, {}))
        unknown = rng.random() < 0.5
        admitted: list[tuple[Any, bytes]] = []
        for twin in (batch_py, batch_cy):
            views = [exactly(plain), exactly(batch_py.encode_batch(self.records())), exactly(plain)]
            found = outcome(lambda t=twin, v=views: t.admit(v, 7, 6, 2**62, 5, 400, 900, producers, True, unknown))
            admitted.append((found, b"".join(map(bytes, views))))
            self.rng = random.Random(7)  # the same records for both
        assert admitted[0][0][0] == admitted[1][0][0] == "ok"
        header: BatchHeader = batch_py.parse_header(raw)
        if rng.random() < 0.4:
            header = header._replace(
                record_count=rng.choice((0, 1, 5, 2**31 - 1)), base_timestamp=rng.choice((0, 2**63 - 1, -(2**63)))
            )
        payload = data[61:]
        self.same(batch_py, batch_cy, "decode_records", payload, header)
        self.same(batch_py, batch_cy, "validate_records", payload, header)
        self.same(batch_py, batch_cy, "oldest_timestamp", payload, header)
        self.same(batch_py, batch_cy, "longest_record", payload, header)
        self.same(batch_py, batch_cy, "find_timestamp", payload, header, rng.choice((0, 2**62)), rng.randrange(4))
        self.same(
            columns_py, columns_cy, "decode_columns", [(payload, header), (raw[61:], header)], 0, 5, rng.random() < 0.5
        )

    def columns(self) -> None:
        """Columns that fit and columns that lie."""
        rows = self.rng.randrange(12)
        offsets = array("i", [0])
        for _ in range(rows):
            offsets.append(offsets[-1] + self.rng.randrange(9))
        runs = Runs(
            self.mutated(self.rng.randbytes((rows + 7) // 8)) if self.rng.random() < 0.5 else None,
            self.mutated(offsets.tobytes()) if self.rng.random() < 0.5 else offsets.tobytes(),
            self.rng.randbytes(offsets[-1]),
        )
        times = array("q", [self.rng.randrange(-(2**40), 2**40) for _ in range(rows)]).tobytes()
        first = self.rng.randrange(rows + 1)
        asked = rows + self.rng.choice((0, 0, 0, 1))
        self.same(columns_py, columns_cy, "hash_runs", runs, asked, self.rng.choice((0, 1, 7)))
        self.same(columns_py, columns_cy, "encode_columns", self.rng.choice((runs, None)), runs, times, first, asked, 5)
        order = array("i", [self.rng.randrange(max(1, rows)) for _ in range(asked)]).tobytes()
        order = self.mutated(order) if self.rng.random() < 0.3 else order
        self.same(columns_py, columns_cy, "group_rows", order, self.rng.choice((0, 1, 12)))
        self.same(columns_py, columns_cy, "encode_columns", None, runs, times, first, asked, 5, None, order, 61)
        good = Runs(None, bytes(4 * (rows + 1)), b"")
        headers = Headers(runs.validity, runs.offsets, good, self.rng.choice((good, runs)))
        self.same(columns_py, columns_cy, "encode_columns", None, good, times, first, rows, 5, headers)
        self.same(columns_py, columns_cy, "murmur2", self.rng.randbytes(self.rng.randrange(40)))

    def messages(self) -> None:
        """Requests, built by hand and spoilt."""
        version = self.rng.randrange(3, 14)
        self.same(wire_py, wire_cy, "decode_produce", version, self.mutated(self.produce(version)))
        head = bytes((0, self.rng.choice((0, 1, 9)), 0, self.rng.randrange(14), 0, 0, 0, 7, 0, 3)) + b"me?"
        head = self.mutated(head + self.tags(True))
        self.same(wire_py, wire_cy, "parse_request_header", head, {0: 9, 1: 12})
        head = bytes((0, 0, 0, version, 0, 0, 0, 7, 0, 3)) + b"me?" + (b"\0" if version >= 9 else b"")
        frame = head + self.produce(version, b"", 1)
        frames = self.mutated((len(frame).to_bytes(4, "big") + frame) * self.rng.randrange(1, 4))
        limit = self.rng.choice((len(frames), self.rng.randrange(len(frames) + 1)))
        self.same(wire_py, wire_cy, "decode_produce_run", frames, 0, limit, 3, 13, 3)
        version = self.rng.randrange(4, 19)
        self.same(wire_py, wire_cy, "decode_fetch", version, self.mutated(self.fetch(version)))
        self.fetch_run(version)
        self.fetch_outcomes(version)
        version = self.rng.randrange(13, 19)
        self.same(wire_py, wire_cy, "decode_fetch_response", version, self.mutated(self.fetch_answer()))

    def fetch_run(self, version: int) -> None:
        """Whole frames of Fetch, at the beginning of what was received, or in the middle of it."""
        head = bytes((0, 1, 0, version, 0, 0, 0, 7, 0, 3)) + b"me?" + (b"\0" if version >= 12 else b"")
        frame = head + self.fetch(version)
        before = self.rng.randbytes(self.rng.choice((0, 3)))
        data = before + self.mutated(len(frame).to_bytes(4, "big") + frame)
        limit = self.rng.choice((len(data), self.rng.randrange(len(data) + 1)))
        start = min(len(before), limit)
        self.same(wire_py, wire_cy, "decode_fetch_run", data, start, limit, 4, self.rng.choice((11, 18)), 3)

    def fetch_outcomes(self, version: int) -> None:
        """Answers of Fetch with slices, aborted transactions, leaders and endpoints."""
        rng = self.rng
        pairs: list[tuple[FetchPart, FetchOutcome]] = []
        for index in range(rng.randrange(5)):
            topic = uuid.UUID(int=7) if rng.random() < 0.5 else uuid.UUID(int=8)
            part = FetchPart(rng.choice("tu") * rng.choice((1, 5, 200)), topic, index, 0, 0, -1, 0, 1000, -1)
            outcome = FetchOutcome(rng.choice((0, 6)), rng.randrange(2**62), rng.randrange(2**62), rng.randrange(9))
            if rng.random() < 0.5:
                outcome = outcome._replace(slices=["one", "another"], size=rng.randrange(1 << rng.randrange(1, 28)))
            if rng.random() < 0.5:
                outcome = outcome._replace(aborted=[(rng.randrange(99), 5)] * rng.randrange(3))
            if rng.random() < 0.3:
                outcome = outcome._replace(diverging=(1, rng.randrange(2**40)), current_leader=(2, 3))
            pairs.append((part, outcome))
        endpoints = (NodeEndpoint(1, "h" * rng.choice((1, 127, 300)), 9092, rng.choice((None, "r"))),) * rng.randrange(
            2
        )
        self.same(wire_py, wire_cy, "encode_fetch_answer", version, 5, pairs, rng.choice((0, 9)), endpoints)
        self.same(wire_py, wire_cy, "encode_fetch_response", version, pairs, 3, 0, 9, endpoints)

    def string(self, flexible: bool, text: bytes = b"topic") -> bytes:
        """A string as both generations write it."""
        return (bytes([len(text) + 1]) if flexible else len(text).to_bytes(2, "big")) + text

    def count(self, flexible: bool, count: int) -> bytes:
        """An array's length."""
        return bytes([count + 1]) if flexible else count.to_bytes(4, "big")

    def tags(self, flexible: bool) -> bytes:
        """A section of tagged fields."""
        if not flexible:
            return b""
        return self.rng.choice(
            (b"\0", b"\0", b"\1\5\3abc", b"\1\0\3\2xy", b"\1\1\x08" + bytes(8), b"\2\0\0\1\x0d" + bytes(13))
        )

    def produce(self, version: int, transactional_id: bytes = b"id", parts: int = -1) -> bytes:
        """A Produce request's body."""
        flexible = version >= 9
        parts = self.rng.randrange(3) if parts < 0 else parts
        topic = self.rng.randbytes(16) if version >= 13 else self.string(flexible)
        none = b"\0" if flexible else b"\xff\xff"
        out = (
            (self.string(flexible, transactional_id) if transactional_id else none)
            + b"\xff\xff\0\0\0\5"
            + self.count(flexible, 1)
            + topic
        )
        out += self.count(flexible, parts)
        for _ in range(parts):
            data = self.rng.randbytes(self.rng.randrange(20))
            out += b"\0\0\0\1" + self.count(flexible, len(data)) + data + self.tags(flexible)
        return out + self.tags(flexible) * 2

    def fetch(self, version: int) -> bytes:
        """A Fetch request's body."""
        flexible = version >= 12
        size = 32 if version >= 12 else 28 if version >= 9 else 24 if version >= 5 else 16
        parts = self.rng.randrange(3)
        topic = self.rng.randbytes(16) if version >= 13 else self.string(flexible)
        out = (b"" if version >= 15 else b"\xff\xff\xff\xff") + bytes(13) + (bytes(8) if version >= 7 else b"")
        out += self.count(flexible, 1) + topic + self.count(flexible, parts)
        for _ in range(parts):
            out += self.rng.randbytes(size) + self.tags(flexible)
        out += self.tags(flexible)
        if version >= 7:
            out += self.count(flexible, 1) + topic + self.count(flexible, 2) + bytes(8) + self.tags(flexible)
        return out + (self.string(flexible, b"rack") if version >= 11 else b"") + self.tags(flexible)

    def fetch_answer(self) -> bytes:
        """A Fetch response's body, of version 13 or more."""
        out = bytes(10) + self.count(True, 1) + self.rng.randbytes(16)
        parts = self.rng.randrange(3)
        out += self.count(True, parts)
        for _ in range(parts):
            data = self.rng.randbytes(self.rng.randrange(20))
            out += self.rng.randbytes(30) + self.count(True, 1) + bytes(16) + self.tags(True) + bytes(4)
            out += self.count(True, len(data)) + data
            out += self.rng.choice((b"\0", b"\1\0\x0d" + bytes(13), b"\1\1\x09" + bytes(9), b"\1\2\x01\0"))
        return out + self.tags(True) * 2


def opened(twin: Any, path: str) -> Any:
    """A file of that twin."""

    class File(twin.OpenFile):
        def __init__(self) -> None:
            super().__init__()
            self.path = path

        def opened(self) -> int:
            return os.open(path, os.O_RDONLY)

        def close(self) -> None:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1

        def failure(self, wrong: OSError) -> Exception:
            return wrong

        def window(self, position: int) -> None:
            return None

    return File()


def used(piece: Any, way: int) -> Any:
    """What a slice gives, without the descriptor's number; None if its bytes are gone."""
    try:
        return piece.read() if way == 0 else (piece.fileno() >= 0) if way == 1 else piece.part(piece.position, way)[1:]
    except SliceGone as gone:
        return str(gone)


def slices(rng: random.Random, path: str, size: int) -> None:
    """The files kernel: slices of both twins are read, cut, pinned and forgotten in the same order."""
    twins = (files_py, files_cy)
    files = [opened(twin, path) for twin in twins]
    cuts: list[int] = []
    held: list[list[Any]] = []
    pair: Any
    for _ in range(60):
        choice = rng.random()
        if choice < 0.4 or not held:
            position, length = rng.randrange(size), rng.randrange(200)
            held.append([twin.FileSlice(file, position, length, cuts) for twin, file in zip(twins, files, strict=True)])
        elif choice < 0.8:
            pair, way = rng.choice(held), rng.choice((0, 0, 1, 100))
            assert used(pair[0], way) == used(pair[1], way)
        elif choice < 0.85:
            cuts.append(rng.randrange(size))
        else:
            pair = held.pop(rng.randrange(len(held)))
            for piece in pair if rng.random() < 0.5 else ():  # the others are forgotten
                assert piece.retain() is piece
                piece.release()
                piece.release()
        assert files[0].pins == files[1].pins
    pair = piece = None
    held.clear()
    gc.collect()
    assert files[0].pins == files[1].pins == 0
    for file in files:
        file.close()


def sending(rng: random.Random, file: int, content: bytes) -> None:
    """The io kernel: byte runs in exact buffers and file parts, through a real socket; reads by the worker."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    chunks: list[Any] = [
        exactly(rng.randbytes(rng.randrange(200))) if rng.random() < 0.6 else FilePart(file, rng.randrange(900), 100)
        for _ in range(rng.randrange(1, 90))
    ]
    expected = b"".join(content[c[1] : c[1] + c[2]] if isinstance(c, tuple) else bytes(c) for c in chunks)
    sent = io_cy.send_slices(ours.fileno(), chunks)
    assert sent == (len(expected), Stop.DONE), sent
    ours.close()
    with theirs, theirs.makefile("rb") as stream:
        assert stream.read() == expected
    worker = io_cy.DiskWorker()
    for number in range(60):
        worker.read_ahead(file, rng.randrange(1100), rng.randrange(1100), number)
    assert worker.pending == 60
    while worker.pending:
        select.select([worker.fileno()], [], [], 30)
        worker.completions()
    worker.read_ahead(file, 0, 1000)
    worker.close()


def main() -> None:
    """Fuzz for some rounds, then print how much was done."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    calls = 0
    for number in range(rounds):
        fuzz = Fuzz(seed * 1_000_003 + number)
        fuzz.batches()
        fuzz.columns()
        fuzz.messages()
        calls += fuzz.calls
    content = random.Random(seed).randbytes(1000)
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        for number in range(max(1, rounds // 50)):
            sending(random.Random(number), file.fileno(), content)
            slices(random.Random(number), file.name, len(content))
    print(f"{calls} calls on exact buffers, both twins agree")


if __name__ == "__main__":
    main()
