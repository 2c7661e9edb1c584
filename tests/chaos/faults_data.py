"""Faults of disks, clocks and what is stored, and the table of all faults."""

from __future__ import annotations

import errno
import logging
import math
import os
import random
import shutil
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from fleetlog.brokers.cli.dev_security import ADMIN
from tests.chaos import faults, tails
from tests.chaos.client import TOPICS, TRIMMED
from tests.chaos.cluster import LAG_MS, REPLICATION, SESSION_MS
from tests.chaos.faults import LOOK_S, READY_S, SESSION_S, Fault, Grip, NoTarget, aside
from tests.chaos.login import python

logger = logging.getLogger("chaos")


# ---- disks and clocks ----------------------------------------------------------------------------------------------


def fill(disk: Path, ballast: Path) -> int:
    """Fill a disk to the last byte; returns how many bytes it took, 0 when it wouldn't fill."""
    space = os.statvfs(disk)
    full = False
    with ballast.open("wb", buffering=0) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, max(1, space.f_bavail * space.f_frsize - (1 << 16)))
            file.seek(0, os.SEEK_END)
            while True:
                file.write(bytes(4096))
        except OSError as problem:
            full = problem.errno == errno.ENOSPC
        return file.tell() if full else 0


def disk_full(grip: Grip, rng: random.Random) -> Fault:
    """No space is left on a broker's device, for a while."""
    broker = grip.broker(rng)
    took = fill(broker.disk, broker.ballast)
    yield rng.uniform(2.0, 8.0)
    took = max(took, fill(broker.disk, broker.ballast)) if took else 0  # what was deleted in between is taken, too
    broker.ballast.unlink()
    yield 0.5
    return broker.host, {"bytes": took} if took else None


def torn_tail(grip: Grip, rng: random.Random) -> Fault:
    """A power loss of one broker: SIGKILL, and the tails of its logs are cut, zeroed or flipped before it starts again.

    One in-sync copy at a time: all replicas are in sync before, and no other tail is touched until they are again.
    """
    stage = grip.stage
    if time.monotonic() < stage.lossy_until or not stage.all_in_sync():
        raise NoTarget
    broker = grip.broker(rng)
    stage.lossy_until = math.inf
    broker.kill()
    done = tails.damage(broker.disk / "data", rng)
    yield rng.choice((rng.uniform(0.0, 2.0), rng.uniform(2.0, 2 * SESSION_S)))
    broker.start()
    yield from faults.wait_ready(grip, broker)
    stage.lossy_until = time.monotonic() + (LAG_MS + SESSION_MS) / 1000
    return broker.host, done


def damaged_index(grip: Grip, rng: random.Random) -> Fault:
    """SIGKILL a broker, and spoil indexes and snapshots of its closed segments before it starts again."""
    broker = grip.broker(rng)
    broker.kill()
    done = tails.damage_beside(broker.disk / "data", rng)
    yield rng.choice((rng.uniform(0.0, 2.0), rng.uniform(2.0, 2 * SESSION_S)))
    broker.start()
    yield from faults.wait_ready(grip, broker)
    return broker.host, done


def directory_put_back(grip: Grip, rng: random.Random) -> Fault:
    """A broker's directory as it was at an earlier clean stop, put back: a snapshot, a wrong mount.

    One in-sync copy at a time, as for a torn tail: what was written since is on the other replicas only. Half of the
    time the others stop before it, so that it is the last one in sync, and start after it.
    """
    stage = grip.stage
    if time.monotonic() < stage.lossy_until or not stage.all_in_sync():
        raise NoTarget
    broker = grip.broker(rng)
    others = [other for other in grip.cluster.brokers if other is not broker] if rng.random() < 0.5 else []
    grip.take(*(other.host for other in others))
    stage.lossy_until = math.inf
    data, kept = broker.disk / "data", grip.cluster.directory / f"{broker.host}-kept"
    try:
        status = yield from faults.stop(grip, broker)
        shutil.copytree(data, kept, symlinks=True)
        broker.start()
        yield from faults.wait_ready(grip, broker)
        yield from _until_in_sync(grip, READY_S)
        yield rng.uniform(1.0, 6.0)
        if not stage.all_in_sync():
            return broker.host, None
        for other in others:
            yield from faults.stop(grip, other)
        again = (yield from faults.stop(grip, broker)) if rng.random() < 0.5 else broker.kill()
        before = sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
        shutil.rmtree(data)
        shutil.copytree(kept, data, symlinks=True)
        after = sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
        yield rng.choice((0.0, rng.uniform(0.0, 2 * SESSION_S)))
        broker.start()
        yield rng.choice((0.0, rng.uniform(0.0, SESSION_S)))
    finally:
        shutil.rmtree(kept, ignore_errors=True)
        for machine in (broker, *others):
            if machine.pid is None:
                machine.start()
        stage.lossy_until = time.monotonic() + (LAG_MS + SESSION_MS) / 1000
    yield from faults.wait_ready(grip, broker, *others)
    stage.lossy_until = time.monotonic() + (LAG_MS + SESSION_MS) / 1000
    return broker.host, {"stops": [status, again], "bytes": [before, after], "others": len(others)}


def _until_in_sync(grip: Grip, seconds: float) -> Generator[float, None, None]:
    """Waits until every replica is in sync, not longer than so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not (yield from aside(grip.stage.all_in_sync)):
        yield LOOK_S


def clock_jump(grip: Grip, rng: random.Random) -> Fault:
    """A broker's wall clock jumps, forth or back, and jumps to the truth later; a ZooKeeper node's with it."""
    broker = grip.broker(rng)
    node = rng.choice(grip.cluster.zookeepers)
    seconds = rng.choice((-1, 1)) * rng.choice((rng.uniform(1, 20), rng.uniform(60, 1500)))
    before = broker.clock.readings()
    broker.clock.jump(seconds)
    node.clock.jump(-seconds)
    yield rng.uniform(2.0, 10.0)
    read = broker.clock.readings() - before
    broker.clock.jump(0)
    node.clock.jump(0)
    return f"{broker.host}, {node.host}", {"seconds": round(seconds), "readings": read} if read else None


# ---- moves ---------------------------------------------------------------------------------------------------------


def _admin(grip: Grip, what: Callable[[Any], Any]) -> Any:
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(**python(grip.cluster.bootstrap, ADMIN), request_timeout_ms=5_000)
    try:
        return what(admin)
    finally:
        admin.close()


def _reassign(grip: Grip, wanted: dict[Any, list[int]]) -> Generator[float, None, bool]:
    """Ask for it, again and again until it is done; False when it isn't in time."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        answers = yield from aside(lambda: _admin(grip, lambda admin: admin.alter_partition_reassignments(wanted)))
        if answers is not None and set(answers.values()) == {None}:
            break
        yield 1.0
    while time.monotonic() < deadline:
        found = yield from aside(lambda: grip.stage.metadata(3.0))
        if found is not None and all(
            sorted(found.topics[tp.topic].partitions[tp.partition].replicas) == sorted(replicas)
            for tp, replicas in wanted.items()
        ):
            return True
        yield 0.5
    return False


def move(grip: Grip, rng: random.Random) -> Fault:
    """Some partitions lose a replica and get three again, on any of the brokers; then the preferred replicas lead."""
    from kafka.structs import TopicPartition

    grip.take("moves")
    count = rng.randint(1, 3)
    parts = rng.sample([TopicPartition(topic, p) for topic, n in TOPICS.items() for p in range(n)], count)
    numbers = [broker.number for broker in grip.cluster.brokers]
    problem = f"moving {', '.join(f'{tp.topic}/{tp.partition}' for tp in parts)} took longer than {READY_S:.0f} s"
    if not (yield from _reassign(grip, {tp: rng.sample(numbers, 2) for tp in parts})):
        grip.stage.problems.append(problem)
    yield rng.choice((0.0, rng.uniform(0.5, 6.0)))
    last = {tp: rng.sample(numbers, REPLICATION) for tp in parts}
    back = yield from _reassign(grip, last)
    if not back:
        grip.stage.problems.append(f"{problem}, and back")
    yield from aside(lambda: _admin(grip, lambda admin: admin.elect_leaders(0, parts, raise_errors=False)))
    names = [f"{tp.topic}/{tp.partition}" for tp in parts]
    return ", ".join(names), {
        "moved": {name: last[tp] for name, tp in zip(names, parts, strict=True)}
    } if back else None


def delete_records(grip: Grip, rng: random.Random) -> Fault:
    """Delete some of a partition's records; whether it is known to be done or not, they may be gone from now on."""
    from kafka.structs import TopicPartition

    grip.take("records")
    part = TopicPartition(TRIMMED, rng.randrange(TOPICS[TRIMMED]))
    key, share = f"{part.topic}/{part.partition}", rng.choice((rng.random(), 1.0))
    ends = yield from aside(lambda: _ends(grip, part))
    if not ends or ends[0] == ends[1]:
        return key, None
    offset = ends[0] + math.ceil((ends[1] - ends[0]) * share)
    start = time.monotonic_ns()
    done = yield from aside(lambda: _admin(grip, lambda admin: admin.delete_records({part: offset}, timeout_ms=8_000)))
    outcome = "ok" if done else "info"
    grip.stage.write(f="trim", e=outcome, o={key: offset}, t0=start, t=time.monotonic_ns())
    return key, {"from": ends[0], "to": offset} if done else None


def _ends(grip: Grip, part: Any) -> tuple[int, int]:
    """A partition's first offset and its high watermark."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(**python(grip.cluster.bootstrap, ADMIN), group_id=None)
    try:
        first, last = consumer.beginning_offsets([part]), consumer.end_offsets([part])
        return first[part], last[part]
    finally:
        consumer.close()


# ---- the bucket ----------------------------------------------------------------------------------------------------


def _bucket(grip: Grip, seconds: float, **trouble: int) -> Fault:
    grip.take("bucket")
    bucket = grip.cluster.bucket
    assert bucket is not None, "a run with a bucket"
    before = bucket.hits()
    bucket.trouble(**trouble)
    yield seconds
    bucket.trouble()
    return "bucket", {"calls": bucket.hits() - before, **trouble} if bucket.hits() > before else None


def bucket_cut(grip: Grip, rng: random.Random) -> Fault:
    """No call to the bucket succeeds, for a while."""
    return _bucket(grip, rng.uniform(4.0, 25.0), failing=1_000)


def bucket_errors(grip: Grip, rng: random.Random) -> Fault:
    """Calls to the bucket fail, some after they were done."""
    return _bucket(grip, rng.uniform(6.0, 20.0), failing=rng.randint(50, 400), lost=rng.randint(50, 400))


def bucket_slow(grip: Grip, rng: random.Random) -> Fault:
    """Calls to the bucket wait, and some fail after they were done."""
    return _bucket(grip, rng.uniform(6.0, 20.0), longest_ms=rng.choice((300, 3_000)), lost=rng.choice((0, 100)))


def bucket_full(grip: Grip, rng: random.Random) -> Fault:
    """Nothing can be written to the bucket any more, for a while; what is there can be read."""
    grip.take("bucket")
    bucket = grip.cluster.bucket
    assert bucket is not None, "a run with a bucket"
    took = fill(bucket.disk, bucket.ballast)
    yield rng.uniform(4.0, 15.0)
    bucket.ballast.unlink()
    return "bucket", {"bytes": took} if took else None


BUCKET_FAULTS: dict[str, Callable[[Grip, random.Random], Fault]] = {
    "bucket cut": bucket_cut,
    "bucket errors": bucket_errors,
    "bucket slow": bucket_slow,
    "bucket full": bucket_full,
}
"""Of runs with a bucket."""
FAULTS: dict[str, Callable[[Grip, random.Random], Fault]] = {
    "kill": faults.kill,
    "kill all": faults.kill_all,
    "pause short": faults.pause_short,
    "pause long": faults.pause_long,
    "loop held": faults.loop_held,
    "restart": faults.restart,
    "ZooKeeper kill": faults.zookeeper_kill,
    "ZooKeeper majority": faults.zookeeper_majority,
    "ZooKeeper pause": faults.zookeeper_pause,
    "cut": faults.cut,
    "cut one way": faults.cut_one_way,
    "delay": faults.delay,
    "held answer": faults.held_answer,
    "disk full": disk_full,
    "damaged index": damaged_index,
    "clock jump": clock_jump,
    "delete records": delete_records,
    "client kill": faults.client_kill,
    "client zombie": faults.client_zombie,
    **({"torn tail": torn_tail, "directory put back": directory_put_back, "move": move} if REPLICATION > 1 else {}),
}
