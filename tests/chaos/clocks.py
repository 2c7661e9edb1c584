"""Wall clocks that can be moved: one per host, for all its processes, through the shim in shim.c."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")


class ClockError(Exception):
    """The shim cannot be built; the message is the compiler's."""


def build(directory: Path) -> Path:
    """Compile the shim into the directory; raises ClockError."""
    library = directory / "shim.so"
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise ClockError("clock jumps need a C compiler: apt install gcc libc6-dev")
    command = [compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClockError(done.stderr)
    return library


class HostClock:
    """The clock of one host. The processes started with :attr:`environment` see it."""

    def __init__(self, library: Path, file: Path) -> None:
        file.write_bytes(bytes(16))
        with file.open("r+b") as board:
            self._board = mmap.mmap(board.fileno(), 16)
        self.environment: dict[str, str] = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(file)}

    def jump(self, offset_s: float) -> None:
        """From now on the host's wall clock is off by this much; 0 puts it right."""
        self._board[0:8] = struct.pack("=q", int(offset_s * 1e9))

    def readings(self) -> int:
        """How many readings were answered with a wrong time so far."""
        return int(struct.unpack("=q", self._board[8:16])[0])
