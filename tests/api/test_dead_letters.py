"""Dead letters of share groups over real logs: with the state or not at all, once; what waits while they cannot be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog._native.batch import HEADER_SIZE, Record, decode_records, scan
from fleetlog.brokers.acls.access import GROUP, Access
from fleetlog.brokers.coordinators import share_partitions
from fleetlog.brokers.coordinators.dead_letters import DeadLetters, letter
from fleetlog.brokers.shares.coordinator import StateAnswer
from fleetlog.brokers.shares.runs import Doom
from fleetlog.brokers.shares.window import Doomed
from fleetlog.wire.errors import ErrorCode as E
from tests.support.coordinator_broker import Broker
from tests.support.share_members import KEY, TOPIC, Member, served
from tests.support.stage import ME
from tests.support.waiting import eventually_async

LETTERS = "dlq.t"
COMMIT = bytes((0, 0, 0, 1))
PERMITTED = {"errors.deadletterqueue.group.enable": "true"}
NAMED = {"errors.deadletterqueue.topic.name": LETTERS}
COPIED = {**NAMED, "errors.deadletterqueue.copy.record.enable": "true"}


def topic(broker: Broker, **configs: str) -> None:
    broker.metadata.features = {"share.version": 2}
    broker.topic(LETTERS, 1, leader=ME, **{**PERMITTED, **configs})


def letters(broker: Broker) -> list[tuple[dict[str, str], bytes | None]]:
    """Headers and value of each that is committed."""
    log = broker.partition(LETTERS, 0).log
    assert log.last_stable_offset == log.log_end_offset, "no transaction is open"
    result = log.reader.read(0, 1 << 20, log.last_stable_offset)
    run = b"".join(piece.read() for piece in result.slices)
    result.release()
    told: list[tuple[dict[str, str], bytes | None]] = []
    open_ones: list[tuple[dict[str, str], bytes | None]] = []
    for position, header in scan(run):
        records = decode_records(memoryview(run)[position + HEADER_SIZE : position + header.size], header)
        if header.is_control:  # of one producer after the other
            told += open_ones if records[0].key == COMMIT else []
            open_ones = []
            continue
        open_ones += [({name: (value or b"").decode() for name, value in r.headers}, r.value) for r in records]
    return told


async def written(broker: Broker, count: int) -> list[tuple[dict[str, str], bytes | None]]:
    def settled() -> Any:
        log = broker.partition(LETTERS, 0).log
        return log.last_stable_offset == log.log_end_offset and len(letters(broker)) == count

    await eventually_async(settled, f"{count} dead letters")
    return letters(broker)


def test_rejected_records_have_letters_with_the_state(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        topic(broker)
        broker.append("t", 5)
        one = Member(broker)
        assert await one.taken(0) == [(0, 4, 1)]
        assert await one.said(0, 4, 1, 3, 1, 3, 1) == 0, "answered when all of it is persisted"
        first, second = await written(broker, 2)
        assert first == (
            {
                "__dlq.errors.topic": "t", "__dlq.errors.partition": "0", "__dlq.errors.offset": "1",
                "__dlq.errors.group": "g", "__dlq.errors.delivery.count": "1", "fleetlog.dlq.reason": "rejected",
                "__dlq.errors.message": "A member rejected the record.",
            },
            None,
        )  # fmt: skip
        assert second[0]["__dlq.errors.offset"] == "3"
        share = broker.services.share_partitions.get(KEY)
        assert share is not None
        assert share.window is not None
        assert share.window.start == 5
        assert broker.services.metrics.dead_letters.labels("rejected").value == 2
        broker.append("t", 1)
        assert await one.taken() == [(5, 5, 1)]
        assert await one.said(5, 5, 3) == 0, "the next transaction of the same producer"
        assert len(await written(broker, 3)) == 3

    served(tmp_path, story, **NAMED)


def test_what_was_delivered_too_often_and_copies(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        topic(broker)
        broker.append("t", 2)
        one = Member(broker)
        for count in (1, 2):
            assert await one.taken(0) == [(0, 1, count)]
            assert await one.said(0, 1, 2) == 0
        (headers, value), _ = await written(broker, 2)
        assert (headers["fleetlog.dlq.reason"], headers["__dlq.errors.delivery.count"]) == ("too-many-deliveries", "2")
        assert value is not None
        assert await one.taken(wait_ms=100) == []

    served(tmp_path, story, **{**COPIED, "share.delivery.count.limit": "2"})


def test_a_lock_that_ends_for_the_last_time(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        topic(broker)
        broker.append("t", 1)
        one = Member(broker)
        assert await one.taken(0) == [(0, 0, 1)]
        assert await one.taken(wait_ms=9_000) == [(0, 0, 2)]
        assert (await written(broker, 1))[0][0]["fleetlog.dlq.reason"] == "too-many-deliveries"

    served(tmp_path, story, **{**NAMED, "share.delivery.count.limit": "2", "share.record.lock.duration.ms": "1000"})


@pytest.mark.parametrize(
    "away", ["no topic", "not permitted", "drops repeats", "no leader"]
)  # fmt: skip
def test_while_letters_cannot_be_written_others_go_on(tmp_path: Path, away: str) -> None:
    async def story(broker: Broker) -> None:
        broker.metadata.features = {"share.version": 2}
        configs = {"not permitted": {"errors.deadletterqueue.group.enable": "false"}}.get(away, PERMITTED)
        if away == "drops repeats":
            configs = {**PERMITTED, "fleetlog.dedup": "source"}
        if away != "no topic":
            broker.topic(LETTERS, 1, leader=-1 if away == "no leader" else ME, **configs)
        broker.append("t", 3)
        one = Member(broker)
        assert await one.taken(0) == [(0, 2, 1)]
        assert await one.said(0, 0, 3) == E.KAFKA_STORAGE_ERROR, "it was never said"
        assert await one.said(1, 1, 1) == 0
        broker.append("t", 1)
        assert await one.taken(wait_ms=500) == [(3, 3, 1)], "others go on"
        assert await one.said(0, 0, 2) == 0, "it has its lock"
        assert await one.taken(wait_ms=500) == [(0, 0, 2)]
        assert await one.said(0, 0, 2) == E.KAFKA_STORAGE_ERROR, "as often as is permitted"
        saying = asyncio.create_task(one.said(0, 0, 3))
        await asyncio.sleep(0)
        assert await saying == E.KAFKA_STORAGE_ERROR, "who rejects is told in the pause, too"

    served(tmp_path, story, **{**NAMED, "share.delivery.count.limit": "2"})


def test_what_waits_is_written_once_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_partitions, "BURIAL_PAUSES_MS", (20, 20))

    async def story(broker: Broker) -> None:
        broker.metadata.features = {"share.version": 2}
        letters_of = broker.services.share_partitions.letters
        broker.append("t", 2)
        one = Member(broker)
        assert await one.taken(0) == [(0, 1, 1)]
        assert await one.taken(wait_ms=9_000) == [(0, 1, 2)]
        await eventually_async(lambda: letters_of.waiting_records() == 2, "they wait")
        assert await one.taken(wait_ms=100) == [], "nobody gets them"
        assert (await one.fetch(epoch=-1)).error_code == 0
        topic(broker)
        assert len(await written(broker, 2)) == 2
        await eventually_async(lambda: len(broker.services.share_partitions) == 0, "nobody has it any more")
        assert letters_of.waiting_records() == 0

    served(tmp_path, story, **{**NAMED, "share.delivery.count.limit": "2", "share.record.lock.duration.ms": "1000"})


def test_a_state_that_cannot_be_written_has_no_letters(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        topic(broker)
        broker.append("t", 1)
        one, states = Member(broker), broker.services.share_partitions.states
        assert await one.taken(0) == [(0, 0, 1)]
        write = states.write

        async def fails(wanted: Any, within: Any = None) -> StateAnswer:
            return StateAnswer(E.INVALID_REQUEST) if within is not None else await write(wanted)

        states.write = fails
        assert await one.said(0, 0, 3) == E.INVALID_REQUEST
        await written(broker, 0)
        states.write = write
        assert await one.said(0, 0, 3) == 0
        await written(broker, 1)

    served(tmp_path, story, **NAMED)


def test_a_commit_of_which_nothing_is_known_is_asked_for_at_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost: the leader closes, and reads the state once the transaction has ended."""
    end = vars(DeadLetters)["_end"]

    async def lost(self: DeadLetters, within: Any, *, commit: bool) -> Any:
        await end(self, within, commit=commit)
        return E.REQUEST_TIMED_OUT

    async def story(broker: Broker) -> None:
        topic(broker)
        broker.append("t", 2)
        one = Member(broker)
        assert await one.taken(0) == [(0, 1, 1)]
        monkeypatch.setattr(DeadLetters, "_end", lost)
        assert await one.said(0, 0, 3) == E.NOT_LEADER_OR_FOLLOWER
        await written(broker, 1)
        two = Member(broker, "two")
        assert await two.taken(0) == [(1, 1, 1)], "the letter was written, so the record has ended"

    served(tmp_path, story, **NAMED)


def test_a_state_in_an_open_transaction_waits_for_its_end(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        topic(broker)
        broker.append("t", 2)
        one = Member(broker)
        assert await one.taken(0) == [(0, 1, 1)]
        told = asyncio.Event()
        states = broker.services.share_partitions.states
        write = states.write

        async def written_and_gone(wanted: Any, within: Any = None) -> StateAnswer:
            answer = await write(wanted, within)
            if within is not None:
                told.set()
                await asyncio.sleep(60)
            return answer

        states.write = written_and_gone
        says = asyncio.create_task(one.said(0, 0, 3))
        await told.wait()
        states.write = write
        broker.topic("t", 2, leader=ME, epoch=5, topic_id=TOPIC)  # another leader epoch
        assert (await states.read(KEY, 9)).error is E.CONCURRENT_TRANSACTIONS
        assert (await states.delete(KEY)).error is E.CONCURRENT_TRANSACTIONS
        assert (await states.initialize(KEY, 9, 0)).error is E.CONCURRENT_TRANSACTIONS
        assert await Member(broker, "two").taken(0, wait_ms=9_000) == [(0, 1, 1)], "a successor ends it"
        says.cancel()

    served(tmp_path, story, **NAMED)


def test_a_letter_has_what_there_is_room_for() -> None:
    one = Doomed(3, 9, 5, Doom.TOO_MANY_DELIVERIES)
    original = Record(7, 1, b"k", b"v" * 2_000, (("own", b"1"),))
    made = letter(KEY, "t", 7, one, 99, original, 1_000_000)
    assert (made.key, made.value, made.timestamp, made.headers[0]) == (b"k", original.value, 99, ("own", b"1"))
    small = letter(KEY, "t", 7, one, 99, original, 3_000)
    assert (small.key, small.value) == (None, None)
    assert "no room" in dict(small.headers)["__dlq.errors.message"].decode()  # type: ignore[union-attr]


def test_level_1_has_no_letters(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        topic(broker)
        broker.metadata.features = {"share.version": 1}
        broker.append("t", 1)
        one = Member(broker)
        assert await one.taken(0) == [(0, 0, 1)]
        assert await one.said(0, 0, 3) == 0
        assert letters(broker) == []
        state = next(s for shard in broker.services.share_states.shards() for s in shard.states.values())
        assert state.start == 1

    served(tmp_path, story, **NAMED)


def test_who_names_the_topic_may_write_to_it(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        async def named(name: str) -> int:
            kind = m.IncrementalAlterConfigsRequest
            config = kind.AlterConfigsResource.AlterableConfig(
                name="errors.deadletterqueue.topic.name", config_operation=0, value=name
            )
            row = kind.AlterConfigsResource(resource_type=32, resource_name="g", configs=[config])
            answer = await broker.call(44, 1, kind(version=1, resources=[row], validate_only=True))
            return int(answer.responses[0].error_code)

        broker.topic("dlq.dedup", 1, leader=ME, **{**PERMITTED, "fleetlog.dedup": "source"})
        assert await named("dlq.x") == 0
        assert await named("__x") == E.INVALID_CONFIG
        assert await named("dlq.dedup") == E.INVALID_CONFIG
        groups_only = SimpleNamespace(allows=lambda who, host, what, kind, name: kind is GROUP, verdicts={})
        broker.services.access = Access(groups_only)  # type: ignore[arg-type]
        assert await named("dlq.x") == E.TOPIC_AUTHORIZATION_FAILED

    served(tmp_path, story)


def test_letters_that_are_given_up(tmp_path: Path) -> None:
    """The setting goes: what waits is left out, and those who rejected are told that it is."""
    settings = {"share.auto.offset.reset": "earliest", **NAMED}

    async def story(broker: Broker) -> None:
        broker.metadata.features = {"share.version": 2}
        broker.metadata.dynamic_config = lambda kind, name: settings  # type: ignore[method-assign]
        broker.append("t", 2)
        one = Member(broker)
        assert await one.taken(0) == [(0, 1, 1)]
        assert await one.said(0, 0, 3) == E.KAFKA_STORAGE_ERROR
        del settings["errors.deadletterqueue.topic.name"]
        assert await one.said(0, 0, 3) == 0
        assert await one.said(1, 1, 3) == 0
        share = broker.services.share_partitions.get(KEY)
        assert share is not None
        assert share.window is not None
        assert share.window.start == 2

    served(tmp_path, story)


def test_the_first_rejection_after_the_setting_has_a_letter(tmp_path: Path) -> None:
    settings = {"share.auto.offset.reset": "earliest"}

    async def story(broker: Broker) -> None:
        topic(broker)
        broker.metadata.dynamic_config = lambda kind, name: settings  # type: ignore[method-assign]
        broker.append("t", 2)
        one = Member(broker)
        assert await one.taken(0) == [(0, 1, 1)]
        assert await one.said(0, 0, 3) == 0
        settings.update(NAMED)
        assert await one.said(1, 1, 3) == 0
        ((headers, _),) = await written(broker, 1)
        assert headers["__dlq.errors.offset"] == "1"

    served(tmp_path, story)
