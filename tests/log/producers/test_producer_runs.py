"""Batches with producer ids on the fast path and in runs: logs, producers, indexes and snapshots end as in the general
way, whatever comes between: duplicates, gaps, old epochs, transactions, their ends, segments, restarts, full disks.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from fleetlog._native.batch import parse_header
from fleetlog.brokers.log import AppendInfo, Log, LogSettings, Origin
from fleetlog.brokers.log.producers.snapshots import decode_snapshot
from fleetlog.wire.errors import ErrorCode
from tests.support.draw import examples
from tests.support.faulty import Fault, FaultyDisk
from tests.support.logs import (
    NOW,
    aborted_entries,
    append,
    append_together,
    append_txn,
    batch,
    config,
    content,
    end_txn,
    files,
    look_at_all,
    looked_at,
    open_log,
    produced,
)

LAST = 2**31 - 1


class Sent(NamedTuple):
    """A batch, and whether its transaction was verified."""

    data: bytes
    verified: bool


class Together(NamedTuple):
    """Batches that come at once."""

    batches: list[tuple[int, str, int]]


class Ends(NamedTuple):
    """A marker."""

    producer: int
    commit: bool
    bumped: bool


class Happens(NamedTuple):
    """What else there is between: a restart, a crash, time that passes."""

    what: str


KINDS = [
    "next",
    "next",
    "next",
    "next",
    "next",
    "again",
    "older",
    "gap",
    "stale",
    "bumped",
    "other",
    "verified",
    "verified",
    "verified",
    "verified",
    "plain",
]
STEPS = st.lists(
    st.builds(
        Together, st.lists(st.tuples(st.integers(0, 1), st.sampled_from(KINDS), st.integers(1, 3)), max_size=9)
    )
    | st.builds(Ends, st.integers(0, 1), st.booleans(), st.booleans())
    | st.builds(Happens, st.sampled_from(["restart", "crash", "later", "roll"])),
    max_size=9,
)  # fmt: skip
TOPICS = [{}, {}, {"segment_bytes": 900}, {"index_interval_bytes": 0}, {"flush_messages": 3}, {"segment_ms": 50}]


class Clients:
    """Two producers: what they send next."""

    def __init__(self, transactional: bool, first: int) -> None:
        self.transactional = transactional
        self.epochs = [0, 0]
        self.sequences = [first, first]
        self.sent: list[list[bytes]] = [[], []]

    def heard(self, log: Log) -> None:
        """What a client learns from its answers: where to go on."""
        for producer, epoch in enumerate(self.epochs):
            entry = log.producers.entries.get(producer)
            if entry is not None and entry.epoch == epoch:
                self.sequences[producer] = (entry.last_sequence + 1) & LAST

    def batch(self, producer: int, kind: str, count: int) -> Sent:
        """What a client of that kind sends; ``next`` of a transaction goes on in it, ``verified`` may begin one."""
        txn = self.transactional != (kind == "other")
        if kind == "plain":
            return Sent(batch(count), False)
        if kind in ("again", "older") and self.sent[producer]:
            return Sent(self.sent[producer][-1 if kind == "again" else -min(5, len(self.sent[producer]))], False)
        epoch, sequence = self.epochs[producer], self.sequences[producer]
        if kind == "stale":
            epoch -= 1
        elif kind == "gap":
            sequence = (sequence + 1) & LAST
        elif kind == "bumped":
            epoch = self.epochs[producer] = epoch + 1
            sequence = 0
        data = produced(producer, epoch, sequence, count, txn=txn)
        if kind not in ("stale", "gap"):
            self.sequences[producer] = (sequence + count) & LAST
            self.sent[producer].append(data)
        return Sent(data, kind in ("verified", "bumped"))


def one(log: Log, sent: Sent, now_ms: int):
    header = parse_header(sent.data)
    guard = None
    if sent.verified:
        guard = log.producers.verification_guard(header.producer_id, header.producer_epoch, header.base_sequence)
    return append(log, sent.data, now_ms=now_ms, verification_guard=guard)


def together(log: Log, sent: list[Sent], now_ms: int) -> list[AppendInfo]:
    """What becomes of batches that are appended together, as far as none of them is verified."""
    told: list[AppendInfo] = []
    while sent:
        some = [item.data for item in itertools.takewhile(lambda item: not item.verified, sent)]
        appender, closer = log.appender, looked_at(log)
        if some:
            told += append_together(log, some, now_ms=now_ms)
        else:
            told.append(one(log, sent[0], now_ms))
        event(f"{min(3, len(some) - len(closer))} together without a closer look")
        log.appender = appender
        sent = sent[max(1, len(some)) :]
    return told


def state(log: Log) -> tuple:
    """All that is known of producers, in order, and what follows from it."""
    producers = log.producers
    return (
        list(producers.entries.items()), list(producers.open.items()), producers.first_unstable_offset,
        producers.unreplicated, log.last_stable_offset, aborted_entries(log), log.log_end_offset,
        {name: decode_snapshot(data) for name, data in files(Path(log.directory)).items() if "snapshot" in name},
    )  # fmt: skip


def told_by_the_log(log: Log) -> dict:
    """The producers as a rebuild from the first byte finds them."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "events-0"
        copy.mkdir()
        for file, data in files(Path(log.directory)).items():
            if file.endswith(".log"):
                (copy / file).write_bytes(data)
        found = dict(open_log(copy, config=log.config).producers.entries)
    return {producer_id: entry._replace(last_seen_ms=0) for producer_id, entry in found.items()}


@given(st.booleans(), st.sampled_from([0, 0, LAST - 4]), st.sampled_from(TOPICS), STEPS)
@settings(max_examples=examples(150), deadline=None)
def test_producers_end_alike_in_every_way(transactional, first, topic, steps):
    with tempfile.TemporaryDirectory() as name:
        ways = ("runs", "short", "general")
        options = {"config": config(**topic), "settings": LogSettings(producer_expiration_ms=1000)}

        def opened(way: str, **more) -> Log:
            log = open_log(Path(name) / way / "events-0", now_ms=now_ms, **options, **more)
            if way == "general":
                look_at_all(log)
            return log

        now_ms, clients = NOW, Clients(transactional, first)
        for way in ways:
            (Path(name) / way / "events-0").mkdir(parents=True)
        logs = [opened(way) for way in ways]
        whole = True
        for step in steps:
            if isinstance(step, Together):
                clients.heard(logs[-1])
                sent = [clients.batch(*kind) for kind in step.batches]
                expected = [[one(log, item, now_ms) for item in sent] for log in logs[1:]]
                assert expected[0] == expected[1]
                assert together(logs[0], sent, now_ms) == expected[0]
            elif isinstance(step, Ends):
                epoch = clients.epochs[step.producer] = clients.epochs[step.producer] + step.bumped
                if step.bumped:
                    clients.sequences[step.producer] = 0
                assert len({end_txn(log, step.producer, epoch, commit=step.commit).error for log in logs}) == 1
            elif step.what == "later":
                now_ms += 400
                expired = {log.producers.expire(now_ms) for log in logs}
                assert len(expired) == 1
                whole = whole and expired == {0}
            elif step.what == "roll":
                for log in logs:
                    log.appender.roll(now_ms)
            else:
                clean = step.what == "restart"
                ends = [log.log_end_offset for log in logs]
                for log in logs:
                    if clean:
                        log.close()
                logs = [
                    opened(way, clean=clean, recovery_point=end if clean else 0, high_watermark=end)
                    for way, end in zip(ways, ends, strict=True)
                ]
            assert state(logs[0]) == state(logs[1]) == state(logs[2])
            if whole:
                rebuilt = {p: entry._replace(last_seen_ms=0) for p, entry in logs[0].producers.entries.items()}
                assert told_by_the_log(logs[0]) == rebuilt
        for log in logs:
            log.close()
        found = [files(Path(log.directory)) for log in logs]
        assert found[0] == found[1] == found[2]


# -- one by one ---------------------------------------------------------------------------------------------------


@pytest.fixture
def disk():
    return FaultyDisk()


@pytest.fixture
def log(tmp_path, disk):
    log = open_log(tmp_path / "events-0", disk=disk)
    append(log, produced(1, 0, 0))
    return log


def offsets(infos: list[AppendInfo]) -> list[tuple[int, int]]:
    assert {info.error for info in infos} <= {ErrorCode.NONE}
    return [info[:2] for info in infos]


def test_the_next_batches_of_a_known_producer_need_no_closer_look(log):
    append_txn(log, 2, 3, 0)
    closer = looked_at(log)
    assert append(log, produced(1, 0, 1, 2)).last_offset == 3
    assert append(log, produced(2, 3, 1, txn=True)).last_offset == 4
    sent = produced(1, 0, 3), produced(2, 3, 2, txn=True), produced(1, 0, 4)
    assert offsets(append_together(log, sent)) == [(5, 5), (6, 6), (7, 7)]
    assert [entry.last_sequence for entry in log.producers.entries.values()] == [2, 4], "in the order of last use"
    assert log.last_stable_offset == 1
    assert append(log, produced(3, 0, 0)).error is ErrorCode.NONE, "nor does the first one of another"
    assert not closer
    others = [produced(1, 0, 4), produced(1, 0, 6), produced(1, 1, 0), produced(2, 3, 3), produced(4, 0, 0, txn=True)]
    for data in others:
        append(log, data)
    assert closer == others


def test_the_first_batches_of_producers_are_appended_with_those_behind_them(log, disk):
    closer = looked_at(log)
    disk.calls.clear()
    sent = produced(7, 3, 41, 2), produced(7, 3, 43), batch(1), produced(8, 0, 0)
    assert offsets(append_together(log, sent)) == [(1, 2), (3, 3), (4, 4), (5, 5)]
    assert (len(closer), [operation for operation, _ in disk.calls]) == (0, ["write"])
    assert [(key, e.epoch, e.last_sequence) for key, e in log.producers.entries.items()][1:] == [(7, 3, 43), (8, 0, 0)]
    assert append(log, produced(7, 3, 41, 2)).duplicate


def test_a_first_batch_forgets_the_idlest_producer(tmp_path):
    logs = [
        open_log(tmp_path / way / "events-0", settings=LogSettings(max_producers=3)) for way in ("together", "closer")
    ]
    look_at_all(logs[1])
    for log in logs:
        append(log, produced(1, 0, 0))
        append_together(log, [produced(n, 0, 0) for n in range(2, 8)])
        assert [entry.producer_id for entry in log.producers.active()] == [5, 6, 7]


def test_seven_batches_of_a_run_are_remembered_as_one_by_one(log):
    closer = looked_at(log)
    found = append_together(log, [produced(1, 0, 1 + 2 * n, 2) for n in range(7)], now_ms=NOW + 9)
    assert not closer
    entry = log.producers.entries[1]
    assert offsets(found)[-1] == (13, 14)
    assert [meta[:3] for meta in entry.batches] == [(6 + 2 * n, 6 + 2 * n, 1) for n in range(5)]
    assert (entry.last_seen_ms, entry.timestamp, entry.txn_first_offset) == (NOW + 9, NOW + 1, -1)
    for n in range(2, 7):
        again = append(log, produced(1, 0, 1 + 2 * n, 2))
        assert (again.duplicate, again.first_offset) == (True, 1 + 2 * n)
    assert append(log, produced(1, 0, 3, 2)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_twice_in_a_run_is_answered_as_a_duplicate(log):
    first, again = append_together(log, [produced(1, 0, 1), produced(1, 0, 1)])
    assert (first.first_offset, first.duplicate) == (1, False)
    assert (again.duplicate, again.first_offset, log.log_end_offset) == (True, 1, 2)


def test_a_segment_that_is_full_rolls_within_a_run_and_its_snapshot_has_all_before(tmp_path, disk):
    size = len(produced(1, 0, 0))
    log = open_log(tmp_path / "events-0", disk=disk, config=config(segment_bytes=4 * size))
    append(log, produced(1, 0, 0))
    closer = looked_at(log)
    disk.calls.clear()
    assert offsets(append_together(log, [produced(1, 0, n) for n in range(1, 7)])) == [(n, n) for n in range(1, 7)]
    assert len(log.segments) == 2
    (entry,) = decode_snapshot((tmp_path / "events-0" / f"{4:020d}.snapshot").read_bytes())
    assert (entry.last_sequence, entry.last_offset) == (3, 3)
    assert closer == [produced(1, 0, 4)], "the first of a segment decides how long it lasts"
    assert [path[-8:] for operation, path in disk.calls if operation == "write"].count("0000.log") == 1
    assert [path[-8:] for operation, path in disk.calls if operation == "write"].count("0004.log") == 2


@pytest.mark.parametrize("fault", [Fault("write", ".log", written=100, times=1), Fault("write", ".log", times=1)])
def test_what_is_not_written_leaves_producers_as_they_were(log, disk, fault):
    append_txn(log, 2, 0, 0)
    before = state(log), content(log)
    sent = produced(1, 0, 1), produced(2, 0, 1, txn=True), produced(1, 0, 2)
    disk.faults.append(fault)
    assert {info.error for info in append_together(log, sent)} == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert (state(log), content(log)) == before
    disk.faults.append(Fault("write", ".log", written=fault.written, times=1))
    assert append(log, produced(1, 0, 1)).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert (state(log), content(log)) == before
    assert offsets(append_together(log, sent)) == [(2, 2), (3, 3), (4, 4)]
    assert log.producers.entries[1].last_sequence == 2


def test_the_next_run_after_a_transactions_end_is_not_of_it(log):
    append_txn(log, 2, 0, 0)
    assert offsets(append_together(log, [produced(2, 0, 1, txn=True)])) == [(2, 2)]
    end_txn(log, 2, 0, commit=False)
    late = append_together(log, [produced(2, 0, 2, txn=True), produced(2, 0, 3, txn=True)])
    assert [info.error for info in late] == [ErrorCode.INVALID_TXN_STATE] * 2
    assert append_together(log, [produced(2, 0, 2, txn=True)] * 2, guards=None, whole_request=True) == []
    assert append_txn(log, 2, 0, 2).error is ErrorCode.NONE
    assert offsets(append_together(log, [produced(2, 0, 3, txn=True)], guards=None)) == [(5, 5)]
    (unnamed,) = append_together(log, [produced(2, 0, 4, txn=True)], transactional=False, whole_request=True)
    assert unnamed.error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert [(found.first_offset, found.last_offset) for found in aborted_entries(log)] == [(1, 3)]
    assert log.last_stable_offset == 4


def test_a_run_stops_before_a_batch_whose_transaction_must_be_verified(log):
    append_txn(log, 2, 0, 0)
    sent = [produced(2, 0, 1, txn=True), produced(3, 0, 0, txn=True), produced(2, 0, 2, txn=True)]
    assert offsets(append_together(log, sent, guards=None, whole_request=True)) == [(2, 2)]
    guard = log.producers.verification_guard(3, 0, 0)
    assert offsets(append_together(log, sent[1:], guards={3: guard}, whole_request=True)) == [(3, 3), (4, 4)]


def test_a_verified_batch_that_begins_a_transaction_needs_no_closer_look(log):
    assert append_txn(log, 1, 0, 1).error is ErrorCode.NONE
    end_txn(log, 1, 0, commit=True)
    guard = log.producers.verification_guard(1, 0, 2)
    closer = looked_at(log)
    began = append(log, produced(1, 0, 2, txn=True), verification_guard=guard)
    assert (began.error, began.first_offset) == (ErrorCode.NONE, 3)
    assert list(log.producers.open.items()) == [(1, 3)]
    assert log.last_stable_offset == 3
    assert not log.producers.verifications
    assert append(log, produced(1, 0, 3, txn=True)).first_offset == 4
    assert not closer


@pytest.mark.parametrize("what", ["another guard", "a lower one is verified", "damaged", "new"])
def test_what_else_a_guard_came_with_is_looked_at(log, what):
    data = produced(1, 0, 1, txn=True)
    guard = log.producers.verification_guard(1, 0, 1)
    if what == "another guard":
        log.producers.verifications.clear()
        log.producers.verification_guard(1, 0, 1)
    elif what == "a lower one is verified":
        log.producers.verification_guard(1, 0, 0)
    elif what == "damaged":
        data = data[:40]
    else:
        data, guard = produced(9, 0, 0, txn=True), log.producers.verification_guard(9, 0, 0)
    closer = looked_at(log)
    append(log, data, verification_guard=guard)
    assert closer == [data]


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_coordinators_records_end_alike_in_both_ways(tmp_path, policy):
    """A compacted topic's clients are asked for keys, record by record; a coordinator's records have them."""
    changes = config(cleanup_policy=policy, index_interval_bytes=0)
    ready, closer = (open_log(tmp_path / way / "events-0", config=changes) for way in ("ready", "closer"))
    look_at_all(closer)
    for log in (ready, closer):
        append(log, batch(1), origin=Origin.COORDINATOR)
    told = [append(closer, batch(2, key=b"%d" % i), origin=Origin.COORDINATOR, now_ms=NOW + i) for i in range(3)]
    seen = looked_at(ready)
    if policy == "compact":
        assert append(ready, batch(1, key=None)).error is ErrorCode.INVALID_RECORD
        assert len(seen) == 1
        seen.clear()
    for i, expected in enumerate(told):
        assert append(ready, batch(2, key=b"%d" % i), origin=Origin.COORDINATOR, now_ms=NOW + i) == expected
    assert not seen
    for log in (ready, closer):
        log.close()
    assert files(tmp_path / "ready" / "events-0") == files(tmp_path / "closer" / "events-0")


def test_a_coordinators_batches_with_producers_are_looked_at(log):
    """Offsets of a transaction have no sequences, and what is replicated has its offsets already."""
    closer = looked_at(log)
    append(log, produced(1, 0, 1), origin=Origin.COORDINATOR)
    assert len(closer) == 1
    log.appender.append_as_follower(bytes(produced(1, 0, 2, base_offset=2, leader_epoch=0)))
    assert [meta.last_sequence for meta in log.producers.entries[1].batches] == list(itertools.islice(range(9), 3))
