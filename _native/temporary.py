"""A user's own folder for what processes of one user share on a machine.

The directory for temporary files belongs to everybody, and anybody may take a name in it. So the folder is looked at
each time that it is used: what other users could have made or changed is neither read, run nor written.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def own_directory(name: str) -> Path:
    """The folder ``name`` in the user's own folder below the directory for temporary files; both are made if missing.

    Raises PermissionError where another user made that folder or may enter it, and other errors of the file system.
    """
    shared = Path(tempfile.gettempdir())
    own = shared / f"fleetlog-{os.getuid()}"
    mode = shared.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise _refused(own, f"anybody may replace what is in {shared}, which lacks the sticky bit (chmod +t)")
    try:
        own.mkdir(mode=0o700)
    except FileExistsError:
        status = own.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise _refused(own, "it is no folder") from None
        if status.st_uid != os.getuid():
            raise _refused(own, f"it belongs to user {status.st_uid}") from None
        if status.st_mode & _OF_OTHERS:
            raise _refused(own, f"others may enter it (mode {stat.S_IMODE(status.st_mode):o}, 700 is needed)") from None
    directory = own / name
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _refused(own: Path, why: str) -> PermissionError:
    return PermissionError(f"{own} is not used, since {why}: remove it, or set TMPDIR to a folder of your own")
