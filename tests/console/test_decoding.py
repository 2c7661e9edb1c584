"""Keys and values of any bytes become text that a page can send, at a bounded cost."""

from __future__ import annotations

import json
import time
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog.brokers.cli.topic_reader import FetchedPart, PartitionBounds, StoredRecord
from fleetlog.brokers.console.json_views import TreeNodes, json_preview, json_tree
from fleetlog.brokers.console.message_pages import READ_MAX, SHOWN_MAX, Browse, ScanBudget, decode_bytes
from fleetlog.brokers.console.pages import merged_changes
from tests.support.loopwatch import slower


@pytest.mark.parametrize("how", ["auto", "json"])
@pytest.mark.parametrize("padding", ["", "x" * 200])
def test_half_a_surrogate_pair_is_shown_as_it_was_escaped(how: str, padding: str) -> None:
    raw = b'{"a\\ud800":"\\udfff%s","b":"\\ud83d\\ude00"}' % padding.encode()
    shown = decode_bytes(raw, how)
    assert shown.kind == "json"
    assert shown.text is not None
    assert shown.text.encode().count(b"\\u") == 2
    assert json.loads(shown.text) == json.loads(raw)
    assert "\N{GRINNING FACE}" in shown.text


@pytest.mark.parametrize(
    "raw",
    [
        b"[1," * 900 + b",".join([b"1"] * 6_000) + b"]" * 900,
        b"[" + b",".join([b"1"] * 500_000) + b"]",
        b"[1," * 200_000 + b"1" + b"]" * 200_000,
    ],
    ids=["deep", "large", "both"],
)
def test_a_value_costs_what_is_shown_of_it(raw: bytes) -> None:
    before = slower()
    tracemalloc.start()
    try:
        begun_s = time.thread_time()
        shown = decode_bytes(raw, "json")
        used_s, peak = time.thread_time() - begun_s, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert shown.text is not None
    assert (len(shown.text), shown.cut, shown.size) == (SHOWN_MAX, True, len(raw))
    assert shown.text.startswith("[")
    assert used_s < 0.5 * max(1.0, before, slower())
    assert peak < 2_000_000


def test_a_cut_in_the_middle_of_a_character_leaves_text() -> None:
    raw = b"x" + "é".encode() * READ_MAX
    assert decode_bytes(raw, "auto").text == "x" + "é" * (SHOWN_MAX - 1)
    assert decode_bytes(raw[: READ_MAX // 2 * 2], "auto").kind == "hex"


@pytest.mark.parametrize(
    "raw", [b"[1," * 200 + b"1" + b"]" * 200, b"[" + b"1," * 1_900 + b"1]", b'{"a\\ud800":{"<b>":1}}']
)
def test_a_tree_has_bounded_nodes_and_text_that_can_be_sent(raw: bytes) -> None:
    nodes = TreeNodes(150)
    part = decode_bytes(raw, "json", 200_000)._asdict()
    tree = json_tree(part, "value", nodes)
    assert len(tree.encode()) < 60_000
    assert 0 <= nodes.left < 150
    assert tree.count("<li>") <= 150
    assert "<b>" not in tree
    assert json_tree(part, "value", TreeNodes(0)) == ""
    assert len(json_preview(part)) <= 241


def test_what_several_brokers_saw_is_one_change() -> None:
    seen = [(31_000, 2), (5_000, 1), (25_600, 2), (25_600, -1), (5_200, 1), (60_000, 1), (90_000, 2)]
    assert merged_changes(seen) == [(90_000, 2), (60_000, 1), (25_600, -1), (25_600, 2), (5_000, 1)]


def test_a_page_ends_between_two_records_when_its_time_is_over() -> None:
    """A filter may take long of each; the next page begins at the first that was not looked at."""
    stored = [StoredRecord(0, at, at, None, b"v", (), "", "", -1, -1, -1, 0, "none") for at in range(10)]
    clock = [0.0]

    def fetch(asked: dict[int, int], *_: Any) -> dict[int, FetchedPart]:
        return {0: FetchedPart(stored[asked[0] :], 10, 100)} if asked else {}

    def slowly(record: StoredRecord) -> bool:
        clock[0] += 4
        return record.offset % 2 == 1

    pages, at = [], 0
    while at < 10:
        source: Any = SimpleNamespace(fetch=fetch)
        budget = ScanBudget(seconds=10, now_s=lambda: clock[0])
        browse = Browse(source, {0: PartitionBounds(0, 10, 10)}, count=50, matches=slowly, budget=budget)
        page = browse.onward({0: at})
        pages.append(([record.offset for record in page.records], page.cut_short, budget.scanned))
        at = page.reached[0]
    assert pages == [([1], True, 3), ([3, 5], True, 3), ([7], True, 3), ([9], False, 1)]
