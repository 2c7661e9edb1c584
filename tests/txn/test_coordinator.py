"""Transcripts of one transactional id: requests, and the coordinator's answers."""

from __future__ import annotations

import pytest

from fleetlog.txn.commands import Cancel
from fleetlog.txn.coordinator import End, InitAnswer, Producer, TransactionSettings
from fleetlog.txn.records import encode_transaction_key
from fleetlog.txn.states import ENDED, PREPARED, TRANSITIONS, TransactionState
from fleetlog.wire.errors import ErrorCode as E
from tests.support.gauges import added_up
from tests.txn.machine import ID, A, B, C, Machine

S = TransactionState


@pytest.fixture
def m() -> Machine:
    return Machine()


def ongoing(m: Machine, version: int = 0) -> tuple[int, int]:
    answer = m.init()
    assert answer.error is E.NONE
    assert m.add(answer.producer_id, answer.producer_epoch, A, B, version=version) is E.NONE
    return answer.producer_id, answer.producer_epoch


def exhausted(m: Machine, epoch: int = 32766) -> tuple[int, int]:
    """An id whose producer has used up its epochs."""
    from dataclasses import replace

    from fleetlog.txn.commands import CoordinatorRecord
    from fleetlog.txn.records import encode_transaction

    pid = m.init().producer_id
    record = CoordinatorRecord(encode_transaction_key(ID), encode_transaction(replace(m.t, producer_epoch=epoch)))
    m.log.append(record)
    m.shard.apply(record, None, m.now)
    return pid, epoch


# ---- the table itself ----------------------------------------------------------------------------------------------


def test_the_table_is_closed() -> None:
    reachable = {None} | {after for steps in TRANSITIONS.values() for after in steps}
    assert reachable == set(TRANSITIONS)
    assert S.DEAD not in reachable
    assert S.PREPARE_EPOCH_FENCE not in reachable
    for state in PREPARED:
        assert len(TRANSITIONS[state]) == 1, "one fate"
    for state in ENDED:
        assert S.ONGOING in TRANSITIONS[state]


def test_labels_are_kafkas() -> None:
    assert [s.label for s in S] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    ]  # fmt: skip
    assert all(S.from_label(s.label) is s for s in S)
    assert S.from_label("ongoing") is None


# ---- InitProducerId ------------------------------------------------------------------------------------------------


def test_first_init_gives_a_new_id_with_epoch_0_and_later_ones_bump(m: Machine) -> None:
    assert m.init() == InitAnswer(E.NONE, 1000, 0)
    assert m.init() == InitAnswer(E.NONE, 1000, 1)
    assert m.init() == InitAnswer(E.NONE, 1000, 2)
    assert m.t.state is S.EMPTY


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, 2**31 - 1])
def test_timeouts_outside_the_bounds(m: Machine, timeout_ms: int) -> None:
    assert m.init(timeout_ms=timeout_ms).error is E.INVALID_TRANSACTION_TIMEOUT
    assert m.log == []


def test_an_empty_id_is_invalid(m: Machine) -> None:
    assert m.init(name="").error is E.INVALID_REQUEST
    assert m.add(1, 1, A, name="") is E.INVALID_REQUEST
    assert m.end(1, 1, True, name="").error is E.INVALID_REQUEST


def test_without_a_producer_id_at_hand_the_client_comes_again(m: Machine) -> None:
    assert m.init(fresh=lambda: None).error is E.COORDINATOR_LOAD_IN_PROGRESS
    assert m.log == []
    exhausted(m)
    assert m.init(fresh=lambda: None).error is E.COORDINATOR_LOAD_IN_PROGRESS


def test_recovery_by_epoch_bump_and_its_retry(m: Machine) -> None:
    m.init()
    assert m.init(expected=(1000, 0)) == InitAnswer(E.NONE, 1000, 1)
    assert m.init(expected=(1000, 0)) == InitAnswer(E.NONE, 1000, 1), "the answer was lost: the same again"
    assert m.init(expected=(1000, 0)) == InitAnswer(E.NONE, 1000, 1), "and again"
    assert m.init(expected=(1000, 1)) == InitAnswer(E.NONE, 1000, 2)
    assert m.init(expected=(1000, 0)).error is E.PRODUCER_FENCED


def test_a_newer_producer_fences_the_recovery_of_an_older(m: Machine) -> None:
    m.init()
    m.init(expected=(1000, 0))
    assert m.init().producer_epoch == 2
    for zombie in ((1000, 0), (1000, 1), (999, 2)):
        assert m.init(expected=zombie).error is E.PRODUCER_FENCED
    assert m.t.producer_epoch == 2


def test_a_failed_append_leaves_no_trace_in_the_memory_of_epochs(m: Machine) -> None:
    m.init()
    m.shard.init_producer_id(ID, 60_000, (1000, 0), m.fresh, m.now)  # never appended
    assert m.init().producer_epoch == 1
    assert m.init(expected=(1000, 0)).error is E.PRODUCER_FENCED, "epoch 1 belongs to the newer producer"


@pytest.mark.parametrize("epoch", [0, 32766], ids=["next epoch", "next producer id"])
@pytest.mark.parametrize("opened", [False, True], ids=["idle", "in a transaction"])
@pytest.mark.parametrize("version", [0, 2])
def test_lost_answers_of_an_init_are_repeated_by_whichever_coordinator(
    m: Machine, epoch: int, opened: bool, version: int
) -> None:
    m.init()
    if epoch:
        exhausted(m, epoch)
    if opened:
        assert m.add(1000, epoch, A, version=version) is E.NONE
        assert m.init(expected=(1000, epoch)).error is E.CONCURRENT_TRANSACTIONS
        m.restart()
        m.markers_written()
        m.restart()
    answer = m.init(expected=(1000, epoch))
    assert answer.error is E.NONE
    assert answer[1:] > (1000, epoch)
    for _ in range(3):
        m.restart()
        assert m.init(expected=(1000, epoch)) == answer
    assert m.init(expected=(1000, epoch - 1)).error is E.PRODUCER_FENCED
    assert m.init(expected=(999, epoch)).error is E.PRODUCER_FENCED
    assert m.add(*answer[1:], A, version=version) is E.NONE
    m.restart()
    assert m.init(expected=(1000, epoch)).error is E.PRODUCER_FENCED, "its new epoch is in use"


def test_a_second_lost_answer_after_an_end_that_changed_the_producer_id(m: Machine) -> None:
    exhausted(m)
    m.add(1000, 32766, A, version=2)
    assert m.end(1000, 32766, True, 2).error is E.NONE
    m.markers_written()
    for _ in range(3):
        assert m.init(expected=(1000, 32766)) == InitAnswer(E.NONE, 1001, 0)
        m.restart()


def test_records_of_version_0_have_no_room_for_the_epoch_before() -> None:
    m = Machine(TransactionSettings(value_version=0))
    m.init()
    m.init(expected=(1000, 0))
    assert m.init(expected=(1000, 0)).error is E.PRODUCER_FENCED
    assert m.init(expected=(1000, 1)) == InitAnswer(E.NONE, 1000, 2)


def test_after_a_bumping_end_the_producer_may_recover_with_the_epoch_before(m: Machine) -> None:
    pid, epoch = ongoing(m, 2)
    m.end(pid, epoch, True, 2)
    m.markers_written()
    m.restart()
    assert m.init(expected=(pid, epoch)) == InitAnswer(E.NONE, pid, epoch + 1)
    assert m.init(expected=(pid, epoch)) == InitAnswer(E.NONE, pid, epoch + 1)


def test_used_up_epochs_give_a_new_producer_id(m: Machine) -> None:
    exhausted(m)
    assert m.init() == InitAnswer(E.NONE, 1001, 0)
    assert m.t.previous_producer_id == 1000


def test_used_up_epochs_and_a_retry(m: Machine) -> None:
    exhausted(m)
    assert m.init(expected=(1000, 32766)) == InitAnswer(E.NONE, 1001, 0)
    assert m.init(expected=(1000, 32766)) == InitAnswer(E.NONE, 1001, 0)
    assert m.init(expected=(1000, 32765)).error is E.PRODUCER_FENCED
    m.init()
    assert m.init(expected=(1000, 32766)).error is E.PRODUCER_FENCED


def test_init_aborts_an_open_transaction_first(m: Machine) -> None:
    pid, epoch = ongoing(m)
    assert m.init().error is E.CONCURRENT_TRANSACTIONS
    assert m.t.state is S.PREPARE_ABORT
    assert m.markers.producer_epoch == epoch + 1
    assert m.markers.commit is False
    assert m.markers.partitions == (A, B)
    assert Cancel("timeout/app") in m.effects
    effects = m.effects
    assert m.init().error is E.CONCURRENT_TRANSACTIONS, "while markers are being written"
    m.effects = effects
    m.markers_written()
    assert m.t.state is S.COMPLETE_ABORT
    assert m.init() == InitAnswer(E.NONE, pid, epoch + 2)


def test_a_zombies_recovery_does_not_abort_its_successors_transaction(m: Machine) -> None:
    m.init()
    m.init()
    m.add(1000, 1, A)
    assert m.init(expected=(1000, 0)).error is E.PRODUCER_FENCED
    assert m.t.state is S.ONGOING
    assert m.init(expected=(1000, 1)).error is E.CONCURRENT_TRANSACTIONS
    assert m.t.state is S.PREPARE_ABORT


# ---- partitions ----------------------------------------------------------------------------------------------------


def test_the_first_partition_begins_the_transaction_and_its_timeout(m: Machine) -> None:
    m.init(timeout_ms=5_000)
    assert m.add(1000, 0, A) is E.NONE
    assert m.timers == {"timeout/app": 5_000}
    started = m.now.wall_ms
    m.advance(1_000)
    assert m.add(1000, 0, B, C) is E.NONE
    assert m.timers == {}
    assert (m.t.state, m.t.start_ms, m.t.partitions) == (S.ONGOING, started, {A, B, C})
    written = len(m.log)
    assert m.add(1000, 0, B) is E.NONE
    assert len(m.log) == written, "nothing new, nothing written"


def test_requests_that_may_not_add_partitions(m: Machine) -> None:
    assert m.add(1000, 0, A) is E.INVALID_PRODUCER_ID_MAPPING
    m.init()
    m.init()
    assert m.add(999, 1, A) is E.INVALID_PRODUCER_ID_MAPPING
    assert m.add(1000, 0, A) is E.PRODUCER_FENCED
    assert m.add(1000, 2, A) is E.PRODUCER_FENCED
    m.add(1000, 1, A)
    m.end(1000, 1, True)
    assert m.add(1000, 1, A) is E.CONCURRENT_TRANSACTIONS, "the previous end is still being written"
    assert m.t.state is S.PREPARE_COMMIT


def test_verification_wants_an_open_transaction_with_the_partition(m: Machine) -> None:
    m.init()
    assert m.verify(1000, 0, A) == {A: E.TRANSACTION_ABORTABLE}
    m.add(1000, 0, A)
    assert m.verify(1000, 0, A, B) == {A: E.NONE, B: E.TRANSACTION_ABORTABLE}
    assert m.verify(1000, 1, A) == {A: E.PRODUCER_FENCED}
    assert m.verify(7, 0, A) == {A: E.INVALID_PRODUCER_ID_MAPPING}
    assert m.verify(7, 0, A, name="other") == {A: E.INVALID_PRODUCER_ID_MAPPING}
    m.end(1000, 0, True)
    assert m.verify(1000, 0, A) == {A: E.CONCURRENT_TRANSACTIONS}
    m.end(1000, 0, True)


# ---- EndTxn, versions 0 and 1 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_and_its_retries(m: Machine, commit: bool) -> None:
    pid, epoch = ongoing(m)
    assert m.end(pid, epoch, commit) == (E.NONE, -1, -1)
    effects = m.effects
    assert m.t.state is (S.PREPARE_COMMIT if commit else S.PREPARE_ABORT)
    assert m.markers.producer_epoch == epoch, "the markers carry the producer's own epoch"
    assert m.end(pid, epoch, commit).error is E.CONCURRENT_TRANSACTIONS
    assert m.end(pid, epoch, not commit).error is E.INVALID_TXN_STATE
    m.effects = effects
    m.markers_written()
    assert m.t.state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
    assert m.t.partitions == frozenset()
    assert m.end(pid, epoch, commit).error is E.NONE
    assert m.end(pid, epoch, not commit).error is E.INVALID_TXN_STATE
    assert m.t.producer_epoch == epoch


def test_nothing_to_end(m: Machine) -> None:
    assert m.end(1000, 0, True).error is E.INVALID_PRODUCER_ID_MAPPING
    m.init()
    for commit in (True, False):
        assert m.end(1000, 0, commit).error is E.INVALID_TXN_STATE


def test_zombies_end_nothing(m: Machine) -> None:
    for version in (0, 2):
        m = Machine()
        m.init()
        m.init()
        m.add(1000, 1, A)
        assert m.end(1000, 0, True, version).error is E.PRODUCER_FENCED
        assert m.end(1000, 2, True, version).error is E.PRODUCER_FENCED
        assert m.end(999, 1, True, version).error is E.INVALID_PRODUCER_ID_MAPPING
        assert m.t.state is S.ONGOING


# ---- EndTxn, version 2 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_every_end_bumps_the_epoch(m: Machine, commit: bool) -> None:
    pid, epoch = ongoing(m, 2)
    assert m.end(pid, epoch, commit, 2) == (E.NONE, pid, epoch + 1)
    effects = m.effects
    assert m.markers.producer_epoch == epoch + 1
    assert m.markers.transaction_version == 2
    assert m.end(pid, epoch, commit, 2).error is E.CONCURRENT_TRANSACTIONS, "a retry while markers are written"
    other = E.INVALID_TXN_STATE if commit else E.PRODUCER_FENCED
    assert m.end(pid, epoch, not commit, 2).error is other
    for fate in (True, False):
        assert m.end(pid, epoch + 1, fate, 2).error is E.CONCURRENT_TRANSACTIONS, (
            "the next end, faster than the markers"
        )
    assert m.add(pid, epoch + 1, A, version=2) is E.CONCURRENT_TRANSACTIONS
    assert m.verify(pid, epoch + 1, A) == {A: E.CONCURRENT_TRANSACTIONS}
    m.effects = effects
    m.markers_written()
    assert m.end(pid, epoch, commit, 2) == (E.NONE, pid, epoch + 1), "a retry afterwards: the same answer, no effect"
    assert m.end(pid, epoch, not commit, 2).error is other
    assert m.add(pid, epoch + 1, A, version=2) is E.NONE


def test_a_delayed_end_of_the_previous_transaction_ends_nothing(m: Machine) -> None:
    """KAFKA-17754: the client gave the first EndTxn up, ended by a retry, and is in its next transaction."""
    pid, epoch = ongoing(m, 2)
    m.end(pid, epoch, True, 2)
    m.markers_written()
    m.add(pid, epoch + 1, A, version=2)
    for late in (True, False):
        assert m.end(pid, epoch, late, 2).error is E.PRODUCER_FENCED
        assert m.end(pid, epoch, late, 0).error is E.PRODUCER_FENCED
    assert m.t.state is S.ONGOING
    assert m.end(pid, epoch + 1, False, 2) == (E.NONE, pid, epoch + 2)


def test_what_an_end_means_without_a_transaction() -> None:
    """Kafka's table: rows by state, columns abort/commit x retry/current epoch."""
    table = {
        "Empty": {"abort retry": E.PRODUCER_FENCED, "abort": "bump", "commit retry": E.PRODUCER_FENCED,
                  "commit": E.INVALID_TXN_STATE},
        "CompleteAbort": {"abort retry": "same", "abort": "bump", "commit retry": E.PRODUCER_FENCED,
                          "commit": E.INVALID_TXN_STATE},
        "CompleteCommit": {"abort retry": E.INVALID_TXN_STATE, "abort": "bump", "commit retry": "same",
                           "commit": E.INVALID_TXN_STATE},
    }  # fmt: skip
    for state, row in table.items():
        for column, expected in row.items():
            m = Machine()
            pid, epoch = ongoing(m, 2)
            m.end(pid, epoch, state == "CompleteCommit", 2)
            m.markers_written()
            epoch += 1
            if state == "Empty":
                epoch = m.init().producer_epoch
            assert m.t.state.label == state
            asked = epoch - 1 if column.endswith("retry") else epoch
            written = len(m.log)
            answer = m.end(pid, asked, column.startswith("commit"), 2)
            where = f"{state}: {column}"
            if expected == "bump":
                assert answer == (E.NONE, pid, epoch + 1), where
                assert m.markers.partitions == ()
                m.markers_written()
                assert m.t.state is S.COMPLETE_ABORT
            elif expected == "same":
                assert answer == (E.NONE, pid, epoch), where
                assert len(m.log) == written, where
            else:
                assert answer == (expected, -1, -1), where
                assert len(m.log) == written, where


def test_the_last_epoch_ends_into_a_new_producer_id(m: Machine) -> None:
    pid, epoch = exhausted(m)
    m.add(pid, epoch, A, version=2)
    assert m.end(pid, epoch, True, 2) == (E.NONE, 1001, 0)
    assert (m.markers.producer_id, m.markers.producer_epoch) == (pid, 32767)
    effects = m.effects
    assert m.end(pid, epoch, True, 2).error is E.CONCURRENT_TRANSACTIONS
    assert m.end(1001, 0, False, 2).error is E.CONCURRENT_TRANSACTIONS, "the new id, while the record has the old one"
    assert m.add(1001, 0, A, version=2) is E.CONCURRENT_TRANSACTIONS
    m.restart()
    assert m.markers._replace(coordinator_epoch=-1) in effects
    m.markers_written()
    assert (m.t.producer_id, m.t.producer_epoch, m.t.previous_producer_id) == (1001, 0, pid)
    assert m.end(pid, epoch, True, 2) == (E.NONE, 1001, 0), "the retry finds its way across producer ids"
    assert m.end(pid, epoch, False, 2).error is E.INVALID_TXN_STATE
    assert m.end(pid, epoch - 1, True, 2).error is E.INVALID_PRODUCER_ID_MAPPING
    assert m.add(1001, 0, A, version=2) is E.NONE
    assert m.end(pid, epoch, True, 2).error is E.INVALID_PRODUCER_ID_MAPPING


def test_epochs_no_client_ever_got(m: Machine) -> None:
    pid, _ = exhausted(m, 32767)
    assert m.add(pid, 32767, A) is E.PRODUCER_FENCED
    for version in (0, 2):
        assert m.end(pid, 32767, False, version).error is E.PRODUCER_FENCED
    fenced = Machine()
    pid, epoch = ongoing(fenced, 2)
    fenced.end(pid, epoch, True, 2)
    fenced.markers_written()
    assert fenced.end(pid, -1, True, 2).error is E.PRODUCER_FENCED


def test_a_fence_is_never_taken_for_a_retry(m: Machine) -> None:
    """A fenced producer's end must not be taken for the retry of the abort that fenced it."""
    pid, epoch = ongoing(m, 2)
    assert m.init().error is E.CONCURRENT_TRANSACTIONS
    m.markers_written()
    for commit in (True, False):
        assert m.end(pid, epoch, commit, 2).error is E.PRODUCER_FENCED


@pytest.mark.parametrize("restarts", [(), (0,), (1,), (2,), (3,), (0, 1, 2, 3)], ids=str)
def test_a_producer_that_timed_out_cannot_commit_but_aborts_and_continues(
    m: Machine, restarts: tuple[int, ...]
) -> None:
    """The answers of Kafka 4.4 to EndTxn 5; those of a coordinator that was loaded since are the same."""

    def perhaps_restart(moment: int) -> None:
        if moment in restarts:
            m.effects = m.restart()

    pid, epoch = ongoing(m, 2)
    m.timer("timeout/app")
    perhaps_restart(0)
    effects = m.effects
    assert m.end(pid, epoch, True, 2).error is E.PRODUCER_FENCED
    assert m.end(pid, epoch, False, 2).error is E.CONCURRENT_TRANSACTIONS
    m.effects = effects
    m.markers_written()
    perhaps_restart(1)
    assert m.end(pid, epoch, True, 2).error is E.PRODUCER_FENCED
    for _ in range(2):
        answer = m.end(pid, epoch, False, 2)
        assert (answer.error, answer.producer_id, answer.producer_epoch) == (E.NONE, pid, epoch + 1)
        perhaps_restart(2)
    assert m.end(pid, epoch - 1, False, 2).error is E.PRODUCER_FENCED
    assert m.add(pid, epoch + 1, A, version=2) is E.NONE
    for commit in (True, False):
        assert m.end(pid, epoch, commit, 2).error is E.PRODUCER_FENCED, "the next transaction is open"
    assert m.end(pid, epoch + 1, True, 2).error is E.NONE
    m.markers_written()
    perhaps_restart(3)
    assert m.init().error is E.NONE
    for old in (epoch, epoch + 1):
        assert m.end(pid, old, False, 2).error is E.PRODUCER_FENCED


def test_a_producer_that_timed_out_before_another_one_came_stays_fenced(m: Machine) -> None:
    pid, epoch = ongoing(m, 2)
    m.timer("timeout/app")
    m.markers_written()
    assert m.init().error is E.NONE
    m.restart()
    for commit in (True, False):
        assert m.end(pid, epoch, commit, 2).error is E.PRODUCER_FENCED


def test_an_old_clients_end_is_never_taken_for_a_retry(m: Machine) -> None:
    """Epoch 1 committed by a version 0 client; the fenced epoch 0 uses version 2 and must not get 'committed'."""
    m.init()
    m.init()
    m.add(1000, 1, A)
    m.end(1000, 1, True)
    m.markers_written()
    assert m.end(1000, 0, True, 2).error is E.PRODUCER_FENCED


@pytest.mark.parametrize("version", [0, 2])
def test_few_epochs_are_used_up_again_and_again(version: int) -> None:
    m = Machine(TransactionSettings(last_epoch=2))
    producer = tuple(m.init()[1:])
    seen = [producer]
    for number in range(9):
        assert m.add(*producer, A, version=version) is E.NONE
        ended = m.end(*producer, number % 2 == 0, version)
        effects = m.effects
        assert m.end(*producer, number % 2 == 0, version).error is E.CONCURRENT_TRANSACTIONS
        m.effects = effects
        m.markers_written()
        assert m.end(*producer, number % 2 == 0, version) == ended
        producer = tuple((ended if version else m.init(expected=producer))[1:])
        seen.append(producer)
    assert seen == [(1000 + number // 3, number % 3) for number in range(10)]


def test_without_a_fresh_id_the_last_epochs_end_waits(m: Machine) -> None:
    pid, epoch = exhausted(m)
    m.add(pid, epoch, A, version=2)
    result = m.shard.end_transaction(ID, Producer(pid, epoch), End(True, 2), lambda: None, m.now)
    assert result.response.error is E.COORDINATOR_LOAD_IN_PROGRESS
    assert result.records == ()


# ---- timeouts, markers, restarts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2])
def test_the_timeout_aborts_and_fences(m: Machine, version: int) -> None:
    pid, epoch = ongoing(m, version)
    m.advance(60_000)
    m.timer("timeout/app")
    assert m.t.state is S.PREPARE_ABORT
    assert (m.markers.producer_epoch, m.markers.commit) == (epoch + 1, False)
    m.markers_written()
    assert m.t.state is S.COMPLETE_ABORT
    assert m.add(pid, epoch, A, version=version) is E.PRODUCER_FENCED
    assert m.end(pid, epoch, True, version).error is E.PRODUCER_FENCED
    assert m.init(expected=(pid, epoch)).error is E.PRODUCER_FENCED
    assert m.init() == InitAnswer(E.NONE, pid, epoch + 2)


def test_the_timeout_of_the_last_epoch(m: Machine) -> None:
    pid, epoch = exhausted(m)
    m.add(pid, epoch, A, version=2)
    m.timer("timeout/app")
    m.markers_written()
    assert m.t.producer_epoch == 32767
    assert m.init() == InitAnswer(E.NONE, 1001, 0)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_producer_whose_last_epoch_timed_out_aborts_into_a_new_producer_id(m: Machine, restarts: bool) -> None:
    pid, epoch = exhausted(m)
    m.add(pid, epoch, A, version=2)
    m.timer("timeout/app")
    effects = m.effects
    assert m.end(pid, epoch, True, 2).error is E.PRODUCER_FENCED
    assert m.end(pid, epoch, False, 2).error is E.CONCURRENT_TRANSACTIONS
    m.effects = effects
    m.markers_written()
    none_left = m.shard.end_transaction(ID, Producer(pid, epoch), End(False, 2), lambda: None, m.now)
    assert (none_left.response.error, none_left.records) == (E.COORDINATOR_LOAD_IN_PROGRESS, ())
    for _ in range(3):
        assert m.end(pid, epoch, True, 2).error in (E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING)
        assert m.end(pid, epoch, False, 2) == (E.NONE, 1001, 0), "the same again when the answer is lost"
        if restarts:
            m.restart()
    assert m.end(pid, epoch - 1, False, 2).error is E.INVALID_PRODUCER_ID_MAPPING
    assert m.add(1001, 0, A, version=2) is E.NONE
    assert m.end(pid, epoch, False, 2).error is E.INVALID_PRODUCER_ID_MAPPING, "its new id is in use"


def test_a_timer_that_comes_late_does_nothing(m: Machine) -> None:
    pid, epoch = ongoing(m)
    m.end(pid, epoch, True)
    written = len(m.log)
    for name in ("timeout/app", "timeout/unknown", "expire/app", "complete/unknown"):
        m.timer(name)
    assert len(m.log) == written
    assert m.t.state is S.PREPARE_COMMIT


def test_a_fence_that_cannot_be_written_is_tried_again(m: Machine) -> None:
    ongoing(m)
    result = m.shard.on_timer("timeout/app", m.now)
    assert result.failed is not None
    m.perform(result.failed(E.NOT_ENOUGH_REPLICAS, m.now))
    assert m.timers == {"timeout/app": 1_000}


def test_a_completion_that_cannot_be_written_is_tried_again(m: Machine) -> None:
    pid, epoch = ongoing(m)
    m.end(pid, epoch, True)
    result = m.shard.on_markers_written(ID, pid, epoch, m.now)
    assert result.failed is not None
    m.perform(result.failed(E.NOT_ENOUGH_REPLICAS, m.now))
    assert m.timers == {"complete/app": 1_000}
    m.timer("complete/app")
    assert m.t.state is S.COMPLETE_COMMIT


def test_markers_of_another_end_complete_nothing(m: Machine) -> None:
    pid, epoch = ongoing(m, 2)
    m.end(pid, epoch, True, 2)
    m.perform(m.shard.on_markers_written(ID, pid, epoch, m.now))
    m.perform(m.shard.on_markers_written(ID, pid + 1, epoch + 1, m.now))
    m.perform(m.shard.on_markers_written("other", pid, epoch + 1, m.now))
    assert m.t.state is S.PREPARE_COMMIT


@pytest.mark.parametrize("commit", [True, False])
def test_a_coordinator_that_died_between_prepare_and_complete(m: Machine, commit: bool) -> None:
    pid, epoch = ongoing(m, 2)
    answer = m.end(pid, epoch, commit, 2)
    before = m.markers
    m.restart()
    assert m.markers == before, "the new coordinator writes the same markers"
    assert m.end(pid, epoch, commit, 2).error is E.CONCURRENT_TRANSACTIONS
    m.effects = [before]
    m.markers_written()
    assert m.end(pid, epoch, commit, 2) == answer


def test_a_restart_keeps_the_rest_of_the_timeout(m: Machine) -> None:
    ongoing(m)
    m.advance(20_000)
    m.restart()
    assert m.timers["timeout/app"] == 40_000
    m.advance(3_600_000)
    m.restart()
    assert m.timers["timeout/app"] == 0
    m.advance(-7_200_000)
    m.restart()
    assert m.timers["timeout/app"] == 60_000, "a wall clock that went back does not make it wait for hours"


@pytest.mark.parametrize(("began", "restarted", "aborted"), [
    (0, 0, 60_000), (1, 0, 70_000), (9_999, 0, 70_000), (10_000, 0, 70_000), (3, 59_999, 70_000), (3, 65_000, 70_000),
    (3, 71_000, 80_000),
])  # fmt: skip
def test_a_transaction_whose_time_ran_out_is_aborted_at_the_next_look(began: int, restarted: int, aborted: int) -> None:
    """As in Kafka, which looks once in each interval; in whichever coordinator."""
    m = Machine(TransactionSettings(abort_interval_ms=10_000))
    m.advance(began)
    ongoing(m)
    if restarted:
        m.advance(restarted - began)
        m.restart()
    assert m.now.mono_ms + m.timers["timeout/app"] == aborted
    m.advance(m.timers["timeout/app"])
    m.timer("timeout/app")
    assert m.t.state is S.PREPARE_ABORT


# ---- expiry --------------------------------------------------------------------------------------------------------


def test_ids_expire_only_without_a_transaction() -> None:
    m = Machine(TransactionSettings(id_expiration_ms=1_000))
    m.init(name="idle")
    m.init(name="open")
    m.add(1001, 0, A, name="open")
    m.init(name="done")
    m.add(1002, 0, A, name="done")
    m.end(1002, 0, True, name="done")
    m.markers_written()
    m.advance(999)
    m.timer("sweep")
    assert m.timers == {"sweep": 3_600_000}
    m.advance(1)
    m.timer("sweep")
    expired = {name for name in m.timers if name != "sweep"}
    assert expired == {"expire/idle", "expire/done"}
    m.init(name="idle", expected=(1000, 0))  # comes back just in time
    for name in sorted(expired):
        m.timer(name)
    assert sorted(m.shard.transactions) == ["idle", "open"]
    assert m.log[-1] == (encode_transaction_key("done"), None)
    m.restart()
    assert sorted(m.shard.transactions) == ["idle", "open"]


def test_a_sweep_is_bounded() -> None:
    m = Machine(TransactionSettings(id_expiration_ms=1))
    for number in range(700):
        m.init(name=f"id-{number}")
    m.advance(10)
    m.timer("sweep")
    assert len(m.timers) == 501
    assert m.timers["sweep"] == 1_000


# ---- looking in ----------------------------------------------------------------------------------------------------


def test_transactions_are_listed_by_filters() -> None:
    m = Machine()
    m.init(name="a-1")
    m.init(name="b-1")
    m.add(1001, 0, A, name="b-1")
    m.advance(5_000)
    m.init(name="b-2")
    m.add(1002, 0, A, name="b-2")
    names = lambda **filters: [entry[0] for entry in m.shard.list_transactions(m.now, **filters) if entry]  # noqa: E731
    assert names() == ["a-1", "b-1", "b-2"]
    assert names(states=frozenset({S.ONGOING})) == ["b-1", "b-2"]
    assert names(producer_ids=frozenset({1000, 1002})) == ["a-1", "b-2"]
    assert names(longer_than_ms=4_999) == ["b-1"]
    assert names(longer_than_ms=0) == ["b-1"]
    assert names(matches=lambda name: name.startswith("b-")) == ["b-1", "b-2"]
    assert len(list(m.shard.list_transactions(m.now, matches=lambda name: False))) == 3, "an item for each id"
    assert added_up(m.shard.metric_parts())["transactions_open"] == 2


def test_records_of_a_newer_writer_are_counted_and_skipped(m: Machine) -> None:
    from fleetlog.txn.commands import CoordinatorRecord

    m.shard.apply(CoordinatorRecord(b"\0\5later", b"x"), None, m.now)
    m.shard.apply(CoordinatorRecord(encode_transaction_key("x"), b"\0\7later"), None, m.now)
    assert m.shard.transactions == {}
    assert added_up(m.shard.metric_parts())["transaction_records_skipped"] == 2
