"""A group member in a process of its own (``tests.interop.member``), and what it says."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from tests.support.waiting import eventually

PARTITIONS = 6
"""Of the topics that members share."""
WAIT_S = 180.0


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


def shared(members: list[Member], what: str) -> None:
    """Wait until each partition is with exactly one of the members, and all of them have some."""
    eventually(
        lambda: [member.assignment for member in members], what, timeout_s=WAIT_S,
        good=lambda every: sorted(itertools.chain(*every)) == list(range(PARTITIONS)) and all(every),
    )  # fmt: skip


def read_by(members: list[Member], expected: set[str], what: str) -> None:
    eventually(
        lambda: {value for member in members for _, _, value in member.records}, what, timeout_s=WAIT_S,
        good=lambda values: values == expected,
    )  # fmt: skip


def committed_once(members: list[Member]) -> None:
    """No record was read again whose commit was acknowledged: that would be more than at-least-once."""
    twice = {row: count for row, count in Counter(row for m in members for row in m.commits).items() if count > 1}
    assert not twice
