"""A group member in a process of its own (``tests.interop.member``), and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path


class Member:
    """The process, and its output."""

    def __init__(self, client: str, bootstrap: str, topic: str, group: str, instance: str | None = None) -> None:
        command = [sys.executable, "-m", "tests.interop.member", client, bootstrap, topic, group]
        self.process = subprocess.Popen(
            command + ([instance] if instance else []),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        self.assignments: list[list[int]] = []
        self.records: list[tuple[int, int, str]] = []
        self.commits: list[tuple[str, int, int]] = []
        """The records whose commit the member was told of, by those members that say it."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "assigned" in said:
                self.assignments.append(said["assigned"])
            elif "committed" in said:
                self.commits.append(tuple(said["committed"]))
            else:
                self.records.append((said["p"], said["o"], said["v"]))

    @property
    def assignment(self) -> list[int]:
        return self.assignments[-1] if self.assignments else []
