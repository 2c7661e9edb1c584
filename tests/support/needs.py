"""What a few tests need and README does not ask for: without it they are skipped, but never in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

import pytest

PACKAGES: Final = {
    "chromedriver": "apt install chromium-driver",
    "chromium": "apt install chromium",
    "kcat": "apt install kcat",
    "node": "apt install nodejs",
    "npm": "apt install npm",
    "promtool": "Debian's package prometheus has it, or FLEETLOG_PROMTOOL=path",
    "valgrind": "apt install valgrind",
}
"""The whole list, and where each comes from."""


def program(name: str) -> str | None:
    """Its path."""
    return os.environ.get(f"FLEETLOG_{name.upper()}") or shutil.which(name)


def needs(*names: str) -> pytest.MarkDecorator:
    """Skip where one of these programs is missing, unless in CI: there the test runs, and fails."""
    missing = [name for name in names if program(name) is None]
    reason = "; ".join(f"no {name}: {PACKAGES[name]}" for name in names)
    return pytest.mark.skipif(bool(missing) and "CI" not in os.environ, reason=reason)


def needs_mounts() -> None:
    """Skip where this process may make no mount namespace, as in a container without the rights, unless in CI."""
    allowed = subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True, check=False)
    if allowed.returncode and "CI" not in os.environ:
        pytest.skip("no mount namespaces here")
