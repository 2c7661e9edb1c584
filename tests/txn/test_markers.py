"""Which marker goes where, and when a transaction's markers are all written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetlog.txn.commands import WriteMarkers
from fleetlog.txn.markers import Fate, Gone, JobId, Markers, Senders, SentBy, fate
from fleetlog.wire.errors import ErrorCode as E
from fleetlog.wire.types import TopicPartition

A, B, C = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)
LEADERS = {A: 1, B: 2, C: 1}


def effect(name: str, *partitions: TopicPartition, commit: bool = True, version: int = 0) -> WriteMarkers:
    return WriteMarkers(name, 7, 3, commit, 5, partitions, version)


def job(name: str, shard: int = 0) -> JobId:
    return JobId(shard, 5, name, 7, 3)


def ok(markers: Markers, broker: int, plan: dict) -> None:
    markers.answered(broker, {(entry.job, tp): E.NONE for entry in plan[broker] for tp in entry.partitions})


def test_one_request_per_leader_and_done_when_all_are_written() -> None:
    markers = Markers()
    markers.add(0, effect("x", A, B, C))
    plan = markers.plan(LEADERS.get)
    assert {broker: [entry.partitions for entry in entries] for broker, entries in plan.items()} == {
        1: [(A, C)],
        2: [(B,)],
    }
    assert markers.plan(LEADERS.get) == {}, "all is under way"
    ok(markers, 1, plan)
    assert markers.finished() == []
    ok(markers, 2, plan)
    assert [found.id for found in markers.finished()] == [job("x")]
    assert markers.finished() == []
    assert len(markers) == 0


def test_later_transactions_share_the_next_request_of_a_busy_broker() -> None:
    markers = Markers()
    markers.add(0, effect("x", A))
    first = markers.plan(LEADERS.get)
    markers.add(0, effect("y", A, B))
    markers.add(0, effect("z", C))
    second = markers.plan(LEADERS.get)
    assert list(second) == [2]
    ok(markers, 1, first)
    third = markers.plan(LEADERS.get)
    assert [entry.job.transactional_id for entry in third[1]] == ["y", "z"]


def test_adding_the_same_end_twice_changes_nothing() -> None:
    markers = Markers()
    assert markers.add(0, effect("x", A)) == markers.add(0, effect("x", A))
    assert len(markers.plan(LEADERS.get)[1]) == 1


def test_no_partitions_no_markers() -> None:
    markers = Markers()
    markers.add(0, effect("x"))
    assert markers.plan(LEADERS.get) == {}
    assert [found.id for found in markers.finished()] == [job("x")]


def test_what_failed_waits_for_a_wake() -> None:
    markers = Markers()
    markers.add(0, effect("x", A, C))
    plan = markers.plan(LEADERS.get)
    markers.answered(1, {(job("x"), A): E.NONE, (job("x"), C): E.NOT_LEADER_OR_FOLLOWER})
    assert markers.delayed
    assert markers.plan(LEADERS.get) == {}
    markers.wake()
    plan = markers.plan({**LEADERS, C: 3}.get)
    assert {broker: entries[0].partitions for broker, entries in plan.items()} == {3: (C,)}
    markers.answered(3, {})
    assert markers.finished() == []
    markers.wake()
    ok(markers, 3, markers.plan({**LEADERS, C: 3}.get))
    assert len(markers.finished()) == 1


def test_a_refusing_leader_is_not_asked_again_while_another_broker_is_busy() -> None:
    markers = Markers()
    markers.add(0, effect("w", B))
    busy = markers.plan(LEADERS.get)
    markers.add(0, effect("x", A, B))
    assert list(markers.plan(LEADERS.get)) == [1]
    markers.answered(1, {(job("x"), A): E.NOT_LEADER_OR_FOLLOWER})
    assert markers.plan(LEADERS.get) == {}
    ok(markers, 2, busy)
    assert {broker: entries[0].partitions for broker, entries in markers.plan(LEADERS.get).items()} == {2: (B,)}
    markers.wake()
    assert {broker: entries[0].partitions for broker, entries in markers.plan(LEADERS.get).items()} == {1: (A,)}


def test_a_partition_without_leader_waits_and_one_that_is_gone_does_not() -> None:
    markers = Markers()
    markers.add(0, effect("x", A, B, C))
    plan = markers.plan(lambda tp: {A: None, B: Gone.GONE, C: 1}[tp])
    assert list(plan) == [1]
    ok(markers, 1, plan)
    assert markers.finished() == []
    markers.wake()
    ok(markers, 4, markers.plan(lambda tp: 4))
    assert len(markers.finished()) == 1


def test_a_moved_shards_jobs_are_dropped_with_late_answers() -> None:
    markers = Markers()
    markers.add(0, effect("x", A))
    markers.add(1, effect("y", A))
    plan = markers.plan(LEADERS.get)
    markers.drop_shard(0)
    ok(markers, 1, plan)
    assert [found.id.transactional_id for found in markers.finished()] == ["y"]


def test_what_a_broker_sent_before_is_not_admitted_behind_what_it_sent_later() -> None:
    present = {2: 5, 3: 1}
    senders = Senders(present.get)
    assert senders.admits(SentBy(2, 5, 7))
    assert senders.admits(SentBy(2, 5, 7)), "each run of a request asks"
    assert senders.admits(SentBy(2, 5, 9))
    assert not senders.admits(SentBy(2, 5, 8))
    assert senders.admits(SentBy(3, 1, 0)), "another broker counts for itself"
    assert senders.admits(SentBy(2, 5, 9))


def test_only_a_brokers_present_registration_is_admitted() -> None:
    present = {2: 5}
    senders = Senders(present.get)
    assert senders.admits(SentBy(2, 5, 7))
    assert not senders.admits(SentBy(4, 1, 0)), "else any number of ids would be remembered"
    assert not senders.admits(SentBy(2, 6, 0)), "not known yet"
    present[2] = 6
    assert not senders.admits(SentBy(2, 5, 8)), "of the process before"
    assert senders.admits(SentBy(2, 6, 0)), "which counts from the start"


def test_the_error_of_a_marker_decides_its_fate() -> None:
    assert fate(E.NONE) is Fate.WRITTEN
    assert fate(E.INVALID_PRODUCER_EPOCH) is Fate.WRITTEN
    assert fate(E.TRANSACTION_COORDINATOR_FENCED) is Fate.ABANDON
    for error in (E.UNKNOWN_TOPIC_OR_PARTITION, E.NOT_LEADER_OR_FOLLOWER, E.COORDINATOR_LOAD_IN_PROGRESS,
                  E.NOT_ENOUGH_REPLICAS, E.KAFKA_STORAGE_ERROR, E.UNKNOWN_SERVER_ERROR, E.CORRUPT_MESSAGE):  # fmt: skip
        assert fate(error) is Fate.RETRY


def test_a_fenced_coordinator_stops() -> None:
    markers = Markers()
    markers.add(0, effect("x", A, B, C))
    plan = markers.plan(LEADERS.get)
    markers.answered(1, {(job("x"), A): E.TRANSACTION_COORDINATOR_FENCED, (job("x"), C): E.NOT_LEADER_OR_FOLLOWER})
    ok(markers, 2, plan)
    markers.wake()
    assert markers.plan(LEADERS.get) == {}
    assert markers.finished() == []
    assert len(markers) == 0


PARTITIONS = [TopicPartition("t", i) for i in range(5)]


@given(
    st.lists(st.lists(st.sampled_from(PARTITIONS), unique=True, max_size=5), max_size=6),
    st.lists(
        st.tuples(st.sampled_from(["plan", "answer", "lose", "wake"]), st.integers(0, 2), st.randoms()), max_size=40
    ),
)
def test_every_job_finishes_once_with_every_marker_written(jobs: list, steps: list) -> None:
    markers = Markers()
    written: set[tuple[JobId, TopicPartition]] = set()
    finished: list[JobId] = []
    under_way: dict[int, tuple] = {}
    for number, partitions in enumerate(jobs):
        markers.add(number % 2, effect(f"id-{number}", *partitions))

    def leader(tp: TopicPartition) -> int | None:
        return tp.partition % 3

    def step(kind: str, broker: int, random: object) -> None:
        if kind == "plan":
            for target, entries in markers.plan(leader).items():
                assert target not in under_way, "one request per broker at a time"
                under_way[target] = entries
        elif kind in ("answer", "lose") and broker in under_way:
            places = [(entry.job, tp) for entry in under_way.pop(broker) for tp in entry.partitions]
            errors = {
                place: E.NONE if random is None or random.random() < 0.7 else E.NOT_ENOUGH_REPLICAS for place in places
            }
            written.update(place for place, error in errors.items() if error is E.NONE and kind == "answer")
            markers.answered(broker, errors if kind == "answer" else {})
        elif kind == "wake":
            markers.wake()
        for job in markers.finished():
            finished.append(job.id)
            assert {(job.id, tp) for tp in job.effect.partitions} <= written

    for kind, broker, random in steps:
        step(kind, broker, random)
    for _ in range(10):
        step("wake", 0, None)
        step("plan", 0, None)
        for broker in range(3):
            step("answer", broker, None)
    assert len(finished) == len(jobs)
    assert len(set(finished)) == len(jobs)
