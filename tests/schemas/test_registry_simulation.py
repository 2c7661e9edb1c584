"""Histories of registries; and each rule left out, which some history must show."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fleetlog.brokers.cli.sender import InputRecord
from fleetlog.brokers.schemas import command
from fleetlog.brokers.schemas.command import SchemaStore
from fleetlog.brokers.schemas.registry import BARRIER, Record, RegistryState
from tests.schemas.registry_world import Packet, SimWriter, Topic, Violation, run

SEEDS = 40
PLANTED_SEEDS = 300
"""Within so many histories a planted fault is found; most are found in the first."""


def test_histories() -> None:
    for seed in range(SEEDS):
        run(seed)


def any_epoch(topic: Topic, packet: Packet) -> int | None:
    topic.epochs.clear()
    return append(topic, packet)


def no_barrier(writer: SimWriter, rows: list[InputRecord]) -> None:
    if json.loads(rows[0].key or b"null") == BARRIER[0]:
        writer.last = {0: -1}
    else:
        send(writer, rows)


def the_same_writer(topic: Topic) -> tuple[int, int]:
    return topic.producer


def every_tombstone(topic: Topic, read: int) -> None:
    compact(topic, topic.end)


def as_any_noop(state: RegistryState) -> Record:
    """With the key of barriers, the next of which takes its place."""
    return BARRIER[0], highest_ids(state)[1]


def by_the_last(state: RegistryState, context: str, number: int) -> None:
    """The highest id is that of what was read last."""
    state.__dict__["_highest"] = state.__dict__["_highest"].with_item(context, number)


append, compact, send, highest_ids = Topic.append, Topic.compact, SimWriter.send, RegistryState.highest_ids
PLANTED: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "the leader takes any epoch": (Topic, "append", any_epoch),
    "two writers have one epoch": (Topic, "claim", the_same_writer),
    "an answer does not wait until it is read": (SchemaStore, "_wait_read", lambda *_: None),
    "a writer does not read before it decides": (SimWriter, "send", no_barrier),
    "a spent producer id is not fenced": (SimWriter, "spent", lambda _: []),
    "what is deleted for good takes its id along": (RegistryState, "highest_ids", lambda _: BARRIER),
    "the highest ids have a barrier's key": (RegistryState, "highest_ids", as_any_noop),
    "an id is the next one of the last": (RegistryState, "_raise_highest", by_the_last),
    "tombstones go before all have read them": (Topic, "compact", every_tombstone),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, attribute, fault = PLANTED[name]
    monkeypatch.setattr(place, attribute, fault)
    for seed in range(PLANTED_SEEDS):
        try:
            run(seed)
        except Violation:
            return
    pytest.fail(f"{PLANTED_SEEDS} histories do not show that {name}")


def test_histories_have_something_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers are refused and take over, ids end and begin, and what a registry has to fence comes."""
    counted: dict[str, int] = dict.fromkeys(("claims", "refused", "fenced", "tombstones"), 0)

    def counting(topic: Topic, packet: Packet) -> int | None:
        last = append(topic, packet)
        counted["refused"] += last is None
        counted["fenced"] += packet.producer[1] == command.MAX_EPOCH
        counted["tombstones"] += sum(row.value is None and b"SCHEMA" in (row.key or b"") for row in packet.rows)
        counted["claims"] += json.loads(packet.rows[0].key or b"null") == BARRIER[0]
        return last

    monkeypatch.setattr(Topic, "append", counting)
    for seed in range(SEEDS):
        run(seed)
    assert min(counted.values()) > SEEDS / 10, counted
