"""Python environments with a PySpark each, made when first asked for and kept.

Each is made as somebody has it who uses Spark already: PySpark first, then what ``fleetlog[spark]`` requires beside it.
The package itself is not installed there: what is tried is this directory, whose kernels the same Python has compiled.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
VERSIONS = ("3.5", "4.0", "4.1", "4.2", "4.3")
"""What the extra ``spark`` allows."""


def directory_of_environments() -> Path:
    """Where they are kept: ``FLEETLOG_SPARK_ENVIRONMENTS``, or the user's directory for what can be made again."""
    given = os.environ.get("FLEETLOG_SPARK_ENVIRONMENTS")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fleetlog-spark"


def requirements() -> list[str]:
    """What the package and its extra ``spark`` require, PySpark included: an installed one must satisfy it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["spark"]]


def environment(version: str) -> Path:
    """The Python of an environment with the newest PySpark ``version.x``. Made anew when requirements changed."""
    key = hashlib.sha256("\n".join([sys.version, version, *requirements()]).encode()).hexdigest()[:12]
    home = directory_of_environments() / f"{version}-{key}"
    home.parent.mkdir(parents=True, exist_ok=True)
    python = home / "bin" / "python"
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be making it
        if not (home / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
            pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run([*pip, f"pyspark=={version}.*"], check=True)
            subprocess.run([*pip, *requirements()], check=True)
            subprocess.run([str(python), "-m", "pip", "check"], check=True)
            (home / "ready").touch()
    return python


def installed(python: Path) -> str:
    """Its PySpark's version."""
    command = [str(python), "-c", "import pyspark; print(pyspark.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
