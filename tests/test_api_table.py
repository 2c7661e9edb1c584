"""The API table against the rest of the project: every row has a handler, a test, and a line in docs/apis.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleetlog.brokers.api.rows import api_table
from fleetlog.wire import api_keys
from fleetlog.wire.apis import APIS, Api

ROOT = Path(__file__).parents[1]
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.name != "test_api_table.py")


def row(api: Api) -> str:
    low = f"{api.min_version} (works from {api.lowest})" if api.lowest != api.min_version else str(api.min_version)
    name = f"{api.name} (between brokers)" if api.internal else api.name
    return f"| {api.key} | {name} | {low} | {api.max_version} |"


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_row_has_a_handler_and_a_test(api: Api) -> None:
    handler = api_table()[api.key].handler.__name__
    assert re.search(rf"\b{handler}\b|\b{api.name}Request\b|\b{api.name}\b", TESTS), f"no test speaks of {api.name}"


def test_the_keys_are_named_as_the_apis() -> None:
    named = {key: name for name, key in vars(api_keys).items() if name.isupper()}
    words = {key: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api.name).upper() for key, api in APIS.items()}
    assert named == words


def test_the_pages_name_each_api_of_fleetlog() -> None:
    """In words, not only by number: what upgrades share, and what the requests say."""
    ours = {api.key: api.name for api in APIS.values() if api.key >= 12000}
    for page in ("upgrading.md", "protocol.md"):
        text = (ROOT / "docs" / page).read_text()
        named = {int(key) for key in re.findall(r"\b12\d{3}\b", text)}
        for first, last in re.findall(r"(12\d{3}) to (12\d{3})", text):
            named |= set(range(int(first), int(last) + 1))
        assert sorted(set(ours) - named) == [], f"docs/{page} does not name {ours}"


def test_the_document_lists_the_table() -> None:
    text = (ROOT / "docs" / "apis.md").read_text()
    listed = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    assert listed == [row(api) for api in APIS.values()], "docs/apis.md is not what wire/apis.py says"
