"""npm's ``@confluentinc/schemaregistry``, unchanged, against ``fleetlog registry`` with logins.

The package is fetched once, into ``build/npm``; FLEETLOG_NPM names a directory that has it in ``node_modules``.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.guarded_registry import Guarded
from tests.support.needs import needs
from tests.support.secured import BROKER_PASSWORD, BROKER_USER

pytestmark = [pytest.mark.npm, needs("node", "npm")]

PACKAGE = "@confluentinc/schemaregistry@1.10.1"
PROGRAM = Path(__file__).with_name("registry_client.js")


@pytest.fixture(scope="module")
def modules() -> Path:
    """The directory with ``node_modules``."""
    directory = Path(os.environ.get("FLEETLOG_NPM") or Path(__file__).parents[2] / "build" / "npm")
    if not (directory / "node_modules" / "@confluentinc" / "schemaregistry").exists():
        directory.mkdir(parents=True, exist_ok=True)
        command = "npm install --ignore-scripts --no-audit --no-fund --omit=dev --omit=optional --prefer-offline"
        subprocess.run([*command.split(), f"--prefix={directory}", PACKAGE], check=True, timeout=280)
    return directory


def test_the_client_registers_serializes_and_reads_by_password(modules: Path, tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)
    try:
        done = subprocess.run(
            ["node", str(PROGRAM), guarded.registry.url, BROKER_USER, BROKER_PASSWORD],
            env={**os.environ, "NODE_PATH": str(modules / "node_modules")}, capture_output=True, text=True,
            timeout=240, check=False,
        )  # fmt: skip
    finally:
        guarded.close()
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]
