"""``verify_partition``: a log that was written in order is whole, and any damage in any of its files is named."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from fleetlog._native.batch import scan
from fleetlog.brokers.log import Origin
from fleetlog.brokers.log.disk import checkpoints
from fleetlog.brokers.log.verify import Verified, verify_partition
from fleetlog.wire.types import TopicPartition
from tests.log.compaction.compacted import internal_log, put
from tests.support.logs import NOW, append, batch, config, marker, open_log, produced

SMALL = config(segment_bytes=1500, index_interval_bytes=100)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain, idempotent and transactional batches, with all codecs, over several segments and leader epochs."""
    path: Path = tmp_path_factory.mktemp("log") / "events-0"
    log = open_log(path, config=SMALL)
    for number in range(60):
        epoch = number // 20
        if number % 20 == 0:
            log.assign_epoch(epoch)
        append(log, batch(1 + number % 4, timestamp=NOW + number, codec=number % 5), epoch=epoch)
        if number % 3 == 0:
            assert append(log, produced(1, 0, number // 3 * 2, 2), epoch=epoch).error == 0
        if number % 7 == 0:
            guard = log.producers.verification_guard(100 + number, 0, 0)
            sent = produced(100 + number, 0, 0, 3, txn=True)
            assert append(log, sent, verification_guard=guard, epoch=epoch).error == 0
            end = marker(100 + number, 0, commit=number % 2 == 0)
            assert append(log, end, origin=Origin.COORDINATOR, epoch=epoch).error == 0
    log.close()
    return path


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    path = tmp_path / "events-0"
    shutil.copytree(written, path)
    return path


def _closed(path: Path, suffix: str) -> list[Path]:
    """Files that are not empty of the segments before the newest."""
    newest = max(path.glob("*.log")).stem
    return [file for file in sorted(path.glob("*" + suffix)) if file.stem < newest and file.stat().st_size]


def _only(found: Verified, file: Path) -> str:
    """What is wrong, all of it in that file."""
    assert found.problems
    assert {problem.file for problem in found.problems} == {str(file)}
    return found.problems[0].what


def test_a_log_that_was_closed_in_order_is_whole(written: Path) -> None:
    read: list[int] = []
    found = verify_partition(written, records=True, progress=read.append)
    assert (found.problems, found.more, found.unfinished) == ([], 0, 0)
    assert found.partition == TopicPartition("events", 0)
    assert found.segments == len(list(written.glob("*.log"))) > 4
    batches = [header for file in written.glob("*.log") for _, header in scan(file.read_bytes())]
    assert found.batches == len(batches)
    assert (found.start, found.end) == (0, max(header.last_offset for header in batches) + 1)
    assert found.size == sum(read) == sum(file.stat().st_size for file in written.glob("*.log"))


@pytest.mark.parametrize("seed", range(60))
def test_a_flipped_bit_of_a_closed_segment_is_found(copied: Path, seed: int) -> None:
    """Kafka's checksum leaves out the first 21 bytes of a batch; of these the leader epoch and offsets are compared."""
    rng = random.Random(seed)
    file = rng.choice(_closed(copied, ".log"))
    data = bytearray(file.read_bytes())
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    named = {Path(problem.file).name for problem in verify_partition(copied).problems}
    assert named & {file.name, checkpoints.LEADER_EPOCH_CHECKPOINT}


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_of_an_index_is_found(copied: Path, seed: int) -> None:
    rng = random.Random(seed)
    file = rng.choice(_closed(copied, rng.choice((".index", ".timeindex"))))
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    _only(verify_partition(copied), file)


def test_an_index_that_is_cut_within_an_entry(copied: Path) -> None:
    file = _closed(copied, ".index")[0]
    file.write_bytes(file.read_bytes()[:-3])
    assert "not a whole entry" in _only(verify_partition(copied), file)


@pytest.mark.parametrize("way", ["removed", "emptied", "shortened"])
def test_a_transaction_index_without_an_aborted_transaction(copied: Path, way: str) -> None:
    """Nothing else notices: consumers would be shown the records of that transaction."""
    file = _closed(copied, ".txnindex")[0]
    if way == "removed":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[34:] if way == "shortened" else b"")
    assert "lacks the transaction of producer" in _only(verify_partition(copied), file)


def test_a_missing_segment(copied: Path) -> None:
    gone = sorted(copied.glob("*.log"))[2]
    gone.unlink()
    found = verify_partition(copied)
    assert any(f"offsets {int(gone.stem)} to " in problem.what for problem in found.problems)


def test_a_batch_that_was_cut_out(copied: Path) -> None:
    file = _closed(copied, ".log")[1]
    data = file.read_bytes()
    (_, first), (at, second), *_ = scan(data)
    file.write_bytes(data[:at] + data[at + second.size :])
    missing = f"offsets {first.last_offset + 1} to {second.last_offset} are missing"
    assert any(missing in problem.what for problem in verify_partition(copied).problems)


def test_a_batch_that_stands_twice(copied: Path) -> None:
    file = max(copied.glob("*.log"))
    data = file.read_bytes()
    (_, first), *_ = scan(data)
    file.write_bytes(data[: first.size] + data)
    what = f"batch {first.base_offset} to {first.last_offset}, where offset {first.last_offset + 1} is next"
    assert any(what in problem.what for problem in verify_partition(copied).problems)


def test_half_a_batch_at_the_end_is_no_damage_of_the_newest_segment(copied: Path) -> None:
    file = max(copied.glob("*.log"))
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:65])
    found = verify_partition(copied)
    assert (found.problems, found.unfinished) == ([], 65)
    file.write_bytes(whole + bytes(5000))
    found = verify_partition(copied)
    assert (found.problems, found.unfinished) == ([], 0)


def test_half_a_batch_at_the_end_of_a_closed_segment(copied: Path) -> None:
    file = _closed(copied, ".log")[0]
    file.write_bytes(file.read_bytes()[:-1])
    assert any("are not a batch" in problem.what for problem in verify_partition(copied).problems)


@pytest.mark.parametrize("name", [checkpoints.LEADER_EPOCH_CHECKPOINT, "snapshot"])
def test_small_files(copied: Path, name: str) -> None:
    file = next(copied.glob("*.snapshot")) if name == "snapshot" else copied / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x40
    file.write_bytes(data)
    assert _only(verify_partition(copied), file)


def test_epochs_that_begin_elsewhere(copied: Path) -> None:
    file = copied / checkpoints.LEADER_EPOCH_CHECKPOINT
    entries = checkpoints.decode_epochs(file.read_bytes(), file.name)
    entries[1] = entries[1]._replace(start_offset=entries[1].start_offset + 1)
    file.write_bytes(checkpoints.encode_epochs(entries))
    assert "says leader epoch 0, the batch says 1" in _only(verify_partition(copied), file)


def test_problems_are_listed_up_to_a_bound(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetlog.brokers.log.verify.MAX_PROBLEMS", 2)
    for file in _closed(copied, ".index"):
        file.write_bytes(file.read_bytes()[::-1])
    found = verify_partition(copied)
    assert len(found.problems) == 2
    assert found.more > 0


def test_a_compacted_log_may_lack_offsets(tmp_path: Path) -> None:
    log = internal_log(tmp_path)
    for number in range(80):
        put(log, (f"k{number % 3}", f"{number}" * 20))
    log.close()
    for file in sorted((tmp_path / "c-0").glob("*.log"))[1:3]:
        for one in tmp_path.glob(f"c-0/{file.stem}.*"):
            one.unlink()
    renamed = tmp_path / "c-0"
    assert verify_partition(renamed).problems
    (tmp_path / checkpoints.CLEANER_CHECKPOINT).write_bytes(checkpoints.encode_offsets({TopicPartition("c", 0): 40}))
    assert verify_partition(renamed).problems == []


def test_the_name_of_the_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a partition's directory"):
        verify_partition(tmp_path)
