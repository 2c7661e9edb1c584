"""The registry's state: what a request changes, and histories of several writers, lost answers and compaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from queue import Queue
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleetlog.brokers.schemas import protobuf, registry
from fleetlog.brokers.schemas.registry import (
    BARRIER,
    Plan,
    Record,
    RegistryRefusal,
    RegistryState,
    Stored,
    context_of,
    qualified,
)
from fleetlog.brokers.schemas.sorted_map import SortedMap
from tests.support.bytecodes import Bytecodes


def encoded(record: Record) -> tuple[bytes, bytes | None]:
    key, value = record
    return json.dumps(key).encode(), None if value is None else json.dumps(value).encode()


def written(state: RegistryState, plan: Plan) -> Any:
    for record in plan.records:
        state.apply(*encoded(record))
    return plan.answer


def register(state: RegistryState, subject: str, schema: Any = "string", **more: Any) -> Any:
    text = schema if more.get("schemaType") == "PROTOBUF" else json.dumps(schema)
    answer = written(state, state.register(subject, {"schema": text, **more}, normalize=False))
    assert answer.keys() == {"id"}, "older clients of Java take nothing else"
    return {**answer, "version": state.versions(subject)[-1]}


def code(refused: pytest.ExceptionInfo[RegistryRefusal]) -> int:
    return refused.value.code


def record_of(*names: str) -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": "int"} for name in names]}


def test_keys_and_values_are_confluents() -> None:
    plan = RegistryState().register("s", {"schema": '"int"'}, normalize=False)
    (key, value), *others = plan.records
    assert others == []
    assert json.dumps(key, separators=(",", ":")) == '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    assert value is not None
    assert {**value, "md5": ""} == {
        "subject": "s", "version": 1, "id": 1, "md5": "", "schema": '"int"', "deleted": False,
    }  # fmt: skip
    plan = RegistryState().set_config(None, {"compatibility": "FULL"})
    assert plan.records == [({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "FULL"})]


def test_a_level_decides_against_the_last_version_or_all() -> None:
    state = RegistryState()
    assert register(state, "s", record_of("a"))["id"] == 1
    assert register(state, "s", record_of())["id"] == 2
    written(state, state.set_config("s", {"compatibility": "BACKWARD_TRANSITIVE"}))
    with pytest.raises(RegistryRefusal) as refused:
        register(state, "s", record_of("b"))
    assert code(refused) == 409
    written(state, state.set_config("s", {"compatibility": "FORWARD"}))
    assert register(state, "s", record_of("b"))["version"] == 3
    written(state, state.set_config("s", {"compatibility": "FULL_TRANSITIVE"}))
    with pytest.raises(RegistryRefusal, match="oldSchemaVersion: 3"):
        register(state, "s", record_of("c"))
    assert state.try_out("s", {"schema": json.dumps(record_of())}, "2", normalize=False) == []
    assert state.try_out("s", {"schema": json.dumps(record_of())}, "latest", normalize=False) != []
    written(state, state.set_config("s", {"compatibility": "NONE"}))
    assert register(state, "s", "bytes")["version"] == 4
    assert written(state, state.delete_config("s")) == {"compatibilityLevel": "NONE"}
    assert state.config("s", default=True) == {"compatibilityLevel": "BACKWARD"}


def test_a_group_is_compared_with_its_own_versions() -> None:
    state = RegistryState()
    written(state, state.set_config("s", {"compatibilityGroup": "app"}))
    register(state, "s", record_of("a"), metadata={"properties": {"app": "one"}})
    register(state, "s", "int", metadata={"properties": {"app": "two"}})
    with pytest.raises(RegistryRefusal):
        register(state, "s", "string", metadata={"properties": {"app": "two"}})


def test_modes() -> None:
    state = RegistryState()
    register(state, "s")
    written(state, state.set_mode("s", {"mode": "READONLY"}, force=False))
    for change in (
        lambda: register(state, "s", "bytes"),
        lambda: state.delete_subject("s", permanent=False),
        lambda: state.delete_version("s", "1", permanent=False),
        lambda: state.set_config("s", {"compatibility": "NONE"}),
    ):
        with pytest.raises(RegistryRefusal) as refused:
            change()
        assert code(refused) == 42205
    with pytest.raises(RegistryRefusal, match="existing"):
        state.set_mode("s", {"mode": "IMPORT"}, force=False)
    written(state, state.set_mode("i", {"mode": "IMPORT"}, force=False))
    assert register(state, "i", "int", id=70, version=3)["version"] == 3
    with pytest.raises(RegistryRefusal, match="Overwrite"):
        register(state, "i", "long", id=70, version=4)
    with pytest.raises(RegistryRefusal, match="in import mode"):
        register(state, "i", "long")
    with pytest.raises(RegistryRefusal, match="not in import mode"):
        register(state, "other", "long", id=5)
    written(state, state.delete_mode("s"))
    assert state.mode("s", default=True) == "READWRITE"
    assert register(state, "s", "bytes")["id"] == 71, "behind what was imported"


def test_the_number_of_a_version_is_the_next_one_but_in_mode_import() -> None:
    state = RegistryState()
    register(state, "s", "int")
    for number in (1, 3):
        with pytest.raises(RegistryRefusal, match="not one more than previous version") as refused:
            register(state, "s", "long", version=number)
        assert code(refused) == 42201
    assert register(state, "s", "int", version=1) == {"id": 1, "version": 1}, "the same one is there"
    assert register(state, "s", "long", version=2) == {"id": 2, "version": 2}
    assert register(state, "s", "double", version=-1) == {"id": 3, "version": 3}


def test_what_is_imported_takes_the_place_of_the_version_that_was_there() -> None:
    """As Confluent's registry does it; the id that is gone is not given again, though compaction took its record."""
    log = Log()
    node = Node(log)

    def change(schema: str, **more: int) -> Any:
        body = {"schema": json.dumps(schema), **more}
        return node.change(lambda state: state.register("s", body, normalize=False))

    node.change(lambda state: state.set_mode("s", {"mode": "IMPORT"}, force=False))
    assert change("int", id=80, version=3) == {"id": 80}
    assert change("long", id=5, version=3) == {"id": 5}
    assert change("long", id=6, version=9) == {"id": 6}, "gaps are taken, and one schema under two ids"
    assert node.state.versions("s") == [3, 9]
    assert node.state.version("s", "3").text == '"long"'
    with pytest.raises(RegistryRefusal):
        node.state.by_id(80)
    node.change(lambda state: state.delete_mode("s"))
    log.compact(log.end)
    fresh = Node(log)
    fresh.read()
    assert fresh.state.register("t", {"schema": '"bytes"'}, normalize=False).answer == {"id": 81}


def test_what_is_deleted_for_good_is_deleted_before() -> None:
    state = RegistryState()
    register(state, "s"), register(state, "t")
    register(state, "r", {"type": "array", "items": "string"},
             references=[{"name": "x", "subject": "t", "version": 1}])  # fmt: skip
    for change, expected in (
        (lambda: state.delete_subject("s", permanent=True), 40405),
        (lambda: state.delete_version("s", "1", permanent=True), 40407),
        (lambda: state.delete_subject("t", permanent=False), 42206),
        (lambda: state.delete_version("t", "latest", permanent=False), 42206),
        (lambda: state.delete_subject("u", permanent=False), 40401),
    ):
        with pytest.raises(RegistryRefusal) as refused:
            change()
        assert code(refused) == expected
    assert written(state, state.delete_subject("s", permanent=False)) == [1]
    assert state.subjects() == ["r", "t"]
    assert state.subjects(deleted=True) == ["r", "s", "t"]
    assert state.subjects(deleted_only=True) == ["s"]
    with pytest.raises(RegistryRefusal) as refused:
        state.delete_subject("s", permanent=False)
    assert code(refused) == 40404
    assert register(state, "s")["version"] == 2, "the number of a version is not given again"
    assert state.versions("s", deleted=True) == [1, 2]


def test_a_request_that_is_sent_again_changes_nothing() -> None:
    state = RegistryState()
    first = register(state, "s", record_of("a"))
    plan = state.register("s", {"schema": json.dumps(record_of("a"), indent=2)}, normalize=False)
    assert (plan.records, plan.answer["id"]) == ([], first["id"])
    assert register(state, "other", record_of("a"))["id"] == first["id"]


def test_an_alias_leads_to_another_subject() -> None:
    state = RegistryState()
    register(state, "orders-v1", "int")
    written(state, state.set_config("orders", {"alias": "orders-v1"}))
    assert state.version("orders", "latest").subject == "orders-v1"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, 42201), ({"schema": 7}, 42201), ({"schema": '"int"', "references": {}}, 0),
        ({"schema": '"int"', "references": [{"name": "a"}]}, 42201),
        ({"schema": '"int"', "references": [{"name": "a", "subject": "gone", "version": 1}]}, 40401),
        ({"schema": '"int"', "references": [{}] * 1_000}, 42201),
        ({"schema": '"int"', "id": "7"}, 42207), ({"schema": '"int"', "version": -3}, 42202),
        ({"schema": '"int"', "metadata": []}, 0), ({"schema": '"int"', "metadata": [1]}, 42201),
        ({"schema": '"int"', "id": 2**40}, 42207), ({"schema": '"int"', "schemaType": ["AVRO"]}, 42201),
        ({"schema": '"int"', "metadata": {"properties": [1]}}, 42201),
        ({"schema": '"int"', "ruleSet": json.loads('{"a":' * 65 + "1" + "}" * 65)}, 42209),
        ({"schema": '"int"', "references": [{"name": "a", "subject": "s", "version": [1]}]}, 42201),
    ],
)  # fmt: skip
def test_bodies_that_are_refused(body: dict[str, Any], expected: int) -> None:
    if not expected:
        assert RegistryState().register("s", body, normalize=False).answer["id"] == 1
        return
    with pytest.raises(RegistryRefusal) as refused:
        RegistryState().register("s", body, normalize=False)
    assert code(refused) == expected


@pytest.mark.parametrize("subject", ["", "a\nb", "x" * 1_001, "__GLOBAL", ":.ctx:", ":.a::.b:c"])
def test_names_that_are_no_subjects(subject: str) -> None:
    with pytest.raises(RegistryRefusal) as refused:
        RegistryState().register(subject, {"schema": '"int"'}, normalize=False)
    assert code(refused) == 42208


@pytest.mark.parametrize(
    "body", [{"alias": {"a": 1}}, {"alias": 7}, {"compatibilityGroup": ["g"]}, {"normalize": "x"}, {"compatibility": 1}]
)
def test_settings_of_a_wrong_type_are_refused_and_not_read(body: dict[str, Any]) -> None:
    state = RegistryState()
    with pytest.raises(RegistryRefusal) as refused:
        state.set_config("s", body)
    assert code(refused) == 42203
    state.apply(b'{"keytype":"CONFIG","subject":"s","magic":0}', json.dumps(body).encode())
    assert register(state, "s", "int", metadata={"properties": {}})["version"] == 1


def test_parsed_schemas_are_kept_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = registry.ParsedSchemas()
    monkeypatch.setattr(registry, "_PARSED_BYTES_MAX", 20_000)
    for n in range(100):
        text = json.dumps({"title": f"{n}", "description": "x" * 1_000})
        assert kept.get("JSON", text, {}, False) is kept.get("JSON", text, {}, False)
    assert 1 < len(kept.rows) < 10
    assert sum(size for _, size in kept.rows.values()) <= 20_000


def test_names_in_contexts() -> None:
    assert [context_of(name) for name in ("a", ":.x:a", ":.x:", ":x:a", ":.:a")] == [".", ".x", ".x", ".", "."]
    assert [qualified("a", ".x"), qualified(":.y:a", ".x"), qualified(":.:a")] == [":.x:a", ":.y:a", "a"]


def test_a_reference_of_a_referred_schema_is_in_that_schemas_context() -> None:
    state = RegistryState()
    register(state, "inner", record_of("other"))
    register(state, ":.x:inner", {**record_of("own"), "name": "Inner"})
    middle = {"type": "record", "name": "Middle", "fields": [{"name": "inner", "type": "Inner"}]}
    register(state, ":.x:middle", middle, references=[{"name": "Inner", "subject": "inner", "version": 1}])
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "middle", "type": "Middle"}]}
    register(state, "outer", outer, references=[{"name": "Middle", "subject": ":.x:middle", "version": 1}])


def test_records_that_are_not_understood_change_nothing() -> None:
    state = RegistryState()
    register(state, "s")
    before = state.copy()
    for key, value in (
        (None, None), (b"", b"{}"), (b"{", b"{}"), (b"[]", b"{}"), (b'{"keytype":"ASSOC"}', b"{}"),
        (b'{"keytype":"NOOP","magic":0}', None), (b'{"keytype":"NOOP","magic":0}', b'{"ids":7}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":"x"}'),
        (b'{"keytype":"SCHEMA","subject":"gone","version":9,"magic":1}', None),
        (b'{"keytype":"SCHEMA","subject":"s","version":Infinity,"magic":1}', b'{"id":1,"schema":"x"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":1e999,"schema":"x"}'),
        (b'{"keytype":"CONFIG","subject":7,"magic":0}', b'{"compatibilityLevel":"NONE"}'),
        (b'{"keytype":"MODE","subject":["s"],"magic":0}', b'{"mode":"READONLY"}'),
        (b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}', b"7"),
        (b'{"keytype":"CONFIG","subject":"s","magic":0}', b"[1]"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":1,"schema":7}'),
        (b'{"keytype":"SCHEMA","subject":"t","version":1,"magic":1}', b"[" * 100_000 + b"]" * 100_000),
    ):  # fmt: skip
        state.apply(key, value)
    assert vars(state) == vars(before)


def filled(count: int) -> RegistryState:
    """Subjects with a few versions each, as the topic has them."""
    state = RegistryState()
    for number in range(count):
        subject, version = f"s{number // 4}", number % 4 + 1
        text = json.dumps({"type": "fixed", "name": f"F{number}", "size": 1}, separators=(",", ":"))
        row = Stored(subject, version, number + 1, "AVRO", text, {}, deleted=False)
        state.apply(*encoded(row.record(deleted=False)))
    return state


def nodes_of(state: RegistryState) -> set[int]:
    maps = list(vars(state).values())
    maps += [inner for one in maps for inner in one.values() if isinstance(inner, SortedMap)]
    return {id(node) for one in maps for node in one.nodes()}


REFERS: dict[str, Any] = {"schema": '"string"', "references": [{"name": "F29", "subject": "s7", "version": 2}]}
CHANGES: tuple[Callable[[RegistryState], Plan], ...] = (
    lambda state: state.set_config(None, {"compatibility": "NONE"}),
    lambda state: state.register("s5", REFERS, normalize=False),
    lambda state: state.delete_version("s9", "2", permanent=False),
    lambda state: state.delete_version("s9", "2", permanent=True),
    lambda state: state.set_config("s3", {"compatibility": "FULL"}),
    lambda state: state.delete_subject("s11", permanent=False),
)


def work_of_changes(count: int) -> list[int]:
    """Bytecodes of each change, for a reader that keeps the state before."""
    state, counter = filled(count), Bytecodes()
    before, shared = state.copy(), nodes_of(state)
    for change in CHANGES:
        counter.of(partial(lambda change: written(state, change(state.copy())), change))
    assert len(nodes_of(state) - shared) <= 100, "what is made anew"
    assert before.version("s9", "2").version == 2, "nothing of what a reader has is changed"
    return counter.counted


def test_a_change_costs_its_own_size() -> None:
    """Not that of all schemas, in what is done and in what is made."""
    for small, large in zip(work_of_changes(200), work_of_changes(6_000), strict=True):
        assert large <= 1.5 * small


class Log:
    """The topic with its fence: a writer's epoch is refused once a later one has written."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes, bytes | None]] = []
        self.end = 0
        self.given = 0
        self.epoch = 0

    def append(self, epoch: int, records: list[Record]) -> bool:
        if epoch < self.epoch:
            return False
        self.epoch = epoch
        for record in records:
            self.records.append((self.end, *encoded(record)))
            self.end += 1
        return True

    def compact(self, read: int) -> None:
        """Tombstones go, too, before the offset up to which all have read: within delete.retention.ms."""
        last = {key: offset for offset, key, _ in self.records}
        self.records = [
            row for row in self.records if last[row[1]] == row[0] and (row[2] is not None or row[0] >= read)
        ]


class Node:
    """A registry as ``SchemaStore.change`` has it: claims, reads up to its claim, decides, writes, reads that back."""

    def __init__(self, log: Log) -> None:
        self.log, self.state, self.next, self.epoch = log, RegistryState(), 0, 0

    def read(self) -> None:
        for offset, key, value in self.log.records:
            if offset >= self.next:
                self.state.apply(key, value)
        self.next = self.log.end

    def claim(self) -> None:
        self.log.given += 1
        self.epoch = self.log.given
        assert self.log.append(self.epoch, [BARRIER])
        self.read()

    def change(self, decide: Any, *, stop_before: bool = False, lose: bool = False) -> Any:
        """The answer; None where it was refused, stood still before its write, or its answer was lost."""
        if not self.epoch:
            self.claim()
        try:
            plan = decide(self.state)
        except RegistryRefusal:
            return None
        if stop_before:
            return plan
        return self.write(plan, lose=lose)

    def write(self, plan: Plan, *, lose: bool = False) -> Any:
        if not self.log.append(self.epoch, plan.records):
            self.epoch = 0
            return None
        if lose:
            self.epoch = 0
            return None
        self.read()
        return plan.answer


SUBJECTS = ("a", "b", ":.x:a")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["register", "register", "register", "delete", "purge", "compact", "restart", "level"]),
        st.integers(0, 1), st.sampled_from(SUBJECTS), st.integers(0, 4), st.sampled_from(["", "", "stop", "lose"]),
    ),
    max_size=40,
)  # fmt: skip


PURGED = [("delete", 0, "a", 0, ""), ("purge", 0, "a", 0, ""), ("compact", 0, "a", 0, ""), ("restart", 0, "a", 0, "")]


@settings(max_examples=200, deadline=None)
@given(STEPS)
@example([("register", 0, "a", 0, ""), *PURGED, ("register", 0, "a", 1, "")])
@example([("register", 0, "a", 0, ""), ("register", 1, "b", 1, "lose"), ("register", 0, "b", 2, "stop"), *PURGED])
@example([
    ("register", 1, "b", 0, ""), ("register", 0, "a", 1, ""), ("delete", 0, "a", 0, ""), ("purge", 0, "a", 0, ""),
    ("level", 1, "a", 0, ""), ("level", 1, "a", 0, ""), ("compact", 0, "a", 0, ""), ("restart", 0, "a", 0, ""),
    ("restart", 1, "a", 0, ""), ("register", 0, "a", 2, ""),
])  # fmt: skip
def test_ids_are_given_once_through_all_histories(steps: list[tuple[str, int, str, int, str]]) -> None:
    log = Log()
    nodes = [Node(log), Node(log)]
    meant: dict[tuple[str, int], str] = {}
    stopped: list[tuple[Node, Any]] = []
    for what, which, subject, number, fate in steps:
        node = nodes[which]
        text = json.dumps({"type": "fixed", "name": f"F{number}", "size": 1})

        def decide(state: RegistryState, what: str = what, subject: str = subject, text: str = text) -> Plan:
            if what == "register":
                return state.register(subject, {"schema": text}, normalize=False)
            if what == "level":
                return state.set_config(None, {"compatibility": "NONE"})
            return state.delete_subject(subject, permanent=what == "purge")

        if what == "compact":
            log.compact(min(one.next for one in nodes))
        elif what == "restart":
            nodes[which] = Node(log)
            nodes[which].read()
        elif fate == "stop" and (plan := node.change(decide, stop_before=True)) is not None:
            stopped.append((node, plan))
            nodes[which] = Node(log)
            nodes[which].claim()
        else:
            answer = node.change(decide, lose=fate == "lose")
            if what == "register" and answer is not None:
                key = context_of(subject), answer["id"]
                assert meant.setdefault(key, text) == text, "an id was given to another schema"
        for sleeper, plan in stopped:
            assert sleeper.write(plan) is None, "one that stood still is refused"
        stopped.clear()
    fresh = Node(log)
    fresh.read()
    for node in nodes:
        node.read()
    log.compact(log.end)
    compacted = Node(log)
    compacted.read()
    shown = [
        [one.shown() for one in node.state.all("", deleted=True, latest=False)] for node in (*nodes, fresh, compacted)
    ]
    assert shown[0] == shown[1] == shown[2] == shown[3]
    for (context, number), text in meant.items():
        for row in shown[0]:
            if row["id"] == number and context_of(row["subject"]) == context:
                assert row["schema"] == text.replace(" ", "")


def test_a_guid_is_the_digest_of_the_content() -> None:
    """By hand, after the order in which Confluent's ``Schema.updateHash`` takes the parts."""
    state = RegistryState()
    register(state, "a", {"type": "record", "name": "A", "fields": []})
    written(state, state.register(
        "b", {
            "schema": json.dumps({"type": "record", "name": "B", "fields": [{"name": "a", "type": "A"}]}),
            "references": [{"name": "A", "subject": "a", "version": 1}],
            "metadata": {"properties": {"z": "1", "b": "2"}, "sensitive": ["y", "x"], "paths": {"p": ["n", "m"]}},
        }, normalize=False,
    ))  # fmt: skip
    text = state.version("b", "1").text
    digest = hashlib.md5(text.encode() + b"Aa\0\0\0\x01" + b"\x01" + b"pmn" + b"b2z1" + b"xy").digest()
    guid = str(UUID(bytes=digest))
    assert state.version("b", "1").guid == guid
    assert [one.subject for one in state.by_guid(guid.upper(), lambda _: True)] == ["b"]
    with pytest.raises(RegistryRefusal):
        state.by_guid(guid, lambda _: False)
    written(state, state.delete_subject("b", permanent=False))
    assert state.by_guid(guid, lambda _: True), "records that have it are still read"
    written(state, state.delete_subject("b", permanent=True))
    with pytest.raises(RegistryRefusal):
        state.by_guid(guid, lambda _: True)
    assert state.copy().by_guid(state.version("a", "1").guid, lambda _: True)


def test_a_check_of_all_versions_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "COMPARED_MAX", 3)
    state = RegistryState()
    written(state, state.set_config("s", {"compatibility": "BACKWARD_TRANSITIVE"}))
    for number in range(1, 4):
        record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": number}]}
        register(state, "s", record)
    register(state, "s", {"type": "record", "name": "R", "fields": []})
    with pytest.raises(RegistryRefusal, match="delete old ones") as refused:
        register(state, "s", {"type": "record", "name": "R", "fields": [], "doc": "more"})
    assert refused.value.code == 42209


def test_compilers_that_are_busy_refuse_nothing_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'syntax = "proto3"; message Busy {}'
    monkeypatch.setattr(protobuf, "COMPILE_S", 0.05)
    monkeypatch.setattr(protobuf, "_permits", Queue())
    with pytest.raises(RegistryRefusal) as refused:
        registry.parse("PROTOBUF", text, {})
    assert refused.value.code == 50002
    monkeypatch.undo()
    assert registry.parse("PROTOBUF", text, {}).text == text
