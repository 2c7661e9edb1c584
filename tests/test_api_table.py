"""The API table against the rest of the project: every row has a handler and a test; what is generated is not old."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from fleetlog.brokers.api.rows import api_table
from fleetlog.wire.apis import APIS, Api
from tools import generate

ROOT = Path(__file__).parents[1]
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.name != "test_api_table.py")


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_row_has_a_handler_and_a_test(api: Api) -> None:
    handler = api_table()[api.key].handler.__name__
    assert re.search(rf"\b{handler}\b|\b{api.name}Request\b|\b{api.name}\b", TESTS), f"no test speaks of {api.name}"


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_handler_is_a_plain_function(api: Api) -> None:
    handler = api_table()[api.key].handler
    assert not inspect.isgeneratorfunction(handler), "in_slices makes it one"
    assert not inspect.iscoroutinefunction(handler), "in_task makes it one"


def test_the_pages_name_each_api_of_fleetlog() -> None:
    """In words, not only by number: what upgrades share, and what the requests say."""
    ours = {api.key: api.name for api in APIS.values() if api.key >= 12000}
    for page in ("upgrading.md", "protocol.md"):
        text = (ROOT / "docs" / page).read_text()
        named = {int(key) for key in re.findall(r"\b12\d{3}\b", text)}
        for first, last in re.findall(r"(12\d{3}) to (12\d{3})", text):
            named |= set(range(int(first), int(last) + 1))
        assert sorted(set(ours) - named) == [], f"docs/{page} does not name {ours}"


@pytest.mark.parametrize("name", generate.FILES)
def test_what_is_generated_is_what_the_schemas_say(name: str) -> None:
    assert (ROOT / name).read_text() == generate.FILES[name](), f"{name} is old: make generate"
