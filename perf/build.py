"""Compiles the suites' small C programs when they are first needed; nothing of them is in the wheel."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "build" / "perf"
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", *(("-msse4.2",) if platform.machine() == "x86_64" else ()))


class BuildError(Exception):
    """A program cannot be compiled; the message says what is missing or wrong."""


def program(source: Path, *libraries: str) -> Path:
    """The compiled ``source``; it is compiled again when it, or a header beside it, has changed.

    Processes that compile it at the same time do not meet each other's half of a file.
    """
    digest = hashlib.sha256(" ".join((*FLAGS, *libraries)).encode())
    for file in [source, *sorted(source.parent.glob("*.h"))]:
        digest.update(file.read_bytes())
    binary = TARGET / f"{source.stem}-{digest.hexdigest()[:12]}"
    if binary.exists():
        return binary
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BuildError("the suites in perf/ need a C compiler: apt install gcc libc6-dev")
    TARGET.mkdir(parents=True, exist_ok=True)
    own = binary.with_name(f"{binary.name}.{os.getpid()}")
    command = [compiler, *FLAGS, "-o", str(own), str(source), *libraries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
    os.replace(own, binary)
    return binary
