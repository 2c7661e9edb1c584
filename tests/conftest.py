"""Fixtures that every part of the suite may use."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from fleetlog import _native
from fleetlog.coordination.ensemble import ZooKeeperNode, start_local
from tests.support import logs, low_descriptors, stage
from tests.support.draw import LONG_S, drawn_files, examples, is_drawn, read_seconds
from tests.support.ensemble import Ensemble, local_ensemble
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

# The machine is shared: a slow example is no bug. CI tries the same examples every time; other runs new ones.
settings.register_profile(
    "fleetlog", deadline=None, derandomize="CI" in os.environ, max_examples=examples(settings.default.max_examples)
)
settings.load_profile("fleetlog")


SAMPLE = os.environ.get("FLEETLOG_SAMPLE", "")
DRAWN_S = int(os.environ.get("FLEETLOG_DRAWN_S") or 600)
"""So many seconds of the longer files, of one worker."""
APART = {
    "tests/kafka_jars/": "kafka_jars",
    "tests/containers/": "containers",
    "tests/npm/": "npm",
    "tests/simulation/test_mutations.py": "mutations",
}
"""Places with suites of their own, and the marks of these."""
TICK_MS = 250
"""The tick of ZooKeeper servers under test."""
DISK_THREADS = {"log sync", "log removal", "log cleaner"}
FEW_THREADS = 100
"""Those of failed tests, whose frames pytest keeps, and of fixtures that last as long; a worker began a thousand."""
_numbers = itertools.count()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Failed tests are kept by their own names, too: by that with their group alone, ``--last-failed`` loses them."""
    cache = getattr(session.config, "cache", None)
    if cache is None or hasattr(session.config, "workerinput"):
        return
    failed = cache.get("cache/lastfailed", {})
    plain = failed | {re.sub(r"@[\w-]+$", "", name): value for name, value in failed.items()}
    if plain != failed:
        cache.set("cache/lastfailed", plain)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the run took of the machine, with the processes that it began and that have ended; which files are long."""
    taken: Counter[str] = Counter()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            taken[report.nodeid.split("::")[0]] += report.duration
    long = {file: seconds for file, seconds in taken.items() if seconds >= 2 * LONG_S}  # the machine may be slow
    for file in sorted(long.keys() - read_seconds().keys()):
        terminalreporter.write_line(f"{file} took {long[file]:.0f} s: if it always does, list it in tests/seconds.tsv")
    times = os.times()
    seconds = times.user + times.system + times.children_user + times.children_system
    terminalreporter.write_line(f"{seconds:.0f} s of CPU time")


def pytest_report_header() -> list[str]:
    drawn = [f"{DRAWN_S} s of the longer files of tests, drawn by {SAMPLE}: the others run in make test-all"]
    return [f"fleetlog kernels: {_native.IMPLEMENTATION}", *(drawn if SAMPLE else [])]


@functools.cache
def _undrawn() -> frozenset[str]:
    seconds = {file: taken for file, taken in read_seconds().items() if not file.startswith(tuple(APART))}
    return frozenset(seconds.keys() - drawn_files(seconds, SAMPLE, DRAWN_S).keys())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which a run of the whole tree takes no test are not even imported: each worker would do that."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword:
        return None
    place = collection_path.relative_to(config.rootpath).as_posix()
    marks = [mark for where, mark in APART.items() if f"{place}/".startswith(where)]
    apart = any(f"not {mark}" in config.option.markexpr for mark in marks)
    return apart or (bool(SAMPLE) and place in _undrawn()) or None


@pytest.hookimpl(trylast=True)  # what the marks leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With a seed in FLEETLOG_SAMPLE (``make test``: the commit) a share of the longer files runs (tests/seconds.tsv).

    What the command line names runs whole, but for folders whose suite is given seconds to draw.
    """
    if not SAMPLE:
        return
    folders = "FLEETLOG_DRAWN_S" in os.environ and all(Path(arg).is_dir() for arg in config.args)
    named = config.args_source == pytest.Config.ArgsSource.ARGS and not folders
    collected = {item.path.relative_to(config.rootpath).as_posix() for item in items}
    seconds = {file: taken for file, taken in read_seconds().items() if file in collected}
    chosen = drawn_files(seconds, SAMPLE, DRAWN_S)

    def stays(item: pytest.Item) -> bool:
        file = item.path.relative_to(config.rootpath).as_posix()
        if named or file not in seconds:
            return True
        return is_drawn(f"{file} {item.name}", SAMPLE, chosen.get(file, 0))

    left = [item for item in items if not stays(item)]
    config.hook.pytest_deselected(items=left)
    gone = set(left)
    items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    """The modules and items stay to the end: no collection of garbage goes through them again."""
    low_descriptors.keep()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _threads_of_disks_have_ended() -> Iterator[None]:
    """The threads of a disk end with it, so that a worker's thousands of logs leave none behind."""
    yield
    gc.collect()

    def living() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name in DISK_THREADS]

    eventually(living, "what the tests' disks began has ended", good=lambda names: len(names) <= FEW_THREADS)


@pytest.fixture(autouse=True)
def _what_was_opened_is_closed() -> Iterator[None]:
    """Close the stages and logs that the test opened: a worker's descriptors are few, and Spark's client selects."""
    before, kept = len(stage.OPEN), list(logs.OPEN)
    yield
    while len(stage.OPEN) > before:
        stage.OPEN.pop().close()
    for log in logs.OPEN:
        if not any(log is one for one in kept):
            log.abandon()
    logs.OPEN[:] = kept


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three brokers shared by a worker's tests: use fresh topic and group names, and leave the brokers running."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        yield fleet.start()
    finally:
        fleet.close()


@pytest.fixture
def own_fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Three brokers of the test's own, to kill and restart as it likes. Not started yet."""
    fleet = Fleet(tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture(scope="session")
def shared_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperNode]:
    node = start_local(tmp_path_factory.mktemp("zookeeper"), tick_ms=TICK_MS)
    yield node
    node.close()


@pytest.fixture
def connect(shared_zookeeper: ZooKeeperNode) -> str:
    """A connect string with an empty tree behind it."""
    return f"{shared_zookeeper.address}/t{next(_numbers)}"


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZooKeeperNode]:
    """A server to kill and restart."""
    node = start_local(tmp_path / "zookeeper", tick_ms=TICK_MS)
    yield node
    node.close()


@pytest.fixture
def make_ensemble(tmp_path: Path) -> Iterator[Callable[[int], Ensemble]]:
    """Start an ensemble of that many servers."""
    made: list[Ensemble] = []

    def make(size: int) -> Ensemble:
        ensemble = local_ensemble(tmp_path / f"ensemble{len(made)}", size, tick_ms=TICK_MS)
        made.append(ensemble)
        ensemble.start()
        return ensemble

    yield make
    for ensemble in made:
        ensemble.close()
