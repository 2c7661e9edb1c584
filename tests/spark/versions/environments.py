"""Python environments with a PySpark each, made when first asked for and kept.

Each is made as somebody has it who uses Spark already: PySpark first, then what ``fleetlog[spark]`` requires beside it.
The package itself is not installed there: what is tried is this directory, whose kernels the same Python has compiled.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import TextIO

from tests.spark.matrix.sessions import signal_all

ROOT = Path(__file__).parents[3]
VERSIONS = ("3.5", "4.0", "4.1", "4.2", "4.3")
"""What the extra ``spark`` allows."""
PIPELINES = ("4.1", "4.2", "4.3")
"""Those with declarative pipelines, whose command needs more than the extra ``spark``."""
LIMIT_S = 120.0
"""In which an environment is made: a quick index and two cores need 40 s."""
INDEX_WAIT = ["--timeout", "15", "--retries", "2"]
SILENT_INDEX = re.compile(
    r"from versions: none|Retrying \(|HTTP error|ConnectionError|TimeoutError|[Cc]onnection (broken|reset|aborted)|"
    r"IncompleteRead|incomplete-download|Temporary failure in name resolution"
)
"""What pip says when an index does not answer, or stops in the middle of a file. One that knows a package has
versions of it, whether they fit or not."""


class NoAnswer(Exception):
    """There is no environment, and nothing was found out: the package index did not answer, or not in time."""


class Unfit(Exception):
    """The package cannot be installed beside this PySpark."""


def directory_of_environments() -> Path:
    """Where they are kept: ``FLEETLOG_SPARK_ENVIRONMENTS``, or the user's directory for what can be made again."""
    given = os.environ.get("FLEETLOG_SPARK_ENVIRONMENTS")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fleetlog-spark"


def requirements(version: str) -> list[str]:
    """What the package and its extra ``spark`` require, PySpark included: an installed one must satisfy it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pipelines = ["pyspark[pipelines]"] if version in PIPELINES else []
    return [*project["dependencies"], *project["optional-dependencies"]["spark"], *pipelines]


def environment(version: str, limit_s: float | None = None) -> Path:
    """The Python of an environment with the newest PySpark ``version.x``. Made anew when requirements changed.

    Raises NoAnswer when there is none after ``limit_s`` seconds (LIMIT_S unless told); Unfit.
    """
    deadline = time.monotonic() + (LIMIT_S if limit_s is None else limit_s)
    key = hashlib.sha256("\n".join([sys.version, version, *requirements(version)]).encode()).hexdigest()[:12]
    home = directory_of_environments() / f"{version}-{key}"
    home.parent.mkdir(parents=True, exist_ok=True)
    python = home / "bin" / "python"
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        _take(lock, deadline)
        if not (home / "ready").exists():
            bare_environment(version, home, deadline)
            _step([*_pip(python), *requirements(version)], deadline)
            _step([str(python), "-m", "pip", "check"], deadline)
            (home / "ready").touch()
    return python


def bare_environment(version: str, home: Path, deadline: float) -> Path:
    """The Python of a new environment with the newest PySpark ``version.x``, and nothing else.

    Raises NoAnswer, when there is none at the ``deadline`` of the monotonic clock, too; Unfit.
    """
    python = home / "bin" / "python"
    _step([sys.executable, "-m", "venv", "--clear", str(home)], deadline)
    _step([*_pip(python), f"pyspark=={version}.*"], deadline)
    return python


def _pip(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *INDEX_WAIT]


def _take(lock: TextIO, deadline: float) -> None:
    """Lock the file, which another run has while it makes the environment. Raises NoAnswer."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise NoAnswer(f"another run has {lock.name}") from None
            time.sleep(0.2)


def _step(command: list[str], deadline: float) -> None:
    """Run one step, and end it with all that it started at the deadline. Raises NoAnswer, Unfit."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"not in time: {' '.join(command[1:])}") from None
    finally:
        if process.returncode is None:
            signal_all(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        problem = NoAnswer if SILENT_INDEX.search(said) else Unfit
        raise problem(f"{' '.join(command[1:])}: {said.strip()[-1500:]}")


def installed(python: Path) -> str:
    """Its PySpark's version."""
    command = [str(python), "-c", "import pyspark; print(pyspark.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
