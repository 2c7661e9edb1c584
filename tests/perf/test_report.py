"""Tables, goals and charts say what was measured, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from perf import charts, everything, goals, report, results
from perf.__main__ import SUITES
from perf.results import Results, Spread, number


def peers(ours: float, theirs: float) -> Results:
    found = Results.begin("peers", kafka="4.1.1")
    for round_ in range(3):
        found.add("produce 1 KiB", "kafka", {"requests_cpu_s": theirs + round_}, round_=round_)
        found.add("produce 1 KiB", "fleetlog", {"requests_cpu_s": ours}, round_=round_)
    return found


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results and pages that are not the real ones."""
    monkeypatch.setattr(results, "DIRECTORY", tmp_path / "results")
    monkeypatch.setattr(report, "DIRECTORY", tmp_path / "results")
    monkeypatch.setattr(report, "PAGE", tmp_path / "docs" / "performance.md")
    monkeypatch.setattr(report, "CHARTS", tmp_path / "docs" / "performance")
    monkeypatch.setattr(report, "PLANNED", tmp_path / "plan_figures.json")
    monkeypatch.setattr(report, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    return tmp_path


@pytest.mark.parametrize(("ours", "met"), [(55_000.0, "met"), (20_000.0, "**not met**")])
def test_a_goal_is_judged_by_the_ratio_of_medians(ours: float, met: str) -> None:
    line = goals.lines({"peers": peers(ours, 9_999)})[0]
    assert line == [
        "produce 1 KB: requests per broker-CPU-second", ">= 5x Kafka",
        f"produce 1 KiB: {number(ours)} against kafka 10,000 requests/CPU s", f"{ours / 10_000:.2f}", "", met,
    ]  # fmt: skip


def test_a_busy_machine_is_said() -> None:
    found = peers(55_000, 10_000)
    for row in found.rows:
        row["others_cores"] = 1.5
    assert goals.lines({"peers": found})[0][-1] == "met, but others used 1.5 cores"


def test_what_the_c_program_does_not_reach_is_said() -> None:
    found = peers(20_000, 10_000)
    found.add("produce 1 KiB", "floor", {"requests_cpu_s": 49_000})
    assert goals.lines({"peers": found})[0][-2:] == ["4.90", "**not met**, nor by the C program"]
    found.add("produce 1 KiB", "floor", {"requests_cpu_s": 900_000})
    assert goals.lines({"peers": found})[0][-1] == "**not met**"


def test_what_was_not_measured_is_said() -> None:
    lines = goals.lines({})
    assert len(lines) == len(goals.GOALS)
    assert all(line[2].startswith("not measured: python -m perf ") for line in lines)
    assert "not measured: python -m perf peers --brokers 3" in {line[2] for line in lines}
    # a suite that was run, but not that case
    assert goals.lines({"peers": peers(1, 1)})[1][-1] == "not measured"


def test_every_goal_belongs_to_a_suite_of_make_perf() -> None:
    run = {name if brokers == 1 else f"{name}-{brokers}" for name, brokers in everything.SUITES}
    assert {suite for goal in goals.GOALS for suite in goal.suites} <= run | {"spark"}
    assert {name for name, _ in everything.SUITES} == set(SUITES)
    assert run <= set(report.TITLES)


def test_the_page_and_its_charts(elsewhere: Path) -> None:
    assert report.main() == 1, "there is nothing to report yet"
    found = peers(50_000, 10_000)
    found.add("memory, idle", "fleetlog", {"rss_mib": 50.0})
    found.add("memory, idle", "kafka", {"rss_mib": 400.0})
    found.save()
    assert report.main() == 0
    page = report.PAGE.read_text()
    assert "python -m perf" in page
    assert found.about["processor"] in page
    assert re.search(r"\| produce 1 KiB +\| kafka +\| 10,001 \(10,000 - 10,002\)", page), page
    for target in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page):
        ElementTree.parse(report.PAGE.parent / target)
    assert "performance/peers-rss_mib.svg" in page


def test_sparks_goals_have_their_ratios() -> None:
    found = Results("spark", about={})
    for target, rows_s, cpu in (("fleetlog", 900, 1.4), ("at least once", 1000, 1.3), ("kafka tuned", 750, 2.0)):
        found.add("sink, 200 B, 6 partitions", target, {"rows_s": rows_s, "cpu": cpu})
    for target, cpu in (("fleetlog", 3.0), ("kafka", 4.0)):
        found.add("source, 200 B, 6 partitions", target, {"cpu": cpu})
    for tasks, took in ((2, 5.0), (200, 9.0)):
        found.add(f"commit, {tasks} tasks", "fleetlog", {"commit_ms": took})
    lines = goals.lines({"spark": found}, ("spark",))
    assert [(line[3], line[5]) for line in lines] == [
        ("0.90", "met"), ("1.20", "met"), ("0.70", "met"), ("0.75", "**not met**"), ("", "not measured"),
        ("", "not measured"),
        ("1.80", "met"),
    ]  # fmt: skip


def test_a_chart_is_drawn_to_scale() -> None:
    svg = charts.bars("t <1>", "u", [("case", [("kafka", Spread([4.0])), ("fleetlog", Spread([1.0, 2.0, 3.0]))])])
    root = ElementTree.fromstring(svg)
    widths = [float(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[1] == pytest.approx(widths[0] / 2, abs=0.1)
    assert "t <1>" in "".join(root.itertext())


def test_results_of_another_form_are_none(elsewhere: Path) -> None:
    (elsewhere / "results").mkdir()
    (elsewhere / "results" / "failover.json").write_text("[1]")
    assert Results.load("failover") is None
    assert Results.load("nothing") is None


def test_numbers_are_printed_with_three_digits() -> None:
    assert [number(value) for value in (0.01234, 1.5, 99.94, 1234.5, float("nan"))] == [
        "0.0123",
        "1.5",
        "99.9",
        "1,234",
        "-",
    ]
    assert f"{Spread([3.0, 1.0, 2.0])}" == "2 (1 - 3)"
    assert f"{Spread([3.0])}" == "3"


def test_a_suite_that_was_not_run_here_keeps_its_section(elsewhere: Path) -> None:
    page = elsewhere / "docs" / "performance.md"
    peers(50_000, 10_000).save()
    (elsewhere / "results" / "failover.json").write_text(
        json.dumps({"times_ms": {"kill": [9, 11]}, "goals_ms": {"kill": 20}, "session_ms": 6000, "tick_ms": 500})
    )
    assert report.main() == 0
    before = page.read_text()
    for file in (elsewhere / "results").iterdir():
        file.unlink()
    found = Results.begin("spark", kafka="4.1.1", java="17", connector="4.2.0", pyspark="4.3.0")
    for target, p50 in (("kafka", 94.0), ("fleetlog", 104.0), ("format", 80.0)):
        found.add(goals.SMALL, target, {"p50_ms": p50})
    found.save()
    assert report.main() == 0
    after = page.read_text()
    title = report.TITLES["peers"]
    assert report._sections(after)[title] == report._sections(before)[title]
    assert report._sections(after)["Failover"] == report._sections(before)["Failover"]
    lines = [line.replace(" ", "") for line in after.split("\n") if line.startswith("| ")]
    assert "|produce1KB:requestsperbroker-CPU-second|>=5xKafka|produce1KiB:50,000againstkafka10,001requests/CPUs" in (
        line.rsplit("|", 4)[0] for line in lines
    )
    assert [line.rsplit("|", 4)[1::2] for line in lines if "10rows,by" in line] == [
        ["1.11", "**notmet**"], ["0.85", "met"],
    ]  # fmt: skip
    assert report.main() == 0
    assert page.read_text() == after


def test_a_plan_reckons_with_the_figures_of_the_page(elsewhere: Path) -> None:
    """`fleetlog plan` has them in a file, which the report writes; a page that lacks one leaves the file as it is."""
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    kept = json.loads((Path(__file__).parents[2] / "brokers" / "cli" / "plan_figures.json").read_text())
    assert report.plan_figures(page) == kept, "python -m perf report writes it"
    for suite, cases in report.PLANNED_CASES.items():
        found = Results.begin(suite, kafka="4.1.1", java="17")
        for number_, case in enumerate(cases):
            for round_ in range(3):
                found.add(case, "kafka", {"cpu_s_gb": 9_000, "mb_s": 1}, round_=round_)
                found.add(case, "fleetlog", {"cpu_s_gb": 1_000 + number_ + round_, "mb_s": 7}, round_=round_)
        found.save()
    assert report.main() == 0
    written = json.loads(report.PLANNED.read_text())
    assert written["peers"]["cpu_s_gb"] == dict(zip(report.PLANNED_CASES["peers"], range(1_001, 1_005), strict=True))
    assert written["peers-3"]["about"].startswith("python -m")
    (elsewhere / "docs" / "performance.md").unlink()
    (elsewhere / "results" / "peers-3.json").unlink()
    assert report.main() == 0
    assert json.loads(report.PLANNED.read_text()) == written


def test_figures_that_are_older_than_their_code_are_marked(elsewhere: Path) -> None:
    def git(*arguments: str) -> None:
        names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", str(elsewhere), *names, *arguments], check=True, capture_output=True)

    git("init", "-q")
    found = peers(50_000, 10_000)
    found.about["started"] = "2026-01-02 03:04:05"
    found.save()
    assert report.main() == 0
    assert report.OLDER not in report.PAGE.read_text()
    (elsewhere / "wire").mkdir()
    (elsewhere / "wire" / "codec.py").write_text("")
    git("add", "wire")
    git("commit", "-q", "-m", "wire: a codec")
    (elsewhere / "results" / "peers.json").unlink()  # the section is kept
    for _ in range(2):
        assert report.main() == 0
        marks = [line for line in report.PAGE.read_text().split("\n") if line.startswith(report.OLDER)]
        assert len(marks) == 1
        assert marks[0].startswith(f"{report.OLDER}: commits that have changed _native, wire, ")
    found.about["started"] = "2098-01-02 03:04:05"
    found.save()
    assert report.main() == 0
    assert report.OLDER not in report.PAGE.read_text()
