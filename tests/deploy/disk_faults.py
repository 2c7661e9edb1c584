"""Faults of disks and logs that fire alerts: each begins one, yields what is called meanwhile, and ends it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator

from confluent_kafka.admin import ConfigResource

from tests.deploy.alert_stage import PATIENCE_S, Stage, damaged, nothing, start_patiently
from tests.support.fleet import Fleet
from tests.support.slow_disk import SlowDisk
from tests.support.small_disk import SmallDisk


def damaged_batch(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.topic("damaged", [1, 3])
    stage.produce("damaged", 10)
    stage.flush()
    three = stage.fleet.brokers[2]
    three.kill()
    time.sleep(6)
    stage.produce("damaged", 500)
    stage.flush()
    with damaged(stage.log_of(stage.fleet.brokers[0], "damaged")):
        three.start()
        yield nothing


def unclean_election(stage: Stage) -> Iterator[Callable[[], None]]:
    two, three = stage.fleet.brokers[1:]
    stage.topic("unclean", [2, 3], unclean_leader_election_enable="true")
    stage.produce("unclean", 10)
    stage.flush()
    three.kill()
    stage.wait_in_sync("unclean", {2})
    stage.produce("unclean", 100)
    stage.flush()
    assert two.stop(PATIENCE_S) == 0  # it notes how far its records were committed
    three.start()
    stage.wait_leader("unclean", 3)
    two.start()
    yield nothing
    stage.wait_in_sync("unclean", {2, 3})
    stage.prefer()


def damaged_compacted_log(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.topic("broken", [1, 3], cleanup_policy="compact")
    for number in range(1_000):
        stage.writer().produce("broken", b"x", key=b"%d" % (number % 10))
    stage.flush()
    stage.wait_in_sync("broken", {1, 3})
    three = stage.fleet.brokers[2]
    with damaged(stage.log_of(three, "broken")):
        stage.alter(ConfigResource.Type.TOPIC, "broken", "max.compaction.lag.ms", "1")
        yield nothing
        assert three.stop() == 0
    shutil.rmtree(three.directory / "data" / "broken-0")
    three.start()
    three.wait_ready()
    stage.wait_in_sync("broken", {1, 3})


def slow_cleaner(stage: Stage) -> Iterator[Callable[[], None]]:
    throttle = (ConfigResource.Type.BROKER, "1", "log.cleaner.io.max.bytes.per.second")
    stage.alter(*throttle, "1000")
    stage.topic("late", [1], cleanup_policy="compact", max_compaction_lag_ms="1000")
    long_ago = int(time.time() * 1000) - 2 * 3_600_000
    for number in range(10_000):
        stage.writer().produce("late", b"x" * 100, key=b"%d" % number, timestamp=long_ago)
    stage.flush()
    yield nothing
    stage.alter(*throttle, None)


def filling_disk(stage: Stage) -> Iterator[Callable[[], None]]:
    """Something else on the volume grows: first until only its rate warns, then until nearly nothing is left."""
    fleet = Fleet(stage.directory / "small", 1)
    disk = SmallDisk(fleet.brokers[0])
    try:
        start_patiently(fleet)

        def grow() -> None:
            space = os.statvfs(disk.ballast.parent)
            free = space.f_bavail / space.f_blocks
            if free > (0.03 if "DiskFilling" in stage.prometheus.firing() else 0.25):
                with disk.ballast.open("ab") as file:
                    file.write(bytes(1_000_000))
            time.sleep(0.3)

        with stage.instead(f"127.0.0.1:{fleet.brokers[0].admin_port}"):
            yield grow
            disk.free()
            alerts = {"DiskFilling", "DiskAlmostFull"}
            stage.prometheus.wait(lambda firing: not alerts & firing, f"{alerts} go away", nothing)
    finally:
        fleet.close()


def damaged_segment(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.topic("closed", [1, 3], segment_bytes="16384")
    for _ in range(20):
        stage.produce("closed", 50)
        stage.flush()
    stage.wait_in_sync("closed", {1, 3})
    first = min((stage.fleet.brokers[2].directory / "data").glob("closed-0/*.log"))
    assert first != stage.log_of(stage.fleet.brokers[2], "closed"), "nothing is written to it any more"
    checks = (ConfigResource.Type.BROKER, "3", "log.verify.bytes.per.second")
    stage.alter(*checks, "100000000")
    with damaged(first):
        yield nothing
    stage.prometheus.wait(lambda firing: "DamagedSegment" not in firing, "it is found whole", nothing)
    stage.alter(*checks, None)


def shortened_log(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.topic("shortened", [1, 3])
    stage.produce("shortened", 100)
    stage.flush()
    stage.wait_in_sync("shortened", {1, 3})
    three = stage.fleet.brokers[2]
    assert three.stop(PATIENCE_S) == 0
    shutil.rmtree(three.directory / "data" / "shortened-0")
    three.start()
    yield nothing
    stage.wait_in_sync("shortened", {1, 3})
    assert three.stop(PATIENCE_S) == 0
    three.start()
    three.wait_ready(PATIENCE_S)


def slow_fsync(stage: Stage) -> Iterator[Callable[[], None]]:
    """The broker keeps the disk, which is as fast as others afterwards."""
    two, disk = stage.fleet.brokers[1], SlowDisk(stage.directory)
    assert two.stop(PATIENCE_S) == 0
    two.within = ["env", *(f"{name}={value}" for name, value in disk.environment.items())]
    two.start()
    two.wait_ready(PATIENCE_S)
    stage.topic("synced", [2], flush_ms="1000")

    def write() -> None:
        stage.produce("synced")
        time.sleep(0.3)

    disk.delay(0.8)
    try:
        yield write
    finally:
        disk.delay(0.0)
    stage.flush()


def late_replica(stage: Stage) -> Iterator[Callable[[], None]]:
    """It is late by a minute, whatever a minute of the rules is."""
    stage.topic("late-copy", [1, 3])
    three = stage.fleet.brokers[2]
    three.kill()

    def write() -> None:
        stage.produce("late-copy")
        time.sleep(0.3)

    yield write
    three.start()
    three.wait_ready(PATIENCE_S)
    stage.wait_in_sync("late-copy", {1, 3})
