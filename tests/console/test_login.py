"""Login: the user's own identity of the fleet, by which the console asks the brokers; their ACLs decide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.cli.command_config import read_command_config
from fleetlog.brokers.console.clients import IDLE_S, FleetClients, UserLogin
from fleetlog.brokers.console.logins import BrowserSessions
from tests.console.served import Served, Visitor, log_in, scram_config
from tests.support.fleet import Fleet
from tests.support.secured import BROKER_PASSWORD, BROKER_USER, PASSWORD, USER, confluent

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def console(guarded: Fleet, tmp_path: Path) -> Iterator[Served]:
    file = scram_config(tmp_path)
    served = Served(guarded.bootstrap, "--login", "SCRAM-SHA-256", "--command-config", str(file))
    yield served
    assert served.close() == 0


def test_each_user_sees_and_changes_what_the_acls_let_them(guarded: Fleet, console: Served) -> None:
    stranger = Visitor(console)
    got = stranger.get("/topics?name=a")
    assert (got.status, got.headers["location"]) == (303, "/login?next=%2Ftopics%3Fname%3Da")
    assert stranger.get("/topics", Accept="application/json").status == 401
    assert stranger.post("/change/create-topic", {"topic": "a", "confirm": "yes"}).status == 303
    refused = log_in(stranger, USER, "wrong")
    assert refused.status == 403
    assert "wrong" not in refused.text
    assert "refuse this user or this password" in refused.text
    assert f'value="{USER}"' in refused.text
    assert 'aria-label="Pages"' not in refused.text, "no page is there before the login"
    assert stranger.get("/topics").status == 303
    before = stranger.cookies.copy()
    assert log_in(stranger, USER, PASSWORD).headers["location"] == "/topics"
    assert stranger.cookies != before, "a login begins a session with another key"

    admin = Visitor(console)
    assert log_in(admin, BROKER_USER, BROKER_PASSWORD, "//evil.example/").headers["location"] == "/"
    assert BROKER_USER in admin.page("/")
    for kind, form in (
        ("create-topic", {"topic": "secret", "partitions": "1"}),
        ("create-topic", {"topic": "shared", "partitions": "1"}),
        ("add-acl", {"resource": "topic", "name": "shared", "operation": "Describe", "permission": "allow",
                     "principal": f"User:{USER}"}),
    ):  # fmt: skip
        token = admin.json("/topics")["form_token"]
        got = admin.post(f"/change/{kind}", {"form_token": token, "confirm": "yes", **form}, Accept="application/json")
        assert got.status == 200, got.text
    assert {row["topic"] for row in admin.json("/topics")["topics"]} >= {"secret", "shared"}
    assert {row["user"] for row in admin.json("/security")["users"]["rows"]} == {BROKER_USER, USER}
    assert [row["principal"] for row in admin.json("/security")["acls"]["rows"]] == [f"User:{USER}"]

    login = confluent("SCRAM-SHA-256", BROKER_USER, BROKER_PASSWORD)
    producer = Producer({"bootstrap.servers": guarded.bootstrap, **login})
    producer.produce("shared", "for some eyes")
    assert producer.flush(30) == 0
    assert "for some eyes" in admin.page("/topics/shared/messages")
    mine = admin.json("/connections")["connections"]
    assert (f"User:{BROKER_USER}", "SCRAM-SHA-256") in {(one["principal"], one["mechanism"]) for one in mine}

    alice = stranger
    assert {row["topic"] for row in alice.json("/topics")["topics"]} == {"shared"}
    assert alice.get("/topics/secret").status in {403, 404}
    assert alice.get("/topics/shared/messages", Accept="application/json").status == 403
    assert alice.get("/connections", Accept="application/json").status == 403
    assert "right to describe" in alice.json("/topics/shared")["timeline"]["untold"][0]["trouble"]
    assert "AUTHORIZATION_FAILED" in alice.json("/security")["acls"]["error"]
    token = alice.json("/topics")["form_token"]
    form = {"form_token": token, "topic": "shared", "confirm": "yes"}
    assert alice.post("/change/delete-topics", form, Accept="application/json").status == 403

    token = alice.token(alice.page("/topics"))
    old = alice.cookies.copy()
    assert alice.post("/logout", {"form_token": token}).status == 303
    alice.cookies = old
    assert alice.get("/topics").status == 303, "the session has ended on the server, too"
    page = f"http://{alice.address}/topics?name=a"
    for referer, onward in ((page, "%2Ftopics%3Fname%3Da"), ("https://evil.example/topics", "%2F"), ("", "%2F")):
        lost = alice.post("/change/create-topic", {"topic": "late"}, Referer=referer)
        assert (lost.status, lost.headers["location"]) == (303, f"/login?next={onward}"), "back to the form's page"
    for page in (admin.page("/"), admin.page("/security")):
        assert BROKER_PASSWORD not in page


def test_no_connection_rests_for_a_user_without_a_session(guarded: Fleet, tmp_path: Path) -> None:
    target = Target(guarded.bootstrap, 20.0, read_command_config(scram_config(tmp_path)))
    sessions, now_s = BrowserSessions(), [0.0]
    clients = FleetClients(target, sessions.logged_in, lambda: now_s[0])
    login = UserLogin(USER, PASSWORD, "SCRAM-SHA-256")

    def asked() -> None:
        with clients.lend(login) as client:
            client.describe_cluster()
        assert clients.resting() == {login: 1}

    session = sessions.begin(login)
    asked()
    with clients.lend(login) as client:
        sessions.end(session)
        clients.drop(login)
        client.describe_cluster()
    assert clients.resting() == {}, "a page that ends after the logout gives nothing back"

    session = sessions.begin(login)
    asked()
    clients.sweep()
    assert clients.resting() == {login: 1}
    sessions.end(session)
    clients.sweep()
    assert clients.resting() == {}

    sessions.begin(login)
    asked()
    now_s[0] += IDLE_S + 1
    clients.sweep()
    assert clients.resting() == {}
