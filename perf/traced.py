"""Which Python functions of the broker a request passes: ``python -m perf.traced CASE`` lists them in order.
``python -m perf.traced page`` writes the lists of ``docs/traces.md``.

The broker is that of ``perf.counted``: real sockets and logs in this process, time stands still. ``sys.setprofile``
hears of each call while one turn of the loop works on the requests. The broker's own functions count, each once,
however often it is called; so do the files they stand in. Kernels do not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from fleetlog.brokers.coordinators.transactions.coordinator import TransactionCoordinator
from fleetlog.txn.commands import Command
from fleetlog.txn.coordinator import Producer
from fleetlog.wire.types import TopicPartition
from perf.build import ROOT
from perf.counted import (
    IN_TRANSACTION,
    KIB,
    NOW_MS,
    PARTITIONS,
    TOPIC,
    TRANSACTIONAL,
    Fixture,
    reading,
    reading_in_session,
)
from perf.generator.frames import Frame, batch_of, end_txn_frame, offset_commit_frame, produce_frame

ROOMS = ("brokers", "wire", "txn", "coordination")
"""Without the kernels, which are Cython's or their pure twins."""
WARMUP = 7
"""So many requests before: the one that is traced is no index entry, as three of four."""


class Call(NamedTuple):
    """A call of one of the broker's functions; ``depth`` counts the broker's functions above it."""

    depth: int
    file: str
    function: str


class Trace:
    """The calls of one turn."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._known: dict[CodeType, str | None] = {}
        self._depth = 0

    def __enter__(self) -> Trace:
        sys.setprofile(self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _heard(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code not in self._known:
            path = Path(code.co_filename).resolve()  # through the link of its room
            ours = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ROOMS
            self._known[code] = str(path.relative_to(ROOT)) if ours else None
        file = self._known[code]
        if file is None or event not in ("call", "return"):
            return
        if event == "call":
            self.calls.append(Call(self._depth, file, code.co_qualname))
            self._depth += 1
        elif self._depth:
            self._depth -= 1

    @property
    def functions(self) -> Counter[tuple[str, str]]:
        """How often each function was called."""
        return Counter((call.file, call.function) for call in self.calls)

    @property
    def files(self) -> set[str]:
        """Where they stand."""
        return {call.file for call in self.calls}

    def text(self) -> str:
        """The calls, one a line, indented by depth; then the totals."""
        lines = [f"{'  ' * call.depth}{call.function}  [{call.file}]" for call in self.calls]
        lines.append(self.totals())
        return "\n".join(lines)

    def outline(self) -> str:
        """Each function once, where it is called first; without codecs, special methods and comprehensions."""
        lines: dict[tuple[str, str], str] = {}
        for call in self.calls:
            path, _, name = call.function.rpartition(".")
            if not (path.startswith("_Reader") or name.startswith(("__", "<"))):
                lines.setdefault((call.file, call.function), f"{'  ' * call.depth}{call.function}  [{call.file}]")
        return "\n".join(lines.values())

    def totals(self) -> str:
        """The figures."""
        return f"{len(self.functions)} functions in {len(self.files)} files, {len(self.calls)} calls"


def _produce(fixture: Fixture, *, at_once: int = 1, **producer: int) -> Trace:
    """Plain requests, or those of a known producer."""
    for turn in range(WARMUP):
        fixture.check(_frames(at_once, turn, **producer))
    return _traced(fixture, _frames(at_once, WARMUP, **producer))


def _frames(at_once: int, turn: int, **producer: int) -> list[Frame]:
    return [
        produce_frame(
            TOPIC, 0, batch_of(KIB, KIB, NOW_MS, **producer, base_sequence=turn * at_once + n if producer else -1)[0]
        )
        for n in range(at_once)
    ]


def _first(fixture: Fixture, producer_id: int = 99) -> Trace:
    """A producer's first batch in a partition that others have written to."""
    for turn in range(WARMUP):
        fixture.check(_frames(1, turn))
    return _traced(fixture, _frames(1, 0, producer_id=producer_id, producer_epoch=0))


def _transaction(fixture: Fixture) -> Trace:
    """The next batch of a transaction that is open."""
    batch = batch_of(
        KIB, KIB, NOW_MS, producer_id=IN_TRANSACTION, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
    )[0]
    return _traced(fixture, [produce_frame(TOPIC, 4, batch, transactional_id="counted")])


def _connections(fixture: Fixture) -> Trace:
    """Several connections in one turn."""
    frames = _frames(1, 0)
    for _ in range(WARMUP):
        fixture.check_crowd(frames)
    found = Trace()
    turn = fixture.crowd_turn

    def watched() -> None:
        with found:
            turn()

    fixture.crowd_turn = watched  # type: ignore[method-assign]
    fixture.check_crowd(frames)
    return found


def _fetch(fixture: Fixture) -> Trace:
    """A consumer that reads on."""
    for turn in range(2 * WARMUP):
        fixture.check(_frames(1, turn))
    rounds = reading(fixture, 4 * KIB, 2)
    fixture.check(rounds[0])
    return _traced(fixture, rounds[1])


def _fetch_in_session(fixture: Fixture) -> Trace:
    """A consumer that reads on, in a session."""
    for turn in range(2 * WARMUP):
        fixture.check(_frames(1, turn))
    rounds = reading_in_session(fixture, 4 * KIB, 2)
    fixture.check(next(rounds))
    return _traced(fixture, next(rounds))


def _commit(fixture: Fixture) -> Trace:
    """A group commits the offset of one partition."""
    _coordinators(fixture)
    frames = [[offset_commit_frame("counted", TOPIC, 0, offset)] for offset in range(WARMUP + 1)]
    for frame in frames[:-1]:
        fixture.check(frame)
    return _traced(fixture, frames[-1])


def _end(fixture: Fixture) -> Trace:
    """The commit of a transaction with one partition: the response, then the markers and the last record."""
    transactions = _coordinators(fixture)
    name, producer = "counted", Producer(IN_TRANSACTION, 0)

    def submit(command: Command) -> None:
        answers: list[Any] = []
        transactions.submit(name, command).on_done(answers.append)
        fixture.loop.run_soon()
        assert [answer.error for answer in answers] == [0], answers

    def begin() -> list[Frame]:
        submit(lambda shard, now, _: shard.add_partitions(name, producer, [TopicPartition(TOPIC, PARTITIONS)], 0, now))
        return [end_txn_frame(name, *producer, commit=True)]

    submit(lambda shard, now, _: shard.init_producer_id(name, 60_000, None, lambda: IN_TRANSACTION, now))
    for _ in range(WARMUP):
        fixture.check(begin())
    return _traced(fixture, begin())


def _coordinators(fixture: Fixture) -> TransactionCoordinator:
    fixture.stage.coordinate(fixture.loop)
    fixture.loop.run_soon()
    found: TransactionCoordinator = fixture.stage.services.transactions
    return found


def _traced(fixture: Fixture, frames: list[Frame]) -> Trace:
    found = Trace()
    client = fixture.client
    turn = client.loop.turn

    def watched(fd: int) -> None:
        with found:
            turn(fd)

    client.loop.turn = watched  # type: ignore[method-assign]
    fixture.check(frames)
    client.loop.turn = turn  # type: ignore[method-assign]
    return found


CASES: dict[str, Callable[[Fixture], Trace]] = {
    "produce": _produce,
    "produce-10": lambda fixture: _produce(fixture, at_once=10),
    "idempotent": lambda fixture: _produce(fixture, producer_id=98, producer_epoch=0),
    "first": _first,
    "transaction": _transaction,
    "connections": _connections,
    "fetch": _fetch,
    "fetch-session": _fetch_in_session,
    "commit": _commit,
    "end": _end,
}


def trace(case: str) -> Trace:
    """The calls of one case, on a broker of its own."""
    with tempfile.TemporaryDirectory(prefix="perf-") as name:
        fixture = Fixture(Path(name), 0)
        try:
            return CASES[case](fixture)
        finally:
            fixture.close()


PAGE = ROOT / "docs" / "traces.md"
SHOWN = {
    "produce": "A produce",
    "fetch": "A fetch",
    "commit": "A commit of offsets",
    "end": "An end of a transaction",
}
"""The cases on the page, and their headings."""
HEAD = """\
# Traces

The functions that a request passes, in the order of their first calls; an indented one is called by the one above it.
`python -m perf.traced page` writes this page, a test in [tests/perf](../tests/perf/test_traced.py) compares it with the
code. Kernels, codecs, special methods and comprehensions are left out. `python -m perf.traced CASE` shows every call.
"""


def page() -> str:
    """The text of ``docs/traces.md``."""
    parts = [HEAD]
    for case, heading in SHOWN.items():
        found = trace(case)
        what = (CASES[case].__doc__ or "").strip()
        parts.append(f"## {heading}\n\n{what}\n\n```text\n{found.outline()}\n```\n")
    return "\n".join(parts)


def main() -> int:
    """Print the calls of a case, or the totals of all, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m perf.traced", description="Python functions of a request")
    parser.add_argument("case", choices=[*CASES, "all", "page"])
    case = parser.parse_args().case
    if case == "all":
        for name in CASES:
            print(f"{name:<14}{trace(name).totals()}")
    elif case == "page":
        PAGE.write_text(page())
        print(f"written: {PAGE.relative_to(ROOT)}")
    else:
        print(trace(case).text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
