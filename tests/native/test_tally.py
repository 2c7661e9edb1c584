"""The tally: both twins count the same."""

from __future__ import annotations

import importlib
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog._native.batch import Admitted
from fleetlog._native.tally_py import SIZE_CLASSES, TIME_BOUNDS_S, Tally, Times

BATCHES = st.lists(
    st.tuples(st.integers(0, 2**40), st.integers(0, 1000), st.one_of(st.integers(0, 2**20), st.integers(0, 2**34)))
)
READS = st.lists(st.tuples(st.integers(0, 2**32), st.booleans()))
OUTCOMES = st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(0, 2**32), st.sampled_from(["none", "off", "on"])))
NUMBERS = ("records_in", "bytes_in", "batches_in", "fetches", "bytes_out", "replicated_out", "sizes")


@given(BATCHES, READS)
def test_both_twins_count_the_same(batches: list[tuple[int, int, int]], reads: list[tuple[int, bool]]) -> None:
    tallies = [Tally(), importlib.import_module("fleetlog._native.tally_cy").Tally()]
    for tally in tallies:
        tally.appended([Admitted(first, first + more, 0, size, -1, -1, -1, 0) for first, more, size in batches])
        for _, more, size in batches:
            tally.appended_records(more, size)
        for size, follower in reads:
            tally.fetched(size, follower)
    pure, compiled = ({name: getattr(tally, name) for name in NUMBERS} for tally in tallies)
    assert compiled == pure
    assert pure["batches_in"] == sum(pure["sizes"]) == 2 * len(batches)
    assert pure["bytes_in"] == 2 * sum(size for _, _, size in batches)
    assert pure["bytes_out"] + pure["replicated_out"] == sum(size for size, _ in reads)


def test_sizes_are_classed_by_their_bits() -> None:
    tally = Tally()
    for size in (0, 1, 127, 128, 2**32, 2**40):
        tally.appended_records(1, size)
    classes = {bits: count for bits, count in enumerate(tally.sizes) if count}
    assert classes == {0: 1, 1: 1, 7: 1, 8: 1, SIZE_CLASSES - 1: 2}


@given(OUTCOMES, st.booleans())
def test_both_twins_count_the_same_answers(answers: list[tuple[int, int, str]], follower: bool) -> None:
    found = []
    for twin in ("py", "cy"):
        kernel = importlib.import_module(f"fleetlog._native.tally_{twin}")
        tally = kernel.Tally()
        places = {"none": None, "off": SimpleNamespace(figures=None), "on": SimpleNamespace(figures=tally)}
        pairs = [
            (SimpleNamespace(partition=places[place]), (error, 0, 0, 0, None, (), size))
            for error, size, place in answers
        ]
        found.append((kernel.count_fetched(pairs, follower), *(getattr(tally, name) for name in NUMBERS)))
    assert found[0] == found[1]
    assert found[0][0] == sum(error for error, _, _ in answers)


@given(st.lists(st.tuples(st.one_of(st.floats(-1, 20), st.sampled_from(TIME_BOUNDS_S)), st.integers(1, 5))))
def test_both_twins_count_the_same_times(times: list[tuple[float, int]]) -> None:
    kernel = importlib.import_module("fleetlog._native.tally_cy")
    assert kernel.TIME_BOUNDS_S == TIME_BOUNDS_S
    found = []
    for twin in (Times(), kernel.Times()):
        for seconds, count in times:
            twin.observe(seconds, count)
        found.append((twin.counts, twin.total))
        twin.counts = [2] * (len(TIME_BOUNDS_S) + 1)
        twin.observe(0.0)
        assert twin.counts == [3, *([2] * len(TIME_BOUNDS_S))]
        with pytest.raises(ValueError, match="2 classes"):
            twin.counts = [1, 2]
    assert found[0] == found[1]
    assert sum(found[0][0]) == sum(count for _, count in times)


def test_both_twins_read_the_clock_that_python_reads() -> None:
    kernel = importlib.import_module("fleetlog._native.tally_cy")
    for twin in (Times(), kernel.Times()):
        begun = time.perf_counter()
        twin.since(begun - 3600.0, 2)
        assert twin.counts == [0] * len(TIME_BOUNDS_S) + [2]
        assert 0 <= twin.total / 2 - 3600.0 <= time.perf_counter() - begun + 1e-6
