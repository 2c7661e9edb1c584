"""A disk that is slow for one process: its fsync takes as much longer as a test says, through slow_disk.c."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("slow_disk.c")


class SlowDisk:
    """Needs a C compiler. A process that is started with :attr:`environment` sees it."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        assert compiler is not None, "a slow disk needs a C compiler: apt install gcc libc6-dev"
        library, board = directory / "slow_disk.so", directory / "slow_disk.board"
        subprocess.run(
            [compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"],
            check=True,
        )
        board.write_bytes(bytes(8))
        with board.open("r+b") as file:
            self._board = mmap.mmap(file.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "SLOW_DISK": str(board)}

    def delay(self, seconds: float) -> None:
        """From now on each fsync takes that much longer; 0 puts it right."""
        self._board[0:8] = struct.pack("=q", int(seconds * 1e6))
