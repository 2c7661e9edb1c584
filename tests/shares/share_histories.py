"""``python -m tests.shares.share_histories 0-99999 FILE``: histories of a share partition, a seed of the range each."""

from __future__ import annotations

import sys

from tests.shares.share_world import run
from tests.support.seed_ranges import run_range


def main() -> int:
    return run_range("tests.shares.share_histories", __doc__, lambda seed: run(seed))


if __name__ == "__main__":
    sys.exit(main())
