"""The session of a broker's former life, so that after a crash it can be ended at once instead of waited for.

Its credentials lie in a file beside the logs. Whoever holds the lock on the logs and finds them there knows that their
owner is dead. The file names its own inode and the machine's boot: a copy (a backup, a cloned machine) says nothing,
or else it would end the session of the live broker it was copied from.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE_NAME = "zookeeper-session.json"


class FormerSession:
    """The file; ``boot_id`` identifies the machine since its last start. I/O errors count as "no file"."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id

    def load(self) -> tuple[int, bytes] | None:
        """Session id and password of the former life, or None when there is none that is surely ours."""
        try:
            document = json.loads(self._path.read_text())
            if document["identity"] != self._identity():
                return None
            return int(document["session_id"]), bytes.fromhex(document["password"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, session_id: int, password: bytes) -> None:
        """Write the present session down. The password lets its holder act in our name: for the owner's eyes only."""
        try:
            self._path.unlink(missing_ok=True)
            self._path.touch(mode=0o600)
            document = {
                "identity": self._identity(),
                "session_id": session_id,
                "password": password.hex(),
            }
            self._path.write_text(json.dumps(document) + "\n")
        except OSError:
            pass  # the next start waits for the session's expiry, that is all

    def _identity(self) -> list[object]:
        stat = self._path.stat()
        return [self._boot_id, stat.st_dev, stat.st_ino]

    def forget(self) -> None:
        """The session was closed properly."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            pass
