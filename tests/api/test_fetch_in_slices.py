"""Fetches of many partitions are executed in slices: what happens between any two of them is not lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api import fetch_answers
from fleetlog.brokers.api.base import DelayedResponse, Done
from fleetlog.brokers.api.fetch import handle_fetch
from fleetlog.brokers.api.fetch_reads import PartitionReader
from fleetlog.wire.errors import ErrorCode
from tests.support.fetching import Client, decoded, part, request
from tests.support.stage import OTHER, Stage, body_of, offsets_in

PARTITIONS = 4
VERSION = 12
EVERYWHERE = 80
"""More slices than any of these fetches has."""


@pytest.fixture(autouse=True)
def slices_of_one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_answers, "LONG_PARTS", 1)
    monkeypatch.setattr(fetch_answers, "SLICE_PARTS", 1)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


class Interrupted:
    """Fetches of a fresh broker, one for each place at which something may happen."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.places = 0

    def __iter__(self) -> Iterator[tuple[Stage, Callable[[Callable[[], None]], None]]]:
        for place in range(EVERYWHERE):
            stage = Stage(self._directory / str(place))
            stage.topic("t", PARTITIONS, replicas=(1, 2))  # type: ignore[arg-type]
            steps = 0

            def at_the_place(happens: Callable[[], None], stage: Stage = stage, place: int = place) -> None:
                def between() -> None:
                    nonlocal steps
                    steps += 1
                    if steps == place:
                        happens()

                stage.between = between

            yield stage, at_the_place
            stage.logs.close()
            if steps < place:
                break
            self.places = place
        assert self.places >= PARTITIONS, "nothing was interrupted"


@pytest.fixture
def interrupted(tmp_path: Path) -> Interrupted:
    return Interrupted(tmp_path)


def everything(**fields: Any) -> list[Any]:
    return [part("t", 0, index, **fields) for index in range(PARTITIONS)]


def commit(stage: Stage, index: int) -> None:
    stage.append("t", index=index)
    stage.fetched("t", OTHER, 1, index)


@pytest.mark.parametrize("index", [0, PARTITIONS - 1])
@pytest.mark.parametrize("replica", [-1, OTHER])
def test_what_moves_in_between_is_in_this_answer_or_the_next(
    interrupted: Interrupted, index: int, replica: int
) -> None:
    for stage, at_the_place in interrupted:
        client = Client(stage, VERSION, replica)
        at_the_place(lambda stage=stage: commit(stage, index))  # type: ignore[misc]
        client.fetch(*everything())
        stage.between = lambda: None
        if not stage.partition("t", index).log.log_end_offset:  # it was over before
            continue
        client.fetch()
        assert offsets_in(client.known["t", index].records) == [0]
        assert client.known["t", index].high_watermark == 1


@pytest.mark.parametrize("index", [0, PARTITIONS - 1])
@pytest.mark.parametrize("session_epoch", [0, -1])
def test_what_moves_in_between_wakes_a_fetch_that_waits(
    interrupted: Interrupted, index: int, session_epoch: int
) -> None:
    for stage, at_the_place in interrupted:
        at_the_place(lambda stage=stage: commit(stage, index))  # type: ignore[misc]
        asked = request(*everything(), session_epoch=session_epoch, max_wait_ms=500, min_bytes=1)
        outcome = stage.start(handle_fetch, 1, VERSION, asked)
        stage.between = lambda: None
        happened = bool(stage.partition("t", index).log.log_end_offset)
        if isinstance(outcome, DelayedResponse):
            stage.wait(5)
            assert outcome.done == happened
            if not happened:
                outcome.expire()
        answer = decoded(VERSION, stage.made(outcome.response))
        assert len(answer.parts) == PARTITIONS
        assert offsets_in(answer.parts["t", index].records) == ([0] if happened else [])


@pytest.mark.parametrize("session_epoch", [0, -1])
def test_a_client_that_goes_in_between_leaves_nothing_behind(tmp_path: Path, session_epoch: int) -> None:
    for place in range(EVERYWHERE):
        stage = Stage(tmp_path / str(place))
        stage.topic("t", PARTITIONS)
        stage.append("t")
        asked = request(*everything(), session_epoch=session_epoch, max_wait_ms=500, min_bytes=1 << 20)
        outcome: Any = handle_fetch(asked, stage.context(1, VERSION))
        work = outcome.work
        over = False
        for _ in range(place):
            over = next(work, None) is None and work.gi_frame is None
        work.close()
        if over:
            break
        assert not len(stage.services.fetch_sessions)
        assert not any(stage.partition("t", index).watchers for index in range(PARTITIONS))
        stage.logs.close()
    else:
        raise AssertionError("the fetch never ends")
    assert place > PARTITIONS


def test_an_evicted_session_says_so(interrupted: Interrupted) -> None:
    for stage, at_the_place in interrupted:
        sessions = stage.services.fetch_sessions

        def evict(sessions: Any = sessions) -> None:
            for session in list(sessions._sessions.values()):
                sessions.close(session)

        at_the_place(evict)
        outcome = stage.start(handle_fetch, 1, VERSION, request(*everything(), session_epoch=0))
        stage.between = lambda: None
        assert isinstance(outcome, Done)
        answer = decoded(VERSION, outcome.response)
        if answer.error:
            assert answer.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        else:
            assert len(answer.parts) == PARTITIONS
        if not len(sessions):
            assert not any(stage.partition("t", index).watchers for index in range(PARTITIONS))


def test_a_position_is_not_counted_once_the_follower_has_another_session(interrupted: Interrupted) -> None:
    reached = [asked._replace(fetch_offset=3 * (asked.partition == PARTITIONS - 1)) for asked in everything()]
    for stage, at_the_place in interrupted:
        stage.append("t", 3, index=PARTITIONS - 1)
        fresh = Client(stage, VERSION, OTHER)

        def fetch(stage: Stage = stage, fresh: Client = fresh) -> None:
            stage.between = lambda: None
            fresh.fetch(*reached)

        at_the_place(fetch)
        Client(stage, VERSION, OTHER).start(*everything())
        stage.between = lambda: None
        (session,) = stage.services.fetch_sessions._sessions.values()
        follower = stage.partition("t", PARTITIONS - 1).followers.known[OTHER]
        assert follower.session is session.replica, "what counts is what a session said that is there"
        if fresh.id == session.id:
            assert follower.end_offset == 3


def test_a_position_is_not_counted_in_an_epoch_that_ended_in_between(interrupted: Interrupted) -> None:
    for stage, at_the_place in interrupted:
        stage.topic("t", PARTITIONS, replicas=(1, 2), isr=(1, 2))  # type: ignore[arg-type]
        stage.append("t", 3, index=PARTITIONS - 1)
        watermarks: list[int] = []

        def elect(stage: Stage = stage, watermarks: list[int] = watermarks) -> None:
            stage.topic("t", PARTITIONS, replicas=(1, 2), isr=(1, 2), epoch=1)  # type: ignore[arg-type]
            watermarks.append(stage.partition("t", PARTITIONS - 1).log.high_watermark)

        at_the_place(elect)
        reached = [asked._replace(fetch_offset=3 * (asked.partition == PARTITIONS - 1)) for asked in everything()]
        Client(stage, VERSION, OTHER).start(*reached)
        stage.between = lambda: None
        now = stage.partition("t", PARTITIONS - 1).log.high_watermark
        assert now == (watermarks[0] if watermarks else 3)


def answered(version: int, outcome: Any) -> list[tuple[Any, list[int], list[list[int]]]]:
    """Topics of an answer in its order: name, partitions, and the offsets of their records."""
    assert isinstance(outcome, Done)
    message = m.decode_response(1, version, body_of(outcome.response))
    return [
        (
            topic.topic_id if version >= 13 else topic.topic,
            [row.partition_index for row in topic.partitions],
            [offsets_in(bytes(row.records or b"")) for row in topic.partitions],
        )
        for topic in message.responses
    ]


@pytest.mark.parametrize("most", [1, 512], ids=["in slices", "at once"])
@pytest.mark.parametrize("session_epoch", [0, -1])
@pytest.mark.parametrize("version", [11, VERSION, 13, 17])
def test_a_topic_that_is_named_twice_stands_once_in_the_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, version: int, session_epoch: int, most: int
) -> None:
    monkeypatch.setattr(fetch_answers, "LONG_PARTS", most)
    names: list[Any] = []
    for topic in ("t", "u", "w"):
        info = stage.topic(topic, PARTITIONS)
        names.append(info.id if version >= 13 else topic)
        for index in range(PARTITIONS):
            for _ in range(1 + index):
                stage.append(topic, index=index)
    t, u, w = names
    named = [(t, 2), (t, 0), (u, 1), (t, 3), (w, 0), (u, 0), (t, 1)]
    asked = request(*[part(name, 0, index) for name, index in named], session_epoch=session_epoch)
    found = answered(version, stage.start(handle_fetch, 1, version, asked))
    expected = [(t, [2, 0, 3, 1]), (u, [1, 0]), (w, [0])]
    assert [(name, rows) for name, rows, _ in found] == expected
    for _, rows, offsets in found:
        assert offsets == [list(range(1 + index)) for index in rows]


@pytest.mark.parametrize("session_epoch", [0, -1])
def test_a_long_fetch_that_waits_is_answered_when_there_is_enough(stage: Stage, session_epoch: int) -> None:
    stage.topic("t", PARTITIONS)
    stage.append("t", index=1)
    size = len(stage.batch())
    asked = request(*everything(), session_epoch=session_epoch, max_wait_ms=500, min_bytes=4 * size)
    delayed = stage.start(handle_fetch, 1, VERSION, asked)
    assert isinstance(delayed, DelayedResponse)
    for index in (2, 0):
        stage.append("t", index=index)
        stage.wait(5)
        assert not delayed.done, "less than min.bytes"
    stage.append("t", index=1)
    stage.wait(5)
    assert delayed.done
    answer = decoded(VERSION, stage.made(delayed.response))
    assert {index: len(offsets_in(answer.parts["t", index].records)) for index in range(PARTITIONS)} == {
        0: 1, 1: 2, 2: 1, 3: 0,
    }  # fmt: skip


@pytest.mark.parametrize("session_epoch", [0, -1])
def test_a_long_fetch_with_too_little_is_answered_when_time_is_up_or_something_fails(
    stage: Stage, session_epoch: int
) -> None:
    for end in ("time", "failure"):
        stage.topic(end, PARTITIONS)
        asked = request(
            *(part(end, 0, index) for index in range(PARTITIONS)), session_epoch=session_epoch, max_wait_ms=500,
            min_bytes=1 << 20,
        )  # fmt: skip
        delayed = stage.start(handle_fetch, 1, VERSION, asked)
        assert isinstance(delayed, DelayedResponse)
        stage.append(end, index=3)
        stage.wait(5)
        assert not delayed.done
        if end == "time":
            delayed.expire()
        else:
            stage.delete(end)
            stage.wait(5)
        assert delayed.done
        answer = decoded(VERSION, stage.made(delayed.response))
        if end == "time":
            assert offsets_in(answer.parts[end, 3].records) == [0]
        else:
            assert all(seen.error for seen in answer.parts.values())


def test_a_short_fetch_whose_partitions_all_move_while_it_waits_is_answered(stage: Stage) -> None:
    stage.topic("t", PARTITIONS)
    client = Client(stage, VERSION)
    client.fetch(*everything())
    client.fetch()
    delayed = client.wait()
    for index in range(PARTITIONS):
        stage.append("t", index=index)
    stage.wait(5)
    assert delayed.done
    assert len(client.take(delayed.response).parts) == PARTITIONS


def test_a_fetch_that_waits_has_read_its_partition_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.topic("t")
    reads: list[Any] = []
    read = PartitionReader.read
    monkeypatch.setattr(PartitionReader, "read", lambda r, *arguments: reads.append(arguments) or read(r, *arguments))
    delayed = stage.start(handle_fetch, 1, VERSION, request(part("t", 0), max_wait_ms=500))
    assert isinstance(delayed, DelayedResponse)
    assert len(reads) == 1
    stage.append("t")
    stage.wait(5)
    assert delayed.done


def test_no_partition_starves_while_all_of_them_grow(stage: Stage) -> None:
    """An answer tells of those, too, whose turn is to come: they keep their place before those that had theirs."""
    stage.topic("t", PARTITIONS)
    client = Client(stage, VERSION, max_bytes=1)
    positions, order = [0] * PARTITIONS, []
    named = everything()
    for _ in range(5 * PARTITIONS):
        for index in range(PARTITIONS):
            stage.append("t", size=1000, index=index)
        ((index, seen),) = [(key[1], seen) for key, seen in client.fetch(*named).parts.items() if seen.records]
        order.append(index)
        positions[index] = offsets_in(seen.records)[-1] + 1
        named = [part("t", positions[index], index)]
    assert order == [*range(PARTITIONS)] * 5
