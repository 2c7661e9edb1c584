"""What a few tests need and README does not ask for: without it they are skipped, but never in CI.

What may be skipped, and why, stands here whole; nothing else in the tests skips (``tests/test_tidy.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final, NoReturn

import pytest

PACKAGES: Final = {
    "chromedriver": "apt install chromium-driver",
    "chromium": "apt install chromium",
    "kcat": "apt install kcat",
    "node": "apt install nodejs",
    "npm": "apt install npm",
    "promtool": "Debian's package prometheus has it, or FLEETLOG_PROMTOOL=path",
    "systemd-analyze": "apt install systemd",
    "valgrind": "apt install valgrind",
}
"""Programs, and where each comes from."""
MACHINE: Final = {
    "axe-core": "npm's archive of axe-core cannot be had",
    "mount namespaces": "no mount namespaces here",
}
"""What this machine may be without: missing in CI, it fails there."""
ANYWHERE: Final = {
    "cold files": "this file system keeps its pages, or cannot say whether it has them",
    "kubectl": "no kubectl here, and Debian's is too old",
    "compiled kernels": "the kernels are not compiled: FLEETLOG_NATIVE=pure",
    "memory given back": "the system's library gives nothing back on demand",
}
"""What the test is about, and not there: skipped in CI, too."""


def program(name: str) -> str | None:
    """Its path."""
    return os.environ.get(f"FLEETLOG_{name.upper().replace('-', '_')}") or shutil.which(name)


def needs(*names: str) -> pytest.MarkDecorator:
    """Skip where one of these programs is missing, unless in CI: there the test runs, and fails."""
    missing = [name for name in names if program(name) is None]
    reason = "; ".join(f"no {name}: {PACKAGES[name]}" for name in names)
    return pytest.mark.skipif(bool(missing) and "CI" not in os.environ, reason=reason)


def having(what: str, there: bool) -> pytest.MarkDecorator:
    """Skip where it is not ``there``: one of :data:`ANYWHERE`."""
    return pytest.mark.skipif(not there, reason=ANYWHERE[what])


def lacks(what: str, cause: OSError | None = None) -> NoReturn:
    """End this test, which lacks one of :data:`MACHINE` or :data:`ANYWHERE`: skipped, or failed in CI."""
    if what in MACHINE and "CI" in os.environ:
        pytest.fail(f"{MACHINE[what]}: {cause}" if cause is not None else MACHINE[what])
    pytest.skip({**MACHINE, **ANYWHERE}[what])


def needs_mounts() -> None:
    """Skip where this process may make no mount namespace, as in a container without the rights, unless in CI."""
    allowed = subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True, check=False)
    if allowed.returncode:
        lacks("mount namespaces")
