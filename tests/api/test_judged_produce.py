"""Produce to topics whose payloads another process checks: what it says becomes of a batch, and of those behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetlog._native.batch import Record, decode_records, encode_batch
from fleetlog.brokers.api import fetch_answers, produce
from fleetlog.brokers.log.door import Fault, Judgement, PayloadQuestion, SchemaText, Table, Want, packed
from fleetlog.txn.verification import Question
from fleetlog.wire.compression import ZSTD, compress
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.support.producing import TRANSACTIONAL, answer, request
from tests.support.stage import Stage

VALUES = Want("checked-value", texts=True)
NUMBERS = {number: number.to_bytes(4, "big") for number in range(5)}
OK, REFUSED, WAITS = ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.fixture(autouse=True, params=["in one go", "in slices"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in slices":
        monkeypatch.setattr(produce, "LONG_PARTS", 0)
        monkeypatch.setattr(fetch_answers, "SLICE_PARTS", 1)


class Judge:
    """In the process's place: a value that ends in "bad" is none of its schema's. Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[list[bytes]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.why = ""

    async def judge(self, question: PayloadQuestion) -> Judgement:
        values = [bytes(row.value or b"") for row in decode_records(question.payload, question.header)]
        self.asked.append(values)
        self.meanwhile()
        if self.why:
            return Judgement(why=self.why)
        rows = [(index, value) for index, value in enumerate(values) if value.endswith(b"bad")]
        return Judgement(tuple(Fault(index, False, value[1:5], "a.b", "is bad") for index, value in rows))


class Case:
    """A topic under full checks: id 1 is a JSON Schema, 2 a Protobuf file, 3 an Avro string."""

    def __init__(self, directory: Path) -> None:
        self.stage, self.judge = Stage(directory), Judge()
        self.known = self.stage.logs.schemas
        self.known.judge = self.judge.judge
        self.stage.topic("checked", 2, fleetlog_schema_validation="full")
        self.stage.topic("plain")
        self.known.table(VALUES)
        self.learn()

    def learn(self, one: str = "{}") -> None:
        kinds = {
            1: SchemaText("JSON", packed(one)),
            2: SchemaText("PROTOBUF", packed("")),
            3: SchemaText("AVRO", packed('"string"')),
        }
        table = Table(b"".join(NUMBERS[number] for number in kinds))
        table.sources = {NUMBERS[number]: text for number, text in kinds.items()}
        self.stage.clock.now_ms += 1
        self.known.learn({VALUES: table}, self.stage.clock.mono_ms(), {})

    def send(self, *parts: tuple[Any, int, bytes | None], **more: Any) -> list[Any]:
        return answer(self.stage, 9, request(*parts, **more))

    def end(self, partition: int = 0) -> int:
        return self.stage.partition("checked", partition).log.log_end_offset


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def value(number: int, payload: bytes) -> bytes:
    return b"\0" + NUMBERS[number] + payload


def batch(case: Case, *values: bytes | None, codec: int = 0, **fields: Any) -> bytes:
    rows = [Record(-1, case.stage.clock.wall_ms(), None, one, ()) for one in values]
    pack = (lambda data: compress(codec, data)) if codec else None
    return encode_batch(rows, attributes=codec | fields.pop("attributes", 0), compress=pack, **fields)


@pytest.mark.parametrize("codec", [0, ZSTD])
@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_what_is_of_its_schema_is_appended(case: Case, codec: int, acks: int) -> None:
    values = [value(1, b"{}"), None, value(2, b"\0")]
    sent = ("checked", 0, batch(case, *values, codec=codec))
    if acks:
        assert [one.error_code for one in case.send(sent, acks=acks)] == [OK]
    else:
        case.stage.start(produce.handle_produce, 0, 9, request(sent, acks=0))
    assert case.end() == 3
    assert case.judge.asked == [[one or b"" for one in values]]


def test_what_is_not_is_refused_by_record_field_and_id(case: Case) -> None:
    values = value(1, b"{}"), value(1, b"bad"), value(2, b"bad")
    (told,) = case.send(("checked", 0, batch(case, *values)))
    assert (told.error_code, case.end()) == (REFUSED, 0)
    assert told.error_message == "2 records were rejected: the value's field a.b: is bad (schema id 1)"
    assert [(one.batch_index, one.batch_index_error_message) for one in told.record_errors] == [
        (1, "the value's field a.b: is bad (schema id 1)"), (2, "the value's field a.b: is bad (schema id 2)")
    ]  # fmt: skip
    assert case.known.counts["checked"].refused_records == 2


def test_ids_that_are_wrong_are_refused_before_anything_is_asked(case: Case) -> None:
    (told,) = case.send(("checked", 0, batch(case, value(1, b"{}"), b"plain")))
    assert told.record_errors[0].batch_index_error_message == "the value has no schema's id"
    assert case.judge.asked == []


def test_avro_needs_no_other_process_and_may_stand_beside_the_others(case: Case) -> None:
    assert case.send(("checked", 0, batch(case, value(3, b"\2x"))))[0].error_code == OK
    assert case.judge.asked == []
    assert case.send(("checked", 0, batch(case, value(1, b"{}"), value(3, b"\2x"))))[0].error_code == OK
    (told,) = case.send(("checked", 0, batch(case, value(1, b"{}"), value(3, b"\3x"))))
    assert (told.error_code, len(case.judge.asked), case.end()) == (REFUSED, 1, 3)


def test_a_process_that_cannot_say_is_no_reason_to_refuse_for_good(case: Case) -> None:
    case.judge.why = "it is started again"
    (told,) = case.send(("checked", 0, batch(case, value(1, b"{}"))))
    assert (told.error_code, told.error_message, case.end()) == (WAITS, "it is started again", 0)
    assert case.known.counts["checked"].waiting_batches == 1
    case.judge.why = ""
    assert case.send(("checked", 0, batch(case, value(1, b"{}"))))[0].error_code == OK


def test_an_idempotent_producer_stays_in_order(case: Case) -> None:
    """Behind a batch that has to wait, and was sent back, the next ones wait, too."""
    producer = {"producer_id": 5, "producer_epoch": 0}
    rows = [batch(case, value(1, b"%d" % turn), base_sequence=turn, **producer) for turn in range(3)]
    case.judge.why = "it is started again"
    assert case.send(("checked", 0, rows[0]))[0].error_code == WAITS
    case.judge.why = ""
    assert case.send(("checked", 0, rows[1]))[0].error_code == WAITS
    assert [one.error_code for one in case.send(*(("checked", 0, row) for row in rows))] == [OK, OK, OK]
    asked = len(case.judge.asked)
    assert case.send(("checked", 0, rows[2]))[0].error_code == OK, "a repeat is answered as one"
    assert (len(case.judge.asked), case.end()) == (asked, 3)


def test_what_is_behind_it_in_the_request_waits_and_other_partitions_do_not(case: Case) -> None:
    ends: list[tuple[int, int]] = []
    case.judge.meanwhile = lambda: ends.append((case.end(), case.stage.partition("plain").log.log_end_offset))
    parts = [
        ("checked", 0, batch(case, value(1, b"{}"))), ("plain", 0, batch(case, b"x")),
        ("checked", 0, batch(case, value(3, b"\2x"))), ("checked", 0, batch(case, value(1, b"bad"))),
    ]  # fmt: skip
    told = case.send(*parts)
    assert [(one.error_code, one.base_offset) for one in told] == [(OK, 0), (OK, 0), (OK, 1), (REFUSED, -1)]
    assert ends == [(0, 1), (2, 1)]


def test_a_broker_that_leads_no_more_appends_nothing(case: Case) -> None:
    case.judge.meanwhile = lambda: case.stage.topic(
        "checked", 2, leader=2, epoch=1, replicas=(1, 2), fleetlog_schema_validation="full"
    )  # type: ignore[arg-type]
    (told,) = case.send(("checked", 0, batch(case, value(1, b"{}"))))
    assert (told.error_code, case.end()) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)


def test_a_schema_that_changes_meanwhile_is_asked_again(case: Case) -> None:
    turns: list[str] = []

    def change() -> None:
        turns.append("x")
        if len(turns) == 1:
            case.learn("[]")

    case.judge.meanwhile = change
    assert case.send(("checked", 0, batch(case, value(1, b"{}"))))[0].error_code == OK
    assert len(case.judge.asked) == 2


def test_schemas_that_change_all_the_time_are_waited_for(case: Case) -> None:
    case.judge.meanwhile = lambda: case.learn("x" * len(case.judge.asked))
    (told,) = case.send(("checked", 0, batch(case, value(1, b"{}"))))
    assert (told.error_code, told.error_message, case.end()) == (WAITS, produce.CHANGING, 0)


def test_a_setting_that_goes_meanwhile_asks_no_more(case: Case) -> None:
    case.judge.meanwhile = lambda: case.stage.topic("checked", 2)  # type: ignore[assignment]
    (told,) = case.send(("checked", 0, batch(case, value(1, b"bad"))))
    assert (told.error_code, case.end()) == (OK, 1)


def test_a_transaction_is_verified_and_its_payloads_are_checked(case: Case) -> None:
    verified: list[Question] = []

    def verify(question: Question) -> dict[TopicPartition, ErrorCode]:
        verified.append(question)
        return dict.fromkeys(question.partitions, ErrorCode.NONE)

    case.stage.verify_by(verify)
    for sequence, (payload, error) in enumerate([(b"{}", OK), (b"{}", OK), (b"bad", REFUSED)]):
        row = batch(case, value(1, payload), base_sequence=sequence, **TRANSACTIONAL)
        assert case.send(("checked", 0, row), transactional_id="tx")[0].error_code == error
    assert (len(verified), case.end()) == (1, 2)


def test_large_batches_are_not_unpacked_twice_on_the_bill(tmp_path: Path) -> None:
    """``decompressed.request.max.bytes`` bounds what a request unpacks to, not how often it is looked at."""
    case = Case(tmp_path)
    payload = b"x" * 600_000
    case.stage.config = case.stage.services.config = type(case.stage.config)(
        **{name: getattr(case.stage.config, name) for name in case.stage.config.__dataclass_fields__}
        | {"decompressed_request_max_bytes": 1_000_000}
    )
    parts = [("checked", index, batch(case, value(1, payload), codec=ZSTD)) for index in (0, 1)]
    assert [one.error_code for one in case.send(*parts)] == [OK, OK]


def test_without_a_process_nothing_gets_in(case: Case) -> None:
    case.known.judge = None
    (told,) = case.send(("checked", 0, batch(case, value(1, b"{}"))))
    assert (told.error_code, case.end()) == (REFUSED, 0)
    assert "payloads of JSON schemas cannot be checked" in told.error_message


def test_very_large_schemas_take_no_records(case: Case) -> None:
    case.learn("x" * 800_001)
    (told,) = case.send(("checked", 0, batch(case, value(1, b"{}"))))
    assert "the schema has more than 800000 characters" in told.error_message


def test_batches_of_very_many_records_have_schemas_of_one_kind(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetlog.brokers.log.door.MIXED_MAX", 2)
    assert case.send(("checked", 0, batch(case, *[value(1, b"{}")] * 3)))[0].error_code == OK
    (told,) = case.send(("checked", 0, batch(case, *[value(1, b"{}"), value(3, b"\2x")] * 2)))
    assert (told.error_code, case.end()) == (REFUSED, 3)


def test_many_schemas_of_a_topic_make_room_for_each_other(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetlog.brokers.log.door.OUTSIDE_MAX", 1)
    for number in (1, 2, 1, 2):
        assert case.send(("checked", 0, batch(case, value(number, b"{}"))))[0].error_code == OK
    assert case.end() == 4
