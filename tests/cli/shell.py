"""The command line against a fleet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from fleetlog.brokers.cli.main import cli
from tests.support.fleet import Fleet

ROOT = Path(__file__).parents[2]


class Shell:
    """Runs ``fleetlog``: in this process, which is quick, or with ``start`` as one of its own."""

    def __init__(self, fleet: Fleet) -> None:
        self.environment = {"FLEETLOG_BOOTSTRAP": fleet.bootstrap}

    def run(self, *arguments: str, stdin: str = "", code: int = 0) -> Result:
        result = CliRunner().invoke(
            cli, list(arguments), input=stdin, env=self.environment, prog_name="fleetlog", catch_exceptions=False
        )
        assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.stdout}\n{result.stderr}"
        return result

    def json(self, *arguments: str, **kw: Any) -> Any:
        return json.loads(self.run(*arguments, "--json", **kw).stdout)

    def lines(self, *arguments: str, **kw: Any) -> list[str]:
        return self.run(*arguments, **kw).stdout.splitlines()

    def start(self, *arguments: str, stdin: int | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fleetlog.brokers.cli.main", *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
            cwd=ROOT,
        )

    def fails(self, *arguments: str, stdin: str = "") -> str:
        """The one line a command that did not work prints."""
        result = self.run(*arguments, stdin=stdin, code=1)
        (line,) = result.stderr.splitlines()
        assert line.startswith("fleetlog: ")
        return line
