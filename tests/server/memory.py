"""What a process holds in memory."""

from __future__ import annotations

import re
from pathlib import Path


def rss_mib(pid: int, field: str = "VmRSS") -> float:
    """VmRSS, or the peak with VmHWM."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
