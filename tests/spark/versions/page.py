"""A stranger's path: docs/spark-versions.md, followed command by command as it is printed.

The trial of 4.0 walks it in an environment that has what is required already. ``python -m tests.spark.versions --page
4.0`` does it as the stranger has it, from an environment with nothing but PySpark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.readme import ROOT, PageReader, own_port, snippets
from tests.spark.versions.trial import NoFault

PAGE = "docs/spark-versions.md"
HEADING = "Into an environment that has Spark already"
ORDERS = 10_000
"""So many the page makes."""


def java_of(python: Path) -> dict[str, str]:
    """The variable for a Java on which the PySpark of that Python runs, where PATH has none."""
    code = "from fleetlog.spark import spark_environment; print(spark_environment().get('JAVA_HOME', ''))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True, env=env)
    return {"JAVA_HOME": done.stdout.strip()} if done.stdout.strip() else {}


def layered(python: Path, directory: Path) -> Path:
    """The Python of a new environment that has what another one has, so that nothing is installed into that one."""
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    below = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run([str(python), "-m", "venv", str(directory)], check=True)
    new = directory / "bin" / "python"
    own = subprocess.run([str(new), *command[1:]], capture_output=True, text=True, check=True).stdout.strip()
    (Path(own) / "below.pth").write_text(f"{below}\n")
    return new


class Walk:
    """One stranger, in a directory with nothing but the wheels. ``java``: the variable for a Java, if it needs one."""

    def __init__(self, python: Path, java: dict[str, str], directory: Path, deadline: float) -> None:
        self._python, self._directory, self._deadline = python, directory, deadline
        own = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK_"))
        }
        path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**own, **java, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
        self._shell = PageReader(directory / "dev", own_port(), self._environment, directory)
        self._build, self._install, self._brokers, self._run = snippets(HEADING, page=PAGE)
        (self._job,) = snippets(HEADING, "python", PAGE)
        self._times: list[str] = []

    @contextmanager
    def _step(self, name: str) -> Iterator[float]:
        """A step, with the seconds it may take. Raises NoFault."""
        began = time.monotonic()
        limit_s = max(1.0, self._deadline - began)
        try:
            yield limit_s
        except subprocess.TimeoutExpired:
            raise NoFault(f"the machine was too slow: {name} of {PAGE} took more than {limit_s:.0f} s") from None
        except AssertionError as problem:
            if "connect back" in str(problem):
                raise NoFault(
                    "the machine was too busy: a Python worker of Spark's took more than ten seconds"
                ) from None
            raise
        self._times.append(f"{name} {time.monotonic() - began:.0f} s")

    def run(self, wheels: Path | None) -> str:
        """Every step; how long each took. ``wheels``: instead of making one. Raises AssertionError, NoFault."""
        if wheels is None:
            with self._step("wheel") as limit_s:
                source = PageReader(self._directory / "dev", self._shell.port, self._environment, ROOT)
                source.run(
                    self._build.replace("wheels.sh ", f"wheels.sh --out {self._directory}/dist "), limit_s=limit_s
                )
        else:
            shutil.copytree(wheels, self._directory / "dist")
        with self._step("install") as limit_s:
            said = self._shell.run(self._install, limit_s=limit_s).splitlines()
            assert said[-1] == f"{said[0]} cython", said
        try:
            with self._step("brokers") as limit_s:
                self._shell.run(self._brokers, limit_s=limit_s)
            (self._directory / "first.py").write_text(self._shell.own(self._job))
            with self._step("job, twice") as limit_s:
                said = self._shell.run(self._run, limit_s=limit_s).splitlines()
                assert f"{ORDERS} 0" in said, said
        finally:
            self._shell.run("fleetlog dev down")
        return ", ".join(self._times)
