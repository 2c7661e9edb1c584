"""Several fleets in one console: pages, changes and logins of each are its own, and one that is away harms no other."""

from __future__ import annotations

import json
import re
import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from fleetlog.brokers.cli.main import cli
from fleetlog.brokers.console.web import NAVIGATION
from tests.cli.shell import Shell
from tests.console.served import Served, Visitor, log_in, scram_config, sent_back
from tests.support.fleet import Fleet
from tests.support.issuer import CLIENT_ID, CLIENT_SECRET, Issuer
from tests.support.schema_registry import FakeRegistry
from tests.support.secured import BROKER_PASSWORD, BROKER_USER, PASSWORD, USER
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper
PAGES_AT_ONCE = 20
"""More than a fleet's console answers at the same time."""


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


class Listening(FakeRegistry):
    """A registry that keeps what came as a login."""

    def __init__(self) -> None:
        self.logins: set[str] = set()
        super().__init__()

    def handle(self, path: str, body: Any, authorization: str) -> tuple[int, Any]:
        self.logins.add(authorization)
        return super().handle(path, body, authorization)


@pytest.fixture
def registry() -> Iterator[Listening]:
    listening = Listening()
    yield listening
    listening.close()


@pytest.fixture
def profiles(guarded: Fleet, silent: str, registry: Listening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``guarded`` with the login of its super user, and ``away``."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    security = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{module} required username="{BROKER_USER}" password="{BROKER_PASSWORD}";',
    }  # fmt: skip
    named = {
        "guarded": {"bootstrap": guarded.bootstrap, "security": security, "registry": registry.url},
        "away": {"bootstrap": silent, "security": security},
        "open": {"bootstrap": "127.0.0.1:1"},
    }
    (tmp_path / "fleetlog").mkdir()
    file = tmp_path / "fleetlog" / "profiles.json"
    file.write_text(json.dumps({"in_use": "", "profiles": named}))
    file.chmod(0o600)


def test_each_fleet_has_its_pages_and_its_changes(fleet: Fleet, guarded: Fleet, profiles: None) -> None:
    console = Served(fleet.bootstrap, "--fleet", "guarded")
    name, here = f"there-{uuid.uuid4().hex[:8]}", f"here-{uuid.uuid4().hex[:8]}"
    Shell(fleet).run("topics", "create", here, "-p", "1")
    try:
        visitor, below = Visitor(console), "/fleets/guarded"
        assert visitor.json(f"{below}/")["cluster_id"] != visitor.json("/")["cluster_id"]
        tokens = {path: visitor.json(f"{path}/topics")["form_token"] for path in ("", below)}
        form = {"topic": name, "partitions": "1", "confirm": "yes"}
        crossed = visitor.post(f"{below}/change/create-topic", {**form, "form_token": tokens[""]})
        assert crossed.status == 403, "a form of one fleet changes no other"
        made = visitor.post(f"{below}/change/create-topic", {**form, "form_token": tokens[below]})
        assert (made.status, made.headers["location"]) == (303, f"{below}/topics/{name}")
        eventually(lambda: visitor.get(f"{below}/topics/{name}").status == 200, "the topic's page")
        assert visitor.get(f"/topics/{name}").status == 404
        assert visitor.get(f"{below}/topics/{here}").status == 404
        addresses = set()
        paths = [address for address, _ in NAVIGATION if address != "/schemas"]  # its registry knows no lists
        paths += [
            f"/topics/{name}{one}" for one in ("", "/messages", "/write", "/clients", "/setting?name=retention.ms")
        ]
        for path in (*paths, "/brokers/1", "/find?q=there"):
            page = visitor.page(below + path)
            addresses |= set(re.findall(r'\b(?:href|action|formaction|hx-get|data-tail)="([^"#]*)"', page))
        outside = {one for one in addresses if not one.startswith((f"{below}/", "/static/"))}
        assert outside == set()
        listed = re.findall(
            r"<li><a href='([^']*)'( aria-current=\"true\")?>([^<]*)</a>", visitor.page(f"{below}/topics")
        )
        assert listed == [("/", "", fleet.bootstrap), (f"{below}/", ' aria-current="true"', "guarded")]
        assert f'href="{below}/topics" aria-current="page"' in visitor.page(f"{below}/topics")
        assert visitor.get(below).headers["location"].endswith(f"{below}/")
        assert visitor.get("/fleets/none/topics").status == 404
        assert "<a href='/fleets/guarded/'>guarded</a>" in visitor.page("/topics")
    finally:
        assert console.close() == 0


def test_a_fleet_that_is_away_harms_no_other(fleet: Fleet, profiles: None) -> None:
    console = Served(fleet.bootstrap, "--fleet", "away", "--timeout", "12")
    try:
        with ThreadPoolExecutor(PAGES_AT_ONCE) as pool:
            waiting = [pool.submit(Visitor(console).get, "/fleets/away/topics") for _ in range(PAGES_AT_ONCE)]
            visitor = Visitor(console)
            assert visitor.json("/")["health"]
            assert visitor.get("/topics").status == 200
            assert not any(one.done() for one in waiting), "all of its pages still wait"
            assert {one.result().status for one in waiting} == {502}
    finally:
        assert console.close() == 0


def test_each_fleet_has_its_logins(guarded: Fleet, profiles: None, tmp_path: Path) -> None:
    words = ("--login", "SCRAM-SHA-256", "--command-config", str(scram_config(tmp_path)))
    console = Served(guarded.bootstrap, *words, "--fleet", "guarded")
    try:
        visitor, below = Visitor(console), "/fleets/guarded"
        assert log_in(visitor, BROKER_USER, BROKER_PASSWORD).status == 303
        assert visitor.get("/topics").status == 200
        refused = visitor.get(f"{below}/topics")
        login = f"{below}/login?next={below.replace('/', '%2F')}%2Ftopics"
        assert (refused.status, refused.headers["location"]) == (303, login)
        token = visitor.token(visitor.page(login))
        entered = visitor.post(login, {"form_token": token, "user": USER, "password": PASSWORD})
        assert (entered.status, entered.headers["location"]) == (303, f"{below}/topics")
        assert f"<span>{USER}</span>" in visitor.page(f"{below}/topics")
        assert f"<span>{BROKER_USER}</span>" in visitor.page("/topics")
        token = visitor.json(f"{below}/topics")["form_token"]
        assert visitor.post(f"{below}/logout", {"form_token": token}).headers["location"] == f"{below}/"
        assert visitor.get(f"{below}/topics").status == 303
        assert visitor.get("/topics").status == 200
        refused = Visitor(console).get(f"{below}/topics", Accept="application/json")
        assert (refused.status, refused.value["error"]) == (401, f"log in first, by {below}/login")
    finally:
        assert console.close() == 0


def test_a_login_at_an_issuer_leads_back_to_its_fleet(
    guarded: Fleet, profiles: None, issuer: Issuer, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(CLIENT_SECRET)
    console = Served(
        guarded.bootstrap, "--login", "OAUTHBEARER", "--command-config", str(scram_config(tmp_path)),
        "--oidc-issuer", issuer.url, "--oidc-client-id", CLIENT_ID, "--oidc-client-secret-file", str(secret),
        "--fleet", "guarded",
    )  # fmt: skip
    try:
        visitor, below = Visitor(console), "/fleets/guarded"
        issuer.user = "alice"
        for onward, place in (
            ("", f"{below}/"),
            ("?next=/topics", f"{below}/topics"),
            (f"?next={below}/x", f"{below}/x"),
        ):
            begun = visitor.get(f"{below}/login/oidc{onward}")
            callback = urlsplit(sent_back(begun.headers["location"]))
            assert callback.path.startswith(f"{below}/")
            page = visitor.page(f"{callback.path}?{callback.query}")
            assert f'content="0; url={place}"' in page
            assert f'<a href="{place}">Go on</a>' in page
    finally:
        assert console.close() == 0


def test_a_users_password_goes_to_no_registry(
    guarded: Fleet, profiles: None, registry: Listening, tmp_path: Path
) -> None:
    registry.add("orders-value", '{"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]}')
    words = ("--login", "SCRAM-SHA-256", "--command-config", str(scram_config(tmp_path)))
    console, below = Served(guarded.bootstrap, *words, "--fleet", "guarded"), "/fleets/guarded"
    try:
        visitor = Visitor(console)
        address = f"{below}/login?next=%2F"
        form = {"form_token": visitor.token(visitor.page(address)), "user": BROKER_USER, "password": BROKER_PASSWORD}
        assert visitor.post(address, form).status == 303
        name = f"registered-{uuid.uuid4().hex[:8]}"
        form = {"form_token": visitor.json(f"{below}/topics")["form_token"], "topic": name, "confirm": "yes"}
        assert visitor.post(f"{below}/change/create-topic", form | {"partitions": "1"}).status == 303
        eventually(lambda: visitor.get(f"{below}/topics/{name}").status == 200, "the topic's page")
        record = form | {"value": '{"n": 7}', "schema": "orders-value"}
        assert visitor.post(f"{below}/change/write-record", record).status == 303
        (written,) = visitor.json(f"{below}/topics/{name}/messages?from=beginning")["messages"]
        assert (written["value"]["kind"], written["value"]["text"]) == ("avro", '{"n": 7}')
        assert registry.logins == {""}
    finally:
        assert console.close() == 0


def test_a_fleet_whose_brokers_know_no_users_has_no_console_with_logins(
    guarded: Fleet, profiles: None, tmp_path: Path
) -> None:
    words = [
        "console",
        "-b",
        guarded.bootstrap,
        "--login",
        "SCRAM-SHA-256",
        "--command-config",
        str(scram_config(tmp_path)),
    ]
    for name, text in {"open": "profile open has no", "none": "there is no profile", "a/b": "needs a name"}.items():
        refused = CliRunner().invoke(cli, [*words, "--fleet", name], prog_name="fleetlog")
        assert refused.exit_code != 0
        assert text in refused.stderr
