"""Partitions follow the view: led, resigned, deleted, opened again; and what the world does to their logs."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner

from fleetlog.brokers.cli.main import cli
from fleetlog.brokers.log import DiskFailed, RealDisk
from fleetlog.brokers.log.disk.failures import DiskFull
from fleetlog.brokers.metadata.cache import MetadataChange
from fleetlog.brokers.model import BrokerId, id_text
from fleetlog.brokers.replication.partition import Partition
from fleetlog.brokers.replication.replicas import CHECK_MS
from fleetlog.brokers.replication.serving import LeaderLease, Serve, not_led
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.support.stage import ME, OTHER, Stage
from tests.support.waiting import eventually

T = TopicPartition("t", 0)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_what_an_expired_lease_still_serves() -> None:
    """The table of docs/INVARIANTS.md."""
    expired = LeaderLease(lambda: False)
    assert {kind: expired.refusal(kind) for kind in Serve} == {
        Serve.APPEND: ErrorCode.NONE,  # acknowledged only when every possible successor has it
        Serve.FETCH: ErrorCode.NONE,
        Serve.LIST_OFFSETS: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        Serve.COORDINATOR_STATE: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
    lease = LeaderLease(lambda: True)
    assert {lease.refusal(kind) for kind in Serve} == {ErrorCode.NONE}
    lease.waive(0)
    assert {kind: lease.refusal(kind) for kind in Serve} == {kind: expired.refusal(kind) for kind in Serve}


def test_a_leader_that_resigns_appends_nothing_more() -> None:
    lease = LeaderLease(lambda: True)
    lease.resigning = True
    assert lease.refusal(Serve.APPEND) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert lease.refusal(Serve.FETCH) is ErrorCode.NONE


def test_a_broker_that_does_not_lead_serves_nothing_of_a_leader() -> None:
    assert not_led(Serve.COORDINATOR_STATE) is ErrorCode.NOT_COORDINATOR
    assert {not_led(kind) for kind in Serve if kind is not Serve.COORDINATOR_STATE} == {
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    }


def test_listeners_are_called_with_leaderships_in_order(stage: Stage) -> None:
    heard: list[str] = []
    stage.replicas.on_leader(lambda partition: heard.append(f"leads {partition.tp} {partition.leader_epoch}"))
    stage.replicas.on_resigned(lambda tp: heard.append(f"resigned {tp}"))
    stage.replicas.on_deleted(lambda tp: heard.append(f"deleted {tp}"))
    stage.topic("t")
    stage.topic("t", min_insync_replicas="1")  # only a setting changed
    stage.topic("t", epoch=1)
    stage.topic("t", epoch=2, leader=OTHER, replicas=(ME, OTHER))
    stage.topic("t", epoch=3, leader=OTHER, replicas=(ME, OTHER))
    stage.topic("t", epoch=4, replicas=(ME, OTHER))
    stage.delete("t")
    assert heard == [
        "leads t-0 0", "resigned t-0", "leads t-0 1", "resigned t-0", "leads t-0 4", "resigned t-0", "deleted t-0",
    ]  # fmt: skip


def test_a_listener_that_fails_does_not_silence_the_others(stage: Stage) -> None:
    heard: list[Partition] = []

    def broken(_: Partition) -> None:
        raise RuntimeError("planted")

    stage.replicas.on_leader(broken)
    stage.replicas.on_leader(heard.append)
    stage.topic("t")
    assert [partition.tp for partition in heard] == [T]


def test_a_lookup_of_a_leader_says_why_there_is_none(stage: Stage) -> None:
    stage.topic("t", epoch=5)
    stage.topic("other", leader=OTHER, replicas=(OTHER,))
    assert stage.replicas.leader(T).partition is stage.partition("t")
    assert stage.replicas.leader(T, 5).partition is stage.partition("t")
    assert stage.replicas.leader(T, 4).error is ErrorCode.FENCED_LEADER_EPOCH
    assert stage.replicas.leader(T, 6).error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert stage.replicas.leader(TopicPartition("other", 0)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert stage.replicas.leader(TopicPartition("t", 1)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stage.replicas.resign_all()
    assert stage.replicas.leader(T).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_election_of_an_earlier_incarnation_does_not_count(stage: Stage) -> None:
    stage.topic("t", incarnation=6)
    assert stage.replicas.leader(T).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    stage.topic("t", epoch=1)
    assert stage.replicas.leader(T).partition is stage.partition("t")
    stage.replicas.resign_all()
    stage.incarnation = 8
    stage.replicas.reconcile()
    assert stage.replicas.leader(T).error is ErrorCode.NOT_LEADER_OR_FOLLOWER, "registered again, not elected yet"


def test_a_topic_created_again_starts_empty(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 3)
    stage.topic("t", topic_id=uuid.uuid4())
    assert stage.partition("t").log.log_end_offset == 0
    assert stage.partition("t").log.topic_id == stage.metadata.topics["t"].id


@pytest.mark.parametrize("seen", [True, False])
def test_a_restart_deletes_only_logs_whose_deletion_was_seen(tmp_path: Path, seen: bool) -> None:
    """A topic that is only missing may be newer than the copy that ZooKeeper was restored from."""
    first = Stage(tmp_path)
    kept = first.topic("kept", max_message_bytes="2000")
    gone = first.topic("gone")
    again = first.topic("again")
    for name in ("kept", "gone", "again"):
        first.append(name, 2)
    first.logs.close()
    second = Stage(tmp_path)
    if seen:
        second.metadata.note_deletions([gone.id, again.id])
    second.topic("kept", topic_id=kept.id, epoch=1, max_message_bytes="2000")
    second.topic("again", topic_id=uuid.uuid4())
    second.replicas.reconcile()
    log = second.partition("kept").log
    assert (log.log_end_offset, log.high_watermark, log.config.max_message_bytes) == (2, 2, 2000)
    assert second.partition("again").log.log_end_offset == 0
    assert second.metadata.topics["again"].id != again.id
    assert second.logs.get(TopicPartition("gone", 0)) is None
    data = tmp_path / "data"
    assert not (data / "gone-0").exists()
    kind = "delete" if seen else "stray"
    assert sorted(path.name.partition(".")[0] for path in data.glob(f"*-{kind}")) == ["again-0", "gone-0"]
    second.clock.now_ms += 2 * second.config.log_segment_delete_delay_ms
    eventually(
        lambda: (second.logs.tick(second.clock.wall_ms()), list(data.glob("*-delete")))[1],
        "the deleted logs are gone", good=lambda left: not left,
    )  # fmt: skip
    second.logs.close()
    left = [path.name for path in data.glob("*-stray")]
    assert len(left) == (0 if seen else 2), "what lies aside stays"
    third = Stage(tmp_path)
    assert (third.report.logs, third.report.removed, third.report.recovered[0].changed) == (2, [], False)
    assert [path.name for path in data.glob("*-stray")] == left


def test_what_lies_aside_is_listed_and_removed(stage: Stage, tmp_path: Path) -> None:
    info = stage.topic("t")
    stage.append("t", 3)
    del stage.metadata.image.topics["t"]
    stage.replicas.apply(MetadataChange(deleted=(info,), reloaded=True))
    stage.topic("other")
    data = tmp_path / "data"
    (aside,) = data.glob("*-stray")
    size = sum(file.stat().st_size for file in aside.glob("*.log"))
    told = f"1 log(s), {size} bytes, lie aside in {data}: t-0"
    assert [directory.strays_text() for directory in stage.logs.directories] == [told]
    stage.logs.close()
    again = Stage(tmp_path)
    assert [directory.strays_text() for directory in again.logs.directories] == [told], "the next start finds it"
    (stray,) = json.loads(CliRunner().invoke(cli, ["log", "strays", str(data), "--json"]).output)
    assert (stray["partition"], stray["topic_id"]) == ("t-0", id_text(info.id))
    assert stray["bytes"] == size > 0
    refused = CliRunner().invoke(cli, ["log", "strays", str(data), "--remove"])
    assert refused.exit_code != 0
    assert list(data.glob("*-stray"))
    assert CliRunner().invoke(cli, ["log", "strays", str(data), "--remove", "--yes"]).exit_code == 0
    assert not list(data.glob("*-stray"))
    again.logs.tick(again.clock.wall_ms())
    assert [directory.strays_text() for directory in again.logs.directories] == [None]
    assert (data / "other-0").is_dir()
    assert "no log lies aside" in CliRunner().invoke(cli, ["log", "strays", str(data)]).output


def test_a_topic_that_is_missing_in_a_reload_is_put_aside(stage: Stage, tmp_path: Path) -> None:
    info = stage.topic("t")
    stage.append("t", 3)
    deleted: list[TopicPartition] = []
    stage.replicas.on_deleted(deleted.append)
    del stage.metadata.image.topics["t"]
    stage.replicas.apply(MetadataChange(deleted=(info,), reloaded=True))
    assert stage.replicas.get(T) is None
    assert deleted == [T]
    (aside,) = (tmp_path / "data").glob("*-stray")
    (log,) = aside.glob("*.log")
    assert log.stat().st_size > 0
    assert stage.topic("t").id != info.id
    assert stage.partition("t").log.log_end_offset == 0


def test_a_log_of_another_topic_that_cannot_be_put_aside_stays_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Stage(tmp_path)
    first.topic("t")
    first.append("t", 2)
    first.logs.close()
    second = Stage(tmp_path)

    def refuse(*_: object) -> None:
        raise DiskFull("somewhere", "planted")

    with monkeypatch.context() as full:
        full.setattr(RealDisk, "rename", refuse)
        second.topic("t", topic_id=uuid.uuid4())
    assert second.replicas.leader(T).error is ErrorCode.KAFKA_STORAGE_ERROR
    log = second.logs.get(T)
    assert log is not None
    assert log.log_end_offset == 2
    second.topic("t")
    assert second.partition("t").log.log_end_offset == 0, "the next look tries again"
    assert len(list((tmp_path / "data").glob("*-stray"))) == 1


def test_while_the_view_is_not_read_nothing_is_dropped(tmp_path: Path) -> None:
    first = Stage(tmp_path)
    first.topic("t")
    first.logs.close()
    second = Stage(tmp_path)
    second.metadata.ready = False
    second.replicas.reconcile()
    assert second.logs.get(T) is not None


def test_a_log_in_an_offline_directory_is_not_made_anew(tmp_path: Path) -> None:
    directories = f"{tmp_path}/a,{tmp_path}/b"
    first = Stage(tmp_path, **{"log.dirs": directories})
    info = first.topic("t")
    first.append("t", 2)
    home = Path(first.partition("t").log.directory).parent
    first.logs.close()
    (home / "meta.properties").unlink()
    (home / "meta.properties").mkdir()  # a disk that cannot be read
    second = Stage(tmp_path, **{"log.dirs": directories})
    assert second.logs.offline_directories == [str(home)]
    second.replicas.registered(8, 8)
    second.topic("t", topic_id=info.id, epoch=1)  # counts on incarnation 7
    assert second.replicas.leader(T).error is ErrorCode.KAFKA_STORAGE_ERROR
    second.incarnation = 8
    second.topic("new")
    assert second.partition("new").is_leader, "a new topic has the other directory"


def test_a_disk_that_refuses_is_asked_again_with_the_next_change(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DiskFailed("somewhere", "planted")

    with monkeypatch.context() as broken:
        broken.setattr(stage.logs, "create", refuse)
        stage.topic("t")
    assert stage.replicas.leader(T).error is ErrorCode.KAFKA_STORAGE_ERROR
    stage.topic("other")
    assert stage.replicas.leader(T).partition is stage.partition("t")


def test_a_disk_that_refused_is_asked_again_by_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise DiskFull("t-0", "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stage.logs, "create", full)
        stage.topic("t")
        stage.replicas.tick(stage.clock.mono_ms())
        assert stage.replicas.leader(T).error is ErrorCode.KAFKA_STORAGE_ERROR
    stage.clock.now_ms += CHECK_MS
    stage.replicas.tick(stage.clock.mono_ms())
    assert stage.partition("t").is_leader, "there is room again, and nothing else changes"


def test_settings_reach_the_logs(stage: Stage) -> None:
    stage.topic("t")
    stage.topic("t", retention_ms="77")
    assert stage.partition("t").log.config.retention_ms == 77


def test_each_wait_is_completed_once_and_in_order(stage: Stage) -> None:
    stage.topic("t", replicas=(ME, OTHER))
    partition = stage.partition("t")
    heard: list[tuple[int, ErrorCode]] = []
    for _ in range(3):
        stage.append("t")
    for offset in (2, 0, 1, 7):
        partition.wait_for(offset, lambda error, offset=offset: heard.append((offset, error)))
    stage.fetched("t", OTHER, 2)
    assert heard == [(0, ErrorCode.NONE), (1, ErrorCode.NONE)]
    partition.wait_for(1, lambda error: heard.append((1, error)))
    stage.fetched("t", OTHER, 3)
    stage.topic("t", epoch=1, leader=OTHER, replicas=(ME, OTHER))
    assert heard[2:] == [
        (1, ErrorCode.NONE), (2, ErrorCode.NONE), (7, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]  # fmt: skip
    partition.wait_for(0, lambda error: heard.append((0, error)))
    assert heard[-1] == (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_waiter_may_append_and_another_may_fail(stage: Stage) -> None:
    stage.topic("t", replicas=(ME, OTHER))
    partition = stage.partition("t")
    heard: list[str] = []

    def appending(_: ErrorCode) -> None:
        stage.append("t")
        heard.append("appended")

    def failing(_: ErrorCode) -> None:
        raise RuntimeError("planted")

    stage.append("t")
    partition.wait_for(0, failing)
    partition.wait_for(0, appending)
    partition.wait_for(0, lambda _: heard.append("last"))
    stage.fetched("t", OTHER, 1)
    assert heard == ["appended", "last"]


def test_the_high_watermark_is_that_of_the_replicas_in_sync(stage: Stage) -> None:
    third = 3
    replicas = (ME, OTHER, third)
    stage.topic("t", replicas=replicas)  # type: ignore[arg-type]
    partition = stage.partition("t")
    stage.append("t", 5)
    stage.fetched("t", OTHER, 4)
    assert partition.log.high_watermark == 0, "the third is in sync and has nothing"
    stage.fetched("t", third, 2)
    assert partition.log.high_watermark == 2
    stage.topic("t", replicas=replicas, isr=(ME, OTHER))  # type: ignore[arg-type]
    assert partition.log.high_watermark == 4
    stage.fetched("t", OTHER, 3)
    assert partition.log.high_watermark == 4, "it never goes back"
    stage.topic("t", replicas=replicas, isr=(ME,))  # type: ignore[arg-type]
    assert partition.log.high_watermark == 5


def test_a_new_epoch_forgets_what_followers_said(stage: Stage) -> None:
    stage.topic("t", replicas=(ME, OTHER))
    partition = stage.partition("t")
    stage.fetched("t", OTHER, 10)
    stage.topic("t", replicas=(ME, OTHER), epoch=1)
    stage.append("t", 3)
    assert partition.log.high_watermark == 0


def test_a_reload_compares_everything(stage: Stage) -> None:
    stage.topic("t")
    gone = stage.topic("gone")
    del stage.metadata.image.topics["gone"]
    stage.metadata.image.topic_names.pop(gone.id)
    stage.replicas.apply(MetadataChange(reloaded=True))
    assert stage.replicas.get(TopicPartition("gone", 0)) is None
    assert stage.replicas.leader(T).partition is stage.partition("t")


@pytest.mark.parametrize(("isr", "kept"), [((ME, OTHER), 1), ((OTHER,), 0)])
def test_a_log_without_its_topics_id_is_kept_only_where_a_state_counts_on_it(
    tmp_path: Path, isr: tuple[BrokerId, ...], kept: int
) -> None:
    """A power loss may take the file with the id; the topic may have been deleted and created again meanwhile."""
    stage = Stage(tmp_path)
    stage.topic("t", replicas=(ME, OTHER))
    stage.append("t")
    metadata = Path(stage.partition("t").log.directory) / "partition.metadata"
    stage.logs.close()
    metadata.unlink()
    stage = Stage(tmp_path)
    info = stage.topic("t", replicas=(ME, OTHER), isr=isr, leader=OTHER)
    log = stage.partition("t").log
    assert (log.log_end_offset, log.topic_id) == (kept, info.id)
    assert metadata.exists(), "the next start knows"


def test_settings_that_a_log_can_not_write_stop_no_other_log(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.topic("t", partitions=2, fleetlog_dedup="source")
    first, second = (stage.partition("t", index) for index in range(2))
    replace = first.log.disk.replace

    def full(path: str, data: bytes, *, durable: bool = True) -> None:
        if path.startswith(first.log.directory):
            raise DiskFull(path, "No space left on device")
        replace(path, data, durable=durable)

    monkeypatch.setattr(first.log.disk, "replace", full)
    stage.topic("t", partitions=2, fleetlog_dedup="source", fleetlog_dedup_window_ms="60000")
    windows = [log.producers.positions.window_ms for log in (first.log, second.log) if log.producers.positions]
    assert windows == [1_800_000, 60_000]
