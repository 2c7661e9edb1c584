"""Batches with producer ids in the short way and in runs: logs, producers, indexes and snapshots end as in the general
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

from _native.batch import parse_header
from brokers.log import Log, LogSettings, Origin
from brokers.log.plain import unstamp
from brokers.log.producers import decode_snapshot
from tests.log.faulty import Fault, FaultyDisk
from tests.log.support import NOW, append, append_txn, batch, config, content, end_txn, files, open_log, produced
from wire.errors import ErrorCode

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
        guard = log.verification_guard(header.producer_id, header.producer_epoch, header.base_sequence)
    return append(log, sent.data, now_ms=now_ms, verification_guard=guard)


def together(log: Log, sent: list[Sent], now_ms: int) -> list[tuple]:
    """Offsets and errors, in runs as long as they get."""
    told = []
    while sent:
        batches = [bytearray(item.data) for item in sent]
        admitted = log.admit_run(batches, leader_epoch=0, now_ms=now_ms, transactional=True)
        taken = (len(admitted) + 1) // 2 if len(sent) % 3 == 0 else len(admitted)  # what another partition cuts off
        for dropped in batches[taken : len(admitted)]:
            unstamp(dropped)
        assert [bytes(data) for data in batches[taken:]] == [item.data for item in sent[taken:]]
        if taken:
            event(f"{min(3, sum(found[4] >= 0 for found in admitted[:taken]))} of producers in a run")
            assert log.append_run(batches[:taken], admitted[:taken], now_ms=now_ms) is None
            log.set_high_watermark(log.log_end_offset)
            told += [(ErrorCode.NONE, *found[:2]) for found in admitted[:taken]]
        else:
            info = one(log, sent[0], now_ms)
            told.append((info.error, info.first_offset, info.last_offset))
            taken = 1
        sent = sent[taken:]
    return told


def state(log: Log) -> tuple:
    """All that is known of producers, in order, and what follows from it."""
    producers = log.producers
    return (
        list(producers.entries.items()), list(producers.open.items()), producers.first_unstable_offset,
        producers.unreplicated, log.last_stable_offset, log.aborted_entries(), log.log_end_offset,
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
@settings(max_examples=150, deadline=None)
def test_producers_end_alike_in_every_way(transactional, first, topic, steps):
    with tempfile.TemporaryDirectory() as name:
        ways = ("runs", "short", "general")
        options = {"config": config(**topic), "settings": LogSettings(producer_expiration_ms=1000)}

        def opened(way: str, **more) -> Log:
            log = open_log(Path(name) / way / "events-0", now_ms=now_ms, **options, **more)
            if way == "general":
                log._append_plain = lambda *_, **__: None
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
                shape = [(info.error, info.first_offset, info.last_offset) for info in expected[0]]
                assert together(logs[0], sent, now_ms) == shape
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
                    log.roll(now_ms)
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
                whole = False  # a snapshot has one batch of each
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


def run(log: Log, *batches: bytes, now_ms: int = NOW, transactional: bool = True):
    some = [bytearray(data) for data in batches]
    admitted = log.admit_run(some, leader_epoch=0, now_ms=now_ms, transactional=transactional)
    refused = log.append_run(some[: len(admitted)], admitted, now_ms=now_ms) if admitted else None
    log.set_high_watermark(log.log_end_offset)
    return [found[:2] for found in admitted], refused


def only_the_short_way(log: Log, monkeypatch) -> None:
    monkeypatch.setattr("brokers.log.log.check_for_leader", None)


def test_the_next_batches_of_a_known_producer_take_the_short_way(log, monkeypatch):
    append_txn(log, 2, 3, 0)
    only_the_short_way(log, monkeypatch)
    assert append(log, produced(1, 0, 1, 2)).last_offset == 3
    assert append(log, produced(2, 3, 1, txn=True)).last_offset == 4
    assert run(log, produced(1, 0, 3), produced(2, 3, 2, txn=True), produced(1, 0, 4)) == (
        [(5, 5), (6, 6), (7, 7)],
        None,
    )
    assert [entry.last_sequence for entry in log.producers.entries.values()] == [2, 4], "in the order of last use"
    assert log.last_stable_offset == 1
    for data in (produced(3, 0, 0), produced(1, 0, 4), produced(1, 0, 6), produced(1, 1, 0), produced(2, 3, 3)):
        with pytest.raises(TypeError):  # it went the general way
            append(log, data)


def test_seven_batches_of_a_run_are_remembered_as_one_by_one(log):
    offsets, _ = run(log, *[produced(1, 0, 1 + 2 * n, 2) for n in range(7)], now_ms=NOW + 9)
    entry = log.producers.entries[1]
    assert offsets[-1] == (13, 14)
    assert [meta[:3] for meta in entry.batches] == [(6 + 2 * n, 6 + 2 * n, 1) for n in range(5)]
    assert (entry.last_seen_ms, entry.timestamp, entry.txn_first_offset) == (NOW + 9, NOW + 1, -1)
    for n in range(2, 7):
        again = append(log, produced(1, 0, 1 + 2 * n, 2))
        assert (again.duplicate, again.first_offset) == (True, 1 + 2 * n)
    assert append(log, produced(1, 0, 3, 2)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_twice_in_a_run_is_answered_as_a_duplicate(log):
    assert run(log, produced(1, 0, 1), produced(1, 0, 1)) == ([(1, 1)], None)
    again = append(log, produced(1, 0, 1))
    assert (again.duplicate, again.first_offset, log.log_end_offset) == (True, 1, 2)


def test_a_segment_that_is_full_ends_the_run_and_its_snapshot_has_all_before(tmp_path):
    size = len(produced(1, 0, 0))
    log = open_log(tmp_path / "events-0", config=config(segment_bytes=4 * size))
    append(log, produced(1, 0, 0))
    sent = [produced(1, 0, n) for n in range(1, 7)]
    assert run(log, *sent)[0] == [], "they don't fit all"
    assert run(log, *sent[:3])[0] == [(1, 1), (2, 2), (3, 3)]
    assert append(log, sent[3]).first_offset == 4
    assert len(log.segments) == 2
    (entry,) = decode_snapshot((tmp_path / "events-0" / f"{4:020d}.snapshot").read_bytes())
    assert (entry.last_sequence, entry.last_offset) == (3, 3)
    assert run(log, *sent[4:])[0] == [(5, 5), (6, 6)]


@pytest.mark.parametrize("fault", [Fault("write", ".log", written=100, times=1), Fault("write", ".log", times=1)])
def test_what_is_not_written_leaves_producers_as_they_were(log, disk, fault):
    append_txn(log, 2, 0, 0)
    before = state(log), content(log)
    disk.faults.append(fault)
    _, refused = run(log, produced(1, 0, 1), produced(2, 0, 1, txn=True), produced(1, 0, 2))
    assert refused is not None
    assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert (state(log), content(log)) == before
    disk.faults.append(Fault("write", ".log", written=fault.written, times=1))
    assert append(log, produced(1, 0, 1)).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert (state(log), content(log)) == before
    assert run(log, produced(1, 0, 1), produced(2, 0, 1, txn=True), produced(1, 0, 2))[1] is None
    assert log.producers.entries[1].last_sequence == 2


def test_the_next_run_after_a_transactions_end_is_not_of_it(log):
    append_txn(log, 2, 0, 0)
    assert run(log, produced(2, 0, 1, txn=True))[0] == [(2, 2)]
    end_txn(log, 2, 0, commit=False)
    assert run(log, produced(2, 0, 2, txn=True))[0] == []
    assert append(log, produced(2, 0, 2, txn=True)).error is ErrorCode.INVALID_TXN_STATE
    assert append_txn(log, 2, 0, 2).error is ErrorCode.NONE
    assert run(log, produced(2, 0, 3, txn=True))[0] == [(5, 5)]
    assert run(log, produced(2, 0, 4, txn=True), transactional=False)[0] == []
    assert [(found.first_offset, found.last_offset) for found in log.aborted_entries()] == [(1, 3)]
    assert log.last_stable_offset == 4


def test_a_verified_batch_that_begins_a_transaction_takes_the_short_way(log, monkeypatch):
    assert append_txn(log, 1, 0, 1).error is ErrorCode.NONE
    end_txn(log, 1, 0, commit=True)
    guard = log.verification_guard(1, 0, 2)
    only_the_short_way(log, monkeypatch)
    began = append(log, produced(1, 0, 2, txn=True), verification_guard=guard)
    assert (began.error, began.first_offset) == (ErrorCode.NONE, 3)
    assert list(log.producers.open.items()) == [(1, 3)]
    assert log.last_stable_offset == 3
    assert not log.producers._verifications
    assert append(log, produced(1, 0, 3, txn=True)).first_offset == 4


@pytest.mark.parametrize("what", ["another guard", "a lower one is verified", "damaged", "new"])
def test_what_else_a_guard_came_with_goes_the_general_way(log, monkeypatch, what):
    data = produced(1, 0, 1, txn=True)
    guard = log.verification_guard(1, 0, 1)
    if what == "another guard":
        log.producers._verifications.clear()
        log.verification_guard(1, 0, 1)
    elif what == "a lower one is verified":
        log.verification_guard(1, 0, 0)
    elif what == "damaged":
        data = data[:40]
    else:
        data, guard = produced(9, 0, 0, txn=True), log.verification_guard(9, 0, 0)
    only_the_short_way(log, monkeypatch)
    with pytest.raises(TypeError):
        append(log, data, verification_guard=guard)


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_coordinators_records_end_alike_in_both_ways(tmp_path, policy, monkeypatch):
    """A compacted topic's clients are asked for keys, record by record; a coordinator's records have them."""
    changes = config(cleanup_policy=policy, index_interval_bytes=0)
    short, general = (open_log(tmp_path / way / "events-0", config=changes) for way in ("short", "general"))
    general._append_plain = lambda *_, **__: None
    for log in (short, general):
        append(log, batch(1), origin=Origin.COORDINATOR)
    told = [append(general, batch(2, key=b"%d" % i), origin=Origin.COORDINATOR, now_ms=NOW + i) for i in range(3)]
    if policy == "compact":
        assert append(short, batch(1, key=None)).error is ErrorCode.INVALID_RECORD
        with monkeypatch.context() as patched:
            only_the_short_way(short, patched)
            with pytest.raises(TypeError):
                append(short, batch(1))
    only_the_short_way(short, monkeypatch)
    for i, expected in enumerate(told):
        assert append(short, batch(2, key=b"%d" % i), origin=Origin.COORDINATOR, now_ms=NOW + i) == expected
    for log in (short, general):
        log.close()
    assert files(tmp_path / "short" / "events-0") == files(tmp_path / "general" / "events-0")


def test_a_coordinators_batches_with_producers_and_followers_go_the_general_way(log, monkeypatch):
    """Offsets of a transaction have no sequences, and what is replicated has its offsets already."""
    append_plain, taken = log._append_plain, []
    monkeypatch.setattr(log, "_append_plain", lambda *given, **how: taken.append(append_plain(*given, **how)))
    append(log, produced(1, 0, 1), origin=Origin.COORDINATOR)
    assert taken == [None]
    log.append_as_follower(bytes(produced(1, 0, 2, base_offset=2, leader_epoch=0)))
    assert taken == [None], "nobody asked"
    assert [meta.last_sequence for meta in log.producers.entries[1].batches] == list(itertools.islice(range(9), 3))
