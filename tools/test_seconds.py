"""Writes tests/seconds.tsv, by which `make test` draws: what the longer files of tests take.

    make test-all PYTEST_ARGS=--junitxml=build/tests.xml && python -m tools.test_seconds build/tests.xml

Seconds are those of one worker of two. A file that was not in the run keeps its row.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from tests.support.draw import LONG_S, ROOT, SECONDS, seconds_rows


def measured(report: Path) -> Counter[str]:
    """Seconds by file, of pytest's JUnit report."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        parts = [part for part in case.attrib["classname"].split(".") if not part[0].isupper()]
        seconds["/".join(parts) + ".py"] += float(case.attrib["time"])
    return seconds


def main() -> None:
    rows = {file: [seconds, *reason] for file, seconds, *reason in seconds_rows()}
    for file, taken in measured(Path(sys.argv[1])).items():
        rows[file] = [f"{taken:.0f}", *rows.get(file, [])[1:]]
    long = {file: row for file, row in sorted(rows.items()) if int(row[0]) >= LONG_S and (ROOT / file).exists()}
    SECONDS.write_text("".join("\t".join((file, *row)) + "\n" for file, row in long.items()))
    print(f"{SECONDS.relative_to(ROOT)}: {len(long)} files take {LONG_S} s and more")


if __name__ == "__main__":
    main()
