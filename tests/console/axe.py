"""axe-core, which looks for what keeps people from using a page: npm's package, fetched once and kept in ``build/npm``.

FLEETLOG_AXE names a directory that has its archive.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import urllib.request
from pathlib import Path
from typing import Final

from tests.support.needs import lacks

ARCHIVE: Final = "axe-core-4.10.3.tgz"
ADDRESS: Final = f"https://registry.npmjs.org/axe-core/-/{ARCHIVE}"
SHA512: Final = (
    "5e6edba515e70d25f6604d9815f064d859c5d1ea7ab661bbc4f87c88779ef0c2"
    "1cae0abbeb636471ef39e9d62d2582e4b88a1866f19f4ecfcf6d986275e4dc12"
)
FETCH_S: Final = 60


def axe_source() -> str:
    """The script. Where it cannot be had the test is skipped, but fails in CI."""
    directory = Path(os.environ.get("FLEETLOG_AXE") or Path(__file__).parents[2] / "build" / "npm")
    archive = directory / ARCHIVE
    if not archive.is_file():
        try:
            with urllib.request.urlopen(ADDRESS, timeout=FETCH_S) as answer:
                packed = answer.read()
        except OSError as error:
            lacks("axe-core", error)
        directory.mkdir(parents=True, exist_ok=True)
        partial = archive.with_suffix(f".{os.getpid()}")
        partial.write_bytes(packed)
        partial.replace(archive)
    assert hashlib.sha512(archive.read_bytes()).hexdigest() == SHA512, f"{archive} is another file"
    with tarfile.open(archive) as files:
        script = files.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()
