"""The fleet under a running batch: coordinator, leaders, controller, ZooKeeper, disks."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable

from tests.spark.matrix.fleet import SESSION_MS
from tests.spark.matrix.rig import Rig
from tests.spark.matrix.scenarios import scenario
from tests.spark.matrix.sessions import Query
from tests.spark.matrix.together import took_place
from tests.spark.matrix.wire import ANSWER, BEGIN, COMMIT, ENLIST, HOLD, PRODUCE, REQUEST
from tests.support.waiting import eventually

FOREACH = "foreachBatch"
OPTIONS = {"options": {"sink.transaction.timeout.ms": "60000"}}


def _leader(rig: Rig, partition: int) -> int:
    """The broker that leads this partition of the target."""
    look = functools.partial(rig.fleet.leader, rig.target, partition)
    return eventually(look, f"{rig.target}-{partition} has a leader", good=lambda broker: broker > 0)


def _broker_killed_at(
    rig: Rig,
    choose: Callable[[], int],
    api: int,
    side: str,
    skip: int = 0,
    arrives: bool = False,
) -> None:
    """A broker dies while this frame is on its way; the query goes on by itself, or is started again."""
    rig.way = "format" if api == COMMIT else FOREACH
    query = rig.start(**OPTIONS)
    query.started()
    rig.batch_done(0)
    trap = rig.trap(api, side, HOLD, skip=skip)
    rig.note(f"held: {trap.wait()}")
    broker = choose()
    rig.note(rig.once(rig.fleet.kill, broker))
    if arrives:
        trap.release()
    else:
        trap.drop()
    _go_on(rig, query)
    rig.revive()


def _go_on(rig: Rig, query: Query) -> None:
    rig.finish(query, **OPTIONS)
    rig.note(f"the query went through with {len(rig.errors)} restarts")


@scenario()
def coordinator_killed_at_BeginBatch(rig: Rig) -> None:
    """Its successor begins the batch."""
    _broker_killed_at(rig, lambda: rig.fleet.coordinator(rig.sink_id), BEGIN, REQUEST)


@scenario()
def coordinator_killed_after_BeginBatch(rig: Rig) -> None:
    """The batch has begun, the answer is lost."""
    _broker_killed_at(rig, lambda: rig.fleet.coordinator(rig.sink_id), BEGIN, ANSWER)


@scenario()
def coordinator_killed_at_EnlistProducer(rig: Rig) -> None:
    """Tasks get their producers from its successor."""
    _broker_killed_at(rig, lambda: rig.fleet.coordinator(rig.sink_id), ENLIST, REQUEST)


@scenario()
def coordinator_killed_after_EnlistProducer(rig: Rig) -> None:
    """Members are in its log, the answer is lost."""
    _broker_killed_at(rig, lambda: rig.fleet.coordinator(rig.sink_id), ENLIST, ANSWER)


@scenario()
def coordinator_killed_while_tasks_write(rig: Rig) -> None:
    """Leaders ask its successor."""
    _broker_killed_at(rig, lambda: rig.fleet.coordinator(rig.sink_id), PRODUCE, REQUEST, skip=2, arrives=True)


@scenario()
def coordinator_killed_before_CommitBatch(rig: Rig) -> None:
    """Its successor commits a batch that it did not begin."""
    _broker_killed_at(rig, lambda: rig.fleet.coordinator(rig.sink_id), COMMIT, REQUEST)


@scenario()
def coordinator_killed_after_CommitBatch(rig: Rig) -> None:
    """The decision is in the log; its successor writes the markers, and knows what it answers."""
    _broker_killed_at(rig, lambda: rig.fleet.coordinator(rig.sink_id), COMMIT, ANSWER)


@scenario()
def leader_killed_under_a_task(rig: Rig) -> None:
    """Tasks find the new leader and send again what was not acknowledged."""
    _broker_killed_at(rig, lambda: _leader(rig, 0), PRODUCE, REQUEST, skip=4)


@scenario()
def leader_killed_with_rows_unacknowledged(rig: Rig) -> None:
    """The rows are in its log, the answer is lost."""
    _broker_killed_at(rig, lambda: _leader(rig, 1), PRODUCE, ANSWER, skip=4)


@scenario()
def leader_killed_while_markers_are_written(rig: Rig) -> None:
    """The batch is decided, a leader of its rows dies."""
    _broker_killed_at(rig, lambda: _leader(rig, 2), COMMIT, ANSWER, arrives=True)


@scenario()
def follower_killed_under_a_task(rig: Rig) -> None:
    """Two in-sync replicas are enough."""

    def follower() -> int:
        leaders = {_leader(rig, number) for number in range(2)}
        coordinator = rig.fleet.coordinator(rig.sink_id)
        return next((n for n in (1, 2, 3) if n not in leaders | {coordinator}), 3)

    _broker_killed_at(rig, follower, PRODUCE, REQUEST, skip=4, arrives=True)


@scenario()
def controller_killed_while_tasks_write(rig: Rig) -> None:
    """Another broker becomes controller, and elects the leaders."""
    old = rig.fleet.controller()
    _broker_killed_at(rig, lambda: old, PRODUCE, REQUEST, skip=3, arrives=True)
    new = rig.fleet.controller()
    took_place(new != old, "the controller is the same")
    rig.note(f"controller {old} was replaced by {new}")


def _stopped(rig: Rig, choose: Callable[[], int], api: int, seconds: float) -> None:
    """A broker stands still, for longer than its session; then it goes on, believing itself to be what it was."""
    rig.way = FOREACH
    query = rig.start(**OPTIONS)
    query.started()
    rig.batch_done(0)
    trap = rig.trap(api, REQUEST, HOLD, skip=1 if api == PRODUCE else 0)
    rig.note(f"held: {trap.wait()}")
    broker = rig.fleet.broker(choose())
    rig.once(lambda _: broker.signal(signal.SIGSTOP), broker.id)
    try:
        trap.release()
        time.sleep(seconds)  # what is tested: a session runs out
    finally:
        rig.once(lambda _: broker.signal(signal.SIGCONT), broker.id)
    rig.note(f"broker {broker.id} was stopped for {seconds:.0f} s")
    _go_on(rig, query)
    rig.revive()


@scenario()
def coordinator_stopped_at_CommitBatch(rig: Rig) -> None:
    """It wakes up with a CommitBatch in its hands, and is coordinator no more."""
    _stopped(rig, lambda: rig.fleet.coordinator(rig.sink_id), COMMIT, SESSION_MS / 1000 * 2)


@scenario()
def leader_stopped_under_a_task(rig: Rig) -> None:
    """It wakes up with rows in its hands, and leads no more."""
    _stopped(rig, lambda: _leader(rig, 0), PRODUCE, SESSION_MS / 1000 * 2)


@scenario()
def ZooKeeper_majority_lost(rig: Rig) -> None:
    """Two of three nodes are killed while tasks write, and come back after two sessions."""
    rig.way = FOREACH
    query = rig.start(**OPTIONS)
    query.started()
    rig.batch_done(0)
    trap = rig.trap(PRODUCE, REQUEST, HOLD, skip=3)
    rig.note(f"held: {trap.wait()}")
    one, two, three = rig.fleet.zookeeper.nodes
    rig.once(lambda _: (one.kill(), two.kill()))
    try:
        eventually(lambda: not three.serving(), "ZooKeeper does not serve", 30)
        rig.note("two of three ZooKeeper nodes killed, the third serves no client")
        trap.release()
        time.sleep(SESSION_MS / 1000 * 2)  # what is tested: sessions run out
    finally:
        rig.once(lambda _: rig.fleet.start_again(one, two))
    for node in rig.fleet.zookeeper.nodes:
        node.wait_serving(60)
    _go_on(rig, query)
    rig.revive()


@scenario()
def all_brokers_killed_under_a_batch(rig: Rig) -> None:
    """Everything is in the logs, or was not acknowledged."""
    query = rig.start(**OPTIONS)
    query.started()
    rig.batch_done(1)
    trap = rig.trap(PRODUCE, REQUEST, HOLD, skip=5)
    rig.note(f"held: {trap.wait()}")
    rig.note(rig.once(lambda _: ", ".join(rig.fleet.kill(number) for number in (1, 2, 3))))
    trap.drop()
    rig.revive()
    _go_on(rig, query)


@scenario()
def disk_of_a_leader_full(rig: Rig) -> None:
    """No space for a while, under a batch."""
    rig.way = FOREACH
    query = rig.start(**OPTIONS)
    query.started()
    rig.batch_done(0)
    trap = rig.trap(PRODUCE, REQUEST, HOLD, skip=1)
    rig.note(f"held: {trap.wait()}")
    broker = rig.fleet.broker(_leader(rig, 0))
    took = rig.once(lambda _: broker.fill_disk(), broker.id)
    assert took > 0
    rig.note(f"the disk of broker {broker.id} is full: {took} bytes")
    try:
        trap.release()
        time.sleep(4)  # what is tested: writes fail meanwhile
    finally:
        rig.once(lambda _: broker.free_disk(), broker.id)
    _go_on(rig, query)
    rig.revive()


@scenario()
def disk_of_the_coordinator_full(rig: Rig) -> None:
    """No space for the sink's record, at CommitBatch."""
    query = rig.start(**OPTIONS)
    query.started()
    rig.batch_done(0)
    trap = rig.trap(COMMIT, REQUEST, HOLD)
    rig.note(f"held: {trap.wait()}")
    broker = rig.fleet.broker(rig.fleet.coordinator(rig.sink_id))
    took = rig.once(lambda _: broker.fill_disk(), broker.id)
    rig.note(f"the disk of broker {broker.id} is full: {took} bytes")
    try:
        trap.release()
        time.sleep(3)  # what is tested: writes fail meanwhile
    finally:
        rig.once(lambda _: broker.free_disk(), broker.id)
    _go_on(rig, query)
    rig.revive()
