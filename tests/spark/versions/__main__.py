"""Tries PySpark's versions: ``python -m tests.spark.versions 4.0 3.5``, ``--all``, or one of them by ``--seed abc``.

Each version has a Python environment of its own (``environments``). There a driver reads a topic that grows and writes
it by every way that the version has; it is killed with SIGKILL inside micro-batches, and runs again. In the end every
target must have each record once, as it was: key, value, headers, time.

The exit status is 0 when all passed, 1 when one did not, 3 when one could not be tried.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.spark.versions.environments import ROOT, VERSIONS, NoAnswer, Unfit, environment, installed
from tests.spark.versions.trial import NoFault, Trial
from tests.support.fleet import Fleet

LIMIT_S = 240.0
"""For one version, its environment's download included; 85 s are usual on two cores that have other work, too."""


def chosen(given: argparse.Namespace) -> list[str]:
    """The versions to try."""
    if given.seed:
        return [random.Random(given.seed).choice(VERSIONS)]
    return list(VERSIONS) if given.all else given.versions


def attempt(version: str, directory: Path, limit_s: float = LIMIT_S) -> tuple[int, str]:
    """(exit status, what was found) of one version, in ``limit_s`` seconds at the most, its environment's included."""
    began = time.monotonic()
    try:
        python = environment(version)
    except NoAnswer as problem:
        return 3, f"NOT TRIED: no environment: {problem}"
    except Unfit as problem:
        return 1, f"FAILED {version} - {problem}"
    spark = installed(python)
    ready = time.monotonic()
    fleet = Fleet(directory / "fleet", brokers=1)
    try:
        found = Trial(python, spark, fleet.start().bootstrap, directory, began + limit_s).run()
    except NoFault as problem:
        return 3, f"NOT TRIED: {problem}"
    except Exception as problem:
        traceback.print_exc()
        return 1, f"FAILED {version} - {type(problem).__name__}: {str(problem)[:500]}"
    finally:
        fleet.close()
    return 0, f"passed: {found} ({ready - began:.0f} s environment, {time.monotonic() - ready:.0f} s)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=[], choices=[*VERSIONS, []], metavar="VERSION")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", default="", help="one version, chosen by any text")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each (%(default)s)")
    given = parser.parse_args()
    names = chosen(given)
    if not names:
        parser.error(f"name some of {', '.join(VERSIONS)}, or give --all or --seed")
    worst = 0
    for version in names:
        (ROOT / "build").mkdir(exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f"spark-{version}-", dir=ROOT / "build"))
        status, text = attempt(version, directory, given.limit)
        print(f"PySpark {version}: {text}", flush=True)
        if status == 1:
            print(f"see {directory}", flush=True)
        else:
            shutil.rmtree(directory)
        worst = 1 if 1 in (worst, status) else max(worst, status)
    return worst


if __name__ == "__main__":
    sys.exit(main())
