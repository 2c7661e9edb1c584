"""FLEETLOG_NATIVE: a forced choice is had or refused, never replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ("batch", "columns", "compact", "files", "io", "tally", "wire")
SHOW = """
import importlib
from fleetlog import _native
for kernel in {!r}:
    importlib.import_module("fleetlog._native." + kernel)
print(_native.REASONS)
"""


def run(choice: str, code: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FLEETLOG_NATIVE": choice, "PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, cwd="/"
    )


@pytest.mark.parametrize(("choice", "twin"), [("pure", "pure"), ("cython", "cython"), ("auto", "cython")])
def test_the_choice_is_what_one_gets(choice: str, twin: str) -> None:
    code = SHOW.format(KERNELS) + "print(_native.IMPLEMENTATION)"
    done = run(choice, code)
    assert done.returncode == 0, done.stderr
    reasons, implementation = done.stdout.splitlines()
    assert implementation == twin
    assert reasons.count(f"'{twin}: ") == len(KERNELS)


def test_a_word_that_is_no_choice_is_refused() -> None:
    done = run("fast", "import fleetlog._native")
    assert done.returncode != 0
    assert "must be auto, cython or pure" in done.stderr


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_the_compiled_kernel(tmp_path: Path, kernel: str) -> None:
    package = tmp_path / "fleetlog" / "_native"
    package.mkdir(parents=True)
    (tmp_path / "fleetlog" / "__init__.py").touch()
    for source in (ROOT / "_native").glob("*.py"):
        (package / source.name).write_text(source.read_text())
    refused = run("cython", f"import fleetlog._native.{kernel}", tmp_path)
    assert refused.returncode != 0
    assert "FLEETLOG_NATIVE=cython, but the compiled kernel" in refused.stderr
    code = f"from fleetlog._native import {kernel}, IMPLEMENTATION, REASONS; print(IMPLEMENTATION, REASONS)"
    falls_back = run("auto", code, tmp_path)
    assert falls_back.returncode == 0, falls_back.stderr
    assert falls_back.stdout.startswith("pure {")
    assert "No module named" in falls_back.stdout


def test_a_kernel_that_is_older_than_its_source_says_so(tmp_path: Path) -> None:
    package = tmp_path / "fleetlog" / "_native"
    package.mkdir(parents=True)
    (tmp_path / "fleetlog" / "__init__.py").touch()
    for source in (ROOT / "_native").glob("*.py"):
        (package / source.name).write_text(source.read_text())
    (package / "io_cy.py").write_text("def send_slices(): ...\n")
    refused = run("auto", "import fleetlog._native.io", tmp_path)
    assert refused.returncode != 0
    assert "is older than its source, it has no" in refused.stderr
    assert "setup.py build_ext --inplace" in refused.stderr
