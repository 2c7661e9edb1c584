"""The history of a run: JSON lines that clients write while they work, and the model that the checker reads from them.

One line is one event; times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share. ``p`` is the
client process, ``n`` numbers its operations, ``e`` says what happened to the operation, ``f`` what kind it is.

- ``start``: a process begins; ``iso`` (``rc`` or ``ru``), ``group`` and ``client`` hold for its polls.
- ``invoke`` / ``ok`` / ``fail`` / ``info`` for ``send`` (``k`` key, ``v`` value, ``o`` offset when known, ``idem``,
  ``inst`` the producer's instance in the process), ``txn`` and ``commit`` (``g`` group, ``o`` offsets by key).
  ``info``: unknown; an invocation without an end counts as ``info``. ``doubtful`` marks an end that is
  definite by the client's word only, after a commit was sent: the sound reading takes it as ``info``.
- inside a ``txn``: ``committing`` (written before the commit is asked for: a transaction without it cannot commit, so
  it failed for certain however it ended), ``send``, ``sent`` (acknowledged at ``o``), ``poll`` (``r``: key ->
  [[offset, value], ...]) and ``offsets`` (``g``, ``o``). A send may name the record it was made from as ``s``: [key,
  offset].
- a ``txn`` that is an attempt at a batch of Spark's sink names it as ``batch``: [sink, batch id].
- one line with ``t0`` and ``t``: ``fence`` (a batch began on ``sink``, and ``id`` was the last committed one, -1 for
  none; every earlier attempt is locked out from ``t`` on), ``poll``, ``committed`` (``g``, ``o``), ``ends``
  (ListOffsets: ``iso``, ``o``), ``final`` (a full read: ``iso``, ``r``, ``end``, the log's end by key) and ``position``
  (the consumer now stands at ``r``: key -> offset, null where the group's committed offset decides;
  other keys are given up, or kept where it says ``beside``), ``trim`` (DeleteRecords: ``o``, key -> the offset below
  which records were to go) and ``again`` (one topic that is made, written, read and deleted by one process: ``id``,
  the values ``sent``, ``acked`` and ``read``, the latter null when the read did not come to its end or the topic was
  another one by then).
- ``given``: a share consumer got ``r`` (key -> [[offset, value], ...]), by a request that it sent after ``t0``; ``n``
  numbers it. ``say`` with that ``n``: ``invoke``, it asks for ends of these records (``o``: key -> {offset: ``accept``,
  ``reject`` or ``release``}); ``ok``, a broker answered that it is so (``o``: key -> offsets).
- ``letters`` (one line): all dead letters at the end, ``r``: [[key, offset, reason], ...] of their records.
- ``fault`` (``kind``, ``target``, ``t0``, ``t``, ``proof``) and ``phase`` (``name``, ``t0``, ``t``).

A key is ``topic/partition``; a value is written to one key at most once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Records = list[tuple[int, str]]
"""(offset, value) in the order in which a consumer returned them."""
FOREVER = 1 << 62
RC, RU = "rc", "ru"
TELLERS = "tellers"
"""The group whose members write two outputs for each input: the two sides of a transfer."""

COMPACTED = "table"
"""The compacted topic. Its values' names end with ``@`` and the record's key."""
JOBS = "jobs"
"""The topic of a share group that keeps the order by key. Its values' names end with ``@`` and the record's key."""
ACCEPT, REJECT, RELEASE = "accept", "reject", "release"


class HistoryError(Exception):
    """The history cannot be read; the message names file and line."""


@dataclass(slots=True)
class Send:
    """One record on its way: when it was handed to the client, and when and where it was acknowledged."""

    op: Op
    key: str
    value: str
    t0: int
    offset: int | None = None
    acked: int = FOREVER
    source: tuple[str, int] | None = None


@dataclass(slots=True)
class Poll:
    """What one poll returned. ``op`` is the transaction it was part of, if any."""

    proc: str
    t0: int
    t1: int
    isolation: str
    records: dict[str, Records]
    op: Op | None = None
    group: str | None = None


@dataclass(slots=True)
class Op:
    """A send or a transaction: one thing with one outcome. Without a certain one ``t1`` is never, ``ended`` is not."""

    proc: str
    number: int
    kind: str
    t0: int
    t1: int = FOREVER
    ended: int = FOREVER
    outcome: str = "info"
    idempotent: bool = True
    instance: int = 0
    doubtful: bool = False
    committing: bool = False
    error: str = ""
    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    offsets: dict[tuple[str, str], int] = field(default_factory=dict)
    batch: tuple[str, int] | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.proc}#{self.number} ({self.outcome}{': ' + self.error if self.error else ''})"


@dataclass(slots=True)
class Commit:
    """An attempt to commit a group's offset of one key."""

    group: str
    key: str
    offset: int
    t0: int
    t1: int
    outcome: str
    proc: str


@dataclass(slots=True)
class Answer:
    """A committed offset, or an end of a log, as a broker answered it."""

    key: str
    offset: int
    t0: int
    t1: int
    proc: str
    group: str = ""
    isolation: str = ""
    final: bool = False


@dataclass(slots=True)
class Fence:
    """What BeginBatch answered: the last batch that the sink had committed."""

    sink: str
    batch_id: int
    t0: int
    t1: int
    proc: str


@dataclass(slots=True)
class Trim:
    """DeleteRecords: everything of a key below ``offset`` was asked to go. ``t1`` is FOREVER without an answer."""

    key: str
    offset: int
    t0: int
    t1: int


@dataclass(slots=True)
class Again:
    """A topic that was made anew: what was sent to it, acknowledged, and read at its end (None: nothing is known)."""

    proc: str
    topic_id: str
    sent: list[str]
    acked: list[str]
    read: list[str] | None
    t0: int
    t1: int


@dataclass(slots=True)
class Given:
    """A record that a share consumer got, by a request that it sent after ``t0``, and what it said of it.

    ``asked`` is when it asked for an end of it (``end``), ``said`` when a broker answered that it is so.
    """

    proc: str
    key: str
    offset: int
    value: str
    t0: int
    t1: int
    end: str = ""
    asked: int = FOREVER
    said: int = FOREVER


@dataclass(slots=True)
class Letter:
    """A dead letter: of which record, and why."""

    key: str
    offset: int
    reason: str


@dataclass(slots=True)
class Position:
    """A consumer was put somewhere: by assignment, rebalance or seek."""

    proc: str
    t: int
    at: dict[str, int | None]
    group: str | None
    beside: bool = False
    """Whether it keeps its place in other partitions."""


@dataclass(slots=True)
class Final:
    """A full read by a fresh client after everything was healed."""

    isolation: str
    records: dict[str, Records]
    ends: dict[str, int]
    proc: str
    t0: int = 0
    t1: int = 0


@dataclass(slots=True)
class Fault:
    """One fault that was injected, with the proof that it took place."""

    kind: str
    target: str
    t0: int
    t1: int
    proof: Any


@dataclass
class History:
    """Everything that happened, by subject; each list is in the order of time."""

    ops: list[Op] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    consumers: dict[str, list[Poll | Position]] = field(default_factory=lambda: defaultdict(list))
    commits: list[Commit] = field(default_factory=list)
    committed: list[Answer] = field(default_factory=list)
    ends: list[Answer] = field(default_factory=list)
    fences: list[Fence] = field(default_factory=list)
    trims: list[Trim] = field(default_factory=list)
    agains: list[Again] = field(default_factory=list)
    givens: list[Given] = field(default_factory=list)
    letters: list[Letter] | None = None
    """None: nobody read them."""
    finals: list[Final] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    phases: list[tuple[str, int, int]] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    refusals: list[tuple[str, str]] = field(default_factory=list)
    """What clients were told they have no right to, with the process."""


class Parser:
    """Builds a :class:`History` from events. ``strict`` believes ends that came after a commit was sent."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.history = History()
        self._open: dict[tuple[str, int], Op] = {}
        self._open_commits: dict[tuple[str, int], Event] = {}
        self._sends: dict[tuple[str, int, str, str], Send] = {}
        self._starts: dict[str, Event] = {}
        self._ended: set[tuple[str, int]] = set()
        self._givens: dict[tuple[str, int], dict[tuple[str, int], Given]] = {}

    def feed(self, event: Event) -> None:
        """Take one event; raises KeyError or ValueError for one that makes no sense."""
        e, f = event.get("e"), event.get("f")
        if "authoriz" in event.get("error", "").lower():  # in the words of all clients
            self.history.refusals.append((event["p"], event["error"]))
        if e == "start":
            self._starts[event["p"]] = event
        elif e in ("gone", "retry"):
            self.history.errors[f"{e}: {event['error'][:90]}"] += 1
        elif f in ("send", "txn"):
            self._operation(event)
        elif f == "commit":
            self._commit(event)
        elif f in _SINGLE:
            _SINGLE[f](self, event)
        else:
            raise ValueError(f"unknown event {event}")

    def _operation(self, event: Event) -> None:
        name, e = (event["p"], event["n"]), event["e"]
        if e == "invoke":
            if name in self._open:
                raise ValueError(f"operation {name} begins twice")
            op = Op(*name, event["f"], event["t"], idempotent=event.get("idem", True), instance=event.get("inst", 0))
            if "batch" in event:
                op.batch = (event["batch"][0], int(event["batch"][1]))
            self._open[name] = op
            self.history.ops.append(op)
            if event["f"] == "send":
                op.sends.append(Send(op, event["k"], event["v"], event["t"]))
            return
        op = self._open[name]
        if e == "send":
            source = event.get("s")
            send = Send(op, event["k"], event["v"], event["t"], source=tuple(source) if source else None)
            self._sends[*name, send.key, send.value] = send
            op.sends.append(send)
        elif e == "committing":
            op.committing = True
        elif e == "sent":
            send = self._sends[*name, event["k"], event["v"]]
            send.offset, send.acked = event["o"], event["t"]
        elif e == "poll":
            poll = self._poll_of(event)
            poll.op = op
            op.polls.append(poll)
            self._polled(poll)
        elif e == "offsets":
            op.offsets.update({(event["g"], key): offset for key, offset in event["o"].items()})
        elif name in self._ended:
            raise ValueError(f"operation {name} ends twice")
        else:
            self._ended.add(name)
            self._end(op, event)

    def _end(self, op: Op, event: Event) -> None:
        outcome = event["e"]
        op.doubtful = bool(event.get("doubtful"))
        if op.doubtful and outcome == "fail" and not self.strict:
            outcome = "info"
        op.outcome, op.error, op.ended = outcome, event.get("error", ""), event["t"]
        if outcome != "ok":
            self.history.errors[f"{op.kind} {outcome}: {op.error[:60]}"] += 1
        if outcome != "info":
            op.t1 = event["t"]
        if op.kind == "send" and outcome == "ok":
            op.sends[0].offset, op.sends[0].acked = event["o"], event["t"]

    def _commit(self, event: Event) -> None:
        name = (event["p"], event["n"])
        if event["e"] == "invoke":
            self._open_commits[name] = event
            return
        outcome = event["e"]
        if event.get("doubtful") and outcome == "fail" and not self.strict:
            outcome = "info"
        self._add_commit(self._open_commits.pop(name), outcome, event["t"], event.get("error", ""))

    def _add_commit(self, invoke: Event, outcome: str, t1: int, error: str = "") -> None:
        if outcome == "info":
            t1 = FOREVER
        if outcome != "ok" and error:
            self.history.errors[f"commit {outcome}: {error[:60]}"] += 1
        for key, offset in invoke["o"].items():
            self.history.commits.append(
                Commit(invoke["g"], key, offset, invoke["t"], t1, outcome, f"commit {invoke['p']}#{invoke['n']}")
            )

    def _poll_of(self, event: Event) -> Poll:
        start = self._starts.get(event["p"], {})
        return Poll(
            event["p"],
            event["t0"] if "t0" in event else event["t"],
            event["t"],
            event.get("iso") or start.get("iso", RC),
            {key: [(int(o), str(v)) for o, v in found] for key, found in event["r"].items()},
            group=start.get("group"),
        )

    def _polled(self, poll: Poll) -> None:
        self.history.polls.append(poll)
        self.history.consumers[poll.proc].append(poll)

    def _on_poll(self, event: Event) -> None:
        if event["e"] == "ok":
            self._polled(self._poll_of(event))
        else:
            self.history.errors[f"poll: {event.get('error', '')[:60]}"] += 1

    def _on_position(self, event: Event) -> None:
        start = self._starts.get(event["p"], {})
        self.history.consumers[event["p"]].append(
            Position(event["p"], event["t"], dict(event["r"]), start.get("group"), event.get("beside", False))
        )

    def _on_committed(self, event: Event) -> None:
        if event["e"] != "ok":
            self.history.errors[f"committed: {event.get('error', '')[:60]}"] += 1
            return
        for key, offset in event["o"].items():
            self.history.committed.append(
                Answer(key, offset, event["t0"], event["t"], event["p"], event["g"], final=event.get("final", False))
            )

    def _on_ends(self, event: Event) -> None:
        if event["e"] != "ok":
            self.history.errors[f"ends: {event.get('error', '')[:60]}"] += 1
            return
        for key, offset in event["o"].items():
            self.history.ends.append(Answer(key, offset, event["t0"], event["t"], event["p"], isolation=event["iso"]))

    def _on_fence(self, event: Event) -> None:
        self.history.fences.append(Fence(event["sink"], int(event["id"]), event["t0"], event["t"], event["p"]))

    def _on_trim(self, event: Event) -> None:
        t1 = event["t"] if event["e"] == "ok" else FOREVER
        self.history.trims += [Trim(key, int(offset), event["t0"], t1) for key, offset in event["o"].items()]

    def _on_again(self, event: Event) -> None:
        self.history.agains.append(
            Again(event["p"], event["id"], event["sent"], event["acked"], event["read"], event["t0"], event["t"])
        )

    def _on_final(self, event: Event) -> None:
        records = {key: [(int(o), str(v)) for o, v in found] for key, found in event["r"].items()}
        self.history.finals.append(Final(event["iso"], records, event["end"], event["p"], event["t0"], event["t"]))

    def _on_given(self, event: Event) -> None:
        some = [
            Given(event["p"], key, int(offset), str(value), event["t0"], event["t"])
            for key, records in event["r"].items()
            for offset, value in records
        ]
        self._givens[event["p"], event["n"]] = {(given.key, given.offset): given for given in some}
        self.history.givens += some

    def _on_say(self, event: Event) -> None:
        mine = self._givens[event["p"], event["n"]]
        if event["e"] == "info":
            self.history.errors[f"say: {event.get('error', '')[:60]}"] += 1
            return
        for key, offsets in event["o"].items():
            for offset in offsets:
                given = mine[key, int(offset)]
                if event["e"] == "invoke":
                    given.end, given.asked = offsets[offset], event["t"]
                else:
                    given.said = event["t"]

    def _on_letters(self, event: Event) -> None:
        self.history.letters = [Letter(str(key), int(offset), str(reason)) for key, offset, reason in event["r"]]

    def _on_fault(self, event: Event) -> None:
        self.history.faults.append(
            Fault(event["kind"], event.get("target", ""), event["t0"], event["t"], event.get("proof"))
        )

    def _on_phase(self, event: Event) -> None:
        self.history.phases.append((event["name"], event["t0"], event["t"]))

    def finish(self) -> History:
        """The history; operations that never ended stay ``info``."""
        for invoke in self._open_commits.values():
            self._add_commit(invoke, "info", FOREVER)
        for op in self.history.ops:
            if op.kind == "txn" and not op.committing:
                op.outcome = "fail"
            for (group, key), offset in op.offsets.items():
                self.history.commits.append(Commit(group, key, offset, op.t0, op.t1, op.outcome, str(op)))
        self.history.ops.sort(key=lambda op: op.t0)
        self.history.polls.sort(key=lambda poll: poll.t1)
        self.history.faults.sort(key=lambda fault: fault.t0)
        return self.history


_SINGLE = {
    "poll": Parser._on_poll,
    "position": Parser._on_position,
    "committed": Parser._on_committed,
    "ends": Parser._on_ends,
    "fence": Parser._on_fence,
    "trim": Parser._on_trim,
    "again": Parser._on_again,
    "given": Parser._on_given,
    "say": Parser._on_say,
    "letters": Parser._on_letters,
    "final": Parser._on_final,
    "fault": Parser._on_fault,
    "phase": Parser._on_phase,
}


def parse(events: Iterable[Event], strict: bool = False) -> History:
    """Build the model from events in the order in which each process wrote them."""
    parser = Parser(strict)
    for event in events:
        parser.feed(event)
    return parser.finish()


def read_events(directory: Path) -> Iterator[Event]:
    """All events of a run, file by file. Only a file's last line may be torn: its process was killed."""
    for path in sorted(directory.glob("*.jsonl")):
        lines = path.read_text().split("\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                yield json.loads(line)
            except ValueError as problem:
                if number == len(lines):
                    continue
                raise HistoryError(f"{path}:{number}: {problem}") from problem


def read(directory: Path, strict: bool = False) -> History:
    """The history of a run's directory; raises HistoryError with file and line."""
    return parse(read_events(directory), strict)
