"""The bucket of a run with ``--bucket``: a small file system of its own, whose calls fail and wait as the board says.

The shim of the brokers' processes looks at each opening, linking and removing of a file in it.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = {"remote.storage.enable": "true", "local.retention.bytes": str(1 << 18)}
"""Of topics that are not compacted: two or three segments stay on the disks."""
VARIABLE = "CHAOS_TIERED"
"""Set for programs of a run with a bucket."""
GONE_S = 90.0
"""Within that time objects of deleted topics go."""
_BOARD = struct.Struct("=qqqq")


class ChaosBucket:
    """Where it is mounted; what happens to its calls, and how many it happened to."""

    def __init__(self, directory: Path) -> None:
        self.disk = directory
        self.objects = directory / "objects"
        self.ballast = directory / "ballast"
        self._file = directory.with_suffix(".board")
        self._file.write_bytes(bytes(_BOARD.size))
        with self._file.open("r+b") as board:
            self._board = mmap.mmap(board.fileno(), _BOARD.size)

    @property
    def url(self) -> str:
        """As brokers have it."""
        return f"file://{self.objects}"

    @property
    def broker_settings(self) -> dict[str, object]:
        """What brokers need besides all else."""
        return {
            "remote.log.storage.system.enable": "true",
            "fleetlog.bucket.url": self.url,
            "fleetlog.bucket.cache.bytes": 16 << 20,
            "remote.log.manager.task.interval.ms": 500,
            "log.retention.check.interval.ms": 1_000,
        }

    @property
    def environment(self) -> dict[str, str]:
        """By which the shim finds it."""
        return {"CHAOS_BUCKET": str(self.objects), "CHAOS_BUCKET_BOARD": str(self._file)}

    def trouble(self, failing: int = 0, lost: int = 0, longest_ms: int = 0) -> None:
        """Of a thousand calls so many fail from now on, so many are done and fail nevertheless; each waits up to
        that."""
        self._board[0:24] = struct.pack("=qqq", failing, lost, longest_ms * 1_000)

    def heal(self) -> None:
        """Nothing fails any more, and there is space."""
        self.trouble()
        self.ballast.unlink(missing_ok=True)

    def hits(self) -> int:
        """How many calls failed or waited so far."""
        return int(_BOARD.unpack(self._board[:])[3])

    def left(self, topic: str) -> list[str]:
        """Folders with records of topics of that name, but for one that may live, once it is long enough ago."""
        until = time.monotonic() + GONE_S
        while True:
            folders = sorted({str(path.parents[1].name) for path in self.objects.glob(f"topics/{topic}.*/*/*.log")})
            if len(folders) <= 1:
                return []
            if time.monotonic() > until:
                return [f"the bucket: topics were deleted, and have records there: {folders}"]
            time.sleep(1.0)

    def problems(self) -> list[str]:
        """What ``fleetlog bucket verify`` says is wrong, with all records."""
        command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "bucket", "verify", self.url, "-r", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
        try:
            return [f"the bucket: {problem}" for problem in json.loads(done.stdout)["problems"]]
        except ValueError:
            return [f"the bucket cannot be verified: {done.stderr.strip()}"]


def finalize(bootstrap: str) -> None:
    """Topics may be tiered from now on; programs that are started later know it."""
    os.environ[VARIABLE] = "1"
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "features", "upgrade", "fleetlog.tiering.version=2"]
    subprocess.run([*command, "-b", bootstrap], check=True, capture_output=True, timeout=60, cwd=ROOT)
