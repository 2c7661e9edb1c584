"""The console's figures on disk: steps and tiers, a restart, damage, and names that come and go."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import pytest

from fleetlog.brokers.console.history import KEPT_S, KINDS, MOST_KEPT, History, HistoryError

BEGIN = 1_764_490_200  # a whole ten minutes
GROUP = ("group", "billing")


def filled(directory: Path, steps: int, names: int = 1) -> History:
    history = History(directory)
    for number in range(1, steps + 1):
        figures = {("topic", f"t{one}"): [number, one, 0.0, 1.0] for one in range(names)}
        history.add(BEGIN + 10 * number, {**figures, GROUP: [number, 0.0, 2.0, 1.0, number % 6 == 0]})
    return history


def test_steps_become_minutes_and_ten_minutes(tmp_path: Path) -> None:
    history = filled(tmp_path, 120)
    points = history.read("topic", "t0", 0, 1 << 40, 10)["bytes_in"]
    assert points[:2] == [(BEGIN + 10, 1.0), (BEGIN + 20, 2.0)]
    assert len(points) == 120
    minutes = history.read("topic", "t0", 0, 1 << 40, 60)["bytes_in"]
    assert minutes[0] == (BEGIN + 60, 3.5), "a rate is the mean"
    assert len(minutes) == 20
    group = history.read(*GROUP, 0, 1 << 40, 60)
    assert group["lag"][0] == (BEGIN + 60, 6.0), "a lag is the highest"
    assert group["rebalances"][0] == (BEGIN + 60, 1.0), "events are added up"
    ten = history.read(*GROUP, 0, 1 << 40, 600)
    assert [at for at, _ in ten["lag"]] == [BEGIN + 600, BEGIN + 1200]
    assert ten["rebalances"][0][1] == 10.0
    history.close()


def test_they_stay_over_a_restart_and_only_so_many_are_kept(tmp_path: Path) -> None:
    filled(tmp_path, 800).close()
    history = History(tmp_path)
    assert history.begun_anew is None
    points = history.read("topic", "t0", BEGIN + 7_000, BEGIN + 8_000, 10)["bytes_in"]
    assert points[-1] == (BEGIN + 8_000, 800.0)
    assert len(points) == 100
    assert 360 <= len(history.read("topic", "t0", 0, 1 << 40, 10)["bytes_in"]) <= 720
    history.add(BEGIN + 8_010, {("topic", "t0"): [1.0, 1.0, 1.0, 1.0]})
    assert history.newest == BEGIN + 8_010
    history.close()


def test_what_is_missing_is_not_zero_and_the_clock_may_be_set_back(tmp_path: Path) -> None:
    history = filled(tmp_path, 3)
    history.add(BEGIN + 40, {("topic", "new"): [0.0, 0.0, 0.0, 0.0]})
    old = history.read("topic", "t0", 0, 1 << 40, 10)["bytes_in"]
    assert math.isnan(old[3][1])
    new = history.read("topic", "new", 0, 1 << 40, 10)["bytes_in"]
    assert [at for at, figure in new if not math.isnan(figure)] == [BEGIN + 40]
    history.add(BEGIN + 20, {("topic", "t0"): [9.0, 9.0, 9.0, 9.0]})
    assert history.newest == BEGIN + 40
    assert history.read("topic", "nobody", 0, 1 << 40, 10)["size"] == []
    history.close()


def test_figures_of_a_clock_that_was_years_ahead_begin_anew(tmp_path: Path) -> None:
    history = filled(tmp_path, 2)
    history.add(BEGIN + 10 * KEPT_S, {("topic", "t0"): [9.0, 9.0, 9.0, 9.0]})
    history.add(BEGIN + 100, {("topic", "t0"): [1.0, 2.0, 3.0, 4.0]})
    assert "time to come" in (history.begun_anew or "")
    assert history.read("topic", "t0", 0, 1 << 40, 10)["size"] == [(BEGIN + 100, 4.0)]
    history.close()
    history = History(tmp_path)
    assert (history.begun_anew, history.newest) == (None, BEGIN + 100)
    history.close()


def test_a_torn_end_costs_one_step_and_damage_begins_anew(tmp_path: Path) -> None:
    filled(tmp_path, 5).close()
    (rows,) = tmp_path.glob("10-*.rows")
    whole = rows.read_bytes()
    rows.write_bytes(whole[:-3])
    history = History(tmp_path)
    assert history.begun_anew is None
    assert len(history.read("topic", "t0", 0, 1 << 40, 10)["size"]) == 4
    history.add(BEGIN + 60, {("topic", "t0"): [1.0, 1.0, 1.0, 1.0]})
    history.close()
    data = bytearray(rows.read_bytes())
    data[30] ^= 1
    rows.write_bytes(data)
    history = History(tmp_path)
    assert "damaged" in (history.begun_anew or "")
    assert history.read("topic", "t0", 0, 1 << 40, 10)["size"] == []
    history.add(BEGIN + 70, {("topic", "t0"): [1.0, 1.0, 1.0, 1.0]})
    history.close()
    history = History(tmp_path)
    assert (history.begun_anew, history.newest) == (None, BEGIN + 70)
    history.close()


def test_a_count_that_is_damaged_is_no_torn_end(tmp_path: Path) -> None:
    filled(tmp_path, 5).close()
    (rows,) = tmp_path.glob("10-*.rows")
    data = bytearray(rows.read_bytes())
    data[6] ^= 0x40  # the first row's count: it would end far behind the file's end
    rows.write_bytes(data)
    history = History(tmp_path)
    assert "damaged" in (history.begun_anew or "")
    history.close()


@pytest.mark.parametrize("text", [
    "", "no JSON\n", '["format", 0]\n', '["format", 1]\n["topic", "x", -4]\n["topic"]\n',
    '["format", 1]\n["topic", "x", 1e999]\n', f'["format", 1]\n{"[" * 100_000}\n',
], ids=range(6))  # fmt: skip
def test_names_that_cannot_be_read_begin_anew(tmp_path: Path, text: str) -> None:
    filled(tmp_path, 2).close()
    (tmp_path / "slots").write_text(text)
    history = History(tmp_path)
    assert history.begun_anew is not None
    assert history.newest == 0
    history.close()


def test_two_consoles_do_not_write_into_one_directory(tmp_path: Path) -> None:
    history = History(tmp_path / "a")
    with pytest.raises(HistoryError, match="another console"):
        History(tmp_path / "a")
    history.close()
    History(tmp_path / "a").close()
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="file"):
        History(tmp_path / "file")


def test_a_column_has_another_owner_only_when_nothing_old_is_shown_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetlog.brokers.console.history.MOST_KEPT", {**MOST_KEPT, "topic": 2})
    history = filled(tmp_path, 1, names=2)
    history.add(BEGIN + 20, {("topic", "late"): [7.0, 7.0, 7.0, 7.0]})
    assert history.read("topic", "late", 0, 1 << 40, 10)["size"] == []
    later = BEGIN + KEPT_S + 100
    history.add(later, {("topic", "t0"): [1.0, 1.0, 1.0, 1.0], ("topic", "late"): [7.0, 7.0, 7.0, 7.0]})
    assert history.read("topic", "late", later - 10, later, 10)["size"] == [(later, 7.0)]
    assert history.read("topic", "t1", later - 10, later, 10)["size"] == []
    history.close()
    history = History(tmp_path)
    assert history.read("topic", "late", later - 10, later, 10)["size"] == [(later, 7.0)]
    history.close()


def test_a_thousand_topics_take_forty_megabytes_at_most(tmp_path: Path) -> None:
    """Three days of them: a row has all columns of one step, and each tier keeps two files at most."""
    history = filled(tmp_path, 1, names=1_000)
    (rows,) = tmp_path.glob("10-*.rows")
    row = rows.stat().st_size
    assert row <= 4 * (1_000 * len(KINDS["topic"]) + len(KINDS["group"])) + 100
    assert 2 * row * (360 + 360 + 432) < 40_000_000
    assert isinstance(next(history.tiers[0].read(0, 1 << 40))[1], array)
    history.close()
