"""The matrix's own parts: the judge can fail, the wire does what it is told, every control finds its safeguard."""

from __future__ import annotations

import argparse
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulation.replacing import mutated
from tests.spark.matrix.__main__ import Turns, anomalies_of, chosen_names
from tests.spark.matrix.broken_broker import SAFEGUARDS
from tests.spark.matrix.controls import CONTROLS
from tests.spark.matrix.reader import Row, Seen, judge, parse
from tests.spark.matrix.scenarios import load
from tests.spark.matrix.together import NotTried, Together
from tests.spark.matrix.wire import ANSWER, COMMIT, HOLD, LOSE, REQUEST, Trap, Wire

EXPECTED = {(0, 0): 0, (0, 1): 0, (1, 0): 0, (0, 2): 1, (0, 3): 1, (1, 1): 1}
ROWS = {
    0: [Row((0, 0), 0, "a"), Row((1, 0), 1, "a"), Row((0, 2), 0, "b"), Row((0, 3), 0, "b")],
    1: [Row((0, 1), 0, "a"), Row((1, 1), 1, "b")],
}
MOMENTS = [(0, 0), (0, 2), (1, 1), (0, 4), (1, 2)]


def changed(partition: int, *rows: Row) -> dict[int, list[Row]]:
    return {**ROWS, partition: list(rows)}


def test_a_right_history_is_right() -> None:
    assert judge(EXPECTED, Seen(ROWS, MOMENTS)) == []
    assert parse(b"1:7:2:run3:xx:x") == Row((1, 7), 2, "run3")


@pytest.mark.parametrize(
    ("rows", "moments", "anomaly"),
    [
        (changed(1, *ROWS[1], Row((1, 1), 1, "b")), MOMENTS, "DUP: 1 rows, 1 too many"),
        (changed(1, ROWS[1][0]), MOMENTS, "MISSING: 1 rows, first (1, 1)"),
        (changed(1, *ROWS[1], Row((5, 5), 0, "b")), MOMENTS, "UNKNOWN: 1 rows"),
        (changed(0, ROWS[0][0], ROWS[0][1], ROWS[0][3], ROWS[0][2]), MOMENTS, "ORDER: partition 0, batch 1, task 0"),
        (changed(1, Row((0, 1), 0, "z"), ROWS[1][1]), MOMENTS, "MIXED: batch 0"),
        (ROWS, [*MOMENTS, (0, 1)], "TORN: partition 0 showed 1 of 2 rows of batch 0"),
        (ROWS, [*MOMENTS, (0, 3)], "TORN: partition 0 showed 1 of 2 rows of batch 1"),
    ],
)
def test_a_wrong_history_is_named(rows: dict[int, list[Row]], moments: list[tuple[int, int]], anomaly: str) -> None:
    problems = judge(EXPECTED, Seen(rows, moments))
    assert any(problem.startswith(anomaly) for problem in problems), problems


def test_every_safeguard_can_be_taken_away() -> None:
    for mutation in SAFEGUARDS.values():
        with mutated(mutation):
            pass


def test_controls_name_safeguards_and_scenarios_that_exist() -> None:
    scenarios = load()
    assert len(scenarios) >= 30
    for control in CONTROLS:
        assert control.missing in SAFEGUARDS
        assert control.scenario in scenarios


def test_what_was_broken_off_is_no_anomaly_and_a_duplicate_always_is() -> None:
    assert anomalies_of(["NOT TRIED: no worker", "UNFINISHED: Spark planned 600 of 900 rows", "NO FAULT: x"]) == []
    assert anomalies_of(["NOT TRIED: no worker", "DUP: 1 rows"]) == ["DUP: 1 rows"]
    assert anomalies_of(["MISSING: 3 rows"]) == ["MISSING: 3 rows"]
    assert anomalies_of(["NOT CAUGHT: none of ('DUP',)"])


@pytest.mark.parametrize("kind", ["ERROR", "HANGING", "MISSING", "FENCE", "DUP", "TORN"])
def test_what_a_run_says_of_the_sink_counts_also_when_it_was_broken_off(kind: str) -> None:
    assert anomalies_of([f"{kind}: x"]) == [f"{kind}: x"]
    assert anomalies_of(["NOT TRIED: no worker", f"{kind}: x"]) == [f"{kind}: x"]


def test_a_run_that_was_broken_off_owes_the_batches_that_spark_noted() -> None:
    first = {0: ROWS[0][:2], 1: ROWS[1][:1]}
    assert judge(EXPECTED, Seen(first, []), due={0}) == []
    assert judge(EXPECTED, Seen({0: ROWS[0][:1], 1: ROWS[1][:1]}, []), due={0}) == ["MISSING: 1 rows, first (1, 0)"]


def test_too_few_scenarios_are_no_pass(tmp_path: Path) -> None:
    turns = Turns(tmp_path, load())
    names = list(load())[:3]
    for name in names[:2]:
        turns.begun.add(name)
        turns.results.add({"name": name, "problems": [], "seconds": 1, "restarts": 0})
    assert turns.report(names, 1, least=2) == 0
    assert turns.report(names, 1, least=3) == 3


def test_a_sample_is_a_function_of_its_seed_and_has_a_control() -> None:
    def drawn(seed: str) -> list[str]:
        return chosen_names(argparse.Namespace(only=[], sample=9, seed=seed), load())

    assert drawn("a") == drawn("a") != drawn("b")
    assert len(drawn("a")) == 10
    assert drawn("a")[0].startswith("control: ")


# ---- runs together -------------------------------------------------------------------------------------------------


def runs(size: int, body: Callable[[Together, int], object]) -> list[object]:
    """What each run of a group returned, or raised."""
    group = Together(size)
    results: list[object] = [None] * size

    def run(member: int) -> None:
        try:
            results[member] = body(group, member)
        except Exception as problem:
            results[member] = problem
        finally:
            group.leave(member)

    threads = [threading.Thread(target=run, args=(member,)) for member in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_what_harms_all_happens_once_when_all_are_there() -> None:
    there: list[int] = []
    seen: list[int] = []

    def body(group: Together, member: int) -> object:
        there.append(member)
        first = group.once(member, 1, lambda _: seen.append(len(there)) or "killed")
        return first, group.once(member, 2, lambda _: seen.append(len(there)) or "revived")

    assert runs(4, body) == [("killed", "revived")] * 4
    assert seen == [4, 4]


def test_a_failed_run_is_not_waited_for() -> None:
    def body(group: Together, member: int) -> object:
        if member == 1:
            raise ValueError("on purpose")
        return group.once(member, 1, lambda _: "killed")

    results = runs(3, body)
    assert results[0] == results[2] == "killed"
    assert isinstance(results[1], ValueError)


def test_runs_that_want_different_things() -> None:
    def most(group: Together, member: int) -> object:
        return group.once(member, 1, lambda wanted: f"killed {wanted}", member // 2)

    def every(group: Together, member: int) -> object:
        return group.once(member, 1, lambda wanted: f"killed {wanted}", member // 2, each=True)

    results = runs(3, most)
    assert results[:2] == ["killed 0"] * 2
    assert isinstance(results[2], NotTried)
    assert runs(3, every) == ["killed 0", "killed 0", "killed 1"]


def test_a_problem_is_everybodys() -> None:
    def fail(_: object) -> None:
        raise OSError("no such process")

    assert all(isinstance(found, OSError) for found in runs(2, lambda group, member: group.once(member, 1, fail)))


# ---- the wire ------------------------------------------------------------------------------------------------------


class Echo:
    """A broker that answers each request with its correlation id and its body."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while size := stream.read(4):
                frame = stream.read(int.from_bytes(size, "big"))
                self.seen.append(frame[8:])
                connection.sendall(struct.pack(">i", len(frame) - 4) + frame[4:])

    def close(self) -> None:
        self._listener.close()


class Client:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._number = 0

    def send(self, api: int, body: bytes) -> None:
        self._number += 1
        frame = struct.pack(">hhi", api, 0, self._number) + body
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        """The next answer's body; empty when the connection is gone."""
        try:
            size = self._socket.recv(4, socket.MSG_WAITALL)
            return self._socket.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)[4:] if size else b""
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def rig() -> Iterator[tuple[Wire, Echo, Client]]:
    wire, echo = Wire(), Echo()
    client = Client(wire.open(1, lambda: echo.port))
    yield wire, echo, client
    client.close()
    echo.close()
    wire.close()


def test_frames_pass_and_a_held_one_waits(rig: tuple[Wire, Echo, Client]) -> None:
    wire, echo, client = rig
    trap = wire.trap(COMMIT, REQUEST, HOLD, contains=b"mine")
    client.send(COMMIT, b"another's")
    assert client.receive() == b"another's"
    client.send(COMMIT, b"mine")
    hit = trap.wait(10)
    assert hit.pid > 0, "the client is this very process"
    assert echo.seen == [b"another's"]
    trap.release()
    assert client.receive() == b"mine"
    assert wire.count(COMMIT) == 2


def test_a_held_frame_arrives_after_its_sender_is_gone(rig: tuple[Wire, Echo, Client]) -> None:
    wire, echo, client = rig
    trap = wire.trap(COMMIT, REQUEST, HOLD)
    client.send(COMMIT, b"late")
    trap.wait(10)
    client.close()
    trap.release()
    Trap.wait(wire.trap(COMMIT, ANSWER, HOLD), 10)
    assert echo.seen == [b"late"]


def test_a_lost_request_is_never_seen_and_a_lost_answer_was_dealt_with(rig: tuple[Wire, Echo, Client]) -> None:
    wire, echo, client = rig
    lost = wire.trap(COMMIT, ANSWER, LOSE)
    client.send(COMMIT, b"one")
    assert client.receive() == b""
    assert echo.seen == [b"one"]
    assert len(lost.hits) == 1
    again = Client(wire.ports[1])
    wire.trap(COMMIT, REQUEST, LOSE, skip=1)
    again.send(COMMIT, b"two")
    assert again.receive() == b"two"
    again.send(COMMIT, b"three")
    assert again.receive() == b""
    assert echo.seen == [b"one", b"two"]
    again.close()


def test_a_fault_that_does_not_happen_is_an_error(rig: tuple[Wire, Echo, Client]) -> None:
    with pytest.raises(AssertionError, match="no CommitBatch answer came by"):
        rig[0].trap(COMMIT, ANSWER, HOLD).wait(0.05)


def test_frames_of_dead_connections_are_not_waited_for(rig: tuple[Wire, Echo, Client]) -> None:
    with pytest.raises(NotTried, match="no CommitBatch answer came by in 0 s"):
        rig[0].trap(COMMIT, ANSWER, HOLD, over=lambda: True).wait(60)


def test_traps_of_one_sink_are_cleared_alone(rig: tuple[Wire, Echo, Client]) -> None:
    wire, echo, client = rig
    mine = wire.trap(COMMIT, REQUEST, HOLD, contains=b"mine")
    other = wire.trap(COMMIT, REQUEST, HOLD, contains=b"other")
    client.send(COMMIT, b"mine")
    mine.wait(10)
    wire.clear(b"mine")
    assert client.receive() == b"mine"
    assert wire.traps == [other]
    assert echo.seen == [b"mine"]
