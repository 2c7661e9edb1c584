"""``python -m tests.schemas.registry_histories 0-99999 FILE``: histories of registries, each seed of the range once."""

from __future__ import annotations

import sys

from tests.schemas.registry_world import run
from tests.support.seed_ranges import run_range

if __name__ == "__main__":
    sys.exit(run_range("tests.schemas.registry_histories", __doc__, run))
