"""Runs of offsets: found, cut and joined again."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.shares.runs import WindowRun, WindowRuns
from fleetlog.brokers.shares.state import RecordState

SIZE = 30


@given(st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 5), st.sampled_from(RecordState)), max_size=12))
def test_pieces_are_cut_out_and_neighbours_joined(pieces: list[tuple[int, int, RecordState]]) -> None:
    """As a list of the state of each offset is."""
    runs, states = WindowRuns([WindowRun(0, SIZE - 1)]), [RecordState.AVAILABLE] * SIZE
    for first, size, state in pieces:
        last = min(first + size, SIZE) - 1
        for run in list(runs.between(first, last)):
            part = runs.cut(max(run.first, first), min(run.last, last))
            part.state = state
        states[first : last + 1] = [state] * (last + 1 - first)
        assert [runs.at(offset).state for offset in range(SIZE)] == states
    runs.join()
    assert [run.state for run in runs for _ in range(run.first, run.last + 1)] == states
    assert all(before.last + 1 == run.first for before, run in itertools.pairwise(runs))
    assert all(before.state is not run.state for before, run in itertools.pairwise(runs))
