"""The command of the registry, and what it refuses before it asks anybody."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from fleetlog.brokers.schemas import command
from fleetlog.brokers.schemas.command import FIELDS_MAX, RegistryServer, SchemaStore
from fleetlog.brokers.schemas.registry import RegistryState


class Kept(SchemaStore):
    """An empty topic, which is read."""

    def __init__(self) -> None:
        self.state = RegistryState()

    def registry(self) -> RegistryState:
        return self.state


def asked(method: str, path: str, query: str = "", body: bytes = b"") -> tuple[int, Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "raw_path": path.encode(), "query_string": query.encode(), "headers": []}
    asyncio.run(RegistryServer(Kept())(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "status", "code"),
    [
        ("GET", "/subjects", "&".join(["a=1"] * (FIELDS_MAX + 1)), b"", 400, 400),
        ("GET", "/subjects", "offset=x", b"", 422, 422), ("GET", "/nothing", "", b"", 404, 404),
        ("GET", "/subjects/%ff", "", b"", 404, 404), ("POST", "/schemas/types", "", b"", 405, 405),
        ("GET", "/subjects/s/versions/0", "", b"", 422, 42202), ("GET", "/subjects/s/versions/1", "", b"", 404, 40401),
        ("GET", "/schemas/ids/x", "", b"", 404, 404), ("GET", "/schemas/ids/1", "", b"", 404, 40403),
        ("POST", "/subjects/s", "", b"[" * 100_000, 400, 400), ("POST", "/subjects/s", "", b"{}", 404, 40401),
        ("POST", "/compatibility/subjects/s/versions", "", b"[]", 422, 422),
        ("POST", "/compatibility/subjects/s/versions", "", b'{"schema":"\\ud800"}', 422, 42201),
        ("POST", "/compatibility/subjects/s/versions", "", b" " * 2_000_001, 422, 42209),
    ],
)  # fmt: skip
def test_requests_that_are_refused(method: str, path: str, query: str, body: bytes, status: int, code: int) -> None:
    answered = asked(method, path, query, body)
    assert (answered[0], answered[1]["error_code"]) == (status, code)


def test_who_lacks_a_package_is_told_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NEEDED", ("uvicorn", "no_such_package"))
    refused = CliRunner().invoke(command.registry, ["--bootstrap", "localhost:1"])
    assert refused.exit_code == 1
    assert "the registry needs no_such_package: pip install '.[schemas]'" in refused.output
