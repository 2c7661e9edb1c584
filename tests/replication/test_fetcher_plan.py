"""Fetch requests and the handling of responses, step by step and in random histories."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.metrics.exposition import LONG_SLICE
from fleetlog.brokers.model import TopicPartition
from fleetlog.brokers.replication import fetch_plan
from fleetlog.brokers.replication.fetch_plan import LONGEST_PAUSE_MS, MOST_NAMED, Counts, FetchPlan, Limits, Request
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import FetchAnswer, decode_fetch, encode_fetch_request
from tests.support.bytecodes import Bytecodes, in_steps
from tests.support.small_leader import SmallFollower, SmallLeader, SmallLog, state_of, topic_id

PAUSE = 200


class Bench:
    """One plan and its leader; the time is a number."""

    def __init__(self, throttle: Any = None) -> None:
        self.leader = SmallLeader()
        self.counts = Counts()
        self.plan = FetchPlan(2, 1, Limits(1000, PAUSE), self.counts, throttle)
        self.now = 0
        self.broker_epoch = 7

    def follow(self, name: str = "t", partition: int = 0, records: list[int] | None = None) -> SmallFollower:
        follower = SmallFollower(name, partition)
        self.leader.lead(follower, records)
        self.plan.follow(follower)
        return follower

    def request(self) -> Request | None:
        return self.plan.next_request(self.broker_epoch, self.now)

    def step(self) -> Request | None:
        """One fetch and all that follows from its answer."""
        request = self.request()
        if request is None:
            return None
        answer = self.leader.fetch(request)
        if self.plan.answered(answer) is ErrorCode.NONE:
            for part in answer.parts:
                self.plan.apply(part, self.now, 1_000_000 + self.now)
            for tp, _ in self.plan.questions():
                led = self.leader.led.get((topic_id(tp.topic), tp.partition))
                if led is None or led.error is not ErrorCode.NONE:
                    self.plan.range_failed(tp, ErrorCode.NOT_LEADER_OR_FOLLOWER, self.now)
                else:
                    self.plan.range_found(tp, led.log.log_start_offset, led.log.log_end_offset, self.now)
        return request

    def name_all(self) -> None:
        """Fetch until nothing more is to be named or forgotten."""
        while self.step().more:  # type: ignore[union-attr]
            pass

    def lead_anew(self, follower: SmallFollower) -> None:
        """The leader begins another epoch, and the follower hears of it."""
        follower.lead_by(1, 1)
        self.led(follower).epoch = 1
        self.plan.follow(follower)

    def led(self, follower: SmallFollower) -> Any:
        return self.leader.led[follower.topic_id, follower.tp.partition]


def names(request: Request | None) -> list[int]:
    assert request is not None
    return [part.partition for part in request.parts]


def test_nothing_followed_nothing_asked() -> None:
    bench = Bench()
    assert bench.request() is None
    assert bench.plan.next_due_ms() is None


def test_steady_state_names_only_what_moved() -> None:
    bench = Bench()
    followers = [bench.follow(partition=n, records=[0] if n == 1 else []) for n in range(3)]
    first = bench.step()
    assert names(first) == [0, 1, 2]
    assert (first.session_id, first.session_epoch) == (0, 0)  # type: ignore[union-attr]
    second = bench.step()
    assert names(second) == [1]
    assert (second.session_id, second.session_epoch) == (1, 1)  # type: ignore[union-attr]
    for epoch in range(2, 5):
        idle = bench.step()
        assert names(idle) == []
        assert idle.session_epoch == epoch  # type: ignore[union-attr]
    bench.led(followers[2]).log.records.append(0)
    assert names(bench.step()) == []
    assert names(bench.step()) == [2]
    assert followers[2].log.records == [0]
    assert (bench.counts.records, bench.counts.errors) == (2, 0)


def test_a_moved_watermark_alone_names_nothing() -> None:
    bench = Bench()
    follower = bench.follow(records=[0, 0])
    bench.led(follower).log.high_watermark = 0
    bench.step()
    bench.step()
    assert follower.log.high_watermark == 0
    bench.led(follower).log.high_watermark = 2
    bench.step()
    assert follower.log.high_watermark == 2
    assert names(bench.step()) == []


def test_a_moved_log_start_is_sent_to_the_leader() -> None:
    bench = Bench()
    follower = bench.follow(records=[0, 0, 0])
    bench.step()
    bench.step()
    bench.led(follower).log.drop_before(2)
    bench.step()
    assert follower.log.log_start_offset == 2
    told = bench.step()
    assert told is not None
    assert [part.log_start_offset for part in told.parts] == [2]


def test_followed_and_unfollowed_while_the_session_lasts() -> None:
    bench = Bench()
    bench.follow(partition=0)
    bench.step()
    bench.follow(partition=1)
    assert names(bench.step()) == [1]
    bench.plan.unfollow((topic_id("t"), 0))
    request = bench.step()
    assert request is not None
    assert request.forgotten == [(topic_id("t"), [0])]
    assert list(bench.leader.cached) == [(topic_id("t"), 1)]
    bench.plan.unfollow((topic_id("t"), 5))  # of no leader


@pytest.mark.parametrize("topics", [1, 100_000])
def test_a_hundred_thousand_partitions_are_named_in_portions(topics: int) -> None:
    bench = Bench()
    per_topic = 100_000 // topics
    followers = [bench.follow(f"t{number}", partition) for number in range(topics) for partition in range(per_topic)]
    named = 0
    while named < len(followers):
        request = bench.request()
        assert request is not None
        body = encode_fetch_request(
            18, replica_id=2, replica_epoch=7, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20,
            session_id=request.session_id, session_epoch=request.session_epoch, parts=request.parts, forgotten=[],
        )  # fmt: skip
        assert len(decode_fetch(18, memoryview(body)).parts) == len(request.parts), "the leader can read it"
        assert 0 < len(request.parts) <= MOST_NAMED
        named += len(request.parts)
        assert request.more == (named < len(followers)), "the answer must not wait while there is more to name"
        bench.plan.answered(FetchAnswer(0, 0, 1, []))
    idle = bench.request()
    assert idle is not None
    assert (idle.parts, idle.more) == ([], False)


@pytest.fixture
def two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_plan, "MOST_NAMED", 2)


@pytest.mark.usefixtures("two_at_a_time")
def test_portions_reach_every_partition_and_the_session_holds_them_all() -> None:
    bench = Bench()
    followers = [bench.follow(partition=number, records=[0]) for number in range(5)]
    first = bench.step()
    assert (names(first), first.more, first.session_epoch) == ([0, 1], True, 0)  # type: ignore[union-attr]
    second = bench.step()
    assert (names(second), second.more, second.session_epoch) == ([2, 3], True, 1)  # type: ignore[union-attr]
    third = bench.step()
    assert (names(third), third.more) == ([4, 0], True)  # type: ignore[union-attr]
    bench.name_all()
    assert [follower.log.records for follower in followers] == [[0]] * 5
    assert len(bench.leader.cached) == 5


@pytest.mark.usefixtures("two_at_a_time")
def test_what_is_forgotten_goes_in_portions_too() -> None:
    bench = Bench()
    followers = [bench.follow(partition=number) for number in range(5)]
    bench.name_all()
    for number in range(1, 5):
        bench.led(followers[number]).error = ErrorCode.KAFKA_STORAGE_ERROR
    bench.step()
    bench.follow(partition=5)
    said = [bench.step() for _ in range(3)]
    assert [r.forgotten for r in said if r] == [[(topic_id("t"), [1, 2])], [(topic_id("t"), [3, 4])], []]
    assert [(names(r), r.more) for r in said if r] == [([], True), ([], True), ([5], False)]
    assert [partition for _, partition in bench.leader.cached] == [0, 5]


@pytest.mark.usefixtures("two_at_a_time")
def test_a_leader_without_sessions_is_asked_for_every_partition_in_turn() -> None:
    bench = Bench()
    bench.leader.offers_sessions = False
    followers = [bench.follow(partition=number, records=[0]) for number in range(5)]
    said = [bench.step() for _ in range(5)]
    assert [names(request) for request in said] == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]
    assert [request.more for request in said if request] == [True, False, False, False, False], "then it may wait"
    assert [follower.log.records for follower in followers] == [[0]] * 5


def test_unfollowed_and_followed_again_is_named_and_not_forgotten() -> None:
    bench = Bench()
    follower = bench.follow(partition=0)
    bench.follow(partition=1)
    bench.step()
    bench.plan.unfollow((follower.topic_id, 0))
    bench.lead_anew(follower)
    request = bench.step()
    assert request is not None
    assert names(request) == [0]
    assert request.forgotten == []
    assert request.parts[0].current_leader_epoch == 1


@pytest.mark.usefixtures("two_at_a_time")
@pytest.mark.parametrize("how", ["unfollowed", "led in another epoch"])
def test_more_than_one_request_can_correct_begins_a_new_session(how: str) -> None:
    """Else the next fetch would prove to the leader that it is still followed in the rest."""
    bench = Bench()
    followers = [bench.follow(partition=number) for number in range(4)]
    for _ in range(3):
        bench.step()
    for number, follower in enumerate(followers[:3]):
        bench.plan.unfollow((follower.topic_id, number))
        if how != "unfollowed":
            bench.lead_anew(follower)
    request = bench.step()
    assert request is not None
    assert request.session_epoch == 0
    assert not request.forgotten
    assert names(request) == ([3] if how == "unfollowed" else [3, 0])
    request = bench.step()
    assert request is not None
    assert request.session_epoch == 1


@pytest.mark.usefixtures("two_at_a_time")
def test_what_is_over_goes_first_and_the_session_goes_on() -> None:
    """However many others are to be named or forgotten."""
    bench = Bench()
    followers = [bench.follow(partition=number) for number in range(6)]
    bench.name_all()
    for number in (0, 1, 2):
        bench.led(followers[number]).error = ErrorCode.KAFKA_STORAGE_ERROR
    bench.step()
    for number in (6, 7, 8):
        bench.follow(partition=number)
    bench.plan.unfollow((topic_id("t"), 3))
    bench.lead_anew(followers[4])
    request = bench.step()
    assert request is not None
    assert (request.session_epoch > 0, request.forgotten, names(request)) == (True, [(topic_id("t"), [3])], [4])
    said = []
    while (request := bench.step()).more:  # type: ignore[union-attr]
        said.append(request)
    assert all(one is not None and one.session_epoch > 0 for one in said)
    assert sorted(partition for _, partition in bench.leader.cached) == [4, 5, 6, 7, 8]


def test_without_partitions_the_next_session_is_new_and_ends_the_old_one() -> None:
    bench = Bench()
    follower = bench.follow()
    bench.step()
    bench.plan.unfollow((follower.topic_id, 0))
    assert bench.request() is None
    bench.follow(partition=1)
    request = bench.step()
    assert request is not None
    assert (request.session_id, request.session_epoch) == (1, 0)
    assert bench.leader.session_id == 2


def test_an_answer_from_before_a_new_leader_epoch_does_nothing() -> None:
    bench = Bench()
    follower = bench.follow(records=[0, 0])
    request = bench.request()
    assert request is not None
    answer = bench.leader.fetch(request)
    follower.lead_by(1, 1)
    bench.plan.follow(follower)  # while the answer was under way
    bench.plan.answered(answer)
    for part in answer.parts:
        bench.plan.apply(part, 0, 0)
    assert follower.calls == []
    assert follower.log.records == []
    bench.led(follower).epoch = 1
    again = bench.step()
    assert again is not None
    assert [part.current_leader_epoch for part in again.parts] == [1]
    assert follower.log.records == [0, 0]


def test_an_answer_for_another_position_or_epoch_does_nothing() -> None:
    bench = Bench()
    follower = bench.follow(records=[0, 0])
    for change in (lambda: follower.log.records.append(0), lambda: setattr(follower, "leader_epoch", 1)):
        request = bench.request()
        assert request is not None
        answer = bench.leader.fetch(request)
        change()
        bench.plan.answered(answer)
        for part in answer.parts:
            bench.plan.apply(part, 0, 0)
        assert follower.calls == []


def test_a_request_names_the_high_watermark_that_is_known() -> None:
    """The leader assumes that its response was applied. If it was not, the next request must show it (KIP-1166)."""
    bench = Bench()
    follower = bench.follow(records=[0, 0])
    bench.step()
    bench.step()
    bench.led(follower).log.high_watermark = 2
    follower.log.high_watermark = 1
    request = bench.request()
    assert request is not None
    answer = bench.leader.fetch(request)
    bench.plan.follow(follower)  # while the answer was under way
    bench.plan.answered(answer)
    for part in answer.parts:
        bench.plan.apply(part, 0, 0)
    assert follower.log.high_watermark == 1
    again = bench.request()
    assert again is not None
    assert [(part.fetch_offset, part.high_watermark) for part in again.parts] == [(2, 1)]


def test_an_answer_for_what_was_unfollowed_does_nothing() -> None:
    bench = Bench()
    follower = bench.follow(records=[0])
    request = bench.request()
    assert request is not None
    answer = bench.leader.fetch(request)
    bench.plan.unfollow((follower.topic_id, 0))
    bench.plan.answered(answer)
    for part in answer.parts:
        bench.plan.apply(part, 0, 0)
    assert follower.calls == []


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    ],
)
def test_retries_for_metadata_come_soon_and_then_at_a_steady_pace(error: ErrorCode) -> None:
    bench = Bench()
    follower = bench.follow(partition=0, records=[0])
    other = bench.follow(partition=1)
    bench.led(follower).error = error
    bench.step()
    pauses = []
    for _ in range(7):
        gone = bench.step()
        assert gone is not None
        assert names(gone) == []
        assert (topic_id("t"), 0) not in bench.leader.cached, "the leader must not count on it"
        due_ms = bench.plan.next_due_ms()
        assert due_ms is not None
        pauses.append(due_ms - bench.now)
        bench.now = due_ms
        assert names(bench.step()) == [0]
    assert pauses == [13, 26, 52, 104, PAUSE, PAUSE, PAUSE]
    bench.led(follower).error = ErrorCode.NONE
    bench.now += PAUSE
    bench.led(other).log.records.append(0)
    bench.step()
    assert follower.log.records == other.log.records == [0]
    assert bench.plan.next_due_ms() is None


def test_news_end_a_pause() -> None:
    bench = Bench()
    follower = bench.follow(records=[0])
    bench.led(follower).epoch = 1
    bench.step()
    assert bench.request() is None
    follower.lead_by(1, 1)
    bench.plan.follow(follower)
    bench.step()
    assert follower.log.records == [0]
    bench.now += PAUSE
    assert names(bench.step()) == [0], "its new position, and not once more for the pause that is over"
    assert names(bench.step()) == []


def test_all_pausing_nothing_asked_until_the_first_is_due() -> None:
    bench = Bench()
    for number in range(3):
        bench.led(bench.follow(partition=number)).error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.step()
    assert bench.request() is None
    assert bench.plan.next_due_ms() == 13
    bench.now = 13
    request = bench.request()
    assert request is not None
    assert names(request) == [0, 1, 2]
    assert request.session_epoch == 0


def test_damage_is_loud_and_never_appended(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    follower = bench.follow("orders", 3, records=[0, 0])
    healthy = bench.follow("orders", 4, records=[0])
    follower.log.records.append(0)
    bench.led(follower).damaged = True
    waits = []
    with caplog.at_level(logging.ERROR):
        for _ in range(9):
            bench.step()
            due = bench.plan.next_due_ms()
            assert due is not None
            waits.append(due - bench.now)
            bench.now = due
    assert follower.log.records == [0]
    assert waits[:3] == [PAUSE, 2 * PAUSE, 4 * PAUSE]
    assert waits[-1] == LONGEST_PAUSE_MS
    said = caplog.records[0].getMessage()
    assert "orders-3" in said
    assert "leader 1" in said
    assert "offset 1" in said
    assert bench.counts.corrupt == 9
    assert healthy.log.records == [0]
    bench.led(follower).damaged = False
    bench.step()
    assert follower.log.records == [0, 0]
    bench.led(follower).damaged = True
    bench.led(follower).log.records.append(0)
    bench.step()
    assert bench.plan.next_due_ms() == bench.now + PAUSE, "success begins the pauses anew"


def test_a_full_disk_pauses_and_a_broken_one_takes_only_its_partition_out() -> None:
    bench = Bench()
    follower, other = bench.follow(partition=0, records=[0]), bench.follow(partition=1, records=[0, 0])
    follower.fails_with = ErrorCode.KAFKA_STORAGE_ERROR
    bench.step()
    assert bench.plan.next_due_ms() == PAUSE
    bench.now = PAUSE
    follower.log.offline = True
    bench.step()
    assert bench.plan.next_due_ms() is None
    for _ in range(3):
        bench.now += LONGEST_PAUSE_MS
        assert 0 not in names(bench.step())
    assert list(bench.leader.cached) == [(topic_id("t"), 1)]
    assert other.log.records == [0, 0]
    follower.fails_with, follower.log.offline = ErrorCode.NONE, False
    bench.plan.follow(follower)
    bench.step()
    assert follower.log.records == [0]


def test_our_own_mistake_stops_one_partition(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    follower, other = bench.follow(partition=0, records=[0]), bench.follow(partition=1, records=[0])
    follower.replicate = None  # type: ignore[assignment,method-assign]
    bench.step()
    assert "t-0" in caplog.text
    assert other.log.records == [0]
    assert 0 not in names(bench.step())


def test_divergence_truncates_and_continues_from_there() -> None:
    bench = Bench()
    follower = bench.follow(records=[0, 0, 2, 2])
    follower.log.records[:] = [0, 0, 0, 1]
    for _ in range(5):
        bench.step()
    assert follower.log.records == [0, 0, 2, 2]
    assert bench.counts.truncations > 0


def test_divergence_that_changes_nothing_pauses() -> None:
    bench = Bench()
    follower = bench.follow(records=[0, 2])
    follower.log.records[:] = [0, 1]
    follower.diverged = lambda *_: ErrorCode.NONE  # type: ignore[method-assign,assignment]
    bench.step()
    assert bench.request() is None
    assert bench.plan.next_due_ms() == PAUSE


def test_a_position_before_the_leaders_log_starts_over() -> None:
    bench = Bench()
    follower = bench.follow(records=[0] * 10)
    bench.led(follower).log.drop_before(6)
    for _ in range(4):
        bench.step()
    assert follower.log == SmallLog([0] * 4, 6, 10)


def test_a_position_behind_the_leaders_log_is_cut_back() -> None:
    bench = Bench()
    follower = bench.follow(records=[])
    follower.log.records[:] = [0, 0]
    follower.fetch_position = lambda: (follower.log.log_end_offset, -1, 0)  # type: ignore[method-assign]
    bench.step()
    assert follower.log.records == []


def test_an_unknown_range_pauses() -> None:
    bench = Bench()
    follower = bench.follow(records=[0] * 10)
    bench.led(follower).log.drop_before(6)
    request = bench.request()
    assert request is not None
    answer = bench.leader.fetch(request)
    bench.plan.answered(answer)
    for part in answer.parts:
        bench.plan.apply(part, 0, 0)
    assert bench.plan.questions() == [(TopicPartition("t", 0), 0)]
    bench.plan.range_failed(TopicPartition("t", 0), ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert bench.plan.questions() == []
    assert bench.plan.next_due_ms() == 13
    assert follower.calls == []


def test_a_range_found_after_the_partition_was_unfollowed_does_nothing() -> None:
    bench = Bench()
    follower = bench.follow(records=[0] * 10)
    bench.led(follower).log.drop_before(6)
    request = bench.request()
    assert request is not None
    answer = bench.leader.fetch(request)
    bench.plan.answered(answer)
    for part in answer.parts:
        bench.plan.apply(part, 0, 0)
    bench.plan.follow(follower)
    bench.plan.range_found(TopicPartition("t", 0), 6, 10, 0)
    bench.plan.range_failed(TopicPartition("t", 0), ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert follower.calls == []
    assert bench.plan.questions() == []
    assert bench.plan.next_due_ms() is None


def test_a_lost_session_is_opened_anew_with_all_partitions() -> None:
    bench = Bench()
    for number in range(3):
        bench.follow(partition=number)
    bench.step()
    bench.leader.evict()
    bench.step()
    request = bench.step()
    assert request is not None
    assert names(request) == [0, 1, 2]
    assert (request.session_id, request.session_epoch) == (0, 0)
    bench.leader.session_epoch = 99
    bench.step()
    request = bench.step()
    assert request is not None
    assert (request.session_id, request.session_epoch) == (2, 0), "the old session is closed by the new one"
    assert names(bench.step()) == []


def test_a_lost_answer_begins_a_new_session() -> None:
    bench = Bench()
    follower = bench.follow(records=[0])
    bench.step()
    request = bench.request()
    assert request is not None
    bench.leader.fetch(request)
    bench.plan.failed()
    request = bench.step()
    assert request is not None
    assert (request.session_id, request.session_epoch) == (1, 0)
    assert names(request) == [0]
    assert follower.log.records == [0]


def test_a_leader_without_sessions_gets_full_requests() -> None:
    bench = Bench()
    bench.leader.offers_sessions = False
    followers = [bench.follow(partition=n, records=[0] * 4) for n in range(2)]
    for _ in range(4):
        request = bench.step()
        assert names(request) == [0, 1]
        assert request.session_epoch == 0  # type: ignore[union-attr]
    assert all(follower.log.records == [0] * 4 for follower in followers)


def test_a_refused_request_begins_a_new_session_and_counts_as_an_error() -> None:
    bench = Bench()
    bench.follow()
    bench.step()
    bench.leader.error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    request = bench.request()
    assert request is not None
    assert bench.plan.answered(bench.leader.fetch(request)) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert bench.counts.errors == 1
    bench.leader.error = ErrorCode.NONE
    assert names(bench.step()) == [0]


def test_a_new_registration_begins_a_new_session() -> None:
    bench = Bench()
    bench.follow()
    bench.step()
    assert names(bench.step()) == []
    bench.broker_epoch = 8
    request = bench.step()
    assert request is not None
    assert (request.session_id, request.session_epoch) == (1, 0)
    assert names(request) == [0]


def test_the_session_epoch_wraps() -> None:
    bench = Bench()
    bench.follow()
    bench.step()
    bench.plan._session_epoch = bench.leader.session_epoch = 0x7FFF_FFFF
    bench.step()
    request = bench.step()
    assert request is not None
    assert request.session_epoch == 1
    assert bench.leader.session_epoch == 2


def test_records_without_one_whole_batch_make_room_for_others() -> None:
    bench = Bench()
    follower = bench.follow(records=[0])
    follower.replicate = lambda *_: ErrorCode.NONE  # type: ignore[method-assign,assignment]
    bench.step()
    assert bench.request() is None
    assert bench.plan.next_due_ms() == PAUSE


def test_lag_is_that_of_the_partition_furthest_behind() -> None:
    bench = Bench()
    bench.follow(partition=0, records=[0] * 4)
    bench.follow(partition=1, records=[0] * 10)
    assert max(bench.plan.largest_lags()) == 0
    bench.step()
    assert max(bench.plan.largest_lags()) == 7
    for _ in range(4):
        bench.step()
    assert max(bench.plan.largest_lags()) == 0


def test_lags_of_many_partitions_are_read_in_slices() -> None:
    bench, counter = Bench(), Bytecodes()
    for partition in range(2 * LONG_SLICE + 1):
        bench.follow(partition=partition)
    assert [*in_steps(bench.plan.largest_lags(), counter)] == [0, 0, 0]
    assert max(counter.counted) < 50_000


def test_an_outdated_pause_has_no_effect() -> None:
    bench = Bench()
    follower = bench.follow(records=[0])
    bench.led(follower).error = ErrorCode.UNKNOWN_SERVER_ERROR
    bench.step()
    bench.now = 150
    bench.plan.follow(follower)
    bench.step()
    assert bench.plan.next_due_ms() == 150 + PAUSE
    bench.now = PAUSE
    assert bench.request() is None


def test_a_new_session_has_nothing_to_forget_of_the_old_one() -> None:
    bench = Bench()
    pausing, _ = bench.follow(partition=0), bench.follow(partition=1)
    bench.step()
    bench.led(pausing).error = ErrorCode.UNKNOWN_TOPIC_ID
    bench.step()
    bench.plan.failed()
    bench.step()
    bench.plan.unfollow((pausing.topic_id, 0))
    request = bench.step()
    assert request is not None
    assert request.forgotten == []


def test_a_session_that_the_leader_ended_with_its_answer_is_opened_anew() -> None:
    bench = Bench()
    bench.follow()
    bench.step()
    request = bench.request()
    assert request is not None
    bench.plan.answered(bench.leader.fetch(request)._replace(session_id=0))
    request = bench.step()
    assert names(request) == [0]
    assert (request.session_id, request.session_epoch) == (0, 0)  # type: ignore[union-attr]


def test_of_two_answers_for_one_partition_the_first_counts() -> None:
    bench = Bench()
    follower = bench.follow(records=[0])
    request = bench.request()
    assert request is not None
    answer = bench.leader.fetch(request)
    bench.plan.answered(answer)
    (part,) = answer.parts
    for one in (part._replace(error=ErrorCode.NOT_LEADER_OR_FOLLOWER), part):
        bench.plan.apply(one, 0, 0)
    assert follower.calls == []
    bench.plan.apply(part._replace(partition=9), 0, 0)  # and for one that was never asked for, none


def test_a_broken_disk_ends_truncations_too() -> None:
    bench = Bench()
    follower = bench.follow(records=[0, 2])
    follower.log.records[:] = [0, 1]
    follower.fails_with, follower.log.offline = ErrorCode.KAFKA_STORAGE_ERROR, True
    bench.step()
    assert follower.calls == ["diverged"]
    assert bench.request() is None
    assert bench.plan.next_due_ms() is None


class Brake:
    """A throttle that a test sets by hand."""

    def __init__(self, *throttled: int) -> None:
        self.throttled = throttled
        self.wait = 0
        self.recorded: list[int] = []

    def applies(self, tp: TopicPartition) -> bool:
        return tp.partition in self.throttled

    def record(self, size: int, now_ms: int) -> None:
        self.recorded.append(size)

    def wait_ms(self, now_ms: int) -> int:
        return self.wait


def test_throttled_replicas_outside_the_in_sync_set_wait() -> None:
    brake = Brake(0, 1)
    bench = Bench(brake)
    out, inside, free = (bench.follow(partition=n, records=[0] * 10) for n in range(3))
    out.state = state_of(1, 0, isr=(1,))
    bench.step()
    assert brake.recorded == [36, 36]
    brake.wait = 500
    request = bench.step()
    assert request is not None
    assert names(request) == [1, 2]
    assert request.forgotten == [(topic_id("t"), [0])]
    for _ in range(3):
        bench.step()
    assert (len(out.log.records), len(inside.log.records), len(free.log.records)) == (3, 10, 10)
    bench.now, brake.wait = 500, 0
    assert names(bench.step()) == [0]
    brake.wait, brake.throttled = 500, ()  # the operator lifts it
    for _ in range(3):
        bench.step()
    assert len(out.log.records) == 10


@pytest.mark.usefixtures("two_at_a_time")
def test_what_is_over_goes_before_what_is_held_back() -> None:
    brake = Brake(0, 1, 2)
    bench = Bench(brake)
    followers = [bench.follow(partition=number) for number in range(4)]
    for out in followers[:3]:
        out.state = state_of(1, 0, isr=(1,))
    bench.name_all()
    brake.wait = 500
    bench.lead_anew(followers[3])
    request = bench.step()
    assert request is not None
    assert names(request) == [3]


# ---- random steps ---------------------------------------------------------------------------------------------------


class LiveBroker:
    """What may happen to three partitions and their session; each method is one step on one of them."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.followers = [self.bench.follow(partition=number) for number in range(3)]
        self.followed = {0, 1, 2}

    def led(self, number: int) -> Any:
        return self.bench.led(self.followers[number])

    def append(self, number: int) -> None:
        led = self.led(number)
        led.log.records.append(led.epoch)
        led.log.high_watermark = led.log.log_end_offset

    def fetch(self, _number: int) -> None:
        self.bench.step()

    def lose_answer(self, _number: int) -> None:
        request = self.bench.request()
        if request is not None:
            self.bench.leader.fetch(request)
            self.bench.plan.failed()

    def evict(self, _number: int) -> None:
        self.bench.leader.evict()

    def elect(self, number: int) -> None:
        """The leader leads again, after it lost its tail to the leader of the epoch between."""
        led = self.led(number)
        led.log.cut(max(led.log.log_start_offset, led.log.log_end_offset - number))
        led.epoch += 2
        led.log.records.extend([led.epoch - 1] * number)

    def learn(self, number: int) -> None:
        self.followers[number].lead_by(1, self.led(number).epoch)
        if number in self.followed:
            self.bench.plan.follow(self.followers[number])

    def unfollow(self, number: int) -> None:
        self.followed.discard(number)
        self.bench.plan.unfollow((self.followers[number].topic_id, number))

    def follow(self, number: int) -> None:
        self.followed.add(number)
        self.learn(number)

    def break_(self, number: int) -> None:
        self.led(number).error = ErrorCode.UNKNOWN_SERVER_ERROR

    def heal(self, number: int) -> None:
        self.led(number).error = ErrorCode.NONE

    def damage(self, number: int) -> None:
        self.led(number).damaged = not self.led(number).damaged

    def trim(self, number: int) -> None:
        log = self.led(number).log
        log.drop_before(log.log_start_offset + min(number, len(log.records)))

    def wait(self, _number: int) -> None:
        self.bench.now += PAUSE

    def register(self, _number: int) -> None:
        self.bench.broker_epoch += 1

    def step(self, what: str, number: int) -> None:
        getattr(self, what)(number)
        for follower in self.followers:
            assert follower.log.records == sorted(follower.log.records), "epochs never fall along a log"

    def end(self) -> None:
        """Nothing happens any more: everything must come to rest, equal."""
        for number in range(3):
            self.heal(number)
            self.led(number).damaged = False
            self.follow(number)
        for _ in range(60):
            self.bench.now += LONGEST_PAUSE_MS
            self.bench.step()
        for number, follower in enumerate(self.followers):
            log = self.led(number).log
            assert follower.log.log_end_offset == log.log_end_offset
            common = min(len(log.records), len(follower.log.records))
            assert follower.log.records[-common or len(log.records) :] == log.records[-common or len(log.records) :]
        assert names(self.bench.step()) == [], "idle partitions cost nothing"


STEPS = [*["append", "fetch"] * 3, "lose_answer", "evict", "elect", "learn", "unfollow", "follow", "break_", "heal",
         "damage", "trim", "wait", "register"]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2)), max_size=80))
def test_a_follower_ends_as_its_leader_whatever_happened(steps: list[tuple[str, int]]) -> None:
    live_broker = LiveBroker()
    for what, number in steps:
        live_broker.step(what, number)
    live_broker.end()


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2)), max_size=80))
def test_so_it_does_where_a_request_names_one_partition(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch_plan, "MOST_NAMED", 1)
        live_broker = LiveBroker()
        for what, number in steps:
            live_broker.step(what, number)
        live_broker.end()
