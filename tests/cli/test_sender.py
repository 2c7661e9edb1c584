"""What ``fleetlog produce`` sends with, against brokers that lose answers, move leaders and take small batches only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleetlog._native.batch import BatchHeader, Record, decode_records, parse_header
from fleetlog._native.columns import partition_for_key
from fleetlog.brokers.cli import produce, sender
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.cli.sender import InputRecord, Sender
from fleetlog.wire.errors import ErrorCode


class Partitions:
    """The answers of brokers that check sequences as a log does. ``faults`` are those of the next batches."""

    def __init__(self, count: int = 1, max_bytes: int = 1_000_000) -> None:
        self.leaders = dict.fromkeys(range(count), 1)
        self.max_bytes = max_bytes
        self.logs: dict[int, list[Record]] = {partition: [] for partition in range(count)}
        self.sequences = dict.fromkeys(range(count), 0)
        self.faults: list[str] = []
        self.asked: list[int] = []

    def know(self, metadata: Any) -> None:
        pass

    def ask_any(self, request: Any) -> Any:
        if type(request).__name__ == "InitProducerIdRequest":
            return SimpleNamespace(error_code=0, producer_id=7, producer_epoch=0)
        rows = [SimpleNamespace(partition_index=p, leader_id=leader) for p, leader in self.leaders.items()]
        return SimpleNamespace(topics=[SimpleNamespace(error_code=0, partitions=rows)])

    def ask_all(self, requests: list[tuple[int, Any]], timeout_s: float) -> list[Any]:
        return [self._produce(leader, request) for leader, request in requests]

    def _produce(self, leader: int, request: Any) -> Any:
        self.asked.append(leader)
        answers, lost = [], False
        for row in request.topic_data[0].partition_data:
            fault = self.faults.pop(0) if self.faults else ""
            code, offset = self._append(leader, row.index, row.records, fault)
            lost |= fault == "lost"
            answers.append(SimpleNamespace(index=row.index, error_code=code, base_offset=offset, error_message=None))
        return None if lost else SimpleNamespace(responses=[SimpleNamespace(partition_responses=answers)])

    def _append(self, leader: int, partition: int, data: bytes, fault: str) -> tuple[int, int]:
        header: BatchHeader = parse_header(data)
        if fault.isupper():
            return ErrorCode[fault], -1
        if fault == "moved":
            self.leaders[partition] = 2
        if leader != self.leaders[partition]:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if len(data) > self.max_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if header.base_sequence < self.sequences[partition]:
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1
        assert header.base_sequence == self.sequences[partition]
        self.sequences[partition] += header.record_count
        log = self.logs[partition]
        log += decode_records(data[61:], header)
        return 0, len(log) - header.record_count

    def values(self, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.logs[partition]]


def sending(brokers: Partitions, timeout_s: float = 30.0) -> Sender:
    return Sender(cast(Any, brokers), "t", acks="all", codec="none", timeout_s=timeout_s)


def items(count: int, size: int = 1) -> list[InputRecord]:
    return [InputRecord(b"%d" % number * size) for number in range(count)]


def test_a_batch_whose_answer_is_lost_is_sent_again_and_stands_there_once() -> None:
    brokers = Partitions()
    brokers.faults = ["lost", "", "NOT_ENOUGH_REPLICAS", "moved"]
    sent = sending(brokers)
    sent.send(items(5))
    sent.send(items(3))
    assert brokers.values() == [item.value for item in items(5) + items(3)]
    assert (sent.written, sent.pending, sent.last) == (8, 0, {0: 7})
    assert brokers.asked == [1, 1, 1, 1, 2]


def test_batches_that_are_too_large_are_cut_in_order() -> None:
    brokers = Partitions(max_bytes=400)
    sent = sending(brokers)
    sent.send(items(100, 10))
    assert brokers.values() == [item.value for item in items(100, 10)]
    with pytest.raises(CliError, match=r"MESSAGE_TOO_LARGE\); 101 records were written before$"):
        sent.send([InputRecord(b"small"), InputRecord(b"x" * 500), InputRecord(b"never")])


def test_large_chunks_become_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "BATCH_BYTES", 1_000)
    brokers = Partitions(max_bytes=1_100)
    sending(brokers).send(
        [*items(200), InputRecord(b"v", b"k", (("name", b"h" * 900),)), InputRecord(b"y" * 1_010), InputRecord(b"z")]
    )
    assert len(brokers.asked) > 5
    assert brokers.values() == [*(item.value for item in items(200)), b"v", b"y" * 1_010, b"z"]
    assert brokers.logs[0][200].headers == (("name", b"h" * 900),)


def test_where_records_go() -> None:
    brokers = Partitions(3)
    sent = sending(brokers)
    sent.send([InputRecord(b"%d" % number, b"key %d" % (number % 5)) for number in range(50)])
    assert all(r.key and partition_for_key(r.key, 3) == p for p, log in brokers.logs.items() for r in log)
    before = {p: len(log) for p, log in brokers.logs.items()}
    sent.send(items(90))
    assert {len(log) - before[p] for p, log in brokers.logs.items()} == {30}
    sent.send([InputRecord(b"here", partition=2, timestamp_ms=5)])
    assert brokers.logs[2][-1][:4] == (brokers.logs[2][-1].offset, 5, None, b"here")
    with pytest.raises(CliError, match="partitions 0 to 2, not 3"):
        sent.send([InputRecord(b"nowhere", partition=3)])


def test_what_cannot_be_sent_is_said_with_what_was() -> None:
    brokers = Partitions()
    sent = sending(brokers)
    sent.send(items(2))
    brokers.faults = ["TOPIC_AUTHORIZATION_FAILED"]
    with pytest.raises(CliError, match=r"^topic t, partition 0: .*2 records were written before$"):
        sent.send(items(1))
    brokers = Partitions(3)
    sent = sending(brokers)
    brokers.faults = ["TOPIC_AUTHORIZATION_FAILED", "NOT_ENOUGH_REPLICAS", ""]
    with pytest.raises(CliError, match=r"3 records were written before, up to 3 more may be$"):
        sent.send(items(9))
    brokers = Partitions()
    brokers.faults = ["lost"] * 1_000
    sent = sending(brokers, 1.0)
    with pytest.raises(CliError, match=r"did not confirm in time; 0 records were written before, up to 4 more may be$"):
        sent.send(items(4))


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"a\nb\n"], [[b"a", b"b"]]),
        ([b"a\r\nb\r", b"\nc"], [[b"a"], [b"b"], [b"c"]]),
        ([b"a", b"b", b"c\n\n"], [[b"abc", b""]]),
        ([], []),
        ([b"a\r"], [[b"a\r"]]),
    ],
)
def test_pieces_become_lines(pieces: list[bytes], lines: list[list[bytes]]) -> None:
    assert list(produce.whole_lines(iter(pieces))) == lines
