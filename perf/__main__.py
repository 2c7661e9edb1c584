"""The suites' front door: ``python -m perf SUITE [options]``; ``python -m perf all --short`` is ``make perf``.

Each suite prints what it measures as it goes and writes ``perf/results/SUITE.json``; ``python -m perf report`` makes
``docs/performance.md`` and its charts of these files.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import signal
import sys
import time

from perf.build import BuildError
from perf.generator import GeneratorError
from perf.options import Options, add_arguments, options_of
from perf.targets import TargetError

SUITES = {
    "kernels": "every kernel, Cython against its pure twin",
    "floor": "a broker beside a C program that does the least possible",
    "broker": "a broker with Cython kernels beside one with pure kernels",
    "peers": "fleetlog beside Apache Kafka, or with --tree beside another tree; --brokers 3 replicates three times",
    "transactions": "commits per second of small transactions, beside Apache Kafka",
    "groups": "how long a consumer group of 50 members rebalances, beside Apache Kafka",
    "scale": "partitions, connections, sizes, brokers: how cost grows",
}
OWN = {
    "console": "pages, searches and memory of a console on 1,000 topics, and what its users cost the brokers",
    "compaction": "MB per CPU second of a pass, Cython against its pure twin; --kafka: beside Apache Kafka",
    "consumers": "groups of the consumer protocol: joins, leaves, and what steady members cost, beside Apache Kafka",
    "failover": "how long a partition has no leader after a broker's death",
    "shares": "records per second of share groups, by key too, beside Apache Kafka; what a slow key delays",
    "spark": "rows per second of source and sink",
    "spark_steps": "CPU and requests of the format's Python for a micro-batch of ten rows, without Spark",
}
"""Suites with a command line of their own."""


def main() -> int:
    """Run what is asked for; 1 when it could not be measured."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended and their files removed
    if len(sys.argv) > 1 and sys.argv[1] in OWN:
        return _own(sys.argv[1], sys.argv[2:])
    own = {name: text for name, text in OWN.items() if importlib.util.find_spec(f"perf.{name}") is not None}
    lines = "\n".join(f"  {name:<15}{text}" for name, text in {**SUITES, **own}.items())
    lines += "\n  all            everything but spark\n  report         tables and charts of the last results"
    parser = argparse.ArgumentParser(
        prog="python -m perf",
        description=f"suites:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", choices=[*SUITES, "all", "report"], metavar="suite")
    add_arguments(parser)
    found = parser.parse_args()
    options = options_of(found)
    if found.suite == "peers" and options.brokers not in (1, 3):
        parser.error("peers has clusters of 1 or 3 brokers")
    if found.suite == "report":
        from perf import report

        return report.main()
    if found.suite == "all":
        from perf import everything

        return everything.run(options)
    return 0 if run_suite(found.suite, options) else 1


def run_suite(name: str, options: Options) -> bool:
    """Run one suite and keep its results; False, with a line that says why, when that is not possible."""
    started = time.monotonic()
    try:
        results = importlib.import_module(f"perf.{name}").run(options)
    except (TargetError, GeneratorError, BuildError) as error:
        print(f"perf {name}: {error}", file=sys.stderr)
        return False
    results.about["took_s"] = round(time.monotonic() - started, 1)
    if options.keeps:
        results.save()
    from perf import report

    print(report.section(results))
    return True


def _own(name: str, words: list[str]) -> int:
    if importlib.util.find_spec(f"perf.{name}") is None:
        print(f"there is no perf/{name}.py here", file=sys.stderr)
        return 2
    sys.argv = [f"perf {name}", *words]
    return importlib.import_module(f"perf.{name}").main() or 0


if __name__ == "__main__":
    sys.exit(main())
