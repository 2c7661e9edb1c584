"""``python -m tests.tiering.tier_histories 0-99999 FILE``: histories of a tiered partition, a seed each."""

from __future__ import annotations

import sys

from tests.support.seed_ranges import run_range
from tests.tiering.tier_world import run

if __name__ == "__main__":
    sys.exit(run_range("tests.tiering.tier_histories", __doc__, run))
