"""CPU of a process and of all that it started, of those that have ended as well."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


class ProcessTree:
    """A process by its id, its children and theirs. What none of `look` has seen is not counted."""

    def __init__(self, pid: int) -> None:
        self._root = pid
        self._used: dict[tuple[int, int], int] = {}

    def cpu_s(self) -> float:
        """Seconds of CPU so far."""
        self.look()
        return sum(self._used.values()) / TICK

    def look(self) -> None:
        """Note what each has used. A process's CPU is lost with it, its parent may be gone, too: look often enough."""
        parents: dict[int, int] = {}
        found: dict[int, tuple[int, int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    parents[int(entry.name)] = int(fields[1])
                    found[int(entry.name)] = int(fields[19]), int(fields[11]) + int(fields[12])
        tree = {self._root}
        while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
            tree |= more
        for pid in tree & found.keys():
            born, used = found[pid]
            self._used[pid, born] = used
