"""Blocks of docs/security.md, and the shell that runs them as they are printed."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"


def recipe(heading: str, language: str) -> list[str]:
    """The blocks of a language below a heading of any depth, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^##+ |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{PAGE.name} has no heading {heading}"
    blocks = re.findall(rf"^ *```{language}\n(.*?)^ *```$", found[1], re.MULTILINE | re.DOTALL)
    assert blocks, f"{PAGE.name}, {heading}: no {language}"
    return blocks


def run_printed(commands: str, directory: Path, answers: str = "", *, pipe: bool = False, **environment: str) -> str:
    """Run commands by bash in a directory, at a terminal; what they print. AssertionError where one fails.

    ``answers``: what is typed at prompts. ``pipe``: the input is no terminal, whose prompts for passwords forget what
    was typed before them.
    """
    shell = f'fleetlog() {{ "{sys.executable}" -m fleetlog.brokers.cli.main "$@"; }}\n{commands}'
    read, typed = os.pipe() if pipe else reversed(pty.openpty())
    try:
        os.write(typed, answers.encode())
        done = subprocess.run(
            ["bash", "-e", "-c", shell],
            cwd=directory,
            stdin=read,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            start_new_session=True,
        )
    finally:
        os.close(read)
        os.close(typed)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
