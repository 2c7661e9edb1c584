"""A standalone cluster of two workers on two loopback addresses: executors killed, speculation, stages tried again."""

from __future__ import annotations

import time

from tests.spark.matrix.rig import Rig
from tests.spark.matrix.scenarios import scenario
from tests.spark.matrix.sessions import Standalone
from tests.spark.matrix.together import took_place
from tests.spark.matrix.wire import ANSWER, COMMIT, ENLIST, HOLD, PRODUCE, REQUEST, Trap
from tests.support.waiting import eventually


def _cluster(rig: Rig) -> Standalone:
    found = rig.sessions.cluster
    assert found is not None
    return found


def _with_two_executors(rig: Rig) -> Standalone:
    cluster = _cluster(rig)
    eventually(lambda: len(cluster.executors()) == 2, "there are two executors", 240)
    return cluster


def _a_copy_runs(enlisted: Trap) -> None:
    """Three tasks, and more producers asked for."""
    eventually(lambda: len(enlisted.hits) > 3, "Spark starts a copy", 240)


def _executor_killed_at(rig: Rig, api: int, side: str, skip: int = 0, arrives: bool = False) -> None:
    session = rig.driver()
    cluster = _with_two_executors(rig)
    query = rig.start(session)
    query.started()
    rig.batch_done(0)
    trap = rig.trap(api, side, HOLD, skip=skip)
    hit = trap.wait()
    host = cluster.host_of(hit.pid)
    took_place(host, f"{hit} is of no executor")
    rig.note(f"held: {hit}, on {host}")
    rig.note(rig.once(cluster.kill_executor, host, each=True))
    if arrives:
        time.sleep(1.0)  # another attempt is under way meanwhile
        trap.release()
    else:
        trap.drop()
    rig.finish(query)
    assert not rig.errors, rig.errors


@scenario("cluster")
def executor_killed_before_writing(rig: Rig) -> None:
    """Its tasks have asked for producers."""
    _executor_killed_at(rig, ENLIST, ANSWER)


@scenario("cluster")
def executor_killed_while_writing(rig: Rig) -> None:
    """Some rows are in the log; other executors write them again."""
    _executor_killed_at(rig, PRODUCE, REQUEST, skip=5)


@scenario("cluster")
def executor_killed_after_writing(rig: Rig) -> None:
    """Rows are in the log, and no answer comes."""
    _executor_killed_at(rig, PRODUCE, ANSWER, skip=8)


@scenario("cluster")
def Produce_of_a_killed_executor_arrives_late(rig: Rig) -> None:
    """It arrives while another executor writes the same rows."""
    _executor_killed_at(rig, PRODUCE, REQUEST, skip=3, arrives=True)


@scenario("cluster")
def speculation_both_attempts_write(rig: Rig) -> None:
    """A task stands still, Spark starts a copy on the other host; both have written, one counts."""
    session = rig.driver()
    cluster = _with_two_executors(rig)
    query = rig.start(session)
    query.started()
    rig.batch_done(0)
    enlisted = rig.trap(ENLIST, REQUEST, "pass", times=100)
    trap = rig.trap(PRODUCE, ANSWER, HOLD)
    slow = trap.wait()
    first = cluster.host_of(slow.pid)
    _a_copy_runs(enlisted)
    hosts = sorted({cluster.host_of(hit.pid) for hit in enlisted.hits} - {""})
    rig.note(f"a task on {first} stood still; {len(enlisted.hits)} attempts for 3 tasks, on {hosts}")
    rig.batch_done(1)
    rig.note("the copy was committed while the first attempt stood still")
    trap.release()
    rig.finish(query)
    assert not rig.errors, rig.errors
    took_place(rig.aborted() > 0, "no row of the loser is in the log")


@scenario("cluster")
def speculation_the_first_attempt_ends_first(rig: Rig) -> None:
    """The copy is being written when the first attempt comes to its end."""
    session = rig.driver()
    query = rig.start(session)
    query.started()
    rig.batch_done(0)
    enlisted = rig.trap(ENLIST, REQUEST, "pass", times=100)
    slow = rig.trap(PRODUCE, ANSWER, HOLD)
    slow.wait()
    copy = rig.trap(PRODUCE, REQUEST, HOLD, times=50)
    _a_copy_runs(enlisted)
    eventually(lambda: bool(copy.hits), "the copy writes", 120)
    rig.note(f"a copy runs: {copy.hits[-1]}; now the first attempt ends")
    slow.release()
    time.sleep(1.5)  # the first attempt ends meanwhile
    copy.release()
    rig.finish(query)
    assert not rig.errors, rig.errors


@scenario("cluster", together=False)
def stage_tried_again(rig: Rig) -> None:
    """An executor dies with tasks that write and with the shuffle's blocks that they read: both stages run again."""
    rig.shape |= {"shape": "shuffled"}
    session = rig.driver()
    cluster = _with_two_executors(rig)
    query = rig.start(session)
    query.started()
    rig.batch_done(0)
    before = session.log().count("FetchFailed")
    trap = rig.trap(PRODUCE, REQUEST, HOLD, times=20)
    hit = trap.wait()
    host = cluster.host_of(hit.pid)
    rig.note(f"held: {hit}, on {host}")
    rig.note(cluster.kill_executor(host))  # its tasks go elsewhere, and look for blocks that died with it
    trap.drop()
    rig.finish(query)
    assert not rig.errors, rig.errors
    failed = session.log().count("FetchFailed") - before
    took_place(failed > 0, "no task found its input gone")
    rig.note(f"FetchFailed in Spark's log: {failed} times")


@scenario("cluster")
def driver_killed_and_its_executors_go_on_for_a_while(rig: Rig) -> None:
    """Tasks of a dead driver write while the next one begins."""
    session = rig.driver()
    query = rig.start(session)
    query.started()
    rig.batch_done(0)
    trap = rig.trap(PRODUCE, REQUEST, HOLD, times=3)
    rig.note(f"held: {trap.wait()}")
    rig.kill(session)
    trap.release()
    rig.finish()


@scenario("cluster")
def executors_stopped_until_another_driver_is_through(rig: Rig) -> None:
    """The executors of a dead driver stand still, and go on writing when all is done."""
    session = rig.driver()
    cluster = _cluster(rig)
    query = rig.start(session)
    query.started()
    rig.batch_done(0)
    trap = rig.trap(COMMIT, REQUEST, HOLD)
    late = rig.trap(PRODUCE, REQUEST, HOLD, times=2)
    hit = late.wait()
    rig.note(f"held: {hit}, on {cluster.host_of(hit.pid)}")
    rig.kill(session)
    trap.times = 0
    trap.drop()
    rig.finish()
    before = eventually(rig.watcher.count, "all rows are read", good=lambda count: count >= rig.rows)
    late.release()
    time.sleep(1.0)  # time for the wrong thing to happen
    assert rig.watcher.count() == before
