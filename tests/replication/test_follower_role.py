"""A follower's appends and truncations, without a cluster around. With real fetches: ``test_fetcher_logs``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleetlog.brokers.log import DiskFull, RealDisk
from fleetlog.brokers.log.append import Appender
from fleetlog.brokers.log.disk.checkpoints import LOG_START_CHECKPOINT
from fleetlog.wire.errors import ErrorCode as E
from tests.replication.trio import ALL, THIRD, Trio
from tests.support.stage import OTHER


def test_a_follower_appends_only_in_the_epoch_it_asked_in(trio: Trio) -> None:
    trio.append("t")
    records = memoryview(b"".join(piece.read() for piece in trio.p.log.reader.read(0, 1 << 20, end_offset=1).slices))
    trio.topic("f", replicas=ALL, leader=OTHER, epoch=3)
    follower = trio.partition("f")
    assert follower.follower_role.replicate(2, records, 1, 0, 0) is E.FENCED_LEADER_EPOCH
    assert follower.log.log_end_offset == 0
    assert follower.follower_role.replicate(3, records, 1, 0, 0) is E.NONE
    assert (follower.log.log_end_offset, follower.log.high_watermark) == (1, 1)
    assert follower.follower_role.replicate(3, memoryview(b""), 0, 0, 0) is E.NONE
    assert follower.log.high_watermark == 1, "a new leader may know less than we do"


def test_a_follower_takes_over_the_log_start_before_the_high_watermark(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.append("t")
    records = memoryview(b"".join(piece.read() for piece in trio.p.log.reader.read(0, 1 << 20, end_offset=1).slices))
    trio.topic("f", replicas=ALL, leader=OTHER, epoch=3)
    follower = trio.partition("f")
    starts: list[int] = []
    set_high_watermark = Appender.set_high_watermark

    def noted(appender: Appender, offset: int) -> None:
        starts.append(follower.log.log_start_offset)
        set_high_watermark(appender, offset)

    monkeypatch.setattr(Appender, "set_high_watermark", noted)
    assert follower.follower_role.replicate(3, records, 1, 1, 0) is E.NONE
    assert (follower.log.log_start_offset, follower.log.high_watermark) == (1, 1)
    assert starts == [1], "else what was deleted at the leader counts as committed here for a moment"


def test_a_follower_tells_no_log_start_that_it_has_not_saved(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leader acknowledges DeleteRecords by it; without room the follower would start with the old one."""
    trio.append("t")
    records = memoryview(b"".join(piece.read() for piece in trio.p.log.reader.read(0, 1 << 20, end_offset=1).slices))
    trio.topic("f", replicas=ALL, leader=OTHER, epoch=3)
    role = trio.partition("f").follower_role
    assert role.replicate(3, records, 1, 1, 0) is E.NONE
    replace = RealDisk.replace

    def full(disk: RealDisk, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.endswith(LOG_START_CHECKPOINT):
            raise DiskFull(path, "No space left on device")
        replace(disk, path, data, durable=durable)

    with monkeypatch.context() as no_room:
        no_room.setattr(RealDisk, "replace", full)
        assert role.fetch_position() == (1, 0, 0)
        assert role.fetch_position() == (1, 0, 0), "nor when it is asked once more"
    assert role.fetch_position() == (1, 0, 1)


def test_an_epoch_without_records_is_forgotten_when_it_contradicts_the_leader(trio: Trio) -> None:
    trio.append("t")
    trio.topic("t", replicas=ALL, epoch=5)  # leads again, and appends nothing
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=6)
    assert trio.p.follower_role.fetch_position() == (1, 5, 0)
    assert trio.p.follower_role.diverged(6, 0, 1) is E.NONE
    assert trio.p.follower_role.fetch_position() == (1, 0, 0), "or the leader would say the same for ever"


@pytest.mark.parametrize(
    ("ours", "told", "end"),
    [
        # (our epochs with their ends), what the leader says, where we end; KIP-101 and KIP-279
        ([(0, 3), (1, 6)], (0, 3), 3),
        ([(0, 3), (1, 6)], (1, 4), 4),
        ([(0, 3), (2, 6)], (1, 5), 3),
        ([(2, 6)], (1, 5), 0),
    ],
)
def test_truncation_by_epochs(trio: Trio, ours: list[tuple[int, int]], told: tuple[int, int], end: int) -> None:
    for epoch, until in ours:
        if epoch:
            trio.topic("t", replicas=ALL, epoch=epoch)
        while trio.p.log.log_end_offset < until:
            trio.append("t")
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=9)
    assert trio.p.follower_role.diverged(9, *told) is E.NONE
    assert trio.p.log.log_end_offset == end
    assert trio.p.follower_role.lost_commits == 0


@pytest.fixture
def committed(trio: Trio) -> Trio:
    """Three committed records of epoch 0; another broker leads in epoch 1."""
    for _ in range(3):
        trio.append("t")
    for broker in (OTHER, THIRD):
        trio.fetch(broker, 3)
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    return trio


def after_an_unclean_election(trio: Trio, epoch: int, recovering: int = 0) -> None:
    follower = trio.p
    follower.state = replace(follower.state, unclean_epoch=epoch, leader_recovery_state=recovering)


@pytest.mark.parametrize(("epoch", "recovering"), [(1, 0), (1, 1), (-1, 1)])
def test_an_unclean_election_may_cut_below_the_high_watermark_and_that_is_loud(
    committed: Trio, caplog: pytest.LogCaptureFixture, epoch: int, recovering: int
) -> None:
    after_an_unclean_election(committed, epoch, recovering)
    assert committed.p.follower_role.diverged(1, 0, 1) is E.NONE
    assert committed.p.follower_role.lost_commits == 1
    assert "below the high watermark 3" in caplog.text


@pytest.mark.parametrize("unclean_epoch", [-1, 0])
@pytest.mark.parametrize("way", ["diverged", "out_of_range"])
def test_without_one_a_follower_keeps_what_is_committed_and_says_so(
    committed: Trio, caplog: pytest.LogCaptureFixture, way: str, unclean_epoch: int
) -> None:
    after_an_unclean_election(committed, unclean_epoch)
    role = committed.p.follower_role
    for _ in range(2):
        assert (role.diverged(1, 0, 1) if way == "diverged" else role.out_of_range(1, 0, 1)) is E.OFFSET_OUT_OF_RANGE
    assert (committed.p.log.log_end_offset, role.lost_commits) == (3, 0)
    (line,) = [record.getMessage() for record in caplog.records if "does not follow" in record.getMessage()]
    why = "ended epoch 0 at offset 1" if way == "diverged" else "ends at offset 1"
    assert line.startswith(f"t-0: does not follow broker {OTHER}: leader {OTHER} {why}")
    assert "committed records 1 to 2 are here" in line
    assert committed.replicas.faults() == [line]
    assert line in committed.replicas.troubles()
    after_an_unclean_election(committed, 1)
    assert role.diverged(1, 0, 1) is E.NONE
    assert committed.replicas.faults() == []


def test_a_follower_with_nothing_follows_a_leader_that_ends_before(trio: Trio) -> None:
    """It lost its log with the power, and began anew at the start that it remembered: nothing committed is there."""
    trio.append("t")
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    role = trio.p.follower_role
    for way in (lambda: role.diverged(1, 0, 3), lambda: role.out_of_range(1, 0, 3)):
        assert role.out_of_range(1, 7, 9) is E.NONE
        assert (trio.p.log.log_start_offset, trio.p.log.high_watermark) == (7, 7)
        assert way() is E.NONE
        assert role.fetch_position()[0] == 3
        assert role.lost_commits == 0


def test_off_the_leaders_log_a_follower_starts_over(trio: Trio) -> None:
    trio.append("t")
    trio.topic("t", replicas=ALL, leader=OTHER, epoch=1)
    assert trio.p.follower_role.out_of_range(1, 7, 9) is E.NONE
    assert trio.p.follower_role.fetch_position() == (7, -1, 7)
