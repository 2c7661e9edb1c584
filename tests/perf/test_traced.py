"""How many of the broker's functions a request passes: what a reader has to follow, and what the interpreter calls."""

from __future__ import annotations

import pytest

from perf.traced import CASES, PAGE, page, trace

MOST = {
    "produce": (40, 10), "first": (60, 12), "fetch": (30, 9), "fetch-session": (30, 9), "commit": (142, 31),
    "end": (222, 39),
}  # fmt: skip
"""Functions and files. A first idempotent batch took 109 and 23 when it was executed in two ways, a fetch in a session
100 and 20.
"""


@pytest.mark.parametrize("case", MOST)
def test_a_request_passes_few_functions(case: str) -> None:
    found = trace(case)
    functions, files = MOST[case]
    assert len(found.functions) <= functions, found.text()
    assert len(found.files) <= files, found.text()


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("fetch", "fetch-session", "commit", "end")])
def test_every_produce_goes_one_way(case: str) -> None:
    """What is looked at closer, in a transaction, or of several connections passes the same append."""
    calls = trace(case).functions
    for step in ("execute_produce", "Partition.append_batches", "Appender.append", "Appender._write", "Segment.append"):
        assert sum(count for (_, function), count in calls.items() if function == step) == 1, step


@pytest.mark.parametrize("case", ["fetch", "fetch-session"])
def test_every_fetch_goes_one_way(case: str) -> None:
    calls = trace(case).functions
    for step in (
        "handle_fetch",
        "Fetch.look",
        "PartitionReader.read",
        "LogReader.read",
        "Segment.take",
        "Fetch.answer",
    ):
        assert sum(count for (_, function), count in calls.items() if function == step) == 1, step


def test_the_page_shows_what_the_code_does() -> None:
    assert PAGE.read_text() == page(), "the way of a request has changed: python -m perf.traced page"


def test_the_end_of_a_transaction_is_answered_before_its_markers_and_completed_after_them() -> None:
    calls = [call.function for call in trace("end").calls]
    answered, marked = calls.index("Reply.send"), calls.index("TransactionCoordinator._append_run")
    completed = len(calls) - 1 - calls[::-1].index("TransactionShard.apply")
    assert answered < marked < completed
