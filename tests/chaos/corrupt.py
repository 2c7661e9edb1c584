"""Random histories that are right, and random ways to make them wrong: the proof that the checker can fail.

``generate`` plays clients against a model of a perfect cluster, in steps that interleave at random. Each corruption
changes one thing in the events and says which anomalies may be reported for it.
``python -m tests.chaos.corrupt --count 10000`` tries many.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.checks_log import GAVE_UP
from tests.chaos.history import ACCEPT, COMPACTED, JOBS, REJECT, RELEASE, Event

KEYS = ("t/0", "t/1")
IN, OUT, QUEUE = "in/0", "out/0", f"{JOBS}/0"
GROUP, WORKERS = "readers", "workers"
STEP = 10


@dataclass(slots=True)
class Entry:
    """A record of the model's log, or a marker (value None). ``state``: open, committed, aborted."""

    value: str | None
    state: list[str]


@dataclass
class World:
    """The perfect cluster: logs, committed offsets, and the history that is written."""

    rng: random.Random
    events: list[Event] = field(default_factory=list)
    logs: dict[str, list[Entry]] = field(default_factory=lambda: {key: [] for key in (*KEYS, IN, OUT, QUEUE)})
    offsets: dict[tuple[str, str], int] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    """Of the queue: offsets that were accepted or rejected."""
    held: set[int] = field(default_factory=set)
    letters: list[int] = field(default_factory=list)
    now: int = 0
    number: int = 0

    def emit(self, **event: Any) -> None:
        """Write an event at the next moment."""
        self.now += STEP
        self.events.append({"t": self.now, **event})

    def fresh(self) -> int:
        """A number that was not used before."""
        self.number += 1
        return self.number

    def append(self, key: str, value: str | None, state: list[str]) -> int:
        """Append, return the offset."""
        self.logs[key].append(Entry(value, state))
        return len(self.logs[key]) - 1

    def stable(self, key: str) -> int:
        """The last stable offset."""
        log = self.logs[key]
        return next((offset for offset, entry in enumerate(log) if entry.state[0] == "open"), len(log))

    def read(self, key: str, start: int, iso: str, limit: int = 1 << 30) -> list[list[Any]]:
        """What a consumer is shown from ``start`` on."""
        end = self.stable(key) if iso == "rc" else len(self.logs[key])
        found: list[list[Any]] = [
            [offset, entry.value]
            for offset, entry in enumerate(self.logs[key][:end])
            if offset >= start and entry.value is not None and (iso == "ru" or entry.state[0] == "committed")
        ]
        return found[:limit]


def _producer(world: World, proc: str, keys: tuple[str, ...], rounds: int) -> Iterator[None]:
    """Idempotent sends, a few in flight; some end unknown, some fail."""
    for _ in range(rounds):
        flight = []
        for _ in range(world.rng.randint(1, 4)):
            name = {"f": "send", "p": proc, "n": world.fresh()}
            key, value = world.rng.choice(keys), f"{proc}.{name['n']}"
            world.emit(e="invoke", k=key, v=value, **name)
            flight.append((name, key, value))
            yield
        for name, key, value in flight:
            fate = world.rng.random()
            offset = world.append(key, value, ["committed"]) if fate < 0.95 else -1
            yield
            if fate < 0.85:
                world.emit(e="ok", o=offset, **name)
            elif fate < 0.97:
                world.emit(e="info", error="timed out", **name)
            else:
                continue


def _failing(world: World, proc: str) -> Iterator[None]:
    """Sends that are refused for certain."""
    for _ in range(2):
        name = {"f": "send", "p": proc, "n": world.fresh()}
        world.emit(e="invoke", k=KEYS[0], v=f"{proc}.{name['n']}", **name)
        yield
        world.emit(e="fail", error="refused", **name)


def _transactions(world: World, proc: str, rounds: int) -> Iterator[None]:
    """Sends to several keys and polls in between; commits, aborts, unknown ends."""
    world.emit(e="start", p=proc, iso="rc")
    positions = dict.fromkeys(KEYS, 0)
    for _ in range(rounds):
        name = {"f": "txn", "p": proc, "n": world.fresh()}
        world.emit(e="invoke", **name)
        state, touched = ["open"], []
        before = dict(positions)
        for step in range(world.rng.randint(2, 5)):
            yield
            key = KEYS[step] if step < 2 else world.rng.choice(KEYS)
            if step > 1 and world.rng.random() < 0.4:
                found = world.read(key, positions[key], "rc", 5)
                if found:
                    positions[key] = found[-1][0] + 1
                    world.emit(e="poll", t0=world.now, r={key: found}, **name)
            else:
                value = f"{proc}.{name['n']}.{step}"
                world.emit(e="send", k=key, v=value, **name)
                offset = world.append(key, value, state)
                touched.append(key)
                yield
                world.emit(e="sent", k=key, v=value, o=offset, **name)
        yield
        fate = world.rng.random()
        state[0] = "committed" if fate < 0.7 else "aborted"
        if fate < 0.75:
            world.emit(e="committing", **name)
        for key in sorted(set(touched)):
            world.append(key, None, ["marker"])
        yield
        end = "info" if 0.6 < fate < 0.75 else "ok" if fate < 0.7 else "fail"
        world.emit(e=end, error="" if end == "ok" else "so it goes", **name)
        if end != "ok":
            positions = before
            world.emit(e="ok", f="position", p=proc, t0=world.now, r=dict(positions))


def _sink(world: World, proc: str, rounds: int) -> Iterator[None]:
    """Batches of one sink; a driver that begins learns the fence, and a batch that failed is tried again."""
    fence = -1
    for _ in range(rounds):
        start = world.now
        yield
        world.emit(e="ok", f="fence", p=proc, t0=start, sink=proc, id=fence)
        name = {"f": "txn", "p": proc, "n": world.fresh()}
        world.emit(e="invoke", batch=[proc, fence + 1], **name)
        state = ["open"]
        for row in range(world.rng.randint(1, 3)):
            yield
            key, value = world.rng.choice(KEYS), f"{proc}.{name['n']}.{row}"
            world.emit(e="send", k=key, v=value, **name)
            world.append(key, value, state)
        yield
        fate = world.rng.random()
        state[0] = "committed" if fate < 0.7 else "aborted"
        if fate < 0.8:
            world.emit(e="committing", **name)
        fence += state[0] == "committed"
        yield
        end = "info" if 0.5 < fate < 0.8 else "ok" if fate < 0.7 else "fail"
        world.emit(e=end, error="" if end == "ok" else "so it goes", **name)


def _workers(world: World, proc: str, rounds: int) -> Iterator[None]:
    """Read-process-write, one input at a time; a failed one is tried again."""
    world.emit(e="start", p=proc, iso="rc", group=WORKERS)
    world.emit(e="ok", f="position", p=proc, t0=world.now, r={IN: None})
    while rounds:
        yield
        start = world.offsets.get((WORKERS, IN), 0)
        found = world.read(IN, start, "rc", 1)
        if not found:
            rounds -= 1
            continue
        (offset, value), rounds = found[0], rounds - 1
        name = {"f": "txn", "p": proc, "n": world.fresh()}
        world.emit(e="invoke", **name)
        world.emit(e="poll", t0=world.now, r={IN: found}, **name)
        state, out = ["open"], f"{value}>{name['n']}"
        world.emit(e="send", k=OUT, v=out, s=[IN, offset], **name)
        place = world.append(OUT, out, state)
        yield
        world.emit(e="sent", k=OUT, v=out, o=place, **name)
        world.emit(e="offsets", g=WORKERS, o={IN: offset + 1}, **name)
        yield
        fate = world.rng.random()
        state[0] = "committed" if fate < 0.8 else "aborted"
        if fate < 0.85:
            world.emit(e="committing", **name)
        world.append(OUT, None, ["marker"])
        if state[0] == "committed":
            world.offsets[WORKERS, IN] = offset + 1
        yield
        end = "info" if 0.7 < fate < 0.85 else "ok" if fate < 0.8 else "fail"
        world.emit(e=end, error="" if end == "ok" else "so it goes", **name)
        if end != "ok":
            world.emit(e="ok", f="position", p=proc, t0=world.now, r={IN: world.offsets.get((WORKERS, IN), 0)})


def _reader(world: World, proc: str, iso: str, rounds: int) -> Iterator[None]:
    """Reads all keys from the beginning."""
    world.emit(e="start", p=proc, iso=iso)
    positions = dict.fromkeys((*KEYS, OUT), 0)
    world.emit(e="ok", f="position", p=proc, t0=world.now, r=dict(positions))
    for _ in range(rounds):
        start = world.now
        yield
        key = world.rng.choice((*KEYS, OUT))
        found = world.read(key, positions[key], iso, world.rng.randint(1, 12))
        if found:
            positions[key] = found[-1][0] + 1
            world.emit(e="ok", f="poll", p=proc, t0=start, r={key: found})


def _members(world: World, rounds: int) -> Iterator[None]:
    """A group whose partition goes from member to member; each commits now and then."""
    key = KEYS[0]
    for member in ("m1", "m2", "m3"):
        world.emit(e="start", p=member, iso="rc", group=GROUP)
    for turn in range(rounds):
        member = f"m{turn % 3 + 1}"
        world.emit(e="ok", f="position", p=member, t0=world.now, r={key: None})
        at = world.offsets.get((GROUP, key), 0)
        for _ in range(world.rng.randint(1, 4)):
            yield
            found = world.read(key, at, "rc", world.rng.randint(1, 6))
            if not found:
                continue
            at = found[-1][0] + 1
            world.emit(e="ok", f="poll", p=member, t0=world.now, r={key: found})
            if world.rng.random() < 0.6:
                name = {"f": "commit", "p": member, "n": world.fresh()}
                world.emit(e="invoke", g=GROUP, o={key: at}, **name)
                fate = world.rng.random()
                if fate < 0.9:
                    world.offsets[GROUP, key] = at
                yield
                world.emit(e="ok" if fate < 0.8 else "info", **name)


def _asker(world: World, rounds: int) -> Iterator[None]:
    """ListOffsets and OffsetFetch."""
    for _ in range(rounds):
        start = world.now
        yield
        iso = world.rng.choice(("rc", "ru"))
        ends = {key: world.stable(key) if iso == "rc" else len(world.logs[key]) for key in KEYS}
        world.emit(e="ok", f="ends", p="asker", t0=start, iso=iso, o=ends)
        for group, key in ((GROUP, KEYS[0]), (WORKERS, IN)):
            world.emit(
                e="ok", f="committed", p="asker", t0=world.now, g=group, o={key: world.offsets.get((group, key), -1)}
            )


def _jobs(world: World, rounds: int) -> Iterator[None]:
    """Records of few keys for the share group."""
    for _ in range(rounds):
        name = {"f": "send", "p": "j1", "n": world.fresh()}
        value = f"j1.{name['n']}@k{world.rng.randrange(3)}"
        world.emit(e="invoke", k=QUEUE, v=value, **name)
        yield
        world.emit(e="ok", o=world.append(QUEUE, value, ["committed"]), **name)


def _free(world: World) -> list[int]:
    """Offsets of the queue that may be given out: the first of each key that is not finished."""
    first: dict[str, int] = {}
    for offset, entry in enumerate(world.logs[QUEUE]):
        if offset not in world.finished:
            first.setdefault((entry.value or "").rpartition("@")[2], offset)
    return sorted(set(first.values()) - world.held)


def _sharer(world: World, proc: str, rounds: int) -> Iterator[None]:
    """A member of the share group; with ``rounds`` 0 the last one, which accepts all that is left."""
    left = rounds
    while left or (not rounds and _free(world)):
        left = max(0, left - 1)
        asked = world.now
        yield
        mine = _free(world)[: world.rng.randint(1, 3)]
        if not mine:
            continue
        name = {"p": proc, "n": world.fresh()}
        world.held |= set(mine)
        records = {QUEUE: [[offset, world.logs[QUEUE][offset].value] for offset in mine]}
        world.emit(e="ok", f="given", t0=asked, r=records, **name)
        yield
        end = world.rng.choices((ACCEPT, RELEASE, REJECT), (5, 2, 4))[0] if rounds else ACCEPT
        world.emit(e="invoke", f="say", o={QUEUE: {str(offset): end for offset in mine}}, **name)
        yield
        fate = world.rng.random() if rounds else 0.0
        if fate < 0.9 and end != RELEASE:
            world.finished |= set(mine)
            world.letters += mine if end == REJECT else ()
        world.held -= set(mine)
        if fate < 0.8:
            world.emit(e="ok", f="say", o={QUEUE: mine}, **name)
        elif fate < 0.95:
            world.emit(e="info", f="say", error="timed out", **name)


def generate(rng: random.Random) -> list[Event]:
    """A history without an anomaly; it ends with full reads."""
    world = World(rng)
    clients = [
        _producer(world, "w1", KEYS, 6), _producer(world, "w2", KEYS, 6), _producer(world, "w3", (IN,), 6),
        _failing(world, "bad"), _transactions(world, "x1", 7), _transactions(world, "x2", 7),
        _sink(world, "s1", 8),
        _workers(world, "k1", 30), _reader(world, "rc1", "rc", 25), _reader(world, "rc2", "rc", 25),
        _reader(world, "ru1", "ru", 25), _members(world, 12), _asker(world, 15), _jobs(world, 15),
        _sharer(world, "q1", 12), _sharer(world, "q2", 12),
    ]  # fmt: skip
    while clients:
        client = rng.choice(clients)
        if next(client, StopIteration) is StopIteration:
            clients.remove(client)
    for _ in _sharer(world, "q3", 0):
        pass
    world.emit(e="ok", f="letters", p="q3", t0=world.now, r=[[QUEUE, offset, "rejected"] for offset in world.letters])
    for group, key in ((GROUP, KEYS[0]), (WORKERS, IN)):
        last = world.offsets.get((group, key), -1)
        world.emit(e="ok", f="committed", p="last", t0=world.now, g=group, o={key: last}, final=True)
    for iso in ("rc", "ru"):
        end = {key: len(log) for key, log in world.logs.items()}
        whole = {key: world.read(key, 0, iso) for key in world.logs}
        world.emit(e="ok", f="final", p=f"final-{iso}", t0=world.now, iso=iso, r=whole, end=end)
    return world.events


# ---- corruptions ---------------------------------------------------------------------------------------------------

Corruption = Callable[[random.Random, list[Event]], set[str] | None]
CORRUPTIONS: dict[str, Corruption] = {}


def corruption(change: Corruption) -> Corruption:
    """Register one. It changes the events in place and returns what may be reported; None when it finds no place."""
    CORRUPTIONS[change.__name__] = change
    return change


def _readings(events: list[Event]) -> Iterator[tuple[Event, str, list[list[Any]]]]:
    for event in events:
        if "r" in event and (event.get("f") in ("poll", "final") or event.get("e") == "poll"):
            for key, records in event["r"].items():
                yield event, key, records


def _final(events: list[Event], iso: str) -> Event:
    return next(event for event in reversed(events) if event.get("f") == "final" and event["iso"] == iso)


def _pick(rng: random.Random, found: Any) -> Any:
    found = list(found)
    return rng.choice(found) if found else None


def _ops(events: list[Event], kind: str, outcome: str) -> list[list[Event]]:
    """The events of each operation of a kind that ended so."""
    grouped: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        if event.get("f") == kind:
            grouped.setdefault((event["p"], event["n"]), []).append(event)
    return [op for op in grouped.values() if op[-1]["e"] == outcome]


def _sends(op: list[Event]) -> list[tuple[str, str]]:
    return [
        (event["k"], event["v"]) for event in op if event["e"] == "send" or (event["e"] == "invoke" and "k" in event)
    ]


def _forget(events: list[Event], key: str, value: str) -> int:
    """This value was never read."""
    count = 0
    for _, where, records in _readings(events):
        if where == key:
            before = len(records)
            records[:] = [record for record in records if record[1] != value]
            count += before - len(records)
    return count


def _shown(events: list[Event]) -> set[tuple[str, str]]:
    return {(key, value) for key, records in _final(events, "rc")["r"].items() for _, value in records}


def _lasting(events: list[Event]) -> set[tuple[str, str]]:
    """The values of the final read that no DeleteRecords and no later record of the same key may take away."""
    asked: dict[str, int] = {}
    for event in events:
        if event.get("f") == "trim":
            for key, offset in event["o"].items():
                asked[key] = max(offset, asked.get(key, 0))
    lasting = set()
    for key, records in _final(events, "rc")["r"].items():
        compacted = key.startswith(f"{COMPACTED}/")
        last = {value.rpartition("@")[2] if compacted else offset: (offset, value) for offset, value in records}
        lasting |= {(key, value) for offset, value in last.values() if offset >= asked.get(key, 0)}
    return lasting


@corruption
def values_swapped_in_a_poll(rng: random.Random, events: list[Event]) -> set[str] | None:
    """Two records change places under their offsets."""
    found = _pick(rng, ((e, k, r) for e, k, r in _readings(events) if len(r) > 1 and e.get("f") == "poll"))
    if found is None:
        return None
    records = found[2]
    one, two = rng.sample(range(len(records)), 2)
    records[one][1], records[two][1] = records[two][1], records[one][1]
    return {"inconsistent-offsets"}


@corruption
def a_refusal_without_cause(rng: random.Random, events: list[Event]) -> set[str] | None:
    """What did not succeed has another reason."""
    end = _pick(rng, (event for event in events if event.get("e") in ("fail", "info") and "n" in event))
    if end is None:
        return None
    end["error"] = rng.choice(("Broker: Topic authorization failed", "GroupAuthorizationFailedError [Error 30] g"))
    return {"refused-without-cause"}


@corruption
def a_record_missing_inside_a_poll(rng: random.Random, events: list[Event]) -> set[str] | None:
    """One reader is not shown one record."""
    found = _pick(rng, (r for e, _, r in _readings(events) if len(r) > 2 and e.get("f") == "poll"))
    if found is None:
        return None
    del found[rng.randrange(1, len(found) - 1)]
    return {"skip-poll"}


@corruption
def a_poll_missing(rng: random.Random, events: list[Event]) -> set[str] | None:
    """A reader jumps over what one poll should have returned."""
    polls = [e for e in events if e.get("f") == "poll" and e["p"] in ("rc1", "rc2")]
    last = {(e["p"], key): e for e in polls for key in e["r"]}
    found = _pick(rng, (e for e in polls if all(last[e["p"], key] is not e for key in e["r"])))
    if found is None:
        return None
    events.remove(found)
    return {"skip-poll"}


@corruption
def a_poll_twice(rng: random.Random, events: list[Event]) -> set[str] | None:
    """A reader is shown the same again."""
    place = _pick(rng, (i for i, e in enumerate(events) if e.get("f") == "poll" and e["p"] in ("rc1", "ru1")))
    if place is None:
        return None
    events.insert(place + 1, copy.deepcopy(events[place]))
    return {"nonmonotonic-poll"}


@corruption
def an_acknowledged_value_lost(rng: random.Random, events: list[Event]) -> set[str] | None:
    """It is never read, and it is none that may be gone."""
    lasting = _lasting(events)
    op = _pick(rng, (op for op in _ops(events, "send", "ok") if _sends(op)[0] in lasting))
    if op is None:
        return None
    _forget(events, *_sends(op)[0])
    return {"lost-write", "unseen"}


@corruption
def a_value_gone_at_the_end(rng: random.Random, events: list[Event]) -> set[str] | None:
    """It was read, the final reads miss it."""
    finals = (_final(events, "rc")["r"], _final(events, "ru")["r"])
    found = _pick(rng, ((k, v) for e, k, r in _readings(events) if e.get("f") == "poll" for _, v in r))
    if found is None:
        return None
    for final in finals:
        final[found[0]] = [record for record in final[found[0]] if record[1] != found[1]]
    return {"vanished-read"}


@corruption
def a_value_at_two_offsets(rng: random.Random, events: list[Event]) -> set[str] | None:
    """A retry was appended again, of a producer that never repeats anything itself."""
    gave_up = {event["p"] for event in events if event.get("error") == GAVE_UP}
    repeated = {
        (event["k"], event["v"])
        for event in events
        if "v" in event and "k" in event and (event["p"] in gave_up or not event.get("idem", True))
    }
    key, value = _pick(rng, sorted(_shown(events) - repeated))
    for iso in ("rc", "ru"):
        final = _final(events, iso)
        final["r"][key].append([final["end"][key], value])
        final["end"][key] += 1
    return {"duplicate"}


@corruption
def a_value_out_of_nowhere(rng: random.Random, events: list[Event]) -> set[str] | None:
    """Bytes that no client wrote."""
    records = _pick(rng, (r for _, _, r in _readings(events) if r))
    rng.choice(records)[1] = "ghost"
    return {"phantom"}


@corruption
def committed_called_aborted(rng: random.Random, events: list[Event]) -> set[str] | None:
    """A transaction that failed for certain is shown."""
    shown = _shown(events)
    op = _pick(rng, (op for op in _ops(events, "txn", "ok") if any(send in shown for send in _sends(op))))
    if op is None:
        return None
    op[-1]["e"] = "fail"
    return {"aborted-read"}


@corruption
def aborted_called_committed(rng: random.Random, events: list[Event]) -> set[str] | None:
    """A transaction that was acknowledged is not shown."""
    op = _pick(rng, (op for op in _ops(events, "txn", "fail") if _sends(op)))
    if op is None:
        return None
    op[-1]["e"] = "ok"
    place = events.index(op[-1])
    events.insert(place, op[-1] | {"e": "committing"})
    return {"lost-write", "unseen", "skip-poll"}


@corruption
def an_aborted_value_shown(rng: random.Random, events: list[Event]) -> set[str] | None:
    """read_committed is shown an aborted record at its place."""
    sent = _pick(rng, ((e["k"], e["o"], e["v"]) for op in _ops(events, "txn", "fail") for e in op if e["e"] == "sent"))
    if sent is None:
        return None
    key, offset, value = sent
    records = _final(events, "rc")["r"][key]
    records.append([offset, value])
    records.sort()
    return {"aborted-read"}


@corruption
def a_transaction_split(rng: random.Random, events: list[Event]) -> set[str] | None:
    """One partition of a transaction shows nothing of it."""
    shown, choice = _shown(events), []
    for op in _ops(events, "txn", "ok") + _ops(events, "txn", "info"):
        keys = {key for key, value in _sends(op) if (key, value) in shown}
        if len(keys) > 1:
            choice.append((op, sorted(keys)))
    found = _pick(rng, choice)
    if found is None:
        return None
    key = rng.choice(found[1])
    for where, value in _sends(found[0]):
        if where == key:
            _forget(events, where, value)
    return {"torn-transaction"}


@corruption
def acknowledged_at_a_wrong_offset(rng: random.Random, events: list[Event]) -> set[str] | None:
    """The broker answers another record's offset."""
    taken = {(key, offset): value for key, records in _final(events, "ru")["r"].items() for offset, value in records}
    op = _pick(rng, _ops(events, "send", "ok"))
    if op is None:
        return None
    key, value = _sends(op)[0]
    other = _pick(rng, (o for (k, o), v in taken.items() if k == key and v != value))
    if other is None:
        return None
    op[-1]["o"] = other
    return {"inconsistent-offsets"}


@corruption
def two_sends_change_places(rng: random.Random, events: list[Event]) -> set[str] | None:
    """The log has them in the wrong order, and all readers agree."""
    by_producer: dict[tuple[str, str], list[list[Event]]] = {}
    for op in _ops(events, "send", "ok"):
        by_producer.setdefault((op[0]["p"], op[0]["k"]), []).append(op)
    ops = _pick(rng, (ops for ops in by_producer.values() if len(ops) > 1))
    if ops is None:
        return None
    one, two = rng.sample(ops, 2)
    swap = {one[0]["v"]: two[0]["v"], two[0]["v"]: one[0]["v"]}
    one[-1]["o"], two[-1]["o"] = two[-1]["o"], one[-1]["o"]
    for _, key, records in _readings(events):
        if key == one[0]["k"]:
            records[:] = [[offset, swap.get(value, value)] for offset, value in records]
    return {"nonmonotonic-send"}


@corruption
def a_transaction_reads_itself(rng: random.Random, events: list[Event]) -> set[str] | None:
    """It polls its own record before it commits."""
    sent = _pick(rng, (e for op in _ops(events, "txn", "ok") for e in op if e["e"] == "sent"))
    if sent is None:
        return None
    place = events.index(sent)
    own = {name: sent[name] for name in ("f", "p", "n", "t")}
    events.insert(place + 1, {"e": "poll", "t0": sent["t"], "r": {sent["k"]: [[sent["o"], sent["v"]]]}, **own})
    return {"precommitted-read"}


@corruption
def the_end_of_a_log_goes_back(rng: random.Random, events: list[Event]) -> set[str] | None:
    """A new leader answers ListOffsets too early."""
    answers = [e for e in events if e.get("f") == "ends"]
    seen: dict[tuple[str, str], int] = {}
    choice = []
    for event in answers:
        for key, offset in event["o"].items():
            if seen.get((event["iso"], key), 0) > 0:
                choice.append((event, key, seen[event["iso"], key]))
            seen[event["iso"], key] = offset
    found = _pick(rng, choice)
    if found is None:
        return None
    event, key, before = found
    event["o"][key] = before - 1
    event["t0"] = event["t"] - 1
    return {"log-end-back"}


@corruption
def a_committed_offset_goes_back(rng: random.Random, events: list[Event]) -> set[str] | None:
    """A cut-off coordinator answers."""
    seen: dict[tuple[str, str], int] = {}
    choice = []
    for event in events:
        if event.get("f") == "committed":
            for key, offset in event["o"].items():
                if seen.get((event["g"], key), -1) >= 0:
                    choice.append((event, key, seen[event["g"], key]))
                seen[event["g"], key] = offset
    found = _pick(rng, choice)
    if found is None:
        return None
    event, key, before = found
    event["o"][key] = rng.randint(-1, before - 1)
    return {"stale-committed-offset", "committed-offset-back"}


@corruption
def a_member_resumes_too_late(rng: random.Random, events: list[Event]) -> set[str] | None:
    """It never sees the records between the committed offset and its start."""
    choice, fresh = [], set()
    stood: dict[str, int] = {}  # a member that keeps a partition may also go on where it was
    for event in events:
        if event.get("f") == "position" and event["p"].startswith("m"):
            fresh.add(event["p"])
        elif event.get("f") == "poll" and event["p"].startswith("m") and event["r"].get(KEYS[0]):
            records = event["r"][KEYS[0]]
            if event["p"] in fresh and len(records) > 1 and records[1][0] != stood.get(event["p"]):
                choice.append(event)
            fresh.discard(event["p"])
            stood[event["p"]] = records[-1][0] + 1
    event = _pick(rng, choice)
    if event is None:
        return None
    others = [e for e in events if e.get("f") == "commit" and e["e"] == "invoke" and e["t"] < event["t"]]
    tried = max((e["o"][KEYS[0]] for e in others), default=0)
    if event["r"][KEYS[0]][0][0] < tried:  # the offset of an unknown commit may have been meant
        return a_record_missing_inside_a_poll(rng, events)
    del event["r"][KEYS[0]][0]
    return {"skip-poll"}


@corruption
def an_input_processed_twice(rng: random.Random, events: list[Event]) -> set[str] | None:
    """A zombie's output is committed, too."""
    shown = _shown(events)
    sent = _pick(rng, (e for op in _ops(events, "txn", "ok") for e in op if e.get("s") and (e["k"], e["v"]) in shown))
    if sent is None:
        return None
    start = events.index(sent)
    name = {"f": "txn", "p": "zombie", "n": 1, "t": sent["t"]}
    events[start + 1 : start + 1] = [
        {"e": "invoke", **name},
        {"e": "send", "k": OUT, "v": "again", "s": sent["s"], **name},
    ]
    for iso in ("rc", "ru"):
        final = _final(events, iso)
        final["r"][OUT].append([final["end"][OUT], "again"])
        final["end"][OUT] += 1
    return {"processed-twice"}


@corruption
def an_input_never_processed(rng: random.Random, events: list[Event]) -> set[str] | None:
    """The group went over it, and there is no output."""
    shown = _shown(events)
    op = _pick(rng, (op for op in _ops(events, "txn", "ok") if op[0]["p"] == "k1" and set(_sends(op)) <= shown))
    if op is None:
        return None
    for key, value in _sends(op):
        _forget(events, key, value)
    for event in op:
        if event["e"] in ("send", "sent"):
            events.remove(event)
    return {"processed-never"}


@corruption
def offsets_of_a_visible_transaction_lost(rng: random.Random, events: list[Event]) -> set[str] | None:
    """The outputs are there, the group stands before them."""
    final = next(e for e in events if e.get("final") and e["g"] == WORKERS)
    if final["o"][IN] <= 0:
        return None
    final["o"][IN] = rng.randint(-1, final["o"][IN] - 1)
    return {"torn-transaction", "stale-committed-offset", "committed-offset-back"}


@corruption
def a_transaction_hangs(rng: random.Random, events: list[Event]) -> set[str] | None:
    """The last stable offset stays behind for ever."""
    end = _final(events, "rc")["end"]
    key = _pick(rng, (key for key, offset in end.items() if offset))
    end[key] -= 1
    return {"hanging-transaction"}


@corruption
def a_fence_goes_back(rng: random.Random, events: list[Event]) -> set[str] | None:
    """BeginBatch forgets the last batch."""
    fence = _pick(rng, (event for event in events if event.get("f") == "fence" and event["id"] >= 0))
    if fence is None:
        return None
    fence["id"] -= 1
    return {"fence-back", "batch-not-locked-out"}


@corruption
def a_foreign_batch_committed(rng: random.Random, events: list[Event]) -> set[str] | None:
    """Two attempts at one batch are shown."""
    ops = [op for op in _ops(events, "txn", "ok") if "batch" in op[0]]
    if len(ops) < 2:
        return None
    one, other = rng.sample(ops, 2)
    other[0]["batch"] = one[0]["batch"]
    return {"batch-twice"}


def _given(events: list[Event], *ends: str) -> Iterator[tuple[Event, Event, int, str]]:
    """Givings of a record that is given once and so ended: the event, that of the answer, offset and value."""
    givings = [event for event in events if event.get("f") == "given"]
    says = {(e["p"], e["n"], e["e"]): e for e in events if e.get("f") == "say"}
    counts: dict[int, int] = {}
    for event in givings:
        for offset, _ in event["r"].get(QUEUE, ()):
            counts[offset] = counts.get(offset, 0) + 1
    for event in givings:
        invoke, told = (says.get((event["p"], event["n"], kind)) for kind in ("invoke", "ok"))
        for offset, value in event["r"].get(QUEUE, ()) if invoke is not None and told is not None else ():
            if counts[offset] == 1 and invoke["o"][QUEUE][str(offset)] in ends:
                yield event, told, offset, value


def _give(events: list[Event], offset: int, value: str, t0: int) -> None:
    records = {QUEUE: [[offset, value]]}
    events.append({"e": "ok", "f": "given", "p": "late", "n": 1, "t0": t0, "t": t0 + 1, "r": records})


@corruption
def a_finished_job_is_given_again(rng: random.Random, events: list[Event]) -> set[str] | None:
    """The next leader does not know that it was finished."""
    found = _pick(rng, _given(events, ACCEPT, REJECT))
    if found is None:
        return None
    _give(events, *found[2:], found[1]["t"] + 1)
    return {"share-given-again"}


@corruption
def a_job_with_two_members(rng: random.Random, events: list[Event]) -> set[str] | None:
    """Two leaders give it out."""
    found = _pick(rng, _given(events, ACCEPT, REJECT, RELEASE))
    if found is None:
        return None
    _give(events, *found[2:], found[0]["t"] + 1)
    return {"share-two-at-once"}


@corruption
def a_job_overtakes_another_of_its_key(rng: random.Random, events: list[Event]) -> set[str] | None:
    """It was given out before the one before it."""
    every = list(_given(events, ACCEPT, REJECT, RELEASE))
    pairs = (
        (before, value)
        for before in every
        for _, _, offset, value in every
        if offset > before[2] and value.rpartition("@")[2] == before[3].rpartition("@")[2]
    )
    found = _pick(rng, pairs)
    if found is None:
        return None
    (event, *_), value = found
    offset = next(one for _, _, one, other in every if other == value)
    _give(events, offset, value, event["t0"] - 2)
    return {"share-order"}


@corruption
def a_dead_letter_is_lost(rng: random.Random, events: list[Event]) -> set[str] | None:
    """The state was committed without it."""
    found = _pick(rng, _given(events, REJECT))
    if found is None:
        return None
    letters = next(event for event in events if event.get("f") == "letters")
    letters["r"].remove([QUEUE, found[2], "rejected"])
    return {"dead-letter-missing"}


@corruption
def a_dead_letter_stands_twice(rng: random.Random, events: list[Event]) -> set[str] | None:
    """It was written again by the next leader."""
    letters = next(event for event in events if event.get("f") == "letters")
    letter = _pick(rng, letters["r"])
    if letter is None:
        return None
    letters["r"].append(letter)
    return {"dead-letter-twice"}


@corruption
def a_job_that_nobody_finished(rng: random.Random, events: list[Event]) -> set[str] | None:
    """The start went over it."""
    found = _pick(rng, _given(events, ACCEPT))
    if found is None:
        return None
    for event in events:
        if event.get("f") == "say" and (event["p"], event["n"]) == (found[0]["p"], found[0]["n"]):
            for key, offsets in event.get("o", {}).items():
                event["o"][key] = dict.fromkeys(offsets, RELEASE) if isinstance(offsets, dict) else offsets
    return {"share-skipped"}


def main() -> int:
    """Many random histories, each checked as it is and with one corruption."""
    from tests.chaos.checker import check_events
    from tests.chaos.checks_liveness import Demands

    arguments = argparse.ArgumentParser(description="try the checker on random histories")
    arguments.add_argument("--count", type=int, default=1000)
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    wrong = done = 0
    names = sorted(CORRUPTIONS)
    for number in range(options.count):
        rng = random.Random(f"{options.seed}-{number}")
        events = generate(rng)
        clean = check_events(events, Demands(final=True))
        if not clean.ok:
            wrong += 1
            print(f"{number}: false alarm\n{clean.render()}")
        name = names[number % len(names)]
        expected = CORRUPTIONS[name](rng, events)
        if expected is None:
            continue
        done += 1
        found = check_events(events, Demands(final=True)).kinds
        if not found & expected:
            wrong += 1
            print(f"{number}: {name} not seen, only {sorted(found)}")
    print(f"{options.count} histories, {done} corruptions, {wrong} wrong verdicts")
    return 1 if wrong or done < options.count * 0.9 else 0


if __name__ == "__main__":
    sys.exit(main())
