"""``perf all``: every suite but Spark's, one after the other, then the report. ``--short`` takes under half an hour."""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys
import time

from perf import report
from perf.__main__ import run_suite
from perf.build import ROOT
from perf.options import Options

SUITES = (
    ("kernels", 1), ("floor", 1), ("broker", 1), ("peers", 1), ("peers", 3), ("transactions", 1), ("groups", 1),
    ("scale", 1),
)  # fmt: skip
"""Names, and how many brokers."""


def run(options: Options) -> int:
    """0 if all could be measured. What could not is said, and the others go on."""
    started, failed = time.monotonic(), []
    for name, brokers in SUITES:
        print(f"\n== perf {name}{f' --brokers {brokers}' if brokers > 1 else ''}", flush=True)
        if not run_suite(name, dataclasses.replace(options, brokers=brokers)):
            failed.append(name)
    if importlib.util.find_spec("perf.failover") is not None and not _failover(options):
        failed.append("failover")
    report.main()
    print("\n" + report.goals_table(report.found_results()))
    print(f"\n{(time.monotonic() - started) / 60:.0f} minutes", file=sys.stderr)
    if failed:
        print(f"not measured: {', '.join(failed)}; see above", file=sys.stderr)
    return 1 if failed else 0


def _failover(options: Options) -> bool:
    """It has a command line of its own."""
    print("\n== perf failover", flush=True)
    repetitions = ["--repetitions", "2"] if options.short else []
    command = [sys.executable, "-m", "perf.failover", *repetitions]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0
