"""Dead letters of topics that check schemas: what is written where, in which order, and what the producer is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetlog._native.batch import Record, encode_batch, scan
from fleetlog.brokers.api import fetch_answers, produce
from fleetlog.brokers.api.base import ClientConnection, Context
from fleetlog.brokers.api.letter_topics import check_schema_letters
from fleetlog.brokers.api.replicas import handle_write_letters
from fleetlog.brokers.controller.requests import Refused, check_configs
from fleetlog.brokers.coordinators.schema_letters import SchemaLetters
from fleetlog.brokers.log.door import LETTERS_MAX, SchemaText, Table, Want, packed
from fleetlog.brokers.model import BrokerId
from fleetlog.txn.verification import Ask, Question
from fleetlog.wire.compression import ZSTD, compress
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.messages import WriteLettersRequest
from fleetlog.wire.types import TopicPartition
from tests.support.logs import content, open_log, records
from tests.support.producing import TRANSACTIONAL, answer, request
from tests.support.stage import Stage

VALUES = Want("checked-value", texts=True)
OK, REFUSED, WAITS = ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.NOT_ENOUGH_REPLICAS
ID = (3).to_bytes(4, "big")
GOOD, BAD, UNKNOWN = b"\0" + ID + b"\2x", b"\0" + ID + b"\3x", b"plain"
CHECKED = {"fleetlog_schema_validation": "full", "fleetlog_schema_invalid": "dlq:dlq.checked"}
PERMITTED = {"errors_deadletterqueue_group_enable": "true"}


@pytest.fixture(autouse=True, params=["in one go", "in slices"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in slices":
        monkeypatch.setattr(produce, "LONG_PARTS", 0)
        monkeypatch.setattr(fetch_answers, "SLICE_PARTS", 1)


class Case:
    """Topic checked, whose schema 3 is an Avro string, and its topic of dead letters."""

    def __init__(self, directory: Path) -> None:
        self.stage = Stage(directory)
        self.known = self.stage.logs.schemas
        self.questions: list[Question] = []
        self.says: Callable[[Question], ErrorCode] = lambda question: OK
        self.stage.verify_by(self.verify)
        services = self.stage.services
        services.schema_letters = SchemaLetters(
            1, self.stage.metadata, None, services.transactions, self.stage.replicas, self.stage.clock,  # type: ignore[arg-type]
            services.metrics.dead_letters,
        )  # fmt: skip
        self.stage.topic("checked", 2, **CHECKED)
        self.stage.topic("dlq.checked", **PERMITTED)
        self.known.table(VALUES)
        table = Table(ID)
        table.sources = {ID: SchemaText("AVRO", packed('"string"'))}
        self.stage.clock.now_ms += 1
        self.known.learn({VALUES: table}, self.stage.clock.mono_ms(), {})

    def verify(self, question: Question) -> dict[TopicPartition, ErrorCode]:
        self.questions.append(question)
        return dict.fromkeys(question.partitions, self.says(question))

    def send(self, *parts: tuple[Any, int, bytes | None], version: int = 9, **more: Any) -> list[Any]:
        return answer(self.stage, version, request(*parts, **more))

    def one(self, *values: bytes | None, version: int = 9, name: str | None = None, **fields: Any) -> Any:
        (told,) = self.send(("checked", 0, batch(self, *values, **fields)), version=version, transactional_id=name)
        return told

    def taken(self) -> list[tuple[int, bytes | None]]:
        return [(row.offset, row.value) for row in records(self.stage.partition("checked").log)]

    def letters(self) -> list[Record]:
        return records(self.stage.partition("dlq.checked").log)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def batch(case: Case, *values: bytes | None, codec: int = 0, **fields: Any) -> bytes:
    rows = [Record(-1, case.stage.clock.wall_ms(), b"k%d" % at, one, (("h", b"1"),)) for at, one in enumerate(values)]
    pack = (lambda data: compress(codec, data)) if codec else None
    return encode_batch(rows, attributes=codec | fields.pop("attributes", 0), compress=pack, **fields)


def said(letter: Record) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in letter.headers}


@pytest.mark.parametrize("codec", [0, ZSTD])
@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_bad_records_become_letters_and_the_others_are_taken(case: Case, codec: int, acks: int) -> None:
    sent = ("checked", 1, batch(case, GOOD, BAD, UNKNOWN, None, codec=codec))
    if acks:
        (told,) = case.send(sent, acks=acks)
        assert (told.error_code, told.base_offset, told.record_errors) == (OK, 0, [])
    else:
        case.stage.start(produce.handle_produce, 0, 9, request(sent, acks=0))
    log = case.stage.partition("checked", 1).log
    assert [(row.offset, row.value) for row in records(log)] == [(0, GOOD), (3, None)]
    assert log.log_end_offset == 4
    first, second = case.letters()
    assert [(one.key, one.value) for one in (first, second)] == [(b"k1", BAD), (b"k2", UNKNOWN)]
    assert said(first) == {
        "h": "1", "__dlq.errors.topic": "checked", "__dlq.errors.partition": "1", "fleetlog.dlq.reason": "schema",
        "__dlq.errors.message": said(first)["__dlq.errors.message"],
    }  # fmt: skip
    assert said(first)["__dlq.errors.message"].startswith("the value ")
    assert said(second)["__dlq.errors.message"] == "the value has no schema's id"
    assert case.stage.services.metrics.dead_letters.labels("schema").value == 2
    assert case.known.counts["checked"].refused_records == 0


def test_a_batch_of_bad_records_alone_is_answered_and_has_nothing_left(case: Case) -> None:
    assert (case.one(UNKNOWN, BAD).error_code, case.one(GOOD).base_offset) == (OK, 2)
    assert (case.taken(), len(case.letters())) == ([(2, GOOD)], 2)


def test_an_idempotent_producer_goes_on_and_a_repeat_brings_no_letter_again(case: Case) -> None:
    producer = {"producer_id": 5, "producer_epoch": 0}
    rows = [batch(case, *values, base_sequence=2 * turn, **producer) for turn, values in
            enumerate([(GOOD, UNKNOWN), (BAD, GOOD), (GOOD, GOOD)])]  # fmt: skip
    told = case.send(*(("checked", 0, row) for row in rows))
    assert [(one.error_code, one.base_offset) for one in told] == [(OK, 0), (OK, 2), (OK, 4)]
    assert [one.base_offset for one in case.send(*(("checked", 0, row) for row in rows))] == [0, 2, 4]
    assert [offset for offset, _ in case.taken()] == [0, 3, 4, 5]
    assert [said(one)["__dlq.errors.sequence"] for one in case.letters()] == ["1", "2"]
    assert {said(one)["__dlq.errors.producer.id"] for one in case.letters()} == {"5"}


def test_letters_are_there_before_the_batch_is(case: Case) -> None:
    ends: list[int] = []
    letters = case.stage.partition("dlq.checked")
    append = letters.append

    def noted(*args: Any, **more: Any) -> Any:
        ends.append(case.stage.partition("checked").log.log_end_offset)
        return append(*args, **more)

    letters.append = noted  # type: ignore[method-assign]
    assert case.one(GOOD, UNKNOWN).error_code == OK
    assert ends == [0]


@pytest.mark.parametrize(("version", "ask"), [(9, Ask.VERIFY), (12, Ask.ADD)])
def test_in_a_transaction_letters_belong_to_it(case: Case, version: int, ask: Ask) -> None:
    for sequence, values in ((0, (GOOD, UNKNOWN)), (2, (BAD,))):
        told = case.one(*values, version=version, name="tx", base_sequence=sequence, **TRANSACTIONAL)
        assert told.error_code == OK
    tps = [TopicPartition("checked", 0), TopicPartition("dlq.checked", 0)]
    asked = [(one.ask, *one.partitions) for one in case.questions]
    assert asked == [(ask, tps[0]), (Ask.ADD, tps[1]), (Ask.VERIFY, tps[1]), (Ask.ADD, tps[1])]
    log = case.stage.partition("dlq.checked").log
    assert {(row.producer_id, row.producer_epoch, row.base_sequence) for _, row in headers(case)} == {(9, 0, -1)}
    assert (len(case.letters()), log.last_stable_offset) == (2, 0)
    case.stage.marker("dlq.checked", 9, commit=False)
    case.stage.marker("checked", 9, commit=False)
    assert log.last_stable_offset == log.log_end_offset == 3


def headers(case: Case) -> list[Any]:
    return list(scan(content(case.stage.partition("dlq.checked").log)))


def test_what_the_producer_writes_among_its_letters_itself_stays_in_order(case: Case) -> None:
    own = 0
    for turn in range(3):
        assert case.one(UNKNOWN, version=12, name="tx", base_sequence=turn, **TRANSACTIONAL).error_code == OK
        for _ in range(2):
            row = ("dlq.checked", 0, batch(case, b"x", base_sequence=own, **TRANSACTIONAL))
            own += 1
            assert [one.error_code for one in case.send(row, version=12, transactional_id="tx")] == [OK]
    again = ("dlq.checked", 0, batch(case, b"x", base_sequence=own - 1, **TRANSACTIONAL))
    assert [one.base_offset for one in case.send(again, version=12, transactional_id="tx")] == [8]


@pytest.mark.parametrize(("says", "error"), [
    (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
    (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
])  # fmt: skip
def test_a_coordinator_that_does_not_take_their_partition_leaves_nothing(
    case: Case, says: ErrorCode, error: ErrorCode
) -> None:
    case.says = lambda question: says if question.partitions[0].topic == "dlq.checked" else OK
    told = case.one(GOOD, UNKNOWN, version=12, name="tx", base_sequence=0, **TRANSACTIONAL)
    assert (told.error_code, case.taken(), case.letters()) == (error, [], [])
    assert told.error_message == f"dead letter in topic dlq.checked: {says.name}"
    case.says = lambda question: OK
    assert case.one(GOOD, UNKNOWN, version=12, name="tx", base_sequence=0, **TRANSACTIONAL).error_code == OK


def test_a_transaction_that_ends_meanwhile_has_no_letters(case: Case) -> None:
    def end(question: Question) -> ErrorCode:
        if question.partitions[0].topic == "dlq.checked":
            case.stage.marker("checked", 9, commit=False)
        return OK

    case.says = end
    told = case.one(GOOD, UNKNOWN, name="tx", base_sequence=0, **TRANSACTIONAL)
    assert (told.error_code, case.taken(), case.letters()) == (ErrorCode.INVALID_TXN_STATE, [], [])


@pytest.mark.parametrize(("configs", "why"), [
    ({}, "errors.deadletterqueue.group.enable of the topic is false"),
    (PERMITTED | {"fleetlog_schema_validation": "id"}, "it asks for schemas itself"),
    (PERMITTED | {"cleanup_policy": "compact"}, "it is compacted, and would keep the last letter of each key alone"),
])  # fmt: skip
def test_a_topic_that_takes_no_letters_makes_them_refused_by_record(
    case: Case, configs: dict[str, str], why: str
) -> None:
    case.stage.topic("dlq.checked", **configs)
    told = case.one(GOOD, UNKNOWN)
    text = f"the value has no schema's id; no dead letter in topic dlq.checked: {why}"
    assert (told.error_code, case.taken()) == (REFUSED, [])
    assert [(one.batch_index, one.batch_index_error_message) for one in told.record_errors] == [(1, text)]
    assert case.known.counts["checked"].refused_records == 1


def test_a_topic_that_is_gone_refuses_them_and_one_without_a_leader_waits(case: Case) -> None:
    case.stage.topic("dlq.checked", leader=-1, epoch=1, **PERMITTED)
    told = case.one(GOOD, UNKNOWN)
    assert (told.error_code, told.error_message) == (WAITS, "dead letter in topic dlq.checked: LEADER_NOT_AVAILABLE")
    case.stage.delete("dlq.checked")
    assert case.one(GOOD, UNKNOWN).error_code == REFUSED
    assert case.taken() == []


def test_letters_that_are_too_large_or_too_many_make_the_batch_refused(case: Case) -> None:
    case.stage.topic("dlq.checked", max_message_bytes="1000", **PERMITTED)
    assert "larger than its max.message.bytes" in case.one(GOOD, b"x" * 1_000).error_message
    several = [b"x" * 200] * 9
    assert case.one(*several).error_code == OK
    assert len(headers(case)) > 1, "in batches that the topic takes"
    told = case.one(*[UNKNOWN] * (LETTERS_MAX + 1))
    assert told.error_code == REFUSED
    assert "so many become no dead letters; record 0: the value has no schema's id" in told.error_message
    assert case.one(*[UNKNOWN] * LETTERS_MAX).error_code == OK
    assert len(case.letters()) == LETTERS_MAX + 9


def test_a_letter_that_is_not_replicated_makes_the_batch_wait(case: Case) -> None:
    me, other = BrokerId(1), BrokerId(2)
    case.stage.topic("dlq.checked", replicas=(me, other), isr=(me,), epoch=1, min_insync_replicas="2", **PERMITTED)
    told = case.one(GOOD, UNKNOWN)
    assert (told.error_code, case.taken()) == (WAITS, [])


def test_who_follows_or_recovers_letters_knows_the_same_of_their_producer(case: Case, tmp_path: Path) -> None:
    case.one(UNKNOWN, version=12, name="tx", base_sequence=0, **TRANSACTIONAL)
    row = ("dlq.checked", 0, batch(case, b"x", base_sequence=0, **TRANSACTIONAL))
    case.send(row, version=12, transactional_id="tx")
    case.one(UNKNOWN, version=12, name="tx", base_sequence=1, **TRANSACTIONAL)
    log = case.stage.partition("dlq.checked").log
    follower = open_log(tmp_path / "dlq-0")
    follower.appender.append_as_follower(content(log), now_ms=case.stage.clock.wall_ms())
    (entry,) = log.producers.active()
    (followed,) = follower.producers.active()
    assert (entry.last_sequence, entry.txn_first_offset) == (0, 0)
    follower.abandon()
    again = open_log(tmp_path / "dlq-0")
    (recovered,) = again.producers.active()
    for one in (followed, recovered):
        assert (one.epoch, one.batches, one.txn_first_offset) == (entry.epoch, entry.batches, entry.txn_first_offset)


@pytest.mark.parametrize(("wanted", "why"), [
    ({"fleetlog.schema.invalid": "dlq:dlq.checked"}, ""),
    ({"fleetlog.schema.invalid": "dlq:dlq.nowhere"}, "there is no such topic"),
    ({"fleetlog.schema.invalid": "dlq:other"}, "its name does not begin with dlq."),
    ({"fleetlog.schema.invalid": "dlq:dlq.closed"}, "errors.deadletterqueue.group.enable of the topic is false"),
    ({"fleetlog.schema.invalid": "dlq:dlq.new"}, "what it does not take cannot go there"),
    ({"fleetlog.schema.invalid": "dlq:__consumer_offsets"}, "must not start with '__'"),
    ({"fleetlog.schema.invalid": "refuse"}, ""),
])  # fmt: skip
def test_which_topics_can_be_named(case: Case, wanted: dict[str, str], why: str) -> None:
    case.stage.topic("other", **PERMITTED)
    case.stage.topic("dlq.closed")
    base, context = case.stage.config.topic_defaults(), case.stage.context(44, 1)

    def refused(name: str, present: dict[str, str], wanted: dict[str, str]) -> str:
        try:
            check_schema_letters(name, present, wanted, base, context)
        except Refused as refused:
            return f"{refused.error.name} {refused.message}"
        return ""

    case.stage.metadata.features = {"fleetlog.schema.version": 2}
    named = wanted["fleetlog.schema.invalid"].startswith("dlq:") and "__" not in wanted["fleetlog.schema.invalid"]
    assert ("3 is not finalized" in refused("dlq.new", {}, wanted)) == named
    case.stage.metadata.features = {"fleetlog.schema.version": 3}
    said = refused("dlq.new", {}, wanted)
    assert why in said
    assert said.startswith("INVALID_CONFIG") if why else said == ""
    assert refused("dlq.new", wanted, wanted) == "", "what is stored is not asked for again"
    checked = {"fleetlog.schema.validation": "id"}
    assert "has the dead letters of topic checked" in refused("dlq.checked", {}, checked)
    assert refused("other", {}, checked) == ""


def test_a_topic_that_drops_repeats_has_no_letters(case: Case) -> None:
    overrides = {"fleetlog.schema.invalid": "dlq:dlq.checked", "fleetlog.dedup": "source"}
    with pytest.raises(Refused, match=r"not possible with fleetlog\.dedup"):
        check_configs(overrides, case.stage.config.topic_defaults())


def test_letters_of_other_leaders_are_taken_from_brokers_alone(case: Case) -> None:
    """WriteLetters, as a leader sends it to the leader of the letters' partition."""
    rows = encode_batch([Record(0, case.stage.clock.wall_ms(), None, UNKNOWN, ())])

    def told(listener: str, topic: str) -> tuple[int, str | None]:
        context = Context(case.stage.services, ClientConnection(1, listener, "127.0.0.1"), 12022, 0, 1, "broker")
        request = WriteLettersRequest(version=0, topic_name=topic, partition_index=0, records=rows)
        outcome = asyncio.run(handle_write_letters(request, context).coroutine)
        return outcome.response.error_code, outcome.response.error_message

    assert told("CLIENTS", "dlq.checked") == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
    assert told("PLAINTEXT", "dlq.nowhere") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
    assert told("PLAINTEXT", "checked") == (ErrorCode.POLICY_VIOLATION, ("its name does not begin with dlq."
                                            " (errors.deadletterqueue.topic.name.prefix)"))  # fmt: skip
    assert told("PLAINTEXT", "dlq.checked") == (OK, None)
    assert [one.value for one in case.letters()] == [UNKNOWN]


def test_without_its_setting_the_batch_is_refused_as_ever(case: Case) -> None:
    case.stage.topic("checked", 2, fleetlog_schema_validation="full")
    assert (case.one(GOOD, UNKNOWN).error_code, case.letters()) == (REFUSED, [])
