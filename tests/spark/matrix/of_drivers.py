"""Drivers: killed at each step of the protocol, stopped and resumed, two at a time."""

from __future__ import annotations

import time

from tests.spark.matrix.rig import Rig
from tests.spark.matrix.scenarios import DRIVER_KILLED, scenario
from tests.spark.matrix.sessions import Query
from tests.spark.matrix.together import took_place
from tests.spark.matrix.wire import (
    ABORT,
    ANSWER,
    BEGIN,
    COMMIT,
    ENLIST,
    HEARTBEAT,
    HOLD,
    LOSE,
    PRODUCE,
    REQUEST,
    Trap,
)
from tests.support.waiting import eventually

# ---- killed at a step ----------------------------------------------------------------------------------------------


def _killed_at(rig: Rig, api: int, side: str, skip: int = 0, arrives: bool = False, after_batch: int = 0) -> None:
    """The driver dies while this frame is on its way; the frame arrives, or does not. Another driver goes on."""
    rig.way = "foreachBatch" if api in (BEGIN, ENLIST) else "format"
    session = rig.driver()
    query = rig.start(session)
    query.started()
    rig.batch_done(after_batch)
    trap = rig.trap(api, side, HOLD, skip=skip)
    hit = trap.wait()
    rig.note(f"held: {hit}")
    rig.kill(session)
    if arrives:
        trap.release()
        rig.note("the frame went on after the driver's death")
    else:
        trap.drop()
    before = rig.runs
    rig.finish()
    assert rig.runs == before + 1, f"the next driver should have gone through: {rig.errors}"


@scenario(fault=DRIVER_KILLED)
def driver_killed_before_BeginBatch(rig: Rig) -> None:
    """BeginBatch never leaves the machine."""
    _killed_at(rig, BEGIN, REQUEST)


@scenario(fault=DRIVER_KILLED)
def driver_killed_with_BeginBatch_on_its_way(rig: Rig) -> None:
    """BeginBatch arrives when its driver is dead."""
    _killed_at(rig, BEGIN, REQUEST, arrives=True)


@scenario(fault=DRIVER_KILLED)
def driver_killed_after_BeginBatch(rig: Rig) -> None:
    """The batch has begun, the driver never hears of it."""
    _killed_at(rig, BEGIN, ANSWER)


@scenario(fault=DRIVER_KILLED)
def driver_killed_before_EnlistProducer(rig: Rig) -> None:
    """No task has a producer yet."""
    _killed_at(rig, ENLIST, REQUEST)


@scenario(fault=DRIVER_KILLED)
def driver_killed_after_EnlistProducer(rig: Rig) -> None:
    """The batch has members that no driver knows."""
    _killed_at(rig, ENLIST, ANSWER)


@scenario(fault=DRIVER_KILLED)
def driver_killed_while_tasks_write(rig: Rig) -> None:
    """Some rows are in the log."""
    _killed_at(rig, PRODUCE, REQUEST, skip=6)
    took_place(rig.aborted() > 0, "no row of the dead driver is in the log")


@scenario(fault=DRIVER_KILLED)
def driver_killed_while_its_rows_are_on_their_way(rig: Rig) -> None:
    """A Produce arrives when its driver is dead."""
    _killed_at(rig, PRODUCE, REQUEST, skip=6, arrives=True)


@scenario(fault=DRIVER_KILLED)
def driver_killed_while_it_writes_a_small_batch_itself(rig: Rig) -> None:
    """The rows are the driver's own: its member writes, without a task."""
    rig.way = "foreachBatch"
    session = rig.driver()
    small = {"sink.small.batch.rows": "1000"}
    rig.start(session, options=small).started()
    rig.batch_done(0)
    trap = rig.trap(PRODUCE, ANSWER, HOLD)
    hit = trap.wait()
    assert hit.pid == session.pid, f"{hit} is not the driver's own"
    rig.note(f"held: {hit}, the driver itself")
    rig.kill(session)
    trap.drop()
    rig.finish(options=small)
    assert not rig.errors, rig.errors
    took_place(rig.aborted() > 0, "no row of the dead driver is in the log")


@scenario(fault=DRIVER_KILLED)
def driver_killed_when_all_is_written(rig: Rig) -> None:
    """CommitBatch never leaves the machine."""
    _killed_at(rig, COMMIT, REQUEST)
    took_place(rig.aborted() >= 300, "a whole batch should be in the log twice")


@scenario(fault=DRIVER_KILLED)
def driver_killed_with_CommitBatch_on_its_way(rig: Rig) -> None:
    """CommitBatch arrives when its driver is dead: the batch counts, and Spark does not know."""
    _killed_at(rig, COMMIT, REQUEST, arrives=True)
    took_place(rig.aborted() >= 300, "the batch should have been written again, in vain")


@scenario(fault=DRIVER_KILLED)
def driver_killed_after_CommitBatch(rig: Rig) -> None:
    """The batch is committed, the answer does not arrive."""
    _killed_at(rig, COMMIT, ANSWER)
    took_place(rig.aborted() >= 300, "the batch should have been written again, in vain")


@scenario(fault=DRIVER_KILLED)
def driver_killed_between_the_answer_and_Sparks_note(rig: Rig) -> None:
    """CommitBatch is answered, and Spark has not written down yet that the batch is done."""
    session = rig.driver()
    query = rig.start(session, way="foreachBatch", stop_at="committed:2")
    query.stands()
    took_place(not rig.is_done(2), "Spark has noted the batch already")
    fence = rig.fence()
    assert fence is not None
    assert fence.batch_id == 2
    rig.note("batch 2 is in the fence and not in Spark's commits")
    rig.kill(session)
    session = rig.driver()
    query = rig.start(session, way="foreachBatch")
    rig.finish(query)
    stages = [(e["stage"], e["batch"]) for e in session.events if e.get("id") == query.number and e["event"] == "stage"]
    assert stages[0] == ("skipped", 2), stages
    rig.note("the next driver skipped batch 2")


@scenario(fault=DRIVER_KILLED)
def driver_killed_before_AbortBatch(rig: Rig) -> None:
    """A task fails for good, and the driver dies before it has given the batch up."""
    flag = rig.directory / "flag"
    session = rig.driver()
    trap = rig.trap(ABORT, REQUEST, HOLD)
    query = rig.start(session, way="foreachBatch", shape="failing", flag=str(flag), times=4)
    rig.note(f"held: {trap.wait()}")
    assert not query.over()
    rig.kill(session)
    trap.drop()
    rig.finish(way="foreachBatch")


# ---- too late ------------------------------------------------------------------------------------------------------


def _late_in_the_next_ones_batch(rig: Rig, api: int) -> tuple[Trap, Trap, Query]:
    """A driver dies with this request on its way, and the next one has come to its CommitBatch; both are held."""
    session = rig.driver()
    rig.start(session).started()
    rig.batch_done(0)
    late = rig.trap(api, REQUEST, HOLD)
    rig.note(f"held: {late.wait()}")
    rig.kill(session)
    held = rig.trap(COMMIT, REQUEST, HOLD)
    query = rig.start()
    rig.note(f"the next driver has come to: {held.wait()}")
    return late, held, query


@scenario(fault=DRIVER_KILLED)
def BeginBatch_of_a_dead_driver_arrives_in_the_next_ones_batch(rig: Rig) -> None:
    """It locks the living driver out, which must start again."""
    late, held, query = _late_in_the_next_ones_batch(rig, BEGIN)
    late.release()
    time.sleep(0.5)  # the dead driver's request is dealt with; held back, the living one's comes after it
    held.release()
    rig.finish(query)
    assert rig.errors, "the living driver should have been locked out"
    rig.note("the living driver was locked out, and started again")


@scenario(fault=DRIVER_KILLED)
def CommitBatch_of_a_dead_driver_arrives_in_the_next_ones_batch(rig: Rig) -> None:
    """It must not commit anything: a newer driver has begun."""
    late, held, query = _late_in_the_next_ones_batch(rig, COMMIT)
    before = rig.fence()
    late.release()
    time.sleep(0.5)  # time for the wrong thing to happen
    assert rig.fence() == before, "a dead driver's CommitBatch moved the fence"
    held.release()
    rig.finish(query)
    assert not rig.errors


@scenario(fault=DRIVER_KILLED)
def EnlistProducer_of_a_dead_driver_arrives_in_the_next_ones_batch(rig: Rig) -> None:
    """A zombie's task gets no producer."""
    late, held, query = _late_in_the_next_ones_batch(rig, ENLIST)
    late.release()
    held.release()
    rig.finish(query)
    assert not rig.errors


# ---- zombies and twins ---------------------------------------------------------------------------------------------


@scenario()
def zombie_driver_stopped_while_tasks_write(rig: Rig) -> None:
    """SIGSTOP, another driver does all, SIGCONT: the first may do nothing that counts."""
    rig.way = "foreachBatch"
    first = rig.driver()
    zombie = rig.start(first)
    zombie.started()
    rig.batch_done(0)
    trap = rig.trap(PRODUCE, REQUEST, HOLD, skip=4)
    rig.note(f"held: {trap.wait()}")
    rig.stop(first)
    trap.release()
    rig.finish(rig.start(rig.driver(first)))
    rig.resume(first)
    error = zombie.ended()
    assert error, "the zombie believes it has written"
    rig.note("the zombie ended with an error")


@scenario()
def zombie_driver_stopped_before_CommitBatch(rig: Rig) -> None:
    """All is written; another driver commits the batch and the rest; then the zombie sends its CommitBatch."""
    first = rig.driver()
    zombie = rig.start(first, way="foreachBatch", stop_at="written:1")
    zombie.stands()
    rig.stop(first)
    rig.finish(rig.start(rig.driver(first), way="foreachBatch"))
    rig.resume(first)
    commits = rig.count(COMMIT)
    zombie.go()
    error = zombie.ended()
    assert "newer driver" in error or "TaskFenced" in error, error
    assert commits.seen, "the zombie sent no CommitBatch"
    rig.note("the zombie's CommitBatch was refused")


@scenario()
def zombie_driver_stopped_before_BeginBatch(rig: Rig) -> None:
    """The zombie begins a batch that was committed long ago."""
    first = rig.driver()
    zombie = rig.start(first)
    zombie.started()
    rig.batch_done(0)
    trap = rig.trap(BEGIN, REQUEST, HOLD)
    rig.note(f"held: {trap.wait()}")
    rig.stop(first)
    rig.finish(rig.start(rig.driver(first)))
    trap.release()
    rig.resume(first)
    error = zombie.ended()
    rig.note(f"the zombie ended {'with an error' if error else 'in peace'}")


@scenario()
def two_drivers_on_one_checkpoint(rig: Rig) -> None:
    """Both run at once and lock each other out; a supervisor starts again the one that fell.

    The first driver's BeginBatch is held until the second runs: a fast machine ends all batches before that.
    """
    first = rig.driver()
    second = rig.driver(first)
    rig.fill(1800)
    trap = rig.trap(BEGIN, REQUEST, HOLD)
    queries = [rig.start(first)]
    rig.note(f"held: {trap.wait()}")
    begins = rig.count(BEGIN)
    queries.append(rig.start(second))
    queries[1].started()
    trap.release()
    rig.note(f"drivers {first.pid} and {second.pid} run on one checkpoint")
    failures = 0
    for query in queries:
        error = query.ended()
        failures += bool(error)
    rig.note(f"{failures} of 2 were stopped; BeginBatch went by {begins.seen} times")
    assert failures, "two drivers at once, and none was stopped"
    rig.finish(tries=6)


@scenario()
def two_drivers_on_two_checkpoints(rig: Rig) -> None:
    """Two queries with one sinkId: one gets the sink, the other is refused."""
    first = rig.driver()
    second = rig.driver(first)
    other = rig.directory / "another-checkpoint"
    one = rig.start(first)
    one_id = one.started()
    rig.batch_done(0)
    two = rig.start(second, checkpoint=other)
    error = two.ended()
    assert "FenceConflict" in error, error
    rig.note("the second query was refused: FenceConflict")
    assert not (other / "commits" / "0").exists()
    rig.finish(one)
    assert rig.query_id == one_id


@scenario()
def two_drivers_on_two_checkpoints_from_the_start(rig: Rig) -> None:
    """There is no fence yet: the first to commit gets the sink."""
    first = rig.driver()
    second = rig.driver(first)
    other = rig.directory / "another-checkpoint"
    queries = {rig.checkpoint: rig.start(first), other: rig.start(second, checkpoint=other)}
    errors = {place: query.ended() for place, query in queries.items()}
    for place, error in errors.items():
        rig.note(f"{place.name} ended with {error.splitlines()[-1][:120] if error else 'success'}")
    for _ in range(6):
        fence = rig.fence()
        done = {place for place in queries if (place / "commits" / "2").exists()}
        if done:
            break
        for place in queries:
            error = rig.start(checkpoint=place).ended()
            rig.note(f"{place.name}, again: {error.splitlines()[-1][:120] if error else 'success'}")
    assert len(done) == 1, f"complete: {done}, fence {fence}"
    rig.checkpoint = done.pop()
    loser = next(place for place in queries if place != rig.checkpoint)
    error = rig.start(checkpoint=loser).ended()
    assert "FenceConflict" in error, error
    rig.note(f"{loser.name} was refused: FenceConflict")


@scenario()
def driver_silent_past_its_time(rig: Rig) -> None:
    """No heartbeat arrives: the coordinator aborts the batch, and the driver starts again."""
    held = rig.trap(PRODUCE, REQUEST, HOLD, skip=5)
    query = rig.start(options={"sink.transaction.timeout.ms": "3000"})
    rig.note(f"held: {held.wait()}")
    lost = rig.trap(HEARTBEAT, REQUEST, LOSE, times=10_000)
    began = time.monotonic()
    eventually(lambda: len(lost.hits) >= 2 and time.monotonic() - began > 4.5, "heartbeats are lost", 30)
    rig.note(f"{len(lost.hits)} heartbeats were lost in {time.monotonic() - began:.1f} s")
    held.release()
    lost.times = 0
    lost.release()
    rig.finish(query)
    assert rig.errors, "the batch should have been over"
    rig.note("the batch was aborted by its time, and written by the next start")


@scenario()
def slow_driver_kept_alive_by_heartbeats(rig: Rig) -> None:
    """A batch takes longer than its time-out, and goes on."""
    held = rig.trap(PRODUCE, REQUEST, HOLD, skip=5)
    query = rig.start(options={"sink.transaction.timeout.ms": "8000"})
    held.wait()
    beats = rig.count(HEARTBEAT)
    time.sleep(12)  # what is tested: more than the time-out passes
    assert beats.seen >= 2, beats.seen
    rig.note(f"a task stood still for 12 s with a time-out of 8 s; {beats.seen} heartbeats")
    held.release()
    rig.finish(query)
    assert not rig.errors, rig.errors
