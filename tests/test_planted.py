"""What is added in one place: made-up things are planted in a copy of the tree, and nothing else is edited.

An API is one handler file and its schema. The copy has it in every list then: dispatch, ApiVersions, rights, audit,
throttling, the page of the APIs, and the lists of the tests that try each API.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLANTED = Path(__file__).parent / "planted"
COPIED = ("fleetlog", "wire", "brokers", "tools", "docs", "tests")
LINKED = ("_native", "coordination", "txn", "spark_udfs", "pyproject.toml")
"""What none of the planted files is in."""
WALKS = (
    "tests/planted/served.py",
    "tests/test_api_table.py",
    "tests/server/test_versions.py",
    "tests/server/test_fuzz.py::test_the_mix_passes_framing_and_covers_everything",
    "tests/wire/test_throttled.py",
    "tests/wire/test_answered_errors.py",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree."""
    copy = tmp_path / "tree"
    copy.mkdir()
    for name in COPIED:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in LINKED:
        (copy / name).symlink_to(ROOT / name)
    return copy


@pytest.mark.slow
@pytest.mark.zookeeper
def test_an_api_is_one_handler_and_its_schema(tree: Path) -> None:
    shutil.copy(PLANTED / "stamp_topic.py", tree / "brokers" / "api")
    for schema in PLANTED.glob("*.json"):
        shutil.copy(schema, tree / "wire" / "schemas")
    old = run(tree, "tools.generate", "--check")
    assert {line.split()[0] for line in old.splitlines()} >= {"wire/api_keys.py", "wire/requests.py", "docs/apis.md"}
    run(tree, "tools.generate")
    assert "| 11900 | StampTopic | 0 | 1 |" in (tree / "docs" / "apis.md").read_text()
    tried = run(tree, "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *WALKS)
    assert " passed" in tried
    assert not {"failed", "error"} & set(tried.splitlines()[-1].split()), tried


def test_a_setting_is_one_line(tree: Path) -> None:
    """Its name, type, bounds and text are known to the reader of files, to the broker and to the command."""
    path = tree / "brokers" / "config.py"
    before, line, after = path.read_text().partition("    broker_rack: ")
    planted = '    stamps_per_topic_max: int = setting(INT, 3, "So many stamps a topic may have.", low=1)\n'
    path.write_text(before + planted + line + after)
    shown = run(tree, "fleetlog.brokers.cli.main", "config")
    assert "stamps.per.topic.max = 3  (at least 1)\n    So many stamps a topic may have.\n" in shown
    properties = tree / "broker.properties"
    properties.write_text("broker.id=1\nzookeeper.connect=127.0.0.1:1\nstamps.per.topic.max=0\n")
    refused = run(tree, "fleetlog.brokers.cli.main", "broker", str(properties))
    assert "stamps.per.topic.max" in refused
    assert "at least 1" in refused


def test_a_command_is_its_module_and_a_line(tree: Path) -> None:
    """The line is for the help, which imports no command."""
    shutil.copy(PLANTED / "stamps.py", tree / "brokers" / "cli")
    path = tree / "brokers" / "cli" / "main.py"
    before, line, after = path.read_text().partition('    "topics": ')
    planted = '    "stamps": "Stamps: count.",\n'
    path.write_text(before + planted + line + after)
    assert "Stamps: count." in run(tree, "fleetlog.brokers.cli.main", "--help")
    assert run(tree, "fleetlog.brokers.cli.main", "stamps", "red", "blue") == "2\n"


def run(tree: Path, module: str, *words: str) -> str:
    """What the module prints in that tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=240, check=False)
    return done.stdout + done.stderr
