"""The runner of many histories goes on where it was, and tells what failed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.groups import consumer_histories
from tests.groups.consumer_world import Violation
from tests.support.seed_ranges import kept


def test_a_range_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    def history(seed: int) -> None:
        ran.append(seed)
        if seed == 150:
            raise Violation("two have it")

    file = tmp_path / "results"
    monkeypatch.setattr(consumer_histories, "run", history)
    monkeypatch.setattr(sys, "argv", ["x", "90-249", str(file)])
    assert consumer_histories.main() == 1
    assert ran == [*range(90, 250)]
    assert [json.loads(line)["failed"] for line in file.read_text().splitlines()] == [[], [150], []]
    assert "160 histories, 1 failed [150]" in capsys.readouterr().out
    file.write_text(file.read_text()[:-30])
    ran.clear()
    assert consumer_histories.main() == 1, "what failed is not forgotten"
    assert ran == [*range(200, 250)], "the part whose line is torn runs again"
    assert "160 histories, 1 failed [150]" in capsys.readouterr().out
    assert len(kept(file)) == 3
