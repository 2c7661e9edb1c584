"""Writes histories by hand: a clock that moves on by itself, and one short call per thing that happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.chaos.history import Event, Records

Log = Mapping[str, Sequence[tuple[int, str]]]


class Tale:
    """A history in the making. Every call takes place after the one before it unless ``at`` says when it began."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 0
        self._numbers = 0

    def tick(self) -> int:
        """The next moment."""
        self.now += 10
        return self.now

    def number(self) -> int:
        """A fresh number for an operation."""
        self._numbers += 1
        return self._numbers

    def start(self, proc: str, **what: Any) -> None:
        """A process begins."""
        self.events.append({"e": "start", "p": proc, "t": self.tick(), **what})

    def send(
        self, value: str, offset: int | None = None, *, key: str = "t/0", proc: str = "w", outcome: str = "ok",
        at: int | None = None, idem: bool = True, doubtful: bool = False, error: str = "",
    ) -> None:  # fmt: skip
        """One record, sent and ended."""
        name = {"f": "send", "p": proc, "n": self.number()}
        self.events.append({"e": "invoke", "t": at or self.tick(), "k": key, "v": value, "idem": idem, **name})
        end = {"e": outcome, "t": self.tick(), "doubtful": doubtful, "error": error, **name}
        self.events.append(end | ({"o": offset} if outcome == "ok" else {}))

    def txn(
        self, sends: Sequence[tuple[Any, ...]], *, outcome: str = "ok", proc: str = "x", at: int | None = None,
        polls: Sequence[Log] = (), offsets: Mapping[str, int] | None = None, group: str = "g",
        doubtful: bool = False, committing: bool | None = None, batch: tuple[str, int] | None = None,
    ) -> None:  # fmt: skip
        """A transaction; a send is (key, value, offset or None[, source])."""
        name = {"f": "txn", "p": proc, "n": self.number()}
        attempt = {"batch": list(batch)} if batch else {}
        self.events.append({"e": "invoke", "t": at or self.tick(), **attempt, **name})
        for read in polls:
            found = {key: [list(record) for record in records] for key, records in read.items()}
            self.events.append({"e": "poll", "t0": self.tick(), "t": self.tick(), "r": found, **name})
        for key, value, offset, *source in sends:
            self.events.append(
                {"e": "send", "t": self.tick(), "k": key, "v": value, "s": source[0] if source else None, **name}
            )
            if offset is not None:
                self.events.append({"e": "sent", "t": self.tick(), "k": key, "v": value, "o": offset, **name})
        if offsets:
            self.events.append({"e": "offsets", "t": self.tick(), "g": group, "o": dict(offsets), **name})
        if committing if committing is not None else outcome != "fail" or doubtful:
            self.events.append({"e": "committing", "t": self.tick(), **name})
        self.events.append({"e": outcome, "t": self.tick(), "doubtful": doubtful, **name})

    def _single(self, kind: str, proc: str, at: int | None, **what: Any) -> None:
        t0 = at or self.tick()
        self.events.append({"e": "ok", "f": kind, "p": proc, "t0": t0, "t": self.tick(), **what})

    def poll(
        self, *records: tuple[int, str], key: str = "t/0", proc: str = "r", at: int | None = None, **what: Any
    ) -> None:
        """A poll that returned something."""
        self._single("poll", proc, at, r={key: [list(record) for record in records]}, **what)

    def position(self, at: Mapping[str, int | None], proc: str = "r", *, beside: bool = False) -> None:
        """The consumer was moved."""
        self._single("position", proc, None, r=dict(at), beside=beside)

    def commit(
        self, offset: int, *, key: str = "t/0", group: str = "g", outcome: str = "ok", proc: str = "r",
        at: int | None = None, doubtful: bool = False,
    ) -> None:  # fmt: skip
        """An offset commit."""
        name = {"f": "commit", "p": proc, "n": self.number()}
        self.events.append({"e": "invoke", "t": at or self.tick(), "g": group, "o": {key: offset}, **name})
        self.events.append({"e": outcome, "t": self.tick(), "doubtful": doubtful, **name})

    def committed(
        self, offset: int, *, key: str = "t/0", group: str = "g", at: int | None = None, final: bool = False
    ) -> None:
        """A client asks for the committed offset."""
        self._single("committed", "asker", at, g=group, o={key: offset}, final=final)

    def ends(self, offset: int, *, key: str = "t/0", iso: str = "ru", at: int | None = None) -> None:
        """A client asks for the log's end."""
        self._single("ends", "asker", at, iso=iso, o={key: offset})

    def fence(self, batch_id: int, *, sink: str = "s", proc: str = "x", at: int | None = None) -> None:
        """A batch begins, and its driver is told the last committed one."""
        self._single("fence", proc, at, sink=sink, id=batch_id)

    def trim(self, offset: int, *, key: str = "t/0", outcome: str = "ok", at: int | None = None) -> None:
        """Records below an offset are deleted."""
        t0 = at or self.tick()
        self.events.append({"e": outcome, "f": "trim", "o": {key: offset}, "t0": t0, "t": self.tick()})

    def again(
        self, topic_id: str, sent: Sequence[str], acked: Sequence[str] = (), read: Sequence[str] | None = None
    ) -> None:
        """One round of a topic that is made again."""
        found = None if read is None else list(read)
        self._single("again", "again", None, id=topic_id, sent=list(sent), acked=list(acked), read=found)

    def given(self, *records: tuple[int, str], key: str = "jobs/0", proc: str = "s", at: int | None = None) -> int:
        """A share consumer gets records; the number of that."""
        number, t0 = self.number(), at or self.tick()
        found = {key: [list(record) for record in records]}
        self.events.append({"e": "ok", "f": "given", "p": proc, "n": number, "t0": t0, "t": self.tick(), "r": found})
        return number

    def say(
        self, given: int, end: str, *offsets: int, key: str = "jobs/0", proc: str = "s", outcome: str = "ok"
    ) -> None:
        """It says what became of some of them, and is answered."""
        name = {"f": "say", "p": proc, "n": given}
        self.events.append(
            {"e": "invoke", "t": self.tick(), "o": {key: {str(offset): end for offset in offsets}}, **name}
        )
        told = {"o": {key: list(offsets)}} if outcome == "ok" else {"error": "unheard"}
        self.events.append({"e": outcome, "t": self.tick(), **told, **name})

    def letters(self, *letters: tuple[int, str], key: str = "jobs/0") -> None:
        """All dead letters, as (offset, reason)."""
        self._single("letters", "end", None, r=[[key, *letter] for letter in letters])

    def final(
        self, committed: Log, all_of_it: Log | None = None, ends: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """The full reads; ``ends`` are (last stable offset, high watermark), by default the end of all."""
        everything: dict[str, Records] = {
            key: sorted({*committed.get(key, ()), *(all_of_it or {}).get(key, ())})
            for key in sorted({*committed, *(all_of_it or {})})
        }
        high = {key: records[-1][0] + 1 if records else 0 for key, records in everything.items()}
        for which, iso, log in ((0, "rc", committed), (1, "ru", all_of_it if all_of_it is not None else committed)):
            end = {key: (ends[key][which] if ends and key in ends else high[key]) for key in everything}
            records = {key: [list(record) for record in log.get(key, ())] for key in everything}
            self._single("final", f"final-{iso}", None, iso=iso, r=records, end=end)

    def fault(self, kind: str, t0: int, t1: int, proof: Any = "seen") -> None:
        """A fault was on."""
        self.events.append({"f": "fault", "kind": kind, "target": "b1", "t0": t0, "t": t1, "proof": proof})
