"""The map that never changes, against a dict, and what a change of it costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog.brokers.schemas import sorted_map
from fleetlog.brokers.schemas.sorted_map import WIDTH, SortedMap


def made(keys: Any) -> SortedMap[int, int]:
    found: SortedMap[int, int] = SortedMap()
    for key in keys:
        found = found.with_item(key, -key)
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=200), st.integers(-1, 61))
def test_it_is_a_dict_in_order_and_each_step_stays(steps: list[tuple[bool, int]], first: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_map, "WIDTH", 3)
        found, plain = SortedMap[int, int](), dict[int, int]()
        kept = []
        for number, (adds, key) in enumerate(steps):
            found = found.with_item(key, number) if adds else found.without(key)
            plain = {**plain, key: number} if adds else {one: value for one, value in plain.items() if one != key}
            kept.append((found, plain))
        for one, other in [(found, plain), *kept]:
            assert list(one.items()) == sorted(other.items())
            assert bool(one) == bool(other)
        assert list(found.items(first)) == [row for row in sorted(plain.items()) if row[0] >= first]
        assert [found.get(key, "none") for key in range(62)] == [plain.get(key, "none") for key in range(62)]
        assert found.last() == max(plain, default=None)
        assert all(1 <= len(node.keys) <= 3 for node in found.nodes() if plain)
        for key in plain:
            found = found.without(key)
        assert [len(node.keys) for node in found.nodes()] == [0], "nothing is left of what is gone"


@pytest.mark.parametrize("order", ["rising", "falling", "mixed"])
def test_a_change_makes_the_nodes_of_one_way(order: str) -> None:
    count = 20_000
    keys = {"rising": range(count), "falling": range(count, 0, -1), "mixed": ((i * 7919) % count for i in range(count))}
    found = made(keys[order])
    nodes = {id(node) for node in found.nodes()}
    assert len(nodes) <= count // (WIDTH // 2) * 1.2 + 5
    for changed in (found.with_item(-5, 0), found.with_item(count // 2, 0), found.without(count // 2)):
        assert sum(id(node) not in nodes for node in changed.nodes()) <= 8
