"""Moves are planned over several turns of the loop: leaders write states meanwhile, brokers and topics come and go."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog.brokers.controller import move_commands
from fleetlog.brokers.controller.context import StaleState
from fleetlog.brokers.controller.log_end_probes import LogEndProbes
from fleetlog.brokers.controller.move_commands import MoveCommands
from fleetlog.brokers.controller.writes import MultiWrite, StateWrites
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.image import MetadataDelta, MetadataImage
from fleetlog.brokers.metadata.znodes import StatesChanged, TopicChanged, TopicDeleted, TopicZnode
from fleetlog.brokers.model import BrokerId, LiveBroker, PartitionState, TopicPartition
from fleetlog.coordination.store import Operation, SetData
from fleetlog.wire.errors import ErrorCode

TOPIC_ID = uuid.UUID(int=7)
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
IN_SYNC = PartitionState(
    (ONE, THREE, TWO), ONE, 5, (ONE, TWO, THREE), 7, 1, 4, (4, 4, 4), adding=(THREE,), removing=(TWO,)
)
"""Broker 2 gives its replica to broker 3, which has caught up; the leader stays."""
BEHIND = replace(IN_SYNC, isr=(ONE, TWO), isr_incarnations=(4, 4), partition_epoch=8)
"""What the leader of such a partition writes when broker 3 falls behind."""
T1, T2 = TopicPartition("t", 1), TopicPartition("t", 2)


class Planning:
    """The moves of a topic of three partitions; ``meanwhile`` runs in the first turn that planning gives the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
        monkeypatch.setattr(move_commands, "MOVES_PER_TURN", 2)
        self.image, self.written = MetadataImage(), list[Operation]()
        assigned = TopicZnode(TOPIC_ID, ((1, 3, 2),) * 3, dict.fromkeys(range(3), (3,)), dict.fromkeys(range(3), (2,)))
        news = [TopicChanged("t", assigned, 0), StatesChanged("t", TOPIC_ID, dict.fromkeys(range(3), IN_SYNC))]
        self.image.apply(news, MetadataDelta())
        brokers = {b: SimpleNamespace(waives_leases=True) for b in (ONE, TWO, THREE)}
        self.context: Any = SimpleNamespace(
            image=self.image,
            live_brokers={b: LiveBroker(4, 4) for b in brokers},
            epoch=1,
            metadata=SimpleNamespace(brokers=brokers),
            min_isr=lambda topic: 1,
            perform=self._perform,
        )
        probes = LogEndProbes(self.context, None, None, 9, None)  # type: ignore[arg-type]
        leaders: Any = SimpleNamespace(leaving=frozenset())
        self.moves = MoveCommands(self.context, None, probes, leaders)  # type: ignore[arg-type]
        monkeypatch.setattr(self.moves._remaining, "unconfirmed", lambda tp, staying: [])
        self._meanwhile = meanwhile

    async def _perform(self, writes: Sequence[MultiWrite]) -> None:
        for write in writes:
            self.written += write.operations
            self.image.apply(write.changes, MetadataDelta())

    def leader_writes(self, tp: TopicPartition, state: PartitionState) -> None:
        self.image.apply([StatesChanged("t", TOPIC_ID, {tp.partition: state})], MetadataDelta())

    async def plan(self, planned: Any) -> Any:
        asyncio.get_running_loop().call_soon(self._meanwhile)
        return await planned

    def states_written(self) -> list[str]:
        return [one.path for one in self.written if isinstance(one, SetData) and one.path.endswith("/state")]


@pytest.mark.parametrize("only", [None, [TopicPartition("t", index) for index in range(3)]])
@pytest.mark.parametrize("changed", [T1, T2])
def test_what_a_leader_writes_while_moves_are_planned_counts(
    monkeypatch: pytest.MonkeyPatch, only: list[TopicPartition] | None, changed: TopicPartition
) -> None:
    """Else a replica that fell behind would come back into the in-sync set, and those that have everything leave."""
    planning = Planning(monkeypatch, lambda: planning.leader_writes(changed, BEHIND))
    asyncio.run(planning.plan(planning.moves.advance(only)))
    done = {TopicPartition("t", index) for index in range(3)} - {changed}
    assert planning.states_written() == [znodes.state_path(tp) for tp in sorted(done)]
    assert planning.image.partition(changed) == BEHIND


def test_a_write_is_compared_with_the_state_that_it_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the one that the controller has read since: the write must fail then."""
    planning = Planning(monkeypatch, lambda: None)
    step = planning.moves._next_step(T1, IN_SYNC)
    planning.leader_writes(T1, BEHIND)
    writes = StateWrites(planning.image, planning.context.live_brokers)
    assert step is not None
    writes.add(T1, step.state)
    (write,) = writes.done()
    assert [one.version for one in write.operations if isinstance(one, SetData)] == [IN_SYNC.partition_epoch]


def test_brokers_come_and_go_while_moves_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    def comes_back() -> None:
        planning.context.live_brokers = {**planning.context.live_brokers, ONE: LiveBroker(5, 4)}

    planning = Planning(monkeypatch, comes_back)
    for planned in (planning.moves.advance(None), planning.moves._alter(dict.fromkeys([T1, T2]), set())):
        with pytest.raises(StaleState):
            asyncio.run(planning.plan(planned))
    assert planning.written == []


def test_a_topic_is_deleted_while_the_brokers_of_its_moves_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    planning = Planning(monkeypatch, lambda: planning.image.apply([TopicDeleted("t", TOPIC_ID)], MetadataDelta()))
    led_by_three = replace(IN_SYNC, leader=THREE, partition_epoch=8)
    planning.image.apply([StatesChanged("t", TOPIC_ID, dict.fromkeys(range(3), led_by_three))], MetadataDelta())
    wanted = dict.fromkeys([T1, T2])

    async def asked_then_ordered() -> Any:
        await planning.moves._ask(wanted, list(wanted))
        return await planning.moves._alter(wanted, set())

    results = asyncio.run(planning.plan(asked_then_ordered()))
    assert {error for error, _message in results.values()} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
