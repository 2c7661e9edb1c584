"""Users and their passwords: made, changed and removed by forms; no password stands where it does not belong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.console.served import Got, Served, Visitor, log_in, scram_config
from tests.support.fleet import Fleet
from tests.support.secured import BROKER_PASSWORD, BROKER_USER, PASSWORD, USER, confluent
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "console.log"


@pytest.fixture
def console(guarded: Fleet, tmp_path: Path, log: Path) -> Iterator[Served]:
    words = ("--login", "SCRAM-SHA-256", "--command-config", str(scram_config(tmp_path)))
    served = Served(guarded.bootstrap, *words, log=log)
    yield served
    assert served.close() == 0


@pytest.fixture
def admin(console: Served) -> Visitor:
    visitor = Visitor(console)
    assert log_in(visitor, BROKER_USER, BROKER_PASSWORD).status == 303
    return visitor


def posted(visitor: Visitor, kind: str, **form: str) -> Got:
    token = visitor.json("/topics")["form_token"]
    return visitor.post(f"/change/{kind}", {"form_token": token, **form}, Accept="application/json")


def _logs_in(fleet: Fleet, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> bool:
    try:
        client = AdminClient({"bootstrap.servers": fleet.bootstrap, **confluent(mechanism, user, password)})
        return bool(client.list_topics(timeout=5).brokers)
    except KafkaException:
        return False


def _users(visitor: Visitor) -> dict[tuple[str, str], int]:
    rows = visitor.json("/security")["users"]["rows"]
    return {(row["user"], row["mechanism"]): row["iterations"] for row in rows}


def test_a_user_is_made_and_its_password_stands_nowhere(guarded: Fleet, admin: Visitor, log: Path) -> None:
    typed = "typed-by-hand-1"
    form = {"user": "clara", "iterations": "5000", "SCRAM-SHA-512": "yes"}
    asked = posted(admin, "set-password", **form, password=typed)
    assert asked.value["preview"] == []
    assert asked.value["command"].endswith("--iterations=5000 --mechanism=SCRAM-SHA-512 --password-stdin -- clara")
    assert (asked.value["asks_password"], typed in asked.text) == (True, False)
    token = {"form_token": admin.json("/topics")["form_token"]}
    question = admin.post("/change/set-password", token | form | {"password": typed}).text
    assert '<input type="password" name="password"' in question
    assert typed not in question
    confirmed = {**form, "confirm": "yes", "password": typed}
    got = posted(admin, "set-password", **confirmed, again="another")
    assert (got.status, "are not the same" in got.value["error"]) == (400, True)
    assert ("clara", "SCRAM-SHA-512") not in _users(admin)
    done = posted(admin, "set-password", **confirmed, again=typed)
    assert (done.status, typed in done.text) == (200, False)
    eventually(lambda: _users(admin).get(("clara", "SCRAM-SHA-512")) == 5000, "the user is there")
    assert ("clara", "SCRAM-SHA-256") not in _users(admin)
    eventually(lambda: _logs_in(guarded, "clara", typed), "it logs in")

    assert 'name="iterations" value="5000"><input type="hidden" name="SCRAM-SHA-512"' in admin.page("/security")
    asked = posted(admin, "set-password", **form)
    assert asked.value["preview"] == [{"user": "clara", "mechanism": "SCRAM-SHA-512", "iterations": 5000}]
    got = admin.post("/change/set-password", token | form | {"confirm": "yes", "password": "", "again": ""})
    assert (got.status, got.headers["location"]) == (303, "/security")
    assert "clara" not in admin.get("/topics", HX_Request="true").text, "a part that renews itself keeps it back"
    made = admin.page("/security").split("<code data-secret>")[1].split("<")[0]
    assert len(made) == 24
    assert made not in admin.page("/security"), "it is shown once"
    eventually(lambda: _logs_in(guarded, "clara", made), "the new one is good")
    assert not _logs_in(guarded, "clara", typed)

    for user in ("clara", BROKER_USER):
        page = admin.post("/change/remove-user", {**token, "user": user}).text
        assert ("You are logged in as this user." in page) == (user == BROKER_USER)
    asked = posted(admin, "remove-user", user="clara")
    assert asked.value["preview"][0]["user"] == "clara"
    assert asked.value["destroys"]
    assert posted(admin, "remove-user", user="clara", confirm="yes").status == 200
    eventually(lambda: "clara" not in {user for user, _ in _users(admin)}, "it is gone")
    got = posted(admin, "remove-user", user="clara", confirm="yes")
    assert (got.status, "user clara has no such credential" in got.value["error"]) == (404, True)
    logged = log.read_text()
    assert "fleetlog users add" in logged
    assert not {one for one in (typed, made) if one in logged}


def test_who_changes_its_own_password_stays_logged_in(guarded: Fleet, console: Served, admin: Visitor) -> None:
    other, changed = "of-the-brokers-8", {"user": "dora", "SCRAM-SHA-256": "yes", "confirm": "yes"}
    acl = {"resource": "cluster", "permission": "Allow", "principal": "User:dora", "op:All": "yes", "confirm": "yes"}
    assert posted(admin, "add-acl", **acl).status == 200
    assert posted(admin, "set-password", **changed, password=PASSWORD, again=PASSWORD).status == 200
    dora = Visitor(console)
    eventually(lambda: log_in(dora, "dora", PASSWORD).status == 303, "it is there")
    assert posted(dora, "set-password", **changed, password=other, again=other).status == 200
    eventually(lambda: _logs_in(guarded, "dora", other, "SCRAM-SHA-256"), "the new one is good")
    assert posted(dora, "set-password", user="dora").value["preview"], "a command logs in anew"
    given = {name: value for name, value in acl.items() if name != "op:All"}
    for kind, form in (("remove-user", {"user": "dora", "confirm": "yes"}), ("remove-acl", given)):
        assert posted(admin, kind, **form).status == 200
    assert "dora" not in str(admin.json("/security")), "other tests find the fleet as it was"


def test_no_user_has_an_odd_name_or_too_few_iterations(admin: Visitor) -> None:
    for form in ({}, {"user": "a\nb"}, {"user": "u" * 201}, {"user": "a", "iterations": "1"}):
        for confirm in ({}, {"confirm": "yes"}):
            assert posted(admin, "set-password", **form, **confirm).status == 400, form
    asked = posted(admin, "set-password", user="--zookeeper=192.0.2.1")
    assert asked.value["command"].endswith("-- --zookeeper=192.0.2.1"), "it is a name, and no option"


def test_a_user_without_the_right_is_told_which(console: Served) -> None:
    alice = Visitor(console)
    assert log_in(alice, USER, PASSWORD).status == 303
    assert "CLUSTER_AUTHORIZATION_FAILED" in alice.json("/security")["users"]["error"]
    refused = alice.get("/connections", Accept="application/json")
    assert (refused.status, "`fleetlog acls add --cluster` gives it" in refused.value["error"]) == (403, True)
    assert [one["incarnation"] for one in alice.json("/")["brokers"]] == [None], "not told is no number"
    assert "you may need the right to describe the cluster" in alice.page("/")
    for confirm in ({}, {"confirm": "yes"}):
        got = posted(alice, "set-password", user="mallory", **confirm)
        assert (got.status, "CLUSTER_AUTHORIZATION_FAILED" in got.value["error"]) == (403, True)
        assert "password" not in got.value


def test_a_row_of_the_table_of_acls_is_added_changed_and_removed(admin: Visitor) -> None:
    def rows() -> list[tuple[str, ...]]:
        found = admin.json("/security?acls=zoe")["acls"]
        (table,) = [one for one in found["tables"] if one["resource"] == "Topic"]
        assert len(table["rows"]) == found["count"]
        return [
            (one["name"], one["pattern"], one["host"], one["permission"], *one["operations"]) for one in table["rows"]
        ]

    row = {"resource": "Topic", "name": "eu-", "pattern": "prefixed", "host": "10.0.0.0/8", "principal": "User:zoe",
           "permission": "Allow"}  # fmt: skip
    asked = posted(admin, "add-acl", **row, **{"op:Read": "yes", "op:Write": "yes"})
    assert [(one["change"], one["operation"]) for one in asked.value["preview"]] == [("add", "Read"), ("add", "Write")]
    assert rows() == []
    posted(admin, "add-acl", **asked.value["fields"], confirm="yes")
    eventually(rows, "it is there", good=lambda found: found == [
        ("eu-", "prefixed", "10.0.0.0/8", "Allow", "Read", "Write"),
    ])  # fmt: skip
    page = admin.page("/security?acls=zoe")
    assert 'aria-label="Allow Write: User:zoe, eu-" checked' in page
    assert 'aria-label="Allow Alter: User:zoe, eu-">' in page

    asked = posted(admin, "set-acl", **row, **{"op:Describe": "yes", "op:Read": "yes"})
    assert {one["operation"]: one["change"] for one in asked.value["preview"]} == {
        "Describe": "add", "Write": "remove", "Read": "keep",
    }  # fmt: skip
    assert "fleetlog acls set" in asked.value["command"]
    posted(admin, "set-acl", **asked.value["fields"], confirm="yes")
    eventually(rows, "it is changed", good=lambda found: found == [
        ("eu-", "prefixed", "10.0.0.0/8", "Allow", "Read", "Describe"),
    ])  # fmt: skip
    denied = posted(admin, "add-acl", **{**row, "permission": "deny"}, **{"op:Read": "yes"})
    assert "stays denied" in denied.value["warning"]
    asked = posted(admin, "set-acl", **row)
    assert (asked.value["destroys"], len(asked.value["preview"])) == (True, 2), "a row without operations goes"
    posted(admin, "set-acl", **row, confirm="yes")
    eventually(rows, "it is gone", good=lambda found: found == [])
    for wrong in ({"principal": "zoe"}, {"pattern": "match"}, {"op:Fly": "yes"}, {"host": "10.0.0.0/99"}, {"name": ""}):
        for confirm in ({}, {"confirm": "yes"}):
            got = posted(admin, "set-acl", **{**row, "op:Read": "yes", **wrong, **confirm})
            assert 400 <= got.status < 500, (wrong, got.text)


def test_a_refused_change_of_acls_is_named(console: Served) -> None:
    alice = Visitor(console)
    assert log_in(alice, USER, PASSWORD).status == 303
    form = {"resource": "cluster", "permission": "allow", "principal": "User:alice", "op:Alter": "yes"}
    for kind in ("add-acl", "set-acl", "remove-acl"):
        for confirm in ({}, {"confirm": "yes"}):
            got = posted(alice, kind, **form, **confirm)
            assert (got.status, "CLUSTER_AUTHORIZATION_FAILED" in got.value["error"]) == (403, True)
