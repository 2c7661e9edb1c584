"""The examples' data: made by its script, and with everything in it that the examples are about."""

from __future__ import annotations

from examples.data.make import files
from tests.spark.examples import expected


def test_the_data_is_what_its_script_makes() -> None:
    for name, content in files().items():
        assert (expected.DATA / name).read_text() == content


def test_the_data_has_what_the_examples_are_about() -> None:
    settled = [value for _, value in expected.settled_orders(per_batch=65) if value is not None]
    assert {value["state"] for value in settled} == {"paid", "unpaid"}
    sessions = [value for _, value in expected.sessions(per_batch=150) if value is not None]
    assert {value["bought"] for value in sessions} == {True, False}
    changes = expected.lines("changes")
    positions = [value["source"]["lsn"] for _, value in changes if value is not None]
    assert len(set(positions)) < len(positions), "nothing is repeated"
    assert positions != sorted(positions), "all is in order"
    assert len(expected.table()) < len({key for key, _ in changes}), "no row stays deleted"
