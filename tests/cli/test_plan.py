"""``fleetlog plan``: what a load needs, by what was measured; what it can't say, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fleetlog.brokers.cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"


def said(words: str) -> str:
    done = CliRunner().invoke(cli, words.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def needs(words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(said(f"plan {words} --json"))
    return answer


def test_the_page_shows_what_is_printed() -> None:
    shown = re.findall(r"^\$ fleetlog (.*)\n((?:.*\n)*?)```", PAGE.read_text(), re.MULTILINE)
    assert len(shown) == 2
    for words, printed in shown:
        assert said(words) == printed, "the page has an older answer"


def test_numbers_follow_from_the_load() -> None:
    plan = needs("--rate 1000000/s --size 1KB --retention 7d --replicas 3 --readers 5")
    written = plan["written_bytes_s"]
    assert written == 1e9
    assert plan["network_bytes_s"]["in"] == 3 * written
    assert plan["network_bytes_s"]["out"] == (2 + 5) * written
    assert plan["disk_bytes"]["kept"] == 3 * 604_800 * written
    cpu = plan["cpu_s_gb"]
    assert plan["cores"] == pytest.approx(cpu["produce"] + 5 * cpu["read"])
    assert (plan["brokers"] - 1) * 0.5 >= plan["cores"] > (plan["brokers"] - 2) * 0.5
    assert plan["disk_bytes"]["broker"] * (plan["brokers"] - 1) == pytest.approx(plan["disk_bytes"]["needed"])
    assert not plan["bucket_is_planned"]


def test_a_small_load_needs_a_broker_for_each_copy_and_no_more() -> None:
    for replicas in (1, 2, 3):
        plan = needs(f"--rate 10/s --size 100 --replicas {replicas}")
        assert plan["brokers"] == replicas
        assert plan["disk_bytes"]["broker"] == pytest.approx(1000 * 604_800 / 0.8), "one copy"
        assert plan["not_measured"] == ([] if replicas != 2 else [plan["not_measured"][0]])


def test_what_is_not_measured_is_named() -> None:
    plan = needs("--rate 1M/s --size 2MB --replicas 2")
    for part in ("as dear as in 128 KiB", "2 replicas: on the line", "were measured at most", "max.message.bytes"):
        assert any(part in text for text in plan["not_measured"]), part
    (between,) = needs("--rate 1/s --size 20KB")["not_measured"]
    assert between.endswith("between the measured sizes")
    (below,) = needs("--rate 1/s --size 100 --batch 100")["not_measured"]
    assert "each as dear as one of 1 KiB" in below
    costs = [needs(f"--rate 1/s --size {size} --batch 1")["cpu_s_gb"]["produce"] for size in (512, 1024, 4096, 16384)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == 2 * costs[1]


def test_a_bucket_keeps_one_copy_and_disks_what_is_local() -> None:
    load = "--rate 1M/s --size 1KB --retention 7d"
    plan, without = needs(f"{load} --bucket --local-retention 12h --prices 0.02,0.005,0.0004"), needs(load)
    assert plan["bucket_is_planned"]
    assert plan["bucket"]["kept_bytes"] == 604.8e12
    assert plan["bucket"]["usd_month"]["kept"] == pytest.approx(604_800 * 0.02)
    assert plan["disk_bytes"]["kept"] == pytest.approx(without["disk_bytes"]["kept"] / 14)
    assert plan["network_bytes_s"]["out"] == without["network_bytes_s"]["out"] + 1e9, "the leader copies"
    assert "the bucket; this is what its design costs" in said(f"plan {load} --bucket")
    assert needs("--rate 1/s --size 1KB --retention 1h --bucket")["asked"]["local_retention_ms"] == 3_600_000


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--rate 0 --size 1KB", "the rate must be above 0"),
        ("--rate -5/s --size 1KB", "'-5/s' is not a rate of messages such as 1000000/s or 1.5M/s"),
        ("--rate nan --size 1KB", "'nan' is not a rate"),
        ("--rate 1GB/s --size 1KB", "'1GB/s' is not a rate of messages"),
        ("--rate 1,5M/s --size 1KB", "'1,5M/s' is not a rate"),
        ("--rate 1/s --size 1KX", "'1KX' is not a size such as 1000, 1KB (1000 bytes) or 16KiB (16384)"),
        ("--rate 1/s --size 0", "the size must be from 1 byte"),
        ("--rate 1/s --size 3GB", "the size must be from 1 byte to 2 GiB"),
        ("--rate 1/s --size 1KB --retention 7", "'7' is not a duration such as 90s"),
        ("--rate 1/s --size 1KB --retention 0d", "a time above 0, such as 7d"),
        ("--rate 1/s --size 1KB --replicas 0", "0 is not in the range 1<=x"),
        ("--rate 1/s --size 1KB --readers -1", "-1 is not in the range 0<=x"),
        ("--rate 1/s --size 1KB --buket", "No such option '--buket'"),
        ("--rate 1/s --size 1KB --local-retention 1d", "add --bucket"),
        ("--rate 1/s --size 1KB --bucket --local-retention 8d", "longer than --retention"),
        ("--rate 1/s --size 1KB --prices 1,2", "is not three prices like 0.023,0.005,0.0004"),
        ("--size 1KB", "Missing option '--rate'"),
    ],
)
def test_what_is_wrong_is_said(words: str, answer: str) -> None:
    done = CliRunner().invoke(cli, ["plan", *words.split()], catch_exceptions=False)
    assert done.exit_code == 2
    assert answer in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Error: "), "one line"


def test_a_load_beyond_all_bounds_is_still_answered() -> None:
    assert " EB" in said("plan --rate 1000000000000/s --size 1GB --retention 10000w --replicas 32767 --readers 10000")
    assert (
        needs("--rate 1,000,000/s --size 1,000B")["written_bytes_s"] == needs("--rate 1M --size 1k")["written_bytes_s"]
    )
