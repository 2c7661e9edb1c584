"""The lives of a topic that is deleted and created again: to which of them something belongs, and what it may show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.invariants import Oracle

INVARIANTS = ("topics created again", "offsets after a deletion")


@dataclass(eq=False)
class Life:
    """A topic from its creation until its deletion is asked for; from then on nothing is promised."""

    number: int
    topic_id: Any
    over: bool = False
    commits: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    """The last offset of a group that was acknowledged in this life, or told."""


class Lives:
    """All lives of one topic. Groups commit ever higher offsets, each once."""

    def __init__(self, oracle: Oracle, topic: str) -> None:
        self._oracle = oracle
        self._topic = topic
        self.ids: set[Any] = set()
        self.present: Life | None = None
        oracle.lives[topic] = self
        self._settled: set[tuple[str, TopicPartition, int]] = set()
        """What was committed for a life, and acknowledged in it."""

    @property
    def now(self) -> Life | None:
        """The present life, unless its end was asked for."""
        return None if self.present is None or self.present.over else self.present

    def begin(self, topic_id: Any) -> Life:
        """There is a topic that was not there before."""
        if self.ids:
            self._oracle.checked["topics created again"] += 1
            self._oracle.forget_ends(self._topic)
        self.ids.add(topic_id)
        self.present = Life(len(self.ids), topic_id)
        return self.present

    def end(self, life: Life) -> None:
        """Its deletion is about to be asked for."""
        life.over = True
        sent = self._oracle.sent
        self._oracle.gone.update(value for value, (tp, _) in sent.items() if tp.topic == self._topic)

    def committed(self, life: Life, group: str, tp: TopicPartition, offset: int) -> None:
        """A commit that was sent in this life was acknowledged."""
        if not life.over:
            self._settled.add((group, tp, offset))
            life.commits[group, tp] = offset

    def told(self, life: Life, group: str, tp: TopicPartition, offset: int) -> None:
        """What a request for the committed offset was told that was sent and answered in this life."""
        self._oracle.checked["offsets after a deletion"] += life.number > 1
        mine = life.commits.get((group, tp), -1)
        if offset < mine:
            self._oracle.violate(f"offset {offset} of {group} for {tp} was told after {mine} was committed")
        if offset > mine and (group, tp, offset) in self._settled:
            self._oracle.violate(f"offset {offset} of {group} for {tp} was told, which is of a deleted topic")
