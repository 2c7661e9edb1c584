"""Rows encoded one by one are the bytes that the library encodes."""

from __future__ import annotations

from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.wire.apis import APIS
from fleetlog.wire.rows import NamedRows

CREATE_TOPICS, CREATE_PARTITIONS = 19, 37
VERSIONS = [
    (key, version)
    for key in (CREATE_TOPICS, CREATE_PARTITIONS)
    for version in range(APIS[key].lowest, APIS[key].max_version + 1)
]
NAMES = ["t", "", "ä" * 40, "x" * 126, "x" * 127, "y" * 30_000]


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@pytest.mark.parametrize("message", [None, "", "No."])
def test_rows_are_what_the_library_encodes(key: int, version: int, message: str | None) -> None:
    response = m.response_class(key)
    kind, field = (
        (response.CreatableTopicResult, "topics")
        if key == CREATE_TOPICS
        else (response.CreatePartitionsTopicResult, "results")
    )
    made = 0

    def row(name: str, error: int) -> Any:
        nonlocal made
        made += 1
        return kind(version=version, name=name, error_code=error, error_message=message)

    rows = NamedRows(response, version)
    expected = []
    for name in NAMES:
        for error in (44, 42):
            rows.add_alike(name, error, lambda name=name, error=error: row(name, error))  # type: ignore[misc]
            expected.append((name, error))
    assert made == 2
    rows.add(row("own", 0))
    expected.append(("own", 0))
    whole = response(version=version, **{field: [row(name, error) for name, error in expected]})
    assert rows.body() == m.encode_response(whole, key, version)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_no_rows(key: int, version: int) -> None:
    response = m.response_class(key)
    field = "topics" if key == CREATE_TOPICS else "results"
    whole = response(version=version, **{field: []})
    assert NamedRows(response, version).body() == m.encode_response(whole, key, version)
