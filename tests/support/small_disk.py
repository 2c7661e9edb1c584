"""A broker's log directory on a small file system that can be filled."""

from __future__ import annotations

import errno
import shlex
from pathlib import Path

from tests.support.fleet import Broker
from tests.support.needs import needs_mounts

DISK_MB = 48


class SmallDisk:
    """A tmpfs in a mount namespace of the broker's own, which needs no root; it is reached through ``/proc``."""

    def __init__(self, broker: Broker) -> None:
        needs_mounts()
        self.broker = broker
        self.path = broker.directory / "data"
        self.path.mkdir()
        mount = f"mount -t tmpfs -o size={DISK_MB}m tmpfs {shlex.quote(str(self.path))}"
        broker.within = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]

    @property
    def ballast(self) -> Path:
        assert self.broker.process is not None
        return Path(f"/proc/{self.broker.process.pid}/root{self.path}/ballast")

    def fill(self) -> None:
        """Take all that is left."""
        with self.ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as full:
                if full.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        """Give it back."""
        self.ballast.unlink()
