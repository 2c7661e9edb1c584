"""The check of schemas' ids at a topic's door: what is taken, what is refused in which words, what has to wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog._native.batch import scan
from fleetlog.brokers.log import Origin, Terms
from fleetlog.brokers.log.door import (
    COMPILED_AT_ONCE,
    FRESH_MS,
    NOT_YET,
    SOUGHT_MAX,
    SOUGHT_MS,
    KnownSchemas,
    Programs,
    Reference,
    SchemaText,
    Table,
    Want,
    packed,
)
from fleetlog.brokers.log.state import AppendInfo, LogSettings
from fleetlog.brokers.topic_config import RECORD_NAMES
from fleetlog.wire.compression import GZIP, ZSTD
from fleetlog.wire.errors import ErrorCode
from tests.support.clocks import ManualClock
from tests.support.draw import examples
from tests.support.logs import NOW, append, batch, config, open_log, produced

VALUES = Want("events-value")
KEYS = Want("events-key")
GUID = bytes(range(16))


def framed(number: int, payload: bytes = b"payload") -> bytes:
    """As a serializer writes it."""
    return b"\0" + number.to_bytes(4, "big") + payload


def table(*numbers: int, guids: bytes = b"") -> Table:
    return Table(b"".join(number.to_bytes(4, "big") for number in sorted(numbers)), guids)


class Stage:
    """A log with a door, and what its broker knows."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        self.clock = ManualClock()
        self.known = KnownSchemas(self.clock)
        self.woken = 0
        self.known.wake = self._wake
        changes = changes or {"fleetlog_schema_validation": "id"}
        self.log = open_log(
            directory / "events-0", config=config(**changes), settings=LogSettings(schemas=self.known)
        )  # fmt: skip

    def _wake(self) -> None:
        self.woken += 1

    def learn(self, **tables: Table) -> None:
        """The broker has read up to the end, a moment later."""
        self.clock.now_ms += 1
        self.known.learn(
            {{"values": VALUES, "keys": KEYS}[name]: one for name, one in tables.items()}, self.clock.mono_ms()
        )

    def append(self, data: bytes, **terms: Any) -> AppendInfo:
        return append(self.log, data, **terms)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    stage.append(batch(value=framed(7)))
    stage.learn(values=table(7, 9, 70_000))
    return stage


@pytest.mark.parametrize("codec", [0, GZIP, ZSTD])
@pytest.mark.parametrize("number", [7, 9, 70_000])
def test_a_value_with_an_id_of_the_subject_is_taken(stage: Stage, codec: int, number: int) -> None:
    info = stage.append(batch(3, value=framed(number), codec=codec))
    assert (info.error, stage.log.log_end_offset) == (ErrorCode.NONE, 3)


@pytest.mark.parametrize("value", [b"", b"plain", b"\0\0\0\7", b'{"json": 1}', b"\2" + framed(7)[1:], b"\1" + GUID[1:]])
def test_a_value_without_an_id_is_refused_at_once(tmp_path: Path, value: bytes) -> None:
    """Also before anything is known of the schemas."""
    stage = Stage(tmp_path)
    info = stage.append(batch(2, value=value))
    assert info.error is ErrorCode.INVALID_RECORD
    assert info.record_errors == ((0, "the value has no schema's id"), (1, "the value has no schema's id"))
    assert stage.log.log_end_offset == 0


def test_the_records_at_fault_are_named_and_no_others(stage: Stage) -> None:
    from fleetlog._native.batch import Record, encode_batch

    stage.append(batch(value=framed(8)))
    stage.learn(values=table(7))
    values = [framed(7), framed(8), None, b"plain", framed(7)]
    data = encode_batch([Record(at, NOW, b"k", value, ()) for at, value in enumerate(values)])
    info = stage.append(data)
    assert info.error is ErrorCode.INVALID_RECORD
    assert info.record_errors == (
        (1, "the value has schema id 8, which is none of subject events-value"), (3, "the value has no schema's id"),
    )  # fmt: skip
    assert "2 records were rejected" in (info.error_message or "")
    assert stage.append(data, explain=4).record_errors == (), "a request names so many and no more"


def test_tombstones_and_keys_that_nobody_asks_for_pass(stage: Stage) -> None:
    assert stage.append(batch(value=None)).error is ErrorCode.NONE
    assert stage.append(batch(value=framed(7), key=b"plain")).error is ErrorCode.NONE
    assert stage.append(batch(value=framed(7), key=None)).error is ErrorCode.NONE


def test_keys_are_looked_at_where_that_is_asked_for(tmp_path: Path) -> None:
    stage = Stage(tmp_path, confluent_key_schema_validation=True)
    stage.append(batch(key=framed(3), value=b"plain"))
    stage.learn(keys=table(3))
    assert stage.append(batch(key=framed(3), value=b"plain")).error is ErrorCode.NONE
    assert stage.append(batch(key=None, value=b"plain")).error is ErrorCode.NONE
    assert stage.append(batch(key=b"plain")).record_errors == ((0, "the key has no schema's id"),)


def test_an_unknown_id_waits_until_the_broker_has_read_to_the_end(stage: Stage) -> None:
    woken = stage.woken
    info = stage.append(batch(value=framed(8)))
    assert info.error is NOT_YET
    assert not info.record_errors
    assert stage.woken > woken
    assert "schema id 8 is not known yet" in (info.error_message or "")
    stage.learn(values=table(7, 8))
    assert stage.append(batch(value=framed(8))).error is ErrorCode.NONE


def test_it_is_refused_once_the_broker_has_read_to_the_end_since_it_was_seen(stage: Stage) -> None:
    assert stage.append(batch(value=framed(8))).error is NOT_YET
    assert stage.append(batch(value=framed(8))).error is NOT_YET, "nothing was read since"
    stage.learn(values=table(7))
    assert stage.append(batch(value=framed(8))).error is ErrorCode.INVALID_RECORD
    stage.clock.now_ms += FRESH_MS + 1
    assert stage.append(batch(value=framed(8))).error is NOT_YET, "it may have been registered meanwhile"


def test_an_id_is_looked_for_for_a_while(stage: Stage) -> None:
    stage.append(batch(value=framed(8)))
    assert stage.known.looks_for_any()
    stage.clock.now_ms += SOUGHT_MS + 1
    assert not stage.known.looks_for_any()


def test_not_all_ids_of_the_world_are_looked_for(stage: Stage) -> None:
    """Nor do those that somebody invents for one topic keep others' from being refused."""
    for number in range(100, 100 + SOUGHT_MAX + 10):
        assert stage.append(batch(value=framed(number))).error is NOT_YET
    assert len(stage.known.sought[VALUES]) == SOUGHT_MAX
    stage.log.config = config(confluent_key_schema_validation=True)
    assert stage.append(batch(key=framed(3))).error is NOT_YET
    stage.learn(values=table(7), keys=table())
    assert stage.append(batch(key=framed(3))).error is ErrorCode.INVALID_RECORD
    stage.log.config = config(fleetlog_schema_validation="id")
    assert stage.append(batch(value=framed(100))).error is ErrorCode.INVALID_RECORD
    assert stage.append(batch(value=framed(99))).error is NOT_YET


def test_an_answer_is_as_old_as_the_question(stage: Stage) -> None:
    """A leader that slept for seconds answers what it was asked before others took over and registered schemas."""
    assert stage.append(batch(value=framed(8))).error is NOT_YET
    for took_ms, error in ((FRESH_MS - 1, ErrorCode.INVALID_RECORD), (5 * FRESH_MS, NOT_YET)):
        begun_ms = stage.clock.mono_ms() + 1
        stage.clock.now_ms += took_ms
        stage.known.learn({VALUES: table(7)}, begun_ms)
        assert stage.append(batch(value=framed(8))).error is error


def test_a_request_has_so_many_records_looked_at_and_no_more(stage: Stage) -> None:
    """Also in batches that have to wait."""
    terms = Terms(Origin.CLIENT, whole_request=True, shares=True, explain=5)
    for left in (2, 0):
        ((outcome,), _) = stage.log.appender.append([bytearray(batch(3, value=framed(8)))], 0, NOW, terms)
        assert stage.log.appender.info(outcome).error is NOT_YET
        assert terms.explain == left


def test_a_broker_that_has_read_nothing_takes_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    assert stage.append(batch(value=framed(7))).error is NOT_YET
    assert list(stage.known.wants) == [VALUES]
    assert stage.woken
    stage.learn()
    assert stage.append(batch(value=framed(7))).error is NOT_YET, "another subject was read"
    assert stage.append(batch(value=None)).error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ((("__value_schema_id", b"\1" + GUID),), ErrorCode.NONE),
        ((("__value_schema_id", framed(7, b"")),), ErrorCode.NONE),
        ((("__value_schema_id", b"\1" + GUID[:-1]),), ErrorCode.INVALID_RECORD),
        ((("__value_schema_id", None),), ErrorCode.INVALID_RECORD),
        ((("__value_schema_id", b"\1" + GUID[::-1]),), NOT_YET),
        ((("__key_schema_id", b"\1" + GUID),), ErrorCode.INVALID_RECORD),
    ],
)
def test_an_id_may_stand_in_a_header(stage: Stage, headers: Any, error: ErrorCode) -> None:
    stage.learn(values=table(7, guids=GUID))
    assert stage.append(batch(value=b"untouched", headers=headers)).error is error


def test_a_guid_may_stand_before_the_value(stage: Stage) -> None:
    stage.learn(values=table(7, guids=GUID))
    assert stage.append(batch(value=b"\1" + GUID + b"payload")).error is ErrorCode.NONE


def test_what_others_than_clients_append_is_not_looked_at(stage: Stage, tmp_path: Path) -> None:
    assert stage.append(batch(value=b"plain"), origin=Origin.COORDINATOR).error is ErrorCode.NONE
    leader = open_log(tmp_path / "leader-0")
    append(leader, batch(value=b"plain"))
    (data,) = [bytes(data[at : at + header.size]) for segment in leader.segments
               for _, data, found in segment.chunks() for at, header in found]  # fmt: skip
    follower = Stage(tmp_path / "b").log
    assert follower.appender.append_as_follower(data, now_ms=NOW).error is ErrorCode.NONE
    assert next(iter(scan(data)))[1].record_count == 1


def test_settings_take_effect_with_the_next_append(stage: Stage) -> None:
    stage.log.config = config()
    assert stage.append(batch(value=b"plain")).error is ErrorCode.NONE
    stage.log.config = config(confluent_value_schema_validation=True)
    assert stage.append(batch(value=b"plain")).error is ErrorCode.INVALID_RECORD
    stage.log.config = config(fleetlog_schema_validation="id", confluent_value_subject_name_strategy=RECORD_NAMES)
    assert stage.append(batch(value=framed(7))).error is NOT_YET
    assert Want("", of_records=True) in stage.known.wants


def test_a_repeat_of_what_is_in_the_log_is_answered_as_one(stage: Stage) -> None:
    """Whatever became of its schema: it cannot be said that it was not taken."""
    data = produced(5, 0, 0, value=framed(7))
    first = stage.append(data)
    stage.learn(values=table(9))
    again = stage.append(data)
    assert again.duplicate
    assert again.first_offset == first.first_offset


def test_what_a_broker_no_longer_needs_is_forgotten(stage: Stage) -> None:
    stage.known.forget_unused()
    stage.append(batch(value=framed(7)))
    stage.known.forget_unused()
    assert list(stage.known.wants) == [VALUES]
    stage.known.forget_unused()
    assert not stage.known.wants


steps = st.lists(
    st.tuples(st.sampled_from(["register", "remove", "append", "append"]), st.integers(1, 2))
    | st.tuples(st.sampled_from(["tick", "tick", "read", "ask", "answer"]), st.integers(1, 800)),
    min_size=20,
    max_size=60,
)


@settings(max_examples=examples(200), deadline=None)
@given(steps)
def test_whatever_happens_nothing_gets_in_and_nothing_is_refused_wrongly(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int]]
) -> None:
    """Schemas come and go, and the broker reads of it when it can: what it takes it has read, and what it refuses for
    good was not registered a second ago. An answer may come late, and tells of the moment of the question.
    """
    stage = Stage(tmp_path_factory.mktemp("log"))
    registered: dict[int, int] = {}
    as_read: set[int] = set()
    asked: tuple[int, set[int]] | None = None
    for what, number in history:
        now_ms = stage.clock.now_ms
        if what == "register":
            registered.setdefault(number, now_ms)
        elif what == "remove":
            registered.pop(number, None)
        elif what == "tick":
            stage.clock.now_ms += number
        elif what == "read":
            as_read = set(registered)
            stage.learn(values=table(*as_read))
        elif what == "ask":
            asked = now_ms, set(registered)
        elif what == "answer":
            if asked is not None:
                as_read = asked[1]
                stage.known.learn({VALUES: table(*as_read)}, asked[0])
        else:
            end = stage.log.log_end_offset
            error = stage.append(batch(value=framed(number))).error
            assert (error is ErrorCode.NONE) == (number in as_read) == (stage.log.log_end_offset == end + 1)
            if error is ErrorCode.INVALID_RECORD:
                assert number not in registered or now_ms - registered[number] <= FRESH_MS
            else:
                assert error in (ErrorCode.NONE, NOT_YET)


# ---- payloads

PAYLOADS = Want("events-value", texts=True)
INT, TEXT = '"int"', '{"type": "record", "name": "Order", "fields": [{"name": "text", "type": "string"}]}'


def source(text: str, *references: Reference, kind: str = "AVRO") -> SchemaText:
    return SchemaText(kind, packed(text), references)


def reads(stage: Stage, *, references: dict[Reference, SchemaText | None] | None = None, **sources: SchemaText) -> None:
    """The broker has read of these schemas: ``id_7`` is the one with id 7."""
    by_id = {int(name[3:]).to_bytes(4, "big"): one for name, one in sources.items()}
    known = table(*(int.from_bytes(number, "big") for number in by_id), guids=GUID)
    known.sources = by_id | {GUID: list(by_id.values())[-1]}
    stage.clock.now_ms += 1
    stage.known.learn({PAYLOADS: known}, stage.clock.mono_ms(), references)


@pytest.fixture
def full(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path, fleetlog_schema_validation="full")
    stage.append(batch(value=framed(7)))
    assert list(stage.known.wants) == [PAYLOADS]
    reads(stage, id_7=source(TEXT), id_8=source(INT))
    return stage


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_payloads_of_their_schemas_are_taken(full: Stage, codec: int) -> None:
    for value in (framed(7, b"\2x"), framed(8, b"\2"), b"\1" + GUID + b"\2", None):
        assert full.append(batch(3, value=value, codec=codec)).error is ErrorCode.NONE
    assert full.log.log_end_offset == 12


def test_payloads_of_others_are_refused_and_it_is_said_why(full: Stage) -> None:
    from fleetlog._native.batch import Record, encode_batch

    values = [
        framed(7, b"\2x"),
        framed(7, b"\4x"),
        framed(8, b"\2\2"),
        framed(8, b"\2"),
        b"plain",
        framed(7, b"\2\xff"),
    ]
    data = encode_batch([Record(at, NOW, b"k", value, ()) for at, value in enumerate(values)])
    info = full.append(data)
    assert info.error is ErrorCode.INVALID_RECORD
    assert info.record_errors == (
        (1, "the value's field text has a length that does not fit (schema id 7, byte 0 of the payload)"),
        (2, "the value has bytes left over (schema id 8, byte 1 of the payload)"),
        (4, "the value has no schema's id"),
        (5, "the value's field text is no UTF-8 (schema id 7, byte 0 of the payload)"),
    )
    assert full.log.log_end_offset == 0
    assert full.append(data, explain=3).record_errors == ()


def test_an_id_that_is_not_there_waits_and_is_refused_as_without_payloads(full: Stage) -> None:
    assert full.append(batch(value=framed(9, b"\2"))).error is NOT_YET
    reads(full, id_7=source(TEXT), id_9=source(INT))
    assert full.append(batch(value=framed(9, b"\2"))).error is ErrorCode.NONE
    assert full.append(batch(value=framed(8, b"\2"))).error is NOT_YET
    reads(full, id_7=source(TEXT), id_9=source(INT))
    assert full.append(batch(value=framed(8, b"\2"))).error is ErrorCode.INVALID_RECORD


def test_a_schema_counts_no_longer_when_it_is_gone_or_another(full: Stage) -> None:
    """In mode IMPORT an id may become another schema's."""
    assert full.append(batch(value=framed(8, b"\2"))).error is ErrorCode.NONE
    reads(full, id_8=source('"string"'))
    assert full.append(batch(value=framed(8, b"\2"))).error is ErrorCode.INVALID_RECORD
    reads(full, id_7=source(TEXT))
    assert full.append(batch(value=framed(8, b"\2x"))).error is NOT_YET


def test_a_schema_whose_text_was_not_kept_waits(full: Stage) -> None:
    full.known.learn({PAYLOADS: table(7)}, full.clock.mono_ms())
    info = full.append(batch(value=framed(7, b"\2x")))
    assert (info.error, full.log.log_end_offset) == (NOT_YET, 0)


def test_what_a_schema_refers_to_has_to_be_read_too(full: Stage) -> None:
    fields = '[{"name": "of", "type": "Order"}, {"name": "more", "type": "Order"}]'
    outer = f'{{"type": "record", "name": "Outer", "fields": {fields}}}'
    inner, unknown = ("inner", 3), ("unknown", 1)
    reads(full, id_7=source(outer, inner))
    assert full.append(batch(value=framed(7, b"\2x\2x"))).error is NOT_YET
    reads(full, id_7=source(outer, inner), id_8=source(INT, unknown), references={inner: source(TEXT), unknown: None})
    assert full.append(batch(value=framed(7, b"\2x\2x"))).error is ErrorCode.NONE
    refused = full.append(batch(value=framed(7, b"\2x\4x")))
    assert "the value's field more.text has a length" in str(refused.record_errors)
    refused = full.append(batch(value=framed(8, b"\2")))
    assert "refers to unknown version 1, which is not there" in str(refused.record_errors)


def test_schemas_that_refer_to_each_other_come_to_an_end(full: Stage) -> None:
    rows: dict[Reference, SchemaText | None] = {("s", n): source(INT, ("s", (n + 1) % 300)) for n in range(300)}
    reads(full, id_7=source(INT, ("s", 0)), references=rows)
    refused = full.append(batch(value=framed(7, b"\2")))
    assert "refers to more than 100 others" in str(refused.record_errors)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (source("{}"), "the schema is none of Avro"),
        (source('"nobody"'), "the schema is none of Avro"),
        (source('{"type": "array", "items": ' * 65 + INT + "}" * 65), "nested deeper than 64 levels"),
        (source("{}", kind="JSON"), "payloads of JSON schemas cannot be checked"),
    ],
)
def test_a_schema_by_which_nothing_can_be_checked_takes_nothing(full: Stage, one: SchemaText, why: str) -> None:
    reads(full, id_7=one)
    info = full.append(batch(value=framed(7, b"\2")))
    assert (info.error, full.log.log_end_offset) == (ErrorCode.INVALID_RECORD, 0)
    assert why in str(info.record_errors)


def test_a_batch_of_very_many_schemas_is_compiled_in_several_tries(full: Stage) -> None:
    from fleetlog._native.batch import Record, encode_batch

    doc = "x" * (COMPILED_AT_ONCE // 3)
    sources = {f"id_{n}": source(f'{{"type": "int", "doc": "{doc}{n}"}}') for n in range(20)}
    reads(full, **sources)
    data = encode_batch([Record(at, NOW, b"k", framed(at, b"\2"), ()) for at in range(20)])
    tries = 0
    while full.append(data).error is NOT_YET:
        tries += 1
    assert 2 <= tries <= 10
    assert full.log.log_end_offset == 20


def test_keys_are_looked_at_as_closely_as_values(tmp_path: Path) -> None:
    stage = Stage(tmp_path, fleetlog_schema_validation="full", confluent_key_schema_validation=True)
    stage.append(batch(value=framed(7)))
    known = table(7)
    known.sources = {(7).to_bytes(4, "big"): source(INT)}
    stage.known.learn({PAYLOADS: known, Want("events-key", texts=True): known}, stage.clock.mono_ms())
    assert stage.append(batch(key=framed(7, b"\2"), value=framed(7, b"\2"))).error is ErrorCode.NONE
    info = stage.append(batch(key=framed(7, b""), value=framed(7, b"\2")))
    assert "the key is cut off" in str(info.record_errors)


def test_programs_that_nobody_asked_for_lately_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetlog.brokers.log.door.PROGRAMS_MAX", 2)
    programs = Programs()
    one, two, three = (source(text) for text in (INT, TEXT, '"long"'))
    assert [programs.get((s,))[1:] for s in (one, two, one)] == [(5, False), (len(TEXT), False), (0, False)]
    assert programs.get((three,))[1:] == (6, True)
    assert [programs.get((s,))[1:] for s in (one, three, two)] == [(0, False), (0, False), (len(TEXT), True)]


def test_checking_payloads_counts_as_work(full: Stage) -> None:
    terms = Terms(Origin.CLIENT, whole_request=True)
    full.log.appender.append([bytearray(batch(3, value=framed(8, b"\2"), codec=ZSTD))], 0, NOW, terms)
    paid = terms.work
    full.log.config = config(fleetlog_schema_validation="id")
    full.append(batch(value=framed(8)))
    full.learn(values=table(8))
    terms = Terms(Origin.CLIENT, whole_request=True)
    full.log.appender.append([bytearray(batch(3, value=framed(8, b"\2"), codec=ZSTD))], 0, NOW, terms)
    assert paid > terms.work
