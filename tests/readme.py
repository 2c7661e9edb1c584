"""The snippets of the README, and of other pages, for tests that run them as they are printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from fleetlog.coordination.ports import free_row, is_free

ROOT = Path(__file__).parents[1]
FIRST_PORT = 9092
LIMIT_S = 240.0


def snippets(heading: str, language: str = "", page: str = "README.md") -> list[str]:
    """The fenced blocks of a language below a heading, in their order."""
    text = (ROOT / page).read_text()
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no heading {heading}"
    blocks = re.findall(r"^```([a-z]*)\n(.*?)^```$", found[1], re.MULTILINE | re.DOTALL)
    return [block for kind, block in blocks if kind == language]


def own_port() -> int:
    """The first port that pages print, or the first of three others in a row that are free."""
    return FIRST_PORT if all(map(is_free, range(FIRST_PORT, FIRST_PORT + 3))) else free_row(3)[0]


class PageReader:
    """A reader of a page with a shell, in a directory of their own. ``environment``: with the PATH that they have."""

    def __init__(self, home: Path, port: int, environment: Mapping[str, str], cwd: Path = ROOT) -> None:
        self.port, self._cwd = port, cwd
        self._environment = {**environment, "FLEETLOG_DEV_DIR": str(home)}
        if port != FIRST_PORT:
            self._environment["FLEETLOG_BOOTSTRAP"] = f"127.0.0.1:{port}"

    def own(self, text: str) -> str:
        """What is printed, with this reader's ports."""
        if self.port == FIRST_PORT:
            return text
        text = text.replace("dev up ", f"dev up --port {self.port} ")
        printed = "|".join(str(FIRST_PORT + number) for number in range(3))
        return re.sub(printed, lambda found: str(self.port + int(found[0]) - FIRST_PORT), text)

    def run(self, *commands: str, limit_s: float = LIMIT_S) -> str:
        """The output of the commands, each of which must do."""
        text = "\n".join(commands).replace(".venv/bin/", "")
        return self._do(["bash", "-e", "-o", "pipefail", "-c", self.own(text)], limit_s)

    def python(self, snippet: str) -> None:
        """Run a program."""
        self._do([sys.executable, "-c", self.own(snippet)], LIMIT_S)

    def _do(self, command: list[str], limit_s: float) -> str:
        process = subprocess.Popen(
            command, cwd=self._cwd, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # what it started holds its output open
            process.communicate()
            raise
        assert process.returncode == 0, f"{command[-1]}\n{out}\n{err}"
        return out
