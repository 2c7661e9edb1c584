"""The offline checker: a history in, anomalies out, in the manner of Jepsen's Kafka workload.

``python -m tests.chaos.checker DIRECTORY`` checks a kept history again; it ends with 1 when something is wrong. What
the names of the anomalies mean stands in docs/reliability.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.chaos import checks_batches, checks_liveness, checks_log, checks_order, checks_shares, checks_topics
from tests.chaos.checks_liveness import Demands
from tests.chaos.history import Event, History, parse, read
from tests.chaos.logs import Logs
from tests.chaos.report import Report


def check(history: History, demands: Demands | None = None) -> Report:
    """All passes over one history."""
    report = Report(errors=dict(history.errors))
    logs = Logs(history)
    for look in (
        *checks_log.CHECKS,
        *checks_order.CHECKS,
        *checks_batches.CHECKS,
        *checks_topics.CHECKS,
        *checks_shares.CHECKS,
        checks_liveness.rights,
        checks_liveness.rest,
    ):
        look(logs, report)
    checks_liveness.vacuity(logs, report, demands or Demands())
    return report


def check_events(events: Iterable[Event], demands: Demands | None = None, strict: bool = False) -> Report:
    """The same from events."""
    return check(parse(events, strict), demands)


def main() -> int:
    """The command line; 0 only for a clean history."""
    arguments = argparse.ArgumentParser(description="check a kept history")
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--strict", action="store_true", help="believe errors that came after a commit was sent")
    options = arguments.parse_args()
    report = check(read(options.directory, options.strict), Demands(final=True))
    print(report.render())
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
