"""The previous session of a broker, so that after a crash it can be closed at once instead of waiting for its expiry.

Its credentials are in a file beside the logs. A process that has the lock on the logs and finds the file knows that the
session's owner is dead. The file contains its own inode and the machine's boot id: a copy (a backup, a cloned machine)
is invalid, otherwise it would close the session of the live broker that it was copied from.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE_NAME = "zookeeper-session.json"


class PreviousSession:
    """The file; ``boot_id`` identifies the machine since its last start. I/O errors count as "no file"."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id

    def load(self) -> tuple[int, bytes] | None:
        """Session id and password of the previous session, or None without one that is certainly this broker's."""
        try:
            document = json.loads(self._path.read_text())
            if document["identity"] != self._identity():
                return None
            return int(document["session_id"]), bytes.fromhex(document["password"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, session_id: int, password: bytes) -> None:
        """Store the present session, readable by the owner only: the password gives access to the session."""
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
            pass  # the next start then waits for the session's expiry

    def _identity(self) -> list[object]:
        stat = self._path.stat()
        return [self._boot_id, stat.st_dev, stat.st_ino]

    def forget(self) -> None:
        """Delete the file: the session was closed."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            pass
