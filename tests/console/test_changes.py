"""Changes by the console's forms: shown first, with the command that does the same; nothing without a token."""

from __future__ import annotations

import json
import shlex
import uuid
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from fleetlog.brokers.console.changes import plan_change
from fleetlog.brokers.console.masking import Masks
from tests.cli.shell import Shell
from tests.console.served import Visitor
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper


@pytest.fixture(scope="module")
def shell(fleet: Fleet) -> Shell:
    return Shell(fleet)


@pytest.fixture
def name() -> str:
    return f"console-{uuid.uuid4().hex[:8]}"


def asked(visitor: Visitor, kind: str, **form: str) -> Any:
    """What the console says before it changes anything."""
    token = visitor.json("/topics")["form_token"]
    got = visitor.post(f"/change/{kind}", {"form_token": token, **form}, Accept="application/json")
    assert got.status == 200, got.text
    assert got.value["done"] is False
    return got.value


def done(visitor: Visitor, kind: str, **form: str) -> Any:
    token = visitor.json("/topics")["form_token"]
    form |= {"form_token": token, "confirm": "yes"}
    got = visitor.post(f"/change/{kind}", form, Accept="application/json")
    assert got.status == 200, got.text
    assert got.value["done"] is True
    return got.value


def typed(shell: Shell, command: str) -> None:
    """The command that was shown, as it stands."""
    program, *words = shlex.split(command)
    assert program == "fleetlog"
    shell.run(*words)


def test_a_topic_is_created_changed_and_deleted_after_one_more_question(
    visitor: Visitor, shell: Shell, name: str
) -> None:
    form = {"topic": name, "partitions": "2", "replication": "3", "configs": "retention.ms=1000\nsegment.ms=60000"}
    shown = asked(visitor, "create-topic", **form)
    assert shown["preview"][0]["partitions"] == 2
    assert name not in {row["topic"] for row in shell.json("topics", "list")}
    assert done(visitor, "create-topic", **form)["command"] == shown["command"]
    (described,) = shell.json("topics", "describe", name)
    assert described["configs"] == {"retention.ms": "1000", "segment.ms": "60000"}
    done(visitor, "alter-topic", topic=name, configs="retention.ms=-1", unset="segment.ms", partitions="3")
    eventually(  # another broker may not have read the change yet
        lambda: shell.json("topics", "describe", name)[0], "the change is read",
        good=lambda found: (found["configs"], len(found["partitions"])) == ({"retention.ms": "-1"}, 3),
    )  # fmt: skip
    command = asked(visitor, "delete-topics", topic=name)["command"]
    assert name in {row["topic"] for row in shell.json("topics", "list")}

    def gone() -> bool:
        return name not in {row["topic"] for row in shell.json("topics", "list")}

    typed(shell, command)
    eventually(gone, "it is deleted by the command")
    typed(shell, shown["command"])
    done(visitor, "delete-topics", topic=name)
    eventually(gone, "it is deleted by the form")


def test_the_oldest_records_are_deleted_after_one_more_question(visitor: Visitor, shell: Shell, name: str) -> None:
    shell.run("topics", "create", name, "-p", "1")
    shell.run("produce", name, stdin="a\nb\nc\n")
    assert 'action="/change/trim-topic"' in visitor.page(f"/topics/{name}")
    shown = asked(visitor, "trim-topic", topic=name, before="end-1")
    assert [(row["first_offset"], row["new_first_offset"]) for row in shown["preview"]] == [(0, 2)]
    assert shell.lines("consume", name, "--to", "end") == ["a", "b", "c"]
    done(visitor, "trim-topic", topic=name, before="end-1")
    assert shell.lines("consume", name, "--to", "end") == ["c"]
    typed(shell, shown["command"].replace("end-1", "end"))
    assert shell.lines("consume", name, "--to", "end") == []
    token = visitor.json("/topics")["form_token"]
    for before, status in (("", 400), ("nowhere", 400)):
        form = {"form_token": token, "topic": name, "before": before}
        assert visitor.post("/change/trim-topic", form, Accept="application/json").status == status
    done(visitor, "delete-topics", topic=name)


def test_picked_topics_are_deleted_after_one_question(visitor: Visitor, shell: Shell, name: str) -> None:
    names = [f"{name}-{n}" for n in range(3)]
    for one in names:
        shell.run("topics", "create", one, "-p", "2")
    shell.run("produce", names[1], stdin="a\nb\n")
    assert f'<input type="checkbox" name="topic:{names[0]}" value="yes"' in visitor.page(f"/topics?name={name}")
    form = {f"topic:{one}": "yes" for one in names[:2]}
    shown = asked(visitor, "delete-topics", **form)
    assert [(row["topic"], row["partitions"], row["records, at most"]) for row in shown["preview"]] == [
        (names[0], 2, 0), (names[1], 2, 2),
    ]  # fmt: skip
    assert shown["command"].endswith(f"--yes -- {names[0]} {names[1]}")
    done(visitor, "delete-topics", **shown["fields"])

    def left() -> list[str]:
        return [row["topic"] for row in visitor.json(f"/topics?name={name}")["topics"]]

    eventually(left, "the others are gone", good=lambda found: found == names[2:])
    token = {"form_token": visitor.token(visitor.page("/topics"))}
    for fields, status in (({}, 400), ({"topic:no-such": "yes"}, 404)):
        assert visitor.post("/change/delete-topics", token | fields, Accept="application/json").status == status


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("delete-group", {"group": " g\u00a0"}), ("reset-group", {"group": " g\u00a0", "how": "to-latest"}),
        ("alter-group", {"group": " g\u00a0", "setting": "share.auto.offset.reset", "value": "earliest"}),
        ("fence-transaction", {"id": " g\u00a0"}), ("reset-sink", {"sink": " g\u00a0", "query": "q "}),
    ],
)  # fmt: skip
def test_a_name_with_blanks_around_it_is_no_other(kind: str, form: dict[str, str]) -> None:
    planned = plan_change(kind, form, Masks())
    assert planned.preview is not None
    assert {planned.command.names[0], planned.preview.names[0]} == {" g\u00a0"}
    assert planned.command.names[1:] == ((form["query"],) if "query" in form else ())


def test_what_the_command_warns_of_stands_beside_the_question(visitor: Visitor, name: str) -> None:
    form = {"topic": name, "partitions": "1", "replication": "2", "configs": "min.insync.replicas=2"}
    assert asked(visitor, "create-topic", **form)["warning"] == ""
    form["configs"] = "min.insync.replicas=3"
    said = f"min.insync.replicas=3 is more than the 2 replicas of {name}"
    assert said in asked(visitor, "create-topic", **form)["warning"]
    token = {"form_token": visitor.token(visitor.page("/topics"))}
    page = visitor.post("/change/create-topic", form | token).text
    assert f'<p class="health warning">{said}' in page
    assert said in done(visitor, "create-topic", **form)["text"]
    change = {"topic": name, "setting": "min.insync.replicas", "value": "4", "partitions": "2"}
    warning = asked(visitor, "alter-topic", **change)["warning"]
    assert warning.startswith("More partitions: keys move")
    assert "min.insync.replicas=4 is more than the 2 replicas" in warning
    assert asked(visitor, "alter-topic", **{**change, "value": "1", "partitions": ""})["warning"] == ""


def test_a_setting_has_its_meaning_and_is_set_for_picked_topics_by_one_question(
    visitor: Visitor, shell: Shell, name: str
) -> None:
    names = [f"{name}-{n}" for n in range(2)]
    shell.run("topics", "create", *names, "-p", "1", "-c", "retention.ms=1000")
    assert f'href="/topics/{names[0]}/setting?name=retention.ms"' in visitor.page(f"/topics/{names[0]}")
    one = visitor.json(f"/topics/{names[0]}/setting?name=retention.ms")
    assert (one["value"], one["origin"], one["default"], one["fixed"]) == ("1000", "this topic", "604800000", "")
    assert one["meaning"].startswith("How long")
    assert "<option selected>producer" in visitor.page(f"/topics/{names[0]}/setting?name=compression.type")
    form = {"setting": "retention.ms", "value": "2000", **{f"topic:{one}": "yes" for one in names}}
    shown = asked(visitor, "alter-topic", **form)
    assert shown["preview"] == [{"topic": one, "changes": ["retention.ms: 1000 → 2000"]} for one in names]
    assert shown["command"].endswith(f"--set=retention.ms=2000 -- {' '.join(names)}")
    done(visitor, "alter-topic", **shown["fields"])

    def values() -> list[Any]:
        return [row["configs"].get("retention.ms") for row in shell.json("topics", "describe", *names)]

    eventually(values, "both have it", good=lambda found: found == ["2000", "2000"])
    shown = asked(visitor, "alter-topic", topic=names[1], setting="retention.ms", to="default")
    assert shown["preview"][0]["changes"] == ["retention.ms: 2000 → its default"]
    done(visitor, "alter-topic", **shown["fields"])
    eventually(values, "one of them has it no more", good=lambda found: found == ["2000", None])
    shown = asked(visitor, "alter-topic", topic=names[1], setting="retention.ms", value="3000")
    assert shown["preview"][0]["changes"] == ["retention.ms: 604800000 → 3000"], "a default is there before, too"
    token = {"form_token": visitor.token(visitor.page("/topics"))}
    for wrong in ({"value": "soon"}, {"setting": "retention.m"}, {"setting": ""}, {"topic:no-such": "yes"}):
        got = visitor.post("/change/alter-topic", {**token, **form, **wrong}, Accept="application/json")
        assert 400 <= got.status < 500, got.text
    got = visitor.get(f"/topics/{names[0]}/setting?name=retention.m", Accept="application/json")
    assert (got.status, "did you mean retention.ms?" in got.text) == (404, True)
    shell.run("topics", "delete", *names, "--yes")


def test_a_setting_of_a_broker_is_set_and_taken_away_while_it_runs(visitor: Visitor) -> None:
    def value(broker: int) -> tuple[str, str]:
        one = visitor.json(f"/brokers/{broker}/setting?name=log.cleaner.backoff.ms")
        return one["value"], one["origin"]

    assert 'href="/brokers/2/setting?name=log.cleaner.backoff.ms"' in visitor.page("/brokers/2")
    before = value(1)
    form = {"broker": "2", "setting": "log.cleaner.backoff.ms", "value": "14000"}
    shown = asked(visitor, "alter-broker", **form)
    assert (shown["preview"][0]["broker"], shown["preview"][0]["set"]) == (2, {"log.cleaner.backoff.ms": "14000"})
    assert "fleetlog cluster config set" in shown["command"]
    assert shown["command"].endswith("--broker=2 -- log.cleaner.backoff.ms=14000")
    assert value(2) == before
    done(visitor, "alter-broker", **form)
    eventually(lambda: value(2), "it has it", good=lambda found: found == ("14000", "this broker, at run time"))
    assert value(1) == before
    assert "Take the value away" in visitor.page("/brokers/2/setting?name=log.cleaner.backoff.ms")
    done(visitor, "alter-broker", broker="2", setting="log.cleaner.backoff.ms", to="default")
    eventually(lambda: value(2), "it is taken away", good=lambda found: found == before)
    done(visitor, "alter-broker", **form, scope="all")
    eventually(lambda: value(3), "all have it", good=lambda found: found == ("14000", "all brokers, at run time"))
    done(visitor, "alter-broker", broker="3", setting="log.cleaner.backoff.ms", to="default", scope="all")
    eventually(lambda: value(1), "all have it no more", good=lambda found: found == before)
    page = visitor.page("/brokers/2/setting?name=broker.id")
    assert "read at the start alone" in page
    assert 'action="/change/alter-broker"' not in page
    token = {"form_token": visitor.token(visitor.page("/topics"))}
    for wrong, words in (
        ({"value": "soon"}, "log.cleaner.backoff.ms"), ({"setting": "broker.id", "value": "9"}, "broker.id"),
        ({"setting": "ssl.key.password", "value": "hush"}, "secret"), ({"broker": "2; rm"}, "2; rm"),
    ):  # fmt: skip
        got = visitor.post("/change/alter-broker", {**token, **form, **wrong}, Accept="application/json")
        assert (got.status // 100, words in got.text, "hush" in got.text) == (4, True, False), got.text


def test_a_form_in_a_page_leads_to_a_question_and_back(visitor: Visitor, shell: Shell, name: str) -> None:
    token = visitor.token(visitor.page("/topics"))
    form = {"form_token": token, "topic": name, "partitions": "1"}
    page = visitor.post("/change/create-topic", form).text
    assert f"Create the topic {name}?" in page
    assert "fleetlog topics create" in page
    got = visitor.post("/change/create-topic", form | {"confirm": "yes"})
    assert (got.status, got.headers["location"]) == (303, f"/topics/{name}")
    assert "created" in visitor.page(f"/topics/{name}")
    assert 'class="notice"' not in visitor.page(f"/topics/{name}")
    shell.run("topics", "delete", name, "--yes")


def test_nothing_changes_without_the_sessions_token(visitor: Visitor, shell: Shell, name: str) -> None:
    other = visitor.json("/topics")["form_token"]
    visitor.cookies.clear()
    visitor.page("/topics")
    form = {"topic": name, "confirm": "yes"}
    for token in ({}, {"form_token": ""}, {"form_token": other}):
        assert visitor.post("/change/create-topic", form | token).status == 403
    assert visitor.get("/change/create-topic").status == 405
    assert name not in {row["topic"] for row in shell.json("topics", "list")}


def test_what_the_brokers_refuse_is_said_before_the_question(visitor: Visitor) -> None:
    token = visitor.json("/topics")["form_token"]
    for kind, form in (
        ("create-topic", {"topic": "no/such/name"}),
        ("create-topic", {"topic": ""}),
        ("create-topic", {"topic": "a", "partitions": "many"}),
        ("create-topic", {"topic": "--bootstrap=192.0.2.1:9092"}),
        ("create-topic", {"topic": "a", "configs": "no.such.setting=1"}),
        ("alter-topic", {"topic": "no-such-topic", "configs": "retention.ms=1"}),
        ("reset-group", {"group": "no-such-group", "how": "to-earliest"}),
        ("reset-group", {"group": "g", "how": "execute"}),
        ("reset-group", {"group": "g", "how": "to-offset"}),
        ("fence-transaction", {"id": "no-such-id"}),
        ("write-record", {"topic": "no-such-topic", "value": "a"}),
        ("write-record", {"topic": "__consumer_offsets", "value": "a" * 100_001}),
        ("copy-record", {"topic": "no-such-topic", "origin_topic": "a", "origin_partition": "0", "origin_offset": "0"}),
        ("copy-record", {"topic": "a", "origin_topic": "a", "origin_partition": "x", "origin_offset": "0"}),
        ("set-quota", {"quota": "no_such_quota", "value": "1", "user": "a"}),
        ("add-acl", {"resource": "world"}),
        ("no-such-change", {}),
    ):
        for confirm in ({}, {"confirm": "yes"}):
            form = {"form_token": token, **form, **confirm}
            got = visitor.post(f"/change/{kind}", form, Accept="application/json")
            assert 400 <= got.status < 600, (kind, form)
            assert got.status != 500, (kind, form)


def test_a_groups_lag_is_shown_and_its_offsets_move(visitor: Visitor, shell: Shell, name: str) -> None:
    shell.run("topics", "create", name, "-p", "1")
    shell.run("produce", name, stdin="\n".join(str(n) for n in range(10)) + "\n")
    group = f"group of/{name} \u00e9&?"
    shell.run("consume", name, "-g", group, "-n", "4")
    eventually(
        lambda: [(row["group"], row["lag"]) for row in visitor.json(f"/groups?name={name}")["groups"]],
        "the coordinator, which looks every few seconds, knows the lag", good=lambda rows: rows == [(group, 6)],
    )  # fmt: skip
    (href,) = [part for part in visitor.page(f"/groups?name={name}").split('"') if part.startswith("/group?")]
    found = visitor.json(href)
    assert (found["group"], found["lag"], found["members"]) == (group, 6, [])
    assert [(o["committed"], o["end"], o["lag"]) for o in found["offsets"]] == [(4, 10, 6)]
    shown = asked(visitor, "reset-group", group=group, how="shift-by", value="-3")
    assert [(move["committed"], move["new"]) for move in shown["preview"]] == [(4, 1)]
    assert visitor.json(href)["lag"] == 6
    done(visitor, "reset-group", group=group, how="shift-by", value="-3")
    assert visitor.json(href)["lag"] == 9
    with shell.start("consume", name, "-g", group) as member:
        try:
            eventually(lambda: visitor.json(href)["members"], "the group has a member")
            form = {"form_token": visitor.json("/topics")["form_token"], "confirm": "yes", "group": group}
            refused = visitor.post("/change/reset-group", {**form, "how": "to-latest"}, Accept="application/json")
            assert (refused.status, "stop them first" in refused.text) == (409, True)
        finally:
            member.terminate()
    eventually(lambda: visitor.json(href)["members"] == [], "the member has left")
    done(visitor, "delete-group", group=group)
    assert visitor.get(href).status == 404


def test_an_open_transaction_is_shown_with_its_age_and_aborted(visitor: Visitor, fleet: Fleet, name: str) -> None:
    shell = Shell(fleet)
    shell.run("topics", "create", name, "-p", "1")
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, "open")
    assert producer.flush(30) == 0
    (one,) = [row for row in visitor.json("/transactions")["open"] if row["transactional_id"] == name]
    assert (one["state"], one["partitions"]) == ("Ongoing", [f"{name}:0"])
    assert one["open_s"] >= 0
    assert name in visitor.page("/transactions")
    assert asked(visitor, "fence-transaction", id=name)["preview"][0]["state"] == "Ongoing"
    done(visitor, "fence-transaction", id=name)
    eventually(
        lambda: [row for row in visitor.json("/transactions")["open"] if row["transactional_id"] == name],
        "nothing open", good=lambda rows: rows == [],
    )  # fmt: skip
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    everything = visitor.json(f"/topics/{name}/messages?show=everything&from=beginning")["messages"]
    assert [row["marker"] or row["state"] for row in everything] == ["aborted", "abort marker"]


def test_a_record_is_written_and_copied_after_one_more_question(visitor: Visitor, shell: Shell, name: str) -> None:
    shell.run("topics", "create", name, "-p", "2")
    form = {"topic": name, "key": "k", "value": "first\r\nsecond", "headers": "a=b", "partition": "1"}
    shown = asked(visitor, "write-record", **form)
    assert [shown["preview"][0][column] for column in ("partition", "key", "value")] == [1, "k", "first\nsecond"]
    assert "cannot be taken back" in shown["warning"]
    assert visitor.json(f"/topics/{name}/messages")["messages"] == []
    assert done(visitor, "write-record", **form)["command"] == shown["command"]
    typed(shell, shown["command"])
    page = visitor.page(f"/topics/{name}/messages")
    assert f'href="/topics/{name}/record?partition=1&amp;offset=1"' in page
    record = visitor.json(f"/topics/{name}/record?partition=1&offset=1")["record"]
    assert (record["key"]["text"], record["value"]["text"]) == ("k", "first\nsecond")
    assert "<h2>Copy</h2>" in visitor.page(f"/topics/{name}/record?partition=1&offset=1")
    form = {"origin_topic": name, "origin_partition": "1", "origin_offset": "1", "topic": name, "partition": "0"}
    shown = asked(visitor, "copy-record", **form)
    assert shown["preview"][0]["origin"] == f"{name}:1:1"
    done(visitor, "copy-record", **form)
    typed(shell, shown["command"])
    found = visitor.json(f"/topics/{name}/messages?from=beginning")["messages"]
    assert [(one["partition"], one["value"]["text"]) for one in found if one["partition"] == 0] == [
        (0, "first\nsecond")
    ] * 2
    assert [one["headers"][0]["name"] for one in found] == ["a"] * 4
    assert visitor.get(f"/topics/{name}/record?partition=1&offset=9").status == 404


def test_quotas_are_set_and_removed(visitor: Visitor, shell: Shell, name: str) -> None:
    form = {"user": name, "quota": "producer_byte_rate", "value": "1000000"}
    done(visitor, "set-quota", **form)
    rows = visitor.json("/security")["quotas"]["rows"]
    assert {"user": name, "client_id": "", "address": "", "quota": "producer_byte_rate", "value": 1_000_000} in rows
    assert name in visitor.page("/security")
    done(visitor, "remove-quota", **form)
    assert name not in json.dumps(visitor.json("/security")["quotas"])


def test_acls_say_why_there_are_none_without_an_authorizer(visitor: Visitor) -> None:
    assert "SECURITY_DISABLED" in visitor.json("/security")["acls"]["error"]
    assert "SECURITY_DISABLED" in visitor.page("/security")


def test_a_record_is_written_like_another_with_placeholders(visitor: Visitor, shell: Shell) -> None:
    name = f"console-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "2")
    assert visitor.json(f"/topics/{name}/write?like=last")["like"] == ""
    form = {
        "topic": name, "key": "k-{{int 7 7}}", "value": '{"id": "{{uuid}}", "at": {{now_ms}}, "kept": {{{1}}}}',
        "headers": "who={{pick a a}}", "partition": "1", "placeholders": "yes",
    }  # fmt: skip
    shown = asked(visitor, "write-record", **form)
    assert "{{uuid}}" not in shown["command"]
    assert "placeholders" not in shown["fields"]
    assert done(visitor, "write-record", **shown["fields"])["command"] == shown["command"]
    (written,) = visitor.json(f"/topics/{name}/messages")["messages"]
    value = json.loads(written["value"]["text"].replace("{{{1}}}", "1"))
    assert (written["partition"], written["key"]["text"], written["headers"][0]["text"]) == (1, "k-7", "a")
    assert uuid.UUID(value["id"]).version == 4
    draft = visitor.json(f"/topics/{name}/write?like=last")
    assert draft["like"] == f"1:{written['offset']}"
    assert draft["draft"] | {"value": ""} == {
        "key": "k-7", "value": "", "headers": "who=a", "left_out": 0, "null_value": False, "base64": False,
    }  # fmt: skip
    assert value["id"] in visitor.page(f"/topics/{name}/write?like=1:{written['offset']}")
    assert done(visitor, "write-record", topic=name, key="{{uuid}}", value="{{as it is}}")["done"]
    for wrong in ("{{uid}}", "{{int a b}}", "{{int 9 1}}", "{{pick}}"):
        fields = {"form_token": visitor.token(visitor.page("/topics")), **form, "value": wrong}
        got = visitor.post("/change/write-record", fields, Accept="application/json")
        assert (got.status, "is no placeholder" in got.value["error"]) == (400, True)
    assert visitor.get(f"/topics/{name}/write?like=x").status == 400
    assert visitor.get(f"/topics/{name}/write?like=1:99").status == 404
