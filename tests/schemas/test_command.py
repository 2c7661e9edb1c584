"""The command of the registry, and what it refuses before it asks anybody."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.schemas import command
from fleetlog.brokers.schemas.callers import Callers
from fleetlog.brokers.schemas.command import FIELDS_MAX, RegistryServer, SchemaStore
from fleetlog.brokers.schemas.figures import RegistryFigures, Standing
from fleetlog.brokers.schemas.registry import RegistryRefusal, RegistryState


class Kept(SchemaStore):
    """An empty topic, which is read."""

    def __init__(self) -> None:
        self.state = RegistryState()

    def registry(self) -> RegistryState:
        return self.state

    def behind(self) -> str:
        return ""

    def standing(self) -> Standing:
        return Standing(42, 0.5, is_writer=True)


async def answered_by(
    server: RegistryServer, method: str, path: str, query: str, body: bytes, headers: Any = ()
) -> list[Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": method, "raw_path": path.encode(), "query_string": query.encode(), "headers": headers,
    }  # fmt: skip
    await server(scope, receive, send)
    return sent


async def status_of(server: RegistryServer, method: str, path: str) -> int:
    return int((await answered_by(server, method, path, "", b"{}"))[0]["status"])


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
    begin, end = asyncio.run(answered_by(RegistryServer(Kept()), method, path, query, body))
    assert (begin["status"], json.loads(end["body"])["error_code"]) == (status, code)


def ask(server: RegistryServer, method: str, path: str, query: str = "", **headers: str) -> tuple[int, Any]:
    rows = [(name.encode(), value.encode()) for name, value in headers.items()]
    begin, end = asyncio.run(answered_by(server, method, path, query, b"{}", rows))
    return begin["status"], json.loads(end["body"])


def test_a_fault_has_a_body_of_confluents_form(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any, **__: Any) -> None:
        raise ValueError("a secret")

    monkeypatch.setattr(RegistryState, "subjects", fault)
    status, body = ask(RegistryServer(Kept()), "GET", "/subjects")
    assert (status, body["error_code"]) == (500, 50001)
    assert "secret" not in body["message"]


def test_another_name_that_points_to_loopback_gets_nothing() -> None:
    server = RegistryServer(Kept(), None, frozenset({"127.0.0.1", "localhost"}))
    assert ask(server, "GET", "/subjects", host="localhost:8081") == (200, [])
    for host in ("evil.example", "evil.example:8081", "127.0.0.1.evil.example", "", "["):
        assert ask(server, "GET", "/subjects", host=host)[0] == 403, host
    assert ask(server, "GET", "/subjects")[0] == 403


def test_all_schemas_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    for number in range(5):
        plan = kept.state.register(f"s{number}", {"schema": '"string"'}, normalize=False)
        for key, value in plan.records:
            kept.state.apply(json.dumps(key).encode(), json.dumps(value).encode())
    monkeypatch.setattr(command, "SCHEMAS_PER_PAGE", 3)
    server = RegistryServer(kept)
    assert [row["subject"] for row in ask(server, "GET", "/schemas")[1]] == ["s0", "s1", "s2"]
    assert [row["subject"] for row in ask(server, "GET", "/schemas", "offset=3")[1]] == ["s3", "s4"]
    monkeypatch.setattr(command, "PAGE_CHARACTERS_MAX", 10)
    assert ask(server, "GET", "/schemas")[1]["error_code"] == 42209
    assert len(ask(server, "GET", "/schemas", "limit=1")[1]) == 1


def test_guids_are_for_clients_that_take_them() -> None:
    kept, takes = Kept(), {"confluent-accept-unknown-properties": "true"}
    for key, value in kept.state.register("s", {"schema": '"string"'}, normalize=False).records:
        kept.state.apply(json.dumps(key).encode(), json.dumps(value).encode())
    server, guid = RegistryServer(kept), kept.state.version("s", "1").guid
    for path in ("/subjects/s/versions/1", "/schemas/ids/1"):
        assert ask(server, "GET", path, **takes)[1]["guid"] == guid
        assert "guid" not in ask(server, "GET", path)[1]
    assert ask(server, "GET", f"/schemas/guids/{guid}")[1] == {"schema": '"string"', "guid": guid}
    assert ask(server, "GET", f"/schemas/guids/{guid}/ids")[1] == [{"context": ".", "id": 1}]
    assert ask(server, "GET", "/schemas/guids/%00")[1]["error_code"] == 40403


def metrics_of(server: RegistryServer, **headers: str) -> tuple[bytes, str]:
    """The type of the page, and the page."""
    rows = [(name.encode(), value.encode()) for name, value in headers.items()]
    begin, end = asyncio.run(answered_by(server, "GET", "/metrics", "", b"", rows))
    assert begin["status"] == 200, end["body"]
    return dict(begin["headers"])[b"content-type"], end["body"].decode()


def test_metrics_tell_what_was_answered_and_what_there_is() -> None:
    kept = Kept()
    for subject, text in (("a", '"string"'), ("b", '"string"'), ("c", '"int"')):
        for key, value in kept.state.register(subject, {"schema": text}, normalize=False).records:
            kept.state.apply(json.dumps(key).encode(), json.dumps(value).encode())
    for key, value in kept.state.delete_subject("b", permanent=False).records:
        kept.state.apply(json.dumps(key).encode(), json.dumps(value).encode())
    server = RegistryServer(kept)
    for path in ("/subjects/a/versions", "/subjects/a/versions", "/subjects/gone/versions", "/nothing"):
        ask(server, "GET", path)
    content, page = metrics_of(server)
    assert content.startswith(b"text/plain; version=0.0.4")
    samples = {
        (one.name, *(one.labels[name] for name in sorted(one.labels, reverse=True))): one.value
        for family in text_string_to_metric_families(page)
        for one in family.samples
    }
    told = {
        ("requests_total", "GET /subjects/*/versions", "200"): 2,
        ("requests_total", "GET /subjects/*/versions", "40401"): 1,
        ("requests_total", "other", "404"): 1,
        ("request_seconds_count", "GET /subjects/*/versions"): 3,
        ("schemas",): 2, ("subjects",): 2, ("versions", "live"): 2, ("versions", "deleted"): 1,
        ("writer",): 1, ("position",): 42, ("read_age_seconds",): 0.5, ("logins_total", "failure"): 0,
    }  # fmt: skip
    assert {key: samples[f"fleetlog_registry_{key[0]}", *key[1:]] for key in told} == told
    assert ("fleetlog_registry_rights_age_seconds",) not in samples


def test_each_metric_stands_in_the_docs_and_each_of_the_docs_is_shown() -> None:
    described = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"`(fleetlog_registry_\w+)`", described[described.index("## A schema registry's page") :]))
    page = RegistryFigures().page(RegistryState(), Standing(0, 0, is_writer=False), 1.0)
    shown = {
        f"{name}_total" if kind == "counter" else name
        for name, kind in re.findall(r"^# TYPE (fleetlog_\w+?)(?:_total)? (\w+)$", page.decode(), re.MULTILINE)
    }
    assert named == shown


def test_a_look_up_waits_for_no_change() -> None:
    """Changes that wait, for brokers or for each other, leave a thread to serializers that look up a schema."""
    begun, over = threading.Event(), threading.Event()

    class Slow(Kept):
        def change(self, decide: Any, asked_s: float) -> Any:
            begun.set()
            assert over.wait(60)
            return []

    async def both() -> int:
        server = RegistryServer(Slow())
        changes = [asyncio.create_task(status_of(server, "DELETE", "/subjects/s")) for _ in range(20)]
        await asyncio.to_thread(begun.wait, 60)
        try:
            return await asyncio.wait_for(status_of(server, "POST", "/subjects/s"), 60)
        finally:
            over.set()
            await asyncio.gather(*changes)

    assert asyncio.run(both()) == 404


@pytest.mark.parametrize("path", ["/subjects", "/schemas", "/contexts"])
def test_a_schema_waits_for_no_list(path: str) -> None:
    """Where there are many subjects, who lists them does not keep others from a schema."""
    begun, over = threading.Event(), threading.Event()

    class ManySubjects(RegistryState):
        def subjects(self, *_: Any, **__: Any) -> list[str]:
            begun.set()
            assert over.wait(30)
            return []

        def contexts(self, _: Any) -> list[str]:
            return self.subjects()

    async def both() -> list[int]:
        kept = Kept()
        kept.state = ManySubjects()
        server = RegistryServer(kept)
        lists = [asyncio.create_task(status_of(server, "GET", path)) for _ in range(3)]
        await asyncio.to_thread(begun.wait, 60)
        try:
            status = await asyncio.wait_for(status_of(server, "GET", "/schemas/ids/1"), 60)
        finally:
            over.set()
            listed = await asyncio.gather(*lists)
        return [status, *listed]

    assert asyncio.run(both()) == [404, 200, 200, 200]


def options_of(file: Path, *words: str) -> dict[str, Any]:
    with command.registry.make_context("registry", [*words, "--config", str(file)]) as context:
        return context.params


def test_options_come_from_a_file_and_those_of_the_command_line_stand_above(tmp_path: Path) -> None:
    file = tmp_path / "registry.properties"
    file.write_text(
        "# for the service\nlisten = 192.0.2.1\nport=9\nlogin=SCRAM-SHA-256, OAUTHBEARER\nbehind-tls-proxy=true\n"
    )
    found = options_of(file)
    assert (found["host"], found["port"]) == ("192.0.2.1", 9)
    assert found["mechanisms"] == ("SCRAM-SHA-256", "OAUTHBEARER")
    assert found["behind_tls_proxy"]
    assert options_of(file, "--port", "10")["port"] == 10
    with command.registry.make_context("registry", [f"--config={file}"]) as context:
        assert context.params["port"] == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listne=0.0.0.0\n", "listne.*is no option of registry.*listen"), ("config=other\n", "config.*is no option"),
        ("behind-tls-proxy=yes\n", "behind-tls-proxy.*true or false"), ("listen\n", "must be name=value"),
        ("port=1\nport=2\n", "stands twice"), ("port=many\n", "--port"), ("login=NONE\n", "--login"),
        ("tls-key=/nowhere\n", "--tls-key"), ("help=true\n", "help.*is no option"), ("\xff", "UTF-8"),
    ],
)  # fmt: skip
def test_what_a_file_cannot_say_is_said(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "registry.properties"
    file.write_bytes(text.encode("latin-1"))
    refused = CliRunner().invoke(command.registry, ["--config", str(file)])
    assert refused.exit_code == 2
    assert re.search(said, refused.output), refused.output
    assert CliRunner().invoke(command.registry, ["--config", str(tmp_path)]).exit_code == 2


def test_it_is_ready_while_it_reads_on() -> None:
    store = SchemaStore(Target("localhost:1", 1.0, {}))
    status, body = ask(RegistryServer(store), "GET", "/health/ready")
    assert (status, body["error_code"]) == (503, 503)
    assert "_schemas could not be read" in body["message"]
    assert ask(RegistryServer(Kept()), "GET", "/health/ready") == (200, {"ready": True})
    rights = Callers(Target("localhost:1", 1.0, {}), ("PLAIN",))
    assert "ACLs" in ask(RegistryServer(Kept(), rights), "GET", "/health/ready")[1]["message"]
    assert ask(RegistryServer(Kept(), rights), "DELETE", "/health/ready")[0] == 404


def test_a_change_that_waited_too_long_is_not_begun() -> None:
    store = SchemaStore(Target("localhost:1", 1.0, {}))
    with pytest.raises(RegistryRefusal, match="nothing was changed") as refused:
        store.change(lambda state: state.delete_subject("s", permanent=False), time.monotonic() - 2)
    assert refused.value.code == 50002


def test_who_lacks_a_package_is_told_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NEEDED", ("uvicorn", "no_such_package"))
    refused = CliRunner().invoke(command.registry, ["--bootstrap", "localhost:1"])
    assert refused.exit_code == 1
    assert "the registry needs no_such_package: pip install '.[schemas]'" in refused.output
