"""What `make test` draws of the longer files of tests."""

from __future__ import annotations

from tests.support.draw import ROOT, drawn_files, is_drawn, read_seconds, seconds_rows

LONG = {f"tests/{room}/test_{number}.py": 10 * (number + 1) for room in ("a", "b") for number in range(9)}


def test_a_draw_keeps_its_budget_and_has_one_of_each_folder_with_many() -> None:
    for seed in map(str, range(50)):
        chosen = drawn_files(LONG, seed, 150)
        assert sum(LONG[file] * share for file, share in chosen.items()) <= 150
        assert {file.split("/")[1] for file in chosen} == {"a", "b"}
    assert len(drawn_files({f"tests/test_{number}.py": 60 for number in range(9)}, "seed", 60)) == 1
    few = {f"tests/room{number}/test_x.py": 60 for number in range(9)}
    assert [len(drawn_files(few, str(seed), 150)) for seed in range(9)] == [2] * 9


def test_of_a_file_that_takes_long_a_share_is_drawn() -> None:
    chosen = drawn_files({"tests/a/test_x.py": 600, "tests/a/test_y.py": 600}, "seed", 120)
    assert chosen == {"tests/a/test_x.py": 0.1, "tests/a/test_y.py": 0.1}
    assert drawn_files({"tests/a/test_x.py": 600}, "seed", 300) == {"tests/a/test_x.py": 0.5}
    drawn = sum(is_drawn(f"tests/a/test_x.py test_{number}", "seed", 0.1) for number in range(1000))
    assert 60 < drawn < 140


def test_each_file_is_drawn_by_some_commit() -> None:
    drawn = {file for seed in map(str, range(100)) for file in drawn_files(LONG, seed, 150)}
    assert drawn == set(LONG)


def test_the_files_of_the_table_are_there() -> None:
    assert [file for file in read_seconds() if not (ROOT / file).exists()] == []


def test_of_the_longest_files_the_reason_is_told() -> None:
    longest = sorted(seconds_rows(), key=lambda row: -int(row[1]))[:20]
    assert [row[0] for row in longest if len(row) < 3] == []
