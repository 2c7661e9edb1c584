"""deploy/wheels.sh without a build: what it takes, what it would build, and what it refuses. ``make wheels`` builds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "wheels.sh"
OURS = f"{sys.version_info.major}.{sys.version_info.minor}"


def planned(*arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the script says; it builds nothing."""
    command = ["bash", str(SCRIPT), "--plan", *arguments]
    bash = os.environ | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=bash)
    assert done.returncode == code, done.stderr
    return done


def looked_for() -> list[str]:
    """The minor versions that are looked for where none is named."""
    found = re.search('^minors="([0-9 ]+)"$', SCRIPT.read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()


def linked(directory: Path, **programs: str) -> str:
    """A PATH with these programs alone."""
    directory.mkdir()
    for name, target in programs.items():
        (directory / name.replace("_", ".")).symlink_to(target)
    return str(directory)


def tools() -> dict[str, str]:
    return {name: str(shutil.which(name)) for name in ("bash", "dirname", "sed")}


def test_a_named_python_builds_one_wheel_where_it_is_told(tmp_path: Path) -> None:
    done = planned("--out", str(tmp_path / "wheels"), sys.executable)
    assert done.stdout == f"{tmp_path}/wheels: cp{OURS.replace('.', '')} by {sys.executable}\n"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == [], "a plan makes nothing"


def test_those_of_the_path_are_found_and_the_others_are_named(tmp_path: Path) -> None:
    name = f"python{OURS.replace('.', '_')}"
    path = linked(tmp_path / "bin", **tools(), **{name: sys.executable})
    done = planned(PATH=path, HOME=str(tmp_path))
    assert done.stdout == f"{ROOT}/dist: cp{OURS.replace('.', '')} by python{OURS}\n"
    missing = [f"no Python 3.{minor} here: no wheel for it" for minor in looked_for() if f"3.{minor}" != OURS]
    assert done.stderr.splitlines() == missing


def test_without_any_python_it_says_how_to_name_one(tmp_path: Path) -> None:
    done = planned(PATH=linked(tmp_path / "bin", **tools()), HOME=str(tmp_path), code=1)
    assert done.stderr.splitlines()[-1] == "none of them is here: deploy/wheels.sh PYTHON names one"


@pytest.mark.parametrize("name", ["python3.99", "/no/such/python", "/bin/true", str(SCRIPT.parent)])
def test_what_is_no_python_is_refused_by_one_sentence(name: str) -> None:
    done = planned(sys.executable, name, code=1)
    assert done.stderr == f"{name} is no Python that runs\n"


def test_another_version_and_one_twice_are_refused(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\necho 3.9\n")
    old.chmod(0o755)
    assert planned(str(old), code=1).stderr == f"{old} is Python 3.9; fleetlog needs 3.11 or newer\n"
    again = tmp_path / "again"
    again.symlink_to(sys.executable)
    twice = planned(sys.executable, str(again), code=1).stderr
    assert twice == f"{again} and {sys.executable} are both Python {OURS}: name one of them\n"


@pytest.mark.parametrize("arguments", [["--no-such"], ["--out"], ["-h"]])
def test_its_options_are_explained(arguments: list[str]) -> None:
    done = planned(*arguments, code=2)
    assert done.stderr.startswith("Wheels for the supported Pythons: deploy/wheels.sh [--out DIRECTORY] [--plan]")
    assert "  --plan  only prints" in done.stderr


def test_the_oldest_is_what_the_project_requires() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">=3.{looked_for()[0]}"
