"""The check of schemas' ids at a topic's door: what is taken, what is refused in which words, what has to wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog._native.batch import scan
from fleetlog.brokers.log import Origin, Terms
from fleetlog.brokers.log.door import FRESH_MS, NOT_YET, SOUGHT_MAX, SOUGHT_MS, KnownSchemas, Table, Want
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
    for number in range(100, 100 + SOUGHT_MAX + 10):
        assert stage.append(batch(value=framed(number))).error is NOT_YET
    assert len(stage.known.sought) == SOUGHT_MAX
    stage.learn(values=table(7))
    assert stage.append(batch(value=framed(100))).error is ErrorCode.INVALID_RECORD
    assert stage.append(batch(value=framed(99))).error is NOT_YET


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
    st.tuples(st.sampled_from(["register", "remove", "append", "append"]), st.integers(1, 3))
    | st.tuples(st.sampled_from(["tick", "tick", "read"]), st.integers(1, 400)),
    max_size=40,
)


@settings(max_examples=examples(200), deadline=None)
@given(steps)
def test_whatever_happens_nothing_gets_in_and_nothing_is_refused_wrongly(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int]]
) -> None:
    """Schemas come and go, and the broker reads of it when it can: what it takes it has read, and what it refuses for
    good was not registered half a second ago.
    """
    stage = Stage(tmp_path_factory.mktemp("log"))
    registered: dict[int, int] = {}
    as_read: set[int] = set()
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
        else:
            end = stage.log.log_end_offset
            error = stage.append(batch(value=framed(number))).error
            assert (error is ErrorCode.NONE) == (number in as_read) == (stage.log.log_end_offset == end + 1)
            if error is ErrorCode.INVALID_RECORD:
                assert number not in registered or now_ms - registered[number] <= FRESH_MS
            else:
                assert error in (ErrorCode.NONE, NOT_YET)
