"""The console's figures on disk: steps and tiers, a restart, damage, and names that come and go."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetlog.brokers.console.history import KEPT_S, KINDS, MOST_KEPT, PATIENCE, History, HistoryError, line_of

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
    assert history.lost == []
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


def times(history: History, step_s: int = 10) -> list[int]:
    return [at for at, _ in history.read("topic", "t0", 0, 1 << 40, step_s)["size"]]


@pytest.mark.parametrize("ahead_s", [3_600, 10 * KEPT_S])
def test_a_clock_that_was_ahead_costs_what_is_of_a_time_to_come(tmp_path: Path, ahead_s: int) -> None:
    """A clock that is set back is not believed at once: it may be the one that is wrong, as at a machine's start."""
    history = filled(tmp_path, 100)
    for number in range(6):
        history.add(BEGIN + 1_000 + ahead_s + 10 * number, {("topic", "t0"): [9.0, 9.0, 9.0, 9.0]})
    for number in range(PATIENCE):
        history.add(BEGIN + 1_010 + 10 * number, {("topic", "t0"): [1.0, 2.0, 3.0, 4.0]})
    assert history.newest > BEGIN + ahead_s
    assert history.lost == []
    now = BEGIN + 1_010 + 10 * PATIENCE
    history.add(now, {("topic", "t0"): [1.0, 2.0, 3.0, 4.0]})
    assert "time to come" in history.lost[0]
    assert times(history) == [*range(BEGIN + 10, BEGIN + 1_010, 10), now]
    assert max(times(history, 60)) <= now
    history.close()
    history = History(tmp_path)
    assert (history.lost, history.newest) == ([], now)
    history.close()


def test_a_clock_that_is_set_back_and_corrected_costs_what_it_was_wrong_for(tmp_path: Path) -> None:
    history = filled(tmp_path, 100)
    for number in range(PATIENCE):
        history.add(BEGIN - 86_400 + 10 * number, {("topic", "t0"): [1.0, 1.0, 1.0, 1.0]})
    history.add(BEGIN + 1_600, {("topic", "t0"): [1.0, 1.0, 1.0, 1.0]})
    assert times(history) == [*range(BEGIN + 10, BEGIN + 1_010, 10), BEGIN + 1_600]
    assert history.lost == []
    history.close()


def test_steps_before_a_pause_are_in_the_longer_steps(tmp_path: Path) -> None:
    """A console that is ended in the middle of ten minutes, and begun an hour later."""
    filled(tmp_path, 100).close()  # 16 minutes and 40 seconds
    history = History(tmp_path)
    history.add(BEGIN + 4_200, {("topic", "t0"): [7.0, 0.0, 0.0, 0.0]})
    minutes = dict(history.read("topic", "t0", 0, 1 << 40, 60)["bytes_in"])
    assert minutes[BEGIN + 1_020] == pytest.approx((97 + 98 + 99 + 100) / 4)
    ten = dict(history.read("topic", "t0", 0, 1 << 40, 600)["bytes_in"])
    assert [*ten] == [BEGIN + 600, BEGIN + 1_200, BEGIN + 4_200]
    assert ten[BEGIN + 4_200] == 7.0
    history.close()


@pytest.mark.parametrize(("place", "told"), [
    (0, "checksum"), (4, "count"), (7, "count, far beyond the end"), (8, "time"), (20, "figure"),
])  # fmt: skip
@pytest.mark.parametrize("row", [0, 2, 4], ids=["first", "middle", "last"])
def test_damage_costs_one_step_and_is_told(tmp_path: Path, place: int, told: str, row: int) -> None:
    filled(tmp_path, 5).close()
    (rows,) = tmp_path.glob("10-*.rows")
    data = bytearray(rows.read_bytes())
    data[row * len(data) // 5 + place] ^= 0x40
    rows.write_bytes(data)
    history = History(tmp_path)
    assert f"bytes of {rows} cannot be read" in history.lost[0], told
    expected = [BEGIN + 10 * number for number in range(1, 6) if number != row + 1]
    assert times(history) == expected
    history.add(BEGIN + 60, {("topic", "t0"): [1.0, 1.0, 1.0, 1.0]})
    history.close()
    history = History(tmp_path)
    assert times(history) == [*expected, BEGIN + 60]
    history.close()


def test_rows_torn_anywhere_keep_what_is_before(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    (rows,) = tmp_path.glob("10-*.rows")
    whole = rows.read_bytes()
    length = len(whole) // 3
    for size in range(2 * length, 3 * length):
        rows.write_bytes(whole[:size])
        history = History(tmp_path)
        assert times(history) == [BEGIN + 10, BEGIN + 20]
        assert bool(history.lost) is (size > 2 * length)
        assert rows.stat().st_size == 2 * length
        history.close()


def test_a_lost_sector_costs_the_steps_in_it(tmp_path: Path) -> None:
    filled(tmp_path, 200).close()
    (rows,) = tmp_path.glob("10-*.rows")
    data = bytearray(rows.read_bytes())
    length = len(data) // 200
    data[4096:8192] = bytes(4096)
    rows.write_bytes(data)
    history = History(tmp_path)
    gone = {BEGIN + 10 * (1 + place // length) for place in range(4096, 8192)}
    assert times(history) == [at for at in range(BEGIN + 10, BEGIN + 2_010, 10) if at not in gone]
    history.close()


@pytest.mark.parametrize("damage", [
    lambda text: text[:-3], lambda text: text.replace(b'"t1"', b'"tX"'), lambda text: text.replace(b"t1", b"\xff\xfe"),
    lambda text: text.replace(b"\n", b"\x00" * 5000 + b"\n", 1), lambda text: text + b"[1, [" * 100_000,
    lambda text: text.splitlines(keepends=True)[0] + b"1\n" + b"".join(text.splitlines(keepends=True)[1:]),
], ids=["torn", "name", "bytes", "head", "brackets", "a line too many"])  # fmt: skip
def test_names_that_are_damaged_begin_anew_and_the_others_stay(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    filled(tmp_path, 2, names=3).close()
    slots = tmp_path / "slots"
    slots.write_bytes(damage(slots.read_bytes()))
    history = History(tmp_path)
    assert f"line of {slots} cannot be read" in history.lost[0]
    assert history.read("topic", "t0", 0, 1 << 40, 10)["bytes_out"] == [(BEGIN + 10, 0.0), (BEGIN + 20, 0.0)]
    history.add(BEGIN + 30, {("topic", f"t{number}"): [5.0, number, 5.0, 5.0] for number in range(4)})
    history.close()
    history = History(tmp_path)
    assert history.lost == [], "it is told once"
    for number in range(4):
        assert history.read("topic", f"t{number}", 0, 1 << 40, 10)["bytes_out"][-1] == (BEGIN + 30, number)
        points = history.read("topic", f"t{number}", 0, BEGIN + 20, 10)["bytes_out"]
        assert all(math.isnan(figure) or figure == number for _, figure in points), "another's figures"
    history.close()


def test_figures_of_another_release_and_without_names_begin_anew(tmp_path: Path) -> None:
    for text, why in ((line_of("format", 99), "another release"), (b"", ""), (b'["format", 1]\n', "cannot be read")):
        filled(tmp_path, 2).close()
        (tmp_path / "slots").write_bytes(text)
        history = History(tmp_path)
        assert why in "".join(history.lost)
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


WRITER = """
import sys
from pathlib import Path
from fleetlog.brokers.console.history import History

history = History(Path(sys.argv[1]))
at = max(history.newest, int(sys.argv[2]))
while True:
    at += 10
    history.add(at, {("topic", f"t{number}"): [at % 997, 0.0, 0.0, 0.0] for number in range(at // 50 % 100)})
    print(at, flush=True)
"""


def test_a_console_that_is_killed_keeps_every_step_that_was_written(tmp_path: Path) -> None:
    """At any moment: while names come, files end and begin, and longer steps are made."""
    moments = random.Random(42)
    for _ in range(8):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(BEGIN)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            told = [int(writer.stdout.readline()) for _ in range(moments.randrange(1, 900))]
            writer.send_signal(signal.SIGKILL)
            told += [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
        history = History(tmp_path)
        assert history.lost == []
        rows = dict(history.tiers[0].read(0, 1 << 40))
        assert set(told[-360:]) <= set(rows), "a step is gone"
        assert history.newest - told[-1] in {0, 10}
        for step_s in (60, 600):
            ends = [at for at, _ in history.read("topic", "t0", told[0], told[-1], step_s)["size"]]
            assert ends == [at for at in range(told[0] + 10, told[-1] + 1, 10) if at % step_s == 0]
        names = {number: history.read("topic", f"t{number}", 0, 1 << 40, 10)["bytes_in"] for number in (0, 30, 98)}
        for points in names.values():
            assert all(math.isnan(figure) or figure == at % 997 for at, figure in points)
        history.close()


FILLER = """
import errno, resource, sys
from pathlib import Path
from fleetlog.brokers.console.history import History

history = History(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))  # a write beyond is cut, then refused
refused = 0
for number in range(1, 200):
    at = history.newest or int(sys.argv[2])
    try:
        history.add(at + 10, {("topic", f"t{one}"): [1.0, 2.0, 3.0, 4.0] for one in range(number)})
    except OSError as error:
        assert error.errno in (errno.ENOSPC, errno.EFBIG), error
        refused += 1
print(history.newest, refused)
"""


@pytest.mark.parametrize("most", [3_000, 20_000], ids=["names", "rows"])
def test_a_disk_without_room_costs_the_steps_that_do_not_fit(tmp_path: Path, most: int) -> None:
    command = [sys.executable, "-c", FILLER, str(tmp_path), str(BEGIN), str(most)]
    newest, refused = map(int, subprocess.run(command, capture_output=True, check=True).stdout.split())
    assert refused
    history = History(tmp_path)
    assert history.newest == newest > BEGIN
    assert history.read("topic", "t0", 0, 1 << 40, 10)["size"][-1] == (newest, 4.0)
    history.add(newest + 10, {("topic", "later"): [1.0, 2.0, 3.0, 4.0]})
    history.close()
    history = History(tmp_path)
    assert (history.lost, history.newest) == ([], newest + 10)
    history.close()


@pytest.mark.parametrize("what", ["/proc/fleetlog", "/sys/kernel/fleetlog"])
def test_a_directory_that_cannot_be_written_is_named_and_nothing_stays_open(what: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(HistoryError, match=what):
            History(Path(what))
    assert len(os.listdir("/proc/self/fd")) == before
