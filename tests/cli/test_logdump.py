"""``fleetlog log dump`` over files made by the kernels and the log's own encoders."""

from __future__ import annotations

import json
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fleetlog._native.batch import Record, control_batch, encode_batch
from fleetlog.brokers.cli.logs import log
from fleetlog.brokers.groups import records as group_records
from fleetlog.brokers.log.disk import checkpoints
from fleetlog.brokers.model import id_text
from fleetlog.txn import records as transaction_records
from fleetlog.txn.states import TransactionState
from fleetlog.txn.transaction import Transaction
from fleetlog.wire.compression import compress
from fleetlog.wire.types import TopicPartition

NAME = "00000000000000000007"
TIME_MS = 1_700_000_000_000


def dump(*arguments: str | Path, code: int = 0) -> list[dict[str, Any]]:
    result = CliRunner().invoke(log, ["dump", "--json", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def batch(base: int, *values: bytes | None, key: bytes | None = b"k", **kw: Any) -> bytes:
    records = [Record(base + i, TIME_MS + i, key, value, (("h", b"1"),)) for i, value in enumerate(values)]
    return bytes(encode_batch(records, base_offset=base, leader_epoch=3, **kw))


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    directory = tmp_path / "t-0"
    directory.mkdir()
    path = directory / f"{NAME}.log"
    zstd = 4
    path.write_bytes(
        batch(7, b"a", b"b")
        + batch(9, b"\xff", attributes=zstd, compress=lambda raw: compress(zstd, raw))
        + batch(10, None, attributes=1 << 4, producer_id=5, producer_epoch=1, base_sequence=0)
        + bytes(
            control_batch(
                commit=True,
                producer_id=5,
                producer_epoch=1,
                coordinator_epoch=9,
                timestamp=TIME_MS,
                base_offset=11,
                leader_epoch=3,
            )
        )
    )
    return path


def test_batches_are_shown_with_their_headers(segment: Path) -> None:
    rows = dump(segment)
    assert [r["offsets"] for r in rows] == ["7..8", "9..9", "10..10", "11..11"]
    assert [r["codec"] for r in rows] == ["none", "zstd", "none", "none"]
    assert rows[0]["position"] == 0
    assert rows[1]["position"] == rows[0]["size"]
    assert sum(r["size"] for r in rows) == segment.stat().st_size
    assert (rows[2]["producer"], rows[2]["producer_epoch"], rows[2]["is"]) == (5, 1, ["transactional"])
    assert rows[3]["is"] == ["transactional", "control"]
    assert all(r["epoch"] == 3 for r in rows)


def test_records_are_shown_with_keys_values_and_markers(segment: Path) -> None:
    rows = [r for r in dump("--records", segment) if "record" in r]
    assert [r["offset"] for r in rows] == [7, 8, 9, 10, 11]
    assert [r.get("value") for r in rows] == ["a", "b", "\\xff", None, None]
    assert rows[0]["headers"] == {"h": "1"}
    assert (rows[4]["marker"], rows[4]["coordinator_epoch"]) == ("commit", 9)


def test_a_part_of_a_segment(segment: Path) -> None:
    assert [r["offsets"] for r in dump("--offset", "9", "-n", "2", segment)] == ["9..9", "10..10"]


def test_for_people(segment: Path) -> None:
    result = CliRunner().invoke(log, ["dump", "-r", str(segment)])
    assert result.exit_code == 0
    assert "offsets 7..8" in result.output
    assert "value a" in result.output


def test_a_flipped_bit_is_named_and_the_walk_continues(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[65] ^= 1
    segment.write_bytes(data)
    rows = dump("--records", segment)
    assert "damaged" in rows[0]
    assert [r["offset"] for r in rows if "record" in r] == [9, 10, 11]


@pytest.mark.parametrize("cut", [1, 30, 80])
def test_a_torn_tail_is_exit_code_1(segment: Path, cut: int) -> None:
    segment.write_bytes(segment.read_bytes()[:-cut])
    result = CliRunner().invoke(log, ["dump", str(segment)])
    assert result.exit_code == 1
    assert "10..10" in result.stdout or cut == 80
    assert "position" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_garbage_and_emptiness(tmp_path: Path) -> None:
    path = tmp_path / f"{NAME}.log"
    path.write_bytes(b"")
    assert dump(path) == []
    path.write_bytes(b"\x07" * 500)
    dump(path, code=1)
    path.write_bytes(b"\0" * 500)
    assert dump(path) == [{"file": str(path), "position": 0, "unused": 500}]


def internal(tmp_path: Path, topic: str, *pairs: tuple[bytes, bytes | None]) -> Path:
    directory = tmp_path / f"{topic}-0"
    directory.mkdir()
    records = [Record(i, TIME_MS, key, value, ()) for i, (key, value) in enumerate(pairs)]
    path = directory / f"{NAME}.log"
    path.write_bytes(bytes(encode_batch(records)))
    return path


def test_committed_offsets_and_groups_are_decoded(tmp_path: Path) -> None:
    partition = TopicPartition("t", 4)
    member = group_records.MemberRecord("m", None, "c", "/h", 1, 2, b"s", b"a")
    committed, topic_id = group_records.CommittedOffset(42, 3, "note", TIME_MS), uuid.UUID(int=7)
    path = internal(
        tmp_path,
        "__consumer_offsets",
        group_records.offset_record("g", partition, committed._replace(topic_id=topic_id.bytes)),
        group_records.group_record("g", group_records.GroupRecord("consumer", 5, "range", "m", TIME_MS, (member,))),
        group_records.offset_tombstone("g", partition),
        (b"\0\x63new", b"x"),
        (b"\0\1", b"x"),
        (b"\0\5\0\1g\0\1m", None),
    )
    rows = [r for r in dump("-r", path) if "record" in r]
    assert [r["offset"] for r in rows] == [0, 1, 2, 3, 4, 5]
    assert (rows[0]["group"], rows[0]["partition"], rows[0]["committed"], rows[0]["metadata"]) == (
        "g",
        "t:4",
        42,
        "note",
    )
    assert rows[0]["topic_id"] == id_text(topic_id)
    assert (rows[1]["generation"], rows[1]["members"][0]["member_id"]) == (5, "m")
    assert rows[2]["deleted"] is True
    assert rows[3]["key_version"] == 99
    assert "unreadable" in rows[4]
    assert (rows[5]["group"], rows[5]["kind"], rows[5]["name"], rows[5]["deleted"]) == ("g", "member", "m", True)
    plain = [r for r in dump("-r", "--decode", "none", path) if "record" in r]
    assert "group" not in plain[0]


def test_transaction_state_is_decoded(tmp_path: Path) -> None:
    state = Transaction(
        1000, 2, 60_000, TransactionState.ONGOING, frozenset({TopicPartition("t", 1)}), TIME_MS, TIME_MS
    )
    key = transaction_records.encode_transaction_key("tx")
    path = internal(
        tmp_path,
        "__transaction_state",
        (key, transaction_records.encode_transaction(state)),
        (key, None),
        (key, b"\0"),
        (b"", b""),
    )
    rows = [r for r in dump("-r", path) if "record" in r]
    assert (rows[0]["transactional_id"], rows[0]["state"], rows[0]["partitions"]) == ("tx", "ONGOING", ["t:1"])
    assert rows[1]["deleted"] is True
    assert "unreadable" in rows[2]
    assert "unreadable" in rows[3]


def test_indexes_are_shown_and_a_torn_one_is_an_error(tmp_path: Path) -> None:
    offsets = tmp_path / f"{NAME}.index"
    offsets.write_bytes(struct.pack(">iiii", 3, 100, 5, 200))
    assert [(r["offset"], r["position"]) for r in dump(offsets)] == [(10, 100), (12, 200)]
    times = tmp_path / f"{NAME}.timeindex"
    times.write_bytes(struct.pack(">qi", TIME_MS, 3) + bytes(120))
    assert [(r["timestamp"], r["offset"]) for r in dump(times)] == [(TIME_MS, 10)]
    aborted = tmp_path / f"{NAME}.txnindex"
    aborted.write_bytes(struct.pack(">hqqqq", 0, 5, 7, 9, 10))
    (row,) = dump(aborted)
    assert (row["producer"], row["first_offset"], row["last_offset"], row["last_stable_offset"]) == (5, 7, 9, 10)
    offsets.write_bytes(offsets.read_bytes()[:-1])
    assert len(dump(offsets, code=1)) == 1


def test_small_files_and_directories(tmp_path: Path, segment: Path) -> None:
    (tmp_path / checkpoints.RECOVERY_POINT_CHECKPOINT).write_bytes(
        checkpoints.encode_offsets({TopicPartition("t", 0): 12})
    )
    (tmp_path / checkpoints.META_PROPERTIES).write_bytes(checkpoints.encode_properties({"broker.id": "1"}))
    (tmp_path / "notes.txt").write_text("not ours")
    rows = dump(tmp_path)
    assert {(r.get("topic"), r.get("offset"), r.get("name"), r.get("value")) for r in rows} == {
        ("t", 12, None, None),
        (None, None, "broker.id", "1"),
    }
    epochs = segment.parent / checkpoints.LEADER_EPOCH_CHECKPOINT
    epochs.write_bytes(checkpoints.encode_epochs([checkpoints.EpochEntry(3, 7)]))
    assert [(r["epoch"], r["start_offset"]) for r in dump(epochs)] == [(3, 7)]
    epochs.write_bytes(b"nonsense")
    dump(epochs, code=1)
    assert "notes.txt" in CliRunner().invoke(log, ["dump", str(tmp_path / "notes.txt")]).output


def test_superseded_records_are_counted(tmp_path: Path) -> None:
    """Records that a later one supersedes; those of an aborted transaction neither count nor supersede."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    sole = batch(3, b"2", key=b"b", attributes=1 << 4, producer_id=5, producer_epoch=1, base_sequence=0)
    first = batch(0, b"a", b"b") + batch(2, b"1", key=b"b") + sole
    (directory / f"{0:020d}.log").write_bytes(first)
    zstd = 4
    second = batch(4, b"c", None, attributes=zstd, compress=lambda raw: compress(zstd, raw)) + batch(6, b"x", key=None)
    (directory / f"{4:020d}.log").write_bytes(second + bytes(100))
    (directory / f"{0:020d}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 5, 3, 4, 4))
    (tmp_path / checkpoints.CLEANER_CHECKPOINT).write_text("0\n1\nt 0 4\n")
    rows = [{k: v for k, v in row.items() if k != "directory"} for row in dump("--duplicates", directory)]
    assert rows == [
        {"segment": 0, "records": 4, "last_values": 1, "tombstones": 0, "superseded": 2, "aborted": 1,
         "without_key": 0, "compacted": True},
        {"segment": 4, "records": 3, "last_values": 0, "tombstones": 1, "superseded": 1, "aborted": 0,
         "without_key": 1, "compacted": False},
        {"all": 2, "records": 7, "last_values": 1, "tombstones": 1, "superseded": 3, "aborted": 1, "without_key": 1,
         "keys": 2, "clean_up_to": 4},
        {"key": "k", "records": 4, "last_offset": 5},
    ]  # fmt: skip
    result = CliRunner().invoke(log, ["dump", "--duplicates", str(tmp_path)])
    assert result.exit_code == 1
    assert "partition" in result.output
    (directory / f"{4:020d}.log").write_bytes(second[:70] + b"?" + second[71:])
    result = CliRunner().invoke(log, ["dump", "--duplicates", str(directory)])
    assert result.exit_code == 1
    assert "position 0" in result.output
