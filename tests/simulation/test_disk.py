"""The simulated disk does what the real one does; and what it loses with the power is only what was not synced."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fleetlog.brokers.log import RealDisk
from fleetlog.brokers.log.disk.failures import DirectoryInUse, DiskError, DiskFailed, DiskFull
from tests.simulation.disk import Medium, SimDisk
from tests.simulation.loop import Killed, SimLoop


def simulated(seed: int = 1) -> tuple[SimLoop, Medium, SimDisk]:
    loop = SimLoop(seed)
    medium = Medium("m", random.Random(seed))
    disk = SimDisk(loop, loop.owner("broker"), medium, lambda: 1)
    disk.make_directory("/d")
    return loop, medium, disk


def perform(disk: Any, root: str, rng: random.Random, files: dict[str, Any]) -> Any:
    """One random operation; what can be seen of it."""
    path = f"{root}/{rng.choice('ab')}/{rng.choice('xyz')}"
    other = f"{root}/{rng.choice('ab')}/{rng.choice('xyz')}"
    position, data = rng.randrange(9000), rng.randbytes(rng.randrange(5000))
    try:
        match rng.randrange(14):
            case 0 | 1:
                files[path] = disk.open(path, create=True)
                return files[path].size
            case 2 | 3 | 4 if path in files:
                files[path].write(data, position)
                return files[path].size
            case 5 if path in files:
                return files[path].read(position, 4000), files[path].size
            case 6 if path in files:
                files[path].truncate(position)
                return files[path].size
            case 7:
                disk.replace(path, data, durable=rng.random() < 0.5)
                files.pop(path, None)
            case 8 if path in files and path != other:
                files[path].rename(other)
                files[other] = files.pop(path)
            case 9:
                disk.remove(path)
                files.pop(path, None)
            case 10:
                return disk.read(path), disk.size(path), disk.is_directory(path)
            case 11:
                return disk.names(f"{root}/{rng.choice('abc')}"), disk.names(root)
            case 12 if rng.random() < 0.2:
                directory = f"{root}/{rng.choice('ab')}"
                disk.rename(directory, root + "/c")
                disk.remove_tree(root + "/c")
                disk.make_directory(directory)
                files.clear()
            case _:
                disk.sync_directory(f"{root}/a")
    except DiskError as wrong:
        return type(wrong).__name__
    return None


@pytest.mark.parametrize("seed", range(12))
def test_it_does_what_the_real_disk_does(seed: int, tmp_path: Path) -> None:
    _, _, disk = simulated()
    real = RealDisk()
    seen: list[list[Any]] = []
    for one, root in ((real, str(tmp_path)), (disk, "/d")):
        rng, files = random.Random(seed), {}
        for directory in "ab":
            one.make_directory(f"{root}/{directory}")
        seen.append([perform(one, root, rng, files) for _ in range(400)])
    assert seen[0] == seen[1]


def test_synced_bytes_survive_the_power() -> None:
    lost = torn = 0
    for seed in range(60):
        _, medium, disk = simulated(seed)
        file = disk.open("/d/log", create=True)
        file.write(b"a" * 5000, 0)
        file.sync()
        disk.sync_directory("/d")
        disk.replace("/d/checkpoint", b"one")
        disk.replace("/d/checkpoint", b"two", durable=False)
        file.write(b"b" * 9000, 5000)
        medium.lose_power()
        content = disk.read("/d/log")
        assert content is not None
        assert content[:5000] == b"a" * 5000
        lost += len(content) < 14000
        torn += 5000 < len(content) < 14000 or b"\0" in content
        checkpoint = disk.read("/d/checkpoint")
        assert checkpoint in (b"one", b"two") or set(checkpoint or b"") <= set(b"two\0")
    assert lost > 5
    assert torn > 5


def test_names_may_be_lost_until_their_directory_is_synced() -> None:
    kept = 0
    for seed in range(60):
        _, medium, disk = simulated(seed)
        disk.open("/d/synced", create=True)
        disk.sync_directory("/d")
        disk.open("/d/new", create=True)
        medium.lose_power()
        assert disk.size("/d/synced") == 0
        kept += disk.size("/d/new") is not None
    assert 0 < kept < 60


def test_a_dead_process_writes_nothing_and_gives_its_lock_up() -> None:
    loop, medium, disk = simulated()
    file = disk.open("/d/log", create=True)
    file.write(b"before", 0)
    disk.lock("/d/.lock")
    with pytest.raises(DirectoryInUse):
        disk.lock("/d/.lock")
    pending = disk.sync_later(["/d/log"])
    loop.crash(disk._owner)
    with pytest.raises(Killed):
        file.write(b"after", 6)
    with pytest.raises(Killed):
        disk.replace("/d/x", b"")
    loop.run_until(lambda: False, 60_000_000)
    assert not pending.done
    again = SimDisk(loop, loop.owner("again"), medium, lambda: 1)
    again.lock("/d/.lock")
    assert again.read("/d/log") == b"before"


def test_a_full_and_a_failed_disk() -> None:
    loop, medium, disk = simulated()
    file = disk.open("/d/log", create=True)
    medium.full = True
    with pytest.raises(DiskFull):
        file.write(b"x", 0)
    medium.full = False
    file.write(b"x", 0)
    medium.failed_directory = "/d"
    for operation in (lambda: file.write(b"x", 0), lambda: file.read(0, 1), file.sync, lambda: disk.names("/d")):
        with pytest.raises(DiskFailed):
            operation()
    pending = disk.sync_later(["/d/log"])
    loop.run_until(lambda: pending.done, 60_000_000)
    assert isinstance(pending.error, DiskFailed)


def test_a_process_may_die_in_a_write() -> None:
    sizes = set()
    for seed in range(20):
        loop, medium, disk = simulated(seed)
        owner = disk._owner
        medium.on_death = lambda loop=loop, owner=owner: loop.crash(owner)
        medium.die_after_writes = 1
        file = disk.open("/d/log", create=True)
        file.write(b"first", 0)
        with pytest.raises(Killed):
            file.write(bytes(20_000), 5)
        assert owner.dead
        sizes.add(len(medium.files["/d/log"].content))
    assert min(sizes) == 5
    assert len(sizes) > 2
