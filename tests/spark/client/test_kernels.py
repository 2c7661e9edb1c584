"""Executors whose Python has no compiled kernels say so, and fail where kernels are required."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fleetlog import _native
from fleetlog.spark import OptionError
from fleetlog.spark.client.kernels import check_kernels
from tests.support.needs import having

ROOT = Path(__file__).parents[3]
TASK = """
from fleetlog.spark.client.kernels import check_kernels
from fleetlog.spark.source import decode
from fleetlog.spark.sink import writer
check_kernels()
check_kernels("auto")
"""


def ran(directory: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "FLEETLOG_NATIVE"}
    env = {**inherited, "PYTHONPATH": str(directory), **environment}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory, env=env)


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is installed without a compiler."""
    directory = tmp_path_factory.mktemp("pure")
    (directory / "fleetlog").mkdir()
    shutil.copy(ROOT / "fleetlog" / "__init__.py", directory / "fleetlog")
    for name in ("_native", "wire", "spark"):
        without = shutil.ignore_patterns("*.so", "*.pyx", "*.c")
        shutil.copytree(ROOT / "fleetlog" / name, directory / "fleetlog" / name, ignore=without)
    return directory


def test_a_python_without_kernels_says_so_once_with_the_reason(pure: Path) -> None:
    done = ran(pure, TASK)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "not compiled" in line]
    assert len(said) == 1
    assert "No module named 'fleetlog._native.batch_cy'" in said[0]
    assert "many times longer" in said[0]


def test_required_kernels_fail_a_task_without_them(pure: Path) -> None:
    done = ran(pure, TASK.replace('"auto"', '"required"'))
    assert "OptionError: spark.fleetlog.native=required: " in done.stderr
    assert "No module named 'fleetlog._native.batch_cy'" in done.stderr


def test_a_choice_is_no_reason_to_warn(pure: Path) -> None:
    assert "not compiled" not in ran(pure, TASK, FLEETLOG_NATIVE="pure").stderr


@having("compiled kernels", _native.IMPLEMENTATION != "pure")
def test_compiled_kernels_satisfy_both() -> None:
    done = ran(ROOT, TASK.replace('"auto"', '"required"'))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_word_that_is_neither_is_refused() -> None:
    with pytest.raises(OptionError, match=r"spark\.fleetlog\.native: 'requird' is not auto or required"):
        check_kernels("requird")
