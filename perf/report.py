"""Tables of what was measured."""

from __future__ import annotations

from perf.results import Results, table

COLUMNS = (
    ("requests_s", "requests/s"),
    ("mb_s", "MB/s"),
    ("requests_cpu_s", "requests/CPU s"),
    ("cpu_s_gb", "CPU s/GB"),
    ("p50_ms", "p50 ms"),
    ("p99_ms", "p99 ms"),
    ("p999_ms", "p99.9 ms"),
    ("rss_mib", "RSS MiB"),
    ("generator_us_request", "generator us"),
    ("others_cores", "others"),
)


def section(results: Results) -> str:
    """One suite as a table."""
    lines = []
    for case in results.cases():
        for target in results.targets(case):
            cells = [results.spread(case, target, name) for name, _ in COLUMNS]
            lines.append([case, target, *("" if cell is None else f"{cell}" for cell in cells)])
    return table(["case", "server", *(head for _, head in COLUMNS)], lines)
