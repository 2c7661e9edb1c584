"""Rules for code and documents that no linter checks."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import house, picture_of_rooms
from tools.house import imported_by, tree_of

pytestmark = pytest.mark.xdist_group("tidy")  # one worker parses the files

ROOT = Path(__file__).parents[1]
PACKAGES = ("wire", "_native", "coordination", "txn", "brokers", "spark_udfs")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

TESTS = sorted((ROOT / "tests").rglob("*.py"))
MEASURING = sorted((ROOT / "perf").rglob("*.py"))
SHARED = sorted((ROOT / "harness").rglob("*.py"))

# The rim: where the world is touched. Everything else gets time, disk and network handed in.
RIM = (
    "brokers/server/",
    "brokers/cli/",
    "brokers/console/",
    "brokers/schemas/callers.py",
    "brokers/schemas/command.py",
    "brokers/schemas/payloads.py",
    "brokers/app.py",
    "brokers/log/disk/background.py",
    "brokers/log/disk/files.py",
    "brokers/log/disk/sync_times.py",
    "brokers/tiering/bucket.py",
    "brokers/tls/contexts.py",
    "brokers/tls/listeners.py",
    "brokers/logins/issuer_keys.py",
    "brokers/metrics/process.py",
    "coordination/zookeeper.py",
    "coordination/ensemble.py",
    "wire/deferred.py",
    "coordination/ports.py",
    "spark_udfs/",
    "_native/__init__.py",
    "_native/files",
    "_native/io",
    "_native/temporary",
    "_native/tally",
)
WORLD = {"time", "random", "threading", "socket", "os"}

# The loop's own timers: the wheel, and what measures the loop.
LOOP_TIMERS = {
    "brokers/timers.py",
    "brokers/server/watchdog.py",
}

DOCUMENTS = [
    *(
        ROOT / path
        for path in (
            "README.md",
            "CONTRIBUTING.md",
            "deploy/README.md",
            "examples/README.md",
            "perf/notes.md",
            "tests/golden/README.md",
        )
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FOLDERS = "|".join((*PACKAGES, "deploy", "docs", "examples", "harness", "perf", "tests"))
_SUFFIXES = "py|pyx|pxi|json|c|sh|md|yaml|toml|java"

FILE_LINES_MAX = 1000


@pytest.fixture(scope="module", autouse=True)
def _trees_are_let_go() -> Iterator[None]:
    """They are some million objects: collections of garbage, which would go through them, wait meanwhile."""
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()


def _imports(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_there_are_sources() -> None:
    assert len(SOURCES) > 30
    assert len(TESTS) > 100
    assert len(MEASURING) > 10


def test_only_the_rim_touches_the_world() -> None:
    """Elsewhere a port or a value is taken instead."""
    inside = [path for path in SOURCES if not _relative(path).startswith(RIM)]
    assert {_relative(path): names for path in inside if (names := _imports(tree_of(path)) & WORLD)} == {}


def test_one_place_names_a_folder_among_temporary_files() -> None:
    """The name of a folder that all users can make is for `own_directory`, which checks it; others draw a new one."""
    naming = {
        _relative(path)
        for path in (*SOURCES, *MEASURING, *SHARED, *(ROOT / "examples").rglob("*.py"), *ROOT.glob("*.py"))
        if "gettempdir" in path.read_text()
    }
    assert naming == {"_native/temporary.py"}


def test_brokers_have_one_timer_wheel() -> None:
    asking = {
        _relative(path)
        for path in SOURCES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("call_later", "call_at") and _relative(path).startswith("brokers/")
    }
    assert asking == LOOP_TIMERS


def test_files_stay_short() -> None:
    """One that is longer is split by subject. (Functions: ``house.long_functions``.)"""
    lines = {_relative(path): path.read_text().count("\n") for path in SOURCES}
    assert {name: count for name, count in lines.items() if count > FILE_LINES_MAX} == {}


def _public_names(path: Path) -> list[str]:
    """Of classes and functions at the top of a module."""
    defined = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, defined)}
    return sorted(name for name in names if not name.startswith("_"))


def _modules_by_name(paths: list[Path]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in paths:
        for name in _public_names(path):
            found.setdefault(name, []).append(_relative(path))
    return found


def test_the_tests_that_reliability_names_are_there() -> None:
    """The page names a test by a part of its name, behind its file's."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    cited = re.findall(r"`(tests/[\w/]+\.py)` (\w*_\w*(?:, \w*_\w*)*)", page)
    assert cited
    for file, names in cited:
        text = (ROOT / file).read_text()
        for name in names.split(", "):
            assert re.search(rf"def test_\w*{name}", text), f"{file} has no test {name}"


def test_a_public_name_stands_once() -> None:
    """A class or function that is found by its name is the one that is meant. Twins have the same names on purpose."""
    apart = ("_native/", "wire/requests.py")  # twins; types of the messages that have a class
    sources = [path for path in SOURCES if not _relative(path).startswith(apart)]
    twice = {name: modules for name, modules in _modules_by_name(sources).items() if len(modules) > 1}
    assert twice == {}


def test_a_name_in_two_modules_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("class Move: ...\ndef _own(): ...\n")
    two.write_text("async def Move(): ...\ndef _own(): ...\ndef other():\n    def inner(): ...\n")
    assert _modules_by_name([one, two]) == {"Move": ["one.py", "two.py"], "other": ["two.py"]}


SHARES_TESTS = {
    "tests/simulation/test_zookeeper.py",  # runs the tests of the real store on the simulated one
}


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


TEST_MODULES = {_module(path) for path in TESTS if path.match("test_*.py")}


def _test_modules_imported(path: Path) -> list[str]:
    return sorted(imported_by(path) & TEST_MODULES - {_module(path)})


def test_nothing_imports_a_test_module() -> None:
    """What tests share stands in a module beside them, or in tests/support when several folders use it."""
    assert {_relative(path) for path in TESTS if _test_modules_imported(path)} == SHARES_TESTS


def _imports_the_others(path: Path) -> bool:
    name = _relative(path)
    if name.startswith("tests/") and "/perf/" in name:
        return False
    others = {"perf/": {"tests"}, "tests/": {"perf"}}.get(name[: name.index("/") + 1], {"tests", "perf"})
    return bool(others & {module.split(".")[0] for module in imported_by(path)})


def test_tests_and_measurements_stand_apart() -> None:
    """Only the tests of perf import it; perf imports no test; what both use imports neither."""
    assert [_relative(path) for path in (*TESTS, *MEASURING, *SHARED) if _imports_the_others(path)] == []


def test_kernels_have_twins() -> None:
    for cython in (ROOT / "_native").glob("*_cy.pyx"):
        stem = cython.name.removesuffix("_cy.pyx")
        assert (ROOT / "_native" / f"{stem}_py.py").exists(), f"{cython.name} has no readable twin"
        assert (ROOT / "_native" / f"{stem}.py").exists(), f"{cython.name} has no facade"


def _links_that_lead_nowhere(text: str, folder: Path) -> list[str]:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    return [target for target in targets if not (folder / target).exists()]


def _paths_that_do_not_exist(text: str) -> list[str]:
    """Cited as code: files with a folder (globs allowed; the folder may be below brokers/), folders, modules."""
    files = re.findall(rf"`((?!/)[\w.*/-]+/[\w.*-]+\.(?:{_SUFFIXES}))`", text)
    folders = re.findall(rf"`((?:{_FOLDERS})/[\w/-]*)`", text)
    # spark_udfs is cited by its public names, which are no modules.
    modules = re.findall(rf"`(?:fleetlog\.)?((?:{'|'.join(set(PACKAGES) - {'spark_udfs'})})\.[a-z]\w*)", text)
    missing = [path for path in files + folders if not any(any(root.glob(path)) for root in (ROOT, ROOT / "brokers"))]
    for module in modules:
        path = ROOT / module.replace(".", "/")
        if not path.is_dir() and not path.with_suffix(".py").exists():
            missing.append(module)
    return missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=_relative)
def test_documents_cite_files_that_exist(document: Path) -> None:
    # The notes become a part of docs/performance.md, so their links start there.
    folder = ROOT / "docs" if document.parent.name == "perf" else document.parent
    text = document.read_text()
    assert not _links_that_lead_nowhere(text, folder)
    assert not _paths_that_do_not_exist(text)


def test_a_cited_file_that_has_moved_is_found() -> None:
    text = "[a](nowhere.md) [b](README.md#top) `log/moved.py` `log/log.py` `tests/gone/` `tests/log` `wire.gone.X`"
    assert _links_that_lead_nowhere(text, ROOT) == ["nowhere.md"]
    assert _paths_that_do_not_exist(text) == ["log/moved.py", "tests/gone/", "wire.gone"]


def test_no_extra_is_installed_from_an_index() -> None:
    """No index has fleetlog: pip takes it from a checkout or a wheel, which the page of versions installs first."""
    pages = [path for path in DOCUMENTS if path.name != "spark-versions.md"]
    assert [_relative(path) for path in (*SOURCES, *pages) if "install 'fleetlog[" in path.read_text()] == []


def test_the_picture_of_the_rooms_is_the_import_contract() -> None:
    page = picture_of_rooms.PAGE.read_text()
    assert picture_of_rooms.drawn(page) == page, "make generate draws it again"
    assert "floor0" in page


@pytest.mark.parametrize("path", SOURCES, ids=_relative)
def test_a_request_whose_answer_is_declared_here_is_not_the_librarys(path: Path) -> None:
    """Its answer would be decoded by another schema than the brokers write it by."""
    declared = {file.stem for file in (ROOT / "wire" / "schemas").glob("*.json")}
    taken = {
        alias.name
        for node in ast.walk(house.tree_of(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kafka.protocol")
        for alias in node.names
    }
    ours = {name for name in taken if {name, name.replace("Request", "Response")} & declared}
    assert ours == set(), "from fleetlog.wire.messages import ..."


MOST = {
    "lines_of_the_product": 118_000,
}  # fmt: skip
"""What is not at its goal yet; it may only fall."""


@pytest.mark.parametrize(("counter", "goal"), house.GOALS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_the_house_is_no_harder_to_hold_in_the_head(counter: Callable[[], Iterator[str]], goal: int) -> None:
    lines = list(counter())
    assert len(lines) <= max(goal, MOST.get(counter.__name__, 0)), f"python -m tools.house --list {counter.__name__}"
