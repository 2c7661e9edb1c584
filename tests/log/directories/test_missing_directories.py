"""Log directories that a broker had and that are not here at its next start: it knows, and is not intact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.log import ForeignDirectory, LogStore, RealDisk
from fleetlog.brokers.log.directories.owner import remembered
from fleetlog.brokers.log.disk.checkpoints import CleanStop, encode_clean_stop
from fleetlog.brokers.model import LiveBroker, id_text
from fleetlog.brokers.replication.inventory_keeper import intact_since
from fleetlog.coordination.registration import LastRegistration
from fleetlog.wire.types import TopicPartition
from tests.support.clocks import ManualClock
from tests.support.logs import append, batch

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
LAST = LastRegistration(9, 77, "")


def opened(*paths: Path, registered: dict[str, str] | None = None) -> tuple[LogStore, int | None]:
    """A store of these directories, and since which incarnation it is intact."""
    config = BrokerConfig(broker_id=3, zookeeper_connect="z:1", log_dirs=tuple(map(str, paths)))
    store = LogStore(config, RealDisk(), ManualClock(), cluster_id="cluster-1")
    report = store.load(registered or {})
    return store, intact_since(report.stopped, LAST, store.owner.missing)


def stopped(store: LogStore) -> None:
    store.close(broker_epoch=77, live_broker=LiveBroker(9, 5))


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two directories with a log each, after a clean stop."""
    paths = tmp_path / "a", tmp_path / "b"
    store, _ = opened(*paths)
    for tp in (A, B):
        append(store.create(tp, None, BrokerConfig(broker_id=3, zookeeper_connect="z:1").topic_defaults()), batch(3))
    assert {Path(log.directory).parent for log in store.all().values()} == set(paths)
    stopped(store)
    return paths


def test_with_all_of_them_it_is_intact_wherever_they_are_now(two: tuple[Path, Path], tmp_path: Path) -> None:
    store, since = opened(*two)
    assert (since, store.owner.missing) == (5, {})
    stopped(store)
    shutil.move(two[1], tmp_path / "elsewhere")
    store, since = opened(tmp_path / "elsewhere", two[0])
    assert (since, store.owner.missing, len(store.all())) == (5, {}, 2)
    stopped(store)
    shutil.move(two[0], two[1])  # swapped names
    shutil.move(tmp_path / "elsewhere", two[0])
    store, since = opened(*two)
    assert (since, len(store.all())) == (5, 2)
    store.close(clean=False)


def test_one_more_directory_changes_nothing(two: tuple[Path, Path], tmp_path: Path) -> None:
    store, since = opened(*two, tmp_path / "new")
    assert since == 5
    stopped(store)
    store, since = opened(*two)
    assert since is None, "it is known from then on"
    store.close(clean=False)


@pytest.mark.parametrize("left", [0, 1])
def test_one_that_is_taken_out_is_missed(two: tuple[Path, Path], left: int, caplog: pytest.LogCaptureFixture) -> None:
    store, since = opened(two[left])
    assert since is None
    assert list(store.owner.missing.values()) == [str(two[1 - left])]
    assert f"are not here: {two[1 - left]} (directory.id" in caplog.text
    (gone,) = {A, B}.difference(store.all())
    assert store.may_have_had(gone)
    stopped(store)
    store, since = opened(two[left])
    assert since is None, "as long as a replica waits for its log, it is asked for"
    store.owner.missing.clear()
    stopped(store)
    store, since = opened(two[left])
    assert (since, store.owner.missing) == (5, {})
    assert not store.may_have_had(gone)
    store.close(clean=False)


def test_after_a_crash_the_registration_tells(two: tuple[Path, Path]) -> None:
    store, _ = opened(*two)
    had = store.known_directories()
    assert set(had.values()) == set(map(str, two))
    store.close(clean=False)
    store, _ = opened(two[0])
    assert store.owner.missing == {}, "nothing else does"
    store.close(clean=False)
    store, _ = opened(two[0], registered=had)
    assert list(store.owner.missing.values()) == [str(two[1])]
    store.close(clean=False)


def test_one_that_is_not_mounted_is_offline(two: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    hidden = two[1].rename(two[1].with_name("hidden"))
    two[1].mkdir()
    store, since = opened(*two)
    assert since is None
    assert store.offline_directories == [str(two[1])]
    assert "its volume may not be mounted" in caplog.text
    assert list(two[1].iterdir()) == [], "nothing is written to the file system below"
    stopped(store)
    two[1].rmdir()
    hidden.rename(two[1])
    store, since = opened(*two)
    assert (store.offline_directories, store.owner.missing, len(store.all())) == ([], {}, 2)
    stopped(store)


def test_the_only_one_begins_anew_when_it_is_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, _ = opened(tmp_path / "a")
    had = store.known_directories()
    store.close(clean=False)
    shutil.rmtree(tmp_path / "a")
    store, since = opened(tmp_path / "a", registered=had)
    assert (since, store.owner.missing, store.offline_directories) == (None, had, [])
    assert "begins anew" in caplog.text
    store.close(clean=False)


def test_a_copy_of_a_directory_is_no_second_one(two: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(two[1], tmp_path / "copy")
    with pytest.raises(ForeignDirectory, match=r"have the same directory\.id .*: one is a copy"):
        opened(*two, tmp_path / "copy")


def test_versions_that_named_no_directories_count_as_they_did(two: tuple[Path, Path], tmp_path: Path) -> None:
    for path in two:
        (path / ".kafka_cleanshutdown").write_bytes(encode_clean_stop(CleanStop(77, 9, 5)))
    store, since = opened(*two)
    assert (since, store.owner.missing) == (5, {})
    stopped(store)
    for path in two:
        (path / ".kafka_cleanshutdown").write_bytes(encode_clean_stop(CleanStop(77, 9, 5)))
    store, since = opened(*two, tmp_path / "new")
    assert since is None, "the new one may be one that was emptied"
    store.close(clean=False)


def test_a_directory_without_an_id_gets_one(two: tuple[Path, Path]) -> None:
    """Kafka before 3.7 wrote none."""
    file = two[0] / "meta.properties"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("directory.id")]
    file.write_text("\n".join(lines) + "\n")
    store, _ = opened(*two)
    (known,) = [one.id for one in store.directories if one.path == str(two[0])]
    assert known is not None
    assert file.read_text().splitlines() == [*lines, f"directory.id={id_text(known)}"]
    store.close(clean=False)


def test_what_a_clean_stop_says(two: tuple[Path, Path]) -> None:
    said = [json.loads((path / ".kafka_cleanshutdown").read_text())["directories"] for path in two]
    assert said[0] == said[1]
    assert set(said[0].values()) == set(map(str, two))


def test_the_last_stop_counts_beside_the_registration() -> None:
    older = CleanStop(70, 5, 5, (("a", "/a"), ("b", "/b"), ("c", "/c")))
    newer = CleanStop(77, 6, 6, (("a", "/a"),))
    assert remembered([older, newer], {}) == {"a": "/a"}, "c was given up since"
    assert remembered([older], {"a": "/a"}) == {"a": "/a", "b": "/b", "c": "/c"}
    assert remembered([CleanStop(70)], {}) == remembered([], {}) == {}
