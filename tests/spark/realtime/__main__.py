"""Spark's stock Kafka sink in real-time mode, killed again and again, into a topic that drops what is repeated.

``python -m tests.spark.realtime --rate 20000 --kills 40 --seconds 400 --batch 8 --directory D`` runs three brokers, a
writer, a reader and the query (a driver and two executors), each a process of its own. Executors, drivers and brokers
get SIGKILL, one after the other or two at once, until there were ``--kills`` or ``--seconds`` are over; at the end each
output record must be there once. ``--kills 0`` measures how long records take from the moment at which they are due to
a consumer's hands; give it a ``--batch`` longer than ``--seconds``. ``--control`` writes to a topic like any other, in
which duplicates must be found.

What a run found is a line of ``D/runs.jsonl``; the last lines sum up all runs of D. The exit status is 0 if this run
was clean, 1 for a duplicate, a missing record or an error (of a control: for none), 3 if nothing was repeated, so
nothing is proved, and 4 if the run broke off.

It needs Java and Maven, which fetches Spark's connector; it takes minutes, so no test runs it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.spark.realtime import figures
from tests.spark.realtime.rig import Run, say

MASTER = "local-cluster[2,2,1024]"
"""Two executors of two cores and 1 GiB."""


def status_of(found: dict[str, Any]) -> int:
    """What the exit status says of a run."""
    wrong = found["missing"] or found["strange"] or found["errors"] or found["mistakes"]
    if found["control"]:
        return 1 if wrong or not found["duplicates"] else 0
    if wrong or found["duplicates"]:
        return 1
    return 3 if found["killed"] and not found["dropped"] else 0


def total(runs: list[dict[str, Any]]) -> str:
    """What all runs of a directory add up to; controls are left out."""
    kept = [one for one in runs if not one["control"]]
    killed = sum((Counter(one["killed"]) for one in kept), Counter[str]())
    names = ("sent", "dropped", "duplicates", "missing", "strange", "errors")
    sums = ", ".join(f"{name} {sum(one[name] for one in kept)}" for name in names)
    quiet = figures.merged([one["histogram"] for one in kept if one["quiet"]])
    kinds = ", ".join(f"{count} of {kind}s" for kind, count in sorted(killed.items()))
    return f"{len(kept)} runs, {killed.total()} SIGKILLs ({kinds}): {sums}; without kills: {figures.shown(quiet)}"


def run(options: argparse.Namespace) -> int:
    options.directory.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=options.directory))
    this = Run(options, directory)
    try:
        found = this.whole()
    except (AssertionError, OSError):
        traceback.print_exc()
        say(f"the run broke off; what its processes said stands in {directory}")
        return 4
    finally:
        this.close()
    status = found["status"] = status_of(found)
    results = options.directory / "runs.jsonl"
    with results.open("a") as out:
        out.write(json.dumps(found) + "\n")
    say(json.dumps({name: value for name, value in found.items() if name not in ("histogram", "p99_by_second")}))
    if found["quiet"]:
        say(f"from due to read: {figures.shown(found['histogram'])}; p99 of each second, in order: "
            f"{sorted(found['p99_by_second'])}")  # fmt: skip
    say(f"all of {results}: {total([json.loads(line) for line in results.read_text().splitlines()])}")
    if status == 0:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        say(f"status {status}; what its processes said stands in {directory}")
    return status


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.realtime", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120, help="how long records are sent after the first one came")
    parser.add_argument("--warm", type=float, default=20, help="of these, seconds before it is measured or killed")
    parser.add_argument("--rate", type=int, default=2000, help="records a second into the source")
    parser.add_argument("--linger", type=float, default=5, help="milliseconds that the writer waits for a batch")
    parser.add_argument("--kills", type=int, default=10, help="SIGKILLs, at most")
    parser.add_argument("--batch", type=int, default=8, help="seconds of a batch, 5 at least")
    parser.add_argument("--seed", type=int, default=1, help="of what is killed, and when")
    parser.add_argument("--master", default=MASTER, help=f"of the query ({MASTER})")
    for name, client in (("reading", "source's consumer"), ("writing", "sink's producer")):
        parser.add_argument(f"--{name}", type=lambda text: tuple(text.split("=", 1)), action="append", default=[],
                            metavar="NAME=VALUE", help=f"a setting of the {client}")  # fmt: skip
    parser.add_argument("--control", action="store_true", help="a target that takes what is repeated")
    parser.add_argument("--directory", type=Path, default=Path("build/realtime"), help="results, and what runs leave")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and tidy up
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
