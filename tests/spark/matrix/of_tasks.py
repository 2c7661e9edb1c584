"""Tasks and Python workers: killed before, during and after writing, failing, late; and what rows may look like."""

from __future__ import annotations

import os
import signal
import time

from tests.spark.matrix.rig import Rig
from tests.spark.matrix.scenarios import DRIVER_KILLED, scenario
from tests.spark.matrix.sessions import command_line
from tests.spark.matrix.together import took_place
from tests.spark.matrix.wire import ANSWER, BEGIN, COMMIT, ENLIST, HOLD, LOSE, PASS, PRODUCE, REQUEST, Hit
from tests.support.waiting import eventually


def kill_worker(rig: Rig, hit: Hit) -> None:
    """SIGKILL to the Python worker whose frame is held."""
    assert "pyspark.worker" in command_line(hit.pid), (hit, command_line(hit.pid))
    os.kill(hit.pid, signal.SIGKILL)
    rig.note(f"Python worker {hit.pid} killed with SIGKILL, at: {hit}")


def _worker_killed_at(rig: Rig, api: int, side: str, skip: int = 0, arrives: bool = False) -> None:
    rig.way = "foreachBatch" if side == REQUEST else "format"
    query = rig.start()
    query.started()
    rig.batch_done(0)
    trap = rig.trap(api, side, HOLD, skip=skip)
    kill_worker(rig, trap.wait())
    if arrives:
        time.sleep(1.0)  # another attempt is under way meanwhile
        trap.release()
    else:
        trap.drop()
    rig.finish(query)
    assert not rig.errors, f"Spark should have tried the task again: {rig.errors}"


@scenario()
def Python_worker_killed_before_writing(rig: Rig) -> None:
    """It has asked for a producer and never used it."""
    _worker_killed_at(rig, ENLIST, ANSWER)


@scenario()
def Python_worker_killed_while_writing(rig: Rig) -> None:
    """Some of its rows are in the log."""
    _worker_killed_at(rig, PRODUCE, REQUEST, skip=7)


@scenario()
def Python_worker_killed_after_writing(rig: Rig) -> None:
    """All its rows are in the log, and no answer comes."""
    _worker_killed_at(rig, PRODUCE, ANSWER, skip=8)
    took_place(rig.aborted() > 0, "no row of the killed worker is in the log")


@scenario()
def Produce_of_a_killed_worker_arrives_late(rig: Rig) -> None:
    """It arrives while another attempt writes the same rows, in the same batch."""
    _worker_killed_at(rig, PRODUCE, REQUEST, skip=4, arrives=True)


@scenario()
def Produce_of_a_killed_worker_arrives_after_the_batch(rig: Rig) -> None:
    """The batch is over and the next one is being written."""
    query = rig.start()
    query.started()
    rig.batch_done(0)
    late = rig.trap(PRODUCE, REQUEST, HOLD)
    kill_worker(rig, late.wait())
    rig.batch_done(1)
    held = rig.trap(COMMIT, REQUEST, HOLD)
    held.wait()
    rig.note(f"batch 1 is done, the next has come to: {held.hits[0]}")
    late.release()
    time.sleep(0.5)  # time for the wrong thing to happen
    held.release()
    rig.finish(query)


@scenario(fault=DRIVER_KILLED)
def Produce_of_a_killed_driver_arrives_in_the_next_ones_batch(rig: Rig) -> None:
    """Its member was aborted; the next batch uses the same producer ids, with higher epochs."""
    rig.shape |= {"shape": "skewed"}  # all record batches have the same size, as those of a real table often have
    session = rig.driver()
    rig.start(session).started()
    rig.batch_done(1)
    late = rig.trap(PRODUCE, REQUEST, HOLD, times=3)
    late.wait()
    rig.kill(session)
    held = rig.trap(PRODUCE, REQUEST, HOLD, times=100)
    query = rig.start()
    held.wait(count=1)
    rig.note(f"held of the dead driver: {len(late.hits)} Produce; of the next one: {held.hits[0]}")
    late.release()
    time.sleep(1.5)  # the old ones come first
    held.release()
    rig.finish(query)


@scenario()
def Produce_of_a_dead_driver_arrives_when_the_sink_rests(rig: Rig) -> None:
    """Its batch was aborted by the time-out and no other has begun: nothing may be opened that is never closed."""
    session = rig.driver()
    rig.start(session, options={"sink.transaction.timeout.ms": "15000"}).started()
    rig.batch_done(0)
    begins = rig.trap(BEGIN, REQUEST, HOLD)
    begins.wait()
    late = rig.trap(PRODUCE, REQUEST, HOLD, times=3)  # the batch's first: no partition knows their epochs
    begins.release()
    rig.note(f"held: {late.wait()}")
    rig.kill(session)
    eventually(lambda: rig.state() == "CompleteAbort", "the coordinator aborts the dead driver's batch", 120)
    before = rig.written()
    late.release()
    time.sleep(1.5)  # time for the wrong thing to happen
    rig.note(f"{len(late.hits)} arrived when the sink was at {rig.state()}; rows in the log {before}, {rig.written()}")
    rig.finish()


@scenario()
def task_fails_after_writing_and_is_tried_again(rig: Rig) -> None:
    """The query fails behind its last row, once."""
    flag = rig.directory / "flag"
    rig.shape |= {"shape": "failing", "flag": str(flag), "times": 2, "padding": 1500}
    rig.finish()
    failed = len(list(rig.directory.glob("flag-*")))
    assert failed == 2, failed
    took_place(rig.aborted() > 0, "no row of a failed attempt is in the log")
    rig.note(f"{failed} attempts failed; {rig.aborted()} rows of theirs are in the log, aborted")


@scenario()
def task_fails_four_times_and_the_query_starts_again(rig: Rig) -> None:
    """Spark gives up; the batch is aborted and written by the next start."""
    flag = rig.directory / "flag"
    rig.shape |= {"shape": "failing", "flag": str(flag), "times": 4, "padding": 1500}
    rig.finish()
    assert len(rig.errors) == 1, rig.errors
    assert "fails on purpose" in rig.errors[0], rig.errors
    rig.note("four attempts failed, the query stopped and was started again")


# ---- lost answers --------------------------------------------------------------------------------------------------


def _lost(rig: Rig, api: int, side: str, **more: int) -> None:
    trap = rig.trap(api, side, LOSE, **more)
    rig.way = "foreachBatch" if side == REQUEST else "format"
    rig.finish()
    took_place(trap.hits, "nothing was lost")
    rig.note(f"{len(trap.hits)} frames were lost, for instance: {trap.hits[0]}")
    assert not rig.errors, rig.errors


@scenario()
def lost_answers_to_BeginBatch(rig: Rig) -> None:
    """The driver begins again."""
    _lost(rig, BEGIN, ANSWER, times=4, every=2)


@scenario()
def lost_requests_of_BeginBatch(rig: Rig) -> None:
    """The coordinator never sees them."""
    _lost(rig, BEGIN, REQUEST, times=4, every=2)


@scenario()
def lost_answers_to_EnlistProducer(rig: Rig) -> None:
    """The batch gets members that no task uses."""
    _lost(rig, ENLIST, ANSWER, times=8, every=2)


@scenario()
def lost_answers_to_CommitBatch(rig: Rig) -> None:
    """The driver asks again what became of the batch."""
    _lost(rig, COMMIT, ANSWER, times=6, every=2)


@scenario()
def lost_requests_of_CommitBatch(rig: Rig) -> None:
    """The coordinator never sees them."""
    _lost(rig, COMMIT, REQUEST, times=4, every=2)


@scenario()
def lost_answers_to_Produce(rig: Rig) -> None:
    """Every third answer: the rows are there, and are sent again."""
    _lost(rig, PRODUCE, ANSWER, times=10_000, every=3)


@scenario()
def lost_requests_of_Produce(rig: Rig) -> None:
    """Every third request never arrives, and is sent again, with those that were under way behind it."""
    _lost(rig, PRODUCE, REQUEST, times=10_000, every=3)


# ---- rows ----------------------------------------------------------------------------------------------------------


@scenario()
def rows_that_differ_on_replay(rig: Rig) -> None:
    """uuid() makes other values and other partitions; the driver dies after CommitBatch, and before it."""
    rig.shape |= {"shape": "random"}
    for api, side in ((COMMIT, ANSWER), (COMMIT, REQUEST)):
        session = rig.driver()
        query = rig.start(session)
        query.started()
        trap = rig.trap(api, side, HOLD, skip=1)
        rig.note(f"held: {trap.wait()}")
        rig.kill(session)
        trap.drop()
    rig.finish()


@scenario(fault=DRIVER_KILLED)
def empty_batches(rig: Rig) -> None:
    """The first batch has no row to write; the driver dies in it, and answers get lost."""
    rig.expected_from = 150
    rig.shape |= {"shape": "empty", "from_offset": 150}
    session = rig.driver()
    trap = rig.trap(COMMIT, ANSWER, HOLD)
    rig.start(session)
    rig.note(f"held, of an empty batch: {trap.wait()}")
    assert rig.watcher.count() == 0
    rig.kill(session)
    trap.drop()
    lost = rig.trap(COMMIT, ANSWER, LOSE, times=2)
    rig.finish()
    rig.note(f"{len(lost.hits)} answers lost")


@scenario()
def skewed_batches(rig: Rig) -> None:
    """All rows go to one partition, from all tasks; a worker dies and answers get lost."""
    rig.shape |= {"shape": "skewed", "padding": 300}
    query = rig.start()
    query.started()
    rig.batch_done(0)
    lost = rig.trap(PRODUCE, ANSWER, LOSE, times=5, every=4)
    trap = rig.trap(PRODUCE, REQUEST, HOLD, skip=5)
    kill_worker(rig, trap.wait())
    trap.drop()
    rig.finish(query)
    rig.note(f"{len(lost.hits)} answers lost; rows by partition: {[len(rows) for rows in rig.watcher.found.values()]}")


@scenario()
def huge_batches(rig: Rig) -> None:
    """Two batches of 30,000 rows and 15 MB each; a worker dies in the middle, answers get lost, the driver dies."""
    rig.fill(60_000)
    rig.shape |= {"per_batch": 30_000, "padding": 500}
    session = rig.driver()
    query = rig.start(session)
    query.started()
    lost = rig.trap(PRODUCE, ANSWER, LOSE, times=6, skip=40, every=100)
    trap = rig.trap(PRODUCE, REQUEST, HOLD, skip=300)
    kill_worker(rig, trap.wait())
    trap.drop()
    rig.batch_done(0)
    dying = rig.trap(PRODUCE, REQUEST, HOLD, skip=300)
    dying.wait()
    rig.kill(session)
    dying.drop()
    rig.finish()
    rig.note(f"{len(lost.hits)} answers lost")


@scenario()
def nothing_goes_wrong(rig: Rig) -> None:
    """The calm run, which the faults are compared with: both ways of writing."""
    seen = rig.trap(COMMIT, ANSWER, PASS, times=100)
    rig.fill()
    session = rig.driver()
    query = rig.start(session, way="foreachBatch")
    rig.finish(query)
    rig.fill_more()
    rig.finish()
    assert not rig.errors
    rig.note(f"{len(seen.hits)} batches were committed without a fault")
