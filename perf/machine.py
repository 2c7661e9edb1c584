"""What machine and which versions a measurement was made with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from perf.build import ROOT

LIBRARIES = ("uvloop", "kazoo", "kafka-python", "confluent-kafka", "Cython")


def describe() -> dict[str, Any]:
    """Machine, kernel, versions, and which state of the source."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": _first_line(["java", "-version"]),
        "revision": _first_line(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]) + _changed(),
        **{name: _version(name) for name in LIBRARIES},
    }


def load() -> float:
    """Processes that wait for or use a core, on average over the last minute."""
    return os.getloadavg()[0]


def command() -> str:
    """What was typed to get here."""
    words = iter(sys.argv[1:])
    kept = ["python -m perf"]
    for word in words:
        if word in ("--tree", "--dir"):  # has no meaning on another machine
            next(words, None)
        else:
            kept.append(word)
    return " ".join(kept)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _changed() -> str:
    return "+" if _first_line(["git", "-C", str(ROOT), "status", "--porcelain", "-uno"]) else ""


def _first_line(words: list[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ((done.stdout or done.stderr).splitlines() or [""])[0]
